package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemq/oncemq/internal/wire"
)

const (
	// readAhead is the size of a connection's read buffer. A frame head and a small request come with one system
	// call; of a large frame at most this much passes through the buffer, and the rest goes straight into the frame.
	// (Measured with requests of 200 bytes: 1.1 us of 21 saved by it, and a third when they are pipelined; with 64 KiB,
	// no difference, up to 4 KiB of read-ahead.)
	readAhead = 1 << 10
	// firstStep bounds the memory taken for a frame before more of it than that has arrived.
	firstStep = 1<<20 + 1<<14 // the class of 1 MiB, whole
	// outKept is the largest response buffer that a connection keeps.
	outKept = 16 << 10
)

// ending is why a connection ends.
type ending struct {
	err error
	how endingKind
}

type endingKind uint8

const (
	endLoud  endingKind = iota // cut at once, with a line in the log
	endQuiet                   // cut at once
	endDrain                   // no further request is read; what is outstanding is answered
)

func (e ending) Error() string { return e.err.Error() }
func (e ending) Unwrap() error { return e.err }

func loud(err error) ending  { return ending{err, endLoud} }
func quiet(err error) ending { return ending{err, endQuiet} }
func drain(err error) ending { return ending{err, endDrain} }

var (
	errServerStops = errors.New("the server stops")
	errClientEnds  = errors.New("the client has closed the connection")
	// errOutcome: whether a batch is stored is not known, and only a closed connection says so.
	errOutcome = errors.New("the outcome of a produce is not known")
)

// connection is one client connection. Its fields belong to the goroutine of run, except where they say otherwise.
type connection struct {
	server   *Server
	nc       net.Conn
	ctx      context.Context // of handlers
	stopping <-chan struct{}
	in       *bufio.Reader
	length   [wire.LengthSize]byte
	head     [wire.PrefixSize]byte
	prefix   wire.Prefix
	out      []byte // used again for each response that is not large
	ticks    *atomic.Int64

	// The produces that are not answered yet, see produce_writer.go. queue is nil until the first.
	queue       chan *produceCall
	freed       chan outstanding
	outstanding outstanding
	written     chan struct{} // closed when the writing goroutine has ended
	named       map[partitionKey]int

	// Of any goroutine: abort.
	attention attention
	once      sync.Once
	aborted   chan struct{} // closed by abort, after ending is set
	ending    ending
}

func newConnection(s *Server, g *connections, nc net.Conn, ctx context.Context, stopping <-chan struct{}) *connection {
	return &connection{
		server: s, nc: nc, ctx: ctx, stopping: stopping, ticks: &g.ticks,
		in:      bufio.NewReaderSize(nc, readAhead),
		named:   make(map[partitionKey]int),
		aborted: make(chan struct{}),
	}
}

// run serves the connection until its end.
func (c *connection) run() {
	e := c.read()
	if e.how != endDrain {
		c.abort(e)
	}
	if c.queue != nil {
		close(c.queue)
		<-c.written
	}
	c.abort(quiet(e))
	level, what := slog.LevelDebug, []any{"remote", c.nc.RemoteAddr().String(), "reason", c.ending.err}
	if c.ending.how == endLoud {
		if unsaid, now := c.server.closings.now(c.server.now()); now {
			level = slog.LevelWarn
			if unsaid > 0 {
				what = append(what, "similar", unsaid)
			}
		}
	}
	c.server.log.Log(c.ctx, level, "connection closed", what...)
}

// abort closes the connection at once. The first reason holds. It may be called from any goroutine.
func (c *connection) abort(e ending) {
	c.once.Do(func() {
		c.ending = e
		close(c.aborted)
		c.nc.Close()
	})
}

// stopReading makes the connection end after the request that it has begun. It may be called from any goroutine, when
// stopping is closed.
func (c *connection) stopReading() {
	c.nc.SetReadDeadline(time.Unix(1, 0))
}

