package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
	"github.com/oncemq/oncemq/campaign/internal/stage"
	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

const (
	// catchUpWithin bounds the time until all producers have sent their last batches again.
	catchUpWithin = 60 * time.Second
	// loadMax bounds the load before a kill when no duration is given. Before the first it is longer by firstLoad, so
	// that producers are forgotten.
	loadMax, firstLoad = 500 * time.Millisecond, 2 * memory
)

// campaign is one run. The controller (run and what it calls) owns all fields without a note; producers and the
// consumer are goroutines of their own.
type campaign struct {
	*stage.Stage
	cfg       config
	rng       *rand.Rand
	disk      *disk // on which the data is; nil: whichever
	producers []*producer
	floods    []*flood
	churns    []*churn
	readies   []time.Duration // of each restart that was not killed while it started
	killed    int             // kills so far
	early     int             // of these, not long after a start

	// generation counts the starts of the broker. It is raised after the old process has ended and before the new
	// one starts, so a connection that was opened after reading n and still works when it is read as n again leads
	// to the process of generation n.
	generation atomic.Int64
	caughtUp   chan int64 // generation; one message of each producer and generation
	// answered and retryAnswered are offered a message at every answer to a new batch, and to a retry that came while
	// the original was on its way; trimmed and deleted at every answer that records, a topic, are deleted. Nobody waits
	// for the controller to take it.
	answered, retryAnswered, trimmed, deleted chan struct{}

	stats stats

	mu  sync.Mutex
	ids map[batch.ProducerID]struct{} // all ids ever given
}

// stats count over all producers.
type stats struct {
	acknowledged, records, resent, retriable, late atomic.Int64
	oneShots, trims, topics, noRoom                atomic.Int64
}

// newID notes an id that the broker gave.
func (c *campaign) newID(id batch.ProducerID, epoch batch.Epoch) {
	c.mu.Lock()
	_, again := c.ids[id]
	c.ids[id] = struct{}{}
	c.mu.Unlock()
	if again {
		c.Violate("producer id %d was given twice", id)
	}
	if id < 0 || epoch != 0 {
		c.Violate("producer id %d was given with epoch %d", id, epoch)
	}
}

func run(ctx context.Context, cfg config, out io.Writer) (err error) {
	if cfg.data != "" {
		if _, err := os.Lstat(cfg.data); err == nil {
			return fmt.Errorf("data directory %s exists", cfg.data)
		}
	}
	dir, err := os.MkdirTemp("", "oncemq-kill-")
	if err != nil {
		return fmt.Errorf("make a working directory: %w", err)
	}
	c := newCampaign(cfg, out)
	if cfg.disk > 0 {
		c.disk = newDisk(c)
		c.Data = c.disk.data()
	}
	if c.Data == "" {
		c.Data = filepath.Join(dir, "data")
	}
	defer func() {
		keepIn := ""
		if c.disk != nil { // which ends with this process
			keepIn = dir
		}
		if err = c.End(err, keepIn); err == nil {
			err = os.RemoveAll(dir)
		}
	}()
	if err := c.prepare(ctx, dir); err != nil {
		return err
	}
	return c.Play(ctx, c.load, c.verdict)
}

func newCampaign(cfg config, out io.Writer) *campaign {
	c := &campaign{
		Stage:         stage.New(out, answerWithin, retryEvery),
		cfg:           cfg,
		rng:           rand.New(rand.NewPCG(cfg.seed, 0)),
		caughtUp:      make(chan int64, 1024),
		answered:      make(chan struct{}),
		retryAnswered: make(chan struct{}),
		trimmed:       make(chan struct{}),
		deleted:       make(chan struct{}),
		ids:           make(map[batch.ProducerID]struct{}),
	}
	c.Data = cfg.data
	return c
}

