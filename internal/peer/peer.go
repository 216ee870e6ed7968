package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemq/oncemq/internal/seglog"
)

const (
	waitMin = 50 * time.Millisecond // before a connection is tried again; twice as long each time
	waitMax = time.Second
	// handshakeMax is how long opening a connection may take, and how long the handshake after it.
	handshakeMax = 5 * time.Second
)

// The two directions of a connection.
const (
	accepted = iota
	dialed
	directions
)

// peer is what is known of one other node.
type peer struct {
	t       *Transport
	id      NodeID
	address string
	disk    [16]byte

	// Of Send and Call, for any goroutine: the dialed connections that are attached.
	out [channels]atomic.Pointer[connection]

	dropped  atomic.Bool // messages were, and Unreachable has not said so yet
	slots    chan struct{}
	retries  [channels]chan struct{} // holds a token when the node has shown itself: dial it now
	failures failures

	// mu covers which connections are attached, and is held while Up and Down are called, so that they come in order.
	mu       sync.Mutex
	changed  sync.Cond
	attached [directions][channels]*connection // all of one process of the node
	number   int                               // of attached connections
	process  uint64                            // to which they lead
}

// failures are the snapshots that were dropped and of which SnapshotSent has not told yet. There is one at most for each
// group that has a replica there, for Raft waits to be told before it sends the next.
type failures struct {
	mu   sync.Mutex
	list []failure
}

type failure struct {
	group seglog.GroupID
	to    seglog.ReplicaID
}

func (f *failures) add(group seglog.GroupID, to seglog.ReplicaID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, failure{group, to})
}

func (f *failures) take() []failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.list
	f.list = nil
	return list
}

func newPeer(t *Transport, is Peer) *peer {
	p := &peer{t: t, id: is.ID, address: is.Address, disk: is.Disk, slots: make(chan struct{}, callsMax)}
	p.changed.L = &p.mu
	for ch := range p.retries {
		p.retries[ch] = make(chan struct{}, 1)
	}
	return p
}

func (c *connection) direction() int {
	if c.dialed {
		return dialed
	}
	return accepted
}

var (
	errOtherProcess = errors.New("another process of the node has connected")
	errReplaced     = errors.New("the node has opened this connection anew")
)

// attach makes a connection one of the peer's, and returns false when the transport stops. The connections of another
// process of the node are ended first, and Down is told of it, so that nothing of it comes any more.
func (p *peer) attach(c *connection) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := &p.attached[c.direction()][c.channel]
	for !p.t.stopped() && (p.number > 0 && p.process != c.process || *at != nil) {
		if p.process != c.process {
			p.cut(errOtherProcess)
		} else {
			(*at).close(errReplaced)
		}
		p.changed.Wait()
	}
	if p.t.stopped() {
		return false
	}
	*at = c
	p.process = c.process
	p.number++
	if !c.dialed {
		for _, retry := range p.retries {
			select {
			case retry <- struct{}{}:
			default:
			}
		}
		return true
	}
	p.out[c.channel].Store(c)
	if p.out[control].Load() != nil && p.out[data].Load() != nil {
		p.t.log.info("connected to the node", "node", p.id, "address", p.address, "process", c.process)
		p.t.config.Handler.Up(p.id)
	}
	return true
}

// detach takes off a connection that has ended and from which nothing comes any more.
func (p *peer) detach(c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attached[c.direction()][c.channel] = nil
	if c.dialed {
		p.out[c.channel].Store(nil)
	}
	p.number--
	if !p.t.stopped() {
		p.t.log.info("lost a connection of the node", "node", p.id, "connection", c.channel.String(), "dialed", c.dialed,
			"process", c.process, "reason", cause(c.reason))
		if p.number == 0 {
			p.t.log.warn("the node is gone: no connection to it is left", "node", p.id, "process", c.process)
			p.t.config.Handler.Down(p.id)
		}
	}
	p.changed.Broadcast()
}

// cut ends all connections. p.mu is held.
func (p *peer) cut(reason error) {
	for _, both := range p.attached {
		for _, c := range both {
			if c != nil {
				c.close(reason)
			}
		}
	}
}

// tick looks after the connections, and tells what was dropped.
func (p *peer) tick(now int64) {
	p.watch(now)
	for _, f := range p.failures.take() {
		p.t.config.Handler.SnapshotSent(f.group, f.to, false)
	}
	if p.dropped.Swap(false) {
		p.t.config.Handler.Unreachable(p.id)
	}
}

func (p *peer) watch(now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, both := range p.attached {
		for _, c := range both {
			if c == nil || c.closed() {
				continue
			}
			if err := c.watch(now); err != nil {
				p.cut(err)
				return
			}
		}
	}
}

func (p *peer) connected() bool {
	for ch := range p.out {
		if c := p.out[ch].Load(); c == nil || c.closed() {
			return false
		}
	}
	return true
}

// keepDialing keeps one of the two connections to the node open until the transport stops.
func (p *peer) keepDialing(ch channel) {
	for wait := waitMin; ; wait = min(2*wait, waitMax) {
		c, err := p.dial(ch)
		if err == nil {
			if !p.attach(c) {
				c.close(stopping)
				return
			}
			c.run()
			wait = waitMin
		} else if !p.t.stopped() {
			p.tellFailure(err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-p.retries[ch]:
			wait = waitMin
		case <-p.t.ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// tellFailure writes a line for a person, unless waiting mends it.
func (p *peer) tellFailure(err error) {
	var r *refusal
	switch {
	case !errors.As(err, &r):
		p.t.log.info("cannot connect to a node; it is tried again and again", "node", p.id, "address", p.address, "error", cause(err))
	case !r.patience:
		p.t.log.warn("this node and another one refuse each other; it is tried again and again",
			"node", p.id, "address", p.address, "reason", r.text)
	}
}

// cause is what is wrong without the addresses and ports, which are other ones each time and so would make a line in the
// log a new one.
func cause(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	return err
}

// dial opens one connection and shakes hands.
func (p *peer) dial(ch channel) (*connection, error) {
	ctx, cancel := context.WithTimeout(p.t.ctx, handshakeMax)
	defer cancel()
	nc, err := p.t.config.Dial(ctx, p.address)
	if err != nil {
		return nil, err
	}
	free := context.AfterFunc(ctx, func() { nc.Close() })
	c, err := p.shake(nc, ch)
	if !free() && err == nil {
		err = fmt.Errorf("the handshake takes too long: %w", context.Cause(ctx))
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// shake is the dialer's part of the handshake.
func (p *peer) shake(nc net.Conn, ch channel) (*connection, error) {
	own := &p.t.config
	h := hello{versionMin, versionMax, ch, own.Cluster, own.Self, own.Disk, p.id, p.t.process}
	if _, err := nc.Write(appendFrame([]byte(magic), kindHello, h.append(nil), nil)); err != nil {
		return nil, err
	}
	in := newFrameReader(nc, readAhead)
	in.expect = kindSet(kindAccept, kindRefuse)
	f, err := in.next()
	if err != nil {
		return nil, err
	}
	if f.kind == kindRefuse {
		return nil, parseRefusal(f.head)
	}
	a, err := parseAccept(f.head)
	if err != nil {
		return nil, err
	}
	if wrong := p.judgeAnswer(a); wrong != nil {
		return nil, errors.Join(wrong, writeFrame(nc, kindRefuse, wrong.append(nil), nil))
	}
	if err := writeFrame(nc, kindBegin, nil, nil); err != nil {
		return nil, err
	}
	return newConnection(p, nc, in, ch, true, a.process), nil
}
