package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// deleted demands that nothing is left of group 1 but the record that it is gone.
func deleted(t testing.TB, disk *memfs.FS, state *StateFile) {
	t.Helper()
	if _, err := disk.List(logConfig(disk, state, 1).Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the directory is left: %v", err)
	}
	wantGroup(t, state, 1, GroupState{Replica: logReplica})
	if len(state.Deleting()) > 0 {
		t.Fatalf("still to be deleted: %v", state.Deleting())
	}
	names, err := disk.List("groups/c")
	must(t, err)
	if len(names) == 0 {
		t.Fatal("another group lost its files")
	}
}

// twoGroups makes group 1, of several segments, and group 2.
func twoGroups(t testing.TB, mem *memfs.FS) *groupScript {
	t.Helper()
	c := builtGroup(t, mem, mem, 3)
	must(t, newLog(t, mem, c.cfg.State, 2).Close())
	must(t, c.close())
	return c
}

// The machine, or the process, goes down before each operation of a deletion: the group is whole, or its deletion is known to
// be unfinished and the next call ends it. When DeleteGroup has returned it is gone for good.
func TestDeleteEveryCrash(t *testing.T) {
	mem := newStateFS(t)
	c := twoGroups(t, mem)
	ended := false
	seen := map[string]bool{}
	check := func(disk *memfs.FS, boot [16]byte, op errfs.Op) {
		state, report := openState(t, disk, boot)
		cfg := c.cfg
		cfg.FS, cfg.State, cfg.SameBoot = disk, state, report.SameBoot
		known, _ := state.Group(1)
		switch unfinished := state.Deleting(); {
		case !known.Live:
			seen["gone"] = true
		case ended:
			t.Fatalf("before %v: the deletion has ended and is lost", op)
		case len(unfinished) == 0:
			seen["whole"] = true
			l, _, err := OpenGroup(cfg)
			must(t, err)
			c.checkLog(t, l)
			must(t, l.Close())
		case !slices.Equal(unfinished, []seglog.GroupID{1}):
			t.Fatalf("before %v: to be deleted: %v", op, unfinished)
		default:
			seen["unfinished"] = true
			if _, _, err := OpenGroup(cfg); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("before %v: opened while it is being deleted: %v", op, err)
			}
			if i := Inspect(cfg); i.Unfinished != "delete" {
				t.Fatalf("before %v: inspection %+v", op, i)
			}
		}
		must(t, DeleteGroup(cfg))
		deleted(t, disk, state)
		must(t, DeleteGroup(cfg)) // again
		must(t, state.Close())
		state, _ = openState(t, disk.CrashClone(0, nil), boot2)
		deleted(t, disk, state)
	}
	judge := func(op errfs.Op) {
		for _, percent := range []int{0, 100, 30, 70} {
			check(mem.CrashClone(percent, c.luck), boot2, op)
		}
		check(mem.KillClone(), boot1, op)
	}
	cfg := c.cfg
	cfg.FS = errfs.Wrap(mem, hook(judge))
	cfg.State, _ = openState(t, cfg.FS, boot1)
	must(t, DeleteGroup(cfg))
	ended = true
	judge(errfs.Op{Path: "the end"})
	if len(seen) != 3 {
		t.Fatalf("seen only %v", seen)
	}
}

// Each operation of a deletion fails: the call says so, and the next one ends it, in this process or another.
func TestDeleteEveryError(t *testing.T) {
	for _, failure := range []errfs.Injector{errfs.EIO, errfs.ENOSPC, errfs.ShortWrite(20, syscall.ENOSPC)} {
		for n := 0; ; n++ {
			mem := newStateFS(t)
			c := twoGroups(t, mem)
			injector := errfs.OnIndex(n, failure)
			armed := false
			cfg := c.cfg
			cfg.FS = errfs.Wrap(mem, injectEachIf(func(op errfs.Op) error {
				if armed {
					return injector.Inject(op)
				}
				return nil
			}))
			cfg.State, _ = openState(t, cfg.FS, boot1)
			armed = true
			err := DeleteGroup(cfg)
			if !injector.Reached() {
				must(t, err)
				if n < 12 {
					t.Fatalf("only %d operations", n)
				}
				break
			}
			if err == nil || !strings.Contains(err.Error(), "delete group 1") {
				t.Fatalf("%s: %v", injector, err)
			}
			if err = DeleteGroup(cfg); err == nil {
				deleted(t, mem, cfg.State)
			} else if errors.Is(err, ErrFull) {
				t.Fatalf("%s, called again: %v", injector, err)
			}
			disk := mem.KillClone()
			cfg.FS = disk
			cfg.State, _ = openState(t, disk, boot1)
			must(t, DeleteGroup(cfg))
			deleted(t, disk, cfg.State)
		}
	}
}

