package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/lossy"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// A broker that knew only the last sequence of a producer answered OUT_OF_ORDER_SEQUENCE_NUMBER to a retry of a stored
// batch; clients took that for a reason to number anew and to send it again, and it was there twice
// (redpanda-data/redpanda issue 3039). Right is: each of the last five is answered with its own offset, in any order,
// over any connection, after a lost answer and after a kill; an older one is refused and not stored.
func TestRetryOfEachOfTheLastFive(t *testing.T) {
	t.Parallel()
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	p := newProducerOn(t, b)
	for i := range 5 {
		p.store(0, batch.Sequence(3*i), 3)
	}
	for order := range permutations(5) {
		for _, i := range order {
			p.again(0, batch.Sequence(3*i), 3, batch.Offset(3*i))
		}
	}
	p.mustHold(t, p.c, 0)

	// The sixth one's answer is lost on its way.
	proxy, err := lossy.Start(lossy.Options{Broker: b.Addr(), Rates: lossy.Rates{lossy.SwallowCut: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	bad, err := rawkafka.Dial(proxy.Addr(), rawkafka.Options{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	if a, err := bad.Produce(rawkafka.ProduceVersion, p.topic, 0, p.bytes(0, 15, 3)); err == nil {
		t.Fatalf("an answer came through: %+v", a)
	}
	p.stored(0, 15, 3)
	for range 2 {
		p.c = dial(t, b)
		p.again(0, 15, 3, 15)
	}
	p.mustHold(t, p.c, 0)

	// The process is killed: right behind the request, and when the batch is stored and the answer on its way.
	for sequence := batch.Sequence(18); sequence < 36; sequence += 3 {
		base := p.next()
		if err := p.c.Send(p.request(p.bytes(0, sequence, 3))); err != nil {
			t.Fatal(err)
		}
		if sequence%2 == 0 {
			awaitHighWatermark(t, dial(t, b), p.topic, base, base+3)
		}
		b = restarted(t, b, syscall.SIGKILL)
		p.c = dial(t, b)
		p.stored(0, sequence, 3)
		for back := range batch.Sequence(5) { // the newest first: it may not be there yet
			p.again(0, sequence-3*back, 3, base-3*batch.Offset(back))
		}
		p.refused(0, sequence-15, 3, codeOutOfOrder)
		p.mustHold(t, p.c, 0)
	}
	p.store(0, 36, 1)
}

// permutations yields every order of the numbers below n.
func permutations(n int) func(yield func([]int) bool) {
	return func(yield func([]int) bool) {
		var extend func(order []int) bool
		extend = func(order []int) bool {
			if len(order) == n {
				return yield(order)
			}
			for i := range n {
				if !slices.Contains(order, i) && !extend(append(slices.Clip(order), i)) {
					return false
				}
			}
			return true
		}
		extend(nil)
	}
}

// A broker answered that the request timed out for a batch that it then stored; the client gave its sequence to
// another record, and the broker took that one for the first (twmb/franz-go issue 1217). The broker's part: "timed out"
// leaves open whether the batch is stored; a retry is answered with success not before the original is readable, and
// then with the original's offset. Here the disk gets no time at all, over many connections at once.
func TestTimedOutLeavesItOpen(t *testing.T) {
	t.Parallel()
	b := sharedBroker(t)
	p := newProducerOn(t, b)
	const connections, rounds = 8, 60
	var retries []*rawkafka.Client
	for range connections {
		retries = append(retries, dial(t, b))
	}
	timedOut := 0
	var mu sync.Mutex
	for round := range batch.Sequence(rounds) {
		base := p.next()
		var done sync.WaitGroup
		for _, c := range retries {
			done.Go(func() {
				req := p.request(p.bytes(0, round, 1))
				req.TimeoutMillis = 0
				answer, err := rawkafka.Roundtrip[*kmsg.ProduceResponse](c, req)
				if err != nil {
					t.Error(err)
					return
				}
				switch a := answer.Topics[0].Partitions[0]; {
				case a.ErrorCode == codeTimedOut && a.BaseOffset == -1:
					mu.Lock()
					timedOut++
					mu.Unlock()
				case a.ErrorCode != 0 || a.BaseOffset != int64(base):
					t.Errorf("round %d: answered code %d offset %d, want %d, or 0 and %d", round, a.ErrorCode, a.BaseOffset, codeTimedOut, base)
				default:
					f, err := c.Fetch(rawkafka.FetchVersion, p.topic, 0, base, 0)
					if err != nil || f.HighWatermark <= base || len(f.Batches) == 0 {
						t.Errorf("round %d: answered with offset %d, which cannot be read: %+v, %v", round, base, f, err)
					}
				}
			})
		}
		done.Wait()
		p.stored(0, round, 1)
		p.again(0, round, 1, base)
	}
	if timedOut == 0 {
		t.Error("nothing was shown: no request timed out")
	}
	p.mustHold(t, p.c, 0)
}

// The same report through the client that it names: the broker stands still while records are on their way, and their
// callers lose patience. What was reported as produced is at the offset that was reported; what was given up may be there,
// once, or not; and what comes later goes on.
func TestCallersThatLosePatience(t *testing.T) {
	t.Parallel()
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	topic := newTopic(t, dial(t, b), 1)
	client := newFranz(t, b, kgo.DefaultProduceTopic(topic.Name), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProduceRequestTimeout(200*time.Millisecond), kgo.RequestTimeoutOverhead(200*time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }))
	var mu sync.Mutex
	reported := map[string]int64{}
	sent := 0
	produce := func(ctx context.Context, n int) {
		for range n {
			value := fmt.Sprint("record ", sent)
			sent++
			client.Produce(ctx, kgo.StringRecord(value), func(r *kgo.Record, err error) {
				if err == nil {
					mu.Lock()
					reported[value] = r.Offset
					mu.Unlock()
				}
			})
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 3 {
		produce(ctx, 50)
		if err := client.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if err := b.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		impatient, giveUp := context.WithTimeout(ctx, 300*time.Millisecond)
		produce(impatient, 20)
		<-impatient.Done()
		giveUp()
		produce(ctx, 20)
		if err := b.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := client.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	log, _, err := dial(t, b).ReadLog(rawkafka.FetchVersion, topic, 0)
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int64{}
	for _, b := range log {
		for i, payload := range b.Records {
			if offset, twice := at[string(payload)]; twice {
				t.Errorf("%s is at %d and at %d", payload, offset, int64(b.BaseOffset)+int64(i))
			}
			at[string(payload)] = int64(b.BaseOffset) + int64(i)
		}
	}
	for value, offset := range reported {
		if got, stored := at[value]; !stored || got != offset {
			t.Errorf("%s was reported at %d; it is stored: %v, at %d", value, offset, stored, got)
		}
	}
	if len(reported) < 3*(50+20) {
		t.Errorf("%d records were reported as produced, want all that nobody gave up: %d", len(reported), 3*(50+20))
	}
}

// The first batch of a pipeline failed for a passing reason, those behind it were refused as out of order, which is
// normal, and the client took that for a reason to raise its epoch everywhere; a batch in doubt on another partition
// lost its name and was stored twice (confluentinc/librdkafka issue 4953). Right is: nothing behind the failed one is
// stored, all of it is stored in order afterwards, and the other partition's retry finds its original.
func TestPipelineBehindAFailedBatch(t *testing.T) {
	t.Parallel()
	b := sharedBroker(t)
	p := newProducerOn(t, b)
	other := &producer{t: t, c: p.c, id: p.id, ledger: &ledger{topic: newTopic(t, p.c, 2), partition: 1}}
	p.store(0, 0, 1)
	for failed := range 5 { // the place of the bad one in the pipeline
		first := batch.Sequence(p.next())
		var bad, good []kmsg.Request
		want := make([]int16, 5)
		for i := range 5 {
			raw := p.bytes(0, first+batch.Sequence(i), 1)
			good = append(good, p.request(slices.Clone(raw)))
			switch {
			case i == failed:
				raw[rawkafka.FieldCRC]++
				want[i] = codeCorrupt
			case i > failed:
				want[i] = codeOutOfOrder
			}
			bad = append(bad, p.request(raw))
		}
		// Meanwhile a batch on the other partition is in doubt.
		sequence := batch.Sequence(other.next())
		doubtful := dial(t, b)
		if err := doubtful.Send(other.request(other.bytes(0, sequence, 2))); err != nil {
			t.Fatal(err)
		}
		if err := p.c.SendAll(bad...); err != nil {
			t.Fatal(err)
		}
		if got := codes(p.answers(5)); !slices.Equal(got, want) {
			t.Fatalf("with batch %d of five broken: codes %v, want %v", failed, got, want)
		}
		if err := p.c.SendAll(good...); err != nil {
			t.Fatal(err)
		}
		for i, a := range p.answers(5) {
			if base := batch.Offset(first) + batch.Offset(i); a.Code != 0 || a.Base != base {
				t.Fatalf("batch %d of five, sent again: code %d offset %d (%s), want 0 and %d", i, a.Code, a.Base, a.Text, base)
			}
			p.stored(0, first+batch.Sequence(i), 1)
		}
		if err := doubtful.Close(); err != nil {
			t.Fatal(err)
		}
		other.again(0, sequence, 2, batch.Offset(sequence))
		other.stored(0, sequence, 2)
	}
	p.mustHold(t, p.c, 0)
	other.mustHold(t, p.c, 0)
}

// The last part of that report needs a node that has just lost leadership. A node that stops or has just started is as
// near as one node comes: to a pipeline it says "not now" for all of it, or nothing, and never that the order is wrong.
func TestPipelineAcrossAStop(t *testing.T) {
	t.Parallel()
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	p := newProducerOn(t, b)
	for round := range 12 {
		first := batch.Sequence(p.next())
		var pipeline []kmsg.Request
		for i := range batch.Sequence(5) {
			pipeline = append(pipeline, p.request(p.bytes(0, first+i, 1)))
			p.stored(0, first+i, 1)
		}
		// The broker ends when so many of the five are answered.
		answered := round % 6
		moment, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- pipelineUntilStored(b.Addr(), pipeline, batch.Offset(first), answered, sync.OnceFunc(func() { close(moment) }))
		}()
		<-moment
		b = restarted(t, b, stops[round/6])
		if err := <-ended; err != nil {
			t.Fatalf("%v after %d answers: %v", stops[round/6], answered, err)
		}
		p.c = dial(t, b)
		p.mustHold(t, p.c, 0)
	}
}

// pipelineUntilStored sends a pipeline over and over, each time on a new connection, until all of it is answered with
// success, from the offset base on. Any answer that is neither success nor "not now" is an error. It calls moment when
// so many answers of one try have come, and at the end.
func pipelineUntilStored(addr string, pipeline []kmsg.Request, base batch.Offset, answers int, moment func()) error {
	defer moment()
	try := func() (stored int, err error) {
		c, err := rawkafka.Dial(addr, rawkafka.Options{Timeout: patience})
		if err != nil {
			return 0, nil // it is down
		}
		defer c.Close()
		if c.SendAll(pipeline...) != nil {
			return 0, nil
		}
		for i := range pipeline {
			if i == answers {
				moment()
			}
			answer, err := c.Receive()
			if err != nil {
				return 0, nil
			}
			a, err := rawkafka.ProduceAnswerOf(answer)
			switch want := base + batch.Offset(i); {
			case err != nil:
				return 0, err
			case a.Code == 0 && a.Base == want:
				stored++
			case a.Code != codeNotLeader && a.Code != codeTimedOut:
				return 0, fmt.Errorf("batch %d of the pipeline: code %d offset %d (%s), want offset %d", i, a.Code, a.Base, a.Text, want)
			}
		}
		return stored, nil
	}
	for begun := time.Now(); time.Since(begun) < patience; {
		if stored, err := try(); err != nil || stored == len(pipeline) {
			return err
		}
	}
	return errors.New("the pipeline was not stored in time")
}

// Clients may raise the epoch of an id by themselves; a broker that compared sequences across epochs refused what was
// new or took it for what it had (redpanda-data/redpanda pulls 22687 and 22757). Right is: a new epoch begins at 0 and
// nowhere else, the same sequences in it are new, and the old epoch is fenced, its retries included. It stays so after
// a stop and after a kill.
func TestProducerRaisesItsEpoch(t *testing.T) {
	t.Parallel()
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	p := newProducerOn(t, b)
	p.store(0, 0, 5)
	for epoch := range batch.Epoch(4) {
		base := p.next()
		p.refused(epoch+1, 5, 1, codeOutOfOrder)
		p.again(epoch, 0, 5, base-5) // what was refused has changed nothing
		p.store(epoch+1, 0, 5)
		for range 2 {
			p.again(epoch+1, 0, 5, base)
			p.refused(epoch, 5, 1, codeFenced)
			p.refused(epoch, 0, 5, codeFenced)
			b = restarted(t, b, stops[epoch%2])
			p.c = dial(t, b)
		}
	}
	p.store(30_000, 0, 1)
	p.store(32_767, 0, 1)
	p.refused(30_000, 1, 1, codeFenced)
	p.mustHold(t, p.c, 0)
}
