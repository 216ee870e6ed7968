package peer

import (
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/seglog"
)

// Connections break at any moment. Messages are lost then, but none comes twice or out of order, each snapshot's end is
// told once, and Up and Down are told in turn.
func TestBrokenConnections(t *testing.T) {
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) { breakConnections(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func breakConnections(t *testing.T, random *rand.Rand) {
	w := newWire(true)
	a, b := w.pair(t)
	const rounds = 200
	snapshots := 0
	for i := range uint64(rounds) {
		a.transport.Send(1, []*pb.Message{appOf(1, 2, i, make([]byte, random.IntN(300*kib))), testMessage(pb.MsgAppResp, 1, 2, i)})
		a.transport.Tell(2, byte(i), nil)
		if random.IntN(4) == 0 {
			snapshots++
			a.transport.Send(seglog.GroupID(100+i), []*pb.Message{snapOf(1, 2, make([]byte, random.IntN(mib)))})
		}
		switch random.IntN(6) {
		case 0:
			w.breakOne(random)
		case 1:
			time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
		case 2:
			synctest.Wait()
		}
	}
	time.Sleep(3 * time.Second)
	if !a.transport.Connected(2) || !b.transport.Connected(1) {
		t.Error("the nodes have not found each other again")
	}
	closeAll(a, b)

	last, came := map[string]uint64{}, 0
	for len(b.events) > 0 {
		e := <-b.events
		what, number := e.what, uint64(e.kind)
		if e.what == "message" && e.m.GetType() == pb.MsgSnap {
			came++
			continue
		}
		if e.what == "message" {
			what, number = e.m.GetType().String(), e.m.GetIndex()
		} else if e.what != "told" {
			continue
		}
		if number+1 <= last[what] {
			t.Fatalf("%s number %d has come behind %d", what, number, last[what]-1)
		}
		last[what] = number + 1
	}
	ends, arrived := map[seglog.GroupID]int{}, 0
	for len(a.events) > 0 {
		if e := <-a.events; e.what == "sent" {
			if ends[e.group]++; e.ok {
				arrived++
			}
		}
	}
	for group, n := range ends {
		if n != 1 {
			t.Errorf("the end of snapshot %d was told %d times", group, n)
		}
	}
	if len(ends) != snapshots || came > arrived || came == 0 {
		t.Errorf("of %d snapshots %d have come, %d were told as sent, and %d ends were told", snapshots, came, arrived, len(ends))
	}
}

// breakOne closes one of the connections of the wire.
func (w *wire) breakOne(random *rand.Rand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	node := NodeID(1 + random.IntN(2))
	if all := w.conns[node]; len(all) > 0 {
		all[max(0, len(all)-1-random.IntN(4))].Close()
	}
}

// Who answers a dialer is looked at too, and hears why it is not wanted.
func TestWrongAnswers(t *testing.T) {
	right := accept{1, testCluster, 2, diskOf(2), 77}
	for text, change := range map[string]func(*accept){
		"has chosen version 2":    func(a *accept) { a.version = 2 },
		"node 2 belongs to":       func(a *accept) { a.cluster[0] = 9 },
		"and node 3 has answered": func(a *accept) { a.node = 3 },
		"the disk of node 2 is":   func(a *accept) { a.disk[0] = 9 },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWire(true)
			d := w.newNode(t, 1, "")
			l, address := w.listen(t, 2, "")
			d.config.Peers = []Peer{{2, address, diskOf(2)}}
			d.join()
			nc, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			in := newFrameReader(nc, kib)
			in.expect = kindSet(kindHello, kindRefuse)
			in.magic()
			if f, err := in.next(); err != nil || f.kind != kindHello {
				t.Fatalf("the dialer has begun with %d, %v", f.kind, err)
			}
			a := right
			change(&a)
			writeFrame(nc, kindAccept, a.append(nil), nil)
			f, err := in.next()
			if err != nil || f.kind != kindRefuse {
				t.Errorf("%q was answered with %d, %v", text, f.kind, err)
			}
			nc.Close()
			synctest.Wait()
			if d.log.count(text) != 1 || len(d.events) > 0 {
				t.Errorf("the log:\n%s", d.log.text())
			}
			l.Close()
			closeAll(d)
		})
	}
}

// The heartbeats of all groups that wait are one frame.
func TestHeartbeatsShareAFrame(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	c := newConnection(newPeer(&Transport{ticks: new(ticksOfTest)}, Peer{ID: 2}), here, newFrameReader(here, kib), control, true, 1)
	for g := range seglog.GroupID(1000) {
		m := testMessage(pb.MsgHeartbeat, 1, 2, 0)
		c.queue.push(item{group: g, message: m, size: itemBytes})
	}
	go func() {
		c.flush()
		here.Close()
	}()
	in := newFrameReader(there, kib)
	in.expect = controlIn
	f, err := in.next()
	if err != nil || f.kind != kindBeats || len(f.head) != 1000*beatBytes {
		t.Errorf("the first frame is of kind %d with %d bytes, %v", f.kind, len(f.head), err)
	}
	if f, err := in.next(); err == nil {
		t.Errorf("a further frame is of kind %d", f.kind)
	}
}

// What no node would take is dropped here, and told.
func TestMessagesThatAreTooLarge(t *testing.T) {
	a, b := newWire(true).pair(t)
	block := make([]byte, 41*mib)
	a.transport.Send(1, []*pb.Message{appOf(1, 2, 1, block, block)})
	a.await(t, "unreachable")
	a.transport.Send(1, []*pb.Message{snapOf(1, 2, make([]byte, snapshotMax+1))})
	if e := a.await(t, "sent"); e.ok {
		t.Error("a snapshot that is too large was sent")
	}
	if a.transport.Tell(2, 1, make([]byte, tellMax+1)) {
		t.Error("a word that is too large was taken")
	}
	a.transport.Send(1, []*pb.Message{appOf(1, 2, 3, block[:40*mib], block[:40*mib])})
	if e := b.await(t, "message"); e.m.GetIndex() != 3 || len(e.m.Entries[1].Data) != 40*mib {
		t.Error("the largest message has come as another one")
	}
}