// A group that was never born, or not to the end, is deleted as well; what lies in its place but holds entries is not.
func TestDeleteUnborn(t *testing.T) {
	mem := newStateFS(t)
	state := createState(t, mem)
	cfg := logConfig(mem, state, 1)
	must(t, mem.MkdirAll("groups"))
	must(t, DeleteGroup(cfg)) // nothing at all
	must(t, mem.MkdirAll(cfg.Dir))
	for _, name := range []string{"00000000000000000002.log", "00000000000000000002.base", "00000000000000000002.base.tmp"} {
		writeFile(t, mem, cfg.Dir+"/"+name, []byte("half"))
	}
	must(t, DeleteGroup(cfg))
	if _, err := mem.List(cfg.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("left: %v", err)
	}
	must(t, mem.MkdirAll(cfg.Dir))
	writeFile(t, mem, cfg.Dir+"/00000000000000000002.log", make([]byte, unusedBytesMax+1))
	if err := DeleteGroup(cfg); err == nil {
		t.Fatal("entries without a record are deleted")
	}
}

// A mark that the marker has not written yet comes when the replica is gone. It is no news.
func TestMarkAfterDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newStateFS(t)
		state := createState(t, mem)
		l := newLog(t, mem, state, 1)
		must(t, newLog(t, mem, state, 2).Close())
		f := NewFlushers(1, state, fatalIn(t))
		w := f.NewWriter(l, &collector{})
		w.Submit(storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
		w.Close()
		must(t, l.Close())
		must(t, DeleteGroup(logConfig(mem, state, 1)))
		f.Close() // writes the outstanding marks
		deleted(t, mem, state)
	})
}

// A crash in the middle of a truncation leaves an intent; the start that carries it out finds entries that were to go, none of
// them in the log or in the ring afterwards.
func TestTruncationIsFinishedAtOpen(t *testing.T) {
	for _, kept := range []int{1, 3, 5} {
		mem := newStateFS(t)
		c := builtGroup(t, mem, mem, 2)
		must(t, c.flush.markers.write())
		from := c.log.base.Index + seglog.Index(kept) + 8
		for c.last() < from+3 {
			must(t, c.write())
		}
		intent := stateRecord{recordType: recordIntent, group: 1, intent: intentTruncate, index: from}
		must(t, c.cfg.State.record(intent))
		must(t, c.log.Close())
		must(t, c.cfg.State.Close())
		must(t, c.open(boot1))
		c.stages, c.answered = c.stages[:from-1], from-1
		if last := c.checkLog(t, c.log); last != from-1 || len(c.log.ring) != int(last-c.log.applied) {
			t.Fatalf("the log ends at %d with %d entries to apply", last, len(c.log.ring))
		}
		if known, _ := c.cfg.State.Group(1); known.Mark.Index >= from {
			t.Fatalf("mark %+v", known.Mark)
		}
		if _, unfinished := c.cfg.State.unfinished(1); unfinished {
			t.Fatal("the intent is not done")
		}
		must(t, c.log.Truncate(from)) // behind the end
		bug(t, "truncation of what is applied", func() { _ = c.log.Truncate(c.log.applied) })
		must(t, c.write())
		must(t, c.close())
	}
}

