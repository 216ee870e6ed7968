package dedupe

import (
	"fmt"
	"math"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/invariant"
)

// windowMax is the number of batches of a producer that are remembered. It is Kafka's: a client with idempotence on
// has at most five requests in flight, so a retry is one of the last five batches.
const windowMax = 5

// producer is what a partition remembers of one producer. Batches are kept oldest first. A batch begins at the
// sequence after its predecessor's last, so only the oldest one's first is kept: a window with a gap cannot be
// written down. Without a batch (n == 0) nothing is known, which lasts only until the batch at hand is recorded.
type producer struct {
	epoch batch.Epoch
	n     uint8
	first batch.Sequence            // of the oldest batch's first record
	last  [windowMax]batch.Sequence // of each batch's last record
	base  [windowMax]batch.Offset   // of each batch's first record
	clock int64                     // log time of the last batch
}

// next is the sequence with which the next batch begins. The window must not be empty.
func (p *producer) next() batch.Sequence { return batch.AddSequence(p.last[p.n-1], 1) }

// firstOf is the first sequence of batch i of the window.
func (p *producer) firstOf(i int) batch.Sequence {
	if i == 0 {
		return p.first
	}
	return batch.AddSequence(p.last[i-1], 1)
}

// lastOffset is the offset of the last record of batch i of the window.
func (p *producer) lastOffset(i int) batch.Offset {
	return p.base[i] + batch.Offset(distance(p.firstOf(i), p.last[i]))
}

// distance is how many sequences lie between from and to, going up modulo 2^31.
func distance(from, to batch.Sequence) uint32 { return (uint32(to) - uint32(from)) & math.MaxInt32 }

// decide judges a batch of a producer whose window is not empty, lines 1 to 4 and 6 of the rule, and writes the
// decision into d. A Decision that is returned from function to function is copied each time, which cost more than
// the judgement.
func (p *producer) decide(s batch.Stamp, d *Decision) {
	next := p.next()
	*d = Decision{Base: -1, Last: -1, Expected: next, SeenEpoch: p.epoch}
	if s.Epoch != p.epoch {
		switch {
		case s.Epoch < p.epoch:
			d.Verdict, d.Reason, d.Expected = Fenced, OldEpoch, -1
		case s.First == 0:
			d.Verdict, d.Reason, d.Expected = Append, NewEpoch, 0
		default:
			d.Verdict, d.Reason, d.Expected = OutOfOrder, EpochNotFromZero, 0
		}
		return
	}
	for i, last := range p.last[:min(p.n, windowMax)] {
		if last == s.Last && p.firstOf(i) == s.First {
			d.Verdict, d.Reason, d.Base, d.Last = Duplicate, InWindow, p.base[i], p.lastOffset(i)
			return
		}
	}
	switch {
	case s.First == next:
		d.Verdict, d.Reason = Append, NextInSequence
	case distance(next, s.First) <= math.MaxInt32/2:
		d.Verdict, d.Reason = OutOfOrder, Gap
	default:
		d.Verdict, d.Reason = OutOfOrder, Stale
	}
}

// record remembers a batch for which the verdict was Append, stored at base at the log time clock.
func (p *producer) record(s batch.Stamp, base batch.Offset, clock int64) {
	if s.Epoch != p.epoch {
		p.n = 0
	}
	if p.n == windowMax {
		p.first = p.firstOf(1)
		copy(p.base[:], p.base[1:])
		copy(p.last[:], p.last[1:])
		p.n--
	}
	if p.n == 0 {
		p.first = s.First
	}
	p.base[p.n], p.last[p.n] = base, s.Last
	p.n++
	p.epoch, p.clock = s.Epoch, clock
}

// check returns an error unless (D1), (D2), (D3) hold, of which the representation excludes a gap in the sequences.
func (p *producer) check(id batch.ProducerID) error {
	if id < 0 || p.epoch < 0 || p.n < 1 || p.n > windowMax || p.first < 0 {
		return fmt.Errorf("check producer %d: epoch %d, %d batches, first sequence %d", id, p.epoch, p.n, p.first)
	}
	for i := range int(p.n) {
		switch {
		case p.last[i] < 0 || distance(p.firstOf(i), p.last[i]) == math.MaxInt32:
			return fmt.Errorf("check producer %d: sequences %d to %d", id, p.firstOf(i), p.last[i])
		case p.base[i] < 0 || p.base[i] > batch.MaxBaseOffset || i > 0 && p.base[i] <= p.lastOffset(i-1):
			return fmt.Errorf("check producer %d: batch %d at offset %d, out of range or taken", id, i, p.base[i])
		}
	}
	return nil
}

// checkStamp panics unless s is one that a batch check let pass.
func checkStamp(s batch.Stamp) {
	if s.Epoch < 0 || s.First < 0 || s.Last < 0 || distance(s.First, s.Last) == math.MaxInt32 {
		invariant.Bug("decide unchecked: producer %d epoch %d sequences %d to %d", s.ID, s.Epoch, s.First, s.Last)
	}
}
