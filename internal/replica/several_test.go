package replica

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
)

// Three replicas elect the preferred one, store what it is sent, and all hold the same.
func TestClusterElectsAndStores(t *testing.T) {
	c := newCluster(t, 1, nil)
	l := c.leader()
	if l.n != 1 {
		t.Fatalf("node %d leads", l.n)
	}
	for i := range 20 {
		if base := l.stored(batchOf(7, 0, batch.Sequence(i), 1, []byte("x"))); int(base) != i {
			t.Fatalf("batch %d is stored at %d", i, base)
		}
	}
	if a := l.produce(batchOf(7, 0, 19, 1, []byte("x"))); a.Err != nil || a.Base != 19 || a.Decision.Verdict != dedupe.Duplicate {
		t.Fatalf("retry: %+v", a)
	}
	a, _ := c.others(l)
	if got := a.produce(batchOf(7, 0, 20, 1, []byte("x"))); !errors.Is(got.Err, ErrNotLeader) {
		t.Fatalf("a follower answers %+v", got)
	}
	if st := a.p.Status(); st.Leader != replicaOf(1) || st.Ready || st.HighWatermark != 20 {
		t.Fatalf("status of a follower: %+v", st)
	}
	if in := l.p.Leadership().InSync; len(in) != 3 {
		t.Fatalf("in sync: %v", in)
	}
}

// The process of the leader ends: another one leads within half a second, and answers the retries of all that the old one
// has answered for, with the same offsets.
func TestClusterFailover(t *testing.T) {
	c := newCluster(t, 2, nil)
	l := c.leader()
	for i := range 5 {
		l.stored(batchOf(7, 0, batch.Sequence(i), 1, []byte("x")))
	}
	l.kill(true)
	before := c.clock.Now()
	next := c.leader(l.n)
	if took := c.clock.Now().Sub(before); took > 500*time.Millisecond {
		t.Errorf("a new leader after %v", took)
	}
	for i := range 5 {
		if a := next.produce(batchOf(7, 0, batch.Sequence(i), 1, []byte("x"))); a.Err != nil || int(a.Base) != i || a.Decision.Verdict != dedupe.Duplicate {
			t.Fatalf("retry %d: %+v", i, a)
		}
	}
	if base := next.stored(batchOf(7, 0, 5, 1, []byte("x"))); base != 5 {
		t.Fatalf("the next is stored at %d", base)
	}
}

// sequence makes the i-th batch of a producer, of one record.
func sequence(i int) []byte {
	return batchOf(7, 0, batch.Sequence(i), 1, []byte(fmt.Sprint("record ", i)))
}

// What a deposed leader had on its way is cut off by the next one: its producer hears that nobody knows, and its retry is
// stored. The answer of an entry is never that of another one at the same index.
func TestClusterCutOff(t *testing.T) {
	c := newCluster(t, 3, nil)
	old := c.leader()
	old.stored(sequence(0))
	c.isolate(old, true)
	lost, again := old.submit(sequence(1), -1), old.submit(sequence(1), -1)
	forgotten := old.submit(batchOf(8, 0, 0, 3, []byte("of another producer")), 1)
	c.run()
	if lost.ended() || again.ended() || !forgotten.ended() || forgotten.ack.Err != nil {
		t.Fatalf("answers of a leader without a majority: %v %v %+v", lost.ended(), again.ended(), forgotten.ack)
	}
	next := c.leader(old.n)
	for i := range 3 { // at the same indexes
		next.stored(batchOf(-1, -1, -1, 1, []byte(fmt.Sprint("other ", i))))
	}
	if lost.ended() {
		t.Fatalf("the old leader has answered %+v", lost.ack)
	}
	c.isolate(old, false)
	c.until("the answers", func() bool { return lost.ended() && again.ended() })
	if !errors.Is(lost.ack.Err, ErrCutOff) || !errors.Is(again.ack.Err, ErrCutOff) {
		t.Fatalf("answers to what was cut off: %+v, %+v", lost.ack, again.ack)
	}
	if base := next.stored(sequence(1)); base != 4 {
		t.Fatalf("the retry is stored at %d", base)
	}
	if a := next.produce(batchOf(8, 0, 0, 3, []byte("of another producer"))); a.Err != nil || a.Base != 5 || a.Decision.Verdict == dedupe.Duplicate {
		t.Fatalf("what only the old leader's disk had, with acks=1: %+v", a)
	}
}

