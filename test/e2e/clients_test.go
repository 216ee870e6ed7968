package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemq/oncemq/internal/testbroker"
)

// roundTrips is how many records each client sends and reads back.
const roundTrips = 100_000

func runKcat(t *testing.T, input []byte, args ...string) []byte {
	t.Helper()
	stdout, stderr := runKcatThrough(t, input, args...)
	if strings.Contains(stderr, "ERROR") {
		t.Errorf("kcat %s says:\n%s", strings.Join(args, " "), stderr)
	}
	return stdout
}

// runKcatThrough runs kcat, which may meet errors on its way but must end with 0.
func runKcatThrough(t *testing.T, input []byte, args ...string) (answer []byte, said string) {
	t.Helper()
	path, err := exec.LookPath("kcat")
	if err != nil {
		t.Fatal("kcat is not installed: run `apt-get install kcat` (Debian, Ubuntu) or `brew install kcat` (macOS)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("kcat %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.Bytes(), stderr.String()
}

// kcat (librdkafka) with idempotence sends 100,000 records and reads them back: count, order and content. The topic
// is created by asking for it, as on any Kafka broker.
func TestKcatRoundTrip(t *testing.T) {
	b := sharedBroker(t)
	topic := freshName()
	var sent bytes.Buffer
	for i := range roundTrips {
		fmt.Fprintf(&sent, "key-%d\tpayment number %d\n", i%1000, i)
	}
	runKcat(t, sent.Bytes(), "-P", "-b", b.Addr(), "-t", topic, "-K", "\t", "-X", "enable.idempotence=true", "-X", "acks=all")
	got := runKcat(t, nil, "-C", "-b", b.Addr(), "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%o\t%k\t%s\n")
	lines := bufio.NewScanner(bytes.NewReader(got))
	count := 0
	for ; lines.Scan(); count++ {
		if want := fmt.Sprintf("%d\tkey-%d\tpayment number %d", count, count%1000, count); lines.Text() != want {
			t.Fatalf("record %d is %q, want %q", count, lines.Text(), want)
		}
	}
	if count != roundTrips {
		t.Errorf("read %d records, want %d", count, roundTrips)
	}
}

func newFranz(t *testing.T, b *testbroker.Broker, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(b.Addr()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// franzProduce sends n records to partition 0, each with its number as key, and demands that each is acknowledged at
// the offset of its place.
func franzProduce(t *testing.T, client *kgo.Client, topic string, n int, value func(int) []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var wrong atomic.Int64
	var first atomic.Pointer[string] // the callbacks may outlive a test that failed, so they leave t alone
	for i := range n {
		record := &kgo.Record{Topic: topic, Key: fmt.Append(nil, i), Value: value(i)}
		client.Produce(ctx, record, func(r *kgo.Record, err error) {
			if err != nil || r.Offset != int64(i) {
				text := fmt.Sprintf("record %d was acknowledged at %d, %v", i, r.Offset, err)
				first.CompareAndSwap(nil, &text)
				wrong.Add(1)
			}
		})
	}
	err := client.Flush(ctx)
	if text := first.Load(); text != nil {
		t.Errorf("%d records failed or are at the wrong offset; the first: %s", wrong.Load(), *text)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// franzConsume reads n records of partition 0 and demands that each is what was sent.
func franzConsume(t *testing.T, b *testbroker.Broker, topic string, n int, value func(int) []byte) {
	t.Helper()
	client := newFranz(t, b, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	for next := 0; next < n; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("after %d records: %v", next, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset != int64(next) || string(r.Key) != fmt.Sprint(next) || !bytes.Equal(r.Value, value(next)) {
				t.Fatalf("record %d: offset %d key %.20q value %.40q", next, r.Offset, r.Key, r.Value)
			}
			next++
		})
	}
}

// franz-go sends 100,000 records idempotently (its default) to a topic made with kadm, and reads them back.
func TestFranzRoundTrip(t *testing.T) {
	b := sharedBroker(t)
	client := newFranz(t, b, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	admin := kadm.NewClient(client)
	topic := freshName()
	created, err := admin.CreateTopic(t.Context(), 3, 1, nil, topic)
	if err != nil {
		t.Fatal(err)
	}
	details, err := admin.ListTopics(t.Context(), topic)
	if err != nil || len(details[topic].Partitions) != 3 || details[topic].ID != created.ID {
		t.Fatalf("list topic: %+v, %v, want 3 partitions and id %v", details, err, created.ID)
	}
	value := func(i int) []byte { return fmt.Appendf(nil, "order number %d", i) }
	franzProduce(t, client, topic, roundTrips, value)
	franzConsume(t, b, topic, roundTrips, value)
	start, err := admin.ListStartOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	end, err := admin.ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for partition, want := range map[int32]int64{0: roundTrips, 1: 0, 2: 0} {
		s, _ := start.Lookup(topic, partition)
		e, _ := end.Lookup(topic, partition)
		if s.Err != nil || s.Offset != 0 || e.Err != nil || e.Offset != want {
			t.Errorf("partition %d: start %d (%v), end %d (%v), want 0 and %d", partition, s.Offset, s.Err, e.Offset, e.Err, want)
		}
	}
}

// Compressed batches are stored and served as they came.
func TestFranzCodecs(t *testing.T) {
	b := sharedBroker(t)
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		t.Run(name, func(t *testing.T) {
			client := newFranz(t, b, kgo.ProducerBatchCompression(codec), kgo.RecordPartitioner(kgo.ManualPartitioner()),
				kgo.AllowAutoTopicCreation())
			topic := freshName()
			value := func(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%s %d ", name, i), 50) }
			franzProduce(t, client, topic, 2000, value)
			franzConsume(t, b, topic, 2000, value)
		})
	}
}
