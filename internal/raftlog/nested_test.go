package raftlog

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

var nestedSeeds = flag.Int("nested.seeds", 1, "random scripts of TestKillThenCrash")

// killed is a script whose process has ended before an operation.
type killed struct {
	groupScript
	disk *memfs.FS
	op   errfs.Op
}

// killedSometimes runs a script, and returns it as it was before some of its operations, mostly those on names.
func killedSometimes(t *testing.T, seed uint64) []killed {
	t.Helper()
	var all []killed
	mem := newStateFS(t)
	var c *groupScript
	pick := rand.New(rand.NewPCG(seed, 99))
	c = newGroupScript(t, seed, mem, errfs.Wrap(mem, hook(func(op errfs.Op) {
		one := 40
		if op.Kind == errfs.OpSyncDir || op.Kind == errfs.OpRemove || op.Kind == errfs.OpRename {
			one = 5
		}
		if c == nil || c.log == nil || pick.IntN(one) != 0 {
			return
		}
		now := *c
		now.stages, now.based = slices.Clone(c.stages), slices.Clone(c.based)
		all = append(all, killed{now, mem.KillClone(), op})
	})))
	must(t, c.open(boot1))
	for range 40 {
		must(t, c.step(boot1))
	}
	must(t, c.close())
	return all
}

// The process is killed, starts again and goes on, and then the machine goes down: what the first process has left
// without a sync is not lost, nor does it break the log.
func TestKillThenCrash(t *testing.T) {
	for seed := range uint64(*nestedSeeds) {
		for n, k := range killedSometimes(t, seed) {
			t.Run(fmt.Sprintf("seed=%d/kill=%d", seed, n), func(t *testing.T) {
				k.rng = rand.New(rand.NewPCG(seed, uint64(n)+1000))
				k.luck = rand.New(rand.NewPCG(seed, uint64(n)+2000))
				on := true
				k.fs = errfs.Wrap(k.disk, hook(func(op errfs.Op) {
					if !on || op.Kind == errfs.OpRead || op.Kind == errfs.OpSize || op.Kind == errfs.OpList {
						return
					}
					on = false
					for _, percent := range []int{0, 50, k.luck.IntN(101)} {
						k.checkDisk(t, k.disk.CrashClone(percent, k.luck), boot2)
					}
					on = true
				}))
				must(t, k.open(boot1))
				k.stages = k.stages[:k.log.Segments().LastIndex()]
				k.term = max(k.log.hard.GetTerm(), 1)
				for range 3 {
					must(t, k.step(boot1))
				}
			})
		}
	}
}
