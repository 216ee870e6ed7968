package node

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/peer"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/seglog"
)

// The ways in which an election of the preferred leader can end without one.
var (
	// ErrNoLeader: the partition has no leader that is known (Kafka code 5).
	ErrNoLeader = errors.New("the partition has no leader at the moment")
	// ErrElectionNotNeeded: the preferred leader leads (Kafka code 84).
	ErrElectionNotNeeded = errors.New("the preferred replica leads already")
	// ErrPreferredNotAvailable: the preferred leader is not in sync, or its node is away (Kafka code 80).
	ErrPreferredNotAvailable = errors.New("the preferred replica is not in sync")
)

const (
	// transferPatience is how long a hand-over may take before it is tried again, or given up: an election timeout, in
	// which Raft gives it up itself.
	transferPatience = time.Second
	// balanceWidth is how many leaderships are handed over at the same time to balance them, drainWidth to stop.
	balanceWidth, drainWidth = 16, 64
	// drainMax is how long a node that stops waits for its leaderships to be taken over.
	drainMax = 10 * time.Second
	// balanceInterval is how often leaderships are given back to the preferred leaders (leader.imbalance.check.interval.seconds).
	balanceInterval = 5 * time.Minute
	// settleTime is how long a node must have been back before that is done because of it.
	settleTime = 5 * time.Second
)

// ElectLeader has the first of a partition's replicas take over its leadership, and returns when it leads, as far as this node
// knows. Errors are ErrNoLeader, ErrElectionNotNeeded, ErrPreferredNotAvailable, or ctx's: then it may come to lead
// nevertheless.
func (n *Node) ElectLeader(ctx context.Context, t *meta.Topic, partition int32) error {
	if partition < 0 || int(partition) >= len(t.Partitions) {
		return fmt.Errorf("%w: %s/%d", meta.ErrUnknownTopic, t.Name, partition)
	}
	preferred := t.Partitions[partition].Replicas[0]
	if n.Leadership(t, partition).Leader == preferred {
		return ErrElectionNotNeeded
	}
	for {
		if err := n.askTransfer(ctx, t, partition, preferred); err != nil {
			return err
		}
		patient, cancel := context.WithTimeout(ctx, transferPatience)
		err := n.awaitLeadership(patient, t, partition, func(l Leadership) bool { return l.Leader == preferred })
		cancel()
		if err == nil || ctx.Err() != nil || n.running.Err() != nil {
			return err
		}
	}
}

// askTransfer asks the leader of a partition, here or on another node, to hand it over.
func (n *Node) askTransfer(ctx context.Context, t *meta.Topic, partition, to int32) error {
	known := n.Leadership(t, partition)
	switch {
	case known.Leader == -1:
		return fmt.Errorf("%w: %s/%d", ErrNoLeader, t.Name, partition)
	case known.Leader == to:
		return nil
	case !slices.Contains(known.InSync, to):
		return fmt.Errorf("%w: %s/%d, node %d", ErrPreferredNotAvailable, t.Name, partition, to)
	}
	group := seglog.GroupID(t.Partitions[partition].Group)
	if known.Leader == n.NodeID() {
		return n.transfer(group, to)
	}
	body := binary.BigEndian.AppendUint64(nil, uint64(group))
	body = binary.BigEndian.AppendUint32(body, uint32(to))
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	if _, err := n.cluster.transport.Call(ctx, peer.NodeID(known.Leader), callTransfer, body); err != nil {
		return fmt.Errorf("%w: %s/%d, and node %d does not hand it over: %w", ErrNoLeader, t.Name, partition, known.Leader, err)
	}
	return nil
}

// serveTransfer hands over the leadership that another node asks for: of the group u64 to the node u32.
func (n *Node) serveTransfer(body []byte) error {
	if len(body) != 12 {
		return fmt.Errorf("request of %d bytes", len(body))
	}
	return n.transfer(seglog.GroupID(binary.BigEndian.Uint64(body)), int32(binary.BigEndian.Uint32(body[8:])))
}

// transfer begins to hand over the leadership of a group that leads here.
func (n *Node) transfer(group seglog.GroupID, to int32) error {
	r, ok := n.members.of(group)
	if !ok {
		return ErrNoLeader
	}
	if !slices.Contains(n.successors(r.Leadership()), to) {
		return fmt.Errorf("%w: node %d", ErrPreferredNotAvailable, to)
	}
	r.Transfer(replicaOn(to))
	return nil
}

func replicaOn(node int32) seglog.ReplicaID { return seglog.ReplicaID(node)<<32 | diskLife }

