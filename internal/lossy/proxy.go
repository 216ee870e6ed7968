package lossy

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Options say what the proxy does. Broker is required; a zero rate means that the fault does not happen.
type Options struct {
	Broker string // HOST:PORT that the broker listens on; it need not be up before the first client comes
	Seed   uint64
	Rates  Rates
	// DelayMax bounds a delay. Default 20 ms.
	DelayMax time.Duration
	// PieceMax is the size of the largest piece in bytes. Default 16.
	PieceMax int
	// FrameBytesMax is the largest frame in bytes after the length field. Default 128 MiB.
	FrameBytesMax int
	// OnRequest is told of each request that goes to the broker whole, before the first byte of it leaves; OnAnswer
	// of each answer that came from the broker, delivered or not. conn is the number of the connection; frame begins
	// with the length field and is borrowed for the call. Calls for one connection and direction come one at a time
	// and in order, all others at the same time. Both may be nil.
	OnRequest, OnAnswer func(conn uint64, frame []byte)
}

func (o Options) withDefaults() Options {
	if o.DelayMax == 0 {
		o.DelayMax = 20 * time.Millisecond
	}
	if o.PieceMax == 0 {
		o.PieceMax = 16
	}
	if o.FrameBytesMax == 0 {
		o.FrameBytesMax = 128 << 20
	}
	return o
}

// dialWithin bounds the connection to a broker on the same machine.
const dialWithin = 5 * time.Second

// Proxy listens until Close.
type Proxy struct {
	opt      Options
	listener net.Listener
	counts   [faults]atomic.Int64
	running  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	opened uint64 // connections so far
	links  map[*link]struct{}
	err    error // the first of Err
}

// Start listens on a loopback port of its own.
func Start(opt Options) (*Proxy, error) {
	p, err := newProxy(opt)
	if err != nil {
		return nil, err
	}
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	p.running.Go(p.accept)
	return p, nil
}

func newProxy(opt Options) (*Proxy, error) {
	if err := opt.Rates.check(); err != nil {
		return nil, err
	}
	return &Proxy{opt: opt.withDefaults(), links: make(map[*link]struct{})}, nil
}

// Addr is the HOST:PORT for clients.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Counts returns how often each fault has happened so far.
func (p *Proxy) Counts() Counts {
	var c Counts
	for f := range p.counts {
		c[f] = p.counts[f].Load()
	}
	return c
}

// Connections returns how many connections clients have opened so far.
func (p *Proxy) Connections() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opened
}

// Err returns the first thing that went wrong and was no fault of the proxy's making, nil when there was none.
func (p *Proxy) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Close cuts everything and waits until nothing runs any more.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.hangUp()
	}
	p.mu.Unlock()
	err := p.listener.Close()
	p.running.Wait()
	if err != nil {
		return fmt.Errorf("close the listener: %w", err)
	}
	return nil
}

// fail keeps the first error that came while the proxy was open.
func (p *Proxy) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && !p.closed {
		p.err = err
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				p.fail(fmt.Errorf("accept a client: %w", err))
			}
			return
		}
		p.running.Go(func() {
			broker, err := net.DialTimeout("tcp", p.opt.Broker, dialWithin)
			if err != nil {
				p.fail(fmt.Errorf("connect to the broker: %w", err))
				_ = client.Close()
				return
			}
			p.serve(client, broker)
		})
	}
}

// serve relays between two connections, which it closes, until one of them ends.
func (p *Proxy) serve(client, broker net.Conn) {
	l := &link{proxy: p, client: client, broker: broker, ended: make(chan struct{})}
	p.mu.Lock()
	p.opened++
	l.number = p.opened
	p.links[l] = struct{}{}
	if p.closed { // Close has gone through the links before this one was among them
		l.hangUp()
	}
	p.mu.Unlock()
	l.run()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}
