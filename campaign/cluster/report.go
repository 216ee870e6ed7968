package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/oncemq/oncemq/internal/rawkafka"
)

// written is how many records were acknowledged to the producers of our own and to franz-go.
func (c *campaign) written() int64 {
	n := c.stats.records.Load()
	for _, f := range c.franz {
		n += f.stored.Load()
	}
	return n
}

// finish demands, when nobody writes any more, that the cluster is whole and that each node serves, and reads everything
// back.
func (c *campaign) finish(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	asking.Go(func() { c.routes.run(ctx) })
	defer asking.Wait()
	defer cancel()
	c.sleep(ctx, quiet)
	since := time.Now()
	for !c.routes.settled(since) && ctx.Err() == nil {
		if time.Since(since) > settleWithin {
			c.Violate("at the end the cluster is not whole: %s", c.routes.why())
			break
		}
		c.sleep(ctx, askEvery)
	}
	for node := range c.nodes.Nodes() {
		if _, _, err := c.askForID(ctx, node); err != nil {
			c.Violate("at the end node %d gives no producer id: %v", node+1, err)
		}
	}
	for i, p := range c.Partitions {
		if err := c.patiently(ctx, i, func(conn *rawkafka.Client) error { return c.ReadBackOne(conn, p) }); err != nil {
			return fmt.Errorf("read %v back: %w", p, err)
		}
	}
	return nil
}

// patiently gives work as many connections to the leader of a partition as it needs.
func (c *campaign) patiently(ctx context.Context, partition int, work func(*rawkafka.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpWithin)
	defer cancel()
	for {
		conn, hangUp, err := c.dialLeader(ctx, partition)
		if err == nil {
			err = work(conn)
			hangUp()
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		c.Pause(ctx)
	}
}

// verdict reads everything back, stops all nodes in good order, compares their logs and judges what was read.
func (c *campaign) verdict(ctx context.Context) error {
	if err := c.finish(ctx); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	batches := 0
	if err := c.nodes.Terminate(within); err != nil {
		c.Violate("%v", err)
	} else if batches, err = c.compareReplicas(ctx); err != nil {
		return err
	}
	c.report(batches)
	sum := c.Judge()
	fmt.Fprintln(c.Out, sum)
	if !sum.OK() {
		return errors.New("the log is not what was sent")
	}
	if c.cfg.nodes < 3 { // without one of them there is no majority
		return nil
	}
	return c.outages.judge(c.cfg.p99, c.cfg.worst)
}

func (c *campaign) report(batches int) {
	fmt.Fprint(c.Out, c.outages)
	drains := slices.Sorted(slices.Values(c.drains))
	if len(drains) > 0 {
		fmt.Fprintf(c.Out, "SIGTERM to the end: median %v, longest %v\n", rounded(percentile(drains, 50)), rounded(drains[len(drains)-1]))
	}
	if n := c.stats.lostCount.Load(); n > 0 {
		fmt.Fprintf(c.Out, "kcat lost count of its sequences %d times, as librdkafka before 2.3.0 does, and began anew\n", n)
	}
	var times string
	for _, k := range c.cfg.faults {
		times += fmt.Sprintf(", %s %d", k, c.happened[k])
	}
	fmt.Fprintf(c.Out, "records stored: %d; a second while all was whole: %v, while a node was down, frozen or cut off: %v\n",
		c.written(), c.phases.whole, c.phases.hurt)
	fmt.Fprintf(c.Out, "seed %d%s; batches %d, sent again %d, retriable answers %d, refused and given up %d, out of order behind one %d, "+
		"producer ids %d; %d batches on each replica, all equal\n", c.cfg.seed, times, c.stats.acknowledged.Load(), c.stats.resent.Load(),
		c.stats.retriable.Load(), c.stats.refused.Load(), c.stats.pipelines.Load(), len(c.ids), batches)
}
