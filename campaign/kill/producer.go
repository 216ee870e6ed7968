package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/campaign/internal/stage"
	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

const (
	// window is how many batches the broker remembers of a producer and partition, and how many are in flight at most.
	window = 5
	// retryEvery is the pause after an answer that asks for patience, and before a broker that is down is tried again.
	retryEvery = 2 * time.Millisecond
	// answerWithin bounds the wait for one answer. A broker that takes longer has lost it.
	answerWithin = 20 * time.Second

	recordsMax      = 8
	payloadMax      = 600
	largePayload    = 200 << 10 // one batch in a hundred has a single record of up to this size
	burstBatches    = 50        // how far a producer runs ahead of its rate
	produceVersion  = rawkafka.ProduceVersion
	newIDIn, bumpIn = 6, 6 // one connection in so many begins with a new id, with a new epoch
	dropIn          = 400  // after one batch in so many the producer drops its connection, answers under way included
	echoIn          = 4    // one batch in so many is sent over a second connection as well, at the same time
)

// sent is one batch that was sent at least once.
type sent struct {
	bytes []byte
	id    history.SendID
	base  batch.Offset // as answered; -1 while the outcome is unknown
	count int32
	first time.Time // just before it was sent first
	// retrying: it was sent again, and the answer to that has not come.
	retrying bool
}

// lane is one partition as one producer id and epoch see it.
type lane struct {
	*stage.Partition
	next   batch.Sequence
	recent []*sent // the last batches sent, at most window, oldest first
	// touched is a time at which the last batch that is stored was not stored yet: the partition remembers the
	// producer at least memory longer.
	touched time.Time
}

// remembered reports whether the partition cannot have forgotten the producer before now.
func (l *lane) remembered() bool { return time.Since(l.touched) < memory }

// drop gives up the last batches, because the partition may have forgotten the producer: a retry might be stored anew, and
// one whose answer did not come may have been. It reports whether what became of one of them is unknown.
func (l *lane) drop() (doubt bool) {
	for _, s := range l.recent {
		doubt = doubt || s.base == -1
		if s.retrying {
			l.History.MayRepeat(s.id)
		}
	}
	l.recent = nil
	return doubt
}

// producer is an idempotent producer with rules of its own, not those of a client library: whatever is unknown is
// sent again, byte for byte and in order, over the next connection, until there is an answer.
type producer struct {
	c      *campaign
	name   int32 // in the history
	rng    *rand.Rand
	id     batch.ProducerID // -1 before the first
	epoch  batch.Epoch
	lanes  []*lane
	doubt  bool  // what became of a batch of this epoch will not be known
	number int64 // of the next value
	begun  time.Time
	sent   int
	caught int64 // the generation that this producer last reported to have caught up with
}

func newProducer(c *campaign, name int32) *producer {
	p := &producer{c: c, name: name, id: -1, rng: rand.New(rand.NewPCG(c.cfg.seed, 1+uint64(name)))}
	for _, part := range c.Partitions {
		p.lanes = append(p.lanes, &lane{Partition: part})
	}
	return p
}

var (
	// errAgain ends a connection after an answer that asks for patience, errDropped one that is lost on purpose, errLate
	// one on which an answer to a retry came so late that it says nothing.
	errAgain   = errors.New("the broker asks to try again")
	errDropped = errors.New("connection dropped by the producer")
	errLate    = errors.New("the answer to a retry came when its producer may have been forgotten")
)

// run produces until stop is closed and everything is answered, or until ctx ends.
func (p *producer) run(ctx context.Context, stop <-chan struct{}) {
	p.begun = time.Now()
	for ctx.Err() == nil {
		if p.connection(ctx, stop) == nil {
			return
		}
		p.c.Pause(ctx)
	}
}

