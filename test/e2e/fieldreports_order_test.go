package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// The second batch of a new producer came to a new topic before the first, which had met a broker that did not know the
// topic yet. The broker took any first sequence; the first batch was refused from then on, and lost (Apache Kafka
// KAFKA-15591, twmb/franz-go pull 1417). Right is: a producer that the partition cannot have forgotten begins at 0,
// whether the partition is new, used, or was used before a restart.
func TestSecondBatchComesFirst(t *testing.T) {
	t.Parallel()
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	first := newProducerOn(t, b)
	early := func(p *producer) {
		t.Helper()
		base := p.next()
		p.refused(0, 17, 5, codeOutOfOrder)
		p.refused(0, 1, 1, codeOutOfOrder)
		p.refused(0, 2147483647, 1, codeOutOfOrder)
		p.mustHold(t, p.c, 0)
		p.store(0, 0, 17)
		p.store(0, 17, 5)
		p.again(0, 0, 17, base)
		p.again(0, 17, 5, base+17)
		p.mustHold(t, p.c, 0)
	}
	early(first)
	early(first.beside())
	for _, sig := range stops {
		b = restarted(t, b, sig)
		first.c = dial(t, b)
		early(first.beside())
	}
}

// The same, end to end: a topic is created, and two batches are sent in a pipeline while that is going on.
func TestPipelineIntoANewTopic(t *testing.T) {
	t.Parallel()
	b := sharedBroker(t)
	c := dial(t, b)
	for range 40 {
		p := &producer{t: t, c: dial(t, b), id: newProducerID(t, c), ledger: &ledger{topic: rawkafka.Topic{Name: freshName()}}}
		created := make(chan error, 1)
		go func() {
			_, err := c.CreateTopic(p.topic.Name, 1)
			created <- err
		}()
		pipeline := []kmsg.Request{p.request(p.bytes(0, 0, 17)), p.request(p.bytes(0, 17, 5))}
		for stored := false; !stored; {
			if err := p.c.SendAll(pipeline...); err != nil {
				t.Fatal(err)
			}
			a := p.answers(2)
			if a[1].Code == 0 && a[0].Code != 0 {
				t.Fatalf("the second batch was stored at %d, the first refused with code %d", a[1].Base, a[0].Code)
			}
			if stored = a[0].Code == 0 && a[1].Code == 0; stored && (a[0].Base != 0 || a[1].Base != 17) {
				t.Fatalf("stored at %d and %d, want 0 and 17", a[0].Base, a[1].Base)
			}
		}
		if err := <-created; err != nil {
			t.Fatal(err)
		}
		p.stored(0, 0, 17)
		p.stored(0, 17, 5)
		p.mustHold(t, c, 0)
	}
}

// The same through a client, which creates topics by asking for them and has five requests in flight.
func TestFranzIntoNewTopics(t *testing.T) {
	t.Parallel()
	const rounds, records = 100, 6
	b := sharedBroker(t)
	client := newFranz(t, b, kgo.AllowAutoTopicCreation(), kgo.StopProducerOnDataLossDetected(), kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(1024)) // one record a batch
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	ledgers := make([]*ledger, rounds)
	failed := make(chan error, rounds*records)
	for i := range ledgers {
		l := &ledger{topic: rawkafka.Topic{Name: freshName()}}
		for j := range records {
			value := fmt.Appendf(nil, "record %d %s", j, strings.Repeat(".", 700))
			l.records = append(l.records, value)
			client.Produce(ctx, &kgo.Record{Topic: l.topic.Name, Value: value}, func(r *kgo.Record, err error) {
				if err != nil || r.Offset != int64(j) {
					failed <- fmt.Errorf("topic %d record %d: offset %d, %w", i, j, r.Offset, err)
				}
			})
		}
		ledgers[i] = l
	}
	if err := client.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	for len(failed) > 0 {
		t.Error(<-failed)
	}
	for _, l := range ledgers {
		l.mustHold(t, dial(t, b), 0)
	}
}

// Requests of one connection were handled side by side: batches were appended in another order than they were sent, and
// answers came in another order than the requests (streamnative/kop issue 113, redpanda-data/redpanda pulls 1496 and
// 25636). Right is: one order, that of the connection, whatever the sizes, for all producers on it, and with other
// requests between; every batch is stored at its first try.
func TestPipelineKeepsItsOrder(t *testing.T) {
	t.Parallel()
	const rounds, large, small = 24, 900_000, 100
	c := dial(t, sharedBroker(t))
	topic := newTopic(t, c, 3)
	ids := []batch.ProducerID{newProducerID(t, c), newProducerID(t, c)}
	var ends [2]batch.Offset // of the partitions, and as sequences of their producers
	rng := rand.New(rand.NewPCG(16, 16))
	fill := bytes.Repeat([]byte("x"), large)
	for round := range rounds {
		var reqs []kmsg.Request
		var bases []batch.Offset
		for i := range 5 {
			size := []int{large, small}[(i+round)%2]
			who := rng.IntN(2) // two producers, each on a partition of its own
			raw := rawkafka.Idempotent(ids[who], 0, batch.Sequence(ends[who]), fill[:size], fill[:small]).Bytes()
			reqs = append(reqs, rawkafka.ProduceRequest(rawkafka.ProduceVersion, topic, int32(who), raw))
			bases = append(bases, ends[who])
			ends[who] += 2
		}
		metadata := kmsg.NewPtrMetadataRequest()
		metadata.Version = 9
		if err := c.SendAll(append(reqs, metadata)...); err != nil {
			t.Fatal(err)
		}
		for i, base := range bases { // Receive demands the correlation ids in order
			answer, err := c.Receive()
			if err != nil {
				t.Fatal(err)
			}
			if a, err := rawkafka.ProduceAnswerOf(answer); err != nil || a.Code != 0 || a.Base != base {
				t.Fatalf("round %d batch %d: %+v, %v, want offset %d", round, i, a, err, base)
			}
		}
		if answer, err := c.Receive(); err != nil || answer.Key() != metadata.Key() {
			t.Fatalf("round %d: %+v, %v, want metadata", round, answer, err)
		}
	}

	// A fetch that waits is answered before the produce behind it.
	const wait = 200 * time.Millisecond
	begun := time.Now()
	fetch := rawkafka.FetchRequest(rawkafka.FetchVersion, topic, 2, 0, wait)
	if err := c.SendAll(fetch, rawkafka.ProduceRequest(rawkafka.ProduceVersion, topic, 2, rawkafka.Plain(fill[:small]).Bytes())); err != nil {
		t.Fatal(err)
	}
	answer, err := c.Receive()
	if err != nil {
		t.Fatal(err)
	}
	if f, err := rawkafka.FetchAnswerOf(answer); err != nil || f.Code != 0 || len(f.Batches) != 0 || time.Since(begun) < wait {
		t.Errorf("a fetch from an empty partition: %+v, %v after %v, want nothing after %v", f, err, time.Since(begun), wait)
	}
	if answer, err = c.Receive(); err != nil {
		t.Fatal(err)
	}
	if a, err := rawkafka.ProduceAnswerOf(answer); err != nil || a.Code != 0 || a.Base != 0 {
		t.Errorf("the produce behind it: %+v, %v", a, err)
	}
}
