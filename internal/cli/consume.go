package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// outputBytes is the size of the buffer before stdout.
const outputBytes = 64 << 10

// silenceMax bounds the wait for a record that is known to be there.
const silenceMax = 60 * time.Second

// ConsumeOptions says what to read.
type ConsumeOptions struct {
	Brokers   []string
	Topic     string
	Partition int32 // or AnyPartition
	Start     StartOffset
	Count     int64 // end after so many records; 0: no such end
	ToEnd     bool  // end where the partitions ended at the start
	Format    *Format
}

// Consume prints records to env.Out, in the order of their offsets within each partition, until an end that was asked
// for, or until stop ends: which is an error, ErrInterrupted, only when an end had been asked for.
func Consume(stop context.Context, env Env, o ConsumeOptions) error {
	n := &notices{w: env.Err}
	c, err := connect(stop, o.Brokers, n,
		kgo.ClientID("oncemq"),
		kgo.MetadataMinAge(metadataMinAge),
		kgo.RetryBackoffFn(backoff(100*time.Millisecond, time.Second, env.Random)),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), // an offset that is not there is an error, and never another place
		kgo.KeepControlRecords(),                    // they have offsets as well, which count when the end is at one
	)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.checkTopic(stop, o.Topic, o.Partition); err != nil {
		return err
	}
	spans, err := c.spans(stop, o.Topic)
	if err != nil {
		return err
	}
	run := &consumption{o: o, client: c.client, out: bufio.NewWriterSize(env.Out, outputBytes)}
	run.begin(spans[o.Topic], n)
	return run.follow(stop)
}

// consumption is one run of Consume.
type consumption struct {
	o      ConsumeOptions
	client *kgo.Client
	out    *bufio.Writer
	text   []byte // of a record, used again

	reading map[int32]*reading // partitions that are not at their end
	printed int64
}

// reading is the state of one partition.
type reading struct {
	wanted int64 // records below are not asked for
	next   int64
	end    int64 // where it ended at the start
}

// begin chooses for each partition where to begin, and leaves out those that have nothing to read.
func (c *consumption) begin(spans map[int32]span, n *notices) {
	c.reading = make(map[int32]*reading)
	starts := make(map[int32]kgo.Offset)
	for partition, s := range spans {
		if c.o.Partition != AnyPartition && partition != c.o.Partition {
			continue
		}
		wanted := c.o.Start.wanted(s)
		if c.o.Start.kind == fromOffset && c.o.Start.n < s.begin {
			n.say("%s/%d begins at offset %d", c.o.Topic, partition, s.begin)
		}
		next := min(wanted, s.end) // one that does not reach so far yet is read from its end on
		if c.o.ToEnd && next == s.end {
			continue
		}
		c.reading[partition] = &reading{wanted: wanted, next: next, end: s.end}
		starts[partition] = kgo.NewOffset().At(next)
	}
	if len(starts) > 0 {
		c.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{c.o.Topic: starts})
	}
}

// follow reads until the end.
func (c *consumption) follow(stop context.Context) error {
	for {
		if c.o.ToEnd && len(c.reading) == 0 || c.o.Count > 0 && c.printed == c.o.Count {
			return c.flush()
		}
		fetches, err := c.poll(stop)
		if err != nil {
			return errors.Join(err, c.flush())
		}
		if stop.Err() != nil {
			if err := c.flush(); err != nil || !c.o.ToEnd && c.o.Count == 0 {
				return err
			}
			return fmt.Errorf("%w after %s", ErrInterrupted, records(c.printed))
		}
		for iter := fetches.RecordIter(); !iter.Done(); {
			if err := c.take(iter.Next()); err != nil {
				return err
			}
		}
		// What waits in the buffer is due when nothing more is at hand: a person who follows sees it now.
		if c.client.BufferedFetchRecords() == 0 {
			if err := c.flush(); err != nil {
				return err
			}
		}
	}
}

// poll waits for records. With ToEnd they are there, so that nothing for a long time is an error.
func (c *consumption) poll(stop context.Context) (kgo.Fetches, error) {
	ctx := stop
	if c.o.ToEnd {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(stop, silenceMax)
		defer cancel()
	}
	fetches := c.client.PollFetches(ctx)
	for _, e := range fetches.Errors() {
		switch {
		case errors.Is(e.Err, context.Canceled):
		case errors.Is(e.Err, context.DeadlineExceeded):
			return nil, fmt.Errorf("nothing came for %v, with records missing from %s", silenceMax, c.missing())
		default:
			return nil, fmt.Errorf("read %s/%d: %w", e.Topic, e.Partition, e.Err)
		}
	}
	return fetches, nil
}

// missing names the partitions that are not at their end.
func (c *consumption) missing() string {
	var text string
	partitions := make([]int32, 0, len(c.reading))
	for partition := range c.reading {
		partitions = append(partitions, partition)
	}
	slices.Sort(partitions)
	for i, partition := range partitions {
		if i > 0 {
			text += ", "
		}
		r := c.reading[partition]
		text += fmt.Sprintf("%s/%d (offsets %d to %d)", c.o.Topic, partition, r.next, r.end-1)
	}
	return text
}

// take prints a record, if it is asked for.
func (c *consumption) take(r *kgo.Record) error {
	at, ok := c.reading[r.Partition]
	if !ok || c.o.Count > 0 && c.printed == c.o.Count {
		return nil
	}
	at.next = r.Offset + 1
	if c.o.ToEnd && at.next >= at.end {
		delete(c.reading, r.Partition)
		c.client.PauseFetchPartitions(map[string][]int32{c.o.Topic: {r.Partition}})
	}
	if r.Offset < at.wanted || c.o.ToEnd && r.Offset >= at.end || r.Attrs.IsControl() {
		return nil
	}
	c.printed++
	c.text = c.o.Format.Append(c.text[:0], r)
	_, err := c.out.Write(c.text)
	return printError(err)
}

func (c *consumption) flush() error { return printError(c.out.Flush()) }

func printError(err error) error {
	if err != nil {
		return fmt.Errorf("print records: %w", err)
	}
	return nil
}
