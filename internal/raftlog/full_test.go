package raftlog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
)

// Each operation of a script that can find no room finds none, at some byte. The flush says so, keeps what it has not
// written, and goes on with it; whatever is killed meanwhile, all that was answered is there, and each entry once.
func TestGroupFullAtEveryOperation(t *testing.T) {
	met := 0
	for i, room := range []int{0, 1, 39, 61, 97, 300} {
		for n := i % *groupStride; ; n += *groupStride {
			injector := errfs.OnIndex(n, errfs.ShortWrite(room, syscall.ENOSPC))
			met += groupOnFullDisk(t, injector)
			if !injector.Reached() {
				if n < 60 {
					t.Fatalf("only %d operations", n)
				}
				break
			}
		}
	}
	if met < 25 {
		t.Fatalf("only %d times without room", met)
	}
}

func groupOnFullDisk(t *testing.T, injector *errfs.Index) int {
	t.Helper()
	mem := newStateFS(t)
	c := newGroupScript(t, 4, mem, errfs.Wrap(mem, needsRoom{injector}))
	c.onFull = func() {
		if c.log != nil {
			c.checkDisk(t, mem.KillClone(), boot1)
			c.checkDisk(t, mem.CrashClone(c.luck.IntN(101), c.luck), boot2)
		}
	}
	err := c.repeat(func() error { return c.open(boot1) })
	for range 40 {
		if err == nil {
			err = c.step(boot1)
		}
	}
	if err != nil {
		t.Fatalf("%s: %v", injector, err)
	}
	if last := c.checkLog(t, c.log); last != c.last() || c.answered != last {
		t.Fatalf("%s: the log ends at %d, answered %d, written %d", injector, last, c.answered, c.last())
	}
	must(t, c.close())
	c.checkDisk(t, mem.CrashClone(0, nil), boot2)
	return c.full
}

// needsRoom asks only for operations that a full disk refuses.
type needsRoom struct{ errfs.Injector }

func (i needsRoom) Inject(op errfs.Op) error {
	switch op.Kind {
	case errfs.OpCreate, errfs.OpWrite:
		return i.Injector.Inject(op)
	}
	return nil
}

// events counts what a node hears.
type events struct {
	t    testing.TB
	mu   sync.Mutex
	full int
	on   func()
}

func (e *events) events() Events {
	return Events{
		Fatal: func(err error) { e.t.Errorf("fatal: %v", err) },
		Full: func(err error) {
			if !errors.Is(err, ErrFull) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "group") {
				e.t.Errorf("full: %v", err)
			}
			e.mu.Lock()
			e.full++
			on := e.on
			e.mu.Unlock()
			if on != nil {
				on()
			}
		},
	}
}

func (e *events) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.full
}

// collector is a Sink that remembers.
type collector struct {
	mu       sync.Mutex
	answered []uint64
	rolled   []seglog.Index
	failed   error
}

func (c *collector) Carried(responses []*pb.Message, rolled []seglog.Index) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rolled = append(c.rolled, rolled...)
	for _, m := range responses {
		c.answered = append(c.answered, m.GetIndex())
	}
}

func (c *collector) Failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = errors.Join(c.failed, err)
}

func (c *collector) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("answered %v rolled %v failed %t", c.answered, c.rolled, c.failed != nil)
}

