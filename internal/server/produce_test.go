package server

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/replica"
)

// answers prints a Produce response in one line: partition:code@base,start.
func answers(resp *kmsg.ProduceResponse) string {
	var b strings.Builder
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			fmt.Fprintf(&b, "%d:%d@%d,%d ", p.Partition, p.ErrorCode, p.BaseOffset, p.LogStartOffset)
		}
	}
	return strings.TrimSpace(b.String())
}

func wantAnswers(t *testing.T, resp kmsg.Response, want string) {
	t.Helper()
	if got := answers(resp.(*kmsg.ProduceResponse)); got != want {
		t.Errorf("answer %q, want %q", got, want)
	}
}

func message(resp kmsg.Response) string {
	p := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
	if p.ErrorMessage == nil {
		return ""
	}
	return *p.ErrorMessage
}

func TestProduceEveryVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		node.add("t", 2)
		h := start(t, Config{}, node)
		defer h.stop()
		c := h.client()
		defer c.close()
		offset := int64(0)
		for v := int16(0); v <= 13; v++ {
			resp := ask[*kmsg.ProduceResponse](c, produceOf(v, -1, map[string][][]byte{"t": {plain(2, "a"), plain(3, "b"), plain(1, "c")}}))
			if v < 3 {
				wantAnswers(t, resp, "0:35@-1,-1 1:35@-1,-1 2:35@-1,-1")
				continue
			}
			start := 0
			if v < 5 {
				start = -1 // no such field: kmsg's default
			}
			wantAnswers(t, resp, fmt.Sprintf("0:0@%d,%d 1:0@%d,%d 2:3@-1,-1", 2*offset, start, 3*offset, start))
			offset++
			for _, p := range resp.Topics[0].Partitions {
				if p.LogAppendTime != -1 || (p.ErrorMessage != nil) != (v >= 8 && p.ErrorCode != 0) {
					t.Errorf("v%d: %+v", v, p)
				}
			}
			if v < 13 && resp.Topics[0].Topic != "t" || v >= 13 && resp.Topics[0].TopicID != topicID("t") {
				t.Errorf("v%d: topic %q %x", v, resp.Topics[0].Topic, resp.Topics[0].TopicID)
			}
		}
		h.quiet()
	})
}

func TestProduceUnknownTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{}, newFakeNode())
		defer h.stop()
		c := h.client()
		defer c.close()
		wantAnswers(t, ask[*kmsg.ProduceResponse](c, one(12, -1, plain(1, ""))), "0:3@-1,-1")
		resp := ask[*kmsg.ProduceResponse](c, one(13, -1, plain(1, "")))
		wantAnswers(t, resp, "0:100@-1,-1")
		if resp.Topics[0].TopicID != topicID("t") {
			t.Errorf("topic id %x", resp.Topics[0].TopicID)
		}
		// No topics at all is an answer, too.
		wantAnswers(t, ask[*kmsg.ProduceResponse](c, produceOf(9, -1, nil)), "")
	})
}

// Each request goes to another partition, the partitions answer in the opposite order, the client gets the answers in
// its own.
func TestAnswersComeInTheOrderOfRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		node.add("t", 5)
		h := start(t, Config{}, node)
		defer h.stop()
		c := h.client()
		defer c.close()
		for i := range int32(5) {
			node.at("t", i).hold()
			req := one(9, -1, plain(i+1, strings.Repeat("x", 5000*int(i))))
			req.Topics[0].Partitions[0].Partition = i
			c.send(req)
		}
		for i := int32(4); i >= 0; i-- {
			synctest.Wait()
			node.at("t", i).finish(1)
		}
		for i := range 5 {
			wantAnswers(t, c.receive(), fmt.Sprintf("%d:0@0,0", i))
		}
	})
}

func TestFivePipelinedProducesLandInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		node.add("t", 1)
		p := node.at("t", 0)
		p.hold()
		h := start(t, Config{}, node)
		defer h.stop()
		c := h.client()
		defer c.close()
		for i := range 5 {
			c.send(one(9, -1, records(9, 0, batch.Sequence(10*i), 10, fmt.Sprint(i))))
		}
		synctest.Wait() // all five are in the mailbox before one is answered
		p.finish(5)
		for i := range 5 {
			wantAnswers(t, c.receive(), fmt.Sprintf("0:0@%d,0", 10*i))
		}
		for i, b := range p.batches {
			if b.header.BaseSequence != batch.Sequence(10*i) {
				t.Errorf("batch %d has sequence %d", i, b.header.BaseSequence)
			}
		}
	})
}