// read carries out requests until there are no more, and says why.
func (c *connection) read() ending {
	for {
		size, err := c.readHead()
		if err == nil {
			err = c.request(size)
		}
		if e := (ending{}); errors.As(err, &e) {
			return e
		}
		if err != nil {
			return loud(err)
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// readHead reads the length and the prefix of the next request, and returns how many bytes follow them.
func (c *connection) readHead() (int, error) {
	c.attention.idle.Store(c.ticks.Load())
	err := c.fill(c.length[:], false)
	if c.attention.idle.Swap(0) == idleOver {
		return 0, quiet(errIdle) // even if a request has come meanwhile: nothing of it is carried out
	}
	if err != nil {
		return 0, err
	}
	length, err := wire.ParseLength(c.length, c.server.config.RequestBytesMax)
	if err != nil {
		return 0, err
	}
	c.await(nil)
	defer c.awaitNothing()
	if err := c.fill(c.head[:], true); err != nil {
		return 0, err
	}
	c.prefix = wire.ParsePrefix(c.head)
	return length - wire.PrefixSize, c.prefix.CheckFrame(length)
}

// await says that the rest of a request is waited for, for which memory of b is held.
func (c *connection) await(b *budget) {
	c.attention.holds.Store(b)
	c.attention.reading.Store(c.ticks.Load())
}

func (c *connection) awaitNothing() {
	c.attention.reading.Store(0)
}

// fill reads len(b) bytes. begun tells whether they are in the middle of a frame.
func (c *connection) fill(b []byte, begun bool) error {
	have, marked := 0, 0
	for have < len(b) {
		n, err := c.in.Read(b[have:])
		have += n
		if err != nil && have < len(b) {
			return c.readFailure(err, begun || have > 0)
		}
		if begun && have-marked >= receivedMin {
			marked = have
			c.attention.reading.Store(c.ticks.Load())
		}
	}
	return nil
}

// readFailure says what a failed read means. begun tells whether it was in the middle of a frame.
func (c *connection) readFailure(err error, begun bool) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && closed(c.stopping):
		return drain(errServerStops)
	case begun:
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("request is cut off: %w", err)
	case err == io.EOF:
		return drain(errClientEnds)
	default:
		return quiet(err)
	}
}

// readFrame reads what follows the head of a request, with room taken as it arrives: a client that announces much
// and sends little costs firstStep bytes, for which lent is. It takes over lent; the frame has a loan for all of it.
func (c *connection) readFrame(size int, lent loan) (*frame, error) {
	f := c.server.frames.get(min(size, firstStep))
	f.lent = lent
	for have := 0; ; {
		n := min(size, len(f.buf))
		c.await(f.lent.from)
		err := c.fill(f.buf[have:n], true)
		c.awaitNothing()
		if have = n; err == nil && have < size {
			err = c.grow(&f, size, have)
		}
		if err != nil {
			f.release()
			return nil, err
		}
		if have == size {
			return f, nil
		}
	}
}

// grow puts a larger frame in the place of one that is full. The first time it waits until the memory for the whole of it
// is lent, so that nothing else has to be waited for until it is complete.
func (c *connection) grow(f **frame, size, have int) error {
	full, lent := *f, (*f).lent
	if large := &c.server.budgets.large; lent.from == large {
		full.lent = loan{}
	} else {
		var err error
		if lent, err = c.borrow(large, bufferSize(size)); err != nil {
			return err
		}
	}
	*f = c.server.frames.get(min(size, 2*have))
	(*f).lent = lent
	copy((*f).buf, full.buf[:have])
	full.release()
	return nil
}

// borrow borrows bytes for a request, of which nothing must be done when it fails.
func (c *connection) borrow(b *budget, bytes int) (loan, error) {
	lent, ok := b.take(int64(bytes), c.aborted, c.stopping)
	if !ok {
		return loan{}, drain(errServerStops) // or the connection is closed, for a reason of its own
	}
	return lent, nil
}

// request carries out the request whose head was read. An error that is no ending closes the connection with a line in
// the log.
func (c *connection) request(size int) error {
	a, ok := c.server.api(c.prefix.Key)
	supported := ok && c.prefix.Version >= a.min && c.prefix.Version <= a.max
	if !supported && (c.prefix.Key != wire.KeyApiVersions || c.prefix.Version < 0) {
		return fmt.Errorf("%s version %d is not supported, %d to %d are", c.prefix.Key, c.prefix.Version, a.min, a.max)
	}
	if a.handle == nil {
		return c.produce(size)
	}
	c.reserveAll()
	lent, err := c.borrow(&c.server.budgets.requests, bufferSize(size)-ownBytes)
	if err != nil {
		return err
	}
	f, err := c.readFrame(size, lent)
	if err != nil {
		return err
	}
	return c.carryOut(a, supported, f, size)
}

// carryOut carries out a request that is no produce, and writes the answer. It takes over the frame.
func (c *connection) carryOut(a api, supported bool, f *frame, size int) error {
	call := call{
		server: c.server, ctx: c.ctx, stopping: c.stopping, aborted: c.aborted,
		prefix: c.prefix, request: f, out: c.out[:0],
	}
	defer call.giveBack()
	var err error
	if !supported {
		f.release()
		err = unsupportedApiVersions(&call, a)
	} else if _, call.body, err = c.prefix.ParseHeader(f.buf[:size]); err != nil {
		f.release()
	} else {
		err = a.handle(c.server, &call)
	}
	if err == nil {
		call.working.giveBack()
		err = c.send(call.out)
	}
	if call.response == nil && cap(call.out) <= outKept {
		c.out = call.out[:0]
	}
	return err
}

// send writes b, in pieces: so a client that takes an answer slowly is told from one that does not take it.
func (c *connection) send(b []byte) error {
	defer c.attention.writing.Store(0)
	for len(b) > 0 {
		c.attention.writing.Store(c.ticks.Load())
		n, err := c.nc.Write(b[:min(len(b), sentMax)])
		if err != nil {
			return quiet(err)
		}
		b = b[n:]
	}
	return nil
}
