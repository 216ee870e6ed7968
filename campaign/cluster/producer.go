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
	// window is how many batches a partition remembers of a producer, and how many are in flight at most.
	window = 5

	recordsMax      = 8
	payloadMax      = 250
	largePayload    = 100 << 10 // one batch in two hundred has a single record of up to this size
	burstBatches    = 10        // how many a producer sends at once
	produceVersion  = rawkafka.ProduceVersion
	newIDIn, bumpIn = 6, 6 // one connection in so many begins with a new id, with a new epoch
	dropIn          = 300  // after one batch in so many the producer drops its connection, answers under way included
	echoIn          = 20   // one batch in so many is sent to a node that is drawn as well, at the same time
	giveUpIn        = 2    // one batch in so many that was refused before it was accepted is given up
	idWithin        = time.Second

	codeOutOfOrder = 45
)

// sent is one batch that was sent at least once.
type sent struct {
	bytes []byte
	id    history.SendID
	base  batch.Offset // as answered; -1 while the outcome is unknown
	count int32
	tries int
}

// producer is an idempotent producer of one partition with rules of its own, not those of a client library: whatever is
// unknown is sent again, byte for byte and in order, over the next connection, to whichever node leads then, until there is
// an answer.
type producer struct {
	c         *campaign
	partition int
	at        *stage.Partition
	name      int32 // in the history
	rng       *rand.Rand
	id        batch.ProducerID // -1 before the first
	epoch     batch.Epoch
	next      batch.Sequence
	recent    []*sent   // the last batches sent, at most window, oldest first
	number    int64     // of the next value
	due       time.Time // of the next burst
	count     int       // batches
	caught    int64     // the generation that this producer last reported to have caught up with
}

func newProducer(c *campaign, name int32) *producer {
	partition := int(name) % len(c.Partitions)
	return &producer{
		c: c, partition: partition, at: c.Partitions[partition], name: name, id: -1,
		rng: rand.New(rand.NewPCG(c.cfg.seed, 100+uint64(name))),
	}
}

var (
	// errAgain ends a connection after an answer that asks for patience, errDropped one that is lost on purpose, errGivenUp
	// one on which a batch was given up, errOver one that a fault has outlived.
	errAgain   = errors.New("the broker asks to try again")
	errDropped = errors.New("connection dropped by the producer")
	errGivenUp = errors.New("a batch that was refused was given up")
	errOver    = errors.New("a fault is over: the last batches are to be confirmed")
)

// run produces until stop is closed and everything is answered, or until ctx ends.
func (p *producer) run(ctx context.Context, stop <-chan struct{}) {
	for ctx.Err() == nil {
		if p.connection(ctx, stop) == nil {
			return
		}
		p.c.Pause(ctx)
	}
}

