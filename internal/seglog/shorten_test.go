package seglog

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
)

// opened is a log with 23 entries in segments that begin with 2, 10 and 18.
func opened(t testing.TB) (*Log, *stored) {
	s := newStored(t)
	l, _ := open(t, s.cfg, OpenOptions{Floor: s.floor})
	return l, s
}

func TestRoll(t *testing.T) {
	l, s := opened(t)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 2 { // the second time the active segment is empty
		must(t, l.Roll())
		if end := l.End(); end != (Floor{Index: 24, Segment: 25, Position: headerSize}) {
			t.Fatalf("the log ends at %+v", end)
		}
		check(t, l, s.entries, rng)
	}
	again, report := open(t, testConfig(s.disk.CrashClone(0, nil)), OpenOptions{Floor: l.End(), From: 25})
	check(t, again, s.entries, rng)
	// The index of a sealed segment is on disk too: else a start after the machine went down would have to read them all.
	if slices.ContainsFunc(report.Indexes, func(name string) bool { return filepath.Base(name) != "00000000000000000025.idx" }) {
		t.Errorf("made anew are %v", report.Indexes)
	}
	m := newMaker(1)
	m.replace(s.entries)
	more := append(s.entries, m.several(3, 50)...)
	must(t, l.Append(more[23:]))
	check(t, l, more, rng)
}

// TestRollFails at each operation on the disk: it is done by the next call of Roll or Append, and the log can be read
// and appended to as if it had been right away.
func TestRollFails(t *testing.T) {
	for n := 0; ; n++ {
		for _, again := range []bool{true, false} {
			l, s := opened(t)
			must(t, l.Close())
			injector := errfs.OnIndex(n, errfs.ENOSPC)
			inject := false
			s.cfg.FS = errfs.Wrap(s.disk, injectorFunc(func(op errfs.Op) error {
				if !inject || op.Kind == errfs.OpSyncData || op.Kind == errfs.OpSyncDir {
					return nil
				}
				return injector.Inject(op)
			}))
			l, _ = open(t, s.cfg, OpenOptions{Floor: s.floor})
			inject = true
			err := l.Roll()
			if !injector.Reached() {
				must(t, err)
				return
			}
			if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrSync) || l.End() != s.floor {
				t.Fatalf("%s: %v, the log ends at %+v", injector, err, l.End())
			}
			if again {
				must(t, l.Roll())
			}
			m := newMaker(1)
			m.replace(s.entries)
			entries := append(slices.Clone(s.entries), m.batch(1, 50))
			must(t, l.Append(entries[23:]))
			check(t, l, entries, m.rng)
			if l.End().Segment != 25 {
				t.Fatalf("%s: the log ends at %+v", injector, l.End())
			}
		}
	}
}

func TestDropBefore(t *testing.T) {
	l, s := opened(t)
	rng := rand.New(rand.NewPCG(1, 1))
	ranges, err := l.Locate(0, l.NextOffset(), 1<<20, true, nil)
	must(t, err)
	for _, first := range []Index{0, 1, 2} {
		must(t, l.DropBefore(first))
		check(t, l, s.entries, rng)
	}
	for _, first := range []Index{3, 9, 17, 19, 25, 1000} {
		if err := l.DropBefore(first); !errors.Is(err, ErrOutOfRange) {
			t.Fatalf("drop before %d: %v", first, err)
		}
	}
	for k, first := range []Index{10, 18} {
		must(t, l.DropBefore(first))
		checkFrom(t, l, first, s.entries, rng)
		for _, disk := range []vfs.FS{s.disk, s.disk.CrashClone(0, nil)} {
			names, err := disk.List(testDir)
			must(t, err)
			if want := 2 * (2 - k); len(names) != want || names[0] != segmentName("", first, indexSuffix) {
				t.Fatalf("dropped before %d: left are %v", first, names)
			}
		}
		for _, before := range []Index{2, first} {
			must(t, l.DropBefore(before))
		}
		if _, err := l.Read(nil, ranges); !errors.Is(err, ErrOutOfRange) || errors.Is(err, fs.ErrClosed) {
			t.Fatalf("a read of what was dropped: %v", err)
		}
		again, _ := open(t, testConfig(s.disk.KillClone()), OpenOptions{Floor: s.floor, SameBoot: true})
		checkFrom(t, again, first, s.entries, rng)
	}
	must(t, l.Close())
	if err := l.DropBefore(18); !errors.Is(err, fs.ErrClosed) {
		t.Fatalf("after Close: %v", err)
	}
}

