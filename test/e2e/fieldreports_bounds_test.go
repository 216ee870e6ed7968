package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// A batch larger than the broker takes was split by its client without end, or all of its messages failed; the pieces of
// an idempotent producer need the sequences of the refused batch (Apache Kafka KAFKA-8350 and KAFKA-8202,
// confluentinc/librdkafka issue 488). The broker's part: it refuses without a side effect, counts the bytes as they
// came, and each partition of a request by itself.
func TestBatchThenItsHalves(t *testing.T) {
	t.Parallel()
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data", Set: []string{"message.max.bytes=10000"}})
	p := newProducerOn(t, b)
	fill := bytes.Repeat([]byte("x"), 1000)
	halves := [][]byte{fill, fill, fill, fill, fill}
	raw := func(sequence batch.Sequence, records ...[]byte) []byte {
		return rawkafka.Idempotent(p.id, 0, sequence, records...).Bytes()
	}
	tooLarge := raw(0, slices.Repeat([][]byte{bytes.Repeat(fill, 2)}, 10)...)
	for range 2 {
		if a := produce(t, p.c, p.topic, tooLarge); a.Code != codeTooLarge || a.Base != noOffset {
			t.Fatalf("20 KB: code %d offset %d, want %d", a.Code, a.Base, codeTooLarge)
		}
		p.mustHold(t, p.c, 0)
	}
	for range 2 {
		mustStore(t, p.c, p.topic, raw(0, halves...), 0)
		mustStore(t, p.c, p.topic, raw(5, halves...), 5)
	}
	p.records = append(halves, halves...)

	// 5 KB that inflate to 1 MB, 1.2 KB at a time.
	packed := gzipped(t, raw(10, slices.Repeat([][]byte{bytes.Repeat(fill, 100)}, 10)...))
	if len(packed) > 10_000 {
		t.Fatalf("the compressed batch has %d bytes", len(packed))
	}
	for range 2 {
		mustStore(t, p.c, p.topic, packed, 10)
	}
	// The limit in a request for two partitions.
	topic := newTopic(t, p.c, 2)
	req := rawkafka.ProduceRequest(rawkafka.ProduceVersion, topic, 0, tooLarge)
	other := req.Topics[0].Partitions[0]
	other.Partition, other.Records = 1, raw(0, halves...)
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, other)
	answer, err := rawkafka.Roundtrip[*kmsg.ProduceResponse](p.c, req)
	if err != nil {
		t.Fatal(err)
	}
	if got := answer.Topics[0].Partitions; len(got) != 2 || got[0].ErrorCode != codeTooLarge || got[1].ErrorCode != 0 || got[1].BaseOffset != 0 {
		t.Errorf("two partitions, one too large: %+v", got)
	}
}

// gzipped is a batch with its records compressed.
func gzipped(t *testing.T, raw []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	packed.Write(raw[:rawkafka.BatchHeaderSize])
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(raw[rawkafka.BatchHeaderSize:]); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b := packed.Bytes()
	binary.BigEndian.PutUint16(b[rawkafka.FieldAttributes:], 1)
	return put32(rawkafka.FieldBatchLength, uint32(len(b)-rawkafka.FieldLeaderEpoch))(b)
}

// The same through clients: records that are too large, between others. Those fail and tell their callers, the others are
// stored once, and both clients go on.
func TestTooLargeThroughClients(t *testing.T) {
	t.Parallel()
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data", Set: []string{"message.max.bytes=10000"}})
	values := [][]byte{[]byte("before"), bytes.Repeat([]byte("x"), 20_000), []byte("between"), bytes.Repeat([]byte("y"), 30_000), []byte("after")}
	stored := [][]byte{values[0], values[2], values[4]}
	t.Run("franz-go", func(t *testing.T) {
		c := dial(t, b)
		l := &ledger{topic: newTopic(t, c, 1), records: stored}
		client := newFranz(t, b, kgo.DefaultProduceTopic(l.topic.Name), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.StopProducerOnDataLossDetected())
		for i, v := range values {
			err := client.ProduceSync(t.Context(), &kgo.Record{Value: v}).FirstErr()
			if tooLarge := i%2 == 1; (err != nil) != tooLarge {
				t.Errorf("record %d of %d bytes: %v", i, len(v), err)
			}
		}
		l.mustHold(t, c, 0)
	})
	t.Run("kcat", func(t *testing.T) {
		c := dial(t, b)
		l := &ledger{topic: newTopic(t, c, 1), records: stored}
		in, ended := pipeToKcat(t, "-P", "-b", b.Addr(), "-t", l.topic.Name, "-X", "enable.idempotence=true", "-X", "acks=all", "-X", "batch.num.messages=1")
		if _, err := in.Write(append(bytes.Join(values, []byte("\n")), '\n')); err != nil {
			t.Fatal(err)
		}
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		if err := ended(); err == nil || strings.Count(err.Error(), "Delivery failed") != 2 {
			t.Errorf("kcat: %v, want two failed deliveries", err)
		}
		l.mustHold(t, c, 0)
	})
}

