package dedupe

import (
	"fmt"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/invariant"
)

// RulesVersion is the version of the rule in the package comment, the only one so far. A partition's version is
// part of its log, so that builds that know different versions decide alike.
const RulesVersion uint16 = 1

// KnowsRules reports whether this build can decide by that version.
func KnowsRules(version uint16) bool { return version == RulesVersion }

// Table is what one partition remembers of its producers: a function of the partition's committed entries and of
// nothing else. It is not safe for concurrent use.
type Table struct {
	rules     uint16
	clock     int64
	marks     marks
	producers byID[producer]
}

// New returns the table of a partition at birth. rules must be known (KnowsRules). Every producer id whose start
// number is below floor is marked: it may have been forgotten, and may begin at any sequence.
func New(rules uint16, floor uint32) *Table {
	if !KnowsRules(rules) {
		invariant.Bug("make a table with rules %d, this build knows %d", rules, RulesVersion)
	}
	return &Table{rules: rules, clock: -1, marks: marks{floor: floor}}
}

// Rules is the version of the rule by which the table decides.
func (t *Table) Rules() uint16 { return t.rules }

// SetRules applies a rules entry. It fails, and changes nothing, when this build does not know the version.
func (t *Table) SetRules(version uint16) error {
	if !KnowsRules(version) {
		return fmt.Errorf("set rules %d: %w", version, ErrUnknownRules)
	}
	t.rules = version
	return nil
}

// Clock is the partition's log time in milliseconds: that of its last clock entry, -1 before the first.
func (t *Table) Clock() int64 { return t.clock }

// SetClock applies a clock entry. Log time does not go backwards: an earlier time changes nothing.
func (t *Table) SetClock(ms int64) { t.clock = max(t.clock, ms) }

// Producers is the number of producers that the table remembers.
func (t *Table) Producers() int { return t.producers.n }

// Clone returns a copy that shares nothing with the table. It copies memory and encodes nothing, so that the goroutine
// of the table can go on while the copy is written elsewhere.
func (t *Table) Clone() *Table {
	c := *t
	c.marks = t.marks.clone()
	c.producers = t.producers.clone()
	return &c
}

// Decide judges a batch by the rule in the package comment. It changes nothing and allocates nothing. s must come
// from a batch that passed its check (batch.CheckProduce or batch.CheckStored).
func (t *Table) Decide(s batch.Stamp) (d Decision) {
	decide(t.find(s), &t.marks, s, &d)
	return d
}

// find returns what is remembered of the producer of a batch, nil when that is nothing or the batch has none.
func (t *Table) find(s batch.Stamp) *producer {
	if s.ID < 0 {
		return nil
	}
	checkStamp(s)
	return t.producers.get(s.ID)
}

// decide writes into d the decision on a batch of whose producer p is remembered; nil is nothing.
func decide(p *producer, m *marks, s batch.Stamp, d *Decision) {
	if p != nil {
		p.decide(s, d)
	} else {
		m.decideUnknown(s, d)
	}
}

// decideUnknown writes into d the decision on a batch without a producer, or of one that is not known: line 5 of
// the rule.
func (m *marks) decideUnknown(s batch.Stamp, d *Decision) {
	*d = Decision{Verdict: Append, Base: -1, Last: -1, SeenEpoch: -1}
	switch {
	case s.ID < 0:
		d.Reason, d.Expected = NoProducer, -1
	case s.First == 0:
		d.Reason = FirstContact
	case m.covers(s.ID):
		d.Reason = FirstContactForgotten
	default:
		d.Verdict, d.Reason = OutOfOrder, FirstContactNotZero
	}
}

// Record remembers a batch that is stored at base. The verdict on it must be Append, and base must lie above all
// that is remembered of its producer. A batch without a producer leaves no trace.
func (t *Table) Record(s batch.Stamp, base batch.Offset) {
	if s.ID < 0 {
		return
	}
	p := t.find(s)
	mustAppend(p, &t.marks, s, base)
	if p == nil {
		p = t.producers.add(s.ID)
	}
	p.record(s, base, t.clock)
}

// mustAppend panics unless a batch, of whose producer p is remembered, may be stored at base. Whoever records it
// has asked before, so anything else is a bug; it is stopped before it leaves a trace.
func mustAppend(p *producer, m *marks, s batch.Stamp, base batch.Offset) {
	var d Decision
	decide(p, m, s, &d)
	if d.Verdict != Append {
		invariant.Bug("record producer %d epoch %d sequences %d to %d: %v, %v",
			s.ID, s.Epoch, s.First, s.Last, d.Verdict, d.Reason)
	}
	if base < 0 || base > batch.MaxBaseOffset || p != nil && base <= p.lastOffset(int(p.n)-1) {
		invariant.Bug("record producer %d epoch %d sequences %d to %d at offset %d, which is taken or none",
			s.ID, s.Epoch, s.First, s.Last, base)
	}
}

// Forget applies an expire or evict entry. A producer is dropped, and marked, only when all three fields of its
// line are still right: one that has written since was not idle after all, and leaves no mark either.
func (t *Table) Forget(list []Forgotten) {
	for _, f := range list {
		p := t.producers.get(f.ID)
		if p == nil || p.epoch != f.Epoch || p.next() != f.NextSequence {
			continue
		}
		t.producers.remove(f.ID)
		t.marks.add(f.ID)
	}
}

// MarkEverything applies a mark-everything entry: the partition's history is lost, so from now on every producer id
// may have been forgotten. What is remembered stays.
func (t *Table) MarkEverything() { t.marks = marks{floor: floorAll} }

// Check returns an error that names the first invariant of the package comment that does not hold.
func (t *Table) Check() error {
	if err := t.marks.check(); err != nil {
		return err
	}
	for _, p := range t.producers.ascending() {
		if err := t.check(p.id, p.value); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error unless (D1) to (D5) hold of one producer. The marks must be right.
func (t *Table) check(id batch.ProducerID, p *producer) error {
	if err := p.check(id); err != nil {
		return err
	}
	if p.n < windowMax && p.first != 0 && !t.marks.covers(id) {
		return fmt.Errorf("check producer %d: begins at sequence %d and is not marked", id, p.first)
	}
	if p.clock < -1 || p.clock > t.clock {
		return fmt.Errorf("check producer %d: clock %d, the table's is %d", id, p.clock, t.clock)
	}
	return nil
}
