package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/stage"
	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

const (
	// roomWait bounds the pause before a producer that found no room is sent again.
	roomWait = 5 * time.Millisecond
	// comebackIn: one batch in so many is of a producer that has sent before.
	comebackIn, comebacksMax = 4, 1000
)

// flood makes a producer for nearly each batch, on a partition where nobody else writes, so that there are many to be
// forgotten. Now and then an earlier one goes on where it was, forgotten or not.
type flood struct {
	c       *campaign
	p       *stage.Partition
	name    int32 // in the history
	rng     *rand.Rand
	number  int64
	earlier []oneShot // the last ones, at most comebacksMax
	doubt   *oneShot  // sent, and not answered yet
}

// oneShot is a producer and its last batch.
type oneShot struct {
	id   batch.ProducerID
	next batch.Sequence
	sent
}

func newFlood(c *campaign, name int32) *flood {
	return &flood{c: c, p: c.Partitions[len(c.Partitions)-1], name: name, rng: rand.New(rand.NewPCG(c.cfg.seed, 3))}
}

// connection sends one batch after the other until stop is closed and the last one is answered.
func (f *flood) connection(ctx context.Context, conn *rawkafka.Client, stop <-chan struct{}) error {
	for {
		if f.doubt != nil {
			if stored, err := f.send(conn); err != nil {
				return err
			} else if !stored && !pause(ctx, nil, f.rng, roomWait) {
				return ctx.Err()
			}
			continue
		}
		select {
		case <-stop:
			return nil
		case <-f.c.Violated():
			return nil
		default:
		}
		if err := f.begin(conn); err != nil {
			return err
		}
	}
}

// begin draws who sends the next batch, and makes it.
func (f *flood) begin(conn *rawkafka.Client) error {
	var s oneShot
	if n := len(f.earlier); n > 0 && f.rng.IntN(comebackIn) == 0 {
		at := f.rng.IntN(n)
		s.id, s.next = f.earlier[at].id, f.earlier[at].next
		f.earlier[at] = f.earlier[n-1]
		f.earlier = f.earlier[:n-1]
	} else {
		id, epoch, err := conn.InitProducerID()
		if err != nil {
			return err
		}
		f.c.newID(id, epoch)
		s.id = id
	}
	payload := history.AppendPayload(nil, history.Value{Producer: f.name, Number: f.number}, history.PayloadSizeMin+f.rng.IntN(payloadMax))
	s.bytes = rawkafka.Idempotent(s.id, 0, s.next, payload).Bytes()
	s.sent.id = f.p.History.Invoke(f.name, f.number, 1)
	s.next++
	f.number++
	f.doubt = &s
	return nil
}

// send sends the batch that is not answered yet. It reports false when there is no room now.
func (f *flood) send(conn *rawkafka.Client) (stored bool, err error) {
	s := f.doubt
	retry := !s.first.IsZero()
	if !retry {
		s.first = time.Now()
	}
	a, err := conn.Produce(produceVersion, f.p.Topic, f.p.Index, s.bytes)
	if retry && time.Since(s.first) >= memory {
		f.p.History.MayRepeat(s.sent.id) // the partition may have forgotten it meanwhile
	}
	switch {
	case err != nil:
		return false, err
	case a.Code == 0:
		f.p.History.Stored(s.sent.id, a.Base)
		f.c.stats.oneShots.Add(1)
		f.doubt = nil
		if f.earlier = append(f.earlier, *s); len(f.earlier) > comebacksMax {
			f.earlier = f.earlier[1:]
		}
		return true, nil
	case a.Code == codeNotEnoughReplicas:
		s.first = time.Time{} // it is certain that it was not stored
		return false, nil
	case again(a.Code):
		return false, errAgain
	}
	f.c.Violate("flood (id %d), %v: error code %d %s to a batch that is right", s.id, f.p, a.Code, a.Text)
	return false, fmt.Errorf("error code %d", a.Code)
}
