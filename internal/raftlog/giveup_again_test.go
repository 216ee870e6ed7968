package raftlog

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// givenUp gives up what is damaged of a group, twice, and opens it.
func givenUp(t *testing.T, cfg Config, what string) *Log {
	t.Helper()
	for n := range 2 {
		if err := GiveUp(cfg, []byte(emptyBody)); err != nil && !strings.Contains(err.Error(), "not damaged") {
			t.Errorf("%s: give up, call %d: %v", what, n+1, err)
		}
	}
	l, _, err := OpenGroup(cfg)
	if err != nil {
		t.Fatalf("%s: open: %v", what, err)
	}
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

// spoil makes one byte of a file wrong.
func spoil(t *testing.T, disk *memfs.FS, path string, at int64) {
	t.Helper()
	f, err := disk.Open(path)
	must(t, err)
	_, err = f.WriteAt([]byte{0xee}, at)
	must(t, err)
	must(t, f.Close())
}

// Retention: the log start is raised by an entry in the newest segment, and what is before that segment goes. Then one
// byte in front of that entry is wrong. Giving up the end takes the entry with it, and the base snapshot is from before.
func TestGiveUpKeepsLogStart(t *testing.T) {
	mem := newStateFS(t)
	c := newGroupScript(t, 1, mem, mem)
	c.cfg.SegmentBytes = 1 << 20
	must(t, c.open(boot1))
	put := func() {
		c.put(t, storedBatch(c.stages[len(c.stages)-1].nextOffset, 1, strings.Repeat("x", 50)))
	}
	put()
	put()
	c.roll(t)
	put()
	put()
	second := c.firsts()[1]
	c.put(t, logStartAt(c.stages[second-2].nextOffset))
	must(t, c.log.DropBefore(second))
	must(t, c.close())
	disk := mem.KillClone()
	spoil(t, disk, c.path(second, ".log"), 96+61+10)
	l := givenUp(t, (&patient{groupScript: c, disk: disk}).on(t, disk, boot1), "log start")
	if first, start := l.Segments().FirstOffset(), l.Base().LogStart; start != first {
		t.Errorf("the log begins with offset %d, and the base snapshot has log start %d", first, start)
	}
}

// The only segment is missing, its index is not.
func TestGiveUpWithIndexLeft(t *testing.T) {
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, 1)
	must(t, c.close())
	must(t, mem.Remove(c.path(2, ".log")))
	givenUp(t, (&patient{groupScript: c}).on(t, mem, boot1), "index left")
}

// A crash between the removal of segments and that of their base snapshots leaves one without a segment, and the one of the
// log that is left is missing. The log is whole.
func TestGiveUpPassesOverLeftOverBase(t *testing.T) {
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, 3)
	c.put(t, logStartAt(c.stages[len(c.stages)-1].nextOffset))
	third := c.firsts()[2]
	must(t, c.log.segments.DropBefore(third)) // the process ends here
	must(t, c.close())
	must(t, mem.Remove(c.path(third, baseSuffix)))
	cfg := (&patient{groupScript: c}).on(t, mem, boot1)
	if i := Inspect(cfg); i.Loss.Entries > 0 {
		t.Errorf("the log from %d to %d is whole, and it is to lose %+v", third, c.last(), i.Loss)
	}
	l := givenUp(t, cfg, "left-over base")
	if first, last := l.segments.FirstIndex(), l.segments.LastIndex(); first != third || last != c.last()+1 {
		t.Errorf("entries %d to %d were whole, and of %d to %d are left", third, c.last(), first, last)
	}
}

// No header of a segment is good, and an older base snapshot is: the whole log goes, and that is told.
func TestGiveUpTellsOfTheLossOfAll(t *testing.T) {
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, 3)
	c.put(t, logStartAt(c.stages[len(c.stages)-1].nextOffset))
	second, third := c.firsts()[1], c.firsts()[2]
	must(t, c.log.segments.DropBefore(third))
	must(t, c.close())
	must(t, mem.Remove(c.path(third, baseSuffix)))
	spoil(t, mem, c.path(third, ".log"), 5)
	cfg := (&patient{groupScript: c}).on(t, mem, boot1)
	i := Inspect(cfg)
	if want := int64(c.last() - second + 1); !i.Salvageable || i.Loss.Entries != want || i.Loss.Offset < 0 {
		t.Errorf("entries %d to %d go, and %+v is told, salvageable: %t", second, c.last(), i.Loss, i.Salvageable)
	}
	givenUp(t, cfg, "all")
}

// The header of the only segment is damaged: nothing is left of the log. The process or the machine ends anywhere.
func TestGiveUpOfAllIsEndedLater(t *testing.T) {
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, 1)
	must(t, c.close())
	spoil(t, mem, c.path(2, ".log"), 5)
	type end struct {
		disk *memfs.FS
		boot [16]byte
		op   errfs.Op
	}
	var ends []end
	rng := rand.New(rand.NewPCG(3, 3))
	p := &patient{groupScript: c}
	cfg := p.on(t, errfs.Wrap(mem, hook(func(op errfs.Op) {
		if op.Kind != errfs.OpRead && op.Kind != errfs.OpList && op.Kind != errfs.OpSize {
			ends = append(ends, end{mem.KillClone(), boot1, op}, end{mem.CrashClone(50, rng), boot2, op})
		}
	})), boot1)
	must(t, GiveUp(cfg, []byte(emptyBody)))
	for _, e := range ends {
		t.Run("", func(t *testing.T) {
			cfg := p.on(t, e.disk, e.boot)
			givenUp(t, cfg, fmt.Sprintf("ended before %v", e.op))
		})
	}
}

// A durable mark that is taken when the newest segment has no entry yet names that segment. It is damaged at its first
// entry, or its header: giving it up takes the file away, and with it the mark, whose entry is not above the cut.
func TestGiveUpTakesMarkInItsSegment(t *testing.T) {
	for _, at := range []int64{5, 100} { // header, first entry
		mem := newStateFS(t)
		c := builtGroup(t, mem, mem, 2)
		c.term++
		e := entry(uint64(c.last())+1, c.term, nil)
		c.stages = append(c.stages, c.stages[len(c.stages)-1].after(e))
		c.log.Staged([]*pb.Entry{e})
		must(t, c.w.carry([]*pb.Message{storageAppend(c.term, uint64(logReplica), uint64(c.last()), e), nil}))
		must(t, c.flush.markers.write()) // one second later
		for range 3 {
			c.put(t, []byte(EncodeCommand(17, make([]byte, 8))))
		}
		firsts := c.firsts()
		last := firsts[len(firsts)-1]
		disk := mem.KillClone() // before the next mark
		spoil(t, disk, c.path(last, ".log"), at)
		p := &patient{groupScript: c, disk: disk, firsts: firsts}
		givenUp(t, p.on(t, disk, boot1), "mark")
		must(t, c.close())
	}
}
