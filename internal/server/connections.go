package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// cutTimeout is how long connections that were cut have to end. Only one that waits for a partition takes so long.
const cutTimeout = time.Second

// connections are those that one Serve has open.
type connections struct {
	mu      sync.Mutex
	open    map[*connection]struct{}
	running sync.WaitGroup
	// ticks is the time of the janitor, which counts it up. It begins at 1.
	ticks atomic.Int64
}

func newConnections() *connections {
	g := &connections{open: make(map[*connection]struct{})}
	g.ticks.Store(1)
	return g
}

// start runs a connection, unless as many as may be are open already.
func (g *connections) start(c *connection, limit int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.open) >= limit {
		return false
	}
	g.open[c] = struct{}{}
	g.running.Go(func() {
		c.run()
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.open, c)
	})
	return true
}

// each calls f for each connection that is open. f must not wait.
func (g *connections) each(f func(*connection)) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.open {
		f(c)
	}
	return len(g.open)
}

// stop ends all connections. No further one may be started. It returns how many did not end within timeout and were
// cut, and how many of these wait for a partition still.
func (g *connections) stop(timeout time.Duration, cut context.CancelFunc) (wereCut, waiting int) {
	ended := make(chan struct{})
	go func() {
		g.running.Wait()
		close(ended)
	}()
	g.each((*connection).stopReading)
	if wait(ended, timeout) {
		return 0, 0
	}
	cut()
	wereCut = g.each(func(c *connection) { c.abort(quiet(errServerStops)) })
	if !wait(ended, cutTimeout) {
		waiting = g.each(func(*connection) {})
	}
	return wereCut, waiting
}

// wait waits for done, at most for timeout.
func wait(done <-chan struct{}, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