// prepare builds and starts the broker and creates the topics.
func (c *campaign) prepare(ctx context.Context, dir string) (err error) {
	fmt.Fprintf(c.Out, "kill campaign: seed %d, %d kills, %d producers, %d topics of %d partitions, %d topics that come and go, data in %s\n",
		c.cfg.seed, c.cfg.kills, c.cfg.producers, c.cfg.topics, c.cfg.partitions, c.cfg.churn, c.Data)
	if c.Binary, err = frame.Binary(ctx, c.cfg.binary, dir); err != nil {
		return err
	}
	if err := c.start(); err != nil {
		return err
	}
	if err := c.awaitReady(ctx); err != nil {
		return err
	}
	admin, hangUp, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	for i := range c.cfg.topics {
		if err := c.CreateTopic(admin, fmt.Sprintf("kill-%d", i), c.cfg.partitions); err != nil {
			return err
		}
	}
	for i := range c.cfg.producers {
		c.producers = append(c.producers, newProducer(c, int32(i)))
	}
	if err := c.CreateTopic(admin, "flood", 1); err != nil {
		return err
	}
	c.floods = append(c.floods, newFlood(c, int32(c.cfg.producers)))
	for i := range c.cfg.churn {
		c.churns = append(c.churns, newChurn(c, i))
	}
	return nil
}

func (c *campaign) start() error {
	c.generation.Add(1)
	return c.Start(c.settings())
}

// memory is how long a partition remembers a producer at least. It does not go on while the broker is down, and after a
// start it takes a minute until the age of what was found there is sure: until the first kill, and in a campaign with
// long pauses between the kills, those that fall silent are forgotten.
const memory = time.Second

// settings are those of one start: short segments, of another length each time, so that there are many bases to start
// from; records go only when they are told to, and producers soon.
func (c *campaign) settings() []string {
	smallest := 128 << 10
	if c.disk != nil {
		smallest = 64 << 10
	}
	return []string{
		fmt.Sprintf("log.segment.bytes=%d", smallest<<c.rng.IntN(4)),
		fmt.Sprintf("log.segment.entries=%d", 100+c.rng.IntN(2000)),
		"log.retention.ms=-1",
		fmt.Sprintf("producer.id.expiration.ms=%d", memory.Milliseconds()),
		"producer.id.expiration.check.interval.ms=50",
	}
}

func (c *campaign) awaitReady(ctx context.Context) error {
	took, err := c.AwaitReady(ctx)
	if err == nil {
		c.readies = append(c.readies, took)
	}
	return err
}

// load runs the producers and the consumer, and kills the broker under them as often as was asked for.
func (c *campaign) load(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{}) // closed when no new batches are wanted
	var senders, readers sync.WaitGroup
	for _, p := range c.producers {
		senders.Go(func() { p.run(ctx, stop) })
	}
	for _, f := range c.floods {
		senders.Go(func() { c.reconnect(ctx, stop, f.connection) })
	}
	for _, t := range c.churns {
		senders.Go(func() { c.reconnect(ctx, stop, t.connection) })
	}
	trim := newTrimmer(c)
	senders.Go(func() { c.reconnect(ctx, stop, trim.connection) })
	if c.disk != nil {
		senders.Go(func() { c.disk.fillUp(ctx, stop) })
	}
	reader := stage.NewConsumer(c.Stage, stage.CodeNotLeader, stage.CodeStorage)
	readers.Go(func() { reader.Run(ctx) })
	err := c.killAll(ctx)
	close(stop)
	if err == nil {
		err = c.drain(ctx, &senders)
	}
	cancel()
	senders.Wait()
	readers.Wait()
	reader.Report()
	return err
}

// reconnect gives a worker one connection after the other, until one comes back without an error, or ctx ends.
func (c *campaign) reconnect(ctx context.Context, stop <-chan struct{}, work func(context.Context, *rawkafka.Client, <-chan struct{}) error) {
	c.Reconnect(ctx, func(ctx context.Context, conn *rawkafka.Client) error { return work(ctx, conn, stop) })
}

// pause waits for a time that is drawn, and reports false when stop was closed or ctx ended before.
func pause(ctx context.Context, stop <-chan struct{}, rng *rand.Rand, most time.Duration) bool {
	select {
	case <-time.After(time.Duration(rng.Int64N(int64(most)))):
		return true
	case <-stop:
	case <-ctx.Done():
	}
	return false
}

// drain waits until each producer has got an answer to all that it sent.
func (c *campaign) drain(ctx context.Context, senders *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		senders.Wait()
		close(done)
	}()
	if _, err := await(ctx, c, done, catchUpWithin); err != nil {
		return fmt.Errorf("wait for the last answers: %w", err)
	}
	return nil
}

// moment is when a broker is killed.
type moment string

