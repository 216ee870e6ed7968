package seglog

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
)

// TestDiskFull lets the disk be full after each number of bytes, of the segment as of the index, and after each number
// of files. Appending goes on where it stopped as soon as there is room, as if nothing had been.
func TestDiskFull(t *testing.T) {
	m := newMaker(6)
	entries := m.several(12, 40)
	kinds := map[string]func(n int) errfs.Injector{
		"segment": func(n int) errfs.Injector {
			return errfs.PathSuffix(logSuffix, errfs.On(errfs.OpWrite, errfs.OnIndex(1, errfs.ShortWrite(n, syscall.ENOSPC))))
		},
		"index": func(n int) errfs.Injector {
			return errfs.PathSuffix(indexSuffix, errfs.On(errfs.OpWrite, errfs.OnIndex(0, errfs.ShortWrite(n, syscall.ENOSPC))))
		},
		"header": func(n int) errfs.Injector {
			return errfs.PathSuffix("9"+logSuffix, errfs.On(errfs.OpWrite, errfs.OnIndex(0, errfs.ShortWrite(n, syscall.ENOSPC))))
		},
		"new file": func(n int) errfs.Injector {
			return errfs.On(errfs.OpCreate, errfs.OnIndex(n+2, errfs.ENOSPC)) // 0 and 1 are the first segment
		},
	}
	for name, kind := range kinds {
		failures := 0
		for n := 0; n < 500; n += step() {
			disk := newDisk(t)
			injector := kind(n)
			cfg := testConfig(errfs.Wrap(disk, injector))
			cfg.SegmentEntries = 7
			l := create(t, cfg)
			mark := l.End()
			err := l.Append(entries)
			if err == nil {
				t.Logf("%s: %d bytes are enough", name, n)
				break
			}
			failures++
			if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrSync) {
				t.Fatalf("%s: %v", injector, err)
			}
			done := int(l.LastIndex() - l.FirstIndex() + 1)
			check(t, l, entries[:done], m.rng)

			// The process may end here, and the machine too.
			for _, left := range []Config{testConfig(disk.KillClone()), testConfig(disk.CrashClone(50, m.rng))} {
				again, _ := open(t, left, OpenOptions{Floor: mark, SameBoot: false})
				if got := all(t, again); !prefixOf(got, entries) {
					t.Fatalf("%s: recovered %d entries that were not appended", injector, len(got))
				}
			}
			must(t, l.Append(entries[done:]))
			check(t, l, entries, m.rng)
			must(t, l.Sync())
			must(t, l.Close())
			again, report := open(t, testConfig(disk.CrashClone(0, nil)), OpenOptions{Floor: l.End()})
			check(t, again, entries, m.rng)
			if report.CutBytes != 0 || report.Rewritten != 0 {
				t.Fatalf("%s: %+v", injector, report)
			}
		}
		if failures == 0 {
			t.Errorf("%s: nothing failed", name)
		}
	}
}

// TestOtherEntriesAfterFailure: after a failed write the caller goes on with other entries, of which the first is as
// long as the first of those that failed. What the failed write left behind it must not come to life.
func TestOtherEntriesAfterFailure(t *testing.T) {
	m := newMaker(7)
	failing := []Entry{m.batch(1, 50), m.batch(1, 50), m.batch(1, 50)}
	other := newMaker(8).batch(1, 50)
	disk := newDisk(t)
	size := 0
	for _, e := range failing {
		size += len(e.Data)
	}
	cfg := testConfig(errfs.Wrap(disk, errfs.PathSuffix(logSuffix, errfs.On(errfs.OpWrite, errfs.OnIndex(1, errfs.ShortWrite(size, syscall.EIO))))))
	l := create(t, cfg)
	if err := l.Append(failing); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	must(t, l.Append([]Entry{other}))
	l, _ = open(t, testConfig(disk.KillClone()), OpenOptions{SameBoot: true})
	check(t, l, []Entry{other}, m.rng)
}

