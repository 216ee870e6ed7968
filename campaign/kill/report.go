package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oncemq/oncemq/internal/rawkafka"
)

// progress prints the line of one kill.
func (c *campaign) progress(when moment, after time.Duration) {
	last := c.readies[len(c.readies)-1]
	fmt.Fprintf(c.Out, "kill %d/%d %s, after %v: %d batches acknowledged, %d sent again, last start ready in %v\n",
		c.killed, c.cfg.kills, when, after.Round(time.Millisecond/10), c.stats.acknowledged.Load(), c.stats.resent.Load(),
		last.Round(time.Millisecond/10))
}

// verdict stops the broker in good order, starts it once more, has every producer confirm its last batches a last
// time, reads everything back and judges it.
func (c *campaign) verdict(ctx context.Context) error {
	if err := c.restart(ctx); err != nil {
		return err
	}
	for _, p := range c.producers {
		if err := c.patiently(ctx, p.confirm); err != nil {
			return fmt.Errorf("confirm the last batches of producer %d: %w", p.name, err)
		}
	}
	for _, t := range c.churns {
		if err := c.patiently(ctx, t.check); err != nil {
			return fmt.Errorf("check %s: %w", t.topic.Name, err)
		}
	}
	if err := c.ReadBack(ctx); err != nil {
		return err
	}
	sum := c.Judge()
	times := c.readyTimes()
	fmt.Fprintf(c.Out, "kills %d (%d while it started), restart to ready p50 %v max %v, batches %d, records %d, sent again %d, "+
		"retriable answers %d, too late to judge %d, producer ids %d, producers of one batch %d, deletions of records %d, of topics %d, "+
		"seed %d\n", c.killed, c.early, times.median.Round(time.Millisecond/10), times.max.Round(time.Millisecond/10),
		c.stats.acknowledged.Load(), c.stats.records.Load(), c.stats.resent.Load(), c.stats.retriable.Load(), c.stats.late.Load(),
		len(c.ids), c.stats.oneShots.Load(), c.stats.trims.Load(), c.stats.topics.Load(), c.cfg.seed)
	fmt.Fprintln(c.Out, sum)
	if c.disk != nil {
		fmt.Fprintf(c.Out, "the disk was full %d times, %d batches were refused for that\n", c.disk.filled, c.stats.noRoom.Load())
		if c.disk.filled == 0 || c.stats.noRoom.Load() == 0 {
			return errors.New("nothing was proved: no batch came when the disk was full")
		}
	}
	if !sum.OK() {
		return errors.New("the log is not what was sent")
	}
	return nil
}

func (c *campaign) restart(ctx context.Context) error {
	if err := c.Stop(ctx); err != nil {
		return err
	}
	if err := c.start(); err != nil {
		return err
	}
	return c.awaitReady(ctx)
}

// patiently gives work as many connections as it needs.
func (c *campaign) patiently(ctx context.Context, work func(*rawkafka.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpWithin)
	defer cancel()
	last := errors.New("the broker cannot be reached")
	c.reconnect(ctx, nil, func(_ context.Context, conn *rawkafka.Client, _ <-chan struct{}) error {
		if last = work(conn); c.Broken() != nil {
			last = nil // broken tells the rest
		}
		return last
	})
	return last
}

type readyTimes struct{ min, median, max time.Duration }

// readyTimes sums up how long the restarts took.
func (c *campaign) readyTimes() readyTimes {
	if len(c.readies) == 0 {
		return readyTimes{}
	}
	sorted := slices.Sorted(slices.Values(c.readies))
	return readyTimes{min: sorted[0], median: sorted[len(sorted)/2], max: sorted[len(sorted)-1]}
}
