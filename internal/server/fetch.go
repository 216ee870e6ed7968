package server

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/wire"
)

// fetchWaitMax bounds a long poll, whatever the client asks for: it is not noticed meanwhile that a client is gone.
const fetchWaitMax = 5 * time.Minute

// fetch answers Fetch, version 4 to 17, from the partitions' logs up to their high watermarks, without a session
// (KIP-227): each request names all its partitions.
//
// It plans first, from offsets and sizes alone, what to return; waits, planning anew after each commit, until that is
// enough; plans less when answers that nobody reads hold too much memory; and then reads it all into the response.
func (s *Server) fetch(c *call, req *kmsg.FetchRequest) error {
	f := fetchCall{server: s, ctx: c.ctx, version: c.version(), maxBytes: s.config.FetchBytesMax, leaders: hints{server: s}}
	f.maxBytes = min(f.maxBytes, int(max(req.MaxBytes, 0)))
	if full := req.SessionEpoch == 0 || req.SessionEpoch == -1; !full {
		// The client goes on with a session that this broker never gave, and begins anew.
		f.respond(c, codeFetchSessionIDNotFound)
		return nil
	}
	f.resolve(req)
	c.working.shrink(f.memory() - ownBytes) // nothing of req is used from the wait on
	f.wait(c, time.Duration(max(req.MaxWaitMillis, 0))*time.Millisecond, int(req.MinBytes))
	f.locate()
	if err := f.makeRoom(c); err != nil {
		return err
	}
	f.respond(c, codeNone)
	return nil
}

// fetchCall is one Fetch request.
type fetchCall struct {
	server     *Server
	ctx        context.Context
	version    int16
	maxBytes   int
	topics     []fetchedTopic
	partitions []fetchedPartition // of all topics, in order
	planned    int                // bytes of records
	leaders    hints
}

// fetchedTopic is a topic of the request.
type fetchedTopic struct {
	name       string
	id         [16]byte
	partitions int
}

// fetchedPartition is a partition of the request and what is planned for it.
type fetchedPartition struct {
	topic    *meta.Topic // nil: it does not exist
	index    int32
	epoch    int32 // the leader epoch that the client knows; negative: none
	from     batch.Offset
	maxBytes int
	code     code
	leader   wire.CurrentLeader // with some codes
	plan     int                // how many bytes are to be read
	logStart batch.Offset       // when it was planned
	basis    planBasis
	term     batch.Term // of the first plan; 0: none yet
	outside  Partition  // nil, or where the offset seems not to exist
}

// planBasis is all that a plan depends on.
type planBasis struct {
	partition     Partition
	highWatermark batch.Offset
	limit         int  // bytes
	first         bool // nothing is planned before it
}

// fetchedBytes is at least what a topic or partition of a request takes while the request waits.
const fetchedBytes = 256

// memory is at least what the request takes while it waits.
func (f *fetchCall) memory() int64 {
	n := (len(f.topics) + len(f.partitions)) * fetchedBytes
	for i := range f.topics {
		n += len(f.topics[i].name)
	}
	return int64(n)
}

// resolve finds the topics.
func (f *fetchCall) resolve(req *kmsg.FetchRequest) {
	find := f.server.finder(f.ctx)
	code := codeNone
	if req.ReplicaID >= 0 || req.ReplicaState.ID >= 0 {
		code = codeInvalidRequest // a follower: brokers replicate by other means, and consumers are -1
	}
	for i := range req.Topics {
		asked := &req.Topics[i]
		topic, unknown := f.topic(&find, asked)
		f.topics = append(f.topics, fetchedTopic{asked.Topic, asked.TopicID, len(asked.Partitions)})
		for _, p := range asked.Partitions {
			entry := fetchedPartition{
				topic: topic, index: p.Partition, epoch: p.CurrentLeaderEpoch, from: batch.Offset(p.FetchOffset),
				maxBytes: int(max(p.PartitionMaxBytes, 0)), code: code,
			}
			if code == codeNone {
				entry.code = unknown
			}
			f.partitions = append(f.partitions, entry)
		}
	}
}

