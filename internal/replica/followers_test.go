package replica

import (
	"slices"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
)

// acks=1 must not be answered before the leader's disk has it, re-elected or not.
func TestAcks1WaitsForTheDiskAfterReelection(t *testing.T) {
	c := newCluster(t, 101, nil)
	old := c.leader()
	a, b := c.others(old)
	old.stored(sequence(0))
	c.pass(time.Second)
	old.frozen = true
	c.isolate(old, true)
	c.isolate(a, true) // nobody else can be elected
	p := old.submit(sequence(1), 1)
	c.until("old steps down", func() bool { return !old.p.Status().Ready })
	onDisk := old.log.Segments().LastIndex()
	if p.ended() {
		t.Fatal("too early")
	}
	for _, o := range []*clusterNode{a, b} {
		c.cut[[2]int{o.n, old.n}], c.cut[[2]int{old.n, o.n}] = false, false
	}
	c.until("old leads again", func() bool { return old.p.core.firstOwn > 0 })
	c.run()
	if p.ended() && p.ack.Err == nil && old.log.Segments().LastIndex() == onDisk {
		t.Errorf("acks=1 success (%+v), and the log on disk still ends at %d", p.ack, onDisk)
	}
	old.frozen = false
}

// With min.insync.replicas above the majority and a follower gone, acks=1 must go on.
func TestAcks1HoldsNothingWithoutAFollower(t *testing.T) {
	c := newCluster(t, 102, func(c *cluster) { c.minInSync = 3; c.lagMax = 2 * time.Second })
	l := c.leader()
	c.until("all in sync", func() bool { return len(l.p.Status().InSync) == 3 })
	_, gone := c.others(l)
	gone.kill(true)
	for i := range 2 * heldMax / 100_000 {
		p := l.submit(batchOf(7, 0, batch.Sequence(i), 1, make([]byte, 100_000)), 1)
		c.run()
		if !p.ended() || p.ack.Err != nil {
			t.Fatalf("%d: %v %+v", i, p.ended(), p.ack)
		}
	}
	if l.p.loop.box.held > 0 {
		t.Errorf("all answered, all applied (high %d), in sync %v, and %d bytes are held: every Submit blocks until the follower is back",
			l.p.Status().HighWatermark, l.p.Status().InSync, l.p.loop.box.held)
	}
}

// A follower whose process is gone is not in sync.
func TestLostFollowerIsNotInSync(t *testing.T) {
	c := newCluster(t, 104, nil)
	l := c.leader()
	l.stored(sequence(0))
	c.until("all in sync", func() bool { return len(l.p.Status().InSync) == 3 })
	c.pass(300 * time.Millisecond)
	_, gone := c.others(l)
	gone.kill(true)
	c.run()
	if in := l.p.Status().InSync; slices.Contains(in, replicaOf(gone.n)) {
		t.Errorf("in sync right after Lost: %x", in)
	}
	c.pass(5 * time.Second)
	if in := l.p.Status().InSync; slices.Contains(in, replicaOf(gone.n)) {
		t.Errorf("in sync 5 s after Lost: %x", in)
	}
}

// Segments are kept for a follower for 10 minutes at most.
func TestSegmentsAreKeptTenMinutes(t *testing.T) {
	setSegmentBytes(t, 4<<10)
	c := newCluster(t, 105, nil)
	l := c.leader()
	l.stored(sequence(0))
	_, full := c.others(l)
	full.frozen = true // parked on a full disk; it answers heartbeats
	for i := 1; i < 40; i++ {
		l.stored(batchOf(7, 0, batch.Sequence(i), 1, make([]byte, 1000)))
	}
	l.p.loop.box.post(func(time.Time) { l.p.core.moveStart(l.p.core.high) })
	c.pass(time.Second)
	for range 30 {
		c.clock.advance(time.Minute)
		c.pass(2 * time.Second)
		l.p.Housekeep(Retain)
		c.pass(time.Second)
	}
	a, _ := c.others(l)
	t.Logf("after 30 minutes: leader %d segments from %d, the other %d segments from %d",
		len(l.log.Segments().Segments()), l.log.Segments().FirstIndex(), len(a.log.Segments().Segments()), a.log.Segments().FirstIndex())
	if l.log.Segments().FirstIndex() < 10 {
		t.Error("the leader keeps all for a follower that stores nothing")
	}
}
