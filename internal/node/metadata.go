package node

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/replica"
)

// raft0 is the group that holds the cluster's metadata.
const raft0 = 0

// ErrNotReady: the node has no start number at the moment, so it cannot give out a producer id; it is on its way.
var ErrNotReady = errors.New("no producer ids available yet")

func (n *Node) openMetadata(ctx context.Context) error {
	cfg := n.metadataConfig()
	logger := n.env.Logger.With("group", "raft0")
	var log *raftlog.Log
	err := n.withRoom(func() (err error) {
		log, err = n.openGroup(cfg, logger)
		return err
	})
	if err != nil {
		return err
	}
	n.metadata, err = replica.OpenMetadata(cfg.Identity.Replica, n.replicaConfig(log, logger), n.placer.add, n.placer.remove)
	if err != nil {
		return errors.Join(err, log.Close())
	}
	return n.metadata.Opened(ctx)
}

// startRun founds the cluster, if it is new, and gets this run's start number.
func (n *Node) startRun(ctx context.Context) error {
	if _, founded := n.metadata.View().Cluster(); !founded {
		first, err := n.drawFirstStartNumber()
		if err != nil {
			return err
		}
		result, err := n.metadata.Propose(ctx, &meta.Cluster{ID: n.state.Node().Cluster, FirstStartNumber: first})
		if err = errors.Join(err, result.Refused); err != nil {
			return fmt.Errorf("found the cluster: %w", err)
		}
	}
	return n.takeStartNumber(ctx)
}

// drawFirstStartNumber draws from 1 to FirstStartNumberMax, evenly: a cluster that is made again in the same place must
// not give out the ids of the one before.
func (n *Node) drawFirstStartNumber() (uint32, error) {
	for {
		var b [4]byte
		if _, err := io.ReadFull(n.env.Random, b[:]); err != nil {
			return 0, fmt.Errorf("draw the first start number: %w", err)
		}
		if number := binary.BigEndian.Uint32(b[:]) & meta.FirstStartNumberMax; number > 0 {
			return number, nil
		}
	}
}

func (n *Node) takeStartNumber(ctx context.Context) error {
	start := meta.Start{Node: n.NodeID(), Host: n.cfg.Host, Port: n.cfg.Port}
	if _, err := io.ReadFull(n.env.Random, start.Nonce[:]); err != nil {
		return fmt.Errorf("draw a nonce: %w", err)
	}
	result, err := n.metadata.Propose(ctx, &start)
	if err = errors.Join(err, result.Refused); err != nil {
		return fmt.Errorf("get a start number: %w", err)
	}
	n.ids.Use(result.StartNumber)
	return nil
}

// NextProducerID returns an id that was never given out before and never will be again, from memory. ErrNotReady means
// that four thousand million ids are used up and a new start number is on its way.
func (n *Node) NextProducerID() (batch.ProducerID, error) {
	if id, ok := n.ids.Next(); ok {
		return id, nil
	}
	if n.renewing.CompareAndSwap(false, true) {
		n.tasks.Go(func() {
			defer n.renewing.Store(false)
			if err := n.takeStartNumber(n.running); err != nil {
				n.env.Logger.Error("no producer ids left", "error", err)
			}
		})
	}
	return -1, ErrNotReady
}

// Brokers returns the nodes of the cluster.
func (n *Node) Brokers() []meta.Broker { return n.metadata.View().Brokers() }

// Topics returns the topics of the cluster as they are now.
func (n *Node) Topics() *meta.View { return n.metadata.View() }

// CreateTopic creates a topic and returns when each of its partitions has a ready leader. With validateOnly it only
// says whether it would. replication -1 stands for the default. Errors are meta's refusals; replica.ErrDiskFull;
// replica.ErrOffline, when the topic exists and a partition cannot be made at the moment; or ctx's: then the topic may
// exist nevertheless.
func (n *Node) CreateTopic(ctx context.Context, name string, partitions int32, replication int16, validateOnly bool) (*meta.Topic, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	command, proposal, err := n.beginTopic(name, partitions, replication, validateOnly)
	switch {
	case err != nil:
		return nil, err
	case validateOnly:
		return &meta.Topic{Name: name, ID: command.ID, Partitions: make([]meta.Partition, partitions)}, nil
	}
	topic, err := n.awaitTopic(ctx, proposal, partitions)
	if err != nil {
		return nil, err
	}
	made, ok := n.placer.find(topic.ID)
	if !ok {
		return topic, nil // and deleted since
	}
	return topic, made.usable(ctx)
}

// beginTopic checks a topic, takes room for it, and hands its creation over to raft0: with validateOnly it only checks.
func (n *Node) beginTopic(name string, partitions int32, replication int16, validateOnly bool) (*meta.CreateTopic, *replica.Proposal, error) {
	n.naming.RLock()
	defer n.naming.RUnlock()
	view := n.Topics()
	if err := cmp.Or(meta.CheckReserved(name), view.CheckNewTopic(name)); err != nil {
		return nil, nil, err
	}
	if partitions < 1 || partitions > meta.PartitionsPerTopicMax {
		return nil, nil, fmt.Errorf("%w: %d, allowed are 1 to %d", meta.ErrInvalidPartitions, partitions, meta.PartitionsPerTopicMax)
	}
	if replication != 1 && replication != -1 {
		return nil, nil, fmt.Errorf("%w: replication factor %d, but the cluster has one node", meta.ErrInvalidReplication, replication)
	}
	if !n.room.has(partitions) {
		return nil, nil, n.noRoom(partitions)
	}
	if n.space.diskFull() {
		return nil, nil, fmt.Errorf("%w: no topic is created", replica.ErrDiskFull)
	}
	command := &meta.CreateTopic{
		Name:          name,
		Partitions:    slices.Repeat([][]int32{{n.NodeID()}}, int(partitions)),
		Rules:         dedupe.RulesVersion,
		AfterDeletion: n.deletedLately(view, name),
	}
	if _, err := io.ReadFull(n.env.Random, command.ID[:]); err != nil {
		return nil, nil, fmt.Errorf("draw a topic id: %w", err)
	}
	if validateOnly {
		return command, nil, nil
	}
	if !n.room.take(partitions) {
		return nil, nil, n.noRoom(partitions)
	}
	proposal, err := n.metadata.Begin(command)
	return command, proposal, err
}

// awaitTopic waits for the creation of a topic for which room is taken. The room is given back when there will be no such
// topic, also when that turns out after the end of ctx: so at most as many proposals outlive their callers as there is room
// for partitions.
func (n *Node) awaitTopic(ctx context.Context, proposal *replica.Proposal, partitions int32) (*meta.Topic, error) {
	// After another error the topic may exist, and its room stays taken until the next start.
	never := func(result meta.Result, err error) bool {
		return result.Refused != nil || errors.Is(err, replica.ErrNotLeader) || errors.Is(err, replica.ErrOffline)
	}
	result, err := proposal.Wait(ctx)
	switch {
	case never(result, err):
		n.room.giveBack(partitions)
	case err != nil && ctx.Err() != nil:
		n.tasks.Go(func() {
			if never(proposal.Wait(n.running)) {
				n.room.giveBack(partitions)
			}
		})
	}
	return result.Topic, cmp.Or(err, result.Refused)
}

func (n *Node) noRoom(partitions int32) error {
	return fmt.Errorf("%w: %d, but this node can open only %d more: allow the process more open files (ulimit -n) and start it again",
		meta.ErrInvalidPartitions, partitions, max(n.room.left.Load(), 0))
}