// TestOtherEntriesAfterFailureAndCrash: what a failed write left was written to the disk by the kernel before it was cut
// off. A crash does not put it behind the entry that took its place.
func TestOtherEntriesAfterFailureAndCrash(t *testing.T) {
	m := newMaker(7)
	failing := []Entry{m.batch(1, 50), m.batch(1, 50), m.batch(1, 50)}
	size := 0
	for _, e := range failing {
		size += len(e.Data)
	}
	other := newMaker(8).batch(1, 50)
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 5))
		disk := newDisk(t)
		cfg := testConfig(errfs.Wrap(disk, errfs.PathSuffix(logSuffix, errfs.On(errfs.OpWrite, errfs.OnIndex(1, errfs.ShortWrite(size, syscall.EIO))))))
		l := create(t, cfg)
		if err := l.Append(failing); !errors.Is(err, syscall.EIO) {
			t.Fatal(err)
		}
		disk.WriteBack(100, nil)
		must(t, l.Append([]Entry{other}))
		disk.WriteBack(50, rng)
		again, _ := open(t, testConfig(disk.CrashClone(50, rng)), OpenOptions{})
		if got := all(t, again); !prefixOf(got, []Entry{other}) {
			t.Fatalf("seed %d: %d entries that were not appended", seed, len(got))
		}
	}
}

// TestRollAfterFailure: what a failed write left at the end of a segment does not stay there when the next entry begins
// another one: a sealed segment ends well.
func TestRollAfterFailure(t *testing.T) {
	m := newMaker(7)
	first, failing := m.batch(1, 50), m.batch(1, 50)
	m.replace([]Entry{first})
	other := m.batch(1, 5000)
	disk := newDisk(t)
	cfg := testConfig(errfs.Wrap(disk, errfs.PathSuffix(logSuffix, errfs.On(errfs.OpWrite, errfs.OnIndex(2, errfs.ShortWrite(70, syscall.EIO))))))
	l := create(t, cfg)
	must(t, l.Append([]Entry{first}))
	if err := l.Append([]Entry{failing}); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	must(t, l.Append([]Entry{other}))
	if len(l.segments) != 2 {
		t.Fatalf("%d segments", len(l.segments))
	}
	l, _ = open(t, testConfig(disk.KillClone()), OpenOptions{SameBoot: true})
	check(t, l, []Entry{first, other}, m.rng)
}

// TestOtherEntriesAfterFailedRoll: after a roll that failed at any operation the caller goes on with an entry that would
// still fit into the old segment. No index is there twice.
func TestOtherEntriesAfterFailedRoll(t *testing.T) {
	for n := 0; ; n++ {
		m := newMaker(7)
		first, big := m.batch(1, 50), m.batch(1, 5000)
		m.replace([]Entry{first})
		small, last := m.batch(1, 50), m.batch(1, 5000)
		disk := newDisk(t)
		inject := false
		injector := errfs.OnIndex(n, errfs.ENOSPC)
		cfg := testConfig(errfs.Wrap(disk, injectorFunc(func(op errfs.Op) error {
			if !inject || op.Kind == errfs.OpSyncData || op.Kind == errfs.OpSyncDir {
				return nil // their failure ends the process
			}
			return injector.Inject(op)
		})))
		l := create(t, cfg)
		must(t, l.Append([]Entry{first}))
		inject = true
		err := l.Append([]Entry{big})
		if !injector.Reached() {
			must(t, err)
			return
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%s: %v", injector, err)
		}
		entries := []Entry{first, small, last}
		must(t, l.Append(entries[1:]))
		must(t, l.Sync())
		check(t, l, entries, m.rng)
		must(t, l.Close())
		again, _ := open(t, testConfig(disk.CrashClone(0, nil)), OpenOptions{Floor: l.End()})
		check(t, again, entries, m.rng)
		must(t, again.Close())
	}
}

// TestFailedSync: the page cache shows what is not on the disk, and a sync that succeeds later says nothing about it.
// Nothing may be reported durable any more; the next process writes everything above the mark again.
func TestFailedSync(t *testing.T) {
	m := newMaker(9)
	disk := newDisk(t)
	cfg := testConfig(disk)
	l := create(t, cfg)
	entries := m.several(10, 100)
	must(t, l.Append(entries))
	must(t, l.Sync())
	mark := l.End()
	some := m.several(3, 100)
	must(t, l.Append(some))
	disk.FailSync(syscall.EIO)
	for range 2 {
		if err := l.Sync(); !errors.Is(err, ErrSync) || !errors.Is(err, syscall.EIO) {
			t.Fatalf("sync: %v", err)
		}
		if err := l.Append(m.several(1, 10)); !errors.Is(err, ErrSync) {
			t.Fatalf("append: %v", err)
		}
	}
	must(t, l.Close())
	entries = append(entries, some...)

	disk = disk.KillClone()
	l, report := open(t, testConfig(disk), OpenOptions{Floor: mark, SameBoot: true})
	check(t, l, entries, m.rng)
	if report.Rewritten == 0 {
		t.Fatalf("%+v", report)
	}
	l, _ = open(t, testConfig(disk.CrashClone(0, nil)), OpenOptions{Floor: l.End()})
	check(t, l, entries, m.rng)
}

