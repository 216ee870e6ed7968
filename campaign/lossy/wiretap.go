package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

const produceKey = 0

// problemsMax bounds the problems that are kept as text.
const problemsMax = 10

// batchKey names a batch as the broker's decision does.
type batchKey struct {
	topic     string
	partition int32
	id        batch.ProducerID
	epoch     batch.Epoch
	first     batch.Sequence
	count     int32
}

func (k batchKey) String() string {
	return fmt.Sprintf("%s/%d producer id %d epoch %d sequence %d count %d", k.topic, k.partition, k.id, k.epoch, k.first, k.count)
}

// keyOf reads the header of a batch in wire form.
func keyOf(topic string, partition int32, raw []byte) (k batchKey, crc uint32, err error) {
	if len(raw) < rawkafka.BatchHeaderSize {
		return k, 0, fmt.Errorf("a batch of %d bytes", len(raw))
	}
	return batchKey{
		topic:     topic,
		partition: partition,
		id:        batch.ProducerID(binary.BigEndian.Uint64(raw[rawkafka.FieldProducerID:])),
		epoch:     batch.Epoch(binary.BigEndian.Uint16(raw[rawkafka.FieldProducerEpoch:])),
		first:     batch.Sequence(binary.BigEndian.Uint32(raw[rawkafka.FieldBaseSequence:])),
		count:     int32(binary.BigEndian.Uint32(raw[rawkafka.FieldCount:])),
	}, binary.BigEndian.Uint32(raw[rawkafka.FieldCRC:]), nil
}

// start names the place in the sequence where the batch begins, end the one where the next batch does.
func (k batchKey) start() batchKey {
	k.count = 0
	return k
}

func (k batchKey) end() batchKey {
	k.first, k.count = batch.AddSequence(k.first, k.count), 0
	return k
}

// wired is what the proxy saw of one batch.
type wired struct {
	crc      uint32
	answers  int          // how often the broker answered that it is stored, whether the client got to know it or not
	answered uint64       // event of the first of these answers
	conn     uint64       // over which that came
	base     batch.Offset // as answered; -1 before
}

// traffic counts the produces of one client.
type traffic struct {
	batches      int // different ones
	again        int // sent again, whole
	deduplicated int // answered again: the broker knew them
	early        int // refused with right: the batch before was lost on the way
	retriable    int // answered with an error that asks to try again
}

// partitionKey names a partition in a request and its answer: by the topic's name or, in newer versions, its id.
type partitionKey struct {
	topic     string
	topicID   [16]byte
	partition int32
}

// exchange is a request whose answer has not come yet.
type exchange struct {
	client      string
	key         int16
	version     int16
	correlation int32
	sent        uint64                    // event
	batches     map[partitionKey]batchKey // of a produce
}

// wiretap sees all that the proxy sees, also the answers that it swallows, and holds the broker to them: every
// answer to a batch is the same, no right batch is refused, and what is in the log at the end is what was answered.
type wiretap struct {
	mu       sync.Mutex
	events   uint64                // requests and answers so far
	pending  map[uint64][]exchange // by connection, oldest first
	topics   map[[16]byte]string   // names by id
	batches  map[batchKey]*wired
	ends     map[batchKey]*wired // the same, by the key's end
	clients  map[string]*traffic
	problems []string
	broken   int // problems, also those that are not kept
}

func newWiretap() *wiretap {
	return &wiretap{
		pending: make(map[uint64][]exchange),
		topics:  make(map[[16]byte]string),
		batches: make(map[batchKey]*wired),
		ends:    make(map[batchKey]*wired),
		clients: make(map[string]*traffic),
	}
}

func (w *wiretap) problem(format string, args ...any) {
	if w.broken++; w.broken <= problemsMax {
		w.problems = append(w.problems, fmt.Sprintf(format, args...))
	}
}

// request is called with every request that goes to the broker.
func (w *wiretap) request(conn uint64, frame []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x, body, err := readHead(frame[4:])
	w.events++
	x.sent = w.events
	if err == nil && x.key == produceKey {
		err = w.produce(&x, body)
	}
	if err != nil {
		w.problem("connection %d: a request that cannot be read: %v", conn, err)
	}
	w.pending[conn] = append(w.pending[conn], x)
}

