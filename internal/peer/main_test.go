package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
	"go.uber.org/goleak"

	"github.com/oncemq/oncemq/internal/seglog"
)

func TestMain(m *testing.M) {
	if parent := os.Getenv(childOf); parent != "" {
		childNode(parent)
	}
	goleak.VerifyTestMain(m)
}

// event is one call of a Handler.
type event struct {
	what  string // message, unreachable, sent, up, down, told
	node  NodeID
	group seglog.GroupID
	m     *pb.Message
	kind  uint8
	body  []byte
	to    seglog.ReplicaID
	ok    bool
}

// recorder is a Handler that keeps what it is told.
type recorder struct {
	events chan event
	call   func(ctx context.Context, from NodeID, method uint8, body []byte) ([]byte, error)
}

func newRecorder() *recorder { return &recorder{events: make(chan event, 1<<16)} }

func (r *recorder) Message(from NodeID, group seglog.GroupID, m *pb.Message) {
	r.events <- event{what: "message", node: from, group: group, m: m}
}
func (r *recorder) Unreachable(node NodeID) { r.events <- event{what: "unreachable", node: node} }
func (r *recorder) SnapshotSent(group seglog.GroupID, to seglog.ReplicaID, ok bool) {
	r.events <- event{what: "sent", group: group, to: to, ok: ok}
}
func (r *recorder) Up(node NodeID)   { r.events <- event{what: "up", node: node} }
func (r *recorder) Down(node NodeID) { r.events <- event{what: "down", node: node} }
func (r *recorder) Told(from NodeID, kind uint8, body []byte) {
	r.events <- event{what: "told", node: from, kind: kind, body: body}
}
func (r *recorder) Call(ctx context.Context, from NodeID, method uint8, body []byte) ([]byte, error) {
	if r.call == nil {
		return nil, errors.New("no calls here")
	}
	return r.call(ctx, from, method, body)
}

// await returns the next event of a kind; what comes before it is passed over.
func (r *recorder) await(t testing.TB, what string) event {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case e := <-r.events:
			if e.what == what {
				return e
			}
		case <-timeout:
			t.Fatalf("no %q has come", what)
		}
	}
}

// lines is a log that can be read.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// wire is the network of a test: loopback, or pipes when it is in a bubble.
type wire struct {
	pipes bool

	mu        sync.Mutex
	listeners map[string]*pipeListener
	conns     map[NodeID][]net.Conn // by the node that dialed or accepted them
	listening map[NodeID][]net.Listener
	dead      map[NodeID]bool
	frozen    map[NodeID]chan struct{} // closed when the node's writes go on
}

func newWire(pipes bool) *wire {
	return &wire{pipes: pipes, listeners: map[string]*pipeListener{}, conns: map[NodeID][]net.Conn{}, listening: map[NodeID][]net.Listener{},
		dead: map[NodeID]bool{}, frozen: map[NodeID]chan struct{}{}}
}

// pipeEnd is one node's end of a pipe.
type pipeEnd struct {
	net.Conn
	w    *wire
	node NodeID
}

func (p *pipeEnd) Write(b []byte) (int, error) {
	p.w.mu.Lock()
	frozen := p.w.frozen[p.node]
	p.w.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
	return p.Conn.Write(b)
}

// freeze makes a node write nothing any more until the function that it returns is called.
func (w *wire) freeze(node NodeID) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	frozen := make(chan struct{})
	w.frozen[node] = frozen
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.frozen[node] = nil
		close(frozen)
	}
}

type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case nc := <-l.conns:
		return nc, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// listener notes what a node accepts.
type listener struct {
	net.Listener
	w    *wire
	node NodeID
}

func (l *listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err == nil && l.w.pipes {
		nc = &pipeEnd{nc, l.w, l.node}
	}
	if err == nil {
		l.w.note(l.node, nc)
	}
	return nc, err
}

func (w *wire) note(node NodeID, nc net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead[node] {
		nc.Close()
	}
	w.conns[node] = append(w.conns[node], nc)
}

