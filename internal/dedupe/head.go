package dedupe

import (
	"math"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/invariant"
)

// Head is a leader's view of its partition: an applied Table plus the leader's own proposals that are not applied
// yet. It decides as a Table would that had applied the whole log.
//
// It holds only what those proposals touch, the producers of the batches and those to be forgotten, so its size is
// bounded by what a partition accepts before applying it; and marks of its own, as many as a Table may have, while
// forgetting is on its way.
//
// A producer enters as a copy of what the table knows, with each proposal carried out on top, and leaves when the last
// of its proposals is applied, at which point table and copy say the same. While it is here the copy alone decides:
// the table lags behind, and would take a retry of a proposed batch for a new one. The copy of one that is forgotten
// is empty, until a batch of it begins anew.
//
// Entries that change the rules or mark everything cannot be noted: they must not be proposed while the leader serves.
//
// A proposal cannot be taken back. When Raft has refused one, make a new Head and note again what is still on its way,
// in the order of the log.
//
// A Head is good for one term of leadership: proposals of another leader pass it by. A leader that steps down drops
// it, with all its proposals, and one that has applied the first entry of a new term makes a new one. Without proposals
// it is right whatever is applied to the table. It belongs to the goroutine of its Table.
type Head struct {
	table   *Table
	clock   int64
	touched byID[touched]
	// marks are the table's own while no forgetting is on its way, else a copy in which it is done.
	marks   *marks
	forgets int // proposals that forget
	ahead   int // how many more producers the head knows than the table; below 0: fewer
	// oldest: no producer without a proposal has a last batch of an earlier log time. math.MinInt64: nobody looked yet.
	oldest int64
}

// touched is a producer with proposals that are not applied yet. Its window is empty when it is forgotten.
type touched struct {
	producer
	pending uint32 // number of those proposals, >= 1
	fresh   bool   // the table does not know the producer before the oldest of the batches is applied
}

// NewHead returns a head over t without any proposal.
func NewHead(t *Table) *Head {
	return &Head{table: t, clock: -1, marks: &t.marks, oldest: math.MinInt64}
}

// Clock is the newest log time in milliseconds, proposed or applied; -1 before the first clock entry.
func (h *Head) Clock() int64 { return max(h.clock, h.table.Clock()) }

// SetClock notes a proposed clock entry. As in a Table, an earlier time changes nothing.
func (h *Head) SetClock(ms int64) { h.clock = max(h.clock, ms) }

// Producers is the number of producers that are remembered, every proposal counted in.
func (h *Head) Producers() int { return h.table.Producers() + h.ahead }

// Decide judges a batch as Table.Decide does, with every proposal counted in. It changes nothing and allocates
// nothing.
func (h *Head) Decide(s batch.Stamp) (d Decision) {
	decide(h.find(s), h.marks, s, &d)
	return d
}

// find returns what is known of the producer of a batch, nil when that is nothing or the batch has none.
func (h *Head) find(s batch.Stamp) *producer {
	if p := h.touched.get(s.ID); p != nil {
		checkStamp(s)
		if p.n == 0 {
			return nil
		}
		return &p.producer
	}
	return h.table.find(s)
}

// Record notes a batch that Raft has accepted as a proposal and that will be stored at base. The verdict on it must
// be Append, and base must lie above all that is known of its producer. A batch without a producer leaves no trace.
func (h *Head) Record(s batch.Stamp, base batch.Offset) {
	if s.ID < 0 {
		return
	}
	known := h.find(s)
	mustAppend(known, h.marks, s, base)
	p := h.touched.get(s.ID)
	if p == nil {
		p = h.touched.add(s.ID)
		if known != nil {
			p.producer = *known
		}
	}
	if known == nil {
		p.fresh = true
		h.ahead++
	}
	p.record(s, base, h.Clock())
	p.pending++
}

// Applied says that the oldest of this producer's proposals was just recorded in the table. The batch must have
// been noted with Record; one without a producer never was, and is passed over.
func (h *Head) Applied(s batch.Stamp) {
	if s.ID < 0 {
		return
	}
	p := h.touched.get(s.ID)
	if p == nil {
		invariant.Bug("applied, not proposed: producer %d epoch %d sequences %d to %d", s.ID, s.Epoch, s.First, s.Last)
	}
	if p.fresh {
		p.fresh = false
		h.ahead--
	}
	h.applied(s.ID, p)
}

func (h *Head) applied(id batch.ProducerID, p *touched) {
	if p.pending--; p.pending == 0 {
		h.touched.remove(id)
	}
}

// Forget notes a proposed expire or evict entry: every producer in the list is gone, and marked. The list must be what
// Idle returned, or a part of it, and no proposal that names one of them may have been noted since.
func (h *Head) Forget(list []Forgotten) {
	for i, f := range list {
		p := h.table.producers.get(f.ID)
		if p == nil || p.epoch != f.Epoch || p.next() != f.NextSequence || h.touched.get(f.ID) != nil {
			invariant.Bug("forget producer %d epoch %d next sequence %d, place %d, which is not idle", f.ID, f.Epoch, f.NextSequence, i)
		}
		*h.touched.add(f.ID) = touched{pending: 1}
	}
	if h.forgets == 0 {
		m := h.table.marks.clone()
		h.marks = &m
	}
	for _, f := range list {
		h.marks.add(f.ID)
	}
	h.forgets++
	h.ahead -= len(list)
}

// ForgetApplied says that the oldest entry noted with Forget was just applied to the table; list is its.
func (h *Head) ForgetApplied(list []Forgotten) {
	for _, f := range list {
		p := h.touched.get(f.ID)
		if p == nil {
			invariant.Bug("forgotten, not proposed: producer %d epoch %d next sequence %d", f.ID, f.Epoch, f.NextSequence)
		}
		h.applied(f.ID, p)
	}
	h.ahead += len(list)
	if h.forgets--; h.forgets == 0 {
		h.marks = &h.table.marks
	}
}
