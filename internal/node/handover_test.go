package node

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
)

// leading counts the partitions of a topic that a node leads, by its own word.
func leading(n *Node, topic *meta.Topic) int {
	count := 0
	for i := range topic.Partitions {
		if p, ok := n.Partition(topic.ID, int32(i)); ok && p.Leadership().Leader == n.replicaID() {
			count++
		}
	}
	return count
}

// A node that is to stop hands over what it leads, raft0 too, and nobody waits for an election.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := form(t, 3)
		topic := c.create(1, newTopic("many", 9, 3))
		for i := range topic.Partitions {
			c.leader(topic, int32(i))
		}
		for i, n := range c.nodes {
			n.Drain(t.Context())
			if led := leading(n, topic); led > 0 {
				t.Errorf("node %d leads %d partitions when it has drained", i+1, led)
			}
			if n.metadata.Leadership().Leader == n.replicaID() {
				t.Errorf("node %d leads raft0 when it has drained", i+1)
			}
			start := time.Now()
			c.stop(i)
			for p := range topic.Partitions {
				c.leader(topic, int32(p))
			}
			if took := time.Since(start); took > 300*time.Millisecond {
				t.Errorf("leaders after %v", took)
			}
			if err := c.start(i); err != nil {
				t.Fatal(err)
			}
			becomes(t, "all in sync again", func() bool {
				for p := range topic.Partitions {
					if len(c.nodes[i].Leadership(topic, int32(p)).InSync) != 3 {
						return false
					}
				}
				return true
			})
		}
		c.stopAll()
	})
}

// Nodes that all stop at the same time do not hand leaderships to each other for long.
func TestAllDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := form(t, 3)
		topic := c.create(0, newTopic("payments", 9, 3))
		for i := range topic.Partitions {
			c.leader(topic, int32(i))
		}
		start := time.Now()
		var all sync.WaitGroup
		for _, n := range c.nodes {
			all.Go(func() { n.Drain(t.Context()) })
		}
		all.Wait()
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("drained after %v", took)
		}
		c.stopAll()
	})
}

// A node that drains alone waits for nobody.
func TestDrainWithoutSuccessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := form(t, 3)
		topic := c.create(0, newTopic("payments", 3, 3))
		for i := range topic.Partitions {
			c.leader(topic, int32(i))
		}
		c.kill(1)
		c.kill(2)
		start := time.Now()
		c.nodes[0].Drain(t.Context())
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("drained after %v", took)
		}
		c.stop(0)
	})
}

// The preferred replica leads again when it is asked for on any node, and some seconds after its node is back.
func TestPreferredLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := form(t, 3)
		topic := c.create(0, newTopic("payments", 1, 3))
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		preferred := int(topic.Partitions[0].Replicas[0]) - 1
		if leader := c.leader(topic, 0); leader != preferred {
			if err := c.nodes[leader].ElectLeader(ctx, topic, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.nodes[preferred].ElectLeader(ctx, topic, 0); !errors.Is(err, ErrElectionNotNeeded) {
			t.Errorf("an election that is not needed: %v", err)
		}
		for _, asked := range []int{0, 1, 2, -1} {
			c.kill(preferred)
			next := c.leader(topic, 0)
			if next == preferred {
				t.Fatal("a killed node leads")
			}
			if err := c.nodes[next].ElectLeader(ctx, topic, 0); !errors.Is(err, ErrPreferredNotAvailable) && err != nil {
				t.Errorf("the preferred node is away: %v", err)
			}
			if err := c.start(preferred); err != nil {
				t.Fatal(err)
			}
			if asked >= 0 {
				becomes(t, "the preferred one is in sync", func() bool {
					l := c.nodes[asked].Leadership(topic, 0)
					return l.Ready && len(l.InSync) == 3
				})
				if err := c.nodes[asked].ElectLeader(ctx, topic, 0); err != nil && !errors.Is(err, ErrElectionNotNeeded) {
					t.Errorf("elect on node %d: %v", asked+1, err)
				}
			}
			if took := becomes(t, "the preferred one leads", func() bool {
				return c.nodes[0].Leadership(topic, 0).Leader == int32(preferred)+1
			}); asked < 0 && took > settleTime+2*time.Second {
				t.Errorf("balanced after %v", took)
			}
		}
		c.stopAll()
	})
}

// A damaged replica is quarantined, and its partition serves.
func TestDamagedReplicaOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := form(t, 3)
		topic := c.create(0, newTopic("payments", 1, 3))
		id := producerID(t, c.nodes[0])
		leader := c.leader(topic, 0)
		for i := range int32(5) {
			if a := produceAt(t, c.nodes[leader], topic, 0, id, i); a.Err != nil {
				t.Fatal(a.Err)
			}
		}
		c.stop(leader)
		log := filesOf(t, c.fs[leader], 1, ".log")[0]
		change(t, c.fs[leader], log, func(b []byte) []byte {
			b[lastBatch(b)+batch.HeaderSize] ^= 1
			return b
		})
		if err := c.start(leader); err != nil {
			t.Fatal(err)
		}
		next := c.leader(topic, 0)
		if next == leader {
			t.Fatal("the damaged replica leads")
		}
		for i := range int32(10) {
			if a := produceAt(t, c.nodes[next], topic, 0, id, i); a.Err != nil || int32(a.Base) != i {
				t.Errorf("batch %d: %+v", i, a)
			}
		}
		if a := produceAt(t, c.nodes[leader], topic, 0, id, 10); !errors.Is(a.Err, replica.ErrOffline) {
			t.Errorf("the damaged replica answers %+v", a)
		}
		c.stopAll()
	})
}
