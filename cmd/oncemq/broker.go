package main

import (
	"context"
	"errors"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/node"
	"github.com/oncemq/oncemq/internal/server"
)

// broker lets the server see the node through its own interface.
type broker struct{ *node.Node }

func (b broker) Partition(topic [16]byte, index int32) (server.Partition, bool) {
	p, ok := b.Node.Partition(topic, index)
	if !ok {
		return nil, false
	}
	return p, true
}

func (b broker) Leadership(topic *meta.Topic, partition int32) server.Leadership {
	return server.Leadership(b.Node.Leadership(topic, partition))
}

func (b broker) CreateTopic(ctx context.Context, topic server.NewTopic, validateOnly bool) (*meta.Topic, error) {
	return b.Node.CreateTopic(ctx, node.NewTopic(topic), validateOnly)
}

func (b broker) ElectLeader(ctx context.Context, topic *meta.Topic, partition int32) error {
	err := b.Node.ElectLeader(ctx, topic, partition)
	switch {
	case errors.Is(err, node.ErrNoLeader):
		return server.ErrNoLeader
	case errors.Is(err, node.ErrElectionNotNeeded):
		return server.ErrElectionNotNeeded
	case errors.Is(err, node.ErrPreferredNotAvailable):
		return server.ErrPreferredNotAvailable
	}
	return err
}
