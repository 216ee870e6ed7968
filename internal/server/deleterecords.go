package server

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
)

// deleteRecords answers DeleteRecords (KIP-107), version 0 to 2: each partition by itself. A log start that it reports is
// on disk: the records before it will never be served again.
func (s *Server) deleteRecords(c *call, req *kmsg.DeleteRecordsRequest) error {
	ctx, cancel := s.within(c, req.TimeoutMillis)
	defer cancel()
	find := s.finder(ctx)
	const response, topic, partition = 16, 16, 16 // at least the fixed parts of each
	size, partitions := response, 0
	for i := range req.Topics {
		size += topic + len(req.Topics[i].Topic) + len(req.Topics[i].Partitions)*partition
		partitions += len(req.Topics[i].Partitions)
	}
	trims := make([]trim, 0, partitions)
	for i := range req.Topics {
		found := find.byName(req.Topics[i].Topic)
		for _, p := range req.Topics[i].Partitions {
			trims = append(trims, trim{topic: found, unsure: found == nil && find.unsure, index: p.Partition, before: batch.Offset(p.Offset)})
		}
	}
	each(len(trims), func(i int) { trims[i].carryOut(ctx, s) })
	return c.reply(size, func() kmsg.Response {
		resp := kmsg.NewPtrDeleteRecordsResponse()
		resp.Topics = make([]kmsg.DeleteRecordsResponseTopic, len(req.Topics))
		for i := range req.Topics {
			topic := &resp.Topics[i]
			topic.Topic = req.Topics[i].Topic
			topic.Partitions = make([]kmsg.DeleteRecordsResponseTopicPartition, len(req.Topics[i].Partitions))
			for j := range topic.Partitions {
				topic.Partitions[j] = trims[j].row()
			}
			trims = trims[len(topic.Partitions):]
		}
		return resp
	})
}

// trim is a partition whose records before an offset are to be deleted.
type trim struct {
	topic    *meta.Topic // nil: it does not exist
	unsure   bool        // the topic may exist
	index    int32
	before   batch.Offset
	code     code
	logStart batch.Offset
}

func (t *trim) carryOut(ctx context.Context, s *Server) {
	if t.unsure {
		t.code = codeRequestTimedOut
		return
	}
	partition, _, code := s.leader(t.topic, t.index, -1)
	if t.code = code; code != codeNone {
		return
	}
	var err error
	if t.logStart, err = partition.DeleteRecords(ctx, t.before); errors.Is(err, replica.ErrOutOfRange) {
		// A leader that was deposed and does not know it would say so of what it has not heard of.
		if _, t.code = s.confirm(ctx, partition, t.topic, t.index, -1); t.code != codeNone {
			return
		}
		t.logStart, err = partition.DeleteRecords(ctx, t.before)
	}
	if err == nil {
		return
	}
	s.storageFailed("delete records failed", t.topic, t.index, t.before, err)
	t.code = readCode(err)
}

func (t *trim) row() kmsg.DeleteRecordsResponseTopicPartition {
	row := kmsg.NewDeleteRecordsResponseTopicPartition()
	row.Partition, row.ErrorCode, row.LowWatermark = t.index, int16(t.code), -1
	if t.code == codeNone {
		row.LowWatermark = int64(t.logStart)
	}
	return row
}
