package node

import (
	"context"
	"sync"
	"time"

	"github.com/oncemq/oncemq/internal/replica"
)

// refreshPatience bounds a question of what is committed: a node that cannot learn it says so while clients still wait.
const refreshPatience = 2 * time.Second

// refreshes are the questions of what is committed in raft0 that answers to clients wait for. One is under way at a time,
// however many ask: those who come meanwhile share the next one, since the answer to this one may be older than they are.
type refreshes struct {
	mu      sync.Mutex
	running bool
	next    *refreshRound // asked for, and not begun; nil: nobody waits for one
}

// refreshRound is one question. err is set before done is closed.
type refreshRound struct {
	done chan struct{}
	err  error
}

// Refresh waits until Topics shows all that was committed when Refresh was called; what it does not show then did not
// exist. It waits for at most 2 s, and asks nobody in a cluster of one. Errors: of ctx; another one when that could not be
// learned, as without a majority.
func (n *Node) Refresh(ctx context.Context) error {
	if !n.cluster.several() {
		return nil
	}
	if n.running.Err() != nil {
		return replica.ErrStopped
	}
	ctx, cancel := context.WithTimeout(ctx, refreshPatience)
	defer cancel()
	round := n.joinRefresh()
	select {
	case <-round.done:
		return round.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// joinRefresh returns the next question, and sees to it that it is asked.
func (n *Node) joinRefresh() *refreshRound {
	r := &n.refreshes
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = &refreshRound{done: make(chan struct{})}
	}
	round := r.next
	if !r.running {
		r.running = true
		n.tasks.Go(n.runRefreshes)
	}
	return round
}

// runRefreshes asks one question after the other until nobody wants another.
func (n *Node) runRefreshes() {
	r := &n.refreshes
	for {
		r.mu.Lock()
		round := r.next
		r.next = nil
		r.running = round != nil
		r.mu.Unlock()
		if round == nil {
			return
		}
		ctx, cancel := context.WithTimeout(n.running, refreshPatience)
		round.err = n.refresh(ctx)
		cancel()
		close(round.done)
	}
}
