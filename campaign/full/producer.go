package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/campaign/internal/stage"
	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

const (
	produceVersion = rawkafka.ProduceVersion
	// retryEvery is the pause after a refusal, and before a broker that is down is tried again.
	retryEvery = 10 * time.Millisecond
	// timeout is how long the broker is told that it may wait before it answers that it does not know (7), and
	// answerWithin how long any answer may take.
	timeout      = 3 * time.Second
	answerWithin = 15 * time.Second
	// window is how many batches the broker remembers of a producer; inFlightMax is below it, so that what was stored
	// before those in flight is remembered as well.
	window, inFlightMax = 5, 4
	recordsMax          = 8
	payloadMax          = 8 << 10
)

// codeOutOfOrder is right for a batch whose predecessor was refused.
const codeOutOfOrder = 45

// sent is one batch that was sent at least once.
type sent struct {
	bytes []byte
	id    history.SendID
	base  batch.Offset // as answered; -1 while the outcome is unknown
}

// producer is an idempotent producer of one partition, with rules of its own: whatever was refused or is unknown is sent
// again, byte for byte and in order, before anything new, until there is an answer.
type producer struct {
	c         *campaign
	name      int32 // in the history
	partition *stage.Partition
	rng       *rand.Rand
	id        batch.ProducerID // -1 before the first connection
	epoch     batch.Epoch
	next      batch.Sequence
	number    int64 // of the next value

	mu      sync.Mutex // confirm reads what run writes
	pending []*sent    // sent, and not known to be stored, oldest first
	last    []*sent    // stored last, at most window, oldest first

	stored   atomic.Int64 // batches
	refusals atomic.Int64
	inRow    atomic.Int64 // refusals since something was stored; an answer that came when its time was over counts for fullAfter
	quota    quota
}

func newProducer(c *campaign, name int32) *producer {
	p := &producer{c: c, name: name, id: -1, rng: rand.New(rand.NewPCG(c.cfg.seed, 1+uint64(name)))}
	p.partition = c.Partitions[int(name)%len(c.Partitions)]
	return p
}

// errAgain ends a burst whose batches are to be sent again.
var errAgain = errors.New("the broker asks to try again")

// run produces until ctx ends.
func (p *producer) run(ctx context.Context) { p.c.Reconnect(ctx, p.connection) }

// connection produces over one connection until it breaks. Its error says only why it ended; what the broker did wrong is
// noted.
func (p *producer) connection(ctx context.Context, conn *rawkafka.Client) error {
	if p.id == -1 {
		id, epoch, err := conn.InitProducerID()
		if code := (*rawkafka.CodeError)(nil); errors.As(err, &code) && code.Code != stage.CodeCoordinatorLoading {
			p.c.Violate("producer %d: %v", p.name, err)
		}
		if err != nil {
			return err
		}
		p.id, p.epoch = id, epoch
	}
	for ctx.Err() == nil {
		if !p.fill() {
			p.c.Pause(ctx)
			continue
		}
		err := p.burst(conn)
		if errors.Is(err, errAgain) {
			p.c.Pause(ctx)
		} else if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// fill makes new batches when nothing is pending. It reports whether there is something to send.
func (p *producer) fill() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pending) == 0 {
		for range p.quota.take(1 + p.rng.Int64N(inFlightMax)) {
			p.pending = append(p.pending, p.make())
		}
	}
	return len(p.pending) > 0
}

// make makes the next batch and notes that it is about to be sent.
func (p *producer) make() *sent {
	count, first := 1+p.rng.Int32N(recordsMax), p.number
	var records [][]byte
	for range count {
		records = append(records, history.AppendPayload(nil, history.Value{Producer: p.name, Number: p.number}, p.rng.IntN(payloadMax)))
		p.number++
	}
	s := &sent{bytes: rawkafka.Idempotent(p.id, p.epoch, p.next, records...).Bytes(), base: -1}
	s.id = p.partition.History.Invoke(p.name, first, count)
	p.next += batch.Sequence(count)
	return s
}

func (p *producer) request(s *sent) kmsg.Request {
	req := rawkafka.ProduceRequest(produceVersion, p.partition.Topic, p.partition.Index, s.bytes)
	req.TimeoutMillis = int32(timeout / time.Millisecond)
	return req
}

// burst sends everything that is pending, in flight together, and takes the answers.
func (p *producer) burst(conn *rawkafka.Client) error {
	p.mu.Lock()
	burst := slices.Clone(p.pending)
	p.mu.Unlock()
	var reqs []kmsg.Request
	for _, s := range burst {
		reqs = append(reqs, p.request(s))
	}
	if err := conn.SendAll(reqs...); err != nil {
		return err
	}
	var again, refused bool // a batch before was not stored for now; it was not even accepted
	for _, s := range burst {
		a, err := conn.ReceiveProduce()
		if err != nil {
			return err
		}
		switch {
		case a.Code == 0 && refused:
			p.wrong(s, a, "although the batch before it was refused")
		case a.Code == 0:
			p.store(s, a.Base)
			continue
		case a.Code == codeOutOfOrder && refused: // the batch that it follows is missing, with right
		case a.Code == stage.CodeTimedOut:
			p.refuse(fullAfter)
		case a.Code == stage.CodeStorage || a.Code == stage.CodeNotLeader:
			p.refuse(1)
			refused = true
		default:
			p.wrong(s, a, "to a batch that is right")
		}
		again = true
	}
	if again {
		return errAgain
	}
	return nil
}

func (p *producer) refuse(weight int64) {
	p.refusals.Add(1)
	p.inRow.Add(weight)
}

func (p *producer) wrong(s *sent, a rawkafka.ProduceAnswer, why string) {
	p.c.Violate("producer %d (id %d), %v: answer %d %s, offset %d, %s (known offset %d)", p.name, p.id, p.partition, a.Code, a.Text, a.Base, why, s.base)
}

// store notes that a pending batch is stored.
func (p *producer) store(s *sent, base batch.Offset) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.partition.History.Stored(s.id, base)
	s.base = base
	p.pending = slices.DeleteFunc(p.pending, func(q *sent) bool { return q == s })
	if p.last = append(p.last, s); len(p.last) > window {
		p.last = p.last[1:]
	}
	p.stored.Add(1)
	p.inRow.Store(0)
}

// confirm sends again, over a connection of its own, what was stored last and is remembered for certain: everything that is
// pending may have been accepted meanwhile, and have taken its place.
func (p *producer) confirm(ctx context.Context) error {
	conn, hangUp, err := p.c.Dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	return p.confirmOver(conn)
}

func (p *producer) confirmOver(conn *rawkafka.Client) error {
	p.mu.Lock()
	stored := slices.Clone(p.last)
	stored = stored[min(len(stored), len(p.pending)):]
	p.mu.Unlock()
	var reqs []kmsg.Request
	for _, s := range stored {
		reqs = append(reqs, p.request(s))
	}
	if err := conn.SendAll(reqs...); err != nil {
		return err
	}
	for _, s := range stored {
		a, err := conn.ReceiveProduce()
		if err != nil {
			return fmt.Errorf("producer %d, a batch at %v @ %d: %w", p.name, p.partition, s.base, err)
		}
		if a.Code != 0 || a.Base != s.base {
			p.wrong(s, a, "to a batch that is stored")
			continue
		}
		p.partition.History.Stored(s.id, a.Base)
	}
	return nil
}
