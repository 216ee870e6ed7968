package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.etcd.io/raft/v3"

	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// builtGroup is an open group of some segments, each with its base snapshot; the last one has entries too.
func builtGroup(t testing.TB, mem *memfs.FS, fsys vfs.FS, segments int) *groupScript {
	t.Helper()
	c := newGroupScript(t, 7, mem, fsys)
	c.cfg.SegmentBytes, c.steady = 1<<20, true
	must(t, c.open(boot1))
	for n := range segments {
		if n > 0 {
			c.roll(t)
		}
		for first := c.last(); c.last() < first+4; {
			must(t, c.write())
		}
	}
	return c
}

func (c *groupScript) firsts() []seglog.Index {
	var firsts []seglog.Index
	for _, s := range c.log.Segments().Segments() {
		firsts = append(firsts, s.First)
	}
	return firsts
}

func (c *groupScript) path(first seglog.Index, suffix string) string {
	return filepath.Join(c.cfg.Dir, fmt.Sprintf("%020d%s", first, suffix))
}

// Each byte of the newest base snapshot is changed, and it ends anywhere: the one before it is used, the state is the
// same, and its place is wanted again.
func TestEachByteOfABaseFlipped(t *testing.T) {
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, 3)
	must(t, c.close())
	firsts := c.firsts()
	newest := firsts[2]
	content := []byte(filesOf(t, mem, c.cfg.Dir)[filepath.Base(c.path(newest, baseSuffix))])
	damaged := func(b []byte) {
		t.Helper()
		disk := mem.KillClone()
		must(t, disk.Remove(c.path(newest, baseSuffix)))
		writeFile(t, disk, c.path(newest, baseSuffix), b)
		l := c.reopen(t, disk, func(r Report) bool { return len(r.BadBases) == 1 })
		if l.Base().Index != firsts[1]-1 || !slices.Equal(l.WantBases(), []seglog.Index{newest}) || l.HasBase(newest) {
			t.Fatalf("base at %d, wanted %v", l.Base().Index, l.WantBases())
		}
		c.checkLog(t, l)
		must(t, l.AddBase(c.base(newest-1)))
		if len(l.WantBases()) > 0 || !l.HasBase(newest) {
			t.Fatal("it is still wanted")
		}
		must(t, l.Close())
		l = c.reopen(t, disk, func(r Report) bool { return len(r.BadBases) == 0 })
		if l.Base().Index != newest-1 {
			t.Fatalf("made anew, and opened from %d", l.Base().Index)
		}
		c.checkLog(t, l)
		must(t, l.Close())
	}
	for i := range content {
		for _, mask := range []byte{1, 0xff} {
			flipped := slices.Clone(content)
			flipped[i] ^= mask
			damaged(flipped)
		}
		damaged(content[:i])
	}
}

// reopen opens the group on another disk.
func (c *groupScript) reopen(t testing.TB, disk vfs.FS, right func(Report) bool) *Log {
	t.Helper()
	state, _ := openState(t, disk, boot1)
	cfg := c.cfg
	cfg.FS, cfg.State = disk, state
	l, report, err := OpenGroup(cfg)
	must(t, err)
	if !right(report) {
		t.Fatalf("report %+v", report)
	}
	return l
}

func writeFile(t testing.TB, fsys vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fsys.Create(name)
	must(t, err)
	must(t, f.WriteVAt([][]byte{b}, 0))
	must(t, f.SyncData())
	must(t, f.Close())
	must(t, fsys.SyncDir(filepath.Dir(name)))
}

