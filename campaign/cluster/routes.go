package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/campaign/internal/stage"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

const (
	// askEvery is how often each node is asked who leads.
	askEvery = 50 * time.Millisecond
	// askWithin bounds the wait for such an answer.
	askWithin = time.Second
	// codeLeaderNotAvailable says that a partition has no leader now.
	codeLeaderNotAvailable = 5
	nobody                 = -1
)

// said is what a node said of one partition.
type said struct {
	leader    int // node, or nobody
	epoch     int32
	preferred int // node, or nobody
	replicas  int
	inSync    int
}

// view is what a node said of all partitions at once.
type view struct {
	at         time.Time // before it was asked
	controller int       // node, or nobody
	partitions []said
}

// routes knows who leads each partition, as the nodes say it. Any goroutine may ask.
type routes struct {
	c *campaign

	mu      sync.Mutex
	views   []view // the last one of each node
	newest  []said // of each partition: what was said of the highest epoch
	problem string // why settled said no last
}

func newRoutes(c *campaign) *routes {
	r := &routes{c: c, views: make([]view, c.nodes.Nodes())}
	for range c.Partitions {
		r.newest = append(r.newest, said{leader: nobody, epoch: -1, preferred: nobody})
	}
	return r
}

// run asks all nodes again and again until ctx ends.
func (r *routes) run(ctx context.Context) {
	var asking sync.WaitGroup
	for node := range r.views {
		asking.Go(func() {
			for ctx.Err() == nil {
				r.follow(ctx, node)
				r.c.sleep(ctx, askEvery)
			}
		})
	}
	asking.Wait()
}

// follow asks one node until the connection breaks.
func (r *routes) follow(ctx context.Context, node int) {
	conn, hangUp, err := stage.DialTo(ctx, r.c.nodes.Addr(node), askWithin)
	if err != nil {
		return
	}
	defer hangUp()
	for ctx.Err() == nil {
		at := time.Now()
		answer, err := conn.Metadata(r.c.topicNames()...)
		if err != nil {
			return
		}
		r.note(node, at, answer)
		r.c.sleep(ctx, askEvery)
	}
}

// nodesOf returns the node of each broker id in an answer.
func (r *routes) nodesOf(answer *kmsg.MetadataResponse) func(int32) int {
	nodes := make(map[int32]int)
	for _, b := range answer.Brokers {
		addr := net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
		if node := slices.Index(r.c.nodes.Addrs(), addr); node >= 0 {
			nodes[b.NodeID] = node
		}
	}
	return func(id int32) int {
		if node, ok := nodes[id]; ok {
			return node
		}
		return nobody
	}
}

// note takes up what a node said. A topic that it does not know, and two leaders of one epoch, are violations.
func (r *routes) note(node int, at time.Time, answer *kmsg.MetadataResponse) {
	nodeOf := r.nodesOf(answer)
	v := view{at: at, controller: nodeOf(answer.ControllerID), partitions: make([]said, len(r.c.Partitions))}
	known := make(map[string]kmsg.MetadataResponseTopic)
	for _, t := range answer.Topics {
		if t.Topic != nil {
			known[*t.Topic] = t
		}
	}
	for i, p := range r.c.Partitions {
		v.partitions[i] = said{leader: nobody, epoch: -1, preferred: nobody}
		t := known[p.Topic.Name]
		if t.ErrorCode != 0 && t.ErrorCode != codeLeaderNotAvailable || t.ErrorCode == 0 && t.TopicID != p.Topic.ID {
			r.c.Violate("node %d, metadata of %v: error code %d, topic id %x, want %x", node+1, p, t.ErrorCode, t.TopicID, p.Topic.ID)
			continue
		}
		for _, told := range t.Partitions {
			if told.Partition == p.Index {
				v.partitions[i] = saidOf(told, nodeOf)
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.views[node] = v
	for i, s := range v.partitions {
		r.merge(i, s)
	}
}

func saidOf(told kmsg.MetadataResponseTopicPartition, nodeOf func(int32) int) said {
	s := said{leader: nodeOf(told.Leader), epoch: told.LeaderEpoch, preferred: nobody, replicas: len(told.Replicas), inSync: len(told.ISR)}
	if len(told.Replicas) > 0 {
		s.preferred = nodeOf(told.Replicas[0])
	}
	return s
}

// merge takes up what was said of a partition. r.mu is held.
func (r *routes) merge(partition int, s said) {
	old := &r.newest[partition]
	switch {
	case s.leader == nobody: // it does not know who is next
	case s.epoch == old.epoch && s.leader != old.leader:
		r.c.Violate("%v has two leaders in epoch %d: nodes %d and %d", r.c.Partitions[partition], s.epoch, old.leader+1, s.leader+1)
	case s.epoch >= old.epoch:
		*old = s
	}
}

// leader is the node that leads a partition as far as is known, or nobody.
func (r *routes) leader(partition int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.newest[partition].leader
}

// leaders are those of all partitions.
func (r *routes) leaders() []int {
	var all []int
	for i := range r.newest {
		all = append(all, r.leader(i))
	}
	return all
}

// controller is the node that was said to be it last.
func (r *routes) controller() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	newest := view{controller: nobody}
	for _, v := range r.views {
		if v.controller != nobody && v.at.After(newest.at) {
			newest = v
		}
	}
	return newest.controller
}

// notPreferred returns a partition that another replica leads than the preferred one, or nobody when there is none.
func (r *routes) notPreferred() (partition int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, s := range r.newest {
		if s.leader != nobody && s.preferred != nobody && s.leader != s.preferred {
			return i
		}
	}
	return nobody
}

// settled reports whether all nodes, asked after a time, said the same leader of each partition, and that all its replicas
// are in sync.
func (r *routes) settled(since time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problem = ""
	for node, v := range r.views {
		if v.at.Before(since) {
			r.problem = fmt.Sprintf("node %d does not answer", node+1)
			return false
		}
		for i, s := range v.partitions {
			first := r.views[0].partitions[i]
			if s.leader == nobody || s.leader != first.leader || s.epoch != first.epoch || s.inSync != s.replicas || s.replicas == 0 {
				r.problem = fmt.Sprintf("node %d says of %v: leader %d, epoch %d, %d of %d replicas in sync; node 1: leader %d, epoch %d",
					node+1, r.c.Partitions[i], s.leader+1, s.epoch, s.inSync, s.replicas, first.leader+1, first.epoch)
				return false
			}
		}
	}
	return true
}

// why says why settled said no last.
func (r *routes) why() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem
}

// dialLeader opens a connection to the leader of a partition.
func (c *campaign) dialLeader(ctx context.Context, partition int) (conn *rawkafka.Client, hangUp func(), err error) {
	node := c.routes.leader(partition)
	if node == nobody {
		return nil, nil, errAgain
	}
	return c.dial(ctx, node)
}
