package server

import (
	"context"
	"errors"
	"testing"
)

func TestFinderMakesSureOnce(t *testing.T) {
	node := newFakeNode()
	node.add("known", 1)
	node.refresh = func() error { node.add("late", 1); return nil }
	find := (&Server{node: node}).finder(context.Background())
	if find.byName("known") == nil || node.refreshes != 0 {
		t.Fatalf("a known topic asked %d times", node.refreshes)
	}
	if find.byName("late") == nil {
		t.Error("a topic that the others know was not found")
	}
	if find.byName("none") != nil || find.byID([16]byte{9}) != nil || node.refreshes != 1 {
		t.Errorf("one request asked %d times", node.refreshes)
	}
	if got := find.absent(codeUnknownTopicID, codeLeaderNotAvailable); got != codeUnknownTopicID {
		t.Errorf("code %d of what does not exist", got)
	}
}

func TestFinderUnsure(t *testing.T) {
	node := newFakeNode()
	node.refresh = func() error { return errors.New("no majority") }
	find := (&Server{node: node}).finder(context.Background())
	row := (&Server{node: node}).metadataByName(&find, new("none"), true)
	if row.code != codeLeaderNotAvailable || len(node.created) > 0 {
		t.Errorf("metadata: code %d, created %v", row.code, node.created)
	}
	d := deletion{name: new("none")}
	if d.find(&find); d.code != codeRequestTimedOut {
		t.Errorf("delete: code %d", d.code)
	}
	k := produceCheck{topics: find}
	if c, _ := k.missing(codeUnknownTopicOrPartition, nil); c != codeNotLeaderOrFollower {
		t.Errorf("produce: code %d", c)
	}
}
