package peer

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/seglog"
)

func TestMessagesOfAllTypesArrive(t *testing.T) {
	a, b := newWire(false).pair(t)
	for typ := range pb.MessageType(24) {
		if !between[typ] {
			continue
		}
		m := testMessage(typ, 1, 2, 40)
		switch typ {
		case pb.MsgApp:
			m = appOf(1, 2, 40, []byte("one"), nil, []byte("three"))
		case pb.MsgSnap:
			m = snapOf(1, 2, []byte("state"))
		}
		a.transport.Send(5, []*pb.Message{m})
		got := b.await(t, "message")
		if got.node != 1 || got.group != 5 || !alike(m, got.m) {
			t.Errorf("%s has come as %v of group %d from node %d", typ, got.m, got.group, got.node)
		}
	}
	if e := a.await(t, "sent"); !e.ok || e.group != 5 || e.to != seglog.ReplicaID(replica(2)) {
		t.Errorf("the snapshot's end is told as %+v", e)
	}
}

func TestOrderOnEachConnection(t *testing.T) {
	a, b := newWire(false).pair(t)
	random := rand.New(rand.NewPCG(1, 2))
	const n = 3000
	for i := range uint64(n) {
		var payload [][]byte
		if random.IntN(2) == 0 {
			payload = [][]byte{make([]byte, random.IntN(2000))}
		}
		a.transport.Send(1, []*pb.Message{appOf(1, 2, i, payload...), testMessage(pb.MsgAppResp, 1, 2, i)})
		if !a.transport.Tell(2, byte(i), []byte{byte(i >> 8)}) {
			t.Fatal("a word was not taken")
		}
	}
	next := map[string]uint64{}
	for next["told"] < n || next[pb.MsgApp.String()] < n || next[pb.MsgAppResp.String()] < n {
		e := <-b.events
		what, got := e.what, uint64(0)
		switch e.what {
		case "message":
			what, got = e.m.GetType().String(), e.m.GetIndex()
		case "told":
			got = uint64(e.kind) | uint64(e.body[0])<<8
		default:
			t.Fatalf("%+v has come", e)
		}
		if got != next[what] {
			t.Fatalf("%s number %d has come, %d was next", what, got, next[what])
		}
		next[what]++
	}
}

// Whatever is on its way when a process ends: the others are told at once, and nothing of it comes after that.
func TestDownWhenTheProcessEnds(t *testing.T) {
	for _, pipes := range []bool{false, true} {
		w := newWire(pipes)
		a, b := w.pair(t)
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for i := uint64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
					b.transport.Send(1, []*pb.Message{appOf(2, 1, i, make([]byte, 5000)), testMessage(pb.MsgHeartbeat, 2, 1, 0)})
				}
			}
		}()
		a.await(t, "message")
		began := time.Now()
		w.kill(2)
		a.await(t, "down")
		if took := time.Since(began); took > time.Second { // milliseconds, but for a machine that is busy
			t.Errorf("the end of a process was told after %s", took)
		}
		close(stop)
		<-stopped
		if a.transport.Connected(2) {
			t.Error("a node that is gone counts as connected")
		}
		b.listener.Close()
		a.listener.Close()
		for len(a.events) > 0 {
			if e := <-a.events; e.what == "message" || e.what == "down" {
				t.Fatalf("after the end of its process has come %+v", e)
			}
		}
	}
}

func TestReconnect(t *testing.T) {
	w := newWire(false)
	a, b := w.pair(t)
	b.listener.Close()
	a.await(t, "down")
	for range 3 {
		again := w.newNode(t, 2, b.address)
		again.config.Peers = b.config.Peers
		again.join()
		a.await(t, "up")
		again.await(t, "up")
		a.transport.Send(1, []*pb.Message{appOf(1, 2, 1, []byte("again"))})
		if e := again.await(t, "message"); !bytes.Equal(e.m.Entries[0].Data, []byte("again")) {
			t.Errorf("after the restart has come %v", e.m)
		}
		again.listener.Close()
		a.await(t, "down")
	}
}

// A process that has taken the place of another one, whose end nobody has seen, ends it.
func TestAnotherProcessTakesThePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(true)
		a, b := w.pair(t)
		b.transport.config.Dial = func(context.Context, string) (net.Conn, error) { return nil, errors.New("it is dead") }
		again := w.newNode(t, 2, "") // takes over the address; the connections of b stand
		again.config.Peers = b.config.Peers
		again.join()
		a.await(t, "down")
		a.await(t, "up")
		again.await(t, "up")
		synctest.Wait()
		again.transport.Send(1, []*pb.Message{testMessage(pb.MsgVote, 2, 1, 5)})
		a.await(t, "message")
		b.listener.Close()
		closeAll(a, b, again)
	})
}

