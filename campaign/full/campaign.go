package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
	"github.com/oncemq/oncemq/campaign/internal/stage"
)

const (
	// fullWithin bounds the time until the disk is full and everybody is refused, goOnWithin the time until everybody
	// writes again after there is space.
	fullWithin = 60 * time.Second
	goOnWithin = 20 * time.Second
	// pollEvery is how often the controller looks whether what it waits for is true.
	pollEvery = 2 * time.Millisecond
	// topicPartitions is how many partitions the topic under load has.
	topicPartitions = 3
)

// settings are the broker's: small segments, so that what is deleted gives space back soon, and none that is deleted for
// its age, since the records of raw producers are of 1970.
var settings = []string{"log.segment.bytes=1048576", "log.retention.ms=-1", "log.retention.check.interval.ms=500"}

// campaign is one run. The controller (run and what it calls) owns all fields without a note; producers and the consumer
// are goroutines of their own.
type campaign struct {
	*stage.Stage
	cfg       config
	disk      disk
	producers []*producer
	franz     *franz
	reader    *stage.Consumer
}

var errTimeout = errors.New("it did not happen in time")

func run(ctx context.Context, cfg config, out io.Writer) (err error) {
	work, err := os.MkdirTemp("", "oncemq-full-")
	if err != nil {
		return fmt.Errorf("make a working directory: %w", err)
	}
	c := newCampaign(cfg, out)
	if c.Binary, err = frame.Binary(ctx, cfg.binary, work); err != nil {
		return err
	}
	if c.disk, err = openDisk(cfg, work); err != nil {
		return err
	}
	c.Data = filepath.Join(c.disk.dir, "data")
	defer func() { // the file system in memory ends with this process
		if err = c.End(err, work); err == nil {
			err = errors.Join(c.disk.close(), os.RemoveAll(work))
		}
	}()
	if err := c.prepare(ctx); err != nil {
		return err
	}
	return c.Play(ctx, c.underLoad, c.verdict)
}

func newCampaign(cfg config, out io.Writer) *campaign {
	return &campaign{Stage: stage.New(out, answerWithin, retryEvery), cfg: cfg}
}

// prepare starts the broker and creates the topic.
func (c *campaign) prepare(ctx context.Context) (err error) {
	_, total, err := c.disk.space()
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Out, "full-disk campaign: seed %d, %d rounds on %s, %d producers and franz-go\n", c.cfg.seed, c.cfg.rounds, mebibytes(total), c.cfg.producers)
	if err := c.startReady(ctx); err != nil {
		return err
	}
	admin, hangUp, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	if err := c.CreateTopic(admin, "full", topicPartitions); err != nil {
		return err
	}
	for i := range c.cfg.producers {
		c.producers = append(c.producers, newProducer(c, int32(i)))
	}
	c.reader = stage.NewConsumer(c.Stage, stage.CodeNotLeader) // a full disk is no reason to refuse a fetch
	c.franz, err = newFranz(c, int32(c.cfg.producers))
	return err
}

// startReady starts the broker and waits until it is ready.
func (c *campaign) startReady(ctx context.Context) error {
	if err := c.Start(settings); err != nil {
		return err
	}
	_, err := c.AwaitReady(ctx)
	return err
}

// underLoad runs the producers and the consumer, and the rounds beside them.
func (c *campaign) underLoad(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, p := range c.producers {
		all.Go(func() { p.run(ctx) })
	}
	all.Go(func() { c.franz.run(ctx) })
	all.Go(func() { c.reader.Run(ctx) })
	var err error
	for i := range c.cfg.rounds {
		if err = c.round(ctx, i); err != nil {
			err = fmt.Errorf("round %d: %w", i+1, err)
			break
		}
	}
	cancel()
	all.Wait()
	c.reader.Report()
	return err
}

// await waits until a condition holds. It fails when that takes too long and when the campaign cannot go on: after a
// violation, when the broker ends by itself, when the user interrupts.
func (c *campaign) await(ctx context.Context, within time.Duration, what string, holds func() bool) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-timer.C:
			return fmt.Errorf("wait for %s: %w within %v:\n%s\n%s", what, errTimeout, within, c.state(), c.Broker.Output())
		case <-c.Violated():
			return stage.ErrViolated
		case <-c.Broker.Done():
			return fmt.Errorf("wait for %s: the broker ended by itself:\n%s", what, c.Broker.Output())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// state says how far everybody is.
func (c *campaign) state() string {
	free, total, err := c.disk.space()
	text := fmt.Sprintf("%s of %s free (%v)", mebibytes(free), mebibytes(total), err)
	for _, p := range c.producers {
		text += fmt.Sprintf("\nproducer %d to %v: %d of %v stored, %d refusals in a row", p.name, p.partition, p.stored.Load(), &p.quota, p.inRow.Load())
	}
	return text + fmt.Sprintf("\nfranz-go: %d of %v stored", c.franz.stored.Load(), &c.franz.quota)
}

// quota bounds what a producer makes.
type quota struct {
	mu         sync.Mutex
	made, upTo int64
}

// allow lets n more be made from now on.
func (q *quota) allow(n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.upTo = q.made + n
}

// take takes up to n, and says how many.
func (q *quota) take(n int64) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	n = max(min(n, q.upTo-q.made), 0)
	q.made += n
	return n
}

// used says whether all that may be made was made and is stored.
func (q *quota) used(stored int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.made == q.upTo && stored == q.made
}

func (q *quota) String() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return fmt.Sprintf("%d made and %d allowed", q.made, q.upTo)
}
