package replica

import (
	"context"
	"sync"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
)

// agenda collects the chores of a replica until its loop gets to them, so that no more than one task is in the mailbox for
// all of them, however often they are asked for.
type agenda struct {
	mu     sync.Mutex
	chores Chore
	// Of the newest EvictIdle.
	idle time.Duration
	most int
}

// relieve is the chore of EvictIdle.
const relieve Chore = 1 << 7

// add adds chores, and posts the task that does them unless it is posted already.
func (a *agenda) add(chores Chore, post func() bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.chores == 0 && chores != 0 && !post() {
		return
	}
	a.chores |= chores
}

// take returns the chores and clears the agenda.
func (a *agenda) take() Chore {
	a.mu.Lock()
	defer a.mu.Unlock()
	chores := a.chores
	a.chores = 0
	return chores
}

// Housekeep has the chores done soon, in the partition's own goroutine. It does not wait.
func (p *Partition) Housekeep(chores Chore) {
	if p.loop != nil {
		p.agenda.add(chores, func() bool { return p.loop.box.post(p.housekeep) })
	}
}

// EvictIdle has up to most producers forgotten soon, least recently used first, of those that have been idle for as
// long as idle, and at least for ProducerEvictionMinAge. It does not wait. Of two calls that come close together the
// second may count for both.
func (p *Partition) EvictIdle(idle time.Duration, most int) {
	p.agenda.mu.Lock()
	p.agenda.idle, p.agenda.most = idle, most
	p.agenda.mu.Unlock()
	p.Housekeep(relieve)
}

// housekeep does in the loop what the agenda says.
func (p *Partition) housekeep(now time.Time) {
	chores := p.agenda.take()
	if chores&Expire != 0 {
		p.core.expire(now)
	}
	if chores&relieve != 0 {
		p.agenda.mu.Lock()
		idle, most := p.agenda.idle, p.agenda.most
		p.agenda.mu.Unlock()
		p.core.evict(now, idle, most)
	}
	if chores&Retain != 0 {
		p.core.retain(now)
		p.core.sweepWanted = true
	}
	if chores&RetryBases != 0 {
		p.loop.keeper.retry()
	}
}

// DeleteRecords moves the log start up to before, or to the high watermark when before is -1. It returns the log start
// when that is durable; one that is higher already stays. ErrOutOfRange: before lies above the high watermark. ErrStopped,
// or the error of a ctx that ends first: the log start may move nevertheless.
func (p *Partition) DeleteRecords(ctx context.Context, before batch.Offset) (batch.Offset, error) {
	if p.loop == nil {
		return -1, p.offline()
	}
	type outcome struct {
		start batch.Offset
		err   error
	}
	ended := make(chan outcome, 1)
	posted := p.loop.box.post(func(time.Time) {
		p.core.deleteRecords(deletion{
			before: before,
			done:   func(start batch.Offset, err error) { ended <- outcome{start, err} },
			gone:   func() bool { return ctx.Err() != nil },
		})
	})
	if !posted {
		return -1, ErrStopped
	}
	select {
	case o := <-ended:
		if o.err != nil {
			return -1, o.err
		}
		return o.start, nil
	case <-ctx.Done():
		return -1, context.Cause(ctx)
	}
}