func (w *wire) listen(t testing.TB, node NodeID, address string) (net.Listener, string) {
	t.Helper()
	if !w.pipes {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.listening[node] = append(w.listening[node], l)
		return &listener{l, w, node}, l.Addr().String()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	address = fmt.Sprintf("node%d", node)
	w.listeners[address] = l
	w.listening[node] = append(w.listening[node], l)
	return &listener{l, w, node}, address
}

// dialer returns how a node dials.
func (w *wire) dialer(node NodeID) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		w.mu.Lock()
		dead, l := w.dead[node], w.listeners[address]
		w.mu.Unlock()
		if dead {
			return nil, errors.New("the process is dead")
		}
		var nc net.Conn
		var err error
		if !w.pipes {
			nc, err = dialTCP(ctx, address)
		} else if l == nil {
			err = errors.New("nobody listens")
		} else {
			here, there := net.Pipe()
			select {
			case l.conns <- there:
				nc = &pipeEnd{here, w, node}
			case <-l.done:
				err = errors.New("nobody listens")
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		if err == nil {
			w.note(node, nc)
		}
		return nc, err
	}
}

// kill closes all connections of a node at once, as the end of its process does, and lets it dial no more.
func (w *wire) kill(node NodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead[node] = true
	for _, nc := range w.conns[node] {
		if tcp, ok := nc.(*net.TCPConn); ok {
			tcp.SetLinger(0)
		}
		nc.Close()
	}
	w.conns[node] = nil
	for _, l := range w.listening[node] {
		l.Close()
	}
}

// testNode is one node of a test.
type testNode struct {
	*recorder
	id        NodeID
	address   string
	listener  *Listener
	transport *Transport
	config    Config
	log       *lines
}

var testCluster = [16]byte{1, 2, 3}

func diskOf(node NodeID) [16]byte { return [16]byte{0xd1, byte(node)} }

func replica(node NodeID) uint64 { return uint64(node)<<32 | 1 }

// newNode listens, and closes at the end of the test.
func (w *wire) newNode(t testing.TB, id NodeID, address string) *testNode {
	t.Helper()
	n := &testNode{recorder: newRecorder(), id: id, log: &lines{}}
	l, at := w.listen(t, id, address)
	n.address = at
	logger := slog.New(slog.NewTextHandler(n.log, nil))
	n.listener = Listen(l, logger, func(q []byte) []byte { return append([]byte("answer to "), q...) })
	n.config = Config{Cluster: testCluster, Self: id, Disk: diskOf(id), Dial: w.dialer(id), Logger: logger, Handler: n}
	t.Cleanup(func() { n.listener.Close() })
	return n
}

func (n *testNode) join() { n.transport = n.listener.Join(n.config) }

// pair returns two nodes that are up.
func (w *wire) pair(t testing.TB) (a, b *testNode) {
	t.Helper()
	a, b = w.newNode(t, 1, "127.0.0.1:0"), w.newNode(t, 2, "127.0.0.1:0")
	a.config.Peers = []Peer{{1, a.address, diskOf(1)}, {2, b.address, diskOf(2)}}
	b.config.Peers = a.config.Peers
	a.join()
	b.join()
	a.await(t, "up")
	b.await(t, "up")
	return a, b
}

func testMessage(typ pb.MessageType, from, to NodeID, index uint64) *pb.Message {
	return &pb.Message{Type: typ.Enum(), From: new(replica(from)), To: new(replica(to)), Term: new(uint64(7)), Index: new(index)}
}

func appOf(from, to NodeID, index uint64, payloads ...[]byte) *pb.Message {
	m := testMessage(pb.MsgApp, from, to, index)
	for i, p := range payloads {
		m.Entries = append(m.Entries, &pb.Entry{Type: pb.EntryNormal.Enum(), Term: new(uint64(7)), Index: new(index + 1 + uint64(i)), Data: p})
	}
	return m
}

func snapOf(from, to NodeID, data []byte) *pb.Message {
	m := testMessage(pb.MsgSnap, from, to, 0)
	m.Snapshot = &pb.Snapshot{Data: data, Metadata: &pb.SnapshotMetadata{
		Index: new(uint64(99)), Term: new(uint64(6)), ConfState: &pb.ConfState{Voters: []uint64{replica(1), replica(2)}, AutoLeave: new(false)}}}
	return m
}