// TestFailedSyncInRoll: a roll syncs the segment that it seals, the new one and the directory.
func TestFailedSyncInRoll(t *testing.T) {
	for name, injector := range map[string]errfs.Injector{
		"old segment": errfs.PathSuffix("2"+logSuffix, errfs.On(errfs.OpSyncData, errfs.OnIndex(1, errfs.EIO))),
		"new segment": errfs.PathSuffix("5"+logSuffix, errfs.On(errfs.OpSyncData, errfs.EIO)),
		"directory":   errfs.On(errfs.OpSyncDir, errfs.OnIndex(1, errfs.EIO)),
	} {
		m := newMaker(9)
		disk := newDisk(t)
		cfg := testConfig(errfs.Wrap(disk, injector))
		cfg.SegmentEntries = 3
		l := create(t, cfg)
		entries := m.several(3, 50)
		must(t, l.Append(entries))
		more := m.several(1, 50)
		for range 2 {
			if err := l.Append(more); !errors.Is(err, ErrSync) || !errors.Is(err, syscall.EIO) {
				t.Fatalf("%s: %v", name, err)
			}
			if err := l.Sync(); !errors.Is(err, ErrSync) {
				t.Fatalf("%s: %v", name, err)
			}
		}
		check(t, l, entries, m.rng)
		must(t, l.Close())
		l, _ = open(t, testConfig(disk.KillClone()), OpenOptions{SameBoot: true})
		check(t, l, entries, m.rng)
		must(t, l.Append(more))
		must(t, l.Sync())
	}
}

// TestSearchInDamagedIndex damages records of an index that is larger than what a search reads at once. A read finds the
// batch that it wants, or says that there is damage; it does not return another one.
func TestSearchInDamagedIndex(t *testing.T) {
	m := newMaker(13)
	disk := newDisk(t)
	cfg := testConfig(disk)
	cfg.SegmentBytes, cfg.SegmentEntries = 0, 1000
	l := create(t, cfg)
	entries := m.several(1010, 10)
	must(t, l.Append(entries))
	idx := l.segments[0].idx
	read := func(from batch.Offset) error {
		ranges, err := l.Locate(from, l.NextOffset(), 400, true, nil)
		if err != nil {
			return err
		}
		b, err := l.Read(nil, ranges)
		if err == nil && (len(b) == 0 || !holds(b, entries, int64(from))) {
			t.Fatalf("the read of offset %d returns another one, %d bytes", from, len(b))
		}
		return err
	}
	for from := batch.Offset(0); from < l.NextOffset(); from += batch.Offset(step()) {
		must(t, read(from))
	}
	noticed := 0
	for range 800 * *campaign {
		at := int64(m.rng.IntN(1000)*recordSize) + []int64{5, 6, 7}[m.rng.IntN(3)]
		var b [1]byte
		must(t, readFull(idx, b[:], at))
		for _, changed := range []byte{byte(m.rng.Uint32()), b[0]} {
			_, err := idx.WriteAt([]byte{changed}, at)
			must(t, err)
			if err = read(batch.Offset(m.rng.Int64N(int64(l.NextOffset())))); err != nil {
				noticed++
				isDamage(t, err, testDir)
			}
		}
	}
	if noticed == 0 {
		t.Error("nothing was noticed")
	}
}

// TestReadsAfterClose fail.
func TestReadsAfterClose(t *testing.T) {
	s := newStored(t)
	l, _ := open(t, s.cfg, OpenOptions{Floor: s.floor})
	ranges, err := l.Locate(0, l.NextOffset(), 1000, true, nil)
	must(t, err)
	must(t, l.Close())
	_, err = l.Read(nil, ranges)
	_, entryErr := l.Entry(5)
	_, locateErr := l.Locate(0, l.NextOffset(), 1000, true, nil)
	for _, err := range []error{err, entryErr, locateErr, l.Close()} {
		if !errors.Is(err, fs.ErrClosed) {
			t.Errorf("got %v", err)
		}
	}
}
