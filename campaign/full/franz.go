package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
)

const (
	franzBuffered = 64
	franzBatch    = 64 << 10
)

// franz produces with franz-go, as it is, to all partitions. A full disk must be nothing to it but a pause.
type franz struct {
	c      *campaign
	name   int32 // in the history
	rng    *rand.Rand
	client *kgo.Client
	number int64        // of the next value
	stored atomic.Int64 // records
	quota  quota
}

// newFranz makes the client. StopProducerOnDataLossDetected makes a wrong refusal by the broker an error; by default
// franz-go would number its batches anew and send them again. AlwaysRetryEOF: by default it takes a connection that ends
// before its first answer for one that needs TLS, and gives up.
func newFranz(c *campaign, name int32) (*franz, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(c.Addr()),
		kgo.DefaultProduceTopic(c.Partitions[0].Topic.Name),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(franzBatch),
		kgo.ProducerLinger(0),
		kgo.MaxBufferedRecords(franzBuffered),
		kgo.StopProducerOnDataLossDetected(),
		kgo.AlwaysRetryEOF(),
		kgo.ProduceRequestTimeout(timeout),
		kgo.RequestTimeoutOverhead(answerWithin-timeout),
		kgo.RetryTimeout(time.Hour),
		kgo.RequestRetries(1_000_000),
		kgo.UnknownTopicRetries(-1),
		kgo.RetryBackoffFn(func(int) time.Duration { return retryEvery }),
		kgo.MetadataMinAge(retryEvery),
	)
	if err != nil {
		return nil, fmt.Errorf("make a franz-go client: %w", err)
	}
	return &franz{c: c, name: name, rng: rand.New(rand.NewPCG(c.cfg.seed, 1+uint64(name))), client: client}, nil
}

// run produces until ctx ends.
func (f *franz) run(ctx context.Context) {
	defer f.client.Close()
	for ctx.Err() == nil {
		if f.quota.take(1) == 0 {
			f.c.Pause(ctx)
			continue
		}
		p := f.c.Partitions[f.rng.IntN(len(f.c.Partitions))]
		value := history.AppendPayload(nil, history.Value{Producer: f.name, Number: f.number}, f.rng.IntN(payloadMax))
		id := p.History.Invoke(f.name, f.number, 1)
		f.number++
		// It waits while franzBuffered records have no answer.
		f.client.Produce(ctx, &kgo.Record{Value: value, Partition: p.Index}, func(r *kgo.Record, err error) {
			switch {
			case err == nil:
				p.History.Stored(id, batch.Offset(r.Offset))
				f.stored.Add(1)
			case ctx.Err() == nil:
				f.c.Violate("franz-go gave up a record for %v: %v", p, err)
			}
		})
	}
}
