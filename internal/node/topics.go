package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/peer"
	"github.com/oncemq/oncemq/internal/replica"
)

// replicationDefault is the replication factor of a cluster that has as many nodes, unless Config.Replication says another.
const replicationDefault = 3

// NewTopic is a topic that is wanted.
type NewTopic struct {
	Name string
	// Partitions is their number, and Replication how many replicas each has; -1: the default. Both are passed over when
	// there is an Assignment.
	Partitions  int32
	Replication int16
	// Assignment has the nodes of each partition's replicas, the preferred leader first; nil: the node chooses.
	Assignment [][]int32
	// MinInSync is min.insync.replicas of the topic; 0: that of the broker, as it is when a partition is opened.
	MinInSync int32
}

// CreateTopic creates a topic and returns when each of its partitions has a ready leader. With validateOnly it only says
// whether it would, and what it returns has the replicas that the topic would have, and no groups. Errors are meta's refusals;
// replica.ErrDiskFull; replica.ErrOffline, when the topic exists and a partition that has its only replica here cannot be made at
// the moment; or ctx's: then the topic may exist nevertheless.
func (n *Node) CreateTopic(ctx context.Context, t NewTopic, validateOnly bool) (*meta.Topic, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := n.refresh(ctx); err != nil { // a topic that another node has deleted is not in the way
		return nil, err
	}
	if err := n.checkTopic(t); err != nil {
		return nil, err
	}
	if err := n.awaitFounders(ctx, t); err != nil {
		return nil, err
	}
	command, err := n.planTopic(t)
	switch {
	case err != nil:
		return nil, err
	case validateOnly:
		return planned(command), nil
	}
	if err := n.orderTopic(ctx, command); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(command.Partitions, func(replicas []int32) bool { return len(replicas) == 2 }) {
		n.env.Logger.Warn("a partition with two replicas is away when either of their nodes is, and one with three only when two are", "topic", t.Name)
	}
	topic, ok := n.Topics().ByID(command.ID)
	if !ok { // and deleted since
		return planned(command), nil
	}
	if made, ok := n.placer.find(topic.ID); ok {
		if err := made.usable(ctx); err != nil {
			return topic, err
		}
	}
	err = n.awaitLeaders(ctx, topic)
	if errors.Is(err, meta.ErrUnknownTopic) { // the same
		err = nil
	}
	return topic, err
}

// planned is a topic that does not exist: it has no groups.
func planned(c *meta.CreateTopic) *meta.Topic {
	t := &meta.Topic{Name: c.Name, ID: c.ID, Partitions: make([]meta.Partition, len(c.Partitions)), MinInSync: c.MinInSync}
	for i, replicas := range c.Partitions {
		t.Partitions[i].Replicas = replicas
	}
	return t
}

// checkTopic says what is wrong with a topic that is wanted, wherever its replicas would go.
func (n *Node) checkTopic(t NewTopic) error {
	return cmp.Or(meta.CheckReserved(t.Name), n.Topics().CheckNewTopic(t.Name), meta.CheckMinInSync(t.MinInSync))
}

// planTopic checks a topic that is wanted, and returns the command that creates it.
func (n *Node) planTopic(t NewTopic) (*meta.CreateTopic, error) {
	if err := n.checkTopic(t); err != nil {
		return nil, err
	}
	partitions, err := n.assign(n.Topics(), t)
	if err != nil {
		return nil, err
	}
	command := &meta.CreateTopic{
		Name: t.Name, Partitions: partitions, Rules: dedupe.RulesVersion, MinInSync: t.MinInSync,
		DeletedSince: n.deletedSince(),
	}
	if here := n.countHere(partitions); !n.room.has(here) {
		return nil, n.noRoom(here)
	}
	if n.space.diskFull() {
		return nil, fmt.Errorf("%w: no topic is created", replica.ErrDiskFull)
	}
	if _, err := io.ReadFull(n.env.Random, command.ID[:]); err != nil {
		return nil, fmt.Errorf("draw a topic id: %w", err)
	}
	return command, nil
}

// deletedSince is the time, in milliseconds, since when a deletion is so late that producers may have lived through it. One
// that lies ahead of the clock was done before the clock was set back, nobody knows how long ago: it counts as late.
func (n *Node) deletedSince() int64 {
	return max(n.env.Clock.Now().Add(-n.cfg.Settings.ProducerExpiration).UnixMilli()+1, 1)
}

// assign says where the replicas of a new topic go.
func (n *Node) assign(view *meta.View, t NewTopic) ([][]int32, error) {
	if t.Assignment != nil {
		return t.Assignment, meta.CheckAssignment(t.Assignment, view.Brokers())
	}
	if t.Partitions < 1 || t.Partitions > meta.PartitionsPerTopicMax {
		return nil, fmt.Errorf("%w: %d, allowed are 1 to %d", meta.ErrInvalidPartitions, t.Partitions, meta.PartitionsPerTopicMax)
	}
	replication, nodes := n.replication(t), len(view.Brokers())
	if replication < 1 || int(replication) > nodes {
		return nil, fmt.Errorf("%w: replication factor %d, but the cluster has %s", meta.ErrInvalidReplication, replication, countNodes(nodes))
	}
	brokers := slices.DeleteFunc(slices.Clone(view.Brokers()), func(b meta.Broker) bool { return !n.isThere(b.ID) })
	if len(brokers) < int(replication) {
		brokers = view.Brokers() // those that are away get their replicas when they are back
	}
	return meta.Assign(brokers, loads(view), t.Partitions, replication)
}

// replication is how many replicas each partition of a new topic is to have.
func (n *Node) replication(t NewTopic) int16 {
	if t.Replication == -1 {
		return cmp.Or(n.cfg.Replication, int16(min(replicationDefault, len(n.cluster.peers)+1)))
	}
	return t.Replication
}