// A real disk that fills up: groups are parked, more is submitted to them, Retry without room parks them again, and with room
// all of it is written and answered, each once and in order. A group that needs no room goes on meanwhile.
func TestDiskFillsUpAndEmpties(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newStateFS(t)
		state := createState(t, mem)
		const groups = 5
		var logs []*Log
		for g := range seglog.GroupID(groups) {
			logs = append(logs, newLog(t, mem, state, g))
		}
		e := &events{t: t}
		f := NewFlushers(2, state, e.events())
		var sinks []*collector
		var writers []*Writer
		for _, l := range logs {
			sinks = append(sinks, &collector{})
			writers = append(writers, f.NewWriter(l, sinks[len(sinks)-1]))
		}
		_, total, err := mem.Space("/")
		must(t, err)
		free, _, err := mem.Space("/")
		must(t, err)
		used := total - free
		mem.SetCapacity(used + groups*4096)
		big := strings.Repeat("x", 20_000)
		var want []uint64
		next, offset := uint64(2), batch.Offset(0)
		submit := func(payload string) {
			for _, w := range writers {
				if next == 2 {
					w.Submit(storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
					continue
				}
				w.Submit(storageAppend(0, 0, next, entry(next, 2, storedBatch(offset, 2, payload))))
			}
			if want = append(want, next); next > 2 {
				offset++
			}
			next++
			synctest.Wait()
		}
		submit("")
		submit("fits")
		submit(big)
		if f.Parked() != groups || e.count() != groups {
			t.Fatalf("%d of %d parked, told %d times", f.Parked(), groups, e.count())
		}
		submit("small")
		f.Retry()
		synctest.Wait()
		if f.Parked() != groups || e.count() != 2*groups {
			t.Fatalf("%d of %d parked without room, told %d times", f.Parked(), groups, e.count())
		}
		for _, s := range sinks {
			if s.String() != "answered [2 3] rolled [] failed false" {
				t.Fatalf("while parked: %v", s)
			}
		}
		e.mu.Lock()
		e.on = f.Retry // a monitor that sees room at once when it is told
		e.mu.Unlock()
		mem.SetCapacity(0)
		f.Retry()
		synctest.Wait()
		submit("afterwards")
		for g, s := range sinks {
			if fmt.Sprint(s.answered) != fmt.Sprint(want) || s.failed != nil || f.Parked() != 0 {
				t.Fatalf("group %d: %v, want %v", g, s, want)
			}
			entries, err := logs[g].Entries(2, next, 1<<40)
			must(t, err)
			if len(entries) != len(want) || len(entries[2].GetData()) < len(big) {
				t.Fatalf("group %d has %d entries", g, len(entries))
			}
		}
		f.Close()
	})
}

// A writer that is closed while its group is parked, or that is parked while it is being closed, does not wait: it tries once
// more, then its sink is told, and nothing comes behind.
func TestCloseWhileParked(t *testing.T) {
	for _, how := range []string{"writer", "begin first", "flushers", "with room"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := newStateFS(t)
				state := createState(t, mem)
				l := newLog(t, mem, state, 1)
				e := &events{t: t}
				f := NewFlushers(1, state, e.events())
				s := &collector{}
				w := f.NewWriter(l, s)
				w.Submit(storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
				synctest.Wait()
				mem.SetCapacity(4096) // less than there is
				big := entry(3, 2, storedBatch(0, 2, strings.Repeat("x", 20_000)))
				if how == "begin first" {
					w.BeginClose()
				}
				w.Submit(storageAppend(0, 0, 3, big))
				synctest.Wait()
				if parked := f.Parked(); (parked == 1) != (how != "begin first") {
					t.Fatalf("%d parked", parked)
				}
				want := "answered [2] rolled [] failed true"
				if how == "with room" {
					mem.SetCapacity(0)
					want = "answered [2 3] rolled [] failed false"
				}
				if how != "flushers" {
					w.Close()
					if synctest.Wait(); s.String() != want {
						t.Fatalf("closed: %v, want %s", s, want)
					}
				}
				f.Close()
				if s.String() != want || f.Parked() != 0 {
					t.Fatalf("%v, want %s", s, want)
				}
				if s.failed != nil && !errors.Is(s.failed, ErrFull) {
					t.Fatalf("failed: %v", s.failed)
				}
				must(t, l.Close())
				mem.SetCapacity(0)
				l, _, err := OpenGroup(logConfig(mem, state, 1))
				must(t, err)
				if last := l.segments.LastIndex(); last < 2 || last > 3 {
					t.Fatalf("the log ends at %d", last)
				}
				must(t, l.Close())
			})
		})
	}
}