// A base snapshot that the disk cannot read, and one of another group or cluster, are passed over as well. One of a newer
// version is not: what that version has written is not to be judged here.
func TestBasesThatArePassedOver(t *testing.T) {
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, 2)
	must(t, c.close())
	newest := c.firsts()[1]
	path := c.path(newest, baseSuffix)
	unreadable := errfs.Wrap(mem.KillClone(), errfs.PathSuffix(filepath.Base(path), errfs.On(errfs.OpRead, errfs.EIO)))
	must(t, c.reopen(t, unreadable, func(r Report) bool {
		return len(r.BadBases) == 1 && strings.Contains(r.BadBases[0].Error(), path)
	}).Close())
	for _, change := range []func(*Base){func(b *Base) { b.Group++ }, func(b *Base) { b.Cluster[3]++ }} {
		disk, other := mem.KillClone(), c.base(newest-1)
		change(&other)
		must(t, WriteBase(disk, c.cfg.Dir, other))
		must(t, c.reopen(t, disk, func(r Report) bool { return len(r.BadBases) == 1 }).Close())
	}
	disk := mem.KillClone()
	newer := c.base(newest - 1).AppendTo(nil)
	newer[17]++
	must(t, disk.Remove(path))
	writeFile(t, disk, path, sealBase(newer))
	state, _ := openState(t, disk, boot1)
	cfg := c.cfg
	cfg.FS, cfg.State = disk, state
	_, _, err := OpenGroup(cfg)
	if _, newer := errors.AsType[*NewerFormatError](err); !newer {
		t.Fatalf("a base of a newer version: %v", err)
	}
}

// Without a good base snapshot the group is damaged, and nothing is touched; unless the log goes back to the birth, and that
// is known.
func TestNoBaseIsGood(t *testing.T) {
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, 2)
	must(t, c.close())
	for _, how := range []string{"bad", "missing"} {
		disk := mem.KillClone()
		for _, first := range c.firsts() {
			must(t, disk.Remove(c.path(first, baseSuffix)))
			if how == "bad" {
				writeFile(t, disk, c.path(first, baseSuffix), []byte("OMQBASE1 no more"))
			}
		}
		state, _ := openState(t, disk, boot1)
		cfg := c.cfg
		cfg.FS, cfg.State = disk, state
		before := filesOf(t, disk, cfg.Dir)
		_, _, err := OpenGroup(cfg)
		if damage, ok := errors.AsType[*BaseDamageError](err); !ok || !strings.HasPrefix(damage.Path, cfg.Dir) {
			t.Fatalf("%s: %v", how, err)
		}
		if after := filesOf(t, disk, cfg.Dir); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Fatalf("%s: files were changed", how)
		}
		cfg.Birth = new(c.base(1))
		l, report, err := OpenGroup(cfg)
		must(t, err)
		if len(report.BadBases) == 0 || !slices.Equal(l.WantBases(), c.firsts()[1:]) {
			t.Fatalf("%s: %+v, wanted %v", how, report, l.WantBases())
		}
		c.checkLog(t, l)
		must(t, l.Close())
		must(t, c.reopen(t, disk, func(Report) bool { return true }).Close()) // without knowing the birth

		// Of a log that does not go back to it, the birth says nothing.
		must(t, disk.Remove(c.path(2, baseSuffix)))
		must(t, disk.Rename(c.path(2, ".log"), c.path(2, ".gone")))
		if _, _, err = OpenGroup(cfg); err == nil {
			t.Fatalf("%s: opened although the first segment is missing", how)
		}
	}
}

// Raft is served from the oldest base snapshot on, from its file, and what is between it and the newest one is there.
func TestStorageGoesBackToTheOldestBase(t *testing.T) {
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, 4)
	must(t, c.close())
	must(t, c.open(boot1))
	l, firsts := c.log, c.firsts()
	check := func(oldest seglog.Index) {
		t.Helper()
		if first, err := l.FirstIndex(); err != nil || seglog.Index(first) != oldest+1 {
			t.Fatalf("first index %d, want %d, %v", first, oldest+1, err)
		}
		snapshot, err := l.Snapshot()
		must(t, err)
		m := snapshot.GetMetadata()
		base, err := DecodeBase("snapshot", snapshot.GetData())
		must(t, err)
		if base.LogStart != base.NextOffset {
			t.Fatalf("the log of who takes the snapshot starts at %d, not at %d", base.LogStart, base.NextOffset)
		}
		if seglog.Index(m.GetIndex()) != oldest || m.GetTerm() != c.stages[oldest-1].term || !bytes.Equal(base.Body, c.stages[oldest-1].body) ||
			!slices.Equal(m.GetConfState().GetVoters(), []uint64{uint64(logReplica)}) {
			t.Fatalf("snapshot %v, want that of index %d", snapshot, oldest)
		}
		if term, err := l.Term(uint64(oldest)); err != nil || term != c.stages[oldest-1].term {
			t.Fatalf("term of the oldest base: %d, %v", term, err)
		}
		if _, err := l.Term(uint64(oldest) - 1); err != raft.ErrCompacted {
			t.Fatalf("term before it: %v", err)
		}
		if _, err := l.Entries(uint64(oldest), uint64(oldest)+2, 100); err != raft.ErrCompacted {
			t.Fatalf("the entry of the oldest base: %v", err)
		}
		c.checkLog(t, l)
	}
	if l.Base().Index != firsts[3]-1 {
		t.Fatalf("newest base at %d", l.Base().Index)
	}
	check(1)
	must(t, l.DropBefore(firsts[1]))
	check(firsts[1] - 1)
	must(t, l.DropBefore(firsts[1])) // again
	check(firsts[1] - 1)
	l.ReleaseBase()
	if l.Base().Body != nil || l.Base().Index != firsts[3]-1 {
		t.Fatalf("released: %+v", l.Base())
	}
	l.base.Body = c.stages[l.base.Index-1].body // for checkLog

	// The oldest one turns out to be damaged: the next one is the oldest.
	must(t, mem.Remove(c.path(firsts[1], baseSuffix)))
	writeFile(t, mem, c.path(firsts[1], baseSuffix), []byte("nothing"))
	if snapshot, err := l.Snapshot(); err != nil || seglog.Index(snapshot.GetMetadata().GetIndex()) != firsts[2]-1 {
		t.Fatalf("snapshot %v, %v", snapshot, err)
	}
	check(firsts[2] - 1)
	must(t, c.close())
}

