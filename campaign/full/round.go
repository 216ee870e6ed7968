package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/stage"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

// way is how the file system becomes full, and gets space again.
type way string

const (
	byRecords  way = "records"
	byTopic    way = "topic"
	byStranger way = "stranger"
)

// filler is the topic that takes space in rounds of byTopic.
const filler = "filler"

const (
	// fullAfter is how often in a row each producer is refused before the disk counts as full.
	fullAfter = 3
	// goOnBatches is how many new batches each producer must have stored before writing counts as going on. They are all
	// that it sends then, so that the disk does not become full again in between.
	goOnBatches = 5
	// nothingFree is what a start needs at most: a page for each of the files that it writes to, and some for new ones.
	nothingFree = 256 << 10
	// enoughFree is more than the low-water mark and what everybody writes then.
	enoughFree = 8 << 20
	// loadFor is how long the load runs before the stranger comes.
	loadFor = 300 * time.Millisecond
	// greedFor is how long the stranger takes what becomes free, in every second of its rounds: nothing of the reserve
	// is left then.
	greedFor = 300 * time.Millisecond
)

// round has the file system become full once and get space again.
func (c *campaign) round(ctx context.Context, number int) error {
	how := []way{byRecords, byTopic, byStranger}[number%3]
	killed := number%2 == 1
	if err := c.makeRoom(ctx, how); err != nil {
		return err
	}
	begun := time.Now()
	c.allow(math.MaxInt32)
	if how == byStranger {
		if err := c.stranger(ctx, number%4 >= 2); err != nil {
			return err
		}
	}
	if err := c.awaitFull(ctx); err != nil {
		return err
	}
	took := time.Since(begun)
	free, _, err := c.disk.space()
	if err != nil {
		return err
	}
	if err := c.whileFull(ctx); err != nil {
		return err
	}
	started := ""
	if killed {
		if started, err = c.kill(ctx, how); err != nil {
			return err
		}
	}
	c.allow(goOnBatches)
	if err := c.free(ctx, how); err != nil {
		return err
	}
	begun = time.Now()
	if err := c.await(ctx, goOnWithin, "everybody to write again", c.allStored); err != nil {
		return err
	}
	fmt.Fprintf(c.Out, "round %d/%d %s: full after %v with %s free%s, everybody writes again %v after there is space\n",
		number+1, c.cfg.rounds, how, took.Round(time.Millisecond), mebibytes(free), started, time.Since(begun).Round(time.Millisecond))
	return nil
}

// allow lets each producer make so many new batches from now on, and franz-go as many records.
func (c *campaign) allow(batches int64) {
	for _, p := range c.producers {
		p.quota.allow(batches)
	}
	c.franz.quota.allow(batches)
}

// allStored says whether everybody has made what it may make, and all of it is stored.
func (c *campaign) allStored() bool {
	for _, p := range c.producers {
		if !p.quota.used(p.stored.Load()) {
			return false
		}
	}
	return c.franz.quota.used(c.franz.stored.Load())
}

// makeRoom deletes what was read in earlier rounds, so that there is something to fill. Nobody produces.
func (c *campaign) makeRoom(ctx context.Context, how way) error {
	conn, hangUp, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	if err := c.trim(ctx, conn); err != nil {
		return err
	}
	_, total, err := c.disk.space()
	if err != nil {
		return err
	}
	if err := c.await(ctx, goOnWithin, "the space of what was deleted", c.hasFree(total*3/4)); err != nil {
		return err
	}
	if how != byTopic {
		return nil
	}
	topic, err := conn.CreateTopic(filler, 1)
	if err != nil {
		return err
	}
	record := make([]byte, 256<<10)
	for first, enough := true, c.hasFree(total/2); first || enough(); first = false {
		a, err := conn.Produce(produceVersion, topic, 0, rawkafka.Plain(record).Bytes())
		if err != nil {
			return err
		}
		if a.Code != 0 || first && a.Base != 0 {
			return fmt.Errorf("fill topic %s: error code %d %s, offset %d", filler, a.Code, a.Text, a.Base)
		}
	}
	return nil
}

// hasFree returns whether there are so many bytes of free space.
func (c *campaign) hasFree(bytes int64) func() bool {
	return func() bool {
		free, _, err := c.disk.space()
		if err != nil {
			c.Violate("%v", err) // it ends the wait
		}
		return free >= bytes
	}
}

// stranger takes all free space while the producers run.
func (c *campaign) stranger(ctx context.Context, greedy bool) error {
	if err := c.await(ctx, loadFor+goOnWithin, "load", c.later(loadFor)); err != nil {
		return err
	}
	if greedy {
		return c.disk.take(greedFor)
	}
	return c.disk.take(0)
}

func (c *campaign) later(wait time.Duration) func() bool {
	end := time.Now().Add(wait)
	return func() bool { return time.Now().After(end) }
}

// awaitFull waits until each raw producer is refused.
func (c *campaign) awaitFull(ctx context.Context) error {
	return c.await(ctx, fullWithin, "a disk that is full for everybody", func() bool {
		for _, p := range c.producers {
			if p.inRow.Load() < fullAfter {
				return false
			}
		}
		return true
	})
}