// The uncommitted tail of a leader that is gone is on a follower, which is elected: what was in the tail is stored, and
// its retries are recognised with the offsets that it has, as are those of what was committed.
func TestClusterInheritsTheTail(t *testing.T) {
	c := newCluster(t, 4, nil)
	old := c.leader()
	a, b := c.others(old)
	old.stored(sequence(0))
	old.stored(sequence(1))
	c.cut[[2]int{a.n, old.n}], c.cut[[2]int{b.n, old.n}] = true, true // acknowledgements
	c.cut[[2]int{old.n, b.n}] = true
	var tail []*pending
	for i := 2; i < 5; i++ {
		tail = append(tail, old.submit(sequence(i), -1))
	}
	c.run()
	old.kill(true)
	for _, p := range tail {
		if p.ended() {
			t.Fatal("answered without a majority")
		}
		p.dead = true
	}
	clear(c.cut)
	next := c.leader(old.n)
	if next != a {
		t.Fatalf("node %d leads without the tail of node %d", next.n, a.n)
	}
	for i := range 5 {
		if got := next.produce(sequence(i)); got.Err != nil || got.Base != batch.Offset(i) || got.Decision.Verdict != dedupe.Duplicate {
			t.Fatalf("retry of batch %d: %+v", i, got)
		}
	}
	next.stored(sequence(5))
}

// A leader is deposed with a batch on its way that another replica has too, and the batch is committed by the next term:
// success, with the offset it was given. Then it leads again.
func TestClusterDeposedAndBack(t *testing.T) {
	c := newCluster(t, 5, nil)
	old := c.leader()
	a, b := c.others(old)
	old.stored(sequence(0))
	c.cut[[2]int{a.n, old.n}], c.cut[[2]int{b.n, old.n}] = true, true
	staged := old.submit(sequence(1), -1)
	c.run()
	next := c.leader(old.n)
	if staged.ended() {
		t.Fatalf("answered by a leader that hears nothing: %+v", staged.ack)
	}
	clear(c.cut)
	c.until("the answer", staged.ended)
	if staged.ack.Err != nil || staged.ack.Base != 1 {
		t.Fatalf("answer of the deposed leader: %+v", staged.ack)
	}
	c.pass(time.Second)
	next.p.Transfer(replicaOf(old.n))
	c.until("the old leader leads again", func() bool { return old.p.Status().Ready })
	if got := old.produce(sequence(1)); got.Err != nil || got.Base != 1 || got.Decision.Verdict != dedupe.Duplicate {
		t.Fatalf("retry: %+v", got)
	}
	if base := old.stored(sequence(2)); base != 2 {
		t.Fatalf("stored at %d", base)
	}
}

// With min.insync.replicas above the majority an answer waits for the slowest; the commit does not. A retry waits as its
// original does, under the next leader, too.
func TestClusterMinInSync(t *testing.T) {
	c := newCluster(t, 6, func(c *cluster) { c.minInSync = 3 })
	l := c.leader()
	c.until("all in sync", func() bool { return len(l.p.Status().InSync) == 3 })
	a, slow := c.others(l)
	l.stored(sequence(0))
	slow.frozen = true
	first, fast := l.submit(sequence(1), -1), l.submit(sequence(1), 1)
	c.pass(300 * time.Millisecond)
	if st := l.p.Status(); st.HighWatermark != 2 || first.ended() || !fast.ended() || fast.ack.Base != 1 {
		t.Fatalf("high watermark %d, answered %v, with acks=1 %v", st.HighWatermark, first.ended(), fast.ended())
	}
	retry := l.submit(sequence(1), -1)
	c.pass(300 * time.Millisecond)
	if retry.ended() {
		t.Fatalf("the retry of what waits is answered %+v", retry.ack)
	}
	c.pass(time.Second)
	l.p.Transfer(replicaOf(a.n))
	c.until("the other leads", func() bool { return a.p.Status().Ready })
	for _, p := range []*pending{first, retry} {
		if !p.ended() || !errors.Is(p.ack.Err, ErrCutOff) {
			t.Fatalf("the deposed leader answers %v, %+v", p.ended(), p.ack)
		}
	}
	inherited := a.submit(sequence(1), -1)
	c.pass(300 * time.Millisecond)
	if inherited.ended() {
		t.Fatalf("a retry of what an earlier leader stored on two is answered %+v", inherited.ack)
	}
	slow.frozen = false
	c.until("the answer", inherited.ended)
	if inherited.ack.Err != nil || inherited.ack.Base != 1 || inherited.ack.Decision.Verdict != dedupe.Duplicate {
		t.Fatalf("%+v", inherited.ack)
	}
}