// topic finds a topic, or says with which code it is unknown.
func (f *fetchCall) topic(find *finder, asked *kmsg.FetchRequestTopic) (*meta.Topic, code) {
	if f.version >= topicIDVersionMin {
		if topic := find.byID(asked.TopicID); topic != nil {
			return topic, codeNone
		}
		return nil, find.absent(codeUnknownTopicID, codeNotLeaderOrFollower)
	}
	if topic := find.byName(asked.Topic); topic != nil {
		return topic, codeNone
	}
	return nil, find.absent(codeUnknownTopicOrPartition, codeNotLeaderOrFollower)
}

// wait returns when there is enough to answer with: minBytes, an error, or nothing to wait for any longer. A request that
// holds much memory while others need it does not wait: nothing is wrong with an answer that has less.
func (f *fetchCall) wait(c *call, timeout time.Duration, minBytes int) {
	minBytes = min(minBytes, f.maxBytes)
	if f.plan(minBytes) || timeout == 0 || len(f.partitions) == 0 {
		return
	}
	// What is committed between this plan and the watch is seen by the next plan.
	wake := make(chan struct{}, 1)
	watched := make(map[Partition]struct{}, len(f.partitions))
	for i := range f.partitions {
		p := f.partitions[i].basis.partition
		if _, again := watched[p]; !again {
			watched[p] = struct{}{}
			p.Watch(wake)
		}
	}
	defer func() {
		for p := range watched {
			p.Unwatch(wake)
		}
	}()
	timer := time.NewTimer(min(timeout, fetchWaitMax))
	defer timer.Stop()
	var crowded <-chan struct{}
	if c.working.bytes > 0 {
		crowded = c.working.from.crowded()
	}
	for !f.plan(minBytes) {
		select {
		case <-wake:
		case <-timer.C:
			return
		case <-crowded:
			return
		case <-c.stopping:
			return
		case <-c.aborted:
			return
		}
	}
}

// plan decides what to read of each partition, in the order of the request, and tells whether that is enough. A
// partition that cannot be read is answered at once: it may have lost its leader while the client waits for data.
func (f *fetchCall) plan(minBytes int) bool {
	f.planned = 0
	failed, outside := false, []*fetchedPartition(nil)
	for i := range f.partitions {
		p := &f.partitions[i]
		if p.code == codeNone {
			p.planWithin(f.server, f.maxBytes-f.planned, f.planned == 0)
		}
		if p.code != codeNone {
			failed = true
			continue
		}
		if p.outside != nil {
			outside = append(outside, p)
			continue
		}
		f.planned += p.plan
	}
	if len(outside) > 0 {
		f.settle(outside)
		return true
	}
	return failed || f.planned >= minBytes
}

// settle finds the codes of offsets that seem not to exist. Clients that hear so move to another offset, and so only a
// leader may say it that has confirmed since that it leads, and finds the same again.
func (f *fetchCall) settle(outside []*fetchedPartition) {
	ctx, cancel := context.WithTimeout(f.ctx, confirmMax)
	defer cancel()
	each(len(outside), func(i int) {
		p := outside[i]
		var status replica.Status
		status, p.code = f.server.confirm(ctx, p.outside, p.topic, p.index, p.epoch)
		switch {
		case p.code != codeNone:
		case p.from < status.LogStart || p.from > status.NextOffset:
			p.code = codeOffsetOutOfRange
		default:
			p.code = codeNotLeaderOrFollower // the client asks again
		}
	})
}

// locate finds the leaders of the partitions that are led elsewhere, and in newer epochs.
func (f *fetchCall) locate() {
	if !wire.KeyFetch.HasLeader(f.version) {
		return
	}
	for i := range f.partitions {
		if p := &f.partitions[i]; p.code != codeNone {
			p.leader = f.leaders.of(p.topic, p.index, p.code)
		}
	}
}

