package seglog

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// TestEveryFailure fails each single operation on the disk of a script, with an error of the disk, with no room, and
// with no room behind a part of what was to be written. The error says where it happened and what failed. What the
// contract lets go on goes on: the same call is repeated, after opening the log anew where that is demanded. In the
// end all is as if nothing had failed, and as known on each disk that a crash right behind the failure leaves.
func TestEveryFailure(t *testing.T) {
	for seed := range uint64(*campaign) {
		for name, kind := range map[string]func(n int) errfs.Injector{
			"EIO":    func(int) errfs.Injector { return errfs.EIO },
			"ENOSPC": func(int) errfs.Injector { return errfs.ENOSPC },
			"short":  func(n int) errfs.Injector { return errfs.ShortWrite(1+n*37%200, syscall.ENOSPC) },
		} {
			n := 0
			for failEach(t, seed, n, kind(n)) {
				n++
			}
			t.Logf("seed %d: %d operations failed with %s", seed, n, name)
		}
	}
}

// failEach fails operation n of the script of a seed, which is false when there is none.
func failEach(t *testing.T, seed uint64, n int, kind errfs.Injector) bool {
	t.Helper()
	disk := newDisk(t)
	injector := errfs.OnIndex(n, kind)
	f := &failing{disk: disk, where: fmt.Sprintf("seed %d, %s", seed, injector)}
	f.user = newUser(t, seed, smallConfig(disk, seed))
	must(t, f.close())
	f.cfg.FS = errfs.Wrap(disk, injector)
	f.try(operation{"open", func() error { return f.user.open(OpenOptions{Floor: f.mark, SameBoot: true}) }})
	for range 16 {
		f.try(f.next())
		f.finish()
	}
	f.try(operation{"check", f.user.check})
	f.try(operation{"sync", func() error { return f.log.Sync() }})
	f.try(operation{"close", f.close})
	if f.firstThen > 0 {
		f.first = min(f.first, f.firstThen)
	}
	l, err := f.recover(testConfig(disk.CrashClone(0, nil)), OpenOptions{Floor: f.mark})
	if err != nil {
		t.Fatalf("%s, in the end: %v", f.where, err)
	}
	checkFrom(t, l, l.FirstIndex(), f.entries, f.m.rng)
	must(t, l.Close())
	return injector.Reached()
}

// failing is a user on whose disk one operation fails.
type failing struct {
	*user
	disk   *memfs.FS
	where  string
	failed bool
	// firstThen is where the log began when a sync failed, 0: none did. A segment whose removal was to be made durable then
	// may be back after a crash of the machine, for good until it is dropped again.
	firstThen Index
}

// try does an operation, and once more when it failed.
func (f *failing) try(op operation) {
	f.t.Helper()
	err := op.do()
	if err == nil {
		return
	}
	where := fmt.Sprintf("%s, %s", f.where, op.name)
	if f.failed || !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), testDir) {
		f.t.Fatalf("%s: %v", where, err)
	}
	if f.failed = true; errors.Is(err, ErrSync) {
		f.firstThen = f.first
	}
	f.crash(f.disk.KillClone(), true, where)
	for _, percent := range []int{0, 50, 100} {
		f.crash(f.disk.CrashClone(percent, f.m.rng), false, where)
	}
	if f.log != nil && errors.Is(err, ErrSync) {
		for _, use := range []error{f.log.Append(nil), f.log.Sync(), f.log.Roll(), f.log.DropBefore(f.log.FirstIndex()), f.log.TruncateSuffix(f.last())} {
			if !errors.Is(use, ErrSync) {
				f.t.Fatalf("%s: after %v: %v", where, err, use)
			}
		}
		must(f.t, f.close())
		f.reopenCut(where)
	}
	if op.name == "close" && f.log == nil {
		return
	}
	if err := op.do(); err != nil {
		f.t.Fatalf("%s, again: %v", where, err)
	}
}

// reopenCut opens the log after an error that demands it.
func (f *failing) reopenCut(where string) {
	l, err := f.recover(f.cfg, OpenOptions{Floor: f.mark, SameBoot: true})
	if err != nil {
		f.t.Fatalf("%s, opened anew: %v", where, err)
	}
	f.log = l
}

// crash recovers what is left on a disk.
func (f *failing) crash(disk *memfs.FS, sameBoot bool, where string) {
	f.t.Helper()
	l, err := f.recover(testConfig(disk), OpenOptions{Floor: f.mark, SameBoot: sameBoot})
	if err != nil {
		f.t.Fatalf("%s, crash: %v", where, err)
	}
	must(f.t, l.Close())
}
