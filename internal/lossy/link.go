package lossy

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// lengthSize is the size in bytes of a frame's length field.
const lengthSize = 4

// link is one client's connection and the one to the broker that belongs to it. A goroutine for each direction
// draws from a generator of its own, so what it draws does not depend on the other's speed.
type link struct {
	proxy          *Proxy
	number         uint64
	client, broker net.Conn
	once           sync.Once
	ended          chan struct{} // closed when both connections are
}

func (l *link) run() {
	var relays sync.WaitGroup
	relays.Go(func() { l.requests(l.rng(0)) })
	relays.Go(func() { l.answers(l.rng(1)) })
	relays.Wait()
}

func (l *link) rng(direction uint64) *rand.Rand {
	return rand.New(rand.NewPCG(l.proxy.opt.Seed, l.number<<1|direction))
}

// hangUp closes both connections. What was written before still arrives.
func (l *link) hangUp() {
	l.once.Do(func() {
		close(l.ended)
		_ = l.client.Close()
		_ = l.broker.Close()
	})
}

// cut closes both connections; a reset throws away also what was written and has not arrived.
func (l *link) cut(reset bool) {
	if reset {
		for _, conn := range []net.Conn{l.client, l.broker} {
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
		}
	}
	l.hangUp()
}

func (l *link) count(f Fault) { l.proxy.counts[f].Add(1) }

// draw returns the first fault that the dice give, and false when they give none.
func (l *link) draw(rng *rand.Rand, among ...Fault) (Fault, bool) {
	dice := rng.Float64()
	for _, f := range among {
		if dice < l.proxy.opt.Rates[f] {
			return f, true
		}
		dice -= l.proxy.opt.Rates[f]
	}
	return 0, false
}

// requests relays from the client to the broker until either is gone.
func (l *link) requests(rng *rand.Rand) {
	defer l.hangUp()
	for {
		frame, err := l.read(l.client, "client")
		if err != nil {
			return
		}
		if _, hit := l.draw(rng, CutRequest); hit {
			l.cutWithin(rng, l.broker, frame, CutRequest)
			return
		}
		if l.proxy.opt.OnRequest != nil {
			l.proxy.opt.OnRequest(l.number, frame)
		}
		if err := l.deliver(rng, l.broker, frame, DelayRequest, PieceRequest); err != nil {
			return
		}
	}
}

// answers relays from the broker to the client until either is gone.
func (l *link) answers(rng *rand.Rand) {
	defer l.hangUp()
	for held := false; ; {
		frame, err := l.read(l.broker, "broker")
		if err != nil {
			return
		}
		if l.proxy.opt.OnAnswer != nil {
			l.proxy.opt.OnAnswer(l.number, frame)
		}
		if held {
			continue
		}
		switch f, hit := l.draw(rng, SwallowCut, SwallowHold, CutAnswer); {
		case !hit:
			if err := l.deliver(rng, l.client, frame, DelayAnswer, PieceAnswer); err != nil {
				return
			}
		case f == SwallowCut:
			l.count(f)
			l.cut(rng.IntN(2) == 0)
			return
		case f == SwallowHold:
			l.count(f)
			held = true
		case f == CutAnswer:
			l.cutWithin(rng, l.client, frame, f)
			return
		}
	}
}

// read reads one frame, length field included.
func (l *link) read(from net.Conn, name string) ([]byte, error) {
	var length [lengthSize]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	size := int32(binary.BigEndian.Uint32(length[:]))
	if size < 0 || int(size) > l.proxy.opt.FrameBytesMax {
		err := fmt.Errorf("connection %d: the %s sent a frame of length %d", l.number, name, size)
		l.proxy.fail(err)
		return nil, err
	}
	frame := make([]byte, lengthSize+int(size))
	copy(frame, length[:])
	_, err := io.ReadFull(from, frame[lengthSize:])
	return frame, err
}

// cutWithin writes at least one byte of the frame, and not all, and cuts.
func (l *link) cutWithin(rng *rand.Rand, to net.Conn, frame []byte, f Fault) {
	size, reset := 1+rng.IntN(len(frame)-1), rng.IntN(2) == 0
	if _, err := to.Write(frame[:size]); err == nil {
		l.count(f)
	}
	l.cut(reset)
}

// deliver writes the frame, late or in pieces when the dice say so.
func (l *link) deliver(rng *rand.Rand, to net.Conn, frame []byte, delay, piece Fault) error {
	_, late := l.draw(rng, delay)
	_, pieces := l.draw(rng, piece)
	if late {
		timer := time.NewTimer(time.Duration(1 + rng.Int64N(int64(l.proxy.opt.DelayMax))))
		defer timer.Stop()
		select {
		case <-timer.C:
			l.count(delay)
		case <-l.ended:
			return net.ErrClosed
		}
	}
	if !pieces {
		_, err := to.Write(frame)
		return err
	}
	for at := 0; at < len(frame); {
		size := min(len(frame)-at, 1+rng.IntN(l.proxy.opt.PieceMax))
		if _, err := to.Write(frame[at : at+size]); err != nil {
			return err
		}
		if at == 0 && size < len(frame) {
			l.count(piece)
		}
		at += size
	}
	return nil
}
