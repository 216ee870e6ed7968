package testbroker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Condition is what a link does to what goes over it in one direction. The zero value is a good link.
type Condition struct {
	// Cut: nothing arrives. Connections stay open and what was sent waits, as with a network that loses everything; the
	// ends learn of each other's end when the link is whole again.
	Cut bool
	// Delay is how much later everything arrives.
	Delay time.Duration
	// BytesPerSecond bounds the rate, 0 for no bound.
	BytesPerSecond int
}

const (
	// linkChunkBytes and linkChunks bound what a link holds of one direction of a connection.
	linkChunkBytes, linkChunks = 32 << 10, 64
	// linkDialWithin bounds the connection to a node on the same machine.
	linkDialWithin = 5 * time.Second
)

// Links are proxies, one in front of the peer listener of each node, that can cut and slow the way from any node to any
// other. Which node a connection comes from is told by who owns its other end.
type Links struct {
	origin    func(net.Conn) (node int, err error)
	listeners []net.Listener
	targets   []string
	stop      context.CancelFunc
	ctx       context.Context
	running   sync.WaitGroup

	mu         sync.Mutex
	conditions map[way]Condition
	changed    chan struct{} // closed, and made anew, when a condition changes
	open       map[net.Conn]way
}

// way is one direction between two nodes.
type way struct{ from, to int }

func (w way) back() way { return way{from: w.to, to: w.from} }

// newLinks listens in front of these targets, HOST:PORT. origin says which node has opened a connection.
func newLinks(targets []string, origin func(net.Conn) (int, error)) (*Links, error) {
	ctx, stop := context.WithCancel(context.Background())
	l := &Links{
		origin: origin, targets: targets, ctx: ctx, stop: stop,
		conditions: make(map[way]Condition), changed: make(chan struct{}), open: make(map[net.Conn]way),
	}
	for range targets {
		addr, err := FreeAddr()
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen in front of a node: %w", err), l.Close())
		}
		l.listeners = append(l.listeners, listener)
	}
	for to, listener := range l.listeners {
		l.running.Go(func() { l.accept(listener, to) })
	}
	return l, nil
}

// Addr is where the other nodes reach a node.
func (l *Links) Addr(node int) string { return l.listeners[node].Addr().String() }

// Set puts the way from one node to another into a condition.
func (l *Links) Set(from, to int, c Condition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conditions[way{from, to}] = c
	close(l.changed)
	l.changed = make(chan struct{})
}

// Isolate cuts a node off from all others, in both directions.
func (l *Links) Isolate(node int) {
	for other := range l.targets {
		if other != node {
			l.Set(node, other, Condition{Cut: true})
			l.Set(other, node, Condition{Cut: true})
		}
	}
}

// Slow puts all ways to a node into a condition.
func (l *Links) Slow(node int, c Condition) {
	for other := range l.targets {
		if other != node {
			l.Set(other, node, c)
		}
	}
}

// Heal makes all ways from and to a node good ones.
func (l *Links) Heal(node int) {
	for other := range l.targets {
		if other != node {
			l.Set(node, other, Condition{})
			l.Set(other, node, Condition{})
		}
	}
}

// Reset ends all connections from and to a node. What is under way is lost.
func (l *Links) Reset(node int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn, w := range l.open {
		if w.from == node || w.to == node {
			_ = conn.Close()
		}
	}
}

// Close ends all connections and stops listening.
func (l *Links) Close() error {
	l.stop()
	var errs []error
	for _, listener := range l.listeners {
		errs = append(errs, listener.Close())
	}
	l.mu.Lock()
	for conn := range l.open {
		_ = conn.Close()
	}
	l.mu.Unlock()
	l.running.Wait()
	return errors.Join(errs...)
}

func (l *Links) accept(listener net.Listener, to int) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // closed
		}
		l.running.Go(func() { l.serve(conn, to) })
	}
}

// hold takes note of a connection, or closes it when the links are closed.
func (l *Links) hold(conn net.Conn, w way) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		_ = conn.Close()
		return false
	}
	l.open[conn] = w
	return true
}

func (l *Links) release(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
		delete(l.open, conn)
	}
}

// serve is the life of one connection.
func (l *Links) serve(conn net.Conn, to int) {
	from, err := l.origin(conn)
	if err != nil {
		_ = conn.Close() // who opened it has ended meanwhile, or is no node
		return
	}
	w := way{from, to}
	if !l.hold(conn, w) {
		return
	}
	defer l.release(conn)
	if l.await(w) != nil || l.await(w.back()) != nil {
		return
	}
	target, err := (&net.Dialer{Timeout: linkDialWithin}).DialContext(l.ctx, "tcp", l.targets[to])
	if err != nil || !l.hold(target, w) {
		return
	}
	defer l.release(target)
	var ways sync.WaitGroup
	ways.Go(func() { l.carry(conn, target, w) })
	ways.Go(func() { l.carry(target, conn, w.back()) })
	ways.Wait()
}

// await waits until a way is not cut. It fails when the links are closed.
func (l *Links) await(w way) error {
	for {
		l.mu.Lock()
		cut, changed := l.conditions[w].Cut, l.changed
		l.mu.Unlock()
		if !cut {
			return nil
		}
		select {
		case <-changed:
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
	}
}

func (l *Links) condition(w way) Condition {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conditions[w]
}

// chunk is what was read at once, and when.
type chunk struct {
	at   time.Time
	data []byte
}

// carry brings bytes from one connection to another until one of them ends, and then ends both: a peer that is gone in one
// direction is gone.
func (l *Links) carry(from, to net.Conn, w way) {
	chunks := make(chan chunk, linkChunks)
	gone := make(chan struct{}) // closed when nobody takes chunks any more
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(chunks)
		for {
			data := make([]byte, linkChunkBytes)
			n, err := from.Read(data)
			if n > 0 {
				select {
				case chunks <- chunk{at: time.Now(), data: data[:n]}:
				case <-gone:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for c := range chunks {
		if l.pass(c, to, w) != nil {
			break
		}
	}
	_ = l.await(w) // the end, too, arrives only over a whole link
	close(gone)
	_, _ = from.Close(), to.Close()
	reading.Wait()
}

// pass writes one chunk when it is due.
func (l *Links) pass(c chunk, to io.Writer, w way) error {
	condition := l.condition(w)
	if err := l.wait(time.Until(c.at.Add(condition.Delay))); err != nil {
		return err
	}
	if err := l.await(w); err != nil {
		return err
	}
	if _, err := to.Write(c.data); err != nil {
		return fmt.Errorf("write to a node: %w", err)
	}
	if rate := condition.BytesPerSecond; rate > 0 {
		return l.wait(time.Duration(len(c.data)) * time.Second / time.Duration(rate))
	}
	return nil
}

func (l *Links) wait(d time.Duration) error {
	if d <= 0 {
		return l.ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-l.ctx.Done():
		return l.ctx.Err()
	}
}
