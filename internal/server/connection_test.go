package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/replica"
)

// Whatever is wrong with a frame: the connection is closed, with one line in the log, and others are served.
func TestBadFramesCloseTheirConnection(t *testing.T) {
	good := frameOf(metadataOf(9, "t"), 1)
	produce := frameOf(one(9, -1, plain(1, "")), 1)
	change := func(b []byte, at int, to ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], to)
		return b
	}
	for name, x := range map[string]struct {
		bytes []byte
		cut   bool // the client closes after it
		words string
	}{
		"negative length":              {[]byte{0xff, 0xff, 0xff, 0xff}, false, "below"},
		"length of nothing":            {[]byte{0, 0, 0, 0}, false, "below"},
		"length 9":                     {[]byte{0, 0, 0, 9}, false, "below"},
		"an HTTP request":              {[]byte("GET / HTTP/1.1\r\n\r\n"), false, "above the limit of 104857600"},
		"a TLS handshake":              {[]byte{0x16, 3, 1, 2, 0, 1, 0, 1}, false, "above"},
		"produce above the limit":      {change(produce, 0, 0x06, 0x40, 0, 1), false, "above the limit of 104857600"},
		"metadata above its limit":     {change(good, 0, 0, 8, 0, 1), false, "limit of 524288 bytes for Metadata"},
		"unknown API":                  {change(good, 4, 0, 24), false, "unknown API key 24"},
		"negative API":                 {change(good, 4, 0xff, 0xff), false, "unknown API key -1"},
		"version too new":              {change(good, 6, 0, 14), false, "Metadata version 14 is not supported, 0 to 13"},
		"version too old":              {change(good, 4, 0, 1, 0, 3), false, "Fetch version 3 is not supported"},
		"negative version":             {change(good, 6, 0xff, 0xff), false, "version -1"},
		"negative ApiVersions":         {change(good, 4, 0, 18, 0x80, 0), false, "ApiVersions version -32768"},
		"cut off in the length":        {good[:3], true, "cut off"},
		"cut off after the length":     {good[:4], true, "cut off"},
		"cut off in the prefix":        {good[:9], true, "cut off"},
		"cut off after the prefix":     {good[:12], true, "cut off"},
		"cut off in the header":        {good[:13], true, "cut off"},
		"cut off in the body":          {good[:len(good)-1], true, "cut off"},
		"client id beyond the end":     {change(good, 12, 0x7f, 0xff), false, "header"},
		"client id of -2":              {change(good, 12, 0xff, 0xfe), false, "header"},
		"malformed body":               {change(good, len(good)-6, 0xff, 0xff, 0xff), false, "decode Metadata v9"},
		"length shorter than the body": {change(good, 0, 0, 0, 0, byte(len(good)-4-5)), false, "decode Metadata v9"},
		"produce shorter than it says": {change(produce, 0, 0, 0, 0, byte(len(produce)-4-5)), false, "parse Produce v9"},
		"produce with trailing bytes":  {append(change(produce, 3, byte(len(produce)-4+1)), 0), false, "1 bytes follow"},
	} {
		synctest.Test(t, func(t *testing.T) {
			node := newFakeNode()
			node.add("t", 1)
			h := start(t, Config{}, node)
			defer h.stop()
			c := h.client()
			c.queue <- x.bytes
			if x.cut {
				synctest.Wait()
				c.close()
			} else {
				c.ended()
			}
			synctest.Wait()
			h.logged("connection closed", "remote=pipe", x.words)
			other := h.client()
			defer other.close()
			wantAnswers(t, ask[*kmsg.ProduceResponse](other, one(9, -1, plain(1, ""))), "0:0@0,0")
			if t.Failed() {
				t.Log(name)
			}
		})
	}
}

func TestEndsThatLeaveNoLine(t *testing.T) {
	served(t, Config{}, newFakeNode(), func(t *testing.T, h *harness, c *client) {
		h.client().close() // at once
		ask[*kmsg.MetadataResponse](c, metadataOf(9))
		c.close() // between two requests
		synctest.Wait()
		gone := h.client()
		gone.send(metadataOf(9), metadataOf(9)) // answers that nobody reads
		gone.close()
		synctest.Wait()
	})
}

