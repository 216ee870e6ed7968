package dedupe

import (
	"cmp"
	"math"
	"slices"
)

// idle is a producer that no proposal touches.
type idle struct {
	clock int64 // log time of its last batch
	Forgotten
}

// compareIdle orders producers by the time of their last batch, those of the same time by id.
func compareIdle(a, b idle) int {
	return cmp.Or(cmp.Compare(a.clock, b.clock), cmp.Compare(a.ID, b.ID))
}

// Idle returns producers whose last batch has the log time before or an earlier one: the least recently used first, of
// the same time those with the lower id, at most as many as wanted and as ForgottenMax. None of them has a proposal on
// its way. The list is the caller's.
//
// Idle looks at every producer, unless an earlier look has shown that nobody has been idle for so long. So ask for many
// at once rather than for one many times.
func (h *Head) Idle(before int64, most int) []Forgotten {
	if before < h.oldest || most < 1 {
		return nil
	}
	found := h.look(before, min(most, ForgottenMax))
	list := make([]Forgotten, len(found))
	for i, f := range found {
		list[i] = f.Forgotten
	}
	return list
}

// OldestClock is the log time of the last batch of the least recently used producer without a proposal on its way, as
// the last look at all producers has found it (the first call looks). Since then it may have become later, never
// earlier, and the next call of Idle that could find somebody puts it right. It is the table's clock when all producers
// have proposals on their way, and math.MaxInt64 when the table knows none.
func (h *Head) OldestClock() int64 {
	if h.table.Producers() == 0 {
		return math.MaxInt64
	}
	if h.oldest == math.MinInt64 {
		h.look(math.MinInt64, 1)
	}
	return h.oldest
}

// look goes through all producers that no proposal touches. It returns the first of them in the order of compareIdle,
// at most so many, whose last batch has the time before or an earlier one, and sets h.oldest.
func (h *Head) look(before int64, most int) []idle {
	// Producers with a proposal on their way need no look: their last batch follows all clock entries of the table.
	h.oldest = h.table.clock
	var found []idle
	bound := idle{clock: math.MaxInt64} // whoever is behind it is not among the first
	m := &h.table.producers
	for i := range m.slots {
		p, id := &m.slots[i].value, m.slots[i].id
		if m.tags[i] == 0 || h.touched.get(id) != nil {
			continue
		}
		h.oldest = min(h.oldest, p.clock)
		f := idle{p.clock, Forgotten{ID: id, Epoch: p.epoch, NextSequence: p.next()}}
		if p.clock > before || compareIdle(f, bound) > 0 {
			continue
		}
		if found = append(found, f); len(found) == 2*most {
			slices.SortFunc(found, compareIdle)
			found = found[:most]
			bound = found[most-1]
		}
	}
	slices.SortFunc(found, compareIdle)
	return found[:min(most, len(found))]
}
