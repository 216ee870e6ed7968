package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/seglog"
)

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// A snapshot and the entries of other groups share the connection: neither waits for the end of the other.
func TestSnapshotHoldsNobodyUp(t *testing.T) {
	for _, c := range []struct{ state, apps, app, beforeMin, beforeMax int }{
		{20 * mib, 500, 10 * kib, 500, 500}, // 80 chunks beside 5 batches
		{5 * mib, 40, mib, 15, 25},          // 20 chunks beside 40 batches
	} {
		w := newWire(true)
		a, b := w.pair(t)
		thaw := w.freeze(1)
		state, payload := randomBytes(c.state), randomBytes(c.app)
		a.transport.Send(1, []*pb.Message{snapOf(1, 2, state)})
		for i := range uint64(c.apps) {
			a.transport.Send(2, []*pb.Message{appOf(1, 2, i, payload)})
		}
		thaw()
		before := 0
		for next := 0; next <= c.apps; next++ {
			e := b.await(t, "message")
			if e.group == 1 {
				if before = next; !bytes.Equal(e.m.GetSnapshot().GetData(), state) || e.m.GetSnapshot().GetMetadata().GetIndex() != 99 {
					t.Error("the snapshot has come as another one")
				}
				continue
			}
			if got := int(e.m.GetIndex()); got != next && got != next-1 {
				t.Fatalf("message %d has come, %d was next", got, next)
			}
		}
		if before < c.beforeMin || before > c.beforeMax {
			t.Errorf("%d messages of %d have come before a snapshot of %d bytes", before, c.apps, c.state)
		}
		if e := a.await(t, "sent"); !e.ok || e.group != 1 {
			t.Errorf("its end was told as %+v", e)
		}
		closeAll(a, b)
	}
}

// More snapshots than may be on their way at once, of all sizes, all come, and each end is told once.
func TestManySnapshots(t *testing.T) {
	a, b := newWire(false).pair(t)
	states := [][]byte{nil, {1}, randomBytes(chunkBytes), randomBytes(chunkBytes + 1), randomBytes(3 * mib), randomBytes(2*mib + 7), {2}, {3}, {4}}
	for g, s := range states {
		a.transport.Send(seglog.GroupID(g), []*pb.Message{snapOf(1, 2, s)})
	}
	for range states {
		if e := b.await(t, "message"); !bytes.Equal(e.m.GetSnapshot().GetData(), states[e.group]) {
			t.Errorf("snapshot %d has come with %d bytes", e.group, len(e.m.GetSnapshot().GetData()))
		}
	}
	told := map[seglog.GroupID]bool{}
	for range states {
		e := a.await(t, "sent")
		if !e.ok || told[e.group] {
			t.Errorf("the end of snapshot %d: %+v", e.group, e)
		}
		told[e.group] = true
	}
}

// A connection that ends in the middle of snapshots ends them, and nothing of them is handed over.
func TestSnapshotsEndWithTheConnection(t *testing.T) {
	w := newWire(true)
	a, b := w.pair(t)
	var all []*pb.Message
	for range 6 {
		all = append(all, snapOf(1, 2, randomBytes(5*mib)))
	}
	a.transport.Send(1, all)
	w.kill(2)
	for range all {
		if e := a.await(t, "sent"); e.ok {
			t.Error("a snapshot was cut off and counts as sent")
		}
	}
	b.listener.Close()
	for len(b.events) > 0 {
		if e := <-b.events; e.what == "message" {
			t.Errorf("a part of a snapshot was handed over: %v", e.m.GetType())
		}
	}
}

// Chunks in disorder end the connection, without a panic and without a snapshot.
func TestChunksInDisorder(t *testing.T) {
	begin := func(number uint64, size int) frame {
		head := binary.BigEndian.AppendUint64(nil, number)
		return frame{kindSnapshot, appendMessage(head, 1, snapOf(1, 2, make([]byte, size))), nil}
	}
	chunk := func(number, at uint64, size int) frame {
		return frame{kindChunk, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, number), at), make([]byte, size)}
	}
	for name, frames := range map[string][]frame{
		"twice":       {begin(1, 10), begin(1, 10)},
		"unknown":     {begin(1, 10), chunk(2, 0, 5)},
		"gap":         {begin(1, 10), chunk(1, 0, 5), chunk(1, 6, 1)},
		"again":       {begin(1, 10), chunk(1, 0, 5), chunk(1, 0, 5)},
		"too long":    {begin(1, 10), chunk(1, 0, 11)},
		"empty":       {begin(1, 10), chunk(1, 0, 0)},
		"too many":    {begin(1, 10), begin(2, 10), begin(3, 10), begin(4, 10), begin(5, 10)},
		"not a chunk": {{kindMessage, begin(1, 10).head[8:], nil}},
		"no snapshot": {{kindSnapshot, append(make([]byte, 8), appendMessage(nil, 1, testMessage(pb.MsgVote, 1, 2, 3))...), nil}},
	} {
		handler := newRecorder()
		c := &connection{p: &peer{t: &Transport{config: Config{Self: 2, Handler: handler}}, id: 1}, queue: newQueue(mib)}
		var err error
		for i, f := range frames {
			if err = c.receive(f); err != nil && i < len(frames)-1 {
				t.Errorf("%s: frame %d: %v", name, i, err)
			}
		}
		if !errors.Is(err, errSnapshot) || len(handler.events) > 0 {
			t.Errorf("%s: %v, and %d events", name, err, len(handler.events))
		}
	}
}

// Messages that are not from the peer, or not for this node, are dropped; the next ones come.
func TestStrayMessages(t *testing.T) {
	a, b := newWire(true).pair(t)
	forged := testMessage(pb.MsgVote, 3, 2, 1)
	a.transport.Send(1, []*pb.Message{forged, testMessage(pb.MsgVote, 1, 2, 2)})
	if e := b.await(t, "message"); e.m.GetIndex() != 2 {
		t.Errorf("%v has come", e.m)
	}
}
