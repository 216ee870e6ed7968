package sim

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"strings"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/replica"
)

// pipeline is how many batches a producer has sent and not been answered, at most: what a partition remembers.
const pipeline = 5

// producer is a client that writes to one partition by the rules of Kafka's: up to five batches on their way, retries of all
// that is not answered, in order, to whoever leads, and a new incarnation when it has given up.
type producer struct {
	world      *world
	spec       *partition
	idempotent bool
	acks       int16

	id      batch.ProducerID
	epoch   batch.Epoch
	next    batch.Sequence
	number  int32 // in the history
	counter int64
	sent    int // batches of this incarnation

	used time.Duration // when a batch was answered last

	open   []*send // not answered yet, oldest first
	recent []*send // answered last
	conn   *conn
	// retrying: what is open is going to be sent again.
	retrying bool
}

// send is one batch.
type send struct {
	bytes    []byte
	id       history.SendID
	place    int // among those of its incarnation
	number   int32
	count    int32
	begun    time.Duration
	unsure   bool // it may have been accepted
	answered bool
}

// enlist makes the clients of a partition.
func (w *world) enlist(spec *partition) {
	for i := range w.swarm.Producers + w.swarm.Anonymous {
		c := &producer{world: w, spec: spec, idempotent: i < w.swarm.Producers, acks: -1}
		if !c.idempotent {
			c.acks = []int16{-1, 1, 0}[w.rng.IntN(3)]
		}
		c.renew()
		w.clients = append(w.clients, c)
		w.every(w.swarm.Think, c.act)
	}
	w.every(5*w.swarm.Think, func() { w.read(spec) })
	w.every(5*w.swarm.Think, func() { w.confirm(spec) })
	w.every(w.swarm.Delete, func() { w.deleteRecords(spec) })
}

// renew begins a new incarnation: a newer epoch, or another id.
func (c *producer) renew() {
	c.open, c.recent, c.next, c.sent = nil, nil, 0, 0
	if c.idempotent && c.number > 0 && c.world.chance(500) {
		c.epoch++
		return
	}
	c.spec.ledger.producers++
	c.number = int32(c.spec.ledger.producers)
	c.id, c.epoch = batch.ProducerID(1)<<32|batch.ProducerID(c.number), 0
	if !c.idempotent {
		c.id, c.epoch = -1, -1
	}
}

func (c *producer) act() {
	w := c.world
	switch {
	case w.closing || c.retrying:
	case len(c.open) == 0 && w.chance(20):
		c.renew()
	case c.idempotent && len(c.recent) > 0 && w.chance(60):
		c.repeat(c.recent[w.rng.IntN(len(c.recent))])
	case len(c.open) < pipeline && (len(c.open) == 0 || !c.mayBeForgotten()):
		c.produce()
	}
}

// mayBeForgotten reports whether the partition may have forgotten the producer before what is open is stored. The second of two
// batches could then be taken for a beginning, and the first would be too late for ever: so it has to wait.
func (c *producer) mayBeForgotten() bool {
	return c.world.swarm.Expire > 0 && c.world.now-c.used > time.Second
}

// probe sends one batch when all is healed.
func (c *producer) probe() {
	if len(c.open) == 0 {
		c.produce()
	}
}

func (c *producer) produce() {
	s := &send{number: c.number, count: 1 + c.world.rng.Int32N(4), begun: c.world.now, place: c.sent}
	s.id = c.spec.history.Invoke(c.number, c.counter, s.count)
	s.bytes = c.encode(history.Value{Producer: c.number, Number: c.counter}, s.count)
	c.counter += int64(s.count)
	c.next = batch.AddSequence(c.next, s.count)
	c.sent++
	c.open = append(c.open, s)
	c.transmit(s)
}

// encode makes a batch: its records are what the first one's value says, since partitions do not look inside.
func (c *producer) encode(first history.Value, count int32) []byte {
	b := make([]byte, batch.HeaderSize, batch.HeaderSize+400)
	b = history.AppendPayload(b, first, history.PayloadSizeMin+c.world.rng.IntN(200))
	now := c.world.nodes[0].clock.Now().UnixMilli()
	sequence := c.next
	if !c.idempotent {
		sequence = -1
	}
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[12:], ^uint32(0))
	b[16] = 2
	binary.BigEndian.PutUint32(b[23:], uint32(count-1))
	binary.BigEndian.PutUint64(b[27:], uint64(now))
	binary.BigEndian.PutUint64(b[35:], uint64(now))
	binary.BigEndian.PutUint64(b[43:], uint64(c.id))
	binary.BigEndian.PutUint16(b[51:], uint16(c.epoch))
	binary.BigEndian.PutUint32(b[53:], uint32(sequence))
	binary.BigEndian.PutUint32(b[57:], uint32(count))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// repeat sends a batch again that was answered: the answer must be the same, while the partition remembers it.
func (c *producer) repeat(s *send) {
	if c.world.now-s.begun < c.world.swarm.DeliveryTimeout {
		c.transmit(s)
	}
}

// transmit sends a batch over the connection, to a new one if need be.
func (c *producer) transmit(s *send) {
	if c.conn == nil || c.conn.closed {
		c.conn = c.dial()
	}
	c.conn.send(&attempt{producer: c, send: s, sure: len(c.open) > 0 && c.open[0] == s})
}

