package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/wire"
)

// pipeListener is a listener whose connections are pipes in memory.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *pipeListener) dial() net.Conn {
	here, there := net.Pipe()
	l.conns <- there
	return here
}

// lines is a log handler that keeps what is worth a line.
type lines struct {
	mu   sync.Mutex
	kept []string
}

func (l *lines) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l *lines) WithGroup(string) slog.Handler                    { return l }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, line)
	return nil
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.kept...)
}

// harness is a server on a fake node.
type harness struct {
	t        testing.TB
	node     *fakeNode
	server   *Server
	listener *pipeListener
	lines    *lines
	cancel   context.CancelFunc
	served   chan error
}

func start(t testing.TB, config Config, node *fakeNode) *harness {
	t.Helper()
	h := &harness{t: t, node: node, listener: newPipeListener(), lines: &lines{}, served: make(chan error, 1)}
	var err error
	if h.server, err = New(config, node, slog.New(h.lines), time.Now); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	go func() { h.served <- h.server.Serve(ctx, h.listener) }()
	return h
}

// stop stops the server and wants it to have stopped in order.
func (h *harness) stop() {
	h.t.Helper()
	h.cancel()
	if err := <-h.served; err != nil {
		h.t.Error(err)
	}
}

// client is a connection to the server. Sending does not wait: a pipe holds nothing, and the server may be writing.
type client struct {
	t           testing.TB
	nc          net.Conn
	queue       chan []byte
	once        sync.Once
	correlation int32
	sent        []kmsg.Request
}

func (h *harness) client() *client {
	c := &client{t: h.t, nc: h.listener.dial(), queue: make(chan []byte, 1000)}
	go func() {
		for b := range c.queue {
			c.nc.Write(b) // fails when the server has closed the connection, which is seen when reading
		}
	}()
	return c
}

func (c *client) close() {
	c.once.Do(func() {
		close(c.queue)
		c.nc.Close()
	})
}

// frameOf encodes a request.
func frameOf(req kmsg.Request, correlation int32) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("test")).AppendRequest(nil, req, correlation)
}

// send sends requests without waiting for answers.
func (c *client) send(reqs ...kmsg.Request) {
	c.t.Helper()
	for _, req := range reqs {
		c.correlation++
		c.sent = append(c.sent, req)
		c.queue <- frameOf(req, c.correlation)
	}
}

// receive reads the answer to the oldest request without one. It checks that the response is whole and nothing more.
func (c *client) receive() kmsg.Response {
	c.t.Helper()
	body, err := c.receiveFrame()
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	req := c.sent[0]
	c.sent = c.sent[1:]
	want := c.correlation - int32(len(c.sent))
	if got := int32(binary.BigEndian.Uint32(body)); got != want {
		c.t.Fatalf("receive: correlation id %d, want %d", got, want)
	}
	body = body[4:]
	if key := wire.Key(req.Key()); key != wire.KeyApiVersions && key.Flexible(req.GetVersion()) {
		if body[0] != 0 {
			c.t.Fatal("response header has tags")
		}
		body = body[1:]
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(body); err != nil {
		c.t.Fatalf("decode %T v%d: %v", resp, resp.GetVersion(), err)
	}
	if again := resp.AppendTo(nil); !bytes.Equal(again, body) {
		c.t.Fatalf("%T v%d: response of %d bytes is not the %d bytes that it decodes to:\n%x\n%x", resp, resp.GetVersion(), len(body), len(again), body, again)
	}
	return resp
}

func (c *client) receiveFrame() ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(c.nc, length[:]); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(c.nc, body)
	return body, err
}

// ended wants the server to have closed the connection without a byte more.
func (c *client) ended() {
	c.t.Helper()
	if n, err := c.nc.Read(make([]byte, 1)); n > 0 || err != io.EOF {
		c.t.Fatalf("connection is not closed: %d bytes, %v", n, err)
	}
	c.close()
}

// ask sends a request and returns its answer.
func ask[R kmsg.Response](c *client, req kmsg.Request) R {
	c.t.Helper()
	c.send(req)
	return c.receive().(R)
}

// logged wants exactly one line in the log, with all of words in it, and forgets it.
func (h *harness) logged(words ...string) {
	h.t.Helper()
	all := h.lines.all()
	if len(all) != 1 {
		h.t.Fatalf("%d lines in the log, want 1: %q", len(all), all)
	}
	for _, word := range words {
		if !strings.Contains(all[0], word) {
			h.t.Errorf("log line %q lacks %q", all[0], word)
		}
	}
	h.lines.mu.Lock()
	h.lines.kept = nil
	h.lines.mu.Unlock()
}

// quiet wants nothing in the log.
func (h *harness) quiet() {
	h.t.Helper()
	if all := h.lines.all(); len(all) > 0 {
		h.t.Errorf("the log has %q", all)
	}
}

// produceOf makes a Produce request of one batch for each partition, from 0 on, of each topic.
func produceOf(version int16, acks int16, batches map[string][][]byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = version, acks, 30_000
	for name, list := range batches {
		topic := kmsg.NewProduceRequestTopic()
		topic.Topic, topic.TopicID = name, topicID(name)
		for i, b := range list {
			p := kmsg.NewProduceRequestTopicPartition()
			p.Partition, p.Records = int32(i), b
			topic.Partitions = append(topic.Partitions, p)
		}
		req.Topics = append(req.Topics, topic)
	}
	return req
}

// one is a Produce request of one batch for partition 0 of topic "t".
func one(version, acks int16, b []byte) *kmsg.ProduceRequest {
	return produceOf(version, acks, map[string][][]byte{"t": {b}})
}
