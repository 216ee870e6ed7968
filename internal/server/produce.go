package server

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/wire"
)

// partitionsKept is the most partitions that a call may have to be used again.
const partitionsKept = 1024

// produceCall is one Produce request between the socket and its answer.
//
// The reading goroutine fills it, queues it for the writing goroutine and then submits its batches, which may take long
// when a partition has its hands full. From then on only the partitions change it: each its own producedPartition, which
// the writing goroutine reads once its answer is there. Done may come at any time, also after the call was answered
// without it (timeout_ms) or dropped: it finds the call as it was, because only a call whose every answer came is used
// again.
type produceCall struct {
	prefix   wire.Prefix
	acks     int16
	timeout  time.Duration
	deadline time.Time
	size     int // of the frame
	frame    *frame
	// lent is for the frame, and then for what the partitions keep of it: it is given back when all have answered.
	// producing is for the call itself, and is given back when nobody uses it any more: users are the partitions, as one,
	// and the writing goroutine, which may be done with the call long before them (timeout_ms).
	lent, producing loan
	users           atomic.Int32

	topics     []producedTopic
	partitions []producedPartition // of all topics, in order
	// open counts the submissions without an answer, and the reading goroutine until it has submitted all. Whoever
	// makes it 0 sends to complete.
	open     atomic.Int32
	complete chan struct{} // holds one
}

// producedTopic is a topic of the request. It keeps no part of the frame.
type producedTopic struct {
	topic      *meta.Topic // nil: it does not exist
	name       string
	id         [16]byte
	partitions int
}

// producedPartition is a partition of the request. It is the Done of its submission.
type producedPartition struct {
	call       *produceCall
	index      int32
	refusal    refusal // with a code: the partition is not asked
	partition  Partition
	submission replica.Submission

	ack      replica.Ack
	answered atomic.Bool // ack is set
}

// Taken implements replica.Done.
func (p *producedPartition) Taken() {
	p.call.frame.release()
}

// Done implements replica.Done.
func (p *producedPartition) Done(ack replica.Ack) {
	p.ack = ack
	p.answered.Store(true)
	p.call.closeOne()
}

func (c *produceCall) closeOne() {
	if c.open.Add(-1) == 0 {
		c.lent.giveBack()
		c.leave() // first: who finds the call complete may use it again
		c.complete <- struct{}{}
	}
}

// leave says that one of the two users is done with the call.
func (c *produceCall) leave() {
	if c.users.Add(-1) == 0 {
		c.producing.giveBack()
	}
}

// newProduceCall makes a call with room for the topics and partitions of req.
func (s *Server) newProduceCall(req *wire.ProduceRequest) *produceCall {
	call, _ := s.calls.Get().(*produceCall)
	if call == nil {
		call = &produceCall{complete: make(chan struct{}, 1)}
	}
	call.topics = slices.Grow(call.topics, req.Topics)
	call.partitions = slices.Grow(call.partitions, req.Partitions)[:req.Partitions]
	return call
}

// recycle keeps a call of which every answer came.
func (s *Server) recycle(call *produceCall) {
	if cap(call.partitions) > partitionsKept || cap(call.topics) > partitionsKept {
		return
	}
	clear(call.topics)
	clear(call.partitions)
	call.topics, call.partitions, call.frame = call.topics[:0], call.partitions[:0], nil
	s.calls.Put(call)
}

// producedBytes is at least what a topic or partition of a produce takes until it is answered, with the answer.
const producedBytes = 768

// produce reads and carries out a Produce request (KIP-98), version 0 to 13: it is checked and handed to the partitions;
// the writing goroutine answers it.
func (c *connection) produce(size int) error {
	c.reserve(size)
	b := &c.server.budgets.produces
	if size > firstStep {
		b = &c.server.budgets.begun
	}
	lent, err := c.borrow(b, bufferSize(min(size, firstStep)))
	if err != nil {
		return err
	}
	f, err := c.readFrame(size, lent)
	if err != nil {
		return err
	}
	defer f.release()
	call, err := c.newProduceCall(f, size)
	if err != nil {
		return err
	}
	call.lent, f.lent = f.lent, loan{}
	c.enqueue(call)
	call.submit()
	return nil
}

// newProduceCall makes a call of a request, checked as far as possible without its partitions.
func (c *connection) newProduceCall(f *frame, size int) (*produceCall, error) {
	_, body, err := c.prefix.ParseHeader(f.buf[:size])
	if err != nil {
		return nil, err
	}
	req, err := wire.ParseProduce(c.prefix.Version, body)
	if err != nil {
		return nil, err
	}
	var producing loan
	if entries := req.Topics + req.Partitions; entries > 2 {
		var ok bool
		if producing, ok = c.server.budgets.producing.take(int64(entries)*producedBytes, c.aborted, nil); !ok {
			return nil, errGone
		}
	}
	call := c.server.newProduceCall(&req)
	call.prefix, call.acks, call.size, call.frame, call.producing = c.prefix, req.Acks, size, f, producing
	call.timeout = time.Duration(max(req.TimeoutMillis, 0)) * time.Millisecond
	call.deadline = c.server.now().Add(call.timeout)
	call.open.Store(1)
	call.users.Store(2)
	check := produceCheck{server: c.server, topics: c.server.finder(c.ctx), call: call, req: req, named: c.named}
	check.run()
	if len(c.named) > partitionsKept {
		c.named = make(map[partitionKey]int)
	}
	clear(c.named)
	return call, nil
}

// submit hands the batches to their partitions, in order.
func (c *produceCall) submit() {
	for i := range c.partitions {
		p := &c.partitions[i]
		if p.refusal.code != codeNone {
			continue
		}
		c.open.Add(1)
		c.frame.retain()
		if err := p.partition.Submit(&p.submission); err != nil {
			// The partition is closed, since its topic is deleted: it has not accepted this submission, and calls neither
			// Taken nor Done. Whether it accepted the same batch before nobody can tell any more, and code 6 does not:
			// clients ask where the partition is now. (When the node stops, partitions close after all connections.)
			p.Taken()
			p.Done(replica.Ack{Base: -1, Err: replica.ErrNotLeader})
		}
	}
	c.closeOne()
}