// A replica that is not level for long enough is not in sync: then a new batch is refused that waits for it, and a retry
// is not.
func TestClusterShrinks(t *testing.T) {
	c := newCluster(t, 7, func(c *cluster) { c.minInSync, c.lagMax = 3, 2*time.Second })
	l := c.leader()
	_, slow := c.others(l)
	c.until("all in sync", func() bool { return len(l.p.Status().InSync) == 3 })
	l.stored(sequence(0))
	c.isolate(slow, true)
	c.pass(time.Second)
	if in := l.p.Status().InSync; len(in) != 3 {
		t.Fatalf("in sync after a second: %x", in)
	}
	c.pass(2 * time.Second)
	if in := l.led[len(l.led)-1].InSync; len(in) != 2 {
		t.Fatalf("in sync, as the node was told: %x", in)
	}
	if a := l.produce(sequence(1)); !errors.Is(a.Err, ErrNotEnoughReplicas) {
		t.Fatalf("answer %+v", a)
	}
	if a := l.produce(sequence(0)); a.Err != nil || a.Base != 0 {
		t.Fatalf("answer to a retry %+v", a)
	}
	one := l.submit(sequence(1), 1)
	c.until("the answer", one.ended)
	if one.ack.Err != nil || one.ack.Base != 1 {
		t.Fatalf("with acks=1: %+v", one.ack)
	}
	c.isolate(slow, false)
	c.until("all in sync again", func() bool { return len(l.p.Status().InSync) == 3 })
	l.stored(sequence(2))
}

// A replica that was away for longer than the log reaches gets a base snapshot, and what it then remembers is what the
// others do: it leads, and answers retries.
func TestClusterSnapshot(t *testing.T) {
	setSegmentBytes(t, 4<<10)
	c := newCluster(t, 8, nil)
	l := c.leader()
	_, away := c.others(l)
	c.isolate(away, true)
	for i := range 60 {
		l.stored(batchOf(7, 0, batch.Sequence(i), 1, make([]byte, 300)))
	}
	l.p.loop.box.post(func(now time.Time) { l.p.core.moveStart(50) })
	c.pass(time.Second)
	if first := l.log.Segments().FirstIndex(); first != 2 {
		t.Fatalf("what an active follower is still fed from is dropped: the log begins at %d", first)
	}
	c.pass(feedMax)
	l.p.Housekeep(Retain)
	c.run()
	if first := l.log.Segments().FirstIndex(); first < 40 {
		t.Fatalf("the log begins at %d", first)
	}
	c.isolate(away, false)
	c.until("the replica is level", func() bool { return away.p.Status().HighWatermark == 60 })
	if st := away.p.Status(); st.LogStart != 50 && st.LogStart != l.p.Status().LogStart {
		t.Fatalf("log start %d", st.LogStart)
	}
	c.pass(time.Second)
	c.leader().p.Transfer(replicaOf(away.n))
	c.until("it leads", func() bool { return away.p.Status().Ready })
	for i := 55; i < 60; i++ {
		if a := away.produce(batchOf(7, 0, batch.Sequence(i), 1, make([]byte, 300))); a.Err != nil || a.Base != batch.Offset(i) {
			t.Fatalf("retry of batch %d: %+v", i, a)
		}
	}
	away.stored(batchOf(7, 0, 60, 1, make([]byte, 300)))
	away.kill(true) // and starts again at the end
}

