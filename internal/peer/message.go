package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/seglog"
)

// Sizes in bytes of the parts of a message's head.
const (
	messageBytes = 8 + 1 + 1 + 8*8 + 4 + 4   // without context, entries and snapshot
	entryBytes   = 1 + 8 + 8 + 4             // without its data
	metaBytes    = 8 + 8 + 8 + 1 + 4*4       // of a snapshot, without members
	beatBytes    = 8 + 1 + 8 + 8 + 8 + 8 + 1 // without its context
)

// The flags of a message.
const (
	flagReject   = 1
	flagSnapshot = 2
	flagsKnown   = flagReject | flagSnapshot
)

// The flags of a beat.
const (
	beatResponse   = 1
	beatContextMax = 255
)

var errMessage = errors.New("a message cannot be read")

// between are the types of messages that one replica sends another. MsgProp is none of them: proposals are not
// forwarded, since a leader alone gives batches their offsets.
var between = map[pb.MessageType]bool{
	pb.MsgApp: true, pb.MsgAppResp: true, pb.MsgVote: true, pb.MsgVoteResp: true, pb.MsgSnap: true,
	pb.MsgHeartbeat: true, pb.MsgHeartbeatResp: true, pb.MsgTransferLeader: true, pb.MsgTimeoutNow: true,
	pb.MsgReadIndex: true, pb.MsgReadIndexResp: true, pb.MsgPreVote: true, pb.MsgPreVoteResp: true,
}

// measure returns the sizes of a message's head, and of its payload without a snapshot's bytes.
func measure(m *pb.Message) (head, payload int) {
	head = messageBytes + len(m.GetContext()) + entryBytes*len(m.GetEntries())
	for _, e := range m.GetEntries() {
		payload += len(e.GetData())
	}
	if m.GetType() == pb.MsgSnap {
		c := m.GetSnapshot().GetMetadata().GetConfState()
		members := len(c.GetVoters()) + len(c.GetLearners()) + len(c.GetVotersOutgoing()) + len(c.GetLearnersNext())
		head += metaBytes + 8*members
	}
	return head, payload
}

// appendMessage appends the head of a message:
//
//	group u64, type u8, flags u8 (1 reject, 2 snapshot), to u64, from u64, term u64, log term u64, index u64, commit u64,
//	reject hint u64, vote u64, u32 length, context, u32 count, entries {type u8, term u64, index u64, length u32}
//	of a MsgSnap: index u64, term u64, length of the snapshot u64, auto leave u8,
//	    voters, learners, outgoing voters, next learners {u32 count, u64 each}
//
// The data of the entries, one after the other, are the frame's payload.
func appendMessage(dst []byte, group seglog.GroupID, m *pb.Message) []byte {
	order := binary.BigEndian
	flags, snapshot := byte(0), m.GetType() == pb.MsgSnap
	if m.GetReject() {
		flags |= flagReject
	}
	if snapshot {
		flags |= flagSnapshot
	}
	dst = order.AppendUint64(dst, uint64(group))
	dst = append(dst, byte(m.GetType()), flags)
	for _, v := range [...]uint64{
		m.GetTo(), m.GetFrom(), m.GetTerm(), m.GetLogTerm(), m.GetIndex(), m.GetCommit(), m.GetRejectHint(), m.GetVote(),
	} {
		dst = order.AppendUint64(dst, v)
	}
	dst = order.AppendUint32(dst, uint32(len(m.GetContext())))
	dst = append(dst, m.GetContext()...)
	dst = order.AppendUint32(dst, uint32(len(m.GetEntries())))
	for _, e := range m.GetEntries() {
		dst = append(dst, byte(e.GetType()))
		dst = order.AppendUint64(dst, e.GetTerm())
		dst = order.AppendUint64(dst, e.GetIndex())
		dst = order.AppendUint32(dst, uint32(len(e.GetData())))
	}
	if snapshot {
		dst = appendSnapshot(dst, m.GetSnapshot())
	}
	return dst
}

func appendSnapshot(dst []byte, s *pb.Snapshot) []byte {
	order := binary.BigEndian
	dst = order.AppendUint64(dst, s.GetMetadata().GetIndex())
	dst = order.AppendUint64(dst, s.GetMetadata().GetTerm())
	dst = order.AppendUint64(dst, uint64(len(s.GetData())))
	members, leave := s.GetMetadata().GetConfState(), byte(0)
	if members.GetAutoLeave() {
		leave = 1
	}
	dst = append(dst, leave)
	for _, ids := range [...][]uint64{
		members.GetVoters(), members.GetLearners(), members.GetVotersOutgoing(), members.GetLearnersNext(),
	} {
		dst = order.AppendUint32(dst, uint32(len(ids)))
		for _, id := range ids {
			dst = order.AppendUint64(dst, id)
		}
	}
	return dst
}

// received is a message with the values that it points to.
type received struct {
	message    pb.Message
	kind       pb.MessageType
	values     [8]uint64
	reject     bool
	group      seglog.GroupID
	snapshotIn int // bytes of the snapshot that follow in chunks
}

