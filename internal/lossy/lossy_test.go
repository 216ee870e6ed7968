package lossy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// framed returns a frame with a body of n random bytes.
func framed(rng *rand.Rand, n int) []byte {
	frame := binary.BigEndian.AppendUint32(nil, uint32(n))
	for range n {
		frame = append(frame, byte(rng.Uint32()))
	}
	return frame
}

// serving runs a proxy between two pipes, in which every write is a read of its own, and returns the two far ends.
// It is for use in a bubble of synctest.
func serving(t *testing.T, opt Options) (p *Proxy, client, broker net.Conn) {
	t.Helper()
	p, err := newProxy(opt)
	if err != nil {
		t.Fatal(err)
	}
	client, proxyClient := net.Pipe()
	broker, proxyBroker := net.Pipe()
	go p.serve(proxyClient, proxyBroker)
	t.Cleanup(func() { _ = client.Close(); _ = broker.Close() })
	return p, client, broker
}

// send writes in the background; the write of a connection that is cut may fail.
func send(to net.Conn, frames ...[]byte) {
	go func() {
		for _, frame := range frames {
			_, _ = to.Write(frame)
		}
	}()
}

// reads returns what arrives, one element for each read, until the connection ends or says nothing for a minute of
// the bubble's time.
func reads(from net.Conn) (pieces [][]byte, silent bool) {
	for {
		buf := make([]byte, 64<<10)
		_ = from.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := from.Read(buf)
		if n > 0 {
			pieces = append(pieces, buf[:n])
		}
		if err != nil {
			return pieces, errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// expect demands that exactly these bytes arrive, and that the connection is silent or cut afterwards.
func expect(t *testing.T, what string, from net.Conn, want []byte, silent bool) [][]byte {
	t.Helper()
	pieces, gotSilent := reads(from)
	if got := bytes.Join(pieces, nil); !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes arrived, want %d: %x, want %x", what, len(got), len(want), got, want)
	}
	if gotSilent != silent {
		t.Errorf("%s: silent and not cut %v, want %v", what, gotSilent, silent)
	}
	return pieces
}

func only(f Fault, n int64) (c Counts) {
	c[f] = n
	return c
}

func always(f Fault) (r Rates) {
	r[f] = 1
	return r
}

func demand(t *testing.T, p *Proxy, want Counts) {
	t.Helper()
	if got := p.Counts(); got != want {
		t.Errorf("counted %v, want %v", got, want)
	}
	if err := p.Err(); err != nil {
		t.Error(err)
	}
}

func TestWithoutFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 1))
		p, client, broker := serving(t, Options{})
		var requests, answers []byte
		for n := range 200 {
			request, answer := framed(rng, n), framed(rng, n*n)
			requests, answers = append(requests, request...), append(answers, answer...)
		}
		begun := time.Now()
		send(client, requests) // in one write: the proxy must find the frames itself
		send(broker, answers)
		done := make(chan struct{})
		go func() { expect(t, "requests", broker, requests, true); close(done) }()
		expect(t, "answers", client, answers, true)
		<-done
		if took := time.Since(begun); took != time.Minute { // of silence
			t.Errorf("took %v", took)
		}
		demand(t, p, Counts{})
		_ = client.Close()
		expect(t, "after the client has gone", broker, nil, false)
	})
}

// An answer is swallowed whole; the ones before it have arrived.
func TestSwallowCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 1))
		p, client, broker := serving(t, Options{Rates: always(SwallowCut)})
		request, answer := framed(rng, 30), framed(rng, 40)
		send(client, request)
		if got := make([]byte, len(request)); !arrives(broker, got) || !bytes.Equal(got, request) {
			t.Error("the request did not arrive")
		}
		send(broker, answer)
		expect(t, "answers", client, nil, false)
		expect(t, "requests", broker, nil, false)
		demand(t, p, only(SwallowCut, 1))
	})
}

func arrives(from net.Conn, b []byte) bool {
	_, err := io.ReadFull(from, b)
	return err == nil
}

// Requests go on reaching the broker, whose answers the client never gets.
func TestSwallowHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 1))
		told := 0
		p, client, broker := serving(t, Options{Rates: always(SwallowHold), OnAnswer: func(uint64, []byte) { told++ }})
		send(broker, framed(rng, 40), framed(rng, 50), framed(rng, 60))
		expect(t, "answers", client, nil, true)
		request := framed(rng, 30)
		send(client, request)
		expect(t, "requests", broker, request, true)
		demand(t, p, only(SwallowHold, 1))
		synctest.Wait()
		if told != 3 {
			t.Errorf("told of %d answers, want 3", told)
		}
		_ = client.Close()
		expect(t, "after the client has gone", broker, nil, false)
	})
}

