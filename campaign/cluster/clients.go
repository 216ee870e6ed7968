package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemq/oncemq/campaign/internal/kcat"
	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
)

const (
	franzBuffered = 64
	franzBatch    = 16 << 10
	// clientBurst records are written at once every clientEvery, by each client.
	clientBurst = 4
	clientEvery = 20 * time.Millisecond
	// clientWithin is how long the clients wait for an answer before they give a connection up.
	clientWithin = 2 * time.Second
	kcatPayload  = 40
)

// parseValue finds the value in a record: kcat's stand in hexadecimal digits, because it sends lines.
func parseValue(record []byte) (history.Value, error) {
	if plain, err := hex.DecodeString(string(record)); err == nil {
		record = plain
	}
	return history.ParsePayload(record)
}

// franz produces with franz-go to all partitions. A fault must be nothing to it but a pause.
type franz struct {
	c       *campaign
	name    int32 // in the history
	rng     *rand.Rand
	client  *kgo.Client
	numbers []int64      // of the next value of each partition
	stored  atomic.Int64 // records
}

// newFranz makes the client. StopProducerOnDataLossDetected makes a wrong refusal by a broker an error; by default
// franz-go would number its batches anew and send them again. AlwaysRetryEOF: by default it takes a connection that ends
// before its first answer for one that needs TLS, and gives up.
func newFranz(c *campaign, name int32) (*franz, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(c.nodes.Addrs()...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(franzBatch),
		kgo.ProducerLinger(0),
		kgo.MaxBufferedRecords(franzBuffered),
		kgo.StopProducerOnDataLossDetected(),
		kgo.AlwaysRetryEOF(),
		kgo.ProduceRequestTimeout(clientWithin),
		kgo.RequestTimeoutOverhead(time.Second),
		kgo.RetryTimeout(time.Hour),
		kgo.RequestRetries(1_000_000),
		kgo.UnknownTopicRetries(-1),
		kgo.RetryBackoffFn(func(int) time.Duration { return retryEvery }),
		kgo.MetadataMinAge(retryEvery),
	)
	if err != nil {
		return nil, fmt.Errorf("make a franz-go client: %w", err)
	}
	return &franz{
		c: c, name: name, rng: rand.New(rand.NewPCG(c.cfg.seed, uint64(name))), client: client, numbers: make([]int64, len(c.Partitions)),
	}, nil
}

// run produces until stop is closed, and returns when everything is answered or ctx ends.
func (f *franz) run(ctx context.Context, stop <-chan struct{}) {
	defer f.client.Close()
	f.c.bursts(ctx, stop, func() bool {
		for range clientBurst {
			f.produceOne(ctx)
		}
		return true
	})
	if err := f.client.Flush(ctx); err != nil && ctx.Err() == nil {
		f.c.Violate("franz-go: flush: %v", err)
	}
}

// produceOne sends a record; it waits while franzBuffered have no answer.
func (f *franz) produceOne(ctx context.Context) {
	i := f.rng.IntN(len(f.c.Partitions))
	p := f.c.Partitions[i]
	value := history.AppendPayload(nil, history.Value{Producer: f.name, Number: f.numbers[i]}, f.rng.IntN(payloadMax))
	id := p.History.Invoke(f.name, f.numbers[i], 1)
	f.numbers[i]++
	f.client.Produce(ctx, &kgo.Record{Topic: p.Topic.Name, Partition: p.Index, Value: value}, func(r *kgo.Record, err error) {
		switch {
		case err == nil:
			p.History.Stored(id, batch.Offset(r.Offset))
			f.stored.Add(1)
		case ctx.Err() == nil:
			f.c.Violate("franz-go gave up a record for %v: %v", p, err)
		}
	})
}

// bursts calls write every clientEvery until stop is closed, ctx ends or write says no.
func (c *campaign) bursts(ctx context.Context, stop <-chan struct{}, write func() bool) {
	ticker := time.NewTicker(clientEvery)
	defer ticker.Stop()
	for write() {
		select {
		case <-ticker.C:
		case <-stop:
			return
		case <-ctx.Done():
			return
		}
	}
}

// librdkafka is one run of kcat. It says of each record to which partition and offset it went; the records of a partition
// come in their order.
type librdkafka struct {
	c      *campaign
	mu     sync.Mutex
	sent   [][]history.SendID // of each partition, those without an answer
	number []int64
	said   tail
}

