package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/stage"
	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

// trimEvery bounds the pause between two deletions of records.
const trimEvery = 100 * time.Millisecond

// trimmer deletes records: the oldest ones of a partition, up to an offset that is drawn.
type trimmer struct {
	c   *campaign
	rng *rand.Rand
}

func newTrimmer(c *campaign) *trimmer {
	return &trimmer{c: c, rng: rand.New(rand.NewPCG(c.cfg.seed, 2))}
}

// connection deletes until the connection breaks or stop is closed.
func (t *trimmer) connection(ctx context.Context, conn *rawkafka.Client, stop <-chan struct{}) error {
	for pause(ctx, stop, t.rng, trimEvery) {
		if err := t.trim(conn, t.c.Partitions[t.rng.IntN(len(t.c.Partitions))]); err != nil {
			return err
		}
	}
	return nil
}

// trim deletes from one partition, up to an offset that is drawn: all of it, or up to half.
func (t *trimmer) trim(conn *rawkafka.Client, p *stage.Partition) error {
	start, end, err := conn.Offsets(p.Topic, p.Index)
	if err != nil || start == end {
		return err
	}
	before := end
	if t.rng.IntN(4) > 0 {
		before = start + batch.Offset(t.rng.Int64N(int64(end-start)))/2
	}
	return t.delete(conn, p, before)
}

// delete deletes all before an offset. Nobody else deletes, so the log starts there then, or where an earlier request said
// that was not answered.
func (t *trimmer) delete(conn *rawkafka.Client, p *stage.Partition, before batch.Offset) error {
	p.History.Trim(before)
	asked := max(batch.Offset(p.Asked.Load()), before)
	p.Asked.Store(int64(asked))
	got, err := conn.DeleteRecords(p.Topic, p.Index, before)
	if code := (*rawkafka.CodeError)(nil); errors.As(err, &code) && !again(code.Code) {
		t.c.Violate("%v: %v", p, err)
	}
	if err != nil {
		return err
	}
	if got < before || got > asked {
		t.c.Violate("%v: after all before offset %d was deleted the log starts at %d", p, before, got)
	}
	p.Kept.Store(int64(got))
	t.c.stats.trims.Add(1)
	offer(t.c.trimmed)
	return nil
}