// Over the seeds the cut meets every byte, also inside the length field, but never none or all of the frame.
func TestCuts(t *testing.T) {
	for _, f := range []Fault{CutRequest, CutAnswer} {
		t.Run(f.String(), func(t *testing.T) {
			const size = 16
			met := make(map[int]int)
			for seed := range uint64(400) {
				synctest.Test(t, func(t *testing.T) {
					p, client, broker := serving(t, Options{Rates: always(f), Seed: seed,
						OnRequest: func(uint64, []byte) { t.Error("told of a request that was cut") }})
					from, to := client, broker
					if f == CutAnswer {
						from, to = broker, client
					}
					frame := framed(rand.New(rand.NewPCG(seed, 1)), size-lengthSize)
					send(from, frame)
					pieces, silent := reads(to)
					got := bytes.Join(pieces, nil)
					if silent || !bytes.HasPrefix(frame, got) {
						t.Errorf("seed %d: %x arrived of %x, silent %v", seed, got, frame, silent)
					}
					met[len(got)]++
					expect(t, "backward", from, nil, false)
					demand(t, p, only(f, 1))
				})
			}
			for n := range size + 1 {
				if inside := n > 0 && n < size; inside != (met[n] > 0) {
					t.Errorf("%d times cut after byte %d of %d", met[n], n, size)
				}
			}
		})
	}
}

func TestDelays(t *testing.T) {
	for _, f := range []Fault{DelayRequest, DelayAnswer} {
		t.Run(f.String(), func(t *testing.T) {
			const frames, delayMax = 50, time.Second
			synctest.Test(t, func(t *testing.T) {
				p, client, broker := serving(t, Options{Rates: always(f), DelayMax: delayMax})
				from, to := client, broker
				if f == DelayAnswer {
					from, to = broker, client
				}
				rng := rand.New(rand.NewPCG(1, 1))
				var sum time.Duration
				for range frames {
					frame, begun := framed(rng, 100), time.Now()
					send(from, frame)
					if got := make([]byte, len(frame)); !arrives(to, got) || !bytes.Equal(got, frame) {
						t.Fatal("a frame did not arrive")
					}
					took := time.Since(begun)
					if took < 1 || took > delayMax {
						t.Errorf("delayed by %v", took)
					}
					sum += took
				}
				if mean := sum / frames; mean < delayMax/4 || mean > 3*delayMax/4 {
					t.Errorf("delayed by %v on average", mean)
				}
				demand(t, p, only(f, frames))
			})
		})
	}
}

// A delay ends when the client hangs up.
func TestDelayOfAConnectionThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, client, broker := serving(t, Options{Rates: always(DelayAnswer), DelayMax: 1000 * time.Hour})
		begun := time.Now()
		send(broker, framed(rand.New(rand.NewPCG(1, 1)), 100))
		synctest.Wait()
		_ = client.Close()
		expect(t, "requests", broker, nil, false)
		if time.Since(begun) != 0 {
			t.Errorf("took %v", time.Since(begun))
		}
		demand(t, p, Counts{})
	})
}

func TestPieces(t *testing.T) {
	for _, f := range []Fault{PieceRequest, PieceAnswer} {
		t.Run(f.String(), func(t *testing.T) {
			const pieceMax = 7
			synctest.Test(t, func(t *testing.T) {
				p, client, broker := serving(t, Options{Rates: always(f), PieceMax: pieceMax})
				from, to := client, broker
				if f == PieceAnswer {
					from, to = broker, client
				}
				frame := framed(rand.New(rand.NewPCG(1, 1)), 1000)
				send(from, frame)
				sizes := make(map[int]int)
				for _, piece := range expect(t, "pieces", to, frame, true) {
					sizes[len(piece)]++
				}
				for n := range 2 * pieceMax {
					if allowed := n > 0 && n <= pieceMax; allowed != (sizes[n] > 0) {
						t.Errorf("%d pieces of %d bytes", sizes[n], n)
					}
				}
				demand(t, p, only(f, 1))
			})
		})
	}
}