// flood is how many producers come once each. A million takes some minutes.
var flood = flag.Int("flood", 24_000, "producers that send one batch each, in TestFloodOfProducers")

// Applications that make a producer for each message left a trace in the broker for each, until its memory was full
// (fluent/fluent-plugin-kafka issue 406, redpanda-data/redpanda issues 5321 and 10238). Right is: a cap for each partition
// and one for the node, kept by forgetting those that were idle longest; who is in use is never forgotten and sees no
// error; who was forgotten may go on; and a restart is quick.
func TestFloodOfProducers(t *testing.T) {
	for _, f := range []*flooded{
		{name: "of partitions", limit: "producer.id.max.per.partition=1000", minAge: 10, producers: *flood, forgotten: floodedPartitions},
		// The node looks once a second, and frees a tenth of its cap. Which partition has the least recently used ones it
		// can tell only as well as their clocks agree, which count the time that a clock entry takes not at all.
		{name: "of the node", limit: "producer.id.max.per.node=1000", minAge: 1000, producers: min(*flood, 1200), forgotten: 1},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.run(t)
		})
	}
}

// flooded is a broker with a limit that is reached.
type flooded struct {
	name, limit string
	minAge      int // ms
	producers   int
	forgotten   int            // of the first producers, at least
	quiet       rawkafka.Topic // nobody writes to it

	left    atomic.Int64 // producers that did not come yet
	refused atomic.Int64 // batches for which there was no room at first
}

const floodedPartitions, floodConnections = 4, 16