var errCut = errors.New("it ends too early")

// readHead reads the request header and returns what follows it.
func readHead(b []byte) (x exchange, body []byte, err error) {
	if len(b) < 10 {
		return x, nil, errCut
	}
	x.key, x.version = int16(binary.BigEndian.Uint16(b)), int16(binary.BigEndian.Uint16(b[2:]))
	x.correlation = int32(binary.BigEndian.Uint32(b[4:]))
	size := max(0, int(int16(binary.BigEndian.Uint16(b[8:])))) // -1 is null
	if b = b[10:]; len(b) < size {
		return x, nil, errCut
	}
	x.client, body = string(b[:size]), b[size:]
	req := kmsg.RequestForKey(x.key)
	if req == nil {
		return x, nil, fmt.Errorf("unknown api key %d", x.key)
	}
	req.SetVersion(x.version)
	if !req.IsFlexible() {
		return x, body, nil
	}
	if len(body) < 1 || body[0] != 0 {
		return x, nil, errors.New("tagged fields in the header")
	}
	return x, body[1:], nil
}

func (w *wiretap) produce(x *exchange, body []byte) error {
	req := kmsg.NewPtrProduceRequest()
	req.SetVersion(x.version)
	if err := req.ReadFrom(body); err != nil {
		return fmt.Errorf("read produce: %w", err)
	}
	if req.Acks != -1 {
		return fmt.Errorf("a produce with acks %d", req.Acks)
	}
	count := w.traffic(x.client)
	x.batches = make(map[partitionKey]batchKey)
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			k, crc, err := keyOf(cmp.Or(t.Topic, w.topics[t.TopicID]), p.Partition, p.Records)
			if err != nil {
				return err
			}
			if k.id < 0 {
				return fmt.Errorf("a batch without a producer: %v", k)
			}
			b := w.batches[k]
			switch {
			case b == nil:
				b = &wired{crc: crc, base: -1}
				w.batches[k], w.ends[k.end()] = b, b
				count.batches++
			case b.crc != crc:
				w.problem("%s: %v was sent again with other content", x.client, k)
			default:
				count.again++
			}
			x.batches[partitionKey{t.Topic, t.TopicID, p.Partition}] = k
		}
	}
	return nil
}

func (w *wiretap) traffic(client string) *traffic {
	t := w.clients[client]
	if t == nil {
		t = new(traffic)
		w.clients[client] = t
	}
	return t
}

// answer is called with every answer of the broker.
func (w *wiretap) answer(conn uint64, frame []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting := w.pending[conn]
	if len(waiting) == 0 || len(frame) < 8 {
		w.problem("connection %d: an answer of %d bytes to no request", conn, len(frame))
		return
	}
	w.events++
	x := waiting[0]
	if w.pending[conn] = waiting[1:]; len(waiting) == 1 {
		delete(w.pending, conn)
	}
	if got := int32(binary.BigEndian.Uint32(frame[4:])); got != x.correlation {
		w.problem("connection %d: the answer has correlation id %d, want %d", conn, got, x.correlation)
		return
	}
	if x.key == produceKey {
		if err := w.produced(conn, x, frame[8:]); err != nil {
			w.problem("%s: an answer that cannot be read: %v", x.client, err)
		}
	}
}

// Error codes that may be answered to a right batch.
const (
	codeNotLeader  = 6
	codeTimedOut   = 7
	codeOutOfOrder = 45
)

func (w *wiretap) produced(conn uint64, x exchange, body []byte) error {
	answer := kmsg.NewPtrProduceResponse()
	answer.SetVersion(x.version)
	if answer.IsFlexible() {
		if len(body) < 1 || body[0] != 0 {
			return errors.New("tagged fields in the header")
		}
		body = body[1:]
	}
	if err := answer.ReadFrom(body); err != nil {
		return err
	}
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			key := partitionKey{t.Topic, t.TopicID, p.Partition}
			k, asked := x.batches[key]
			if !asked {
				return fmt.Errorf("partition %d was not asked for", p.Partition)
			}
			delete(x.batches, key)
			if b := w.batches[k]; b != nil { // else the round was judged meanwhile
				w.fate(conn, x, k, b, p)
			}
		}
	}
	if len(x.batches) != 0 {
		return fmt.Errorf("%d partitions have no answer", len(x.batches))
	}
	return nil
}

