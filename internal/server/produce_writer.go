package server

import (
	"fmt"
	"time"

	"github.com/oncemq/oncemq/internal/wire"
)

const (
	// outstandingMax bounds the produces of a connection that are not answered yet. Clients keep at most five when
	// they are idempotent.
	outstandingMax = 64
	// flushBytes is how many bytes of answers are collected before they are written.
	flushBytes = 16 << 10
)

// outstanding counts produces that are not answered, and the bytes of their frames.
type outstanding struct {
	calls, bytes int
}

// reserve waits until one more produce may be outstanding, with a frame of size bytes. One alone always may.
func (c *connection) reserve(size int) {
	for c.outstanding.calls >= outstandingMax ||
		c.outstanding.calls > 0 && c.outstanding.bytes+size > c.server.config.RequestBytesMax {
		c.free(<-c.freed)
	}
}

// reserveAll waits until every produce is answered.
func (c *connection) reserveAll() {
	for c.outstanding.calls > 0 {
		c.free(<-c.freed)
	}
}

func (c *connection) free(o outstanding) {
	c.outstanding.calls -= o.calls
	c.outstanding.bytes -= o.bytes
}

// enqueue hands a submitted call to the writing goroutine. It never waits: reserve has made sure of that.
func (c *connection) enqueue(call *produceCall) {
	if c.queue == nil {
		c.queue = make(chan *produceCall, outstandingMax)
		c.freed = make(chan outstanding, outstandingMax)
		c.written = make(chan struct{})
		w := produceWriter{c: c, timer: time.NewTimer(0)}
		go w.run()
	}
	c.outstanding.calls++
	c.outstanding.bytes += call.size
	c.attention.unanswered.Add(1)
	c.queue <- call
}

// produceWriter is the writing goroutine of a connection: it answers the calls of the queue in their order.
type produceWriter struct {
	c     *connection
	timer *time.Timer
	out   []byte
	done  outstanding // answered in out, or without an answer; not reported to the reading goroutine
}

// run ends when the queue is closed and empty. After an abort it still takes calls from the queue, so that the reading
// goroutine, which may be waiting for room, comes to see the end.
func (w *produceWriter) run() {
	defer close(w.c.written)
	defer w.timer.Stop()
	for {
		call, ok := w.next()
		if !ok {
			return
		}
		complete := w.await(call)
		if !closed(w.c.aborted) {
			w.answer(call)
		}
		w.done.calls++
		w.done.bytes += call.size
		if len(w.out) >= flushBytes {
			w.flush()
		}
		call.leave()
		if complete {
			w.c.server.recycle(call)
		}
	}
}

// next takes the next call from the queue; what is answered does not wait for it.
func (w *produceWriter) next() (*produceCall, bool) {
	select {
	case call, ok := <-w.c.queue:
		if !ok {
			w.flush()
		}
		return call, ok
	default:
		w.flush()
		call, ok := <-w.c.queue
		return call, ok
	}
}

// await waits until each partition has answered, at most until the deadline; what is answered before does not wait for
// it. It tells whether the call is complete.
func (w *produceWriter) await(call *produceCall) bool {
	select {
	case <-call.complete:
		return true
	default:
	}
	w.flush()
	w.timer.Reset(max(call.deadline.Sub(w.c.server.now()), 0))
	select {
	case <-call.complete:
		return true
	case <-w.timer.C:
		return false
	case <-w.c.aborted:
		return false
	}
}

// flush writes the answers, and reports the calls that are done.
func (w *produceWriter) flush() {
	if len(w.out) > 0 {
		if err := w.c.send(w.out); err != nil {
			w.c.abort(quiet(err))
		}
		w.out = w.out[:0]
		if cap(w.out) > 2*flushBytes {
			w.out = nil
		}
	}
	if w.done.calls > 0 {
		w.c.attention.answered(w.done.calls, w.c.ticks.Load())
		w.c.freed <- w.done
		w.done = outstanding{}
	}
}

// answer appends the response, unless none is due. It closes the connection when the outcome of a batch is not known,
// and when a request that wants no answer has failed: nothing else would tell the client.
func (w *produceWriter) answer(call *produceCall) {
	start := len(w.out)
	e := wire.ProduceEncoder{Dst: call.prefix.BeginResponse(w.out), Version: call.prefix.Version}
	e.Begin(len(call.topics))
	leaders := hints{server: w.c.server}
	partitions := call.partitions
	for i := range call.topics {
		topic := &call.topics[i]
		e.Topic(topic.name, topic.id, topic.partitions)
		for j := range partitions[:topic.partitions] {
			result, err := partitions[j].result()
			if err == nil && call.acks == 0 && result.Code != int16(codeNone) && result.Code != int16(codeRequestTimedOut) {
				err = fmt.Errorf("produce with acks=0 failed with error code %d: %s", result.Code, result.Message)
			}
			if err != nil {
				w.flush() // the answers before this one are true
				w.c.abort(loud(fmt.Errorf("topic %q partition %d: %w", topic.name, result.Index, err)))
				return
			}
			if wire.KeyProduce.HasLeader(e.Version) && result.Code != int16(codeNone) {
				result.Leader = leaders.of(topic.topic, result.Index, code(result.Code))
			}
			e.Partition(result)
		}
		e.EndTopic()
		partitions = partitions[topic.partitions:]
	}
	e.End(leaders.endpoints)
	wire.EndResponse(e.Dst, start)
	if call.acks != 0 {
		w.out = e.Dst
	}
}

// result is the answer for the partition as it stands. An error means that there is none.
func (p *producedPartition) result() (wire.ProduceResult, error) {
	r := wire.ProduceResult{Index: p.index, BaseOffset: -1, LogStartOffset: -1}
	if p.refusal.code != codeNone {
		r.Code, r.Message, r.LogStartOffset = int16(p.refusal.code), p.refusal.text, int64(p.refusal.logStart)
		return r, nil
	}
	if !p.answered.Load() {
		r.Code = int16(codeRequestTimedOut)
		r.Message = fmt.Sprintf("not stored on enough disks within %v: it may be yet, and sending it again finds out", p.call.timeout)
		return r, nil
	}
	code, text, ok := ackCode(p.ack, p.submission.Header)
	if !ok {
		return r, fmt.Errorf("%w: %w", errOutcome, p.ack.Err)
	}
	r.Code, r.Message = int16(code), text
	switch code {
	case codeNone:
		r.BaseOffset, r.LogStartOffset = int64(p.ack.Base), int64(p.ack.LogStart)
	case codeOutOfOrderSequenceNumber, codeInvalidProducerEpoch:
		r.LogStartOffset = int64(p.ack.LogStart)
	}
	return r, nil
}