func (f *flooded) run(t *testing.T) {
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data", Set: []string{
		f.limit, fmt.Sprintf("producer.id.eviction.min.age.ms=%d", f.minAge), "producer.id.expiration.check.interval.ms=10",
		"log.segment.entries=4096"}})
	c := dial(t, b)
	topic := newTopic(t, c, floodedPartitions)
	f.quiet = newTopic(t, c, 1)
	var firsts []batch.ProducerID // the first one of each partition
	for partition := range int32(floodedPartitions) {
		firsts = append(firsts, newProducerID(t, c))
		raw := rawkafka.Idempotent(firsts[partition], 0, 0, []byte("first")).Bytes()
		if a, err := c.Produce(rawkafka.ProduceVersion, topic, partition, raw); err != nil || a.Code != 0 {
			t.Fatalf("the first batch: %+v, %v", a, err)
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	steady := &steadyProducer{t: t, c: dial(t, b), topic: topic}
	go func() { defer close(stopped); steady.run(stop) }()
	half := f.come(t, b, topic, f.producers/2)
	now := f.come(t, b, topic, f.producers-f.producers/2)
	close(stop)
	<-stopped
	t.Logf("%d producers, %d found no room at first, the steady one sent %d batches: resident %d MiB at half, %d MiB at the end",
		f.producers, f.refused.Load(), steady.sent, half>>20, now>>20)
	if most := half + half/10; f.producers >= 500_000 && now > most { // of fewer, garbage weighs more than they do
		t.Errorf("resident %d bytes at the end, want at most %d", now, most)
	}
	// Who is in use is known; who came first is forgotten, and may go on.
	steady.recognised(c)
	forgotten := 0
	for partition, first := range firsts {
		if f.goesOn(t, c, topic, int32(partition), first) {
			forgotten++
		}
	}
	if forgotten < f.forgotten {
		t.Errorf("of those who came first to the %d partitions %d are forgotten, want at least %d", floodedPartitions, forgotten, f.forgotten)
	}
	begun := time.Now()
	b = restarted(t, b, syscall.SIGKILL)
	t.Logf("restart: %v", time.Since(begun))
	c = dial(t, b)
	steady.recognised(c)
	if f.producers >= floodedPartitions*6000 { // then there is one of a full partition
		boundedBases(t, b.Config().Data, 1000)
	}
}

// goesOn sends a batch that only a partition takes that has forgotten the producer, and reports whether it does.
func (f *flooded) goesOn(t *testing.T, c *rawkafka.Client, topic rawkafka.Topic, partition int32, id batch.ProducerID) (forgotten bool) {
	t.Helper()
	raw := rawkafka.Idempotent(id, 0, 77, []byte("goes on")).Bytes()
	send := func() rawkafka.ProduceAnswer {
		a, err := c.Produce(rawkafka.ProduceVersion, topic, partition, raw)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	var first rawkafka.ProduceAnswer
	waiting := &producer{t: t, c: c, ledger: &ledger{topic: f.quiet}}
	waiting.until("there is room for one more producer", func() bool {
		first = send()
		return first.Code != codeNotEnoughReplicas
	})
	if first.Code != 0 && first.Code != codeOutOfOrder {
		t.Errorf("a producer goes on: code %d (%s)", first.Code, first.Text)
	}
	if again := send(); again.Code != first.Code || again.Base != first.Base {
		t.Errorf("a producer goes on: code %d offset %d, and then code %d offset %d", first.Code, first.Base, again.Code, again.Base)
	}
	return first.Code == 0
}

// come lets so many producers come and go, and returns the broker's resident bytes.
func (f *flooded) come(t *testing.T, b *testbroker.Broker, topic rawkafka.Topic, producers int) int64 {
	t.Helper()
	const together = 50
	f.left.Store(int64(producers))
	var done sync.WaitGroup
	for i := range floodConnections {
		c := dial(t, b)
		done.Go(func() {
			for f.left.Add(-together) >= 0 {
				if err := f.oneShots(c, topic, int32(i%floodedPartitions), together); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done.Wait()
	now, _, err := b.Memory()
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// oneShots makes so many producers, which send one batch each, again as long as there is no room for them.
func (f *flooded) oneShots(c *rawkafka.Client, topic rawkafka.Topic, partition int32, n int) error {
	var reqs []kmsg.Request
	for range n {
		id, _, err := c.InitProducerID()
		if err != nil {
			return err
		}
		raw := rawkafka.Idempotent(id, 0, 0, []byte("only one")).Bytes()
		reqs = append(reqs, rawkafka.ProduceRequest(rawkafka.ProduceVersion, topic, partition, raw))
	}
	for begun := time.Now(); len(reqs) > 0; {
		if err := c.SendAll(reqs...); err != nil {
			return err
		}
		var again []kmsg.Request
		for _, req := range reqs {
			answer, err := c.Receive()
			if err != nil {
				return err
			}
			a, err := rawkafka.ProduceAnswerOf(answer)
			if err != nil || a.Code != 0 && a.Code != codeNotEnoughReplicas || a.Code != 0 && time.Since(begun) > patience {
				return fmt.Errorf("a producer's only batch: code %d (%s), %w", a.Code, a.Text, err)
			}
			if a.Code != 0 {
				again = append(again, req)
			}
		}
		f.refused.Add(int64(len(again)))
		if reqs = again; len(again) > 0 {
			if _, err := c.Fetch(rawkafka.FetchVersion, f.quiet, 0, 0, pace); err != nil {
				return err
			}
		}
	}
	return nil
}

// steadyProducer sends one batch after the other to partition 0.
type steadyProducer struct {
	t     *testing.T
	c     *rawkafka.Client
	topic rawkafka.Topic
	id    batch.ProducerID
	sent  batch.Sequence
	bases []batch.Offset
}

func (s *steadyProducer) raw(sequence batch.Sequence) []byte {
	return rawkafka.Idempotent(s.id, 0, sequence, fmt.Append(nil, "steady ", sequence)).Bytes()
}

func (s *steadyProducer) run(stop <-chan struct{}) {
	var err error
	if s.id, _, err = s.c.InitProducerID(); err != nil {
		s.t.Error(err)
		return
	}
	for ; ; s.sent++ {
		select {
		case <-stop:
			return
		default:
		}
		a, err := s.c.Produce(rawkafka.ProduceVersion, s.topic, 0, s.raw(s.sent))
		if err != nil || a.Code != 0 {
			s.t.Errorf("batch %d of the steady producer: %+v, %v", s.sent, a, err)
			return
		}
		s.bases = append(s.bases, a.Base)
	}
}

// recognised demands the original offsets of the last batches.
func (s *steadyProducer) recognised(c *rawkafka.Client) {
	s.t.Helper()
	for back := batch.Sequence(1); back <= min(inFlightMax, s.sent); back++ {
		mustStore(s.t, c, s.topic, s.raw(s.sent-back), s.bases[s.sent-back])
	}
}

// boundedBases demands that no base snapshot has more than so many producers: one that has sent a single batch takes 39
// bytes in it.
func boundedBases(t *testing.T, data string, producers int) {
	t.Helper()
	largest, count := int64(0), 0
	bases, err := filepath.Glob(filepath.Join(data, "groups", "*", "*.base"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range bases {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		largest = max(largest, info.Size())
		count++
	}
	if bound := int64(40*producers + 4096); largest > bound || largest < 4096 {
		t.Errorf("the largest of %d base snapshots has %d bytes, want 4096 to %d", count, largest, bound)
	}
}