// Rewriting the state file keeps what is unfinished, under another sequence, also when it happens between beginning and end.
func TestIntentsThroughRewriting(t *testing.T) {
	mem := newStateFS(t)
	s := createState(t, mem)
	for g := range seglog.GroupID(4) {
		must(t, s.Birth(g, 70, 1))
	}
	must(t, s.record(stateRecord{recordType: recordIntent, group: 1, intent: intentTruncate, index: 9}))
	must(t, s.record(stateRecord{recordType: recordIntent, group: 2, intent: intentDelete}))
	must(t, s.record(stateRecord{recordType: recordIntent, group: 3, intent: intentGiveUp, index: 7}))
	before := stateGroups(s)
	for range 2 {
		s.rewrite()
		must(t, s.err)
		if s.table.live != s.end {
			t.Fatalf("live size %d, rewritten size %d", s.table.live, s.end)
		}
		must(t, s.Close())
		s, _ = openState(t, mem, boot1)
		if after := stateGroups(s); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Fatalf("%v became %v", before, after)
		}
	}
	bug(t, "an intent before the end of another one", func() {
		s, _ := openState(t, mem.KillClone(), boot1)
		_ = s.record(stateRecord{recordType: recordIntent, group: 1, intent: intentGiveUp, index: 9})
	})
	s.rewrite()
	must(t, s.finish(1, seglog.Floor{})) // under its new sequence
	openState(t, mem.KillClone(), boot1)
	must(t, s.finish(1, seglog.Floor{}))                                                     // again
	must(t, s.record(stateRecord{recordType: recordIntent, group: 3, intent: intentDelete})) // takes the place of the other
	if got := s.Deleting(); !slices.Equal(got, []seglog.GroupID{2, 3}) {
		t.Fatalf("to be deleted: %v", got)
	}
	gone := stateRecord{recordType: recordReplica, group: 2, replica: 70, life: replicaGone}
	must(t, s.record(gone))
	must(t, s.record(gone)) // again
	s.rewrite()
	must(t, s.Close())
	s, _ = openState(t, mem, boot1)
	if _, unfinished := s.unfinished(1); unfinished || !slices.Equal(s.Deleting(), []seglog.GroupID{3}) {
		t.Fatalf("%v", stateGroups(s))
	}
	wantGroup(t, s, 2, GroupState{Replica: 70})
	must(t, s.Close())
}

// A birth that finds no room at any of its operations is repeated as its documentation says.
func TestBirthOnFullDisk(t *testing.T) {
	for _, room := range []int{0, 50} {
		for n := 0; ; n++ {
			mem := newStateFS(t)
			must(t, mem.MkdirAll("groups"))
			must(t, mem.SyncDir("/"))
			injector := errfs.OnIndex(n, errfs.ShortWrite(room, syscall.ENOSPC))
			armed := false
			fs := errfs.Wrap(mem, needsRoom{injectEachIf(func(op errfs.Op) error {
				if armed {
					return injector.Inject(op)
				}
				return nil
			})})
			state := createState(t, fs)
			armed = true
			cfg := logConfig(fs, state, 1)
			base := Base{
				Cluster: cfg.Identity.Cluster, Group: 1, Index: 1, Term: 1,
				Members: Members{Voters: []uint64{uint64(logReplica)}}, Body: []byte("body"),
			}
			err := CreateGroup(cfg, base)
			armed = false
			if injector.Reached() && !errors.Is(err, ErrFull) {
				t.Fatalf("%s: %v", injector, err)
			}
			if _, born := state.Group(1); !born {
				err = CreateGroup(cfg, base)
				must(t, err)
			}
			l, _, err := OpenGroup(cfg)
			must(t, err)
			f := &Flushers{state: state, markers: marker{state: state, ends: map[seglog.GroupID]seglog.Floor{}}}
			s := &collector{}
			must(t, f.NewWriter(l, s).carry([]*pb.Message{storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil))}))
			must(t, l.Close())
			disk := mem.CrashClone(0, nil)
			cfg.State, _ = openState(t, disk, boot2)
			cfg.FS = disk
			l, _, err = OpenGroup(cfg)
			must(t, err)
			if last := l.segments.LastIndex(); last != 2 {
				t.Fatalf("%s: the log ends at %d", injector, last)
			}
			must(t, l.Close())
			if !injector.Reached() {
				break
			}
		}
	}
}
