package replica

import (
	"slices"
	"sort"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
)

// flight holds this leader's entries that are proposed or about to be, and whose answers are not out, in log order. It is
// the one place where answers wait: a batch's own and those of its retries. An entry waits to be applied, and, while this
// replica leads, to be on as many replicas as min.insync.replicas asks for. After it has stepped down its entries stay
// until they are applied here, or cut off; when it leads again and serves, none of them is left.
//
// Invariants: indexes and offsets ascend; all proposed entries are of one term; the applied ones come first, then the other
// proposed ones (index set), then the staged ones.
//
// It is bounded: batches and retries by the bytes that the mailbox holds for them; clock entries, since each goes in front
// of a batch; expire and evict entries, since nobody is named by two of them at once; and there is one log start entry.
type flight struct {
	// queue[first:] are the entries, queue[first:applied] the applied ones, queue[first:staged] the proposed ones. Those
	// before onDisk are on this leader's disk as far as heard of.
	queue                          []inFlight
	first, applied, onDisk, staged int
}

// inFlight is a batch, or a command.
type inFlight struct {
	index   seglog.Index // 0: staged
	term    batch.Term
	base    batch.Offset // of a command: the offset that the next batch has
	next    batch.Offset // after its last record; of a command the same as base
	stamp   batch.Stamp
	own     answer
	retries []answer
	// owed are the bytes that the mailbox holds for a batch that is answered: they are until it is applied.
	owed    int
	command *command // nil: a batch
}

// command is a zero-width entry of this leader: of the fields clock, forget and logStart it has the one of its kind.
type command struct {
	kind     seglog.Kind
	clock    int64
	forget   []dedupe.Forgotten
	logStart batch.Offset
	// applied runs when the entry is applied; nil: nothing is to be done.
	applied func()
}

// stage adds an entry that goes into the next proposal. When there is no room at the end and more than half of the queue
// is behind us, the rest moves to the front, so that a partition that is never idle does not grow its queue for ever.
func (f *flight) stage(b inFlight) {
	if len(f.queue) == cap(f.queue) && f.first > len(f.queue)/2 {
		n := copy(f.queue, f.queue[f.first:])
		clear(f.queue[n:])
		f.queue = f.queue[:n]
		f.applied, f.onDisk, f.staged, f.first = f.applied-f.first, f.onDisk-f.first, f.staged-f.first, 0
	}
	f.queue = append(f.queue, b)
}

// proposed says that Raft has accepted all that is staged, from index first on, in a term.
func (f *flight) proposed(first seglog.Index, term batch.Term) {
	for ; f.staged < len(f.queue); f.staged++ {
		f.queue[f.staged].index, f.queue[f.staged].term = first, term
		first++
	}
}

// withdraw removes what is staged and returns it.
func (f *flight) withdraw() []inFlight { return f.cut(f.staged) }

// cutOff removes what is proposed from an index on and not applied, and returns it.
func (f *flight) cutOff(from seglog.Index) []inFlight {
	waiting := f.queue[f.applied:f.staged]
	at := f.applied + sort.Search(len(waiting), func(i int) bool { return waiting[i].index >= from })
	if at == f.staged {
		return nil
	}
	return f.cut(at)
}

func (f *flight) cut(at int) []inFlight {
	gone := slices.Clone(f.queue[at:])
	clear(f.queue[at:])
	f.queue = f.queue[:at]
	f.staged, f.onDisk = min(f.staged, at), min(f.onDisk, at)
	return gone
}

// find returns the batch at base, nil when it is not here, and whether it is on this leader's disk.
func (f *flight) find(base batch.Offset) (b *inFlight, onDisk bool) {
	waiting := f.queue[f.first:]
	i := sort.Search(len(waiting), func(i int) bool { return waiting[i].next > base })
	if i == len(waiting) || waiting[i].base != base {
		return nil, false
	}
	return &waiting[i], f.first+i < f.onDisk
}

// land takes note that an entry is applied, and returns it. An entry that an earlier leader proposed is not here.
func (f *flight) land(index seglog.Index, term batch.Term) *inFlight {
	if f.applied == f.staged || f.queue[f.applied].index != index {
		return nil
	}
	landed := &f.queue[f.applied]
	invariant.Check(landed.term == term, "entry %d of term %d is applied, of term %d was proposed and not cut off", index, term, landed.term)
	f.applied++
	return landed
}

// pop removes the oldest entry if it is applied, and not above enough or nobody waits for it.
func (f *flight) pop(enough seglog.Index) (inFlight, bool) {
	if f.first == f.applied || f.queue[f.first].index > enough && f.queue[f.first].awaited() {
		return inFlight{}, false
	}
	oldest := f.queue[f.first]
	f.queue[f.first] = inFlight{}
	f.first++
	f.onDisk = max(f.onDisk, f.first)
	if f.first == len(f.queue) {
		f.queue, f.first, f.applied, f.onDisk, f.staged = f.queue[:0], 0, 0, 0, 0
	}
	return oldest, true
}

// flushed returns the next entry that is on this leader's disk, which holds all up to end, each once; nil for none.
func (f *flight) flushed(end seglog.Index) *inFlight {
	if f.onDisk == f.staged || f.queue[f.onDisk].index > end {
		return nil
	}
	f.onDisk++
	return &f.queue[f.onDisk-1]
}

// awaited reports whether an answer waits for the entry.
func (f *inFlight) awaited() bool {
	waits := false
	f.each(func(w *answer) { waits = waits || w.done != nil })
	return waits
}

// eachAhead visits all that are not applied, in log order.
func (f *flight) eachAhead(visit func(*inFlight)) {
	for i := range f.queue[f.applied:] {
		visit(&f.queue[f.applied+i])
	}
}

// empty reports whether there is none.
func (f *flight) empty() bool { return f.first == len(f.queue) }
