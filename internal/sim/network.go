package sim

import (
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/oncemq/oncemq/internal/seglog"
)

// network carries the messages of replicas. A direction between two nodes has two connections, as the real one has: one
// for what has entries or a snapshot, one for the rest; each delivers in order, unless the swarm has messages overtaken.
type network struct {
	world *world
	links map[[2]uint32]*link // by from and to
}

// link is one direction between two nodes.
type link struct {
	cut  bool
	last [2]time.Duration // when the newest message of each connection arrives
	// resets counts the ends of its connections: what was under way then is lost.
	resets int
}

func newNetwork(w *world) *network {
	n := &network{world: w, links: map[[2]uint32]*link{}}
	for _, a := range w.nodes {
		for _, b := range w.nodes {
			n.links[[2]uint32{a.id, b.id}] = &link{}
		}
	}
	return n
}

func (n *network) link(from, to uint32) *link { return n.links[[2]uint32{from, to}] }

func nodeOf(id uint64) uint32 { return uint32(id >> 32) }

// peers implements replica.Peers for the processes of one node.
type peers struct{ process *process }

// Send implements replica.Peers. It copies what it is given at once, as sending does.
func (p *peers) Send(group seglog.GroupID, messages []*pb.Message) {
	for _, m := range messages {
		p.process.node.world.net.send(p.process, group, proto.Clone(m).(*pb.Message))
	}
}

func (n *network) send(from *process, group seglog.GroupID, m *pb.Message) {
	w := n.world
	to := w.node(nodeOf(m.GetTo()))
	if to == nil || from.ended || nodeOf(m.GetFrom()) != from.node.id {
		w.fail("node %d sends %s of group %d from %x to %x", from.node.id, m.GetType(), group, m.GetFrom(), m.GetTo())
		return
	}
	w.checkSent(m)
	l := n.link(from.node.id, to.id)
	if l.cut || to.process == nil || w.fault(w.swarm.Loss) {
		n.lost(from, group, m)
		return
	}
	n.carry(l, from, to.process, group, m)
	if w.fault(w.swarm.Duplicate) && m.GetType() != pb.MsgSnap {
		n.carry(l, from, to.process, group, proto.Clone(m).(*pb.Message))
	}
}

// carry has a message arrive, unless the connection ends before.
func (n *network) carry(l *link, from, to *process, group seglog.GroupID, m *pb.Message) {
	w := n.world
	connection := 0
	if len(m.GetEntries()) > 0 || m.GetType() == pb.MsgSnap {
		connection = 1
	}
	at := w.now + w.between(50*time.Microsecond, w.swarm.Latency)
	if m.GetType() == pb.MsgSnap {
		at += w.between(0, 20*w.swarm.Latency)
	}
	if w.fault(w.swarm.Reorder) {
		at += w.between(0, 20*w.swarm.Latency)
	} else {
		at = max(at, l.last[connection])
		l.last[connection] = at
	}
	resets := l.resets
	w.after(at-w.now, func() {
		// Every end of a transfer of a snapshot is reported: to a process that is paused it does not come to one in time.
		if l.cut || resets != l.resets || to.ended || to.frozen && m.GetType() == pb.MsgSnap {
			n.lost(from, group, m)
			return
		}
		to.laterFrom(l, 0, func() {
			w.counts[m.GetType().String()]++
			w.trace.add(w.now, "%d>%d g%d %s t%d i%d n%d c%d", from.node.id, to.node.id, group, m.GetType(), m.GetTerm(), m.GetIndex(), len(m.GetEntries()), m.GetCommit())
			if r := to.replicas[group]; r != nil {
				r.raft.Receive(m)
				r.wake()
			}
			if m.GetType() == pb.MsgSnap {
				from.snapshotSent(group, seglog.ReplicaID(m.GetTo()), true)
			}
		})
	})
}

// lost tells the sender that a message did not go out, as far as it is told.
func (n *network) lost(from *process, group seglog.GroupID, m *pb.Message) {
	if m.GetType() == pb.MsgSnap {
		from.snapshotSent(group, seglog.ReplicaID(m.GetTo()), false)
	}
	if n.world.chance(500) {
		from.later(n.world.between(0, 100*time.Millisecond), func() {
			for _, r := range from.ordered() {
				r.raft.Unreachable(nodeOf(m.GetTo()))
			}
			from.wake()
		})
	}
}

func (p *process) snapshotSent(group seglog.GroupID, to seglog.ReplicaID, ok bool) {
	p.later(p.node.world.between(0, p.node.world.swarm.Latency), func() {
		if r := p.replicas[group]; r != nil {
			r.raft.SnapshotSent(to, ok)
			r.wake()
		}
	})
}

// reset ends the connections of two nodes: what is under way is lost, and both hear that the other one's process is gone.
func (n *network) reset(a, b uint32) {
	n.link(a, b).resets++
	n.link(b, a).resets++
	n.hearLost(a, b)
	n.hearLost(b, a)
}

// hearLost tells a node that both connections to the process of another one have ended, unless nothing comes through.
func (n *network) hearLost(at, of uint32) {
	p := n.world.node(at).process
	if p == nil || n.link(of, at).cut {
		return
	}
	p.later(n.world.between(time.Millisecond, 20*time.Millisecond), func() {
		n.world.trace.add(n.world.now, "%d hears that %d is gone", at, of)
		for _, r := range p.ordered() {
			if r.spec.on(of) {
				r.raft.Lost(of)
			}
		}
		p.wake()
	})
}
