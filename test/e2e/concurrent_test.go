package e2e

import (
	"fmt"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

// The same batch over 32 connections at once: one copy, 32 equal answers. 50 times; the first is also the first that
// the partition hears of the producer.
func TestSameBatchOverManyConnections(t *testing.T) {
	const connections, rounds, perBatch = 32, 50, 3
	b := sharedBroker(t)
	c := dial(t, b)
	topic := newTopic(t, c, 1)
	id := newProducerID(t, c)
	var clients []*rawkafka.Client
	for range connections {
		clients = append(clients, dial(t, b))
	}
	var log [][]byte
	for round := range rounds {
		records := payloads(fmt.Sprintf("round %d", round), perBatch)
		raw := rawkafka.Idempotent(id, 0, batch.Sequence(round*perBatch), records...).Bytes()
		req := rawkafka.ProduceRequest(rawkafka.ProduceVersion, topic, 0, raw)
		var frames [connections][]byte
		for i, client := range clients {
			frames[i], _ = client.Frame(req) // encoded before the start, so that the writes meet
		}
		start := make(chan struct{})
		var done sync.WaitGroup
		for i, client := range clients {
			done.Go(func() {
				<-start
				if err := client.SendRaw(frames[i]); err != nil {
					t.Errorf("round %d connection %d: %v", round, i, err)
				}
			})
		}
		close(start)
		done.Wait()
		for i, client := range clients {
			a := answerTo(t, client, req)
			if want := batch.Offset(round * perBatch); a.Code != 0 || a.Base != want {
				t.Fatalf("round %d connection %d: code %d offset %d, want 0 and %d", round, i, a.Code, a.Base, want)
			}
		}
		log = append(log, records...)
	}
	mustHold(t, c, topic, log)
}

// answerTo reads the next frame as the answer to a flexible produce.
func answerTo(t *testing.T, c *rawkafka.Client, req *kmsg.ProduceRequest) rawkafka.ProduceAnswer {
	t.Helper()
	frame, err := c.ReceiveFrame()
	if err != nil {
		t.Fatal(err)
	}
	if len(frame) < 5 {
		t.Fatalf("an answer of %d bytes", len(frame))
	}
	answer := req.ResponseKind()
	if err := answer.ReadFrom(frame[5:]); err != nil { // correlation id and no tagged fields
		t.Fatal(err)
	}
	a, err := rawkafka.ProduceAnswerOf(answer)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Five produces in one write are stored and answered in order, and so are the same five again.
func TestFivePipelined(t *testing.T) {
	c := dial(t, sharedBroker(t))
	topic := newTopic(t, c, 1)
	id := newProducerID(t, c)
	var log [][]byte
	for round := range 20 {
		var reqs []kmsg.Request
		var bases []batch.Offset
		for i := range 5 {
			records := payloads(fmt.Sprintf("round %d batch %d", round, i), 1+i)
			raw := rawkafka.Idempotent(id, 0, batch.Sequence(len(log)), records...).Bytes()
			reqs = append(reqs, rawkafka.ProduceRequest(rawkafka.ProduceVersion, topic, 0, raw))
			bases = append(bases, batch.Offset(len(log)))
			log = append(log, records...)
		}
		if err := c.SendAll(append(reqs, reqs...)...); err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			answer, err := c.Receive()
			if err != nil {
				t.Fatal(err)
			}
			a, err := rawkafka.ProduceAnswerOf(answer)
			if err != nil {
				t.Fatal(err)
			}
			if a.Code != 0 || a.Base != bases[i%5] {
				t.Fatalf("round %d answer %d: code %d offset %d, want 0 and %d", round, i, a.Code, a.Base, bases[i%5])
			}
		}
	}
	mustHold(t, c, topic, log)
}
