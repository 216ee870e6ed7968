package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

const (
	// patience bounds a start, a stop and each answer.
	patience = 5 * time.Minute
	// together is how many small requests are sent with one write; a connection has at most pipeline of them on their way.
	together, pipeline = 100, 1000
	// payloadBytes is the size of a record of the log, one to a batch; logPipeline as pipeline.
	payloadBytes, logPipeline = 1_000_000, 8
	// killAfter is how many batches are answered on each partition before the broker is killed under load.
	killAfter = 8
)

// start starts the broker and waits until it is ready.
func (n *node) start(ctx context.Context) error {
	b, err := testbroker.Start(testbroker.Config{Binary: n.cfg.binary, Data: n.data, Set: n.set})
	if err != nil {
		return err
	}
	n.broker = b
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if n.took, err = b.AwaitReady(ctx); err != nil {
		return errors.Join(err, b.Kill())
	}
	return nil
}

// stop stops the broker in good order.
func (n *node) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	code, err := n.broker.Terminate(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("stop the broker: code %d:\n%s", code, n.broker.Output())
	}
	return errors.Join(err, n.broker.Kill())
}

// load creates a topic and calls send for each of its partitions, with a connection of its own.
func (n *node) load(ctx context.Context, name string, partitions int, send func(context.Context, *rawkafka.Client, rawkafka.Topic, int32) error) error {
	admin, err := n.dial()
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()
	if n.topic, err = admin.CreateTopic(name, int32(partitions)); err != nil {
		return err
	}
	failed := make([]error, partitions)
	var running sync.WaitGroup
	for i := range partitions {
		running.Go(func() {
			c, err := n.dial()
			if err != nil {
				failed[i] = err
				return
			}
			defer func() { _ = c.Close() }()
			failed[i] = send(ctx, c, n.topic, int32(i))
		})
	}
	running.Wait()
	return errors.Join(failed...)
}

func (n *node) dial() (*rawkafka.Client, error) {
	return rawkafka.Dial(n.broker.Addr(), rawkafka.Options{Timeout: patience})
}

// sendProducers sends the batches of all producers of a partition, the first ones first. The ids are made up.
func (cfg config) sendProducers(ctx context.Context, c *rawkafka.Client, topic rawkafka.Topic, partition int32) error {
	value := []byte("one record")
	var reqs []kmsg.Request
	pending := 0
	flush := func(most int) error {
		err := errors.Join(ctx.Err(), c.SendAll(reqs...))
		pending += len(reqs)
		reqs = reqs[:0]
		for ; err == nil && pending > most; pending-- {
			err = c.ReceiveStored()
		}
		return err
	}
	for sequence := range batch.Sequence(cfg.batches) {
		for id := int(partition); id < cfg.producers; id += cfg.producerPartitions {
			raw := rawkafka.Idempotent(batch.ProducerID(id), 0, sequence, value).Bytes()
			reqs = append(reqs, rawkafka.ProduceRequest(rawkafka.ProduceVersion, topic, partition, raw))
			if len(reqs) == together {
				if err := flush(pipeline - together); err != nil {
					return err
				}
			}
		}
	}
	return flush(0)
}

// sendLog fills a partition with its share of the log.
func (cfg config) sendLog(ctx context.Context, c *rawkafka.Client, topic rawkafka.Topic, partition int32) error {
	share := int64(cfg.logMiB) << 20 / int64(cfg.logPartitions)
	return sendRecords(ctx, c, topic, partition, int(share/payloadBytes), func() {})
}

func sendRecords(ctx context.Context, c *rawkafka.Client, topic rawkafka.Topic, partition int32, batches int, answered func()) error {
	req := rawkafka.ProduceRequest(rawkafka.ProduceVersion, topic, partition, rawkafka.Plain(make([]byte, payloadBytes)).Bytes())
	pending := 0
	take := func(most int) error {
		for ; pending > most; pending-- {
			if err := c.ReceiveStored(); err != nil {
				return err
			}
			answered()
		}
		return ctx.Err()
	}
	for range batches {
		if err := c.Send(req); err != nil {
			return err
		}
		pending++
		if err := take(logPipeline - 1); err != nil {
			return err
		}
	}
	return take(0)
}

// killUnderLoad writes to all partitions of the log, and kills the broker when some of it is answered.
func (n *node) killUnderLoad(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var answers atomic.Int64
	enough := make(chan struct{})
	var running sync.WaitGroup
	for i := range n.cfg.logPartitions {
		c, err := n.dial()
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		running.Go(func() {
			// It ends with the broker; only an end before that is of interest, and it shows as a lack of answers.
			_ = sendRecords(ctx, c, n.topic, int32(i), 1000*killAfter, func() {
				if answers.Add(1) == int64(killAfter*n.cfg.logPartitions) {
					close(enough)
				}
			})
		})
	}
	var err error
	select {
	case <-enough:
	case <-ctx.Done():
		err = fmt.Errorf("load before the kill: %d answers: %w", answers.Load(), ctx.Err())
	}
	err = errors.Join(err, n.broker.Kill())
	running.Wait()
	return err
}