// runKcat produces with kcat to the first topic until stop is closed, and returns when everything is answered. One that has
// lost count of its own sequences begins anew, as another producer; what became of its last records is not known then.
func (c *campaign) runKcat(ctx context.Context, stop <-chan struct{}) {
	k := &librdkafka{c: c, number: make([]int64, c.cfg.partitions)}
	for {
		k.sent, k.said = make([][]history.SendID, c.cfg.partitions), nil
		err := k.run(ctx, stop)
		switch {
		case err == nil, ctx.Err() != nil:
			return
		case c.kcatLosesCount && lostCount(k.said):
			c.stats.lostCount.Add(1)
		default:
			c.Violate("kcat: %v: %s", err, k.said)
			return
		}
		select {
		case <-stop:
			return
		default:
		}
	}
}

// lostCount reports whether kcat ended for a fault of librdkafka before 2.3.0: after an error that leaves room for doubt it
// expects a higher sequence, and takes the answer that a later batch is out of order, which is true, for its end
// (confluentinc/librdkafka pull 4438).
func lostCount(said tail) bool {
	text := said.String()
	return strings.Contains(text, "sequence desynchronization") || strings.Contains(text, "rewound sequence number")
}

// losesCount reports whether this version of kcat, as it says it itself, has that fault.
func losesCount(version string) bool {
	_, rest, found := strings.Cut(version, "librdkafka ")
	var major, minor int
	if _, err := fmt.Sscanf(rest, "%d.%d", &major, &minor); !found || err != nil {
		return false
	}
	return major < 2 || major == 2 && minor < 3
}

func (k *librdkafka) run(ctx context.Context, stop <-chan struct{}) error {
	cmd := exec.CommandContext(ctx, k.c.kcat, kcat.Args(kcat.Options{
		Brokers: strings.Join(k.c.nodes.Addrs(), ","), Topic: k.c.Partitions[0].Topic.Name, ClientID: "kcat",
		AnswerWithin: clientWithin, Backoff: retryEvery, BatchRecords: 20, BatchBytes: 4096, Debug: "eos",
	})...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("open a pipe: %w", err)
	}
	out, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("open a pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	var writing sync.WaitGroup
	writing.Go(func() { k.write(ctx, stop, in) })
	wrong := k.read(out)
	writing.Wait()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("ended: %w", err)
	}
	for i, left := range k.sent {
		if len(left) > 0 && wrong == nil {
			wrong = fmt.Errorf("%d records for partition %d were never answered", len(left), i)
		}
	}
	return wrong
}

func (k *librdkafka) write(ctx context.Context, stop <-chan struct{}, in io.WriteCloser) {
	rng := rand.New(rand.NewPCG(k.c.cfg.seed, kcatName))
	keys := kcat.Keys(uint32(k.c.cfg.partitions))
	k.c.bursts(ctx, stop, func() bool {
		var lines bytes.Buffer
		for range clientBurst {
			i := rng.IntN(len(keys))
			fmt.Fprintf(&lines, "%s\t%x\n", keys[i], k.invoke(i))
		}
		_, err := in.Write(lines.Bytes())
		return err == nil
	})
	_ = in.Close()
}

func (k *librdkafka) invoke(partition int) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	v := history.Value{Producer: kcatName, Number: k.number[partition]}
	k.number[partition]++
	k.sent[partition] = append(k.sent[partition], k.c.Partitions[partition].History.Invoke(v.Producer, v.Number, 1))
	return history.AppendPayload(nil, v, kcatPayload)
}

// read takes up what kcat says until it ends.
func (k *librdkafka) read(out io.Reader) error {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "% Delivery failed"):
			k.c.Violate("kcat gave up a record: %s", line)
		case strings.HasPrefix(line, "% Message delivered"):
			if err := k.delivered(line); err != nil {
				return err
			}
		default:
			k.said.add(line)
		}
	}
	return lines.Err()
}

func (k *librdkafka) delivered(line string) error {
	partition, offset, err := kcat.Delivered(line)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if partition < 0 || int(partition) >= len(k.sent) || len(k.sent[partition]) == 0 {
		return fmt.Errorf("%q: no record was sent there", line)
	}
	k.c.Partitions[partition].History.Stored(k.sent[partition][0], batch.Offset(offset))
	k.sent[partition] = k.sent[partition][1:]
	return nil
}

// tail keeps the last lines.
type tail []string

func (t *tail) add(line string) {
	const most = 60
	if *t = append(*t, line); len(*t) > most {
		*t = (*t)[1:]
	}
}

func (t tail) String() string { return strings.Join(t, "\n") }
