package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/replica"
)

// raft0 is the group that holds the cluster's metadata.
const raft0 = 0

// startPatience is how long a start waits for a majority before it says so.
const startPatience = 10 * time.Second

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
	n.metadata, err = replica.OpenMetadata(cfg.Identity.Replica, n.replicaConfig(log, raft0, n.governors(), logger), n.placer.add, n.deleted)
	if err != nil {
		return errors.Join(err, log.Close())
	}
	if n.cluster.several() {
		n.members.join(raft0, n.metadata)
		n.governs.Store(true)
	}
	return n.metadata.Opened(ctx)
}

// startRun gets this run's start number, and founds the cluster first, if it is new. Of several nodes that do so at the same
// time one does, and all may go on. In a cluster of several it waits for a majority.
func (n *Node) startRun(ctx context.Context) error {
	waiting := time.AfterFunc(startPatience, func() {
		n.env.Logger.Warn("waiting for a majority of the cluster's nodes")
	})
	defer waiting.Stop()
	for {
		err := n.takeStartNumber(ctx)
		if !errors.Is(err, meta.ErrNoCluster) {
			return err
		}
		first, err := n.drawFirstStartNumber()
		if err != nil {
			return err
		}
		result, err := n.propose(ctx, &meta.Cluster{ID: n.state.Node().Cluster, FirstStartNumber: first})
		if err == nil && !errors.Is(result.Refused, meta.ErrClusterExists) {
			err = result.Refused
		}
		if err != nil {
			return fmt.Errorf("found the cluster: %w", err)
		}
	}
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
	start := meta.Start{Node: n.NodeID(), Host: n.cfg.Host, Port: n.cfg.Port, Rack: n.cfg.Rack}
	if _, err := io.ReadFull(n.env.Random, start.Nonce[:]); err != nil {
		return fmt.Errorf("draw a nonce: %w", err)
	}
	result, err := n.propose(ctx, &start)
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
