package peer

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
)

// Transport sends to the peers and hands what comes from them to the Handler. Its methods are for any goroutine.
type Transport struct {
	config  Config
	log     *seldom
	ticks   *atomic.Int64
	process uint64 // a random number, by which peers tell this process from the next one of this node
	peers   map[NodeID]*peer
	list    []*peer // the same, in the order of Config.Peers

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	strays  failures       // snapshots for nodes that are no peers
	running sync.WaitGroup // connections, dialers, calls that are being answered, and the tick under way

	mu      sync.Mutex
	closing bool // nothing is added to running from outside of it any more
}

func newTransport(cfg Config, ticks *atomic.Int64) *Transport {
	if cfg.Dial == nil {
		cfg.Dial = dialTCP
	}
	t := &Transport{config: cfg, log: newSeldom(cfg.Logger, ticks), ticks: ticks, process: newProcess(), peers: make(map[NodeID]*peer)}
	t.ctx, t.stop = context.WithCancel(context.Background())
	for _, is := range cfg.Peers {
		if is.ID == cfg.Self {
			continue
		}
		invariant.Check(t.peers[is.ID] == nil, "peer %d is configured twice", is.ID)
		p := newPeer(t, is)
		t.peers[is.ID] = p
		t.list = append(t.list, p)
	}
	for _, p := range t.list {
		for ch := range channels {
			t.running.Go(func() { p.keepDialing(ch) })
		}
	}
	return t
}

// newProcess returns a number that no other process has.
func newProcess() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// Send hands messages of Raft over, each to the node of its To. It never blocks. It owns the messages from now on, but for
// the data of entries and snapshots, which must not change. A message that does not fit, is too large, or is for a node to
// which there is no connection is dropped: Handler.Unreachable tells of it, and Handler.SnapshotSent of a snapshot.
func (t *Transport) Send(group seglog.GroupID, messages []*pb.Message) {
	for _, m := range messages {
		t.send(group, m)
	}
}

func (t *Transport) send(group seglog.GroupID, m *pb.Message) {
	p, snapshot := t.peers[NodeOf(replicaOf(m))], m.GetType() == pb.MsgSnap
	if p == nil {
		if snapshot {
			t.strays.add(group, replicaOf(m))
		}
		return
	}
	ch := control
	if snapshot || m.GetType() == pb.MsgApp {
		ch = data
	}
	if c := p.out[ch].Load(); c != nil && t.fits(group, m) {
		v := gone
		if snapshot {
			v = c.queue.pushSnapshot(group, m)
		} else {
			head, payload := measure(m)
			v = c.queue.push(item{group: group, message: m, size: payload + head + itemBytes + entryCost*len(m.GetEntries())})
		}
		if v == taken {
			return
		}
	}
	p.dropped.Store(true)
	if snapshot {
		p.failures.add(group, replicaOf(m))
	}
}

// fits tells whether the other side will take a message.
func (t *Transport) fits(group seglog.GroupID, m *pb.Message) bool {
	head, payload := measure(m)
	snapshot := len(m.GetSnapshot().GetData())
	if head+8 > messageHeadMax || payload > messagePayloadMax || snapshot > snapshotMax || m.GetType() == pb.MsgSnap && payload > 0 {
		t.log.warn("dropped messages that are larger than allowed between nodes",
			"group", group, "type", m.GetType().String(), "head", head, "entries", payload, "snapshot", snapshot)
		return false
	}
	return true
}

// Tell sends a message to another node's Handler.Told. The body, of at most 1 MiB, must not change any more. It returns
// false, and nothing is sent, when there is no connection, or too much waits for it already. Of what it took, what has not
// arrived when the connection is lost is lost too.
func (t *Transport) Tell(node NodeID, kind uint8, body []byte) bool {
	p := t.peers[node]
	if p == nil || len(body) > tellMax {
		return false
	}
	c := p.out[control].Load()
	return c != nil && c.queue.push(item{kind: kindTell, head: []byte{kind}, body: body, size: itemBytes + len(body)}) == taken
}

// Call has another node's Handler.Call answer. Body and reply have at most 4 MiB each; the body must not change until
// Call has returned, nor after it when it has failed. The error is a *RemoteError when the handler, or its node for want of
// room, has answered with one, ErrNotConnected, ErrBusy, ErrTooLarge, or the context's. After ErrNotConnected and the
// context's error the call may have been carried out.
func (t *Transport) Call(ctx context.Context, node NodeID, method uint8, body []byte) ([]byte, error) {
	p := t.peers[node]
	if p == nil {
		return nil, ErrNotConnected
	}
	if len(body) > callMax {
		return nil, ErrTooLarge
	}
	c := p.out[control].Load()
	if c == nil {
		return nil, ErrNotConnected
	}
	return c.call(ctx, method, body)
}

// Connected tells whether both connections to a node stand.
func (t *Transport) Connected(node NodeID) bool {
	p := t.peers[node]
	return p != nil && p.connected()
}

// Close ends all connections to peers and waits until nothing of the Transport runs any more, calls that are being
// answered included: their contexts end. It may be called again. It always returns nil.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closing = true
	t.mu.Unlock()
	t.stop()
	for _, p := range t.list {
		p.mu.Lock()
		p.cut(stopping)
		p.changed.Broadcast()
		p.mu.Unlock()
	}
	t.running.Wait()
	return nil
}

// stopped tells whether Close was called.
func (t *Transport) stopped() bool { return t.ctx.Err() != nil }

// run runs f as a part of the transport, unless that is closing.
func (t *Transport) run(f func()) {
	t.mu.Lock()
	if t.closing {
		t.mu.Unlock()
		return
	}
	t.running.Add(1)
	t.mu.Unlock()
	defer t.running.Done()
	f()
}

// tick is called every 100 ms.
func (t *Transport) tick(now int64) {
	t.run(func() {
		for _, f := range t.strays.take() {
			t.config.Handler.SnapshotSent(f.group, f.to, false)
		}
		for _, p := range t.list {
			p.tick(now)
		}
	})
}
