package raftlog

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// cleanGroup is a group of n segments, all with bases, whose durable mark is its end, and whose log start is its end.
func cleanGroup(t *testing.T, n int) (*groupScript, *memfs.FS) {
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, n)
	c.put(t, logStartAt(batch.Offset(c.stages[len(c.stages)-1].nextOffset)))
	must(t, c.flush.markers.write())
	return c, mem
}

// killBefore runs do on the disk, and returns the disk as a kill leaves it just before the nth operation of a kind.
func killBefore(mem *memfs.FS, kind errfs.Kind, n int, run func(i errfs.Injector, arm func())) *memfs.FS {
	var left *memfs.FS
	armed := false
	run(hook(func(op errfs.Op) {
		if armed && op.Kind == kind && op.Path == "groups/b" {
			if n--; n == 0 {
				left = mem.KillClone()
			}
		}
	}), func() { armed = true })
	return left
}

// crashEach carries out drop and checks each machine crash on the way.
func crashEach(t *testing.T, c groupScript, disk *memfs.FS, first seglog.Index) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 1))
	failed := 0
	armed := false
	c.fs = errfs.Wrap(disk, hook(func(op errfs.Op) {
		if !armed || op.Kind == errfs.OpRead || op.Kind == errfs.OpList {
			return
		}
		for range 20 {
			clone := disk.CrashClone(50, rng)
			state, report := openState(t, clone, boot2)
			cfg := c.cfg
			cfg.FS, cfg.State, cfg.SameBoot = clone, state, report.SameBoot
			l, _, err := OpenGroup(cfg)
			if err != nil {
				if failed++; failed == 1 {
					t.Errorf("crash before %v: %v", op, err)
				}
				continue
			}
			must(t, l.Close())
		}
	}))
	must(t, c.open(boot1))
	armed = true
	must(t, c.log.DropBefore(first))
	armed = false
}

// Killed in DropBefore, between the removal of a segment and the sync of the directory. The mark is the end of the log, so
// the next start syncs nothing. The next DropBefore, and the machine goes down: the second removal is on disk, the first not.
func TestDropAfterKilledDrop(t *testing.T) {
	c, mem := cleanGroup(t, 4)
	firsts := c.firsts()
	disk := killBefore(mem, errfs.OpSyncDir, 1, func(i errfs.Injector, arm func()) {
		c.fs = errfs.Wrap(mem, i)
		must(t, c.close())
		must(t, c.open(boot1))
		arm()
		must(t, c.log.DropBefore(firsts[1]))
	})
	crashEach(t, *c, disk, firsts[2])
}

// Killed in AddBase, between the renaming and the sync of the directory: the next start finds the base snapshot and
// trusts its name. DropBefore then takes away what it replaces, and the machine goes down.
func TestDropAfterKilledBase(t *testing.T) {
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, 1)
	must(t, c.w.carry([]*pb.Message{nil}))
	c.put(t, logStartAt(c.stages[len(c.stages)-1].nextOffset))
	must(t, c.flush.markers.write())
	second := c.firsts()[1]
	disk := killBefore(mem, errfs.OpSyncDir, 1, func(i errfs.Injector, arm func()) {
		c.fs = errfs.Wrap(mem, i)
		must(t, c.close())
		must(t, c.open(boot1))
		arm()
		must(t, c.log.AddBase(c.base(second-1)))
	})
	if disk == nil {
		t.Fatal("no kill")
	}
	crashEach(t, *c, disk, second)
}

// The directory cannot be synced while a base is made. The error belongs to all that was done in the directory, and the
// next sync of it, that of a new segment, would succeed without having written: the log is at its end.
func TestFailedSyncOfDirectoryIsFinal(t *testing.T) {
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, 1)
	must(t, c.w.carry([]*pb.Message{nil}))
	armed := false
	c.fs = errfs.Wrap(mem, injectWhen(func(op errfs.Op) error {
		if armed && op.Kind == errfs.OpSyncDir {
			return syscall.EIO
		}
		return nil
	}))
	must(t, c.close())
	must(t, c.open(boot1))
	armed = true
	if err := c.log.AddBase(c.base(c.firsts()[1] - 1)); !errors.Is(err, seglog.ErrSync) || !errors.Is(err, syscall.EIO) {
		t.Errorf("add base: %v", err)
	}
	armed = false
	if err := c.w.carry([]*pb.Message{nil}); !errors.Is(err, seglog.ErrSync) {
		t.Errorf("roll: %v", err)
	}
	if err := c.log.segments.Append(nil); !errors.Is(err, seglog.ErrSync) {
		t.Errorf("append: %v", err)
	}
	if err := c.log.DropBefore(c.firsts()[0]); !errors.Is(err, seglog.ErrSync) {
		t.Errorf("drop: %v", err)
	}
}

type injectWhen func(errfs.Op) error

func (f injectWhen) Inject(op errfs.Op) error { return f(op) }
func (f injectWhen) String() string           { return "when" }