// What the client has closed is only its own direction: its requests are answered.
func TestHalfClosedConnectionIsAnswered(t *testing.T) {
	node := newFakeNode()
	node.add("t", 1)
	p := node.at("t", 0)
	p.hold()
	p.arrived = make(chan *replica.Submission, 2)
	h := &harness{t: t, node: node, lines: &lines{}, served: make(chan error, 1)}
	var err error
	if h.server, err = New(Config{}, node, slog.New(h.lines), time.Now); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	h.cancel = cancel
	go func() { h.served <- h.server.Serve(ctx, l) }()
	defer h.stop()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Write(append(frameOf(one(9, -1, plain(1, "")), 1), frameOf(one(9, -1, plain(1, "")), 2)...)); err != nil {
		t.Fatal(err)
	}
	if err := nc.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	<-p.arrived
	<-p.arrived
	p.finish(2)
	all, err := io.ReadAll(nc)
	if err != nil || len(all) == 0 || binary.BigEndian.Uint32(all[4:]) != 1 || binary.BigEndian.Uint32(all[len(all)/2+4:]) != 2 {
		t.Errorf("answers %x, %v", all, err)
	}
	h.quiet()
}

// A client that announces 100 MiB and sends little costs little.
func TestLyingLengthCostsBoundedMemory(t *testing.T) {
	node := newFakeNode()
	h := start(t, Config{QueuedRequestBytesMax: -1}, node)
	defer h.stop()
	head := []byte{0x06, 0x3f, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff, 0}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const n = 10
	for range n {
		nc := h.listener.dial()
		if _, err := nc.Write(head); err != nil {
			t.Fatal(err)
		}
		nc.Close()
	}
	h.stop()
	runtime.ReadMemStats(&after)
	if got := (after.TotalAlloc - before.TotalAlloc) / n; got > 2*firstStep {
		t.Errorf("%d bytes allocated for a connection", got)
	}
	if lines := h.lines.all(); len(lines) != n || !strings.Contains(lines[0], "cut off") {
		t.Errorf("log %q", lines)
	}
	h.served <- nil // for the deferred stop
}

// Frames of every size arrive whole, however they are cut up on their way, and buffers are used again.
func TestFramesOfEverySize(t *testing.T) {
	node := newFakeNode()
	node.add("t", 1)
	h := start(t, Config{}, node)
	defer h.stop()
	c := h.client()
	defer c.close()
	offset := 0
	for _, size := range []int{0, 1, 4000, 4090, 5000, 65_536, 1 << 20, 1<<20 + 1<<14, 1<<20 + 1<<14 + 1, 3 << 20, 9 << 20} {
		payload := bytes.Repeat([]byte{byte(size), byte(size >> 8), 'x'}, size/3+1)[:size]
		resp := ask[*kmsg.ProduceResponse](c, one(9, -1, plain(1, string(payload))))
		wantAnswers(t, resp, fmt.Sprintf("0:0@%d,0", offset))
		offset++
		p := node.at("t", 0)
		p.mu.Lock()
		if got := p.log[len(p.log)-size:]; !bytes.Equal(got, payload) {
			t.Errorf("%d bytes arrived wrong", size)
		}
		p.log, p.batches = nil, nil
		p.mu.Unlock()
	}
}

// However many connections are closed for what they send, the log is not flooded with them.
func TestManyBadConnectionsLeaveFewLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{}, newFakeNode())
		defer h.stop()
		for range 250 {
			c := h.client()
			c.queue <- []byte("GET / HTTP/1.1\r\n\r\n")
			c.ended()
		}
		synctest.Wait()
		if n := len(h.lines.all()); n != 100 {
			t.Errorf("%d lines", n)
		}
		time.Sleep(seldomInterval)
		c := h.client()
		c.queue <- []byte("GET / HTTP/1.1\r\n\r\n")
		c.ended()
		synctest.Wait()
		if all := h.lines.all(); len(all) != 101 || !strings.Contains(all[100], "similar=150") {
			t.Errorf("%d lines, the last is %q", len(all), all[len(all)-1])
		}
	})
}

func TestMaxConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{MaxConnections: 2}, newFakeNode())
		defer h.stop()
		a, b := h.client(), h.client()
		defer b.close()
		ask[*kmsg.MetadataResponse](a, metadataOf(9))
		for range 5 {
			h.client().ended()
		}
		synctest.Wait()
		h.logged("max.connections", "refused=1")
		time.Sleep(seldomInterval)
		h.client().ended()
		synctest.Wait()
		h.logged("refused=5")
		a.close()
		synctest.Wait()
		d := h.client()
		defer d.close()
		ask[*kmsg.MetadataResponse](d, metadataOf(9))
		h.quiet()
	})
}

// A stop lets what is in flight finish, wakes those that wait for data, and reads nothing further.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := twoPartitions()
		p := node.at("t", 0)
		p.hold()
		h := start(t, Config{}, node)
		idle, producer, consumer := h.client(), h.client(), h.client()
		defer idle.close()
		defer producer.close()
		defer consumer.close()
		ask[*kmsg.MetadataResponse](idle, metadataOf(9))
		producer.send(one(9, -1, plain(1, "")), one(9, -1, plain(1, "")))
		fetch := fetchOf(12, 9)
		fetch.MaxWaitMillis = 60_000
		consumer.send(fetch)
		synctest.Wait()
		began := time.Now()
		h.cancel()
		synctest.Wait()
		wantFetched(t, consumer.receive(), "0:0<9")
		consumer.ended()
		idle.ended()
		time.Sleep(3 * time.Second)
		p.finish(2)
		wantAnswers(t, producer.receive(), "0:0@9,0")
		wantAnswers(t, producer.receive(), "0:0@10,0")
		producer.ended()
		h.stop()
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("stopped after %v", took)
		}
		h.quiet()
		select {
		case h.listener.conns <- nil:
			t.Error("the listener is open")
		case <-h.listener.closed:
		}
	})
}

// What does not finish in time is cut.
func TestStopHasABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := twoPartitions()
		node.at("t", 0).hold()
		h := start(t, Config{StopTimeout: 2 * time.Second}, node)
		producer, creator := h.client(), h.client()
		producer.send(one(9, -1, plain(1, "")))
		node.creating = make(chan struct{})
		creator.send(createOf(7, nil))
		synctest.Wait()
		began := time.Now()
		h.cancel()
		producer.ended()
		creator.close()
		if err := <-h.served; err != nil || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		node.at("t", 0).finish(1) // late, and harmless
		h.logged("connections=2 after=2s waiting_for_a_partition=0")
	})
}

// failingListener fails a few times, as for a lack of file descriptors, and then for good.
type failingListener struct {
	*pipeListener
	fails int
}

func (l *failingListener) Accept() (net.Conn, error) {
	if l.fails--; l.fails >= 0 {
		return nil, errors.New("too many open files")
	}
	return nil, net.ErrClosed
}

func TestAcceptFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := &lines{}
		s, err := New(Config{}, newFakeNode(), slog.New(lines), time.Now)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err = s.Serve(t.Context(), &failingListener{pipeListener: newPipeListener(), fails: 10})
		if !errors.Is(err, net.ErrClosed) || len(lines.all()) != 10 || time.Since(began) < 3*time.Second {
			t.Errorf("%v after %v, %q", err, time.Since(began), lines.all())
		}
	})
}

func TestConfig(t *testing.T) {
	for _, bad := range []Config{{MaxConnections: -1}, {RequestBytesMax: 1<<30 + 1}, {FetchBytesMax: -5}, {NumPartitions: -1}} {
		if _, err := New(bad, newFakeNode(), slog.New(slog.DiscardHandler), time.Now); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
