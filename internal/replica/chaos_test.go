package replica

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
)

// chaos is a producer that sends one batch after the other to whoever leads, and again until it is answered with success,
// while the cluster is troubled.
type chaos struct {
	*cluster
	next   []batch.Sequence // of each producer
	stored map[batch.Offset]string
	asked  []*question
}

type question struct {
	*pending
	id       int
	sequence batch.Sequence
	to       *clusterNode
	acks     int16
}

// turn troubles the cluster, and lets the producers go on.
func (c *chaos) turn() {
	n := c.nodes[c.rng.IntN(3)]
	switch k := c.rng.IntN(100); {
	case k < 4:
		c.isolate(n, true)
	case k < 6:
		o := c.nodes[c.rng.IntN(3)]
		c.cut[[2]int{n.n, o.n}] = true
	case k < 16:
		clear(c.cut)
	case k < 18:
		n.frozen = true
	case k < 28:
		for _, n := range c.nodes {
			n.frozen = false
		}
	case k < 30 && !n.stopped:
		n.kill(c.rng.IntN(2) == 0)
		for _, q := range c.asked {
			if q.to == n && !q.ended() {
				q.dead = true
			}
		}
	case k < 45:
		for _, n := range c.nodes {
			if n.stopped {
				n.start()
			}
		}
	case k < 49 && !n.stopped:
		n.p.Transfer(replicaOf(c.rng.IntN(3) + 1))
	case k < 52 && !n.stopped:
		n.p.loop.box.post(func(time.Time) { n.p.core.rollWanted = true })
	case k < 54 && !n.stopped:
		start := n.p.Status().HighWatermark - 5
		n.p.loop.box.post(func(time.Time) { n.p.core.moveStart(start) })
		n.p.Housekeep(Retain)
	case k < 56 && !n.stopped:
		n.p.Lost(uint32(c.rng.IntN(3) + 1))
	}
	c.produce()
	for range c.rng.IntN(4) {
		c.deliver()
		for _, n := range c.nodes {
			if !n.stopped && c.rng.IntN(2) == 0 {
				n.step()
			}
			if !n.stopped && !n.frozen && c.rng.IntN(2) == 0 {
				n.flushers.Step()
			}
		}
	}
	c.pass(time.Duration(c.rng.IntN(20)) * 10 * time.Millisecond)
	c.judge()
}

// produce has each producer that waits for nothing send its next batch, and those that wait send it again, now and then.
func (c *chaos) produce() {
	for id := range c.next {
		to := c.nodes[c.rng.IntN(3)]
		if to.stopped || c.rng.IntN(2) == 0 {
			continue
		}
		acks := int16(-1)
		if c.rng.IntN(4) == 0 {
			acks = 1
		}
		p := to.submit(c.batch(id, c.next[id]), acks)
		c.asked = append(c.asked, &question{pending: p, id: id, sequence: c.next[id], to: to, acks: acks})
	}
}

func (c *chaos) batch(id int, first batch.Sequence) []byte {
	return batchOf(batch.ProducerID(id+1), 0, first, 1, []byte(fmt.Sprintf("%d of %d %0*d", first, id, 50*(id+1), 0)))
}

// judge looks at the answers that have come. A batch is sent again with the same sequence until acks=all is answered with
// success; with acks=1 that may be lost, so nobody counts on it.
func (c *chaos) judge() {
	waiting := c.asked[:0]
	for _, q := range c.asked {
		if !q.ended() {
			if !q.dead {
				waiting = append(waiting, q)
			}
			continue
		}
		c.judgeAnswer(q)
	}
	c.asked = waiting
}

func (c *chaos) judgeAnswer(q *question) {
	key := fmt.Sprint(q.id, " ", q.sequence)
	switch err := q.ack.Err; {
	case err == nil && q.acks == 1:
	case err == nil:
		if had, known := c.stored[q.ack.Base]; known && had != key {
			c.t.Fatalf("offset %d was that of %q, and is now that of %q", q.ack.Base, had, key)
		}
		c.stored[q.ack.Base] = key
		if q.sequence == c.next[q.id] {
			c.next[q.id]++
		}
	case errors.Is(err, ErrRefused):
		// True of an old one that was sent again and has left the window.
		if q.ack.Decision.Reason == dedupe.Gap || q.sequence >= c.next[q.id] {
			c.t.Fatalf("%q is refused with %+v, next is %d", key, q.ack.Decision, c.next[q.id])
		}
	case !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrCutOff) && !errors.Is(err, ErrNotEnoughReplicas):
		c.t.Fatalf("%q is answered %v", key, err)
	}
}

// Whatever befalls three replicas: what was answered is stored, once, at its offset, and no producer is ever told that
// something is missing that is not.
func TestClusterUnderTrouble(t *testing.T) {
	setSegmentBytes(t, 4<<10)
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			c := &chaos{stored: map[batch.Offset]string{}, next: make([]batch.Sequence, 4)}
			c.cluster = newCluster(t, seed, func(c *cluster) {
				c.minInSync = 1 + int(seed%3)
				c.loss = int(seed%4) * 5
				c.late = time.Duration(seed%3) * 60 * time.Millisecond
				c.lagMax = 3 * time.Second
			})
			for range 150 {
				c.turn()
			}
			c.settle()
			c.check()
			if testing.Verbose() {
				t.Log(len(c.stored), c.leader().p.Status().Term, c.next)
			}
		})
	}
}

// check reads the log of a replica: what was answered with success stands where the answers said, and nothing twice.
func (c *chaos) check() {
	seen := map[string]batch.Offset{}
	log := c.nodes[0].log.Segments()
	for i := log.FirstIndex(); i <= log.LastIndex(); i++ {
		e, err := log.Entry(i)
		must(c.t, err)
		h, ok := batch.ParseHeader(e.Data)
		if e.Kind != 0 && !ok || len(e.Data) < batch.HeaderSize || h.ProducerID < 1 || h.ProducerID > 4 {
			continue
		}
		key := fmt.Sprint(int(h.ProducerID)-1, " ", h.BaseSequence)
		if at, twice := seen[key]; twice {
			c.t.Fatalf("%q is stored at %d and at %d", key, at, h.BaseOffset)
		}
		seen[key] = h.BaseOffset
	}
	for offset, key := range c.stored {
		if at, found := seen[key]; found && at != offset {
			c.t.Fatalf("%q is stored at %d, answered was %d", key, at, offset)
		} else if !found && offset >= log.FirstOffset() {
			c.t.Fatalf("%q, answered with offset %d, is not stored", key, offset)
		}
	}
}
