package peer

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/oncemq/oncemq/internal/seglog"
)

type replicaID = seglog.ReplicaID

// inbox is what the reader of an accepted data connection keeps: the snapshots that have begun to come.
type inbox struct {
	coming map[uint64]*coming
}

// coming is a snapshot of which not everything has come.
type coming struct {
	message *received
	data    []byte
}

var errSnapshot = errors.New("a snapshot comes in disorder")

// receive carries out one frame.
func (c *connection) receive(f frame) error {
	switch f.kind {
	case kindPing:
		c.queue.due(kindPong)
	case kindBeats:
		return c.receiveBeats(f.head)
	case kindMessage:
		m, err := parseMessage(f.head, f.payload)
		if err != nil {
			return err
		}
		if m.message.Snapshot != nil {
			return fmt.Errorf("%w: not in chunks", errSnapshot)
		}
		c.deliver(m)
	case kindSnapshot:
		return c.beginSnapshot(f.head)
	case kindChunk:
		return c.receiveChunk(f.head, f.payload)
	case kindTell:
		if len(f.head) != 1 {
			return errMessage
		}
		c.p.t.config.Handler.Told(c.p.id, f.head[0], f.payload)
	case kindCall:
		return c.receiveCall(f.head, f.payload)
	case kindCancel:
		return c.receiveCancel(f.head)
	case kindReply:
		return c.receiveReply(f.head, f.payload)
	}
	return nil
}

func (c *connection) receiveBeats(head []byte) error {
	for f := (fields{src: head}); len(f.src) > 0; {
		m, err := parseBeat(&f)
		if err != nil {
			return err
		}
		c.deliver(m)
	}
	return nil
}

// deliver hands a message over, if it is from a replica of this peer and for one of this node.
func (c *connection) deliver(m *received) {
	t, to, from := c.p.t, replicaID(m.message.GetTo()), replicaID(m.message.GetFrom())
	if NodeOf(to) != t.config.Self || NodeOf(from) != c.p.id {
		t.log.warn("dropped messages that are not from a replica of the node they came from, or not for one of this node",
			"from_node", c.p.id, "group", m.group, "from", from, "to", to)
		return
	}
	t.config.Handler.Message(c.p.id, m.group, &m.message)
}

func (c *connection) beginSnapshot(head []byte) error {
	if len(head) < 8 {
		return errMessage
	}
	m, err := parseMessage(head[8:], nil)
	if err != nil {
		return err
	}
	number := binary.BigEndian.Uint64(head)
	switch b := &c.inbox; {
	case m.message.Snapshot == nil || b.coming[number] != nil:
		return fmt.Errorf("%w: number %d begins again, or is none", errSnapshot, number)
	case m.snapshotIn == 0:
		c.deliver(m)
		return nil
	case len(b.coming) >= snapshotsOpen:
		return fmt.Errorf("%w: more than %d at once", errSnapshot, snapshotsOpen)
	case b.coming == nil:
		b.coming = make(map[uint64]*coming)
	}
	c.inbox.coming[number] = &coming{message: m}
	return nil
}

// receiveChunk appends to a snapshot, whose room grows as its bytes arrive, and delivers it when it is whole.
func (c *connection) receiveChunk(head, payload []byte) error {
	f := fields{src: head}
	number, at := f.u64(), f.u64()
	s := c.inbox.coming[number]
	if !f.done() || s == nil || at != uint64(len(s.data)) || len(payload) == 0 || len(s.data)+len(payload) > s.message.snapshotIn {
		return fmt.Errorf("%w: number %d, %d bytes at %d", errSnapshot, number, len(payload), at)
	}
	for len(payload) > 0 {
		if len(s.data) == cap(s.data) {
			s.data = grown(s.data, s.message.snapshotIn)
		}
		n := min(len(payload), cap(s.data)-len(s.data))
		s.data = append(s.data, payload[:n]...)
		payload = payload[n:]
	}
	if len(s.data) == s.message.snapshotIn {
		delete(c.inbox.coming, number)
		s.message.message.Snapshot.Data = s.data
		c.deliver(s.message)
	}
	return nil
}
