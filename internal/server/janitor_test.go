package server

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
)

// endsAfter wants the connection to be closed by the server so long after began, not before and not much later.
func (c *client) endsAfter(least time.Duration, began time.Time) {
	c.t.Helper()
	c.ended()
	if took := time.Since(began); took < least || took > least+2*tick {
		c.t.Errorf("closed after %v, want %v", took, least)
	}
}

// open wants the connection to be served.
func (c *client) open() {
	c.t.Helper()
	ask[*kmsg.MetadataResponse](c, metadataOf(9))
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	const idle = 90 * time.Second
	synctest.Test(t, func(t *testing.T) {
		node := twoPartitions()
		h := start(t, Config{ConnectionIdleMax: idle}, node)
		defer h.stop()
		began := time.Now()
		silent, asked, half, produced := h.client(), h.client(), h.client(), h.client()
		half.queue <- []byte{0, 0} // two bytes of a length are no request
		time.Sleep(40 * time.Second)
		asked.open()
		wantAnswers(t, ask[*kmsg.ProduceResponse](produced, one(9, -1, plain(1, ""))), "0:0@9,0")
		silent.endsAfter(idle, began)
		half.endsAfter(idle, began)
		asked.endsAfter(idle, began.Add(40*time.Second))
		produced.endsAfter(idle, began.Add(40*time.Second))
		h.quiet()
	})
}

// A produce without an answer and a fetch that waits are no idleness, however long they take; and idleness begins with the
// last answer.
func TestBusyConnectionsAreNotIdle(t *testing.T) {
	const idle = 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		node := twoPartitions()
		p := node.at("t", 0)
		p.hold()
		h := start(t, Config{ConnectionIdleMax: idle}, node)
		defer h.stop()
		producer, consumer := h.client(), h.client()
		req := one(9, -1, plain(1, ""))
		req.TimeoutMillis = 600_000
		producer.send(req, req)
		fetch := fetchOf(12, 3)
		fetch.Topics[0].Partitions[0].Partition, fetch.MaxWaitMillis = 1, 100_000
		consumer.send(fetch)
		time.Sleep(95 * time.Second)
		p.finish(1)
		wantAnswers(t, producer.receive(), "0:0@9,0")
		wantFetched(t, consumer.receive(), "1:0<3")
		consumer.endsAfter(idle, time.Now())
		time.Sleep(2 * idle)
		p.finish(1)
		wantAnswers(t, producer.receive(), "0:0@10,0")
		producer.endsAfter(idle, time.Now())
		h.quiet()
	})
}

func TestIdleConnectionsStayWhenTheyMay(t *testing.T) {
	served(t, Config{ConnectionIdleMax: -1}, newFakeNode(), func(t *testing.T, h *harness, c *client) {
		time.Sleep(2 * time.Hour)
		c.open()
	})
}

// The janitor never closes a connection whose reader has seen a request: one of the two comes first.
func TestIdleAndARequestAtOnce(t *testing.T) {
	var a attention
	a.idle.Store(5)
	if a.isIdle(8, 3) || !a.isIdle(9, 3) || a.isIdle(9, 3) {
		t.Error("idle for 3 ticks is not idle for more than 3, or idle twice")
	}
	if a.idle.Swap(0) != idleOver {
		t.Error("the reader does not hear that the connection is closed")
	}
	a.idle.Store(5)
	a.unanswered.Store(2)
	if a.isIdle(100, 3) {
		t.Error("idle with a produce unanswered")
	}
	a.answered(2, 99)
	if a.isIdle(100, 3) || !a.isIdle(103, 3) {
		t.Error("idleness does not begin with the last answer")
	}
	a.idle.Store(0)
	if a.answered(0, 110); a.isIdle(200, 3) {
		t.Error("idle in the middle of a request")
	}
}

// lateConn brings a request in the moment in which the janitor closes its connection as idle.
type lateConn struct {
	streamConn
	c *connection
}

func (l *lateConn) Read(b []byte) (int, error) {
	l.c.attention.idle.Store(idleOver)
	return l.streamConn.Read(b)
}