// An old leader that is cut off does not know what the new one stores: it never says that a batch is out of order.
func TestClusterNoVerdictOfAnOldLeader(t *testing.T) {
	c := newCluster(t, 9, nil)
	old := c.leader()
	old.stored(sequence(0))
	if a := old.produce(sequence(5)); !errors.Is(a.Err, ErrRefused) || a.Decision.Reason != dedupe.Gap {
		t.Fatalf("a gap is answered %+v", a)
	}
	c.isolate(old, true)
	gap := old.submit(sequence(2), -1)
	large := old.submit(batchOf(7, 0, 1, 1, make([]byte, testMaxMessageBytes)), -1)
	c.run()
	if gap.ended() || large.ended() {
		t.Fatalf("a leader that is cut off says %+v, %+v", gap.ack, large.ack)
	}
	next := c.leader(old.n)
	next.stored(sequence(1))
	next.stored(sequence(2))
	c.until("the answers", func() bool { return gap.ended() && large.ended() })
	if !errors.Is(gap.ack.Err, ErrNotLeader) || !errors.Is(large.ack.Err, ErrNotLeader) {
		t.Fatalf("a leader that was cut off says %+v, %+v", gap.ack, large.ack)
	}
}

// Leadership is handed over under load, again and again: producers hear nothing but success, and that they are to ask
// somebody else.
func TestClusterTransferUnderLoad(t *testing.T) {
	c := newCluster(t, 10, nil)
	c.leader()
	moves := 0
	for i := 0; i < 200; {
		l := c.leader()
		if i == 10*moves+5 {
			a, _ := c.others(l)
			c.pass(100 * time.Millisecond)
			l.p.Transfer(replicaOf(a.n))
			moves++
		}
		got := l.produce(sequence(i))
		switch {
		case got.Err == nil && got.Base == batch.Offset(i):
			i++
		case !errors.Is(got.Err, ErrNotLeader):
			t.Fatalf("batch %d: %+v", i, got)
		}
	}
	term := c.leader().p.Status().Term
	if moves < 10 || int(term) < moves/2 {
		t.Fatalf("%d moves, term %d", moves, term)
	}
}

// A hand-over to a replica that does not answer comes to nothing: submissions wait for half a second, then they are told to
// ask somebody else, and what comes later is stored.
func TestClusterTransferInVain(t *testing.T) {
	c := newCluster(t, 11, nil)
	l := c.leader()
	a, b := c.others(l)
	l.stored(sequence(0))
	c.cut[[2]int{l.n, a.n}] = true
	l.p.Transfer(replicaOf(a.n))
	c.run()
	held := l.submit(sequence(1), -1)
	c.pass(300 * time.Millisecond)
	if held.ended() {
		t.Fatalf("answered %+v while leadership is handed over", held.ack)
	}
	c.pass(400 * time.Millisecond)
	if !held.ended() || !errors.Is(held.ack.Err, ErrNotLeader) {
		t.Fatalf("answered %v, %+v", held.ended(), held.ack)
	}
	clear(c.cut)
	c.pass(2 * time.Second)
	_ = b
	c.leader().stored(sequence(1))
}

// A question whether this replica leads is answered with yes only by one that does.
func TestClusterConfirm(t *testing.T) {
	c := newCluster(t, 12, nil)
	l := c.leader()
	ask := func(n *clusterNode) (answer func() error) {
		var got error
		ended := false
		n.p.loop.box.post(func(time.Time) { n.p.core.confirm(func(err error) { got, ended = err, true }) })
		return func() error {
			c.until("the answer", func() bool { return ended })
			return got
		}
	}
	if err := ask(l)(); err != nil {
		t.Fatal(err)
	}
	a, _ := c.others(l)
	if err := ask(a)(); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("a follower: %v", err)
	}
	c.isolate(l, true)
	first, second := ask(l), ask(l)
	next := c.leader(l.n)
	next.stored(sequence(0))
	if err := errors.Join(first(), second()); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("an old leader: %v", err)
	}
	if err := ask(next)(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := next.p.Confirm(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("given up: %v", err)
	}
}