// A length that cannot be right ends the connection before memory is taken for it, and is no fault of the network.
func TestFrameLength(t *testing.T) {
	for _, size := range []int32{-1, math.MinInt32, 101, math.MaxInt32} {
		for _, fromClient := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				p, client, broker := serving(t, Options{FrameBytesMax: 100})
				from, to, name := client, broker, "client"
				if !fromClient {
					from, to, name = broker, client, "broker"
				}
				send(from, binary.BigEndian.AppendUint32(nil, uint32(size)))
				expect(t, "frame", to, nil, false)
				if err := p.Err(); err == nil || !strings.Contains(err.Error(), "the "+name+" sent a frame of length") {
					t.Errorf("size %d: %v", size, err)
				}
			})
		}
	}
}

func TestRatesAreChecked(t *testing.T) {
	for _, rates := range []Rates{
		{CutRequest: -0.1}, {DelayAnswer: 1.1}, {PieceAnswer: math.NaN()}, {SwallowCut: 0.5, CutAnswer: 0.6},
	} {
		if _, err := Start(Options{Rates: rates}); err == nil {
			t.Errorf("%v was accepted", rates)
		}
	}
}

// echo is a broker that answers every frame with itself.
func echo(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

// mixed has every fault, as often as a campaign would.
var mixed = Rates{SwallowCut: 0.02, SwallowHold: 0.01, CutRequest: 0.02, CutAnswer: 0.02,
	DelayRequest: 0.05, DelayAnswer: 0.05, PieceRequest: 0.1, PieceAnswer: 0.1}

// talk sends frames over TCP, one after the other, over as many connections as it takes, and returns what the proxy
// has counted.
func talk(t *testing.T, seed uint64, frames int) (Counts, uint64) {
	t.Helper()
	p, err := Start(Options{Broker: echo(t), Seed: seed, Rates: mixed, DelayMax: time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 99))
	var conn net.Conn
	for range frames {
		if conn == nil {
			if conn, err = net.Dial("tcp", p.Addr()); err != nil {
				t.Fatal(err)
			}
		}
		frame := framed(rng, 8+rng.IntN(100))
		got := make([]byte, len(frame))
		_, err := conn.Write(frame)
		if err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			_, err = io.ReadFull(conn, got)
		}
		if err == nil && !bytes.Equal(got, frame) {
			t.Fatalf("seed %d: %x came back for %x", seed, got, frame)
		}
		if err != nil {
			_ = conn.Close()
			conn = nil
		}
	}
	if conn != nil {
		_ = conn.Close()
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Err(); err != nil {
		t.Error(err)
	}
	return p.Counts(), p.Connections()
}

// Every kind of fault happens on real connections, about as often as its rate says.
func TestEveryFaultHappens(t *testing.T) {
	const seed, frames = 7, 2000
	counts, connections := talk(t, seed, frames)
	t.Logf("seed %d, %d frames over %d connections: %v", seed, frames, connections, counts)
	for f, rate := range mixed {
		want := rate * frames // a little less: what is cut on the way there has no answer
		if got := float64(counts[f]); got < 0.5*want || got > 1.5*want {
			t.Errorf("%v: %v times, want about %v", Fault(f), got, want)
		}
	}
	if ends := counts[SwallowCut] + counts[SwallowHold] + counts[CutRequest] + counts[CutAnswer]; connections < uint64(ends) {
		t.Errorf("%d connections for %d faults that end one", connections, ends)
	}
}

func TestSeeds(t *testing.T) {
	draws := func(seed uint64) (all []Fault) {
		l := &link{proxy: &Proxy{opt: Options{Seed: seed, Rates: mixed}}, number: 3}
		rng := l.rng(1)
		for range 500 {
			if f, hit := l.draw(rng, SwallowCut, SwallowHold, CutAnswer); hit {
				all = append(all, f)
			}
		}
		return all
	}
	one, again, other := draws(1), draws(1), draws(2)
	if len(one) == 0 || !slices.Equal(one, again) || slices.Equal(one, other) {
		t.Errorf("seed 1 draws %v and %v, seed 2 %v", one, again, other)
	}
}

func TestBrokerThatIsNotThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	p, err := Start(Options{Broker: l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "answers", conn, nil, false)
	_ = conn.Close()
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "connect to the broker") {
		t.Errorf("error %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// Close ends what is held, and the connections of clients that do nothing.
func TestClose(t *testing.T) {
	p, err := Start(Options{Broker: echo(t), Rates: always(SwallowHold)})
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	for range 5 {
		conn, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(framed(rand.New(rand.NewPCG(1, 1)), 10)); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	for _, conn := range conns {
		expect(t, "answers", conn, nil, false)
		_ = conn.Close()
	}
	if err := p.Err(); err != nil {
		t.Error(err)
	}
}
