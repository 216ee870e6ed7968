package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// counted leaves out what the watch over the free space does: it comes at times of its own, and so would shift the numbers
// of all other operations. It tells which operation fails.
type counted struct {
	errfs.Injector
	log *slog.Logger
}

func (c counted) Inject(op errfs.Op) error {
	if op.Kind == errfs.OpSpace || strings.HasSuffix(op.Path, reserveName) {
		return nil
	}
	err := c.Injector.Inject(op)
	if err != nil {
		c.log.Info("injected", "error", err, "op", op.Kind, "file", op.Path, "at", op.Off)
	}
	return err
}

// stride is how many operations apart those are before which a crash comes, or which fail, from one drawn at random on.
var stride = flag.Int("node.stride", 4, "crash at, and fail, every n-th operation only of the longer scripts; 1: each")

// faults are the ways in which each operation fails in turn. What is no write fails whole.
var faults = []errfs.Injector{errfs.ShortWrite(1, syscall.EIO), errfs.ShortWrite(50, syscall.ENOSPC), errfs.ENOSPC}

// TestEachOperationFails fails each operation of a node's life in turn, once: it starts, has topics made, filled, deleted and
// made again, with several segments, and stops. Whatever fails, either all goes on, or the node ends and says why; what was
// answered is true, and the next start finds nothing wrong.
func TestEachOperationFails(t *testing.T) {
	for _, fault := range faults {
		for at := rand.IntN(*stride); ; at += *stride {
			index := errfs.OnIndex(at, fault)
			synctest.Test(t, func(t *testing.T) { failIn(t, index) })
			if t.Failed() {
				t.Fatalf("operation %d: %s", at, fault)
			}
			if !index.Reached() {
				if at < 200 {
					t.Fatalf("the script has only %d operations", at)
				}
				break
			}
		}
	}
}

// TestStartFails fails each operation of a start in turn, on what a killed process has left: segments that were begun, a
// topic whose deletion was. The start succeeds all the same or says why it does not, and the next one finds nothing wrong.
func TestStartFails(t *testing.T) {
	var killed *memfs.FS
	before := life{each: 10}
	synctest.Test(t, func(t *testing.T) {
		mem := memfs.New()
		removing := make(chan struct{})
		stuck := errfs.Wrap(mem, onOp(func(op errfs.Op) {
			if op.Kind == errfs.OpRemove && strings.HasSuffix(op.Path, ".log") {
				<-removing
			}
		}))
		n := openWith(t, stuck, small())
		if before.run(t, n, new(atomic.Bool)); t.Failed() {
			t.Fatal("the script fails without a fault")
		}
		killed = mem.KillClone()
		close(removing)
		closeNode(t, n)
	})
	for _, fault := range faults {
		for at := rand.IntN(*stride); ; at += *stride {
			index := errfs.OnIndex(at, fault)
			synctest.Test(t, func(t *testing.T) {
				answered := before
				mem := killed.KillClone()
				answered.live(t, mem, index, func(n *Node, ended *atomic.Bool) {
					topic, _ := n.Topics().ByName("topic")
					if answered.produce(t, n, topic, 2*answered.each, ended) {
						answered.batches++
					}
				})
			})
			if t.Failed() {
				t.Fatalf("operation %d: %s", at, fault)
			}
			if !index.Reached() {
				if at < 50 {
					t.Fatalf("a start has only %d operations", at)
				}
				break
			}
		}
	}
}

// failIn runs the script up to its end, or to the node's, and starts the node again on what is left.
func failIn(t *testing.T, index *errfs.Index) {
	answered := life{each: 10}
	answered.live(t, memfs.New(), index, func(n *Node, ended *atomic.Bool) { answered.run(t, n, ended) })
}

// live starts a node on a disk that fails once, has script use it, and looks at what is left when it has ended.
func (l *life) live(t *testing.T, mem *memfs.FS, index *errfs.Index, script func(*Node, *atomic.Bool)) {
	var said lines
	defer func() {
		if t.Failed() {
			t.Log(said.String())
		}
	}()
	e := env(t, errfs.Wrap(mem, counted{index, said.logger()}), 1)
	e.Logger = said.logger()
	var ended atomic.Bool
	e.Fatal = func(err error) {
		ended.Store(true)
		e.Logger.Error("fatal", "error", err)
	}
	n, err := Open(t.Context(), e, small())
	if err == nil {
		script(n, &ended)
		err = n.Close()
	}
	if err != nil && !index.Reached() {
		t.Errorf("fails without a reason: %v", err)
	}
	l.check(t, mem.KillClone(), "after the error") // what a process leaves that has ended at once
}

// run makes a topic, fills and deletes it, and does it again, as long as the node lives. What fails is tried again.
func (l *life) run(t *testing.T, n *Node, ended *atomic.Bool) {
	id, err := n.NextProducerID()
	if err != nil {
		t.Fatal(err)
	}
	l.id = id
	for round := range batch.Sequence(2) {
		topic := l.create(t, n, ended)
		if topic == nil {
			return
		}
		l.made++
		for i := range l.each {
			if !l.produce(t, n, topic, l.each*round+i, ended) {
				return
			}
			l.batches++
		}
		if round == 0 {
			l.begun++
			l.batches = 0
			if !l.delete(t, n, topic, ended) {
				return
			}
			l.deletions++
		}
	}
}

// until tries a step again, for a minute at most, until it succeeds; false: the node has ended, or the partition cannot be
// read and is offline.
func until(t *testing.T, ended *atomic.Bool, step func() error) bool {
	t.Helper()
	var err error
	for range 60 {
		if err = step(); err == nil {
			synctest.Wait() // for what goes on in the background
			return true
		}
		if pass(time.Second); ended.Load() || errors.Is(err, replica.ErrOffline) && errors.Is(err, syscall.EIO) {
			return false
		}
	}
	t.Errorf("fails again and again: %v", err)
	return false
}

func (l *life) create(t *testing.T, n *Node, ended *atomic.Bool) (topic *meta.Topic) {
	until(t, ended, func() (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		topic, err = n.CreateTopic(ctx, NewTopic{Name: "topic", Partitions: 2, Replication: -1}, false)
		if errors.Is(err, meta.ErrTopicExists) {
			topic, _ = n.Topics().ByName("topic")
			return nil
		}
		return err
	})
	return topic
}

func (l *life) produce(t *testing.T, n *Node, topic *meta.Topic, i batch.Sequence, ended *atomic.Bool) bool {
	return until(t, ended, func() error {
		p, ok := n.Partition(topic.ID, 0)
		if !ok {
			return errors.New("no partition")
		}
		d := make(done, 1)
		if err := p.Submit(submission(t, l.id, i, d)); err != nil {
			return err
		}
		select {
		case a := <-d:
			if want := batch.Offset(i - l.each*batch.Sequence(l.deletions)); a.Err == nil && a.Base != want {
				t.Errorf("batch %d is answered with offset %d", i, a.Base)
			}
			if errors.Is(a.Err, replica.ErrRefused) {
				t.Errorf("batch %d is refused: %+v", i, a.Decision)
			}
			return a.Err
		case <-time.After(time.Second):
			return fmt.Errorf("batch %d: no answer", i)
		}
	})
}

func (l *life) delete(t *testing.T, n *Node, topic *meta.Topic, ended *atomic.Bool) bool {
	return until(t, ended, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := n.DeleteTopic(ctx, topic)
		if errors.Is(err, meta.ErrUnknownTopic) {
			return nil
		}
		return err
	})
}