// Rolls happen where they were asked for, in order with the entries, and are reported with the flush that made them; one
// behind another, or in an empty segment, is none.
func TestRollsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newStateFS(t)
		gate := make(chan struct{})
		var shut atomic.Bool
		fs := errfs.Wrap(mem, hook(func(op errfs.Op) {
			if shut.Load() && op.Kind == errfs.OpSyncData && strings.HasSuffix(op.Path, "2.log") {
				<-gate
			}
		}))
		state := createState(t, fs)
		l := newLog(t, mem, state, 1)
		must(t, l.Close())
		l, _, err := OpenGroup(logConfig(fs, state, 1))
		must(t, err)
		f := NewFlushers(2, state, fatalIn(t))
		s := &collector{}
		w := f.NewWriter(l, s)
		shut.Store(true)
		w.Roll() // of an empty segment
		w.Submit(storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
		synctest.Wait() // the flusher waits for the disk
		w.Roll()
		w.Submit(storageAppend(0, 0, 4, entry(3, 2, storedBatch(0, 2, "a")), entry(4, 2, storedBatch(1, 2, "b"))))
		w.Roll()
		w.Roll()
		w.Submit(storageAppend(0, 0, 5, entry(5, 2, storedBatch(2, 2, "c"))))
		close(gate)
		synctest.Wait()
		if s.String() != "answered [2 4 5] rolled [3 5] failed false" {
			t.Fatalf("%v", s)
		}
		w.Roll() // with nothing else
		synctest.Wait()
		if !slices.Equal(s.rolled, []seglog.Index{3, 5, 6}) {
			t.Fatalf("%v", s)
		}
		w.Roll()
		w.Close()
		var firsts []seglog.Index
		for _, info := range l.Segments().Segments() {
			firsts = append(firsts, info.First)
		}
		if !slices.Equal(firsts, []seglog.Index{2, 3, 5, 6}) || len(s.rolled) != 3 {
			t.Fatalf("segments %v, %v", firsts, s)
		}
		f.Close()
		must(t, l.Close())
	})
}

// A segment is made known although making its successor, or its first entry, found no room at first.
func TestRollMeetsFullDisk(t *testing.T) {
	for n := 0; ; n++ {
		mem := newStateFS(t)
		state := createState(t, mem)
		must(t, newLog(t, mem, state, 1).Close())
		injector := errfs.OnIndex(n, errfs.ShortWrite(20, syscall.ENOSPC))
		armed := false
		cfg := logConfig(errfs.Wrap(mem, needsRoom{injectEachIf(func(op errfs.Op) error {
			if armed {
				return injector.Inject(op)
			}
			return nil
		})}), state, 1)
		cfg.SegmentEntries = 1
		l, _, err := OpenGroup(cfg)
		must(t, err)
		armed = true
		f := &Flushers{state: state, markers: marker{state: state, ends: map[seglog.GroupID]seglog.Floor{}}}
		s := &collector{}
		w := f.NewWriter(l, s)
		w.flushing = []*pb.Message{
			storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)), storageAppend(0, 0, 3, entry(3, 2, storedBatch(0, 2, "a"))), nil,
		}
		for err = w.flush(); errors.Is(err, ErrFull); err = w.flush() {
			if len(s.answered)+len(s.rolled) > 0 {
				t.Fatalf("write %d: answered before all is written: %v", n, s)
			}
		}
		must(t, err)
		if s.String() != "answered [2 3] rolled [3 4] failed false" {
			t.Fatalf("write %d: %v", n, s)
		}
		must(t, l.Close())
		if !injector.Reached() {
			if n < 8 {
				t.Fatalf("only %d operations", n)
			}
			return
		}
	}
}
