package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
)

// any returns a node that runs.
func (c *crew) any(rng *rand.Rand) *Node {
	for {
		c.mu.Lock()
		n := c.nodes[rng.IntN(len(c.nodes))]
		c.mu.Unlock()
		if n != nil {
			return n
		}
	}
}

// disturb takes one node after the other away, and gives it back: it is killed, or its machine is, it is cut off, or stopped as
// an operator does.
func (c *crew) disturb(rng *rand.Rand, rounds int) {
	pause := func(most time.Duration) { <-time.After(time.Duration(rng.Int64N(int64(most)))) }
	back := func(i int) {
		if err := c.start(i); err != nil {
			c.t.Errorf("node %d does not come back: %v", i+1, err)
		}
	}
	for range rounds {
		pause(4 * time.Second)
		switch i := rng.IntN(len(c.nodes)); rng.IntN(4) {
		case 0:
			c.kill(i)
			pause(4 * time.Second)
			back(i)
		case 1:
			c.wires.cut(c.founders[i])
			pause(6 * time.Second)
			c.wires.join(c.founders[i])
		case 2:
			c.powerOff(i, rng)
			pause(4 * time.Second)
			back(i)
		default:
			c.nodes[i].Drain(c.t.Context())
			c.stop(i)
			pause(2 * time.Second)
			back(i)
		}
	}
}

// sender is a producer that sends one batch after the other until each is answered, to whomever leads.
type sender struct {
	crew    *crew
	topic   *meta.Topic
	id      batch.ProducerID
	offsets []batch.Offset // of the batches that were answered
}

func (s *sender) run(rng *rand.Rand, stop <-chan struct{}) {
	for {
		base, ok := s.send(rng, int32(len(s.offsets)), stop)
		if !ok {
			return
		}
		s.offsets = append(s.offsets, base)
		<-time.After(time.Duration(rng.IntN(200)) * time.Millisecond)
	}
}

// send sends a batch until it is stored.
func (s *sender) send(rng *rand.Rand, sequence int32, stop <-chan struct{}) (batch.Offset, bool) {
	t := s.crew.t
	for {
		select {
		case <-stop:
			return 0, false
		case <-time.After(10 * time.Millisecond):
		}
		n := s.crew.any(rng)
		if leader := n.Leadership(s.topic, 0).Leader; leader > 0 && leader != n.NodeID() {
			s.crew.mu.Lock()
			n = s.crew.nodes[leader-1]
			s.crew.mu.Unlock()
		}
		if n == nil {
			continue
		}
		p, ok := n.Partition(s.topic.ID, 0)
		if !ok {
			continue
		}
		d := make(done, 1)
		b := submission(t, s.id, batch.Sequence(sequence), d)
		b.Acks = -1
		if p.Submit(b) != nil {
			continue
		}
		select {
		case a := <-d:
			switch {
			case a.Err == nil:
				return a.Base, true
			case errors.Is(a.Err, replica.ErrRefused):
				t.Errorf("producer %x, sequence %d: refused: %+v", s.id, sequence, a)
				return 0, false
			}
		case <-time.After(5 * time.Second):
		}
	}
}

// check demands that each batch is stored once, where it was answered to be, and in order.
func (s *sender) check(n *Node) {
	all, _ := readAll(s.crew.t, n, s.topic)
	var next batch.Sequence
	for left := all; len(left) > 0; left = left[12+binary.BigEndian.Uint32(left[8:]):] {
		h, ok := batch.ParseHeader(left)
		if !ok || h.ProducerID != s.id {
			continue
		}
		if h.BaseSequence != next || int(next) < len(s.offsets) && s.offsets[next] != h.BaseOffset {
			s.crew.t.Errorf("producer %x: sequence %d stands at %d, where %d is expected", s.id, h.BaseSequence, h.BaseOffset, next)
		}
		next = h.BaseSequence + 1
	}
	if int(next) < len(s.offsets) {
		s.crew.t.Errorf("producer %x: %d batches are answered, %d stored", s.id, len(s.offsets), next)
	}
}

// administer creates and deletes topics on any node until it is stopped.
func (c *crew) administer(rng *rand.Rand, stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(rng.IntN(500)) * time.Millisecond):
		}
		ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
		n := c.any(rng)
		if topics := n.Topics().All(); len(topics) > 6 {
			t := topics[rng.IntN(len(topics))]
			if t.Name[0] == 'x' {
				err := n.DeleteTopic(ctx, t)
				allowed(c.t, "delete", err, meta.ErrUnknownTopic)
			}
		} else {
			_, err := n.CreateTopic(ctx, newTopic(fmt.Sprintf("x%d", rng.IntN(10)), 1+rng.Int32N(3), int16(1+rng.IntN(3))), false)
			allowed(c.t, "create", err, meta.ErrTopicExists)
		}
		cancel()
	}
}

// allowed demands that a change ends well, with the refusal that others may have caused, or without an answer in time.
func allowed(t *testing.T, what string, err, refusal error) {
	t.Helper()
	if err != nil && !errors.Is(err, refusal) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, replica.ErrStopped) {
		t.Errorf("%s: %v", what, err)
	}
}

// agree waits until all nodes have the same topics, with a leader for each partition, and groups of no other.
func (c *crew) agree() {
	c.t.Helper()
	becomes(c.t, "the nodes agree", func() bool {
		for i, n := range c.nodes {
			if !sameTopics(c.nodes[0].Topics(), n.Topics()) {
				return false
			}
			here := 0
			for _, t := range n.Topics().All() {
				for p := range t.Partitions {
					if !n.Leadership(t, int32(p)).Ready {
						return false
					}
					if slices.Contains(t.Partitions[p].Replicas, n.NodeID()) {
						here++
					}
				}
			}
			if len(groupDirs(c.t, c.fs[i])) != here {
				return false
			}
		}
		return true
	})
}

func sameTopics(a, b *meta.View) bool {
	return slices.EqualFunc(a.All(), b.All(), func(one, other *meta.Topic) bool { return one.ID == other.ID })
}

// Whatever becomes of one node at a time, and of the machines of all in the end, what was answered is stored once, in order,
// where it was answered to be; and all nodes have the same topics.
func TestOneNodeAtATimeFails(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testFaults(t, seed) })
		})
	}
}

func testFaults(t *testing.T, seed uint64) {
	c := form(t, 3)
	var all sync.WaitGroup
	stop := make(chan struct{})
	var senders []*sender
	for i := range uint64(3) {
		topic := c.create(int(i), newTopic(fmt.Sprintf("payments%d", i), 1, 3))
		for j := range uint64(2) {
			s := &sender{crew: c, topic: topic, id: producerID(t, c.nodes[j])}
			senders = append(senders, s)
			all.Go(func() { s.run(rand.New(rand.NewPCG(seed, 10*i+j)), stop) })
		}
	}
	all.Go(func() { c.administer(rand.New(rand.NewPCG(seed, 100)), stop) })
	c.disturb(rand.New(rand.NewPCG(seed, 200)), 12)
	close(stop)
	all.Wait()
	c.agree()
	for i := range c.nodes {
		c.powerOff(i, rand.New(rand.NewPCG(seed, uint64(300+i))))
	}
	c.startAll()
	c.agree()
	for _, s := range senders {
		if len(s.offsets) < 20 {
			t.Errorf("producer %x: only %d batches are stored", s.id, len(s.offsets))
		}
		s.check(c.nodes[c.leader(s.topic, 0)])
	}
	c.stopAll()
}