// parseMessage reads what appendMessage wrote. The data of the entries are parts of the payload; of the head nothing is
// kept.
func parseMessage(head, payload []byte) (*received, error) {
	f := fields{src: head}
	r := &received{group: seglog.GroupID(f.u64())}
	r.kind = pb.MessageType(f.u8())
	flags := f.u8()
	r.reject = flags&flagReject != 0
	for i := range r.values {
		r.values[i] = f.u64()
	}
	v, m := &r.values, &r.message
	m.Type, m.Reject = &r.kind, &r.reject
	m.To, m.From, m.Term, m.LogTerm = &v[0], &v[1], &v[2], &v[3]
	m.Index, m.Commit, m.RejectHint, m.Vote = &v[4], &v[5], &v[6], &v[7]
	if context := f.span(int(f.u32())); len(context) > 0 {
		m.Context = bytes.Clone(context)
	}
	if !between[r.kind] || flags&^flagsKnown != 0 || (flags&flagSnapshot != 0) != (r.kind == pb.MsgSnap) {
		return nil, fmt.Errorf("%w: type %d, flags %#x", errMessage, r.kind, flags)
	}
	if err := r.entries(&f, payload); err != nil {
		return nil, err
	}
	if r.kind == pb.MsgSnap {
		r.snapshot(&f)
	}
	if !f.done() || r.snapshotIn < 0 || r.snapshotIn > snapshotMax {
		return nil, fmt.Errorf("%w: %s of %d bytes", errMessage, r.kind, len(head))
	}
	return r, nil
}

// receivedEntry is an entry with the values that it points to.
type receivedEntry struct {
	entry       pb.Entry
	kind        pb.EntryType
	term, index uint64
}

func (r *received) entries(f *fields, payload []byte) error {
	n := f.count(entryBytes)
	if n > 0 {
		all := make([]receivedEntry, n)
		r.message.Entries = make([]*pb.Entry, n)
		for i := range all {
			e := &all[i]
			e.kind, e.term, e.index = pb.EntryType(f.u8()), f.u64(), f.u64()
			e.entry.Type, e.entry.Term, e.entry.Index = &e.kind, &e.term, &e.index
			size := int(f.u32())
			if size > len(payload) || e.kind > pb.EntryConfChangeV2 {
				return fmt.Errorf("%w: an entry of type %d and %d bytes, of which %d are there", errMessage, e.kind, size, len(payload))
			}
			if size > 0 {
				e.entry.Data = payload[:size:size]
			}
			payload = payload[size:]
			r.message.Entries[i] = &e.entry
		}
	}
	if len(payload) > 0 {
		return fmt.Errorf("%w: %d bytes follow its entries", errMessage, len(payload))
	}
	return nil
}

func (r *received) snapshot(f *fields) {
	index, term := f.u64(), f.u64()
	r.snapshotIn = int(min(f.u64(), snapshotMax+1))
	leave := f.u8() != 0
	members := &pb.ConfState{AutoLeave: &leave}
	for _, ids := range [...]*[]uint64{&members.Voters, &members.Learners, &members.VotersOutgoing, &members.LearnersNext} {
		if n := f.count(8); n > 0 {
			*ids = make([]uint64, n)
			for i := range *ids {
				(*ids)[i] = f.u64()
			}
		}
	}
	r.message.Snapshot = &pb.Snapshot{Metadata: &pb.SnapshotMetadata{ConfState: members, Index: &index, Term: &term}}
}

// isBeat tells whether a message is a heartbeat, or the response to one, with nothing but what appendBeat writes.
func isBeat(m *pb.Message) bool {
	return (m.GetType() == pb.MsgHeartbeat || m.GetType() == pb.MsgHeartbeatResp) && len(m.GetContext()) <= beatContextMax &&
		len(m.GetEntries()) == 0 && !m.GetReject() && m.GetLogTerm()|m.GetIndex()|m.GetRejectHint()|m.GetVote() == 0
}

// appendBeat appends one heartbeat, of which a frame holds many:
//
//	group u64, flags u8 (1 response), to u64, from u64, term u64, commit u64, u8 length, context
func appendBeat(dst []byte, group seglog.GroupID, m *pb.Message) []byte {
	order := binary.BigEndian
	dst = order.AppendUint64(dst, uint64(group))
	flags := byte(0)
	if m.GetType() == pb.MsgHeartbeatResp {
		flags = beatResponse
	}
	dst = append(dst, flags)
	for _, v := range [...]uint64{m.GetTo(), m.GetFrom(), m.GetTerm(), m.GetCommit()} {
		dst = order.AppendUint64(dst, v)
	}
	dst = append(dst, byte(len(m.GetContext())))
	return append(dst, m.GetContext()...)
}

// parseBeat takes one heartbeat off the front of a frame's head.
func parseBeat(f *fields) (*received, error) {
	r := &received{group: seglog.GroupID(f.u64()), kind: pb.MsgHeartbeat}
	flags := f.u8()
	if flags == beatResponse {
		r.kind = pb.MsgHeartbeatResp
	}
	v, m := &r.values, &r.message
	m.Type = &r.kind
	m.To, m.From, m.Term, m.Commit = &v[0], &v[1], &v[2], &v[3]
	for i := range 4 {
		v[i] = f.u64()
	}
	if context := f.span(int(f.u8())); len(context) > 0 {
		m.Context = bytes.Clone(context)
	}
	if f.bad || flags > beatResponse {
		return nil, fmt.Errorf("%w: a heartbeat with flags %#x", errMessage, flags)
	}
	return r, nil
}