// fate notes what the broker answered to one batch.
func (w *wiretap) fate(conn uint64, x exchange, k batchKey, b *wired, p kmsg.ProduceResponseTopicPartition) {
	count := w.traffic(x.client)
	switch {
	case p.ErrorCode == codeNotLeader, p.ErrorCode == codeTimedOut:
		count.retriable++
	case p.ErrorCode == codeOutOfOrder && w.missing(conn, x, k, b):
		count.early++
	case p.ErrorCode != 0:
		w.problem("%s: a batch was refused with code %d, earlier answered with success %d times: %v", x.client, p.ErrorCode, b.answers, k)
	case b.answers == 0:
		b.answers, b.answered, b.conn, b.base = 1, w.events, conn, batch.Offset(p.BaseOffset)
	case b.base != batch.Offset(p.BaseOffset):
		w.problem("%s: a batch is at %d, its retry was answered %d: %v", x.client, b.base, p.BaseOffset, k)
	default:
		b.answers++
		count.deduplicated++
	}
}

// missing reports whether the batch before this one may have been missing when this one came to the broker. It was
// not when it had been answered as stored before this one was sent, or on the same connection before the answer to
// this one. franz-go does send a batch whose predecessor is lost: when a connection is cut it goes on, over the next
// one, with the requests that it has prepared, before it repeats the lost ones. It takes no notice of the refusal.
func (w *wiretap) missing(conn uint64, x exchange, k batchKey, b *wired) bool {
	if b.answers > 0 || k.first == 0 {
		return false
	}
	before := w.ends[k.start()]
	return before == nil || before.answers == 0 || before.answered > x.sent && before.conn != conn
}

// name tells the name of a topic, before anything is sent to it.
func (w *wiretap) name(topic rawkafka.Topic) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.topics[topic.ID] = topic.Name
}

// judge holds the log of one partition, read from the broker itself, against what was sent and answered, and forgets
// that.
func (w *wiretap) judge(topic string, partition int32, log []rawkafka.Batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	type producer struct {
		epoch batch.Epoch
		next  int64
	}
	producers := make(map[batch.ProducerID]producer)
	stored := make(map[batchKey]bool)
	for _, l := range log {
		k, crc, err := keyOf(topic, partition, l.Raw)
		if err != nil {
			w.problem("offset %d: %v", l.BaseOffset, err)
			continue
		}
		if stored[k] {
			w.problem("offset %d: stored twice: %v", l.BaseOffset, k)
		}
		stored[k] = true
		switch b := w.batches[k]; {
		case b == nil:
			w.problem("offset %d: nobody sent %v", l.BaseOffset, k)
		case b.crc != crc:
			w.problem("offset %d: other content than was sent: %v", l.BaseOffset, k)
		case b.answers > 0 && b.base != l.BaseOffset:
			w.problem("offset %d: answered was %d: %v", l.BaseOffset, b.base, k)
		}
		last, known := producers[k.id]
		if next := last.next & (1<<31 - 1); known && k.epoch == last.epoch && int64(k.first) != next {
			w.problem("offset %d: sequence %d comes next: %v", l.BaseOffset, next, k)
		}
		if (!known || k.epoch != last.epoch) && k.first != 0 || known && k.epoch < last.epoch {
			w.problem("offset %d: no epoch begins like this: %v", l.BaseOffset, k)
		}
		producers[k.id] = producer{epoch: k.epoch, next: int64(k.first) + int64(k.count)}
	}
	for k, b := range w.batches {
		if k.topic != topic || k.partition != partition {
			continue
		}
		if b.answers > 0 && !stored[k] {
			w.problem("answered with offset %d and not in the log: %v", b.base, k)
		}
		delete(w.batches, k)
		delete(w.ends, k.end())
	}
}
