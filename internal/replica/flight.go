package replica

import (
	"slices"
	"sort"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
)

// flight holds this leader's entries that are proposed or about to be, and not applied yet, in log order. It is the one
// place where answers wait: a batch's own and those of its retries.
//
// Invariants: indexes and offsets ascend; the proposed entries (index set) come first, the staged ones after them.
//
// It is bounded: batches and retries by the bytes that the mailbox holds for them; clock entries, since each goes in front
// of a batch; expire and evict entries, since nobody is named by two of them at once; and there is one log start entry.
type flight struct {
	// queue[first:] are the entries, queue[first:staged] the proposed ones.
	queue         []inFlight
	first, staged int
}

// inFlight is a batch, or a command.
type inFlight struct {
	index   seglog.Index // 0: staged
	base    batch.Offset // of a command: the offset that the next batch has
	next    batch.Offset // after its last record; of a command the same as base
	stamp   batch.Stamp
	own     answer
	retries []answer
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
		f.queue, f.staged, f.first = f.queue[:n], f.staged-f.first, 0
	}
	f.queue = append(f.queue, b)
}

// proposed says that Raft has accepted all that is staged, from index first on.
func (f *flight) proposed(first seglog.Index) {
	for ; f.staged < len(f.queue); f.staged++ {
		f.queue[f.staged].index = first
		first++
	}
}

// withdraw removes what is staged and returns it.
func (f *flight) withdraw() []inFlight {
	withdrawn := slices.Clone(f.queue[f.staged:])
	clear(f.queue[f.staged:])
	f.queue = f.queue[:f.staged]
	return withdrawn
}

// join adds a retry to those who wait for the batch at base.
func (f *flight) join(base batch.Offset, w answer) {
	waiting := f.queue[f.first:]
	i := sort.Search(len(waiting), func(i int) bool { return waiting[i].next > base })
	invariant.Check(i < len(waiting) && waiting[i].base == base, "the original of a retry is neither applied nor on its way")
	waiting[i].retries = append(waiting[i].retries, w)
}

// pop removes the oldest entry if its index is the one that was just applied. An entry that an earlier leader
// proposed is not here.
func (f *flight) pop(index seglog.Index) (inFlight, bool) {
	if f.first == f.staged || f.queue[f.first].index != index {
		return inFlight{}, false
	}
	oldest := f.queue[f.first]
	f.queue[f.first] = inFlight{}
	if f.first++; f.first == len(f.queue) {
		f.queue, f.first, f.staged = f.queue[:0], 0, 0
	}
	return oldest, true
}

// each visits all in log order.
func (f *flight) each(visit func(*inFlight)) {
	for i := range f.queue[f.first:] {
		visit(&f.queue[f.first+i])
	}
}