// retry has all that is open sent again, after a while.
func (c *producer) retry() {
	if c.retrying {
		return
	}
	c.retrying = true
	c.world.after(c.world.between(5*time.Millisecond, 200*time.Millisecond), c.again)
}

// again sends what is open to a node that may lead, over a new connection or, once nothing is on its way there or though
// something is, over the old one.
func (c *producer) again() {
	w := c.world
	if len(c.open) == 0 {
		c.retrying = false
		return
	}
	if (!w.closing || w.swarm.Expire > 0) && w.now-c.open[0].begun > w.swarm.DeliveryTimeout {
		c.giveUp()
		return
	}
	stay := c.conn != nil && !c.conn.closed && !w.chance(500)
	if stay && c.conn.busy() && !w.chance(300) {
		w.after(w.between(5*time.Millisecond, 50*time.Millisecond), c.again)
		return
	}
	if !stay && c.conn != nil {
		c.conn.close()
	}
	c.retrying = false
	for _, s := range slices.Clone(c.open) {
		c.transmit(s)
	}
}

// giveUp leaves what is open. What was surely never accepted must never appear.
func (c *producer) giveUp() {
	if c.conn != nil {
		c.conn.close()
	}
	for _, s := range c.open {
		if !s.unsure {
			c.spec.history.Refused(s.id)
		}
	}
	c.world.trace.add(c.world.now, "g%d producer %d gives up %d batches", c.spec.group, c.number, len(c.open))
	c.retrying = false
	c.renew()
}

// answered takes the answer to an attempt.
func (c *producer) answered(a *attempt, ack replica.Ack) {
	s := a.send
	c.world.trace.add(c.world.now, "g%d producer %d batch %d: %d %v", c.spec.group, s.number, s.place, ack.Base, ack.Err)
	c.world.counts[outcome(ack)]++
	switch {
	case ack.Err == nil:
		c.stored(s, ack.Base)
	case errors.Is(ack.Err, replica.ErrRefused):
		c.refused(a, ack.Decision)
	case errors.Is(ack.Err, replica.ErrCutOff), errors.Is(ack.Err, replica.ErrStopped):
		c.unknown(s)
	case errors.Is(ack.Err, replica.ErrNotLeader), errors.Is(ack.Err, replica.ErrDiskFull), errors.Is(ack.Err, replica.ErrOffline),
		errors.Is(ack.Err, replica.ErrTooManyProducers), errors.Is(ack.Err, replica.ErrNotEnoughReplicas):
		c.failed(s)
	default:
		c.world.fail("group %d: unexpected answer: %v", c.spec.group, ack.Err)
	}
}

// outcome names an answer for the counts.
func outcome(ack replica.Ack) string {
	switch {
	case ack.Err == nil:
		return "answer: " + ack.Decision.Verdict.String()
	case errors.Is(ack.Err, replica.ErrRefused):
		return "answer: " + ack.Decision.Reason.String()
	default:
		text, _, _ := strings.Cut(ack.Err.Error(), ":")
		return "answer: " + text
	}
}

func (c *producer) stored(s *send, base batch.Offset) {
	if c.acks == -1 {
		c.world.counts["acked"]++
		c.spec.history.Stored(s.id, base)
		c.spec.ledger.acked = max(c.spec.ledger.acked, base+batch.Offset(s.count))
	}
	if s.answered {
		return
	}
	s.answered = true
	if at := slices.Index(c.open, s); at >= 0 {
		c.used = c.world.now
		c.open = slices.Delete(c.open, at, at+1)
		if c.recent = append(c.recent, s); len(c.recent) > pipeline {
			c.recent = c.recent[1:]
		}
	}
}

// failed: the attempt was surely not accepted.
func (c *producer) failed(s *send) {
	if s.answered {
		return
	}
	if !c.idempotent {
		if !s.unsure {
			c.spec.history.Refused(s.id)
		}
		c.leave(s)
		return
	}
	if slices.Contains(c.open, s) {
		c.retry()
	}
}

// unknown: the attempt may have been accepted.
func (c *producer) unknown(s *send) {
	s.unsure = true
	if s.answered {
		return
	}
	if !c.idempotent {
		c.leave(s)
		return
	}
	if slices.Contains(c.open, s) {
		c.retry()
	}
}

// leave gives up a batch without a producer: what comes next may overtake it.
func (c *producer) leave(s *send) {
	s.answered = true
	if at := slices.Index(c.open, s); at >= 0 {
		c.open = slices.Delete(c.open, at, at+1)
	}
	c.spec.ledger.producers++
	c.number, c.counter = int32(c.spec.ledger.producers), 0
}

// refused: the batch was judged by sequence and epoch. Of a producer whose earlier batches are all answered, when it is sent or
// when it is answered, none is out of order, and one that was answered is remembered while no more than four came after it.
func (c *producer) refused(a *attempt, d dedupe.Decision) {
	s := a.send
	current := slices.Contains(c.open, s) || slices.Contains(c.recent, s)
	remembered := s.answered && current && c.sent-s.place <= pipeline
	due := !s.answered && (a.sure || len(c.open) > 0 && c.open[0] == s)
	if !c.idempotent || current && (due || remembered || d.Verdict == dedupe.Fenced) {
		c.world.fail("group %d: batch %d of producer %d epoch %d was refused though it was due: %v, %v, expected %d",
			c.spec.group, s.place, c.number, c.epoch, d.Verdict, d.Reason, d.Expected)
		return
	}
	c.failed(s)
}
