package node

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/peer"
	"github.com/oncemq/oncemq/internal/seglog"
)

// The kinds of the one-way messages by which nodes tell each other what they lead.
const (
	// tellLeaders: the body is a list of rows, big-endian: group u64, leader u64 (a replica of the teller, or 0: it leads no
	// more), term u32, flags u8 (1: ready), count u8, replicas in sync u64 each, ascending.
	tellLeaders = 1
	// tellLeaving: the teller is about to stop, and wants no leadership any more.
	tellLeaving = 2
)

const (
	rowBytes = 22 // of a row without the replicas in sync
	// inSyncMax is how many replicas of a group a row can name.
	inSyncMax = 64
	// tellBytes is about how large a message is.
	tellBytes = 256 << 10
	// tellPause is the time in which changes are gathered for one message.
	tellPause = 50 * time.Millisecond

	flagReady = 1
)

// groupRow is a row of a group.
type groupRow struct {
	group seglog.GroupID
	row
}

// gossip tells the other nodes what this one leads, until the node is closed: a change at once, and those behind it
// together.
func (n *Node) gossip() {
	for {
		select {
		case <-n.running.Done():
			return
		case <-n.leaders.wake:
		}
		n.tell()
		select {
		case <-n.running.Done():
			return
		case <-time.After(tellPause):
		}
	}
}

// tell tells each connected peer what it does not know yet. One that is not connected is told everything when it is.
func (n *Node) tell() {
	changes, behind := n.leaders.takeUntold()
	for _, p := range n.cluster.peers {
		node := uint32(p.ID)
		if !n.cluster.transport.Connected(p.ID) {
			continue
		}
		rows := changes
		if behind[node] {
			rows = n.leaders.owned()
		}
		if !n.tellRows(p.ID, rows) {
			n.leaders.catchUp(node)
		}
	}
}

// tellRows reports whether the peer's queue took all.
func (n *Node) tellRows(to peer.NodeID, rows []groupRow) bool {
	for len(rows) > 0 {
		var body []byte
		for len(rows) > 0 && len(body) < tellBytes {
			body = rows[0].appendTo(body)
			rows = rows[1:]
		}
		if !n.cluster.transport.Tell(to, tellLeaders, body) {
			return false
		}
	}
	return true
}

// takeUntold returns what all peers are to be told, and which of them are to be told everything instead.
func (l *leaders) takeUntold() ([]groupRow, map[uint32]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rows := make([]groupRow, 0, len(l.untold))
	for g := range l.untold {
		rows = append(rows, groupRow{g, l.own[g]})
	}
	clear(l.untold)
	behind := l.behind
	l.behind = make(map[uint32]bool)
	return rows, behind
}

// owned returns all that there is to tell.
func (l *leaders) owned() []groupRow {
	l.mu.Lock()
	defer l.mu.Unlock()
	rows := make([]groupRow, 0, len(l.own))
	for g, r := range l.own {
		rows = append(rows, groupRow{g, r})
	}
	return rows
}

// catchUp has a node told everything.
func (l *leaders) catchUp(node uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.behind[node] = true
	l.alert()
}

// heard takes what a peer tells of its leaderships. A body that is not well-formed is passed over as a whole.
func (n *Node) heard(from uint32, body []byte) {
	rows, err := parseRows(from, body)
	if err != nil {
		n.env.Logger.Warn("a node tells of its leaderships in a form that this version does not know", "node", from, "error", err)
		return
	}
	n.leaders.told(from, rows)
}

func (r groupRow) appendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(r.group))
	b = binary.BigEndian.AppendUint64(b, uint64(r.leader))
	b = binary.BigEndian.AppendUint32(b, uint32(r.term))
	flags := byte(0)
	if r.ready {
		flags = flagReady
	}
	inSync := r.inSync[:min(len(r.inSync), inSyncMax)]
	b = append(b, flags, byte(len(inSync)))
	for _, id := range inSync {
		b = binary.BigEndian.AppendUint64(b, uint64(id))
	}
	return b
}

var errGossip = errors.New("malformed leadership row")

// parseRows reads what a node tells: a leadership of its own, or that it has none.
func parseRows(from uint32, body []byte) ([]groupRow, error) {
	rows := make([]groupRow, 0, len(body)/(rowBytes+3*8))
	for len(body) > 0 {
		if len(body) < rowBytes {
			return nil, errGossip
		}
		r := groupRow{group: seglog.GroupID(binary.BigEndian.Uint64(body)), row: row{
			leader: seglog.ReplicaID(binary.BigEndian.Uint64(body[8:])),
			term:   batch.Term(binary.BigEndian.Uint32(body[16:])),
		}}
		flags, count := body[20], int(body[21])
		body = body[rowBytes:]
		r.ready = flags == flagReady
		leads := r.leader != 0
		if flags > flagReady || r.group == raft0 || r.term == 0 || r.term > maxTerm ||
			leads && nodeOf(r.leader) != from || !leads && (r.ready || count > 0) ||
			count > inSyncMax || len(body) < 8*count {
			return nil, errGossip
		}
		for range count {
			r.inSync = append(r.inSync, seglog.ReplicaID(binary.BigEndian.Uint64(body)))
			body = body[8:]
		}
		if !slices.IsSortedFunc(r.inSync, cmp.Compare[seglog.ReplicaID]) {
			return nil, errGossip
		}
		rows = append(rows, r)
	}
	return rows, nil
}
