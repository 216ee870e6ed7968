package replica

import (
	"math"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"
)

// What no replica in order sends changes nothing, and ends nothing: not at a follower, not at a leader.
func TestMessagesThatCannotBe(t *testing.T) {
	c := newCluster(t, 20, nil)
	l := c.leader()
	l.stored(sequence(0))
	f, _ := c.others(l)
	for _, to := range []*clusterNode{f, l} {
		from := l
		if to == l {
			from = f
		}
		before := to.p.Status()
		for i, m := range impossible(from, to) {
			m.From, m.To = or(m.From, uint64(replicaOf(from.n))), or(m.To, uint64(replicaOf(to.n)))
			m.Term = or(m.Term, uint64(before.Term))
			if to.p.core.judge(m) == nil {
				t.Errorf("message %d to node %d is taken: %v", i, to.n, m)
			}
			to.p.Receive(m)
			c.run()
		}
		if now := to.p.Status(); now.Term != before.Term || now.Offline != nil || now.HighWatermark != before.HighWatermark {
			t.Errorf("status %+v, was %+v", now, before)
		}
	}
	l.stored(sequence(1))
}

func or(have *uint64, instead uint64) *uint64 {
	if have != nil {
		return have
	}
	return &instead
}

func impossible(from, to *clusterNode) []*pb.Message {
	last := uint64(to.p.core.last)
	term := uint64(to.p.core.term)
	entry := func(index, term uint64, data []byte) *pb.Entry {
		return &pb.Entry{Type: pb.EntryNormal.Enum(), Index: &index, Term: &term, Data: data}
	}
	app := func(entries ...*pb.Entry) *pb.Message {
		return &pb.Message{Type: pb.MsgApp.Enum(), Index: &last, LogTerm: &term, Entries: entries}
	}
	snapshot, _ := from.log.Snapshot()
	broken := &pb.Snapshot{Metadata: snapshot.GetMetadata(), Data: append([]byte(nil), snapshot.GetData()...)}
	broken.Data[len(broken.Data)-1]++
	other := &pb.Snapshot{Metadata: &pb.SnapshotMetadata{Index: new(last + 5), Term: &term, ConfState: snapshot.GetMetadata().GetConfState()}, Data: snapshot.GetData()}
	return []*pb.Message{
		{Type: pb.MsgHeartbeat.Enum(), Commit: new(last + 1)},
		{Type: pb.MsgHeartbeatResp.Enum(), Context: []byte{1, 2, 3}},
		{Type: pb.MsgHeartbeatResp.Enum(), Context: []byte{255, 255, 255, 255, 0, 0, 0, 0}},
		{Type: pb.MsgAppResp.Enum(), Index: new(last + 1)},
		{Type: pb.MsgProp.Enum(), Entries: []*pb.Entry{entry(0, 0, []byte("x"))}},
		{Type: pb.MsgHup.Enum()},
		{Type: pb.MsgStorageAppendResp.Enum()},
		{Type: pb.MsgSnapStatus.Enum()},
		{Type: pb.MsgTransferLeader.Enum()},
		{Type: pb.MsgReadIndex.Enum()},
		{Type: pb.MsgVote.Enum(), Term: new(uint64(0))},
		{Type: pb.MsgVote.Enum(), Term: new(uint64(math.MaxInt32))},
		{Type: pb.MsgVote.Enum(), From: new(uint64(replicaOf(9)))},
		{Type: pb.MsgVote.Enum(), From: new(uint64(replicaOf(to.n)))},
		{Type: pb.MsgVote.Enum(), To: new(uint64(replicaOf(from.n)))},
		app(entry(last+2, term, nil)),
		app(entry(last+1, term+1, nil)),
		app(entry(last+1, term-1, nil)),
		app(entry(last+1, term, []byte("neither command nor batch"))),
		app(entry(last+1, term, batchOf(7, 0, 1, 1, []byte("of no term")))),
		app(nil),
		{Type: pb.MsgSnap.Enum()},
		{Type: pb.MsgSnap.Enum(), Snapshot: broken},
		{Type: pb.MsgSnap.Enum(), Snapshot: other},
	}
}