// What AddBase and DropBefore refuse.
func TestChangesOfBasesAreChecked(t *testing.T) {
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, 3)
	l, firsts := c.log, c.firsts()
	if err := l.DropBefore(firsts[1] + 1); err == nil || !strings.Contains(err.Error(), "no base snapshot") {
		t.Fatalf("drop before an entry in the middle: %v", err)
	}
	must(t, l.AddBase(c.base(firsts[1]))) // in the middle of a segment: the one that began there was cut off
	if l.HasBase(firsts[1] + 1) {
		t.Fatal("a base without a segment")
	}
	wrong := c.base(firsts[2] - 1)
	wrong.NextOffset++
	l, c.log = c.reopen(t, mem.KillClone(), func(Report) bool { return true }), nil
	bug(t, "a base of another offset", func() { _ = l.AddBase(wrong) })
	l = c.reopen(t, mem.KillClone(), func(Report) bool { return true })
	must(t, l.DropBefore(firsts[2]))
	must(t, l.AddBase(c.base(firsts[1]-1))) // it comes too late
	if l.HasBase(firsts[1]) {
		t.Fatal("a segment that is gone has a base")
	}
	must(t, l.Close())
	for name, err := range map[string]error{"add": l.AddBase(c.base(firsts[2] - 1)), "drop": l.DropBefore(firsts[2])} {
		if !errors.Is(err, fs.ErrClosed) {
			t.Errorf("%s after close: %v", name, err)
		}
	}
}

// Left-overs of a drop and of a base snapshot that was being written go with the next start; what is nobody's stays.
func TestLeftoverBases(t *testing.T) {
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, 2)
	c.put(t, logStartAt(c.stages[len(c.stages)-1].nextOffset))
	c.roll(t)
	firsts := c.firsts()
	must(t, c.log.DropBefore(firsts[2]))
	must(t, c.close())
	left := []string{c.path(2, baseSuffix), c.path(firsts[1], baseSuffix), c.path(firsts[2], baseSuffix) + temporarySuffix}
	stays := []string{c.path(2, baseSuffix) + badSuffix, c.path(9, ".cut"), filepath.Join(c.cfg.Dir, "note")}
	for _, name := range append(slices.Clone(left), stays...) {
		writeFile(t, mem, name, []byte("x"))
	}
	must(t, c.open(boot1))
	files := filesOf(t, mem, c.cfg.Dir)
	for _, name := range left {
		if _, there := files[filepath.Base(name)]; there {
			t.Errorf("%s is left", name)
		}
	}
	for _, name := range stays {
		if _, there := files[filepath.Base(name)]; !there {
			t.Errorf("%s is gone", name)
		}
	}
	c.dropped, c.first = firsts[2], firsts[2]
	c.checkLog(t, c.log)
	must(t, c.close())
}

