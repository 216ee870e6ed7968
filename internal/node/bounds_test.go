package node

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// A node creates no more partitions than it can have open, whoever asks, also after a restart. What was refused uses up
// nothing.
func TestPartitionsAreBounded(t *testing.T) {
	fs := memfs.New()
	bounded := config
	bounded.PartitionsMax = 8
	refused := func(n *Node, partitions int32) {
		t.Helper()
		for _, validateOnly := range []bool{true, false} {
			if _, err := n.CreateTopic(t.Context(), NewTopic{Name: "more", Partitions: partitions, Replication: -1}, validateOnly); !errors.Is(err, meta.ErrInvalidPartitions) {
				t.Errorf("%d partitions more: %v", partitions, err)
			}
		}
	}
	n := openWith(t, fs, bounded)
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			_, err := n.CreateTopic(t.Context(), NewTopic{Name: "one", Partitions: 3, Replication: -1}, false)
			if err != nil && !errors.Is(err, meta.ErrTopicExists) && !errors.Is(err, meta.ErrInvalidPartitions) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	refused(n, 6)
	if _, err := n.CreateTopic(t.Context(), NewTopic{Name: "dry", Partitions: 5, Replication: -1}, true); err != nil {
		t.Error(err)
	}
	create(t, n, "two", 4)
	refused(n, 2)
	closeNode(t, n)
	n = openWith(t, fs, bounded)
	defer closeNode(t, n)
	refused(n, 2)
	create(t, n, "three", 1)
	refused(n, 1)
	if topics := n.Topics().All(); len(topics) != 3 {
		t.Errorf("%d topics", len(topics))
	}
}

// Nothing is begun for a caller who has no time left: a request that names ten thousand topics must not create them all
// after it was answered.
func TestNothingIsCreatedWithoutTime(t *testing.T) {
	n := open(t, memfs.New(), 1)
	defer closeNode(t, n)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.CreateTopic(ctx, NewTopic{Name: "late", Partitions: 1, Replication: -1}, false); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	create(t, n, "after", 1)
	if _, ok := n.Topics().ByName("late"); ok {
		t.Error("the topic exists")
	}
}

// syncGate is a file system on which nothing is synced while the gate is shut.
type syncGate struct {
	vfs.FS
	gate sync.RWMutex
}

func (g *syncGate) Create(name string) (vfs.File, error) { return g.wrap(g.FS.Create(name)) }
func (g *syncGate) Open(name string) (vfs.File, error)   { return g.wrap(g.FS.Open(name)) }

func (g *syncGate) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &gatedFile{f, g}, nil
}

type gatedFile struct {
	vfs.File
	fs *syncGate
}

func (f *gatedFile) SyncData() error {
	f.fs.gate.RLock()
	defer f.fs.gate.RUnlock()
	return f.File.SyncData()
}

// The refused one of two creations of a topic gives its room back, also when its caller has gone before it was refused.
func TestRoomOfARefusedTopic(t *testing.T) {
	fs := &syncGate{FS: memfs.New()}
	n := openWith(t, fs, config)
	defer closeNode(t, n)
	before := n.room.free()
	taken := func(topics int) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); n.room.free() != before-3*topics; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("room for %d partitions before, %d with %d topics", before, n.room.free(), topics)
			}
		}
	}
	fs.gate.Lock()
	first, second := make(chan error, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := n.CreateTopic(t.Context(), NewTopic{Name: "x", Partitions: 3, Replication: -1}, false)
		first <- err
	}()
	taken(1)
	go func() {
		_, err := n.CreateTopic(ctx, NewTopic{Name: "x", Partitions: 3, Replication: -1}, false)
		second <- err
	}()
	taken(2)
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("the second creation: %v", err)
	}
	fs.gate.Unlock()
	if err := <-first; err != nil && !errors.Is(err, meta.ErrTopicExists) { // who is refused is not certain
		t.Fatal(err)
	}
	taken(1)
	deleteTopic(t, n, "x")
	taken(0)
}

// Who deletes a topic waits no longer than it may, whatever others that change topics wait for.
func TestDeletionWaitsNoLongerThanItMay(t *testing.T) {
	fs := &syncGate{FS: memfs.New()}
	n := openWith(t, fs, config)
	defer closeNode(t, n)
	topic, before := create(t, n, "x", 1), n.room.free()
	fs.gate.Lock()
	created, deleted := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := n.CreateTopic(t.Context(), NewTopic{Name: "y", Partitions: 1, Replication: -1}, false)
		created <- err
	}()
	for n.room.free() == before {
		runtime.Gosched()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	go func() { deleted <- n.DeleteTopic(ctx, topic) }()
	select {
	case err := <-deleted:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("deleted: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the deletion waits for the creation of another topic")
	}
	fs.gate.Unlock()
	if err := <-created; err != nil {
		t.Error(err)
	}
}