// A request that is no produce begins when the answers before it are out.
func TestOtherRequestsWaitForTheAnswersBeforeThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		node.add("t", 1)
		p := node.at("t", 0)
		p.hold()
		h := start(t, Config{}, node)
		defer h.stop()
		c := h.client()
		defer c.close()
		list := kmsg.NewPtrListOffsetsRequest()
		list.Version = 1
		topic, partition := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
		topic.Topic, partition.Timestamp = "t", -1
		topic.Partitions = append(topic.Partitions, partition)
		list.Topics = append(list.Topics, topic)
		c.send(one(9, -1, plain(4, "")), list, one(9, -1, plain(1, "")))
		synctest.Wait()
		p.finish(1)
		wantAnswers(t, c.receive(), "0:0@0,0")
		if got := c.receive().(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0].Offset; got != 4 {
			t.Errorf("latest offset %d, want 4: the request did not wait", got)
		}
		synctest.Wait()
		p.finish(1)
		wantAnswers(t, c.receive(), "0:0@4,0")
	})
}

func TestProduceTimesOutAndTheLateAnswerIsHarmless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		node.add("t", 2)
		slow := node.at("t", 1)
		slow.hold()
		h := start(t, Config{}, node)
		defer h.stop()
		c := h.client()
		defer c.close()
		began := time.Now()
		req := produceOf(9, -1, map[string][][]byte{"t": {plain(1, ""), plain(1, "late")}})
		req.TimeoutMillis = 1500
		c.send(req, one(9, -1, plain(1, "")))
		resp := c.receive()
		wantAnswers(t, resp, "0:0@0,0 1:7@-1,-1")
		if took := time.Since(began); took != 1500*time.Millisecond {
			t.Errorf("answered after %v", took)
		}
		wantAnswers(t, c.receive(), "0:0@1,0")
		producing := &h.server.budgets.producing
		if held := producing.held(); held != 3*producedBytes {
			t.Errorf("%d bytes are lent while a partition keeps a part of the request", held)
		}
		slow.finish(1)
		synctest.Wait()
		if held := producing.held(); held != 0 {
			t.Errorf("%d bytes are lent when all partitions have answered", held)
		}
		if slow.Status().HighWatermark != 1 {
			t.Error("the entry did not stay")
		}
		wantAnswers(t, ask[*kmsg.ProduceResponse](c, one(9, -1, plain(1, ""))), "0:0@2,0")
		h.quiet()
	})
}

// A partition that has its hands full lets its submitters wait. They are answered in time all the same, and what they
// sent is stored in the end, once.
func TestFullPartitionIsAnsweredInTime(t *testing.T) {
	node := newFakeNode()
	node.add("t", 2)
	p := node.at("t", 0)
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		full := make(chan struct{})
		p.full = full
		began := time.Now()
		req := produceOf(9, -1, map[string][][]byte{"t": {plain(1, ""), plain(2, "")}})
		req.TimeoutMillis = 1500
		c.send(req, one(9, -1, plain(1, "")))
		wantAnswers(t, c.receive(), "0:7@-1,-1 1:7@-1,-1")
		if took := time.Since(began); took != 1500*time.Millisecond {
			t.Errorf("answered after %v", took)
		}
		p.mu.Lock()
		p.full = nil
		p.mu.Unlock()
		close(full)
		wantAnswers(t, c.receive(), "0:0@1,0")
		synctest.Wait()
		if end := node.at("t", 1).Status().NextOffset; end != 2 {
			t.Errorf("the other partition ends at %d", end)
		}
		if lent := h.server.budgets.produces.held(); lent != 0 {
			t.Errorf("%d bytes are still lent", lent)
		}
	})
}

func TestAcksZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		node.add("t", 2)
		h := start(t, Config{}, node)
		defer h.stop()
		c := h.client()
		c.send(one(9, 0, plain(1, "")), one(9, 0, plain(1, "")), one(9, 1, plain(1, "")))
		c.sent, c.correlation = c.sent[2:], 3
		wantAnswers(t, c.receive(), "0:0@2,0") // the first two have no answer
		// A timeout is no error when nobody waits for an answer.
		node.at("t", 0).hold()
		req := one(9, 0, plain(1, ""))
		req.TimeoutMillis = 10
		c.send(req)
		time.Sleep(time.Second)
		node.at("t", 0).finish(1)
		h.quiet()
		// Any other is told by closing the connection.
		c.send(produceOf(9, 0, map[string][][]byte{"t": {plain(1, ""), nil}}))
		c.ended()
		synctest.Wait()
		h.logged("acks=0", `topic "t" partition 1`, "87")
		for _, v := range []int16{0, 2} {
			c := h.client()
			c.send(one(v, 0, plain(1, "")))
			c.ended()
			synctest.Wait()
			h.logged("35")
		}
	})
}

func TestRefusedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		node.add("t", 2)
		node.at("t", 0).set(func(s *replica.Status) { s.LogStart, s.HighWatermark, s.NextOffset = 5, 5, 5 })
		h := start(t, Config{}, node)
		defer h.stop()
		c := h.client()
		defer c.close()
		transactional := plain(1, "")
		transactional[22] |= 1 << 4
		seal(transactional)
		zstd := plain(1, "")
		zstd[22] |= 4
		seal(zstd)
		timestamp := plain(1, "")
		timestamp[22] |= 1 << 3
		seal(timestamp)
		corrupt := plain(1, "abc")
		corrupt[62] ^= 1
		corruptTransactional := append([]byte(nil), transactional...)
		corruptTransactional[60] ^= 1
		good := plain(1, "")
		id := ""
		for name, x := range map[string]struct {
			change func(*kmsg.ProduceRequest)
			first  []byte
			want   string
			text   string
		}{
			"acks 2":                {func(r *kmsg.ProduceRequest) { r.Acks = 2 }, good, "0:21@-1,-1 1:21@-1,-1", "2 came"},
			"acks -2":               {func(r *kmsg.ProduceRequest) { r.Acks = -2 }, good, "0:21@-1,-1 1:21@-1,-1", "-2 came"},
			"transactional id":      {func(r *kmsg.ProduceRequest) { r.TransactionID = &id }, good, "0:53@-1,-1 1:53@-1,-1", "transactional.id"},
			"transactional bit":     {nil, transactional, "0:53@-1,-1 1:53@-1,-1", "bit"},
			"null records":          {nil, nil, "0:87@-1,5 1:0", "empty"},
			"empty records":         {nil, []byte{}, "0:87@-1,5 1:0", "empty"},
			"corrupt":               {nil, corrupt, "0:2@-1,-1 1:0", "crc"},
			"corrupt transactional": {nil, corruptTransactional, "0:2@-1,-1 1:0", "crc"},
			"two batches":           {nil, append(plain(1, ""), plain(1, "")...), "0:87@-1,5 1:0", "61"},
			"cut off":               {nil, good[:60], "0:2@-1,-1 1:0", "60 bytes"},
			"timestamp type":        {nil, timestamp, "0:32@-1,-1 1:0", "bit"},
			"zstd in version 6":     {func(r *kmsg.ProduceRequest) { r.Version = 6 }, zstd, "0:76@-1,-1 1:0", ""},
			"zstd":                  {nil, zstd, "0:0@", ""},
			"partition -1":          {func(r *kmsg.ProduceRequest) { r.Topics[0].Partitions[0].Partition = -1 }, good, "-1:3@-1,-1 1:0", "2 partitions"},
			"partition 2":           {func(r *kmsg.ProduceRequest) { r.Topics[0].Partitions[0].Partition = 2 }, good, "2:3@-1,-1 1:0", "2 partitions"},
			"twice in a topic": {func(r *kmsg.ProduceRequest) {
				r.Topics[0].Partitions = append(r.Topics[0].Partitions, r.Topics[0].Partitions[0])
			}, good, "0:87@-1,5 1:0 0:87@-1,5", "more than once"},
			"twice in two topics": {func(r *kmsg.ProduceRequest) { r.Topics = append(r.Topics, r.Topics[0]) },
				good, "0:87@-1,5 1:87@-1,0 0:87@-1,5 1:87@-1,0", "more than once"},
		} {
			before := node.at("t", 1).Status().NextOffset
			req := produceOf(9, -1, map[string][][]byte{"t": {x.first, good}})
			if x.change != nil {
				x.change(req)
			}
			resp := ask[*kmsg.ProduceResponse](c, req)
			got := strings.ReplaceAll(answers(resp), fmt.Sprintf("1:0@%d,0", before), "1:0")
			if !strings.HasPrefix(got, x.want) {
				t.Errorf("%s: answer %q, want %q", name, got, x.want)
			}
			if !strings.Contains(message(resp), x.text) {
				t.Errorf("%s: text %q lacks %q", name, message(resp), x.text)
			}
			if stored := node.at("t", 1).Status().NextOffset > before; stored != strings.Contains(got, "1:0") {
				t.Errorf("%s: %q, but the other partition's batch stored: %v", name, got, stored)
			}
		}
		h.quiet()
	})
}

func TestPartitionVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		node.add("t", 1)
		p := node.at("t", 0)
		h := start(t, Config{}, node)
		defer h.stop()
		c := h.client()
		defer c.close()
		for name, x := range map[string]struct {
			ack  replica.Ack
			want string
			text string
		}{
			"duplicate":    {replica.Ack{Base: 40, LogStart: 50, Decision: dedupe.Decision{Verdict: dedupe.Duplicate, Base: 40, Last: 42}}, "0:0@40,50", ""},
			"out of order": {replica.Ack{Base: -1, LogStart: 50, Err: replica.ErrRefused, Decision: dedupe.Decision{Verdict: dedupe.OutOfOrder, Reason: dedupe.Gap, Expected: 4}}, "0:45@-1,50", "sequence 7 to 9 came, 4 was expected"},
			"fenced":       {replica.Ack{Base: -1, LogStart: 50, Err: fmt.Errorf("x: %w", replica.ErrRefused), Decision: dedupe.Decision{Verdict: dedupe.Fenced, Reason: dedupe.OldEpoch, SeenEpoch: 6}}, "0:47@-1,50", "epoch 6"},
			"too large":    {replica.Ack{Base: -1, LogStart: 50, Err: replica.ErrTooLarge}, "0:10@-1,-1", "61 bytes came"},
			"not leader":   {replica.Ack{Base: -1, LogStart: 50, Err: replica.ErrNotLeader}, "0:6@-1,-1", "leader"},
			"offline":      {replica.Ack{Base: -1, LogStart: 50, Err: fmt.Errorf("%w: %w", replica.ErrOffline, errDisk)}, "0:56@-1,-1", errDisk.Error()},
			"disk full":    {replica.Ack{Base: -1, LogStart: 50, Err: replica.ErrDiskFull}, "0:56@-1,-1", "disk is full: nothing new is stored until there is room; delete"},
			"many":         {replica.Ack{Base: -1, LogStart: 50, Err: fmt.Errorf("%w: wait", replica.ErrTooManyProducers)}, "0:19@-1,-1", "too many producers: wait"},
		} {
			p.mu.Lock()
			p.verdict = func(batch.Header) replica.Ack { return x.ack }
			p.mu.Unlock()
			resp := ask[*kmsg.ProduceResponse](c, one(11, -1, records(3, 5, 7, 3, "")))
			if got := answers(resp); got != x.want || !strings.Contains(message(resp), x.text) {
				t.Errorf("%s: answer %q %q, want %q %q", name, got, message(resp), x.want, x.text)
			}
		}
		h.quiet()
	})
}

func TestNothingIsAnsweredWhenTheOutcomeIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		node.add("t", 1)
		p := node.at("t", 0)
		h := start(t, Config{}, node)
		defer h.stop()
		for _, err := range []error{replica.ErrStopped, errDisk} {
			c := h.client()
			p.mu.Lock()
			p.verdict = func(batch.Header) replica.Ack { return replica.Ack{Base: -1, Err: err} }
			p.mu.Unlock()
			c.send(one(9, -1, plain(1, "")))
			c.ended()
			synctest.Wait()
			h.logged("outcome of a produce is not known", err.Error())
		}
	})
}

// A partition that is stopped has not accepted anything, because its topic is deleted or the node stops.
func TestStoppedPartitionAcceptsNothing(t *testing.T) {
	node := newFakeNode()
	node.add("t", 3)
	node.at("t", 1).stopped = true
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		for i := range 2 {
			resp := ask[*kmsg.ProduceResponse](c, produceOf(9, -1, map[string][][]byte{"t": {plain(1, ""), plain(1, ""), plain(1, "")}}))
			wantAnswers(t, resp, fmt.Sprintf("0:0@%d,0 1:6@-1,-1 2:0@%d,0", i, i))
		}
		if lent := h.server.budgets.produces.held(); lent != 0 {
			t.Errorf("%d bytes are still lent", lent)
		}
	})
}

// The answers before one that cannot be given are written.
func TestAnswersBeforeAnUnknownOutcomeAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		node.add("t", 1)
		p := node.at("t", 0)
		p.hold()
		p.verdict = func(h batch.Header) replica.Ack {
			if h.Count == 2 {
				return replica.Ack{Base: -1, Err: replica.ErrStopped}
			}
			return replica.Ack{Base: 44}
		}
		h := start(t, Config{}, node)
		defer h.stop()
		c := h.client()
		c.send(one(9, -1, plain(1, "")), one(9, -1, plain(2, "")), one(9, -1, plain(1, "")))
		synctest.Wait()
		p.finish(3)
		wantAnswers(t, c.receive(), "0:0@44,0")
		c.ended()
		synctest.Wait()
		h.logged("outcome")
	})
}