// planWithin plans for one partition, with room left for as many bytes. The first batch of a response is returned even
// if it is larger than any limit, so that a consumer always gets on (KIP-74).
func (p *fetchedPartition) planWithin(s *Server, room int, first bool) {
	partition, status, code := s.leader(p.topic, p.index, p.epoch)
	if code == codeNone && p.term != 0 && p.term != status.Term {
		code = codeNotLeaderOrFollower // it is another leader than the one that the client began to wait for
	}
	if p.code = code; code != codeNone {
		return
	}
	p.term = status.Term
	if p.from < status.LogStart || p.from > status.NextOffset {
		p.outside = partition
		return
	}
	p.logStart = status.LogStart
	basis := planBasis{partition, status.HighWatermark, max(min(p.maxBytes, room), 0), first}
	if basis == p.basis {
		return // as planned before
	}
	p.basis, p.plan = basis, 0
	if p.from >= status.HighWatermark || basis.limit == 0 && !first {
		return
	}
	n, err := partition.Available(p.from, basis.limit)
	switch {
	case err != nil:
		p.code = s.failedRead(p, err)
	case n <= basis.limit || first:
		p.plan = n
	}
}

// failedRead is the code of a failed read. When the log has moved away from under it, the client asks again.
func (s *Server) failedRead(p *fetchedPartition, err error) code {
	s.storageFailed("fetch failed", p.topic, p.index, p.from, err)
	if code := readCode(err); code != codeOffsetOutOfRange {
		return code
	}
	return codeNotLeaderOrFollower
}

// makeRoom makes room for what is planned. When answers hold much memory already it plans less; only for what must be
// returned in any case, a batch of its own or the parts around the records, it waits.
func (f *fetchCall) makeRoom(c *call) error {
	size := f.responseSize()
	c.answer = f.server.budgets.answers.some(unowned(size))
	if unowned(size) > c.answer.bytes {
		f.maxBytes = max(bufferWithin(int(c.answer.bytes)+ownBytes)-(size-f.planned), 0)
		f.plan(0)
		size = f.responseSize()
	}
	if c.answer.shrink(unowned(size)); c.answer.bytes >= unowned(size) {
		c.buffer(size)
		return nil
	}
	c.answer.giveBack()
	return c.room(size, int64(bufferSize(size)))
}

// unowned is what a response of size bytes needs beyond what each connection has.
func unowned(size int) int64 {
	return int64(bufferSize(size) - ownBytes)
}

// respond encodes the response, and reads the records into it.
func (f *fetchCall) respond(c *call, code code) {
	e := wire.FetchEncoder{Dst: c.prefix.BeginResponse(c.out), Version: f.version}
	e.Begin(int16(code), len(f.topics))
	partitions := f.partitions
	for _, topic := range f.topics {
		e.Topic(topic.name, topic.id, topic.partitions)
		for i := range partitions[:topic.partitions] {
			p := &partitions[i]
			e.BeginPartition(p.plan)
			var result wire.FetchResult
			e.Dst, result = f.read(p, e.Dst)
			e.EndPartition(result)
		}
		e.EndTopic()
		partitions = partitions[topic.partitions:]
	}
	e.End(f.leaders.endpoints)
	wire.EndResponse(e.Dst, 0)
	c.out = e.Dst
}

// responseSize is at least what the response will have.
func (f *fetchCall) responseSize() int {
	const response, topic, partition = 32, 32, 64 // more than the fixed parts of each
	size := response + len(f.partitions)*partition + f.planned + f.leaders.size()
	for i := range f.topics {
		size += topic + len(f.topics[i].name)
	}
	return size
}

// read appends what is planned for a partition to dst, and no more, though more may be there by now: dst has room for
// the plan.
func (f *fetchCall) read(p *fetchedPartition, dst []byte) ([]byte, wire.FetchResult) {
	result := wire.FetchResult{Index: p.index, Code: int16(p.code), HighWatermark: -1, LogStartOffset: -1, Leader: p.leader}
	if p.code != codeNone {
		return dst, result
	}
	if p.plan > 0 {
		read, err := p.basis.partition.Read(dst, p.from, p.plan, false)
		if err != nil {
			result.Code = int16(f.server.failedRead(p, err))
			return dst, result
		}
		dst = read
	}
	// The plan is newer than the status that it began with, and may reach above that high watermark.
	result.HighWatermark = int64(max(p.basis.highWatermark, p.basis.partition.Status().HighWatermark))
	result.LogStartOffset = int64(p.logStart)
	return dst, result
}
