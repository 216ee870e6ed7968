package server

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
)

// The timestamps that stand for a place instead of a time.
const (
	timestampLatest   = -1
	timestampEarliest = -2
)

// listOffsets answers ListOffsets, version 0 to 11, for the earliest and the latest offset. The latest is the high
// watermark at either isolation level: there are no transactions.
func (s *Server) listOffsets(c *call, req *kmsg.ListOffsetsRequest) error {
	const response, topic, partition = 16, 16, 32 // more than the fixed parts of each
	size := response
	for i := range req.Topics {
		size += topic + len(req.Topics[i].Topic) + len(req.Topics[i].Partitions)*partition
	}
	return c.reply(size, func() kmsg.Response {
		resp := kmsg.NewPtrListOffsetsResponse()
		view := s.node.Topics()
		resp.Topics = make([]kmsg.ListOffsetsResponseTopic, len(req.Topics))
		for i := range req.Topics {
			asked, topic := &req.Topics[i], &resp.Topics[i]
			topic.Topic = asked.Topic
			topic.Partitions = make([]kmsg.ListOffsetsResponseTopicPartition, len(asked.Partitions))
			found, _ := view.ByName(asked.Topic)
			for j, p := range asked.Partitions {
				topic.Partitions[j] = s.listOffset(c.version(), found, p)
			}
		}
		return resp
	})
}

func (s *Server) listOffset(version int16, topic *meta.Topic, asked kmsg.ListOffsetsRequestTopicPartition) kmsg.ListOffsetsResponseTopicPartition {
	p := kmsg.NewListOffsetsResponseTopicPartition()
	p.Partition = asked.Partition
	// In version 0 no field of these exists; an answer without an error has a list of offsets instead.
	p.Timestamp, p.Offset, p.LeaderEpoch = -1, -1, -1
	_, status, code := s.leader(topic, asked.Partition, asked.CurrentLeaderEpoch)
	if code == codeNotLeaderOrFollower {
		// A leader is elected but not ready. That error is new in version 5 (KIP-207).
		code = codeOffsetNotAvailable
		if version < 5 {
			code = codeLeaderNotAvailable
		}
	}
	offset := batch.Offset(-1)
	switch {
	case code != codeNone:
	case asked.Timestamp == timestampLatest:
		offset = status.HighWatermark
	case asked.Timestamp == timestampEarliest:
		offset = status.LogStart
	default:
		code = codeUnsupportedVersion
	}
	p.ErrorCode = int16(code)
	if code == codeNone {
		p.Offset, p.LeaderEpoch = int64(offset), int32(status.Term)
		if asked.MaxNumOffsets > 0 {
			p.OldStyleOffsets = []int64{int64(offset)}
		}
	}
	return p
}
