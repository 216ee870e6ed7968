package sim

import (
	"context"
	"testing/synctest"
	"time"
)

// calls are the calls into the product that wait for something, each on a goroutine of its own. Whenever an event has
// happened, all goroutines have come to rest before the next one.
type calls struct {
	world   *world
	waiting []*call
}

type call struct {
	process  *process
	cancel   context.CancelFunc
	returned bool // written by the call's goroutine, read when that is at rest
	ended    func()
}

// begin has a call made in a process. ended happens when it has returned; after limit its context ends.
func (c *calls) begin(p *process, limit time.Duration, make func(context.Context), ended func()) {
	ctx, cancel := context.WithCancel(context.Background())
	made := &call{process: p, cancel: cancel, ended: ended}
	c.waiting = append(c.waiting, made)
	go func() {
		make(ctx)
		made.returned = true
	}()
	synctest.Wait()
	c.world.after(limit, cancel)
	p.wake()
}

// cancel ends the calls into a process that is gone.
func (c *calls) cancel(p *process) {
	for _, made := range c.waiting {
		if made.process == p {
			made.cancel()
		}
	}
}

// settle ends the calls that have returned, in the order in which they began.
func (c *calls) settle() {
	if len(c.waiting) == 0 {
		return
	}
	synctest.Wait()
	var still, over []*call
	for _, made := range c.waiting {
		if made.returned {
			over = append(over, made)
		} else {
			still = append(still, made)
		}
	}
	c.waiting = still
	for _, made := range over {
		made.cancel()
		made.ended()
	}
}