// awaitFounders waits until all founders are known to clients, if a topic asks for one that is not: soon after the founding
// that is no reason to say for good that there is no such node.
func (n *Node) awaitFounders(ctx context.Context, t NewTopic) error {
	asks := func(brokers []meta.Broker) bool {
		if t.Assignment == nil {
			replication := int(n.replication(t))
			return replication > len(brokers) && replication <= len(n.cluster.founders)
		}
		return slices.ContainsFunc(slices.Concat(t.Assignment...), func(node int32) bool {
			return slices.Contains(n.cluster.founders, node) &&
				!slices.ContainsFunc(brokers, func(b meta.Broker) bool { return b.ID == node })
		})
	}
	for brokers := n.Topics().Brokers(); len(brokers) < len(n.cluster.founders) && asks(brokers); brokers = n.Topics().Brokers() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: the cluster's nodes have not all started yet: %d of %d", context.Cause(ctx), len(brokers), len(n.cluster.founders))
		case <-n.running.Done():
			return replica.ErrStopped
		case <-time.After(callPause):
		}
	}
	return nil
}

// isThere says whether a node is this one, or connected.
func (n *Node) isThere(node int32) bool {
	return node == n.NodeID() || n.cluster.several() && n.cluster.transport.Connected(peer.NodeID(node))
}

func countNodes(nodes int) string {
	if nodes == 1 {
		return "one node"
	}
	return fmt.Sprintf("%d nodes", nodes)
}

// loads counts what each node has to carry already.
func loads(view *meta.View) map[int32]meta.Load {
	loads := make(map[int32]meta.Load)
	for _, t := range view.All() {
		for _, p := range t.Partitions {
			for i, node := range p.Replicas {
				load := loads[node]
				load.Replicas++
				if i == 0 {
					load.Leaders++
				}
				loads[node] = load
			}
		}
	}
	return loads
}

// countHere counts the partitions that have a replica here.
func (n *Node) countHere(partitions [][]int32) int {
	here := 0
	for _, replicas := range partitions {
		if slices.Contains(replicas, n.NodeID()) {
			here++
		}
	}
	return here
}

// orderTopic has a topic created. The room that it takes here is given back when there will be no such topic, also when that
// turns out after the end of ctx: so at most as many proposals outlive their callers as there is room for partitions.
func (n *Node) orderTopic(ctx context.Context, command *meta.CreateTopic) error {
	here := n.countHere(command.Partitions)
	if !n.room.take(command.ID, here) {
		return n.noRoom(here)
	}
	result, err := n.propose(ctx, command)
	switch {
	case neverCreated(result, err), err != nil && n.cluster.several():
		n.room.giveBack(command.ID) // a topic of another node takes its room when it is there, and so does this one
	case err != nil && ctx.Err() != nil && here > 0:
		n.tasks.Go(func() {
			if neverCreated(n.propose(n.running, command)) {
				n.room.giveBack(command.ID)
			}
		})
	}
	return cmp.Or(err, result.Refused)
}

// neverCreated says whether there will be no such topic. After another error it may exist, and its room stays taken
// until the next start.
func neverCreated(result meta.Result, err error) bool {
	return result.Refused != nil || errors.Is(err, replica.ErrNotLeader) || errors.Is(err, replica.ErrOffline)
}

func (n *Node) noRoom(partitions int) error {
	return fmt.Errorf("%w: %d, but this node can open only %d more: allow the process more open files (ulimit -n) and start it again",
		meta.ErrInvalidPartitions, partitions, n.room.free())
}

// awaitLeaders waits until each partition of a topic has a ready leader, as far as this node knows.
func (n *Node) awaitLeaders(ctx context.Context, t *meta.Topic) error {
	for i := range t.Partitions {
		err := n.awaitLeadership(ctx, t, int32(i), func(l Leadership) bool { return l.Ready })
		if err != nil {
			return err
		}
	}
	return nil
}

// awaitLeadership waits until the leadership of a partition is as wanted.
func (n *Node) awaitLeadership(ctx context.Context, t *meta.Topic, partition int32, wanted func(Leadership) bool) error {
	for {
		changed := n.leaders.next()
		if wanted(n.Leadership(t, partition)) {
			return nil
		}
		if _, there := n.placer.find(t.ID); !there {
			return fmt.Errorf("%w: %q is deleted", meta.ErrUnknownTopic, t.Name)
		}
		select {
		case <-changed:
		case <-n.running.Done():
			return replica.ErrStopped
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// DeleteTopic deletes a topic, as a View had it, and returns when its partitions here take and serve nothing any more; those
// of other nodes follow, and files go later. Errors are meta.ErrUnknownTopic, when it is gone already; those of
// replica.Metadata.Propose; or ctx's: then the topic may be deleted nevertheless, or soon.
func (n *Node) DeleteTopic(ctx context.Context, topic *meta.Topic) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	result, err := n.propose(ctx, &meta.DeleteTopic{Name: topic.Name, ID: topic.ID, Time: n.env.Clock.Now().UnixMilli()})
	if err = cmp.Or(err, result.Refused); err != nil {
		return err
	}
	select {
	case <-n.placer.closing(topic.ID):
		return nil
	case <-n.running.Done():
		return replica.ErrStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// deleted takes note that a topic is deleted. It is called from raft0's loop.
func (n *Node) deleted(t *meta.Topic) {
	n.placer.remove(t)
	n.leaders.changedElsewhere()
}

// retireLeaders keeps the table of leaders free of groups that are deleted for ever.
func (n *Node) retireLeaders() { n.leaders.forget(n.Topics().GroupDeleted) }
