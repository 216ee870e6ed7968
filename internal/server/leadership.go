package server

import (
	"context"
	"time"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/wire"
)

// confirmMax bounds how long one request waits until this node knows that it leads. A leader that hears from no other
// replica steps down before that.
const confirmMax = 3 * time.Second

// partition finds a partition on this node. The topic is nil when it does not exist.
func (s *Server) partition(topic *meta.Topic, index int32) (Partition, code) {
	if topic == nil || index < 0 || int(index) >= len(topic.Partitions) {
		return nil, codeUnknownTopicOrPartition
	}
	p, ok := s.node.Partition(topic.ID, index)
	if !ok {
		return nil, codeNotLeaderOrFollower
	}
	return p, codeNone
}

// leader finds a partition that leads and is ready, in the leader epoch that the client knows (KIP-320); a negative
// epoch is any.
func (s *Server) leader(topic *meta.Topic, index, epoch int32) (Partition, replica.Status, code) {
	p, code := s.partition(topic, index)
	if code != codeNone {
		return nil, replica.Status{}, code
	}
	status := p.Status()
	switch {
	case status.Offline != nil:
		code = codeStorageError
	case !status.Ready:
		code = codeNotLeaderOrFollower
	case epoch >= 0 && int64(epoch) < int64(status.Term):
		code = codeFencedLeaderEpoch
	case epoch >= 0 && int64(epoch) > int64(status.Term):
		code = codeUnknownLeaderEpoch
	}
	return p, status, code
}

// confirm has a leader confirm that it leads, and then looks once more; see leader.
func (s *Server) confirm(ctx context.Context, p Partition, topic *meta.Topic, index, epoch int32) (replica.Status, code) {
	if err := p.Confirm(ctx); err != nil {
		return replica.Status{}, codeNotLeaderOrFollower
	}
	again, status, code := s.leader(topic, index, epoch)
	if code == codeNone && again != p {
		code = codeNotLeaderOrFollower // closed and opened anew meanwhile, and not confirmed
	}
	return status, code
}

// hints are the leaders that one answer names, and where they are (KIP-951).
type hints struct {
	server    *Server
	endpoints []wire.Endpoint
}

// of returns who leads a partition that was answered with a code; the zero value when that is no news. This node is not
// named for a partition that it has just said not to lead, whatever the table of leaders has.
func (h *hints) of(topic *meta.Topic, index int32, c code) wire.CurrentLeader {
	if topic == nil || c != codeNotLeaderOrFollower && c != codeFencedLeaderEpoch {
		return wire.CurrentLeader{}
	}
	known := h.server.node.Leadership(topic, index)
	if !known.Ready || known.Leader == h.server.node.NodeID() && c == codeNotLeaderOrFollower || !h.add(known.Leader) {
		return wire.CurrentLeader{}
	}
	return wire.CurrentLeader{ID: known.Leader, Epoch: known.Epoch}
}

// add makes sure that an endpoint is told; false when it is not known.
func (h *hints) add(node int32) bool {
	for i := range h.endpoints {
		if h.endpoints[i].ID == node {
			return true
		}
	}
	for _, b := range h.server.node.Brokers() {
		if b.ID == node {
			h.endpoints = append(h.endpoints, wire.Endpoint{ID: b.ID, Host: b.Host, Port: b.Port, Rack: b.Rack})
			return true
		}
	}
	return false
}

// size is at least what the endpoints have on the wire.
func (h *hints) size() int {
	size := wire.EndpointsBytes
	for i := range h.endpoints {
		size += wire.EndpointBytes + len(h.endpoints[i].Host) + len(h.endpoints[i].Rack)
	}
	return size
}
