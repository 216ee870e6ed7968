package node

import (
	"slices"
	"sync"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/seglog"
)

// Leadership is what a node knows of who leads a partition.
type Leadership struct {
	// Leader is the node that leads and serves the partition; -1: none is known at the moment.
	Leader int32
	// Epoch is the newest term that is known, from 1 upwards. It never goes backwards while the node runs.
	Epoch int32
	// InSync are the nodes whose replicas are in sync, ascending, by the leader's word; of a partition without a known
	// leader, all that have a replica, in the order of the assignment. Nobody may change it.
	InSync []int32
	// Ready says that there is a Leader.
	Ready bool
}

// rowsMax bounds the table: a peer may tell of groups of which this node has not heard yet, but not of any number.
const rowsMax = 2 * meta.PartitionsMax

// leaders is the table of who leads which partition, of the whole cluster. It is filled by this node's replicas and by what
// the other nodes tell of theirs (gossip.go). Nothing that must be right depends on it: a client that it misleads is
// told so by the node that it asks.
//
// The higher term wins. In one term there is at most one leader, and its own word wins: that it is one, and that it is one no
// more.
type leaders struct {
	self uint32 // this node

	mu      sync.Mutex
	rows    map[seglog.GroupID]row
	changed chan struct{} // closed at the next change; nil: nobody waits for it
	// own is what the replicas here said last, of groups that one of them has led in this run.
	own    map[seglog.GroupID]row
	untold map[seglog.GroupID]struct{} // of own, those to tell all peers
	behind map[uint32]bool             // nodes that are to be told all of own
	wake   chan struct{}               // capacity 1: there is something to tell
	// leaving are nodes that have said that they are about to stop: nothing is handed over to them.
	leaving map[uint32]bool
}

// row is what is known of the leadership of one group.
type row struct {
	leader seglog.ReplicaID // 0: none known
	term   batch.Term
	ready  bool
	inSync []seglog.ReplicaID // ascending
}

// nodeOf is the node that a replica is on.
func nodeOf(r seglog.ReplicaID) uint32 { return uint32(r >> 32) }

func (l *leaders) init(self uint32) {
	l.self = self
	l.rows, l.own = make(map[seglog.GroupID]row), make(map[seglog.GroupID]row)
	l.untold, l.behind = make(map[seglog.GroupID]struct{}), make(map[uint32]bool)
	l.wake = make(chan struct{}, 1)
	l.leaving = make(map[uint32]bool)
}

// led takes what a replica here says of its group. It is called from the replica's loop.
func (l *leaders) led(g seglog.GroupID, said replica.Leadership) {
	r := row{leader: said.Leader, term: said.Term, ready: said.Ready, inSync: said.InSync}
	l.mu.Lock()
	defer l.mu.Unlock()
	if g == raft0 { // each node knows it from its own replica; only those who wait for it are told
		l.announce()
		return
	}
	l.learn(l.self, g, r)
	if _, led := l.own[g]; led || nodeOf(r.leader) == l.self {
		l.own[g] = r
		if nodeOf(r.leader) != l.self {
			l.own[g] = row{term: r.term} // who leads instead says so itself
		}
		l.untold[g] = struct{}{}
		l.alert()
	}
}

// told takes what a node says of the groups that its replicas lead, or do not lead any more.
func (l *leaders) told(from uint32, rows []groupRow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range rows {
		l.learn(from, r.group, r.row)
	}
}

// learn enters a row, if it is news.
func (l *leaders) learn(from uint32, g seglog.GroupID, r row) {
	known, ok := l.rows[g]
	if !ok && len(l.rows) >= rowsMax || ok && !r.supersedes(known, from) {
		return
	}
	l.rows[g] = r
	l.announce()
}

// supersedes says whether what a node tells is to be taken in place of what is known.
func (r row) supersedes(known row, from uint32) bool {
	switch {
	case r.term != known.term:
		return r.term > known.term
	case nodeOf(r.leader) == from || nodeOf(known.leader) == from:
		return true
	}
	return known.leader == 0 && r.leader != 0
}

// lost takes note that a node is gone: what it led has no leader that is known to be there. A node that was only cut off
// says again what it leads when it is back.
func (l *leaders) lost(node uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for g, r := range l.rows {
		if r.ready && nodeOf(r.leader) == node {
			r.ready = false
			l.rows[g] = r
		}
	}
	l.announce()
}

// leaves takes note of whether a node is about to stop.
func (l *leaders) leaves(node uint32, soon bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if soon {
		l.leaving[node] = true
	} else {
		delete(l.leaving, node)
	}
}

func (l *leaders) isLeaving(node uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaving[node]
}

// forget drops what is known of groups that are deleted for ever.
func (l *leaders) forget(deleted func(group uint64) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, rows := range []map[seglog.GroupID]row{l.rows, l.own} {
		for g := range rows {
			if deleted(uint64(g)) {
				delete(rows, g)
				delete(l.untold, g)
			}
		}
	}
}

// alert has the untold told.
func (l *leaders) alert() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// changedElsewhere wakes those who wait for what is not in the table, but goes with it.
func (l *leaders) changedElsewhere() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.announce()
}

func (l *leaders) announce() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// next returns what is closed when the table changes.
func (l *leaders) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

// of returns what is known of a group.
func (l *leaders) of(g seglog.GroupID) row {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rows[g]
}

// Leadership returns what this node knows of who leads a partition of a topic: what its own replica says, or what the leader
// told. partition must be one of the topic's.
func (n *Node) Leadership(t *meta.Topic, partition int32) Leadership {
	p := &t.Partitions[partition]
	r := n.leaders.of(seglog.GroupID(p.Group))
	known := Leadership{Leader: -1, Epoch: int32(min(max(r.term, 1), maxTerm)), InSync: p.Replicas}
	// A node that has no replica cannot lead; whoever said so sends no client there.
	if leader := int32(nodeOf(r.leader)); r.ready && slices.Contains(p.Replicas, leader) {
		known.Leader, known.Ready = leader, true
		known.InSync = make([]int32, len(r.inSync))
		for i, replica := range r.inSync {
			known.InSync[i] = int32(nodeOf(replica))
		}
	}
	return known
}

// maxTerm is the last term that Kafka's clients can be told.
const maxTerm = 1<<31 - 1
