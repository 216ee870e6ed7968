package e2e

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// The tests of the files fieldreports_*_test.go each begin with a fault that somebody met in a system of this kind and
// told in public, and demand what is right for its whole kind: all positions of the window, all moments of a kill, all
// clients that were named. What is told there of several nodes is shown here as far as one node can show it.

const (
	codeNotLeader         = 6
	codeTimedOut          = 7
	codeNotEnoughReplicas = 19
	codeStorage           = 56
)

// ledger is one partition and all that must be in it, by offset.
type ledger struct {
	topic     rawkafka.Topic
	partition int32
	records   [][]byte
}

func (l *ledger) next() batch.Offset { return batch.Offset(len(l.records)) }

// mustHold reads the partition: from the offset start, where it must begin, it must hold what the ledger says.
func (l *ledger) mustHold(t *testing.T, c *rawkafka.Client, start batch.Offset) {
	t.Helper()
	if logStart, _, err := c.Offsets(l.topic, l.partition); err != nil || logStart != start {
		t.Fatalf("the log starts at %d, %v, want %d", logStart, err, start)
	}
	log, end, err := c.ReadLog(rawkafka.FetchVersion, l.topic, l.partition)
	if err != nil {
		t.Fatal(err)
	}
	if end != l.next() {
		t.Errorf("the high watermark is %d, want %d", end, l.next())
	}
	next := start
	for _, b := range log {
		for _, payload := range b.Records[max(0, start-b.BaseOffset):] {
			if next >= l.next() || string(payload) != string(l.records[next]) {
				t.Fatalf("offset %d holds %.60q, which is not what was stored there", next, payload)
			}
			next++
		}
	}
	if next != l.next() {
		t.Errorf("the log was read up to %d, want %d", next, l.next())
	}
}

// producer is an idempotent producer on one partition. Epoch, sequence and count of a batch say what is in it, so that
// asking for it again sends the same bytes.
type producer struct {
	t  *testing.T
	c  *rawkafka.Client
	id batch.ProducerID
	*ledger
}

// newProducerOn returns a producer with an id of its own on partition 0 of a topic of its own.
func newProducerOn(t *testing.T, b *testbroker.Broker) *producer {
	t.Helper()
	c := dial(t, b)
	return &producer{t: t, c: c, id: newProducerID(t, c), ledger: &ledger{topic: newTopic(t, c, 1)}}
}

// beside returns another producer, with another id, on the same partition.
func (p *producer) beside() *producer {
	p.t.Helper()
	return &producer{t: p.t, c: p.c, id: newProducerID(p.t, p.c), ledger: p.ledger}
}

func (p *producer) payloads(epoch batch.Epoch, sequence batch.Sequence, n int) [][]byte {
	return payloads(fmt.Sprintf("producer %d epoch %d sequence %d", p.id, epoch, sequence), n)
}

func (p *producer) bytes(epoch batch.Epoch, sequence batch.Sequence, n int) []byte {
	return rawkafka.Idempotent(p.id, epoch, sequence, p.payloads(epoch, sequence, n)...).Bytes()
}

func (p *producer) request(raw []byte) *kmsg.ProduceRequest {
	return rawkafka.ProduceRequest(rawkafka.ProduceVersion, p.topic, p.partition, raw)
}

func (p *producer) send(epoch batch.Epoch, sequence batch.Sequence, n int) rawkafka.ProduceAnswer {
	p.t.Helper()
	a, err := p.c.Produce(rawkafka.ProduceVersion, p.topic, p.partition, p.bytes(epoch, sequence, n))
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

func (p *producer) expect(what string, epoch batch.Epoch, sequence batch.Sequence, n int, code int16, base batch.Offset) {
	p.t.Helper()
	if a := p.send(epoch, sequence, n); a.Code != code || a.Base != base {
		p.t.Fatalf("epoch %d sequence %d, %d records, %s: answered code %d offset %d (%s), want code %d offset %d",
			epoch, sequence, n, what, a.Code, a.Base, a.Text, code, base)
	}
}

// store sends a batch that must be stored behind all that is there.
func (p *producer) store(epoch batch.Epoch, sequence batch.Sequence, n int) {
	p.t.Helper()
	p.expect("is new", epoch, sequence, n, 0, p.next())
	p.stored(epoch, sequence, n)
}

// stored notes a batch that was stored behind all that is there.
func (p *producer) stored(epoch batch.Epoch, sequence batch.Sequence, n int) {
	p.records = append(p.records, p.payloads(epoch, sequence, n)...)
}

// again sends a batch again that is stored at base.
func (p *producer) again(epoch batch.Epoch, sequence batch.Sequence, n int, base batch.Offset) {
	p.t.Helper()
	p.expect("is a retry", epoch, sequence, n, 0, base)
}

// refused sends a batch that must not be stored.
func (p *producer) refused(epoch batch.Epoch, sequence batch.Sequence, n int, code int16) {
	p.t.Helper()
	p.expect("must be refused", epoch, sequence, n, code, noOffset)
}

// answers receives the answers to n produces.
func (p *producer) answers(n int) (all []rawkafka.ProduceAnswer) {
	p.t.Helper()
	for range n {
		answer, err := p.c.Receive()
		if err != nil {
			p.t.Fatal(err)
		}
		a, err := rawkafka.ProduceAnswerOf(answer)
		if err != nil {
			p.t.Fatal(err)
		}
		all = append(all, a)
	}
	return all
}

// codes are the error codes of answers.
func codes(answers []rawkafka.ProduceAnswer) (all []int16) {
	for _, a := range answers {
		all = append(all, a.Code)
	}
	return all
}

// restarted ends a broker with a signal and starts another one in its place.
func restarted(t *testing.T, b *testbroker.Broker, sig syscall.Signal) *testbroker.Broker {
	t.Helper()
	if err := b.Signal(sig); err != nil {
		t.Fatal(err)
	}
	if _, err := waitExit(t, b); err != nil {
		t.Fatal(err)
	}
	return ownBroker(t, b.Config())
}

// stops are the two ways in which a broker ends.
var stops = []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}
