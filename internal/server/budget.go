package server

import (
	"slices"
	"sync"
)

// ownBytes is what each connection may hold of each kind of memory without asking, beside its buffers: so a small request
// is never kept waiting by others, and a batch of Kafka's default size always fits into an answer. It is a buffer of the
// class of 32 KiB.
const ownBytes = 32<<10 + 32<<10>>6

// The budgets that are no settings.
const (
	producingBytesMax = 64 << 20
	requestsBytesMax  = 64 << 20
	workingBytesMax   = 128 << 20
	answersBytesMax   = 128 << 20
)

// budgets bound the memory that all connections hold together. Clients decide how much that is and for how long: thirty
// that asked for 55 MiB each and did not read the answers held 1.7 GiB.
//
// A request that holds something of one budget waits only for budgets that come after it, and what is lent of the last one
// comes back without any other: its clients read their answers, or are cut. So nobody waits in a circle.
type budgets struct {
	// produces: from the moment when a produce begins to come in until its partitions have answered. A produce that is
	// larger than firstStep has no part in it: until so much has come it is counted in begun, and from then on, whole,
	// in large. So one that announces much and sends little takes nothing away from the others.
	produces, begun, large budget
	// producing: what a produce of several partitions keeps of each until all have answered and its answer is made.
	//
	// These four come back no sooner than the disk allows: a slow disk slows producers down by them, and nobody else.
	producing budget
	// requests: the frames of other requests, until they are decoded.
	requests budget
	// working: what they are decoded to, until they are answered; of a fetch that waits, what it needs for that.
	working budget
	// answers: those to other requests, from the moment before one is made until it is written.
	answers budget
}

// divide sets the bounds. Those of the first three budgets are queued together.
func (b *budgets) divide(queued int64) {
	eighth := max(queued/8, 1)
	b.produces.bytesMax, b.begun.bytesMax, b.large.bytesMax = 4*eighth, eighth, 3*eighth
	b.producing.bytesMax = producingBytesMax
	b.requests.bytesMax, b.working.bytesMax, b.answers.bytesMax = requestsBytesMax, workingBytesMax, answersBytesMax
}

// budget bounds the bytes of one kind of memory. Whoever would exceed it waits, in the order of arrival.
type budget struct {
	bytesMax int64

	mu    sync.Mutex
	lent  int64
	queue []*turn
	crowd chan struct{} // closed as soon as somebody waits; nil: nobody wants to know
}

// turn is the place of somebody who waits.
type turn struct {
	bytes int64
	come  chan struct{} // closed when they are lent
}

// loan is what was lent of a budget. The zero value holds nothing.
type loan struct {
	from  *budget
	bytes int64
}

// take lends bytes, which may be less than 1. It waits as long as it takes, or until a channel is closed: then it lends
// nothing and says false. More than the budget has is taken for all of it, so that one alone always passes.
func (b *budget) take(bytes int64, aborted, stopping <-chan struct{}) (loan, bool) {
	if bytes <= 0 {
		return loan{}, true
	}
	l := loan{b, min(bytes, b.bytesMax)}
	t := b.join(l.bytes)
	if t == nil {
		return l, true
	}
	select {
	case <-t.come:
		return l, true
	case <-aborted:
	case <-stopping:
	}
	b.leave(t)
	return loan{}, false
}

// join lends bytes at once, or returns a place in the queue.
func (b *budget) join(bytes int64) *turn {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 && b.lent+bytes <= b.bytesMax {
		b.lent += bytes
		return nil
	}
	t := &turn{bytes, make(chan struct{})}
	b.queue = append(b.queue, t)
	if b.crowd != nil {
		close(b.crowd)
		b.crowd = nil
	}
	return t
}

// leave gives up a place in the queue.
func (b *budget) leave(t *turn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.queue, t); i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
	} else {
		b.lent -= t.bytes // its turn came at the same moment
	}
	b.call()
}

// call lends to those whose turn it is. The caller holds the lock.
func (b *budget) call() {
	for len(b.queue) > 0 && b.lent+b.queue[0].bytes <= b.bytesMax {
		b.lent += b.queue[0].bytes
		close(b.queue[0].come)
		b.queue[0] = nil
		b.queue = b.queue[1:]
	}
}

// some lends up to bytes without waiting: at most half of what is left, so that something always is, and nothing while
// others wait.
func (b *budget) some(bytes int64) loan {
	if bytes <= 0 {
		return loan{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) > 0 {
		return loan{}
	}
	l := loan{b, min(bytes, (b.bytesMax-b.lent)/2)}
	b.lent += l.bytes
	return l
}

// scarce says that somebody waits, or soon will.
func (b *budget) scarce() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue) > 0 || b.lent > b.bytesMax/4*3
}

// crowded returns a channel that is closed as soon as somebody waits.
func (b *budget) crowded() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.crowd == nil {
		b.crowd = make(chan struct{})
	}
	if c := b.crowd; len(b.queue) > 0 {
		close(c)
		b.crowd = nil
		return c
	}
	return b.crowd
}

// shrink gives back all but bytes. It never asks for more.
func (l *loan) shrink(bytes int64) {
	back := l.bytes - max(bytes, 0)
	if back <= 0 {
		return
	}
	l.bytes -= back
	l.from.mu.Lock()
	defer l.from.mu.Unlock()
	l.from.lent -= back
	l.from.call()
}

// giveBack gives all back. A further time does nothing.
func (l *loan) giveBack() {
	l.shrink(0)
}