// connection is the life of one connection, and of the second one beside it. Its error says only why it ended; what
// the broker did wrong is noted.
func (p *producer) connection(ctx context.Context, stop <-chan struct{}) error {
	generation := p.c.generation.Load()
	conn, hangUp, err := p.c.Dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	echo, hangUpEcho, err := p.c.Dial(ctx)
	if err != nil {
		return err
	}
	defer hangUpEcho()
	if err := p.confirm(conn); err != nil {
		return err
	}
	if p.c.generation.Load() != generation {
		return errAgain // the broker that answered is no more, and a later one may be waiting for this message
	}
	if p.caught != generation {
		p.caught = generation
		select {
		case p.c.caughtUp <- generation:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return p.produce(ctx, conn, echo, stop)
}

// confirm asks for a producer id and sends the last batches of each partition again, twice: the first pass finds out
// what became of those whose outcome is unknown, the second demands the original offset of all. Where the partition may
// have forgotten the producer by now, what is unknown stays unknown, and the producer goes on with the new id.
func (p *producer) confirm(conn *rawkafka.Client) error {
	id, epoch, err := conn.InitProducerID()
	if code := (*rawkafka.CodeError)(nil); errors.As(err, &code) && code.Code != stage.CodeCoordinatorLoading {
		p.c.Violate("producer %d: %v", p.name, err)
	}
	if err != nil {
		return err
	}
	p.c.newID(id, epoch)
	for range 2 {
		for _, l := range p.lanes {
			if !l.remembered() {
				p.doubt = l.drop() || p.doubt
			}
			if err := p.resend(conn, l); err != nil {
				return err
			}
		}
	}
	switch {
	case p.id == -1 || p.doubt || p.rng.IntN(newIDIn) == 0:
		p.begin(id, epoch)
	case p.rng.IntN(bumpIn) == 0:
		p.begin(p.id, p.epoch+1)
	}
	return nil
}

// begin goes on with another id or epoch. Everything sent before has been answered.
func (p *producer) begin(id batch.ProducerID, epoch batch.Epoch) {
	p.id, p.epoch, p.doubt = id, epoch, false
	for _, l := range p.lanes {
		l.next, l.recent, l.touched = 0, nil, time.Time{}
	}
}

// resend sends the last batches of one partition again, in flight together.
func (p *producer) resend(conn *rawkafka.Client, l *lane) error {
	var reqs []kmsg.Request
	for _, s := range l.recent {
		s.retrying = true
		reqs = append(reqs, rawkafka.ProduceRequest(produceVersion, l.Topic, l.Index, s.bytes))
	}
	if err := conn.SendAll(reqs...); err != nil {
		return err
	}
	for _, s := range l.recent {
		p.c.stats.resent.Add(1)
		if err := p.receive(conn, l, s, true); err != nil {
			return err
		}
	}
	return nil
}

// flight is a batch on its way.
type flight struct {
	lane *lane
	sent *sent
}

// produce sends new batches, up to a depth that is drawn for this connection, until stop is closed.
func (p *producer) produce(ctx context.Context, conn, echo *rawkafka.Client, stop <-chan struct{}) error {
	depth := 1 + p.rng.IntN(window)
	var inFlight []flight
	land := func(to int) error {
		for len(inFlight) > to {
			if err := p.receive(conn, inFlight[0].lane, inFlight[0].sent, false); err != nil {
				return err
			}
			offer(p.c.answered)
			inFlight = inFlight[1:]
		}
		return nil
	}
	for {
		select {
		case <-stop:
			return land(0)
		case <-p.c.Violated():
			return land(0)
		default:
		}
		if ahead := p.ahead(); ahead > 0 {
			if err := land(0); err != nil {
				return err
			}
			select {
			case <-time.After(ahead):
			case <-stop:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		l := p.lanes[p.rng.IntN(len(p.lanes))]
		alone := !slices.ContainsFunc(inFlight, func(f flight) bool { return f.lane == l })
		if alone && !l.remembered() {
			l.drop()
		}
		s := p.next(l)
		inFlight = append(inFlight, flight{lane: l, sent: s})
		if err := p.send(conn, echo, l, s, alone); err != nil {
			return err
		}
		if err := land(depth - 1); err != nil {
			return err
		}
	}
}

// send sends a new batch, and now and then at the same time over the second connection: one of the two is a retry
// that arrives while the original is on its way, and its answer must be as good. With another batch of the same
// partition in flight the second copy could overtake that one and be refused with right. Now and then the
// connection is lost at once.
func (p *producer) send(conn, echo *rawkafka.Client, l *lane, s *sent, alone bool) error {
	req := rawkafka.ProduceRequest(produceVersion, l.Topic, l.Index, s.bytes)
	if err := conn.Send(req); err != nil {
		return err
	}
	switch {
	case p.rng.IntN(dropIn) == 0:
		return errDropped
	case alone && p.rng.IntN(echoIn) == 0:
		s.retrying = true
		if err := echo.Send(req); err != nil {
			return err
		}
		p.c.stats.resent.Add(1)
		if err := p.receive(echo, l, s, true); err != nil {
			return err
		}
		offer(p.c.retryAnswered)
	}
	return nil
}

// offer tells the controller that a moment has come, if it waits for one.
func offer(moment chan<- struct{}) {
	select {
	case moment <- struct{}{}:
	default:
	}
}

// ahead says how long to wait before the next batch, so that bursts keep to the rate; 0 to go on.
func (p *producer) ahead() time.Duration {
	if p.c.cfg.rate == 0 || p.sent%burstBatches != 0 {
		return 0
	}
	each := time.Second * time.Duration(p.c.cfg.producers) / time.Duration(p.c.cfg.rate)
	return time.Duration(p.sent)*each - time.Since(p.begun)
}

// next makes the lane's next batch and notes that it is about to be sent.
func (p *producer) next(l *lane) *sent {
	count, size := 1+p.rng.Int32N(recordsMax), history.PayloadSizeMin+p.rng.IntN(payloadMax)
	if p.rng.IntN(100) == 0 {
		count, size = 1, p.rng.IntN(largePayload)
	}
	first := p.number
	var records [][]byte
	for range count {
		records = append(records, history.AppendPayload(nil, history.Value{Producer: p.name, Number: p.number}, size))
		p.number++
	}
	s := &sent{bytes: rawkafka.Idempotent(p.id, p.epoch, l.next, records...).Bytes(), base: -1, count: count, first: time.Now()}
	s.id = l.History.Invoke(p.name, first, count)
	l.next = batch.Sequence((int64(l.next) + int64(count)) % (1 << 31))
	if len(l.recent) == 0 {
		l.touched = s.first
	}
	if l.recent = append(l.recent, s); len(l.recent) > window {
		l.recent = l.recent[1:]
	}
	p.sent++
	return s
}

// codeNotEnoughReplicas says that there is no room for another producer.
const codeNotEnoughReplicas = 19

// again reports whether a code has the meaning "not now": the batch is sent again.
func again(code int16) bool {
	return slices.Contains([]int16{stage.CodeNotLeader, stage.CodeTimedOut, codeNotEnoughReplicas, stage.CodeStorage}, code)
}

// receive reads the answer to one batch and holds it against what was answered before. All batches before it on
// this connection were answered with success, so an answer that the sequence is wrong is a violation, never a
// consequence of an earlier one. Of a retry that holds only as long as the partition must remember the producer.
func (p *producer) receive(conn *rawkafka.Client, l *lane, s *sent, retry bool) error {
	answer, err := conn.Receive()
	if err != nil {
		return err
	}
	a, err := rawkafka.ProduceAnswerOf(answer)
	if err != nil {
		p.c.Violate("producer %d, %v: %v", p.name, l, err)
		return err
	}
	if retry && !l.remembered() {
		p.c.stats.late.Add(1)
		l.History.MayRepeat(s.id)
		return errLate
	}
	if retry {
		s.retrying = false
	}
	switch {
	case a.Code == 0:
	case again(a.Code):
		p.c.stats.retriable.Add(1)
		if a.Code == stage.CodeStorage {
			p.c.stats.noRoom.Add(1)
		}
		return errAgain
	default:
		p.c.Violate("producer %d (id %d epoch %d), %v: error code %d %s to a batch that is right, known offset %d",
			p.name, p.id, p.epoch, l, a.Code, a.Text, s.base)
		return fmt.Errorf("error code %d", a.Code)
	}
	l.History.Stored(s.id, a.Base)
	if s.base == -1 {
		s.base = a.Base
		p.c.stats.acknowledged.Add(1)
		p.c.stats.records.Add(int64(s.count))
	}
	if s.base != a.Base {
		p.c.Violate("producer %d (id %d epoch %d), %v: a batch was stored at %d, its retry was answered %d",
			p.name, p.id, p.epoch, l, s.base, a.Base)
	}
	if s.first.After(l.touched) {
		l.touched = s.first
	}
	return nil
}
