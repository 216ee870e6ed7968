package stage

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

// followWait is how long a fetch waits for data before the consumer turns to the next partition.
const followWait = 5 * time.Millisecond

// Consumer reads all partitions while they are written, across all restarts: what it has seen once must still be there,
// at the same offset, when the log is read at the end, unless it was deleted.
type Consumer struct {
	s      *Stage
	notNow []int16
	cursor []cursor // one for each partition of the stage
}

type cursor struct {
	read          history.Read
	highWatermark batch.Offset
	done          []history.Read // up to where records were deleted before they were read
	end           atomic.Int64   // of read, for other goroutines
}

// NewConsumer returns a consumer of all partitions of the stage. The error codes notNow may be answered to a fetch.
func NewConsumer(s *Stage, notNow ...int16) *Consumer {
	return &Consumer{s: s, notNow: notNow, cursor: make([]cursor, len(s.Partitions))}
}

// Position is the offset up to which a partition was read. Any goroutine may ask.
func (r *Consumer) Position(partition int) batch.Offset {
	return batch.Offset(r.cursor[partition].end.Load())
}

// Run reads until ctx ends.
func (r *Consumer) Run(ctx context.Context) { r.s.Reconnect(ctx, r.follow) }

var errEnded = errors.New("the connection broke, or nothing can be read now")

// follow reads until the connection breaks.
func (r *Consumer) follow(_ context.Context, conn *rawkafka.Client) error {
	for {
		for i, p := range r.s.Partitions {
			if !r.poll(conn, p, &r.cursor[i]) {
				return errEnded
			}
		}
	}
}

// FollowOne reads one partition over this connection until it breaks, or nothing can be read over it now. Others may read
// other partitions at the same time.
func (r *Consumer) FollowOne(conn *rawkafka.Client, partition int) {
	for r.poll(conn, r.s.Partitions[partition], &r.cursor[partition]) {
	}
}

// poll fetches once. It reports whether the connection is still good.
func (r *Consumer) poll(conn *rawkafka.Client, p *Partition, at *cursor) bool {
	kept := batch.Offset(p.Kept.Load())
	answer, err := conn.Fetch(rawkafka.FetchVersion, p.Topic, p.Index, at.read.End, followWait)
	if err != nil {
		return false
	}
	asked := batch.Offset(p.Asked.Load())
	switch {
	case slices.Contains(r.notNow, answer.Code):
		return false
	case answer.Code == CodeOffsetOutOfRange && at.read.End < asked:
		return r.skip(conn, p, at)
	case answer.Code != 0:
		r.s.Violate("consumer, %v: error code %d to a fetch at offset %d", p, answer.Code, at.read.End)
		return false
	case answer.HighWatermark < at.highWatermark:
		r.s.Violate("consumer, %v: the high watermark fell from %d to %d", p, at.highWatermark, answer.HighWatermark)
	case answer.LogStart < kept || answer.LogStart > asked:
		r.s.Violate("consumer, %v: the log starts at %d; deleted is all before %d, asked was for %d", p, answer.LogStart, kept, asked)
	}
	at.highWatermark = max(at.highWatermark, answer.HighWatermark)
	at.read.Records = r.s.records(p, at.read.Records, at.read.End, answer.Batches)
	if n := len(answer.Batches); n > 0 {
		at.read.End = answer.Batches[n-1].NextOffset()
		at.end.Store(int64(at.read.End))
	}
	if at.read.End > answer.HighWatermark {
		r.s.Violate("consumer, %v: offset %d was served above the high watermark %d", p, at.read.End-1, answer.HighWatermark)
	}
	return true
}

// skip goes on at the log start: what was to be read next is deleted.
func (r *Consumer) skip(conn *rawkafka.Client, p *Partition, at *cursor) bool {
	start, _, err := conn.Offsets(p.Topic, p.Index)
	if err != nil {
		return false
	}
	if asked := batch.Offset(p.Asked.Load()); start <= at.read.End || start > asked {
		r.s.Violate("consumer, %v: offset %d is out of range, but the log starts at %d, asked was to delete what is before %d",
			p, at.read.End, start, asked)
		return false
	}
	at.done = append(at.done, at.read)
	at.read = history.Read{Start: start, End: start}
	at.end.Store(int64(start))
	return true
}

// Report gives what was read to the checker. It is called after Run has returned.
func (r *Consumer) Report() {
	for i, p := range r.s.Partitions {
		for _, read := range append(r.cursor[i].done, r.cursor[i].read) {
			p.History.Read(read)
		}
	}
}

// ReadBack reads every partition from its log start to its end, for the checker. No records are deleted meanwhile.
func (s *Stage) ReadBack(ctx context.Context) error {
	conn, hangUp, err := s.Dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	for _, p := range s.Partitions {
		if err := s.ReadBackOne(conn, p); err != nil {
			return err
		}
	}
	return nil
}

// ReadBackOne reads one partition from its log start to its end, for the checker. No records are deleted meanwhile.
func (s *Stage) ReadBackOne(conn *rawkafka.Client, p *Partition) error {
	start, _, err := conn.Offsets(p.Topic, p.Index)
	if err != nil {
		return err
	}
	if kept, asked := batch.Offset(p.Kept.Load()), batch.Offset(p.Asked.Load()); start < kept || start > asked {
		s.Violate("%v: the log starts at %d; deleted is all before %d, asked was for %d", p, start, kept, asked)
	}
	log, end, err := conn.ReadLog(rawkafka.FetchVersion, p.Topic, p.Index)
	if err != nil {
		return err
	}
	p.History.Read(history.Read{Start: start, End: end, Records: s.records(p, nil, start, log)})
	return nil
}

// records appends the records of the batches from an offset on. A payload that is not what was sent is a violation.
func (s *Stage) records(p *Partition, dst []history.Record, from batch.Offset, batches []rawkafka.Batch) []history.Record {
	parse := p.Parse
	if parse == nil {
		parse = history.ParsePayload
	}
	for _, b := range batches {
		for i, payload := range b.Records {
			offset := b.BaseOffset + batch.Offset(i)
			if offset < from {
				continue
			}
			value, err := parse(payload)
			if err != nil {
				s.Violate("%v offset %d: %v", p, offset, err)
				continue
			}
			dst = append(dst, history.Record{Offset: offset, Value: value})
		}
	}
	return dst
}

// Judge holds what was read of all partitions against what was sent to them.
func (s *Stage) Judge() history.Verdict {
	var sum history.Verdict
	for _, p := range s.Partitions {
		sum = sum.Plus(p.History.JudgeRealTime().In(p.String()))
	}
	return sum
}