func closeAll(nodes ...*testNode) {
	for _, n := range nodes {
		n.listener.Close()
	}
}

// One connection that is lost, or a queue that is full, is no end of a process.
func TestLostConnectionIsNotDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(true)
		a, b := w.pair(t)
		a.transport.peers[2].out[data].Load().close(errStalled)
		a.await(t, "up")
		synctest.Wait()
		for len(a.events) > 0 {
			if e := <-a.events; e.what == "down" {
				t.Error("the process was taken for dead")
			}
		}
		if !a.transport.Connected(2) {
			t.Error("the connection was not opened again")
		}
		closeAll(a, b)
	})
}

// A process that hangs is found by its silence, and comes back when it wakes.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(true)
		a, b := w.pair(t)
		time.Sleep(time.Minute)
		if !a.transport.Connected(2) || len(a.events) > 0 {
			t.Fatalf("an idle connection was lost, %d events", len(a.events))
		}
		began := time.Now()
		thaw := w.freeze(2)
		a.await(t, "down")
		if took := time.Since(began); took < 2700*time.Millisecond || took > 3500*time.Millisecond {
			t.Errorf("silence was told after %s", took)
		}
		thaw()
		a.await(t, "up")
		closeAll(a, b)
	})
}

func TestUnreachableIsToldSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(true)
		a := w.newNode(t, 1, "")
		a.config.Peers = []Peer{{2, "node2", diskOf(2)}}
		a.join()
		for range 1000 {
			a.transport.Send(1, []*pb.Message{testMessage(pb.MsgVote, 1, 2, 0), snapOf(1, 2, nil), snapOf(1, 9, nil)})
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		count := map[string]int{}
		for len(a.events) > 0 {
			e := <-a.events
			count[e.what]++
			if e.what == "sent" && e.ok {
				t.Error("a snapshot was sent to nobody")
			}
		}
		if count["unreachable"] < 9 || count["unreachable"] > 11 || count["sent"] != 2000 {
			t.Errorf("told: %v", count)
		}
		if a.transport.Tell(2, 1, nil) || a.transport.Connected(2) || a.transport.Connected(9) {
			t.Error("a node that is not there counts as connected")
		}
		closeAll(a)
	})
}

// blocked is a Handler that takes no messages of group 1 until a channel is closed. (No Handler may do that.)
type blocked struct {
	*recorder
	until chan struct{}
}

func (b *blocked) Message(from NodeID, group seglog.GroupID, m *pb.Message) {
	if group == 1 {
		<-b.until
	}
	b.recorder.Message(from, group, m)
}

// A peer that does not read one connection: its queue is bounded, and the connection ends when nothing moves.
func TestStalledPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(true)
		a, b := w.newNode(t, 1, ""), w.newNode(t, 2, "")
		a.config.Peers = []Peer{{2, b.address, diskOf(2)}}
		b.config.Peers = []Peer{{1, a.address, diskOf(1)}}
		until := make(chan struct{})
		b.config.Handler = &blocked{b.recorder, until}
		a.join()
		b.join()
		a.await(t, "up")
		payload := make([]byte, mib)
		for i := range uint64(100) {
			a.transport.Send(1, []*pb.Message{appOf(1, 2, i, payload)})
		}
		synctest.Wait()
		q := a.transport.peers[2].out[data].Load().queue
		q.mu.Lock()
		if q.bytes > dataQueueMax || q.bytes < dataQueueMax-4*mib {
			t.Errorf("%d bytes wait", q.bytes)
		}
		q.mu.Unlock()
		began := time.Now()
		a.await(t, "unreachable")
		a.await(t, "up") // the connection was closed, and opened again
		if took := time.Since(began); took < 9*time.Second || took > 11*time.Second {
			t.Errorf("the connection was opened again after %s", took)
		}
		for len(a.events) > 0 {
			if e := <-a.events; e.what == "down" {
				t.Error("a slow process was taken for dead")
			}
		}
		close(until)
		a.transport.Send(2, []*pb.Message{appOf(1, 2, 7, payload)})
		for b.await(t, "message").group != 2 {
		}
		closeAll(a, b)
	})
}
