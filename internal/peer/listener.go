package peer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemq/oncemq/internal/invariant"
)

const (
	tickEvery = 100 * time.Millisecond
	// strangersMax is how many connections may be without a finished handshake at a time; further ones are closed.
	strangersMax = 64
)

// Listener takes connections of peers and of founders. Its methods are for any goroutine.
type Listener struct {
	listener net.Listener
	answer   func(question []byte) []byte
	log      *seldom
	ticks    atomic.Int64
	joined   atomic.Pointer[Transport]
	done     chan struct{}
	running  sync.WaitGroup

	mu        sync.Mutex
	closing   bool
	strangers map[net.Conn]struct{} // without a finished handshake
}

// Listen answers the questions of founders that come to l, each with what answer makes of it, at most 64 KiB. Peers are
// told to come again until Join is called. The answers are made on many goroutines. The Listener owns l.
func Listen(l net.Listener, logger *slog.Logger, answer func(question []byte) []byte) *Listener {
	here := &Listener{listener: l, answer: answer, done: make(chan struct{}), strangers: make(map[net.Conn]struct{})}
	here.log = newSeldom(logger, &here.ticks)
	here.running.Go(here.acceptAll)
	here.running.Go(here.tickAlways)
	return here
}

// Join lets the peers in, and dials them, from now on until the Transport or the Listener is closed. It is called once.
// Questions are answered as before. The Handler may be called before Join returns.
func (l *Listener) Join(cfg Config) *Transport {
	t := newTransport(cfg, &l.ticks)
	invariant.Check(l.joined.CompareAndSwap(nil, t), "a listener joins a cluster twice")
	l.mu.Lock()
	closing := l.closing
	l.mu.Unlock()
	if closing {
		t.Close()
	}
	return t
}

// Close stops listening, closes the Transport, and waits until nothing runs any more. It may be called again.
func (l *Listener) Close() error {
	l.mu.Lock()
	first := !l.closing
	l.closing = true
	var err error
	if first {
		close(l.done)
		err = l.listener.Close()
		l.endStrangers()
	}
	l.mu.Unlock()
	if t := l.joined.Load(); t != nil {
		t.Close()
	}
	l.running.Wait()
	return err
}

func (l *Listener) tickAlways() {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-ticker.C:
		}
		now := l.ticks.Add(1)
		if t := l.joined.Load(); t != nil {
			t.tick(now)
		}
	}
}

// acceptAll takes connections until the listener is closed.
func (l *Listener) acceptAll() {
	for {
		nc, err := l.listener.Accept()
		switch {
		case err == nil && l.admit(nc):
			l.running.Go(func() { l.serve(nc) })
			continue
		case err == nil:
			nc.Close()
			if !l.closed() {
				l.log.warn("closed connections of peers: too many are in their handshake", "max", strangersMax)
			}
			continue
		}
		timer := time.NewTimer(tickEvery) // out of descriptors, most likely
		select {
		case <-l.done:
			timer.Stop()
			return
		case <-timer.C:
		}
		l.log.warn("cannot take connections of peers", "error", cause(err))
	}
}

// admit takes note of a connection, if there may be one more.
func (l *Listener) admit(nc net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing || len(l.strangers) >= strangersMax {
		return false
	}
	l.strangers[nc] = struct{}{}
	return true
}

func (l *Listener) closed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closing
}

// known is called when a connection's handshake is over. It returns false when the listener is closing.
func (l *Listener) known(nc net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.strangers, nc)
	return !l.closing
}

// endStrangers closes the connections that are in their handshake. l.mu is held.
func (l *Listener) endStrangers() {
	for nc := range l.strangers {
		nc.Close()
	}
}

// serve carries out a connection's handshake, and then the connection.
func (l *Listener) serve(nc net.Conn) {
	defer nc.Close()
	timer := time.AfterFunc(handshakeMax, func() { nc.Close() })
	c, err := l.shake(nc)
	inTime := timer.Stop()
	if !l.known(nc) {
		return
	}
	if err != nil {
		l.tellRefusal(nc, err)
	}
	if c == nil || !inTime {
		return
	}
	c.p.t.run(func() {
		if c.p.attach(c) {
			c.run()
		}
	})
}

// tellRefusal writes a line for a person, unless nobody has to act.
func (l *Listener) tellRefusal(nc net.Conn, err error) {
	r := (*refusal)(nil)
	if errors.As(err, &r) && r.patience || err == io.EOF {
		return
	}
	host, _, splitErr := net.SplitHostPort(nc.RemoteAddr().String())
	if splitErr != nil {
		host = nc.RemoteAddr().String()
	}
	l.log.warn("refused a connection to the peer port", "remote", host, "reason", cause(err))
}

// shake is the acceptor's part of the handshake. The connection is nil when a question was answered, or with an error.
func (l *Listener) shake(nc net.Conn) (*connection, error) {
	in := newFrameReader(nc, readAhead)
	if err := in.magic(); err != nil {
		return nil, err
	}
	in.expect = kindSet(kindHello, kindQuestion)
	f, err := in.next()
	if err != nil {
		return nil, err
	}
	if f.kind == kindQuestion {
		answer := l.answer(f.payload)
		if len(answer) > questionMax {
			return nil, ErrTooLarge
		}
		return nil, writeFrame(nc, kindAnswer, nil, answer)
	}
	h, err := parseHello(f.head)
	if err != nil {
		return nil, err
	}
	t := l.joined.Load()
	if t == nil {
		return nil, refuse(nc, notFounded)
	}
	if t.stopped() {
		return nil, refuse(nc, stopping)
	}
	return t.welcome(nc, in, h)
}

// refuse tells the other side why, and returns the same for this one.
func refuse(nc net.Conn, r *refusal) error {
	if err := writeFrame(nc, kindRefuse, r.append(nil), nil); err != nil {
		return errors.Join(r, err)
	}
	return r
}

// welcome answers a hello, and waits for the dialer to be content with the answer.
func (t *Transport) welcome(nc net.Conn, in *frameReader, h hello) (*connection, error) {
	version, wrong := t.judge(h)
	if wrong != nil {
		return nil, refuse(nc, wrong)
	}
	own := &t.config
	a := accept{version, own.Cluster, own.Self, own.Disk, t.process}
	if err := writeFrame(nc, kindAccept, a.append(nil), nil); err != nil {
		return nil, err
	}
	in.expect = kindSet(kindBegin, kindRefuse)
	f, err := in.next()
	if err != nil {
		return nil, err
	}
	if f.kind == kindRefuse {
		return nil, parseRefusal(f.head)
	}
	return newConnection(t.peers[h.from], nc, in, h.channel, false, h.process), nil
}

// Ask sends a question to the node that listens at an address, whether it has joined a cluster or not, and returns its
// answer. Both have at most 64 KiB. A nil dial is TCP. The context ends the attempt.
func Ask(ctx context.Context, dial func(ctx context.Context, address string) (net.Conn, error), address string, question []byte) ([]byte, error) {
	if len(question) > questionMax {
		return nil, ErrTooLarge
	}
	if dial == nil {
		dial = dialTCP
	}
	nc, err := dial(ctx, address)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	free := context.AfterFunc(ctx, func() { nc.Close() })
	defer free()
	answer, err := ask(nc, question)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return answer, err
}

func ask(nc net.Conn, question []byte) ([]byte, error) {
	if _, err := nc.Write(appendFrame([]byte(magic), kindQuestion, nil, question)); err != nil {
		return nil, err
	}
	in := newFrameReader(nc, kib)
	in.expect = kindSet(kindAnswer)
	f, err := in.next()
	return f.payload, err
}
