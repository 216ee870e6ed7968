package peer

import (
	"encoding/binary"
	"net"

	pb "go.etcd.io/raft/v3/raftpb"
)

// outbox is what a connection's writer keeps from one write to the next.
type outbox struct {
	batch  []item
	turn   int         // of the snapshots
	small  []byte      // prefixes and heads of one write
	cut    int         // where the part of small begins that is not in pieces yet
	beats  []byte      // the frame of heartbeats
	pieces net.Buffers // what is to be written, in order
	writev net.Buffers // the part of it that is being written
}

// outboxKept is the largest buffer that an outbox keeps.
const outboxKept = 256 * kib

// write is the connection's writer. It ends with the connection.
func (c *connection) write() {
	for {
		select {
		case <-c.done:
			return
		case <-c.queue.wake:
		}
		for c.flush() {
		}
	}
}

// flush writes one batch of what waits. It returns false when nothing waited, or the connection has ended.
func (c *connection) flush() bool {
	o := &c.outbox
	batch, s, beat := c.queue.take(o.batch[:0], o.turn)
	if len(batch) == 0 && s == nil && beat == 0 {
		return false
	}
	o.begin()
	if beat != 0 {
		o.frame(beat, nil, nil)
	}
	for i := range batch {
		o.item(&batch[i])
	}
	if len(o.beats) > prefixBytes {
		seal(o.beats, kindBeats, 0)
		o.payload(o.beats)
	}
	if s != nil {
		o.chunk(s)
		o.turn++
	}
	err := c.send()
	for i := range batch {
		c.forget(batch[i])
	}
	clear(batch)
	if o.batch = batch; cap(batch) > outboxKept/itemBytes {
		o.batch = nil
	}
	if err != nil {
		c.close(err)
		return false
	}
	if s != nil && s.sent == len(s.bytes()) {
		c.queue.finish(s)
		c.p.t.config.Handler.SnapshotSent(s.group, replicaOf(s.message), true)
	}
	return true
}

// forget is called once for each item that has left the queue, written or not.
func (c *connection) forget(i item) {
	if i.slot {
		<-c.p.slots
	}
}

// begin makes the outbox empty.
func (o *outbox) begin() {
	if cap(o.small) > outboxKept {
		o.small = nil
	}
	if cap(o.beats) > outboxKept {
		o.beats = nil
	}
	o.small, o.cut = o.small[:0], 0
	o.beats = append(o.beats[:0], make([]byte, prefixBytes)...)
	o.pieces = o.pieces[:0]
}

// item encodes one thing.
func (o *outbox) item(i *item) {
	switch {
	case i.message == nil:
		o.frame(i.kind, i.head, i.body)
	case isBeat(i.message):
		o.beats = appendBeat(o.beats, i.group, i.message)
	default:
		_, payload := measure(i.message)
		start := o.open()
		o.small = appendMessage(o.small, i.group, i.message)
		seal(o.small[start:], kindMessage, payload)
		for _, e := range i.message.GetEntries() {
			o.payload(e.GetData())
		}
	}
}

// open begins a frame in small.
func (o *outbox) open() int {
	start := len(o.small)
	o.small = append(o.small, make([]byte, prefixBytes)...)
	return start
}

func (o *outbox) frame(k kind, head, payload []byte) {
	start := o.open()
	o.small = append(o.small, head...)
	seal(o.small[start:], k, len(payload))
	o.payload(payload)
}

// payload puts bytes behind what is encoded, without copying them.
func (o *outbox) payload(b []byte) {
	if len(b) > 0 {
		o.sweep()
		o.pieces = append(o.pieces, b)
	}
}

// sweep makes one piece of what was encoded since the last one. (When small moves to a larger array later, pieces that
// are parts of the old one stay as they are.)
func (o *outbox) sweep() {
	if len(o.small) > o.cut {
		o.pieces = append(o.pieces, o.small[o.cut:])
		o.cut = len(o.small)
	}
}

// chunk encodes the next part of a snapshot.
func (o *outbox) chunk(s *sending) {
	order := binary.BigEndian
	if !s.begun {
		s.begun = true
		start := o.open()
		o.small = order.AppendUint64(o.small, s.number)
		o.small = appendMessage(o.small, s.group, s.message)
		seal(o.small[start:], kindSnapshot, 0)
	}
	all := s.bytes()
	if part := all[s.sent:min(len(all), s.sent+chunkBytes)]; len(part) > 0 {
		start := o.open()
		o.small = order.AppendUint64(o.small, s.number)
		o.small = order.AppendUint64(o.small, uint64(s.sent))
		seal(o.small[start:], kindChunk, len(part))
		o.payload(part)
		s.sent += len(part)
	}
}

// send writes all pieces, at most pieceBytes at a time, so that a write that does not move can be told from a large one.
func (c *connection) send() error {
	o := &c.outbox
	o.sweep()
	rest, scratch := o.pieces, o.writev
	defer func() {
		clear(o.pieces)
		o.writev = scratch[:0]
	}()
	for len(rest) > 0 {
		o.writev = scratch[:0]
		for bytes := 0; len(rest) > 0 && bytes < pieceBytes; {
			n := min(len(rest[0]), pieceBytes-bytes)
			o.writev = append(o.writev, rest[0][:n])
			bytes += n
			if rest[0] = rest[0][n:]; len(rest[0]) == 0 {
				rest = rest[1:]
			}
		}
		scratch = o.writev
		c.writing.Store(max(1, c.p.t.ticks.Load()))
		_, err := o.writev.WriteTo(c.nc)
		c.writing.Store(0)
		if err != nil {
			return err
		}
	}
	return nil
}

// replicaOf is to whom a message goes.
func replicaOf(m *pb.Message) replicaID { return replicaID(m.GetTo()) }
