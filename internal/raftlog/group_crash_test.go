package raftlog

import (
	"errors"
	"flag"
	"fmt"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
)

var (
	groupSeeds  = flag.Int("group.seeds", 3, "random scripts of the groups' crash and fault tests")
	groupStride = flag.Int("group.stride", 13, "of how many operations of a script one is crashed at, or fails; 1: each is tried")
)

// The machine, or the process, goes down before each operation on the file system of a random script.
func TestGroupEveryCrash(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(*groupSeeds) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			mem := newStateFS(t)
			var c *groupScript
			operations := int(seed)
			judge := func(op errfs.Op) {
				operations++
				if c.log == nil || operations%*groupStride != 0 {
					return
				}
				for _, percent := range []int{0, 100, c.luck.IntN(101)} {
					c.checkDisk(t, mem.CrashClone(percent, c.luck), boot2)
				}
				c.checkDisk(t, mem.KillClone(), boot1)
				if c.luck.IntN(4) == 0 {
					mem.WriteBack(c.luck.IntN(101), c.luck)
				}
			}
			c = newGroupScript(t, seed, mem, errfs.Wrap(mem, hook(judge)))
			must(t, c.open(boot1))
			for range 40 {
				must(t, c.step(boot1))
			}
			must(t, c.close())
			c.checkDisk(t, mem.CrashClone(0, nil), boot2)
			seen["dropped"] = seen["dropped"] || c.dropped > 2
			seen["based"] = seen["based"] || len(c.based) > 2
		})
	}
	if len(seen) != 2 {
		t.Fatalf("the scripts did only %v", seen)
	}
}

// Each operation of a script fails once. What does not end the process can be repeated; what does leaves all that was
// answered to the next one.
func TestGroupEveryError(t *testing.T) {
	for i, failure := range []errfs.Injector{errfs.EIO, errfs.ShortWrite(90, syscall.EIO), errfs.ENOSPC, errfs.ShortWrite(90, syscall.ENOSPC)} {
		for n := i % *groupStride; ; n += *groupStride {
			injector := errfs.OnIndex(n, failure)
			groupUntilError(t, injector)
			if !injector.Reached() {
				if n < 100 {
					t.Fatalf("only %d operations", n)
				}
				break
			}
		}
	}
}

func groupUntilError(t *testing.T, injector *errfs.Index) {
	t.Helper()
	mem := newStateFS(t)
	c := newGroupScript(t, 2, mem, errfs.Wrap(mem, injector))
	err := c.open(boot1)
	for range 25 {
		if err != nil {
			break
		}
		if err = c.step(boot1); err != nil && injector.Reached() && !errors.Is(err, seglog.ErrSync) {
			// AddBase and DropBefore go on where they were.
			if c.first > c.dropped {
				must(t, c.log.DropBefore(c.first))
				c.dropped = c.first
			}
		}
	}
	if err != nil && !injector.Reached() {
		t.Fatalf("%s: %v", injector, err)
	}
	for _, percent := range []int{0, c.luck.IntN(101)} {
		c.checkDisk(t, mem.CrashClone(percent, c.luck), boot2)
	}
	c.checkDisk(t, mem.KillClone(), boot1)
}