// successors are the nodes to which a replica here could hand its leadership over; none, if it does not lead.
func (n *Node) successors(l replica.Leadership) []int32 {
	if l.Leader != n.replicaID() {
		return nil
	}
	var nodes []int32
	for _, id := range l.InSync {
		node := nodeOf(id)
		if id != n.replicaID() && n.cluster.transport.Connected(peer.NodeID(node)) && !n.leaders.isLeaving(node) {
			nodes = append(nodes, int32(node))
		}
	}
	return nodes
}

// handOver hands leaderships over, width at a time. Each is given transferPatience, and then the next ones have their turn.
func (n *Node) handOver(ctx context.Context, groups []led, width int) {
	var all sync.WaitGroup
	free := make(chan struct{}, width)
	for _, g := range groups {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			all.Wait()
			return
		}
		all.Go(func() {
			defer func() { <-free }()
			g.member.Transfer(replicaOn(g.to))
			patient, cancel := context.WithTimeout(ctx, transferPatience)
			defer cancel()
			n.awaitLoss(patient, g)
		})
	}
	all.Wait()
}

// led is a leadership that this node has, and the node that is to have it.
type led struct {
	group  seglog.GroupID
	member replica.Member
	to     int32
}

// awaitLoss waits until a replica here leads no more.
func (n *Node) awaitLoss(ctx context.Context, g led) {
	for {
		changed := n.leaders.next()
		if g.member.Leadership().Leader != n.replicaID() {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// balancer says when leaderships are to be looked at.
type balancer struct{ woken chan struct{} }

func (b *balancer) init() { b.woken = make(chan struct{}, 1) }

// nodeUp takes note that a node is back, which may be the preferred leader of what is led here.
func (b *balancer) nodeUp() {
	select {
	case b.woken <- struct{}{}:
	default:
	}
}

// balance gives leaderships back to the preferred leaders, now and then and after a node has come back, until the node is
// closed.
func (n *Node) balance() {
	ticker := time.NewTicker(cmp.Or(n.cfg.BalanceInterval, balanceInterval))
	defer ticker.Stop()
	settled := time.NewTimer(settleTime)
	defer settled.Stop()
	for {
		select {
		case <-n.running.Done():
			return
		case <-n.balancer.woken:
			settled.Reset(settleTime)
			continue
		case <-settled.C:
		case <-ticker.C:
		}
		if !n.draining.Load() {
			n.handOver(n.running, n.misplaced(), balanceWidth)
		}
	}
}

// misplaced are the leaderships of partitions that others are preferred for, and could take over.
func (n *Node) misplaced() []led {
	var list []led
	for _, t := range n.placer.all() {
		for _, i := range t.here {
			p := t.topic.Partitions[i]
			to := p.Replicas[0]
			if to == n.NodeID() {
				continue
			}
			group := seglog.GroupID(p.Group)
			r, ok := n.members.of(group)
			if ok && slices.Contains(n.successors(r.Leadership()), to) {
				list = append(list, led{group, r, to})
			}
		}
	}
	return list
}

// Drain hands all leaderships over that others can take, so that nobody waits for an election when the node stops. It returns
// when none is left, at the end of ctx, or after ten seconds, whichever comes first. It may be called again.
func (n *Node) Drain(ctx context.Context) {
	if !n.cluster.several() {
		return
	}
	n.draining.Store(true)
	for _, p := range n.cluster.peers {
		n.cluster.transport.Tell(p.ID, tellLeaving, nil) // one that misses it hands back what it is given, at worst
	}
	ctx, cancel := context.WithTimeout(ctx, drainMax)
	defer cancel()
	for round := 0; ctx.Err() == nil && n.running.Err() == nil; round++ {
		rest := n.departing(round)
		if len(rest) == 0 {
			return
		}
		n.handOver(ctx, rest, drainWidth)
	}
}

// departing are the leaderships that others could take over, each for the one that comes first in its assignment; in further
// rounds for the one behind it, since the first may be connected and do nothing.
func (n *Node) departing(round int) []led {
	var list []led
	add := func(g seglog.GroupID, r replica.Member, order []int32) {
		able := n.successors(r.Leadership())
		if len(able) == 0 {
			return
		}
		slices.SortFunc(able, func(a, b int32) int { return cmp.Compare(slices.Index(order, a), slices.Index(order, b)) })
		list = append(list, led{g, r, able[round%len(able)]})
	}
	for _, t := range n.placer.all() {
		for _, i := range t.here {
			p := t.topic.Partitions[i]
			if r, ok := n.members.of(seglog.GroupID(p.Group)); ok {
				add(seglog.GroupID(p.Group), r, p.Replicas)
			}
		}
	}
	add(raft0, n.metadata, n.governors())
	return list
}
