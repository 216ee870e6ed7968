package seglog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
)

// TestReset begins a log anew behind its end, before it and within, and goes on.
func TestReset(t *testing.T) {
	for _, first := range []Index{3, 10, 18, 25, 400} {
		for _, rolling := range []bool{false, true} {
			l, s := opened(t)
			if rolling {
				must(t, l.Roll())
			}
			stale, err := l.Locate(0, l.NextOffset(), 1<<20, true, nil)
			must(t, err)
			must(t, l.Reset(first, 9, 7000))
			if l.FirstIndex() != first || l.LastIndex() != first-1 || l.FirstOffset() != 7000 || l.NextOffset() != 7000 ||
				l.End() != (Floor{Index: first - 1, Segment: first, Position: HeaderBytes}) {
				t.Fatalf("%d: %+v", first, l.Segments())
			}
			if term, err := l.Term(first - 1); err != nil || term != 9 {
				t.Fatalf("term before it: %d, %v", term, err)
			}
			if _, err := l.Entry(2); !errors.Is(err, ErrOutOfRange) {
				t.Fatalf("an entry that is gone: %v", err)
			}
			if _, err := l.Read(nil, stale); !errors.Is(err, ErrOutOfRange) {
				t.Fatalf("a read that began before: %v", err)
			}
			names, err := s.disk.CrashClone(0, nil).List(testDir)
			if must(t, err); len(names) > 2 || len(names) == 0 {
				t.Fatalf("left are %v", names)
			}
			must(t, l.Append([]Entry{{Kind: KindEmpty, Version: 1, Term: 10}}))
			must(t, l.Sync())
			again, report := open(t, testConfig(s.disk.CrashClone(0, nil)), OpenOptions{Floor: l.End()})
			if again.LastIndex() != first || report.CutBytes != 0 {
				t.Fatalf("opened again: %+v, %+v", again.Segments(), report)
			}
		}
	}
}

// TestResetFails at each operation on the disk. The next call ends it, unless a sync has failed; and Erase and Create do
// whatever has happened.
func TestResetFails(t *testing.T) {
	for n := 0; ; n++ {
		l, s := opened(t)
		must(t, l.Close())
		injector := errfs.OnIndex(n, errfs.ENOSPC)
		inject := false
		s.cfg.FS = errfs.Wrap(s.disk, injectorFunc(func(op errfs.Op) error {
			if !inject {
				return nil
			}
			return injector.Inject(op)
		}))
		l, _ = open(t, s.cfg, OpenOptions{Floor: s.floor})
		must(t, l.Roll())
		inject = true
		err := l.Reset(12, 9, 7000)
		inject = false
		if !injector.Reached() {
			must(t, err)
			return
		}
		if !errors.Is(err, syscall.ENOSPC) || l.FirstIndex() != 12 || l.LastIndex() != 11 {
			t.Fatalf("%s: %v, %+v", injector, err, l.Segments())
		}
		for _, disk := range []vfs.FS{s.disk.KillClone(), s.disk.CrashClone(0, nil)} {
			must(t, Erase(testConfig(disk)))
			other, err := Create(testConfig(disk), 12, 9, 7000)
			must(t, err)
			must(t, other.Close())
		}
		if again := l.Reset(12, 9, 7000); errors.Is(err, ErrSync) != errors.Is(again, ErrSync) {
			t.Fatalf("%s: %v, then %v", injector, err, again)
		} else if again == nil {
			must(t, l.Append([]Entry{{Kind: KindEmpty, Version: 1, Term: 10}}))
			must(t, l.Sync())
			again, _ := open(t, testConfig(s.disk.CrashClone(0, nil)), OpenOptions{Floor: l.End()})
			if again.LastIndex() != 12 {
				t.Fatalf("%s: opened again: %+v", injector, again.Segments())
			}
		}
		must(t, l.Close())
	}
}

// TestEntriesInRuns reads all runs of a log of several segments, and compares them with single entries.
func TestEntriesInRuns(t *testing.T) {
	m := newMaker(21)
	entries := m.several(700, 90)
	cfg := testConfig(newDisk(t))
	cfg.SegmentBytes, cfg.SegmentEntries = 40_000, 300
	l := create(t, cfg)
	must(t, l.Append(entries))
	rng := rand.New(rand.NewPCG(21, 1))
	longest := 0
	for range 2000 {
		from := 2 + Index(rng.IntN(len(entries)))
		to := from + 1 + Index(rng.IntN(int(l.LastIndex()-from)+1))
		most := rng.Int64N(1 << rng.IntN(20))
		got, err := l.Entries(from, to, most)
		must(t, err)
		if longest = max(longest, len(got)); len(got) == 0 || from+Index(len(got)) > to {
			t.Fatalf("%d entries from %d to %d", len(got), from, to)
		}
		size := int64(0)
		for i, e := range got {
			if !equal(e, entries[int(from)-2+i]) {
				t.Fatalf("entry %d is another one", int(from)+i)
			}
			size += int64(len(e.Data))
		}
		if size > most && len(got) > 1 {
			t.Fatalf("%d bytes, at most %d", size, most)
		}
	}
	if longest < 50 {
		t.Errorf("the longest run has %d", longest)
	}
	for _, wrong := range [][2]Index{{1, 3}, {700, 703}, {702, 703}} {
		if _, err := l.Entries(wrong[0], wrong[1], 100); !errors.Is(err, ErrOutOfRange) {
			t.Errorf("from %d to %d: %v", wrong[0], wrong[1], err)
		}
	}
}

// TestReadWhileCutting reads, by all ways, what stays, while the end behind it is overwritten again and again, and segments
// with it. No read notices.
func TestReadWhileCutting(t *testing.T) {
	m := newMaker(31)
	stays := m.several(40, 300)
	cfg := testConfig(vfs.OS())
	cfg.Dir = t.TempDir()
	l := create(t, cfg)
	must(t, l.Append(stays))
	last, limit := l.LastIndex(), l.NextOffset()
	var whole []byte
	for _, e := range stays {
		if e.Kind == KindBatch {
			whole = append(whole, e.Data...)
		}
	}
	var done atomic.Bool
	var readers sync.WaitGroup
	for reader := range 2 {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(reader), 31))
			for n := 0; n < 50 || !done.Load(); n++ {
				if err := readStaying(l, stays, whole, last, limit, rng); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for round := range uint64(60) {
		end := newMaker(round + 100)
		end.replace(stays)
		must(t, l.Append(end.several(20, 300)))
		must(t, l.TruncateSuffix(last+1))
	}
	done.Store(true)
	readers.Wait()
	must(t, l.Close())
}

func readStaying(l *Log, stays []Entry, whole []byte, last Index, limit batch.Offset, rng *rand.Rand) error {
	ranges, err := l.Locate(0, limit, 1<<20, true, nil)
	if err != nil {
		return fmt.Errorf("locate: %w", err)
	}
	if b, err := l.Read(nil, ranges); err != nil || !bytes.Equal(b, whole) {
		return fmt.Errorf("read %d of %d bytes: %w", len(b), len(whole), err)
	}
	i := last - Index(rng.IntN(4)) // near the cut
	e, err := l.Entry(i)
	if err != nil || !equal(e, stays[i-2]) {
		return fmt.Errorf("entry %d: %w", i, err)
	}
	if term, err := l.Term(i); err != nil || term != e.Term {
		return fmt.Errorf("term %d of %d: %w", term, i, err)
	}
	return nil
}
