package peer

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

const (
	// silenceTicks is for how many ticks nothing may come on a control connection: 3 s. A stalled process of our own does
	// not count them.
	silenceTicks = 30
	// stallTicks is for how many ticks one write, of at most pieceBytes, may wait for the other side: 10 s.
	stallTicks = 100
	// pingTicks is how often a dialer pings on its control connection: every 200 ms.
	pingTicks = 2
	// pieceBytes bounds one write.
	pieceBytes = mib
)

// connection is one accepted or dialed connection to a peer after its handshake. Messages go from the dialer to the
// acceptor; on a control connection pongs and replies come back.
type connection struct {
	p       *peer
	nc      net.Conn
	in      *frameReader
	queue   *queue
	channel channel
	dialed  bool
	process uint64 // of the other side

	heard   atomic.Int64 // the tick in which something came last
	writing atomic.Int64 // the tick in which the write under way began; 0: none

	once   sync.Once
	done   chan struct{} // closed by close
	reason error         // set before

	inbox  inbox
	outbox outbox
	calls  callsIn  // of an accepted control connection
	asked  callsOut // of a dialed control connection
}

// The kinds of frame that come after the handshake.
var (
	controlIn = kindSet(kindPing, kindBeats, kindMessage, kindTell, kindCall, kindCancel)
	controlUp = kindSet(kindPong, kindReply)
	dataIn    = kindSet(kindMessage, kindSnapshot, kindChunk)
)

func newConnection(p *peer, nc net.Conn, in *frameReader, ch channel, dialed bool, process uint64) *connection {
	c := &connection{p: p, nc: nc, in: in, channel: ch, dialed: dialed, process: process, done: make(chan struct{})}
	size := controlQueueMax
	switch {
	case ch == data:
		size = dataQueueMax
		if in.expect = dataIn; dialed {
			in.expect = 0
		}
	case dialed:
		in.expect = controlUp
		c.asked.waiting = make(map[uint64]chan reply)
	default:
		size, in.expect = repliesMax, controlIn
		c.calls.running = make(map[uint64]context.CancelFunc)
	}
	c.queue = newQueue(size)
	c.heard.Store(p.t.ticks.Load())
	return c
}

// close ends the connection. The first reason holds. It may be called from any goroutine.
func (c *connection) close(reason error) {
	c.once.Do(func() {
		c.reason = reason
		close(c.done)
		c.nc.Close()
	})
}

func (c *connection) closed() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// run serves the connection, which is attached, until its end. When it returns, nothing comes from it any more.
func (c *connection) run() {
	var writer sync.WaitGroup
	writer.Go(c.write)
	c.close(c.read())
	writer.Wait()
	items, snapshots := c.queue.close()
	for _, i := range items {
		c.forget(i)
	}
	for _, s := range snapshots {
		c.p.t.config.Handler.SnapshotSent(s.group, replicaOf(s.message), false)
	}
	if c.dialed {
		c.p.dropped.Store(true) // what was written may be lost as well as what was not
	}
	c.calls.cancelAll()
	c.asked.failAll()
	c.p.detach(c)
}

var errClosed = errors.New("the other side has closed the connection")

// read takes in frames until there are no more, and says why.
func (c *connection) read() error {
	for {
		f, err := c.in.next()
		if err == nil {
			c.heard.Store(c.p.t.ticks.Load())
			err = c.receive(f)
		}
		if err == io.EOF {
			return errClosed
		}
		if err != nil {
			return err
		}
	}
}

// watch ends a connection on which nothing moves any more, and pings on one that is ours to ping. Every tick calls it.
func (c *connection) watch(now int64) error {
	if c.channel == control && now-c.heard.Load() >= silenceTicks {
		return errSilent
	}
	if began := c.writing.Load(); began != 0 && now-began >= stallTicks {
		c.close(errStalled)
	}
	if c.channel == control && c.dialed && now%pingTicks == 0 {
		c.queue.due(kindPing)
	}
	return nil
}

var (
	errSilent  = errors.New("nothing has come from the node for 3 s")
	errStalled = errors.New("the node has taken nothing off the connection for 10 s")
)