// At the bound the connection is not read, and goes on when there is room.
func TestOutstandingProducesAreBounded(t *testing.T) {
	for name, x := range map[string]struct {
		config  Config
		payload int
		want    int
	}{
		"by number": {Config{}, 10, outstandingMax},
		"by bytes":  {Config{RequestBytesMax: 10_000}, 2_000, 4},
		"one alone": {Config{RequestBytesMax: 10_000}, 9_000, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			node := newFakeNode()
			node.add("t", 1)
			p := node.at("t", 0)
			p.hold()
			h := start(t, x.config, node)
			defer h.stop()
			c := h.client()
			defer c.close()
			const total = 100
			for range total {
				c.send(one(9, -1, plain(1, strings.Repeat("x", x.payload))))
			}
			got := make(chan string, total)
			go func() {
				for range total {
					body, err := c.receiveFrame()
					if err != nil {
						t.Error(err)
						return
					}
					got <- string(body)
				}
			}()
			for left := total; left > 0; {
				synctest.Wait()
				p.mu.Lock()
				held := len(p.holding)
				p.mu.Unlock()
				if want := min(x.want, left); held != want {
					t.Fatalf("%s: %d produces are outstanding, want %d", name, held, want)
				}
				p.finish(held)
				left -= held
				synctest.Wait()
			}
			synctest.Wait()
			if len(got) != total {
				t.Errorf("%s: %d answers", name, len(got))
			}
		})
	}
}

// A frame is given back when the last partition has taken its batch: not before, and whether or not it was answered.
func TestFrameIsGivenBackWhenAllIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		node.add("t", 2)
		p, q := node.at("t", 0), node.at("t", 1)
		p.hold()
		q.hold()
		h := start(t, Config{}, node)
		defer h.stop()
		c := h.client()
		defer c.close()
		req := produceOf(9, -1, map[string][][]byte{"t": {plain(1, ""), plain(1, ""), plain(1, "unknown partition")}})
		req.TimeoutMillis = 100
		c.send(req)
		synctest.Wait()
		f := p.holding[0].Done.(*producedPartition).call.frame
		for _, step := range []struct {
			do   func()
			want int32
		}{
			{func() {}, 2},
			{func() { p.finish(1) }, 1},
			{func() { wantAnswers(t, c.receive(), "0:0@0,0 1:7@-1,-1 2:3@-1,-1") }, 1},
			{func() { q.finish(1) }, 0},
		} {
			step.do()
			if got := f.refs.Load(); got != step.want {
				t.Errorf("%d references, want %d", got, step.want)
			}
		}
	})
}

// Buffers are used again by many connections at once, and each batch arrives as it was sent. (The fake partitions
// overwrite what they have taken.)
func TestBuffersAreNotMixedUp(t *testing.T) {
	const connections, requests, partitions = 8, 60, 3
	node := newFakeNode()
	node.add("t", connections*partitions)
	h := start(t, Config{}, node)
	defer h.stop()
	var group sync.WaitGroup
	for k := range connections {
		c := h.client()
		defer c.close()
		group.Go(func() {
			for i := range requests {
				req := one(9, -1, nil)
				req.Topics[0].Partitions = nil
				for j := range partitions {
					p := kmsg.NewProduceRequestTopicPartition()
					p.Partition = int32(k*partitions + j)
					p.Records = records(batch.ProducerID(k), 0, batch.Sequence(i), 1, strings.Repeat(fmt.Sprintf("%d/%d/%d ", k, j, i), (i*37+j*1000)%3000))
					req.Topics[0].Partitions = append(req.Topics[0].Partitions, p)
				}
				c.send(req)
			}
			for i := range requests {
				for _, p := range c.receive().(*kmsg.ProduceResponse).Topics[0].Partitions {
					if p.ErrorCode != 0 || p.BaseOffset != int64(i) {
						t.Errorf("connection %d request %d: %+v", k, i, p)
					}
				}
			}
		})
	}
	group.Wait()
	for i := range connections * partitions {
		p := node.at("t", int32(i))
		for sequence, b := range p.batches {
			want := strings.Repeat(fmt.Sprintf("%d/%d/%d ", i/partitions, i%partitions, sequence), (sequence*37+i%partitions*1000)%3000)
			if got := string(p.log[b.at+batch.HeaderSize : b.at+b.header.Size]); got != want || b.header.BaseSequence != batch.Sequence(sequence) {
				t.Fatalf("partition %d: batch %d is not what was sent", i, sequence)
			}
		}
	}
}
