package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

// partitions is how many each topic has; all clients write to all of them.
const partitions = 3

// payloadMax is the size in bytes of the largest payload, before it is written as base64 to be one line of text.
const payloadMax = 150

// round is one topic, and a producer of each client that writes to it.
type round struct {
	topic     rawkafka.Topic
	histories [partitions]*history.History
	producers []*producer
	logs      [partitions][]rawkafka.Batch // as read back
}

// record is one line to send.
type record struct {
	number    int64 // counts up from 0 for each producer
	partition int32
	line      []byte
}

// producer is the records of one client in one round, and what it said about them.
type producer struct {
	c      *campaign
	round  *round
	client string
	name   int32 // in the history; different in every round
	count  int64

	mu            sync.Mutex
	sends         []sent              // by number
	lanes         [partitions][]int64 // the numbers sent to a partition, in order
	acknowledged  int64
	withoutOffset int64 // of these
}

type sent struct {
	id        history.SendID
	partition int32
	known     bool // the client said what became of it
}

func (p *producer) String() string { return fmt.Sprintf("%s-%d", p.client, p.name) }

// all yields every record once, in order, and notes in the history that it is about to be sent.
func (p *producer) all() iter.Seq[record] {
	return func(yield func(record) bool) {
		rng := rand.New(rand.NewPCG(p.c.cfg.seed, 1+uint64(p.name)))
		for number := range p.count {
			value := history.Value{Producer: p.name, Number: number}
			payload := history.AppendPayload(nil, value, rng.IntN(payloadMax))
			r := record{
				number:    number,
				partition: rng.Int32N(partitions),
				line:      base64.StdEncoding.AppendEncode(nil, payload),
			}
			p.mu.Lock()
			id := p.round.histories[r.partition].Invoke(p.name, number, 1)
			p.sends = append(p.sends, sent{id: id, partition: r.partition})
			p.lanes[r.partition] = append(p.lanes[r.partition], number)
			p.mu.Unlock()
			if !yield(r) {
				return
			}
		}
	}
}

// sentTo returns the number of the i-th record that was sent to a partition.
func (p *producer) sentTo(partition, i int64) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i >= int64(len(p.lanes[partition])) {
		return 0, fmt.Errorf("record %d of partition %d was not sent", i, partition)
	}
	return p.lanes[partition][i], nil
}

// stored notes that the client reported a record as stored; an offset of -1 means that it did not say where.
func (p *producer) stored(number, offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if number < 0 || number >= int64(len(p.sends)) || p.sends[number].known {
		p.c.violate("%v reported record %d as stored, which it was not waiting for", p, number)
		return
	}
	s := &p.sends[number]
	s.known = true
	p.acknowledged++
	if offset < 0 {
		p.withoutOffset++
		return
	}
	p.round.histories[s.partition].Stored(s.id, batch.Offset(offset))
}

// failed notes that the client gave a record up, -1 when it does not say which. None has a reason to: all of them are
// told to try for ever.
func (p *producer) failed(number int64, text string) {
	p.c.violate("%v reported record %d as failed: %s", p, number, text)
}

// produce runs the client and demands that it reported everything as stored.
func (p *producer) produce(ctx context.Context) {
	if err := clients[p.client](ctx, p.c, p); err != nil {
		p.c.violate("%v: %v", p, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.acknowledged != p.count {
		p.c.violate("%v reported %d of %d records as stored", p, p.acknowledged, p.count)
	}
}

// readBack reads the log from the broker itself, around the proxy, and gives it to the judges.
func (r *round) readBack(c *campaign, conn *rawkafka.Client) (history.Verdict, error) {
	var sum history.Verdict
	for i, h := range r.histories {
		log, end, err := conn.ReadLog(rawkafka.FetchVersion, r.topic, int32(i))
		if err != nil {
			return sum, err
		}
		r.logs[i] = log
		c.tap.judge(r.topic.Name, int32(i), log)
		h.Read(history.Read{End: end, Records: c.records(r, i, log)})
		sum = sum.Plus(h.JudgeRealTime().In(fmt.Sprintf("%s/%d", r.topic.Name, i)))
	}
	return sum, nil
}

// records returns what the batches hold. A value that is not what was sent is a violation.
func (c *campaign) records(r *round, partition int, log []rawkafka.Batch) (all []history.Record) {
	for _, b := range log {
		for i, line := range b.Records {
			offset := b.BaseOffset + batch.Offset(i)
			payload, err := base64.StdEncoding.AppendDecode(nil, line)
			var value history.Value
			if err == nil {
				value, err = history.ParsePayload(payload)
			}
			if err != nil {
				c.violate("%s/%d offset %d: %v", r.topic.Name, partition, offset, err)
				continue
			}
			all = append(all, history.Record{Offset: offset, Value: value})
		}
	}
	return all
}

// dump writes what each batch of the log is, for the search of whose fault a violation is, and says where.
func (r *round) dump(c *campaign) error {
	for i, log := range r.logs {
		var text strings.Builder
		for _, b := range log {
			fmt.Fprintf(&text, "offset %d count %d producer id %d epoch %d sequence %d term %d\n",
				b.BaseOffset, len(b.Records), b.ProducerID, b.Epoch, b.Sequence, b.Term)
		}
		path := filepath.Join(c.dir, fmt.Sprintf("%s-%d.txt", r.topic.Name, i))
		if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
			return fmt.Errorf("write down the log: %w", err)
		}
		fmt.Fprintf(c.out, "log of %s/%d: %s\n", r.topic.Name, i, path)
	}
	return nil
}