// whileFull checks what must hold as long as the disk is full.
func (c *campaign) whileFull(ctx context.Context) error {
	over := c.later(c.cfg.hold)
	for first := true; first || !over(); first = false {
		if status, err := c.Broker.Probe(ctx, "/readyz"); err != nil || status != http.StatusOK {
			c.Violate("a full disk makes /readyz answer %d, %v", status, err)
		}
		if err := c.ReadBack(ctx); err != nil {
			c.Violate("read while the disk is full: %v", err)
		}
		for _, p := range c.producers {
			if err := p.confirm(ctx); err != nil {
				c.Violate("send again what is stored while the disk is full: %v", err)
			}
		}
		select {
		case <-c.Broker.Done():
			return fmt.Errorf("the broker ended by itself on a full disk:\n%s", c.Broker.Output())
		case <-c.Violated():
			return stage.ErrViolated
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
	}
	return nil
}

// startedWithin is how long a start may take where a stranger has taken everything, before it counts as one that waits.
const startedWithin = 5 * time.Second

// kill ends the broker with SIGKILL and starts it on the full disk. Where a stranger has taken everything to the last byte, a
// start cannot write what it must: it may wait for room, or say so and end, and it must work once there is space.
func (c *campaign) kill(ctx context.Context, how way) (started string, err error) {
	if err := c.Broker.Kill(); err != nil {
		return "", err
	}
	for _, p := range c.producers {
		p.inRow.Store(0)
	}
	if err := c.Start(settings); err != nil {
		return "", err
	}
	waiting := ctx
	if how == byStranger {
		bounded, cancel := context.WithTimeout(ctx, startedWithin)
		defer cancel()
		waiting = bounded
	}
	_, err = c.AwaitReady(waiting)
	if err == nil {
		return ", killed and started again", c.awaitFull(ctx)
	}
	select {
	case <-c.Broker.Done():
	default:
		free, _, spaceErr := c.disk.space()
		if how != byStranger || free > nothingFree || spaceErr != nil {
			return "", fmt.Errorf("start on a full disk with %d bytes free: %w", free, errors.Join(err, spaceErr))
		}
		return ", killed, and the start waits for space", nil
	}
	code, waitErr := c.Broker.Wait(ctx)
	if how != byStranger || code != 1 || waitErr != nil {
		return "", fmt.Errorf("start on a full disk: exit code %d: %w", code, err)
	}
	return ", killed, and no start possible before there was space", nil
}

// free makes space.
func (c *campaign) free(ctx context.Context, how way) error {
	if how == byStranger {
		if err := c.disk.giveBack(); err != nil {
			return err
		}
		select {
		case <-c.Broker.Done():
			if err := c.startReady(ctx); err != nil {
				return err
			}
		default:
		}
		if c.hasFree(enoughFree)() {
			return nil
		}
		// The load was quicker than the stranger, who found little to take.
	}
	conn, hangUp, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	if how == byTopic {
		return conn.DeleteTopic(filler)
	}
	return c.trim(ctx, conn)
}

// trim deletes everything that the consumer has read, after it has read everything.
func (c *campaign) trim(ctx context.Context, conn *rawkafka.Client) error {
	for i, p := range c.Partitions {
		_, end, err := conn.Offsets(p.Topic, p.Index)
		if err != nil {
			return err
		}
		if err := c.await(ctx, goOnWithin, "the consumer", func() bool { return c.reader.Position(i) >= end }); err != nil {
			return err
		}
		p.Asked.Store(int64(end))
		logStart, err := conn.DeleteRecords(p.Topic, p.Index, end)
		if err != nil {
			return err
		}
		if logStart != end {
			c.Violate("%v: DeleteRecords before %d was answered with log start %d", p, end, logStart)
		}
		p.Kept.Store(int64(logStart))
	}
	return nil
}

// verdict stops the broker in good order, starts it once more, has what was stored last confirmed, reads everything back
// and judges it.
func (c *campaign) verdict(ctx context.Context) error {
	if err := c.Stop(ctx); err != nil {
		return err
	}
	if err := c.startReady(ctx); err != nil {
		return err
	}
	var batches, refusals int64
	for _, p := range c.producers {
		if err := p.confirm(ctx); err != nil {
			return err
		}
		batches, refusals = batches+p.stored.Load(), refusals+p.refusals.Load()
	}
	if err := c.ReadBack(ctx); err != nil {
		return err
	}
	sum := c.Judge()
	fmt.Fprintf(c.Out, "rounds %d, batches of raw producers %d, refusals %d, records of franz-go %d, seed %d\n%v\n",
		c.cfg.rounds, batches, refusals, c.franz.stored.Load(), c.cfg.seed, sum)
	switch {
	case !sum.OK():
		return errors.New("the log is not what was sent")
	case refusals == 0 && c.Broken() == nil:
		return errors.New("nothing was ever refused: this run proves nothing")
	}
	return nil
}
