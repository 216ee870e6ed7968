package meta

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// readable demands that a base snapshot is read as what it is, or refused.
func readable(t *testing.T, what, text string, want bool) {
	t.Helper()
	s, err := Parse([]byte(text))
	switch {
	case (err == nil) != want:
		t.Errorf("%s: %v", what, err)
	case want && !bytes.Equal(s.AppendTo(nil), []byte(text)):
		t.Errorf("%s: parsing changed the state", what)
	}
}

// Before there is a cluster there is nothing else.
func TestParseWithoutCluster(t *testing.T) {
	empty := string(New().AppendTo(nil))
	readable(t, "nothing", empty, true)
	for _, change := range [][2]string{
		{`"next_start_number":0`, `"next_start_number":1`},
		{`"next_group":1`, `"next_group":2`},
		{`"nodes":[]`, `"nodes":[{"id":1,"host":"h","port":1,"nonce":"00000000000000000000000000000001","start_number":1}]`},
		{`"topics":[]`, `"topics":[{"name":"a","id":"00000000000000000000000000000001","rules":1,"floor":0,"partitions":[]}]`},
		{`"deleted":[]`, `"deleted":[{"name":"a","id":"00000000000000000000000000000001","time":1}]`},
		{`"deleted_before":0`, `"deleted_before":1`},
		{`"deleted_groups":[]`, `"deleted_groups":[{"first":1,"last":1}]`},
	} {
		readable(t, change[1], strings.Replace(empty, change[0], change[1], 1), false)
	}
}

// A state that is full to its bounds can be read, and nothing beyond.
func TestParseBounds(t *testing.T) {
	s := newCluster(t)
	groups := strings.Replace(string(s.AppendTo(nil)), `"deleted_groups":[]`, `"deleted_groups":[{"first":1,"last":4611686018427387903}]`, 1)
	readable(t, "all groups", strings.Replace(groups, `"next_group":1`, `"next_group":4611686018427387904`, 1), true)
	groups = strings.Replace(groups, "427387903}", "427387904}", 1)
	readable(t, "a group too many", strings.Replace(groups, `"next_group":1`, `"next_group":4611686018427387905`, 1), false)

	for n := int32(2); n <= NodesMax; n++ {
		apply(t, s, &Start{Node: n, Nonce: number(uint64(n)), Host: "h", Port: 1})
	}
	text := string(s.AppendTo(nil))
	readable(t, "all nodes", text, true)
	more := fmt.Sprintf(`,{"id":%d,"host":"h","port":1,"nonce":"%032x","start_number":%d}],"topics"`, NodesMax+1, 1, NodesMax+1)
	text = strings.Replace(text, `],"topics"`, more, 1)
	text = strings.Replace(text, fmt.Sprintf(`"next_start_number":%d`, NodesMax+1), fmt.Sprintf(`"next_start_number":%d`, NodesMax+2), 1)
	readable(t, "a node too many", text, false)
}

func TestParseBoundsPartitions(t *testing.T) {
	topic := func(number byte, first uint64, n int) bodyTopic {
		made := bodyTopic{Name: fmt.Sprintf("t%03d", number), ID: ID{number}, Partitions: make([]bodyPartition, n)}
		for i := range made.Partitions {
			made.Partitions[i] = bodyPartition{Group: first + uint64(i), Replicas: []int32{1}}
		}
		return made
	}
	var full []bodyTopic
	for i := range PartitionsMax / PartitionsPerTopicMax {
		full = append(full, topic(byte(i+1), uint64(i*PartitionsPerTopicMax+1), PartitionsPerTopicMax))
	}
	for what, c := range map[string]struct {
		topics    []bodyTopic
		nextGroup uint64
		want      bool
	}{
		"no partition":                       {[]bodyTopic{topic(1, 1, 0)}, 1, false},
		"all partitions of a topic":          {full[:1], PartitionsPerTopicMax + 1, true},
		"one too many":                       {[]bodyTopic{topic(1, 1, PartitionsPerTopicMax+1)}, PartitionsPerTopicMax + 2, false},
		"all partitions":                     {full, PartitionsMax + 1, true},
		"one too many of all topics":         {append(full, topic(200, PartitionsMax+1, 1)), PartitionsMax + 2, false},
		"one too many at one of many topics": {append(full[:5:5], topic(100, 5*PartitionsPerTopicMax+1, PartitionsPerTopicMax+1)), 6*PartitionsPerTopicMax + 2, false},
	} {
		b := body{Cluster: ID{1}, NextStartNumber: 2, NextGroup: c.nextGroup, Topics: c.topics}
		b.Nodes = []bodyNode{{ID: 1, Host: "h", Port: 1, Nonce: ID{1}, StartNumber: 1}}
		if _, err := b.state(); (err == nil) != c.want {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What is wrong is named.
func TestParseSaysWhatIsWrong(t *testing.T) {
	s := newCluster(t)
	for i, name := range []string{"a", "b", "c"} {
		apply(t, s, &CreateTopic{Name: name, ID: number(uint64(i + 7)), Partitions: [][]int32{{1}}})
	}
	for _, c := range []struct{ old, changed, want string }{
		{`00000000000000000000000000000009`, `00000000000000000000000000000007`, `topics "a" and "c" have the id 00000000000000000000000000000007`},
		{`"name":"c"`, `"name":"B"`, `topic "B" stands behind "b"`},
		{`"group":3`, `"group":2`, `groups 2 to 2 (deleted: false) behind groups 2 to 2 (false)`},
		{`"next_group":4`, `"next_group":6`, `group 3 is the last one, next is 6`},
		{`"start_number":1`, `"start_number":2`, `node 1 has start number 2`},
	} {
		text := strings.Replace(string(s.AppendTo(nil)), c.old, c.changed, 1)
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

// A command that is cut off is told from one of a type that is not known.
func TestDecodeSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		command []byte
		want    string
	}{
		{nil, "command of 0 bytes"},
		{[]byte{0}, "command of 1 bytes"},
		{[]byte{0, 9}, "unknown command type 9"},
		{[]byte{0, 4}, "command type 4: EOF"},
	} {
		if _, err := Decode(c.command); !errors.Is(err, ErrNewerVersion) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%x: got %v, want %s", c.command, err, c.want)
		}
	}
}