const (
	anyTime     moment = "under load"
	afterAnswer moment = "right after an answer"        // what was answered must be kept
	afterRetry  moment = "right after a retry's answer" // of a retry that came while the original was on its way
	afterTrim   moment = "right after records were deleted"
	afterDelete moment = "right after a topic was deleted" // its files go in the background
	whileItEnds moment = "while it ended in good order"
	inTheStart  moment = "while it started"     // and recovers
	momentWait         = 100 * time.Millisecond // how long the moment of an answer is waited for
	endMax             = 20 * time.Millisecond  // how long after SIGTERM a broker is killed at most
)

// draw returns when to kill next. There is something to recover from the second kill on.
func (c *campaign) draw() moment {
	moments := []moment{anyTime, anyTime, afterAnswer, afterRetry, afterTrim, afterDelete, whileItEnds, inTheStart, inTheStart}
	if c.killed == 0 {
		return anyTime
	}
	return moments[c.rng.IntN(len(moments))]
}

// killAll kills and starts the broker as often as was asked for.
func (c *campaign) killAll(ctx context.Context) error {
	begun := time.Now()
	for c.killed < c.cfg.kills {
		when := c.draw()
		pause := time.Duration(c.rng.Int64N(int64(loadMax)))
		if c.killed == 0 {
			pause += firstLoad
		}
		switch {
		case when == inTheStart:
			pause = time.Duration(c.rng.Int64N(int64(c.readyTimes().median)))
			c.early++
		case c.cfg.duration > 0:
			left := c.cfg.duration - time.Since(begun)
			pause = max(pause, time.Duration(2*c.rng.Float64()*float64(left)/float64(c.cfg.kills-c.killed)))
		}
		if when != inTheStart {
			if err := c.awaitLoad(ctx); err != nil {
				return err
			}
		}
		if err := c.awaitMoment(ctx, when, pause); err != nil {
			return err
		}
		if err := c.kill(when); err != nil {
			return err
		}
		c.killed++
		c.progress(when, pause)
		if err := c.start(); err != nil {
			return err
		}
	}
	return c.awaitLoad(ctx)
}

// awaitMoment lets the load run on for a while, and then until the moment comes.
func (c *campaign) awaitMoment(ctx context.Context, when moment, pause time.Duration) error {
	_, err := await(ctx, c, (chan struct{})(nil), pause)
	if !errors.Is(err, errTimeout) {
		return err
	}
	answers := map[moment]chan struct{}{
		afterAnswer: c.answered, afterRetry: c.retryAnswered, afterTrim: c.trimmed, afterDelete: c.deleted,
	}
	if answer := answers[when]; answer != nil {
		_, err = await(ctx, c, answer, momentWait)
	}
	if errors.Is(err, errTimeout) {
		return nil
	}
	return err
}

// kill ends the broker with SIGKILL, and some time before with SIGTERM when that is the moment.
func (c *campaign) kill(when moment) error {
	if when == whileItEnds {
		if err := c.Broker.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		select {
		case <-time.After(time.Duration(c.rng.Int64N(int64(endMax)))):
		case <-c.Broker.Done():
		}
	}
	return c.Broker.Kill()
}

// awaitLoad waits until the broker is ready and all producers have had their last batches confirmed by it.
func (c *campaign) awaitLoad(ctx context.Context) error {
	if err := c.awaitReady(ctx); err != nil {
		return err
	}
	for waiting := c.cfg.producers; waiting > 0; {
		generation, err := await(ctx, c, c.caughtUp, catchUpWithin)
		if err != nil {
			return fmt.Errorf("wait for %d producers whose last batches are to be confirmed: %w", waiting, err)
		}
		if generation == c.generation.Load() {
			waiting--
		}
	}
	return nil
}

var errTimeout = errors.New("it did not happen in time")

// await waits for a value. It fails when that takes too long and when the campaign cannot go on: after a violation,
// when the broker ends by itself, when the user interrupts.
func await[T any](ctx context.Context, c *campaign, values <-chan T, within time.Duration) (T, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	var none T
	select {
	case v := <-values:
		return v, nil
	case <-timer.C:
		return none, errTimeout
	case <-c.Violated():
		return none, stage.ErrViolated
	case <-c.Broker.Done():
		return none, fmt.Errorf("the broker ended by itself:\n%s", c.Broker.Output())
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
