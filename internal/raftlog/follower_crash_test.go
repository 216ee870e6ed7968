package raftlog

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// The machine, or the process, goes down before each operation on the file system while a replica follows changing leaders:
// what was answered is there, and what was overwritten never comes back behind what is newer.
func TestFollowerEveryCrash(t *testing.T) {
	var installs, cuts, repeats, dropped int
	removes := func(op errfs.Op) bool {
		return strings.HasPrefix(op.Path, "groups/") &&
			(op.Kind == errfs.OpTruncate || op.Kind == errfs.OpRemove || op.Kind == errfs.OpSyncDir)
	}
	for seed := range uint64(*groupSeeds) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			mem := newStateFS(t)
			var c *followerScript
			operations := int(seed)
			c = newFollowerScript(t, seed, mem, errfs.Wrap(mem, hook(func(op errfs.Op) {
				operations++
				if c == nil || c.log == nil {
					return
				}
				if c.writing && removes(op) && c.luck.IntN(2) == 0 { // their time may come at any moment
					must(t, c.flush.markers.write())
				}
				if operations%*groupStride != 0 {
					return
				}
				for _, percent := range []int{0, 100, c.luck.IntN(101)} {
					c.checkDisk(t, mem.CrashClone(percent, c.luck), boot2)
				}
				c.checkDisk(t, mem.KillClone(), boot1)
				if c.luck.IntN(4) == 0 {
					mem.WriteBack(c.luck.IntN(101), c.luck)
				}
			})))
			must(t, c.open(boot1))
			for range 60 {
				must(t, c.step(boot1))
			}
			must(t, c.close())
			c.checkDisk(t, mem.CrashClone(0, nil), boot2)
			installs, cuts, repeats, dropped = installs+c.installs, cuts+c.cuts, repeats+c.repeats, dropped+int(c.dropped)
		})
	}
	if installs == 0 || cuts == 0 || repeats == 0 || dropped == 0 {
		t.Fatalf("%d installs, %d cuts, %d of them back, dropped up to %d", installs, cuts, repeats, dropped)
	}
}

// Each operation fails once while a replica follows changing leaders.
func TestFollowerEveryError(t *testing.T) {
	for i, failure := range []errfs.Injector{errfs.EIO, errfs.ShortWrite(90, syscall.EIO), errfs.ENOSPC, errfs.ShortWrite(90, syscall.ENOSPC)} {
		for n := i % *groupStride; ; n += *groupStride {
			injector := errfs.OnIndex(n, failure)
			followUntilError(t, injector)
			if !injector.Reached() {
				if n < 100 {
					t.Fatalf("only %d operations", n)
				}
				break
			}
		}
	}
}

func followUntilError(t *testing.T, injector *errfs.Index) {
	t.Helper()
	mem := newStateFS(t)
	c := newFollowerScript(t, 4, mem, errfs.Wrap(mem, injector))
	err := c.open(boot1)
	for range 40 {
		if err != nil {
			break
		}
		err = c.step(boot1)
	}
	if err != nil && !injector.Reached() {
		t.Fatalf("%s: %v", injector, err)
	}
	for _, percent := range []int{0, c.luck.IntN(101)} {
		c.checkDisk(t, mem.CrashClone(percent, c.luck), boot2)
	}
	c.checkDisk(t, mem.KillClone(), boot1)
}

// The process is killed in the middle of an overwriting or an install, and the machine goes down while the next one carries
// that out.
func TestFollowerCrashWhileResuming(t *testing.T) {
	seen := map[intent]int{}
	for seed := range uint64(*groupSeeds) {
		mem := newStateFS(t)
		var c *followerScript
		c = newFollowerScript(t, seed+50, mem, errfs.Wrap(mem, hook(func(op errfs.Op) {
			if c == nil || !c.writing || !strings.HasPrefix(op.Path, "groups/") || c.luck.IntN(40) != 0 {
				return
			}
			if begun, unfinished := resumeWithCrashes(t, c, mem.KillClone()); unfinished {
				seen[begun]++
			}
		})))
		must(t, c.open(boot1))
		for range 40 {
			must(t, c.step(boot1))
		}
		must(t, c.close())
	}
	if len(seen) != 2 {
		t.Fatalf("resumed were only %v", seen)
	}
}

// resumeWithCrashes opens a group, with a crash tried before each operation that changes something, and returns the intent
// that it had to carry out.
func resumeWithCrashes(t *testing.T, c *followerScript, disk *memfs.FS) (intent, bool) {
	t.Helper()
	checking := false
	cfg := c.cfg
	cfg.FS = errfs.Wrap(disk, hook(func(op errfs.Op) {
		if checking || op.Kind == errfs.OpRead || op.Kind == errfs.OpSize || op.Kind == errfs.OpList {
			return
		}
		checking = true
		for _, percent := range []int{0, c.luck.IntN(101)} {
			c.checkDisk(t, disk.CrashClone(percent, c.luck), boot2)
		}
		c.checkDisk(t, disk.KillClone(), boot1)
		checking = false
	}))
	state, report, err := OpenState(cfg.FS, stateDir, boot1)
	must(t, err)
	begun, unfinished := state.unfinished(1)
	cfg.State, cfg.SameBoot = state, report.SameBoot
	if i := Inspect(cfg); i.Problem != nil || i.Salvageable || i.Unfinished != intentNames[begun.intent] {
		t.Fatalf("inspected: %+v", i)
	}
	l, _, err := OpenGroup(cfg)
	must(t, err)
	must(t, l.Close())
	must(t, state.Close())
	return begun.intent, unfinished
}

// Base snapshots are made, and segments dropped, in the background while a snapshot takes the place of the log.
func TestBasesBesideAnInstall(t *testing.T) {
	for seed := range uint64(20) {
		mem := newStateFS(t)
		c := newFollowerScript(t, seed+90, mem, mem)
		must(t, c.open(boot1))
		for len(c.log.Segments().Segments()) < 4 {
			must(t, c.write())
		}
		c.applied = c.now.last()
		c.log.Applied(c.applied)
		var bases []Base
		for _, s := range c.log.Segments().Segments()[1:] {
			bases = append(bases, c.base(c.now, s.First-1))
		}
		var background sync.WaitGroup
		background.Go(func() {
			for _, b := range bases {
				if err := c.log.AddBase(b); err != nil {
					t.Error(err)
				}
			}
		})
		background.Go(func() {
			for _, b := range bases {
				if err := c.log.DropBefore(b.Index + 1); err != nil && !strings.Contains(err.Error(), "no base snapshot") {
					t.Error(err)
				}
			}
		})
		installed := c.snapshot(c.applied)
		c.submit(installed.snapshot(), nil)
		for c.flush.Step() {
		}
		c.log.Restored(installed)
		background.Wait()
		first, err := c.log.FirstIndex()
		if must(t, err); seglog.Index(first) != installed.Index+1 || c.log.Segments().FirstIndex() != installed.Index+1 {
			t.Fatalf("the log begins with %d, and %d", first, c.log.Segments().FirstIndex())
		}
		c.possible = []possible{{c.now, c.now.last()}}
		must(t, c.close())
		c.checkDisk(t, mem.CrashClone(0, nil), boot2)
	}
}