func TestNothingIsCarriedOutAfterTheIdleEnd(t *testing.T) {
	s, err := New(Config{}, newFakeNode(), slog.New(slog.DiscardHandler), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	nc := &lateConn{streamConn: streamConn{Reader: bytes.NewReader(frameOf(createOf(7, nil), 1))}}
	nc.c = newConnection(s, newConnections(), nc, t.Context(), make(chan struct{}))
	nc.c.run()
	if topics := s.node.Topics().All(); len(topics) > 0 || nc.written > 0 || !errors.Is(nc.c.ending.err, errIdle) {
		t.Errorf("%d topics are created, %d bytes answered: %v", len(topics), nc.written, nc.c.ending.err)
	}
}

// Half of a frame does not lie in memory for ever, whatever it is the half of.
func TestRequestsThatStopInTheMiddle(t *testing.T) {
	produce := frameOf(one(9, -1, plain(1, strings.Repeat("x", 1<<20))), 1)
	for _, sent := range [][]byte{produce[:4], produce[:8], produce[:12], produce[:1<<19], produce[:len(produce)-1], frameOf(metadataOf(9, "t"), 1)[:20]} {
		synctest.Test(t, func(t *testing.T) {
			h := start(t, Config{}, twoPartitions())
			defer h.stop()
			c, other := h.client(), h.client()
			defer other.close()
			c.queue <- sent
			c.endsAfter(stallMax, time.Now())
			synctest.Wait()
			h.logged("connections=1", "the client sent no more of a request that it had begun", "one_remote=pipe")
			if b := &h.server.budgets; b.produces.held()+b.requests.held() != 0 {
				t.Errorf("%d and %d bytes are still lent", b.produces.held(), b.requests.held())
			}
			other.open()
		})
	}
}

// A client with a slow line is not cut, as long as something comes.
func TestSlowRequests(t *testing.T) {
	served(t, Config{}, twoPartitions(), func(t *testing.T, h *harness, c *client) {
		frame := frameOf(one(9, -1, plain(1, strings.Repeat("x", 1<<20))), 1)
		for len(frame) > 0 {
			n := min(len(frame), receivedMin)
			c.queue <- frame[:n]
			frame = frame[n:]
			time.Sleep(stallMax - tick)
		}
		body, err := c.receiveFrame()
		if err != nil || body[3] != 1 {
			t.Errorf("answer %x, %v", body, err)
		}
	})
}

// A client that does not take its answers is cut: those of fetches and of produces.
func TestAnswersThatAreNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{}, twoPartitions())
		defer h.stop()
		consumer, producer, slow := h.client(), h.client(), h.client()
		consumer.send(fetchOf(12, 0))
		producer.send(one(9, -1, plain(1, "")), one(9, -1, plain(1, "")))
		// One that takes them slowly is not.
		large := strings.Repeat("x", 3*sentMax)
		h.node.at("t", 1).append(plain(1, large))
		slow.send(fetchOf(12, 9, 3))
		for range 3 {
			time.Sleep(stallMax - tick)
			if _, err := io.ReadFull(slow.nc, make([]byte, sentMax)); err != nil {
				t.Fatalf("a slow reader is cut: %v", err)
			}
		}
		for _, c := range []*client{consumer, producer} {
			if n, err := c.nc.Read(make([]byte, 1)); n > 0 || err == nil {
				t.Error("a client that did not take its answer is not cut")
			}
			c.close()
		}
		slow.close()
		synctest.Wait()
		h.logged("connections=2", "the client did not take its answer")
		if b := &h.server.budgets; b.answers.held()+b.producing.held() != 0 {
			t.Errorf("%d and %d bytes are still lent", b.answers.held(), b.producing.held())
		}
	})
}

// While others need the memory, the patience is shorter; but only with those that hold it.
func TestStallsAreShorterWhenMemoryIsScarce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{QueuedRequestBytesMax: 8 << 20}, twoPartitions())
		defer h.stop()
		frame := frameOf(one(9, -1, plain(1, strings.Repeat("x", 1<<20))), 1)
		other := h.client()
		defer other.close()
		other.queue <- frameOf(metadataOf(9, "t"), 1)[:20] // holds nothing that is scarce
		var halves []*client
		for range 3 {
			c := h.client()
			c.queue <- frame[:batch.HeaderSize+1<<19]
			halves = append(halves, c)
		}
		synctest.Wait()
		good := h.client()
		defer good.close()
		began := time.Now()
		wantAnswers(t, ask[*kmsg.ProduceResponse](good, one(9, -1, plain(1, strings.Repeat("x", 1<<20)))), "0:0@9,0")
		if took := time.Since(began); took > stallScarceMax+2*tick {
			t.Errorf("answered after %v", took)
		}
		for _, c := range halves {
			c.ended()
		}
		other.queue <- frameOf(metadataOf(9, "t"), 1)[20:]
		if _, err := other.receiveFrame(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		h.logged("the client sent no more of a request")
	})
}