// Old segments may be missing when the log start says so, in the base or in an entry behind it; else they are lost.
func TestMissingSegments(t *testing.T) {
	mem := newStateFS(t)
	c := newGroupScript(t, 7, mem, mem)
	must(t, c.open(boot1))
	c.put(t, nil)
	c.put(t, storedBatch(0, 2, "a"))
	c.roll(t)
	c.put(t, storedBatch(1, 2, "b"))
	withoutStart := mem.KillClone()
	c.put(t, logStartAt(1))
	startInTail := mem.KillClone()
	c.roll(t)
	startInBase := mem.KillClone()
	must(t, c.close())
	for _, test := range []struct {
		name string
		disk *memfs.FS
		good bool
	}{{"no log start", withoutStart, false}, {"log start in an entry", startInTail, true}, {"log start in the base", startInBase, true}} {
		must(t, test.disk.Remove(c.path(2, ".log")))
		state, _ := openState(t, test.disk, boot1)
		cfg := c.cfg
		cfg.FS, cfg.State = test.disk, state
		l, _, err := OpenGroup(cfg)
		if _, damage := errors.AsType[*seglog.DamageError](err); damage == test.good || err != nil && !damage {
			t.Fatalf("%s: %v", test.name, err)
		}
		if err == nil {
			must(t, l.Close())
		}
	}
}

// The loop asks while segments are dropped and base snapshots are made beside it.
func TestDropBesideTheLoop(t *testing.T) {
	mem := newStateFS(t)
	const segments = 12
	c := builtGroup(t, mem, mem, segments)
	must(t, c.close())
	must(t, c.open(boot1))
	l, firsts := c.log, c.firsts()
	var others sync.WaitGroup
	others.Go(func() {
		for _, first := range firsts[1:] {
			if err := l.DropBefore(first); err != nil {
				t.Error(err)
			}
		}
	})
	others.Go(func() {
		for range 3 {
			for _, first := range firsts {
				if err := l.AddBase(c.base(first - 1)); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for first := uint64(0); first < uint64(firsts[segments-1]); {
		var err error
		if first, err = l.FirstIndex(); err != nil {
			t.Fatal(err)
		}
		for i := first - 1; i < first+3; i++ {
			if _, err := l.Term(i); err != nil && err != raft.ErrCompacted {
				t.Fatalf("term of %d: %v", i, err)
			}
			if _, err := l.Entries(i, i+2, 1000); err != nil && err != raft.ErrCompacted {
				t.Fatalf("entry %d: %v", i, err)
			}
		}
		if snapshot, err := l.Snapshot(); err != nil || snapshot.GetMetadata().GetIndex() < first-1 {
			t.Fatalf("snapshot %v, %v", snapshot, err)
		}
	}
	others.Wait()
	must(t, c.close())
}

// A base snapshot that finds no room, or cannot be written, changes nothing and leaves nothing; the next attempt succeeds.
func TestAddBaseOnFullDisk(t *testing.T) {
	for _, failure := range []errfs.Injector{errfs.ENOSPC, errfs.ShortWrite(30, syscall.ENOSPC), errfs.EIO} {
		for _, kind := range []errfs.Kind{errfs.OpCreate, errfs.OpWrite, errfs.OpSyncData, errfs.OpRename} {
			mem := newStateFS(t)
			armed := false
			c := builtGroup(t, mem, errfs.Wrap(mem, errfs.On(kind, injectEachIf(func(op errfs.Op) error {
				if armed {
					return failure.Inject(op)
				}
				return nil
			}))), 2)
			first := c.firsts()[1]
			must(t, mem.Remove(c.path(first, baseSuffix)))
			c.log.bases.remove(func(index seglog.Index) bool { return index == first-1 })
			armed = true
			err := c.log.AddBase(c.base(first - 1))
			if err == nil || errors.Is(err, ErrFull) != vfs.IsFull(err) || c.log.HasBase(first) {
				t.Fatalf("%v %s: %v", failure, kind, err)
			}
			if _, left := filesOf(t, mem, c.cfg.Dir)[filepath.Base(c.path(first, baseSuffix))+temporarySuffix]; left && vfs.IsFull(err) {
				t.Fatalf("%v %s: a part of it is left on the full disk", failure, kind)
			}
			armed = false
			must(t, c.log.AddBase(c.base(first-1)))
			must(t, c.close())
		}
	}
}
