package server

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
)

// The timestamps that stand for a place instead of a time.
const (
	timestampLatest   = -1
	timestampEarliest = -2
)

// listOffsets answers ListOffsets, version 0 to 11, for the earliest and the latest offset. The latest is the high
// watermark at either isolation level: there are no transactions. Both are read after this node has confirmed that it
// leads: no record that was acknowledged before the request came is missing from what it says.
func (s *Server) listOffsets(c *call, req *kmsg.ListOffsetsRequest) error {
	ctx, cancel := context.WithTimeout(c.ctx, confirmMax)
	defer cancel()
	const response, topic, partition = 16, 16, 32 // more than the fixed parts of each
	size, partitions := response, 0
	for i := range req.Topics {
		size += topic + len(req.Topics[i].Topic) + len(req.Topics[i].Partitions)*partition
		partitions += len(req.Topics[i].Partitions)
	}
	find := s.finder(ctx)
	lookups := make([]lookup, 0, partitions)
	for i := range req.Topics {
		found := find.byName(req.Topics[i].Topic)
		for j := range req.Topics[i].Partitions {
			lookups = append(lookups, lookup{topic: found, unsure: found == nil && find.unsure, asked: &req.Topics[i].Partitions[j]})
		}
	}
	s.look(ctx, c.version(), lookups)
	return c.reply(size, func() kmsg.Response {
		resp := kmsg.NewPtrListOffsetsResponse()
		resp.Topics = make([]kmsg.ListOffsetsResponseTopic, len(req.Topics))
		for i := range req.Topics {
			topic := &resp.Topics[i]
			topic.Topic = req.Topics[i].Topic
			topic.Partitions = make([]kmsg.ListOffsetsResponseTopicPartition, len(req.Topics[i].Partitions))
			for j := range topic.Partitions {
				topic.Partitions[j] = lookups[j].row()
			}
			lookups = lookups[len(topic.Partitions):]
		}
		return resp
	})
}

// lookup is a partition of which an offset is wanted.
type lookup struct {
	topic  *meta.Topic // nil: it does not exist
	unsure bool        // the topic may exist
	asked  *kmsg.ListOffsetsRequestTopicPartition
	leader Partition
	code   code
	offset batch.Offset
	epoch  int32
}

// look carries out lookups, some at a time. Only those of partitions that this node takes itself to lead have to wait.
func (s *Server) look(ctx context.Context, version int16, lookups []lookup) {
	waiting := make([]int32, 0, len(lookups))
	for i := range lookups {
		l := &lookups[i]
		if l.unsure {
			l.code = codeNotLeaderOrFollower
			continue
		}
		if l.leader, _, l.code = s.leader(l.topic, l.asked.Partition, l.asked.CurrentLeaderEpoch); l.code == codeNone {
			waiting = append(waiting, int32(i))
		}
	}
	each(len(waiting), func(i int) { lookups[waiting[i]].carryOut(ctx, s) })
	for i := range lookups {
		if l := &lookups[i]; l.code == codeNotLeaderOrFollower && !l.unsure {
			l.code = s.notLeading(version, l.topic, l.asked.Partition)
		}
	}
}

func (l *lookup) carryOut(ctx context.Context, s *Server) {
	if l.asked.Timestamp != timestampLatest && l.asked.Timestamp != timestampEarliest {
		l.code = codeUnsupportedVersion
		return
	}
	var status replica.Status
	if status, l.code = s.confirm(ctx, l.leader, l.topic, l.asked.Partition, l.asked.CurrentLeaderEpoch); l.code != codeNone {
		return
	}
	l.offset, l.epoch = status.LogStart, int32(status.Term)
	if l.asked.Timestamp == timestampLatest {
		l.offset = status.HighWatermark
	}
}

// notLeading is the code for a partition that this node does not lead: another one does, or it is elected and not ready
// yet, or nobody knows. The error that says so is new in version 5 (KIP-207).
func (s *Server) notLeading(version int16, topic *meta.Topic, index int32) code {
	switch known := s.node.Leadership(topic, index); {
	case known.Ready && known.Leader != s.node.NodeID():
		return codeNotLeaderOrFollower
	case version < 5:
		return codeLeaderNotAvailable
	default:
		return codeOffsetNotAvailable
	}
}

func (l *lookup) row() kmsg.ListOffsetsResponseTopicPartition {
	p := kmsg.NewListOffsetsResponseTopicPartition()
	p.Partition, p.ErrorCode = l.asked.Partition, int16(l.code)
	// In version 0 no field of these exists; an answer without an error has a list of offsets instead.
	p.Timestamp, p.Offset, p.LeaderEpoch = -1, -1, -1
	if l.code == codeNone {
		p.Offset, p.LeaderEpoch = int64(l.offset), l.epoch
		if l.asked.MaxNumOffsets > 0 {
			p.OldStyleOffsets = []int64{int64(l.offset)}
		}
	}
	return p
}