// connection is the life of one connection. Its error says only why it ended; what a broker did wrong is noted.
func (p *producer) connection(ctx context.Context, stop <-chan struct{}) error {
	generation := p.c.generation.Load()
	if err := p.identify(ctx); err != nil {
		return err
	}
	conn, hangUp, err := p.c.dialLeader(ctx, p.partition)
	if err != nil {
		return err
	}
	defer hangUp()
	for range 2 {
		if err := p.confirm(conn); err != nil {
			return err
		}
	}
	if p.caught != generation {
		p.caught = generation
		select {
		case p.c.caughtUp <- generation:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return p.produce(ctx, conn, stop)
}

// identify sees to a producer id: now and then a new one, from any node, or a new epoch. Everything that is in doubt under
// the old one is confirmed first, so a change waits until nothing is.
func (p *producer) identify(ctx context.Context) error {
	doubt := slices.ContainsFunc(p.recent, func(s *sent) bool { return s.base == -1 })
	switch {
	case p.id == -1 || !doubt && p.rng.IntN(newIDIn) == 0:
		id, epoch, err := p.c.askForID(ctx, p.rng.IntN(p.c.nodes.Nodes()))
		if err == nil {
			p.begin(id, epoch)
		}
		if p.id == -1 {
			return err
		}
	case !doubt && p.rng.IntN(bumpIn) == 0:
		p.begin(p.id, p.epoch+1)
	}
	return nil
}

// askForID asks a node for a producer id. It may say that it has none yet, and nothing else.
func (c *campaign) askForID(ctx context.Context, node int) (batch.ProducerID, batch.Epoch, error) {
	conn, hangUp, err := stage.DialTo(ctx, c.nodes.Addr(node), idWithin)
	if err != nil {
		return -1, -1, err
	}
	defer hangUp()
	id, epoch, err := conn.InitProducerID()
	if code := (*rawkafka.CodeError)(nil); errors.As(err, &code) && code.Code != stage.CodeCoordinatorLoading {
		c.Violate("node %d: %v", node+1, err)
	}
	if err == nil {
		c.newID(id, epoch)
	}
	return id, epoch, err
}

// begin goes on with another id or epoch. Nothing that was sent before is in doubt.
func (p *producer) begin(id batch.ProducerID, epoch batch.Epoch) {
	p.id, p.epoch, p.next, p.recent = id, epoch, 0, nil
}

// confirm sends the last batches again, in flight together. What is unknown becomes known, and all must get the offset that
// they had.
func (p *producer) confirm(conn *rawkafka.Client) error {
	var reqs []kmsg.Request
	for _, s := range p.recent {
		s.tries++
		reqs = append(reqs, p.request(s))
	}
	if err := conn.SendAll(reqs...); err != nil {
		return err
	}
	p.c.stats.resent.Add(int64(len(p.recent)))
	return p.land(conn, slices.Clone(p.recent))
}

func (p *producer) request(s *sent) *kmsg.ProduceRequest {
	req := rawkafka.ProduceRequest(produceVersion, p.at.Topic, p.at.Index, s.bytes)
	req.TimeoutMillis = int32(answerAsked / time.Millisecond)
	return req
}

// land reads the answers to batches that were sent one after the other. Behind one that was not stored the others may be
// out of order; all answers are read, because each tells something.
func (p *producer) land(conn *rawkafka.Client, inFlight []*sent) error {
	var first error
	for _, s := range inFlight {
		err := p.receive(conn, s, first != nil)
		if err != nil && !errors.Is(err, errAgain) {
			return err
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// produce sends new batches, up to a depth that is drawn for this connection, until stop is closed or a fault is over.
func (p *producer) produce(ctx context.Context, conn *rawkafka.Client, stop <-chan struct{}) error {
	depth := 1 + p.rng.IntN(window)
	var inFlight []*sent
	for {
		select {
		case <-stop:
			return p.land(conn, inFlight)
		case <-p.c.Violated():
			return p.land(conn, inFlight)
		default:
		}
		if p.c.generation.Load() != p.caught {
			if err := p.land(conn, inFlight); err != nil {
				return err
			}
			return errOver
		}
		if ahead := p.ahead(); ahead > 0 {
			if err := p.land(conn, inFlight); err != nil {
				return err
			}
			inFlight = nil
			p.idle(ctx, stop, ahead)
			continue
		}
		s := p.newBatch()
		if err := p.send(ctx, conn, s, len(inFlight) == 0); err != nil {
			return err
		}
		if inFlight = append(inFlight, s); len(inFlight) < depth {
			continue
		}
		if err := p.receive(conn, inFlight[0], false); err != nil {
			return p.broken(conn, inFlight, err)
		}
		inFlight = inFlight[1:]
	}
}

// broken ends a connection behind an answer that was no success. What came behind it is read as well. A batch that was sent
// only once, alone, and refused before it was accepted, is given up now and then: it must not be stored.
func (p *producer) broken(conn *rawkafka.Client, inFlight []*sent, err error) error {
	if !errors.Is(err, errAgain) {
		return err
	}
	s := inFlight[0]
	if errors.Is(err, errRefused) && len(inFlight) == 1 && s.tries == 1 && p.rng.IntN(giveUpIn) == 0 {
		p.at.History.Refused(s.id)
		p.c.stats.refused.Add(1)
		p.id, p.recent = -1, nil
		return errGivenUp
	}
	for _, s := range inFlight[1:] {
		if err := p.receive(conn, s, true); err != nil && !errors.Is(err, errAgain) {
			return err
		}
	}
	return err
}

func (p *producer) idle(ctx context.Context, stop <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(min(d, retryEvery))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-stop:
	case <-ctx.Done():
	}
}

// send sends a new batch, and now and then at the same time to a node that is drawn: if that leads, one of the two is a
// retry that arrives while the original is on its way, and its answer must be as good. Now and then the connection is lost
// at once.
func (p *producer) send(ctx context.Context, conn *rawkafka.Client, s *sent, alone bool) error {
	s.tries++
	if err := conn.Send(p.request(s)); err != nil {
		return err
	}
	switch {
	case p.rng.IntN(dropIn) == 0:
		return errDropped
	case alone && p.rng.IntN(echoIn) == 0:
		return p.echo(ctx, s)
	}
	return nil
}

// echo sends a batch that is on its way to another node, or to the same one. That it is refused there says nothing.
func (p *producer) echo(ctx context.Context, s *sent) error {
	conn, hangUp, err := p.c.dial(ctx, p.rng.IntN(p.c.nodes.Nodes()))
	if err != nil {
		return nil
	}
	defer hangUp()
	s.tries++
	p.c.stats.resent.Add(1)
	if err := conn.Send(p.request(s)); err != nil {
		return nil
	}
	if err := p.receive(conn, s, false); errors.Is(err, errWrong) {
		return err
	}
	return nil
}

// ahead says how long to wait before the next batch, so that bursts keep to the rate; 0 to go on. What could not be sent in
// time is not made up for.
func (p *producer) ahead() time.Duration {
	if p.c.cfg.rate == 0 || p.count%burstBatches != 0 {
		return 0
	}
	if wait := time.Until(p.due); wait > 0 {
		return wait
	}
	p.due = time.Now().Add(burstBatches * time.Second * time.Duration(p.c.cfg.producers) / time.Duration(p.c.cfg.rate))
	return 0
}

// newBatch makes the next batch and notes that it is about to be sent.
func (p *producer) newBatch() *sent {
	count, size := 1+p.rng.Int32N(recordsMax), history.PayloadSizeMin+p.rng.IntN(payloadMax)
	if p.rng.IntN(200) == 0 {
		count, size = 1, p.rng.IntN(largePayload)
	}
	first := p.number
	var records [][]byte
	for range count {
		records = append(records, history.AppendPayload(nil, history.Value{Producer: p.name, Number: p.number}, size))
		p.number++
	}
	s := &sent{bytes: rawkafka.Idempotent(p.id, p.epoch, p.next, records...).Bytes(), base: -1, count: count}
	s.id = p.at.History.Invoke(p.name, first, count)
	p.next = batch.Sequence((int64(p.next) + int64(count)) % (1 << 31))
	if p.recent = append(p.recent, s); len(p.recent) > window {
		p.recent = p.recent[1:]
	}
	p.count++
	return s
}

var (
	// errRefused is errAgain of an answer that says that the batch was not accepted.
	errRefused = fmt.Errorf("the batch was not accepted: %w", errAgain)
	// errWrong is an answer that was noted as a violation.
	errWrong = errors.New("a wrong answer")
)

// receive reads the answer to one batch and holds it against what was answered before. behind says that a batch before it on
// this connection was not stored: then it may be out of order, and never else.
func (p *producer) receive(conn *rawkafka.Client, s *sent, behind bool) error {
	a, err := conn.ReceiveProduce()
	if err != nil {
		return err
	}
	switch {
	case a.Code == 0:
		return p.stored(s, a.Base)
	case a.Code == stage.CodeNotLeader, a.Code == stage.CodeNotEnoughReplicas:
		p.c.stats.retriable.Add(1)
		return errRefused
	case a.Code == stage.CodeTimedOut, a.Code == stage.CodeCutOff:
		p.c.stats.retriable.Add(1)
		return errAgain
	case a.Code == codeOutOfOrder && behind:
		p.c.stats.pipelines.Add(1)
		return errAgain
	}
	p.c.Violate("producer %d (id %d epoch %d), %v: error code %d %s to a batch that is right, known offset %d",
		p.name, p.id, p.epoch, p.at, a.Code, a.Text, s.base)
	return errWrong
}

func (p *producer) stored(s *sent, base batch.Offset) error {
	p.at.History.Stored(s.id, base)
	if s.base == -1 {
		s.base = base
		p.c.stats.acknowledged.Add(1)
		p.c.stats.records.Add(int64(s.count))
	}
	if s.base != base {
		p.c.Violate("producer %d (id %d epoch %d), %v: a batch was stored at %d, its retry was answered %d",
			p.name, p.id, p.epoch, p.at, s.base, base)
		return errWrong
	}
	return nil
}