// TestDropBeforeFails at each operation on the disk. The segments are out of the log; the next call removes what was
// left.
func TestDropBeforeFails(t *testing.T) {
	for n := 0; ; n++ {
		l, s := opened(t)
		must(t, l.Close())
		injector := errfs.OnIndex(n, errfs.EIO)
		inject := false
		s.cfg.FS = errfs.Wrap(s.disk, injectorFunc(func(op errfs.Op) error {
			if !inject {
				return nil
			}
			return injector.Inject(op)
		}))
		l, _ = open(t, s.cfg, OpenOptions{Floor: s.floor})
		inject = true
		err := l.DropBefore(18)
		inject = false
		if !injector.Reached() {
			must(t, err)
			if n != 10 {
				t.Errorf("%d operations", n)
			}
			return
		}
		if !errors.Is(err, syscall.EIO) || l.FirstIndex() != 18 {
			t.Fatalf("%s: %v, the first index is %d", injector, err, l.FirstIndex())
		}
		checkFrom(t, l, 18, s.entries, rand.New(rand.NewPCG(1, 1)))
		if again := l.DropBefore(18); errors.Is(err, ErrSync) != errors.Is(again, ErrSync) {
			t.Fatalf("%s: %v, then %v", injector, err, again)
		} else if again == nil {
			if names, err := s.disk.CrashClone(0, nil).List(testDir); err != nil || len(names) != 2 {
				t.Fatalf("%s: left are %v, %v", injector, names, err)
			}
		}
		must(t, l.Close())
	}
}

// TestDropWhileReading reads by all ways while segments are appended and dropped. Whatever a reader is shown is what was
// appended, or it is told that it is there no more.
func TestDropWhileReading(t *testing.T) {
	m := newMaker(12)
	entries := m.several(1500, 120)
	offsets := offsetsBehind(entries)
	cfg := testConfig(vfs.OS())
	cfg.Dir = t.TempDir()
	l := create(t, cfg)
	var done atomic.Bool
	var readers, dropper sync.WaitGroup
	late := [2]int{}
	for reader := range late {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(reader), 5))
			for last := false; !last; {
				last = done.Load()
				if readSome(t, l, entries, offsets, rng) {
					late[reader]++
				}
			}
		})
	}
	dropper.Go(func() {
		for last := false; !last; {
			last = done.Load()
			if segments := l.Segments(); len(segments) > 2 || last {
				must(t, l.DropBefore(segments[len(segments)-1].First))
			}
		}
	})
	rng := rand.New(rand.NewPCG(9, 9))
	for rest := entries; len(rest) > 0; {
		n := min(len(rest), 1+rng.IntN(6))
		must(t, l.Append(rest[:n]))
		if rest = rest[n:]; rng.IntN(10) == 0 {
			must(t, l.Sync())
		}
	}
	done.Store(true)
	readers.Wait()
	dropper.Wait()
	if l.LastIndex() != 1501 || len(l.Segments()) != 1 {
		t.Errorf("left are %+v", l.Segments())
	}
	must(t, l.Close())
	t.Logf("%v reads came too late", late)
}

// TestTruncateSuffix cuts a log off before each entry, reopens what is left as after a crash, and goes on.
func TestTruncateSuffix(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for from := Index(2); from <= 26; from++ {
		l, s := opened(t)
		stale, err := l.Locate(0, l.NextOffset(), 1<<20, true, nil)
		must(t, err)
		must(t, l.TruncateSuffix(from))
		entries := s.entries[:min(from-2, 23)]
		check(t, l, entries, rng)
		want := Index(2)
		for _, first := range []Index{10, 18} {
			if first <= from {
				want = first
			}
		}
		if l.End().Segment != want {
			t.Fatalf("from %d: the log ends at %+v", from, l.End())
		}
		for sameBoot, disk := range map[bool]vfs.FS{true: s.disk.KillClone(), false: s.disk.CrashClone(0, nil)} {
			again, report := open(t, testConfig(disk), OpenOptions{Floor: l.End(), SameBoot: sameBoot, From: want})
			if check(t, again, entries, rng); report.CutBytes != 0 || report.Rewritten != 0 {
				t.Fatalf("from %d: %+v", from, report)
			}
		}
		left, err := l.Locate(0, l.NextOffset(), 1<<20, true, nil)
		must(t, err)
		whole, err := l.Read(nil, left)
		must(t, err)
		got, err := l.Read(nil, stale)
		if len(left) == 0 != errors.Is(err, ErrOutOfRange) || !bytes.Equal(got, whole) {
			t.Fatalf("from %d: a read that began before gives %d bytes, %v; left are %d", from, len(got), err, len(whole))
		}
		must(t, l.TruncateSuffix(from))
		m := newMaker(uint64(from))
		m.replace(entries)
		entries = append(entries[:len(entries):len(entries)], m.several(20, 60)...)
		must(t, l.Append(entries[l.LastIndex()-1:]))
		check(t, l, entries, rng)
		must(t, l.Sync())
		again, _ := open(t, testConfig(s.disk.CrashClone(0, nil)), OpenOptions{Floor: l.End()})
		check(t, again, entries, rng)
	}
	l, _ := opened(t)
	must(t, l.DropBefore(10))
	for _, from := range []Index{0, 2, 9} {
		if err := l.TruncateSuffix(from); !errors.Is(err, ErrOutOfRange) {
			t.Errorf("from %d: %v", from, err)
		}
	}
	must(t, l.TruncateSuffix(10))
	if l.FirstIndex() != 10 || l.LastIndex() != 9 {
		t.Errorf("left are %+v", l.Segments())
	}
}

// TestTruncateAfterFailedWrite: what a failed write or roll has left behind the end does not come to life either.
func TestTruncateAfterFailedWrite(t *testing.T) {
	for _, from := range []Index{24, 25, 26} {
		for _, suffix := range []string{logSuffix, indexSuffix} {
			l, s := opened(t)
			must(t, l.Close())
			fail := false
			s.cfg.FS = errfs.Wrap(s.disk, injectorFunc(func(op errfs.Op) error {
				if fail && op.Kind == errfs.OpWrite && strings.HasSuffix(op.Path, suffix) {
					fail = false
					return errfs.ShortWrite(250, syscall.ENOSPC).Inject(op)
				}
				return nil
			}))
			l, _ = open(t, s.cfg, OpenOptions{Floor: s.floor})
			m := newMaker(3)
			m.replace(s.entries)
			fail = true
			if err := l.Append([]Entry{m.batch(1, 50), m.batch(1, 50), m.batch(1, 50)}); !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			must(t, l.TruncateSuffix(from))
			again, _ := open(t, testConfig(s.disk.KillClone()), OpenOptions{SameBoot: true})
			check(t, again, s.entries[:min(from-2, 23)], m.rng)
		}
	}
	l, s := opened(t)
	must(t, l.Close())
	s.cfg.FS = errfs.Wrap(s.disk, errfs.PathSuffix("25"+indexSuffix, errfs.On(errfs.OpCreate, errfs.ENOSPC)))
	l, _ = open(t, s.cfg, OpenOptions{Floor: s.floor})
	if err := l.Roll(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	must(t, l.TruncateSuffix(24))
	must(t, l.Close())
	again, _ := open(t, testConfig(s.disk.CrashClone(0, nil)), OpenOptions{Floor: l.End()})
	check(t, again, s.entries[:22], rand.New(rand.NewPCG(1, 1)))
}

// TestTruncateIntoDamage: the segment that becomes the last one is read first, and nothing is removed when it is not
// whole.
func TestTruncateIntoDamage(t *testing.T) {
	l, s := opened(t)
	name := storedNames[1] + logSuffix
	content := s.file(t, name)
	content[headerSize+200] ^= 1
	file, err := s.disk.Open(filepath.Join(testDir, name))
	must(t, err)
	_, err = file.WriteAt(content, 0)
	must(t, err)
	before := files(t, s.disk, testDir)
	err = l.TruncateSuffix(17)
	isDamage(t, err, testDir)
	if err == nil || errors.Is(err, ErrSync) || !mapsEqual(before, files(t, s.disk, testDir)) || l.LastIndex() != 24 {
		t.Fatalf("%v, or files were changed", err)
	}
	must(t, l.TruncateSuffix(18)) // that one stays, without an entry
	must(t, l.TruncateSuffix(11)) // and the damage is behind this
	if l.LastIndex() != 10 {
		t.Errorf("the log ends with entry %d", l.LastIndex())
	}
}

// TestTruncateIntoUnreadable: a part of a segment that the disk does not give back is damage, too.
func TestTruncateIntoUnreadable(t *testing.T) {
	for n := 0; ; n++ {
		l, s := opened(t)
		must(t, l.Close())
		injector, on := errfs.OnIndex(n, errfs.EIO), false
		s.cfg.FS = errfs.Wrap(s.disk, injectorFunc(func(op errfs.Op) error {
			if on && (op.Kind == errfs.OpRead || op.Kind == errfs.OpSize) {
				return injector.Inject(op)
			}
			return nil
		}))
		l, _ = open(t, s.cfg, OpenOptions{Floor: s.floor})
		before := files(t, s.disk, testDir)
		on = true
		err := l.TruncateSuffix(17)
		if !injector.Reached() {
			if must(t, err); n < 2 {
				t.Fatalf("only %d operations", n)
			}
			return
		}
		isDamage(t, err, testDir)
		if err == nil || !mapsEqual(before, files(t, s.disk, testDir)) || l.LastIndex() != 24 {
			t.Fatalf("%v, or files were changed", err)
		}
		on = false
		must(t, l.TruncateSuffix(17))
	}
}

// TestViewsStay: what a reader was shown before a truncation is not changed by what is appended after it.
func TestViewsStay(t *testing.T) {
	l, s := opened(t)
	v := l.view()
	records := slices.Clone(v.records)
	must(t, l.TruncateSuffix(20))
	m := newMaker(5)
	m.replace(s.entries[:18])
	must(t, l.Append(m.several(10, 100)))
	if !slices.Equal(records, v.records) || v.lastIndex() != 24 || v.segments[2].tail.entries != 7 {
		t.Error("the view has changed")
	}
	must(t, l.TruncateSuffix(12))
	must(t, l.Append([]Entry{{Kind: KindEmpty, Version: 1, Term: 50}}))
	if len(v.segments) != 3 || v.segments[1].tail.entries != 8 || v.segments[1].tail.term == 50 || v.tail.offset == batch.Offset(0) {
		t.Error("the view has changed")
	}
}
