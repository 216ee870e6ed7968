package replica

import (
	"context"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/seglog"
)

// Peers carries Raft's messages to the other replicas of a group.
type Peers interface {
	// Send hands messages over, each to the node of its To. It never blocks and owns the messages; the data of their
	// entries must not be changed. What does not fit is dropped, and Unreachable tells of it.
	Send(group seglog.GroupID, messages []*pb.Message)
}

// Leadership is what a replica knows of who leads its group.
type Leadership struct {
	Leader seglog.ReplicaID // 0: unknown
	Term   batch.Term
	Ready  bool // this replica leads and serves
	// InSync are the replicas in sync, ascending, this one included; of a leader only.
	InSync []seglog.ReplicaID
}

// Member is a replica as its node sees it, a partition's or that of raft0.
type Member interface {
	Tick()
	Receive(m *pb.Message)
	Lost(node uint32)
	Unreachable(node uint32)
	SnapshotSent(to seglog.ReplicaID, ok bool)
	Transfer(to seglog.ReplicaID)
	Confirm(ctx context.Context) error
	Leadership() Leadership
}

var (
	_ Member = (*Partition)(nil)
	_ Member = (*Metadata)(nil)
)

// Tick says that 100 ms have passed. Ticks are never made up for: several that come before a turn count once.
func (p *Partition) Tick() { p.loop.tick() }

// Receive hands over a message of Raft from another replica. It never blocks: 16 MiB and 4,096 messages wait at most, and
// what comes beyond is dropped. So is what no replica in order sends.
func (p *Partition) Receive(m *pb.Message) { p.loop.receive(m) }

// Lost says that the process of a node is gone. A replica that follows it does not wait for Raft's timeout: it campaigns,
// after those with a lower id, until there is a leader.
func (p *Partition) Lost(node uint32) { p.loop.lost(node) }

// Unreachable says that messages to a node were dropped.
func (p *Partition) Unreachable(node uint32) { p.loop.unreachable(node) }

// SnapshotSent says how sending a MsgSnap ended, once for each.
func (p *Partition) SnapshotSent(to seglog.ReplicaID, ok bool) { p.loop.snapshotSent(to, ok) }

// Transfer hands leadership over, if this replica leads and the other is nearly level. It does not wait. Submissions wait for
// the end of it, for 500 ms at most.
func (p *Partition) Transfer(to seglog.ReplicaID) { p.loop.transfer(to) }

// Confirm returns nil when this replica led, and served, at a moment after the call; all that was committed then is in Status.
// ErrNotLeader: it does not, or stepped down meanwhile. ErrOffline, ErrStopped, and the error of a ctx that ends first.
func (p *Partition) Confirm(ctx context.Context) error {
	if p.loop == nil {
		return p.offline()
	}
	return p.loop.confirm(ctx)
}

// Leadership is what the replica knows of who leads its group.
func (p *Partition) Leadership() Leadership {
	if p.loop == nil {
		return Leadership{Term: p.Status().Term}
	}
	return p.loop.led()
}

// Tick is as that of Partition, and so are the others.
func (m *Metadata) Tick() { m.loop.tick() }

// Receive is as that of Partition.
func (m *Metadata) Receive(message *pb.Message) { m.loop.receive(message) }

// Lost is as that of Partition.
func (m *Metadata) Lost(node uint32) { m.loop.lost(node) }

// Unreachable is as that of Partition.
func (m *Metadata) Unreachable(node uint32) { m.loop.unreachable(node) }

// SnapshotSent is as that of Partition.
func (m *Metadata) SnapshotSent(to seglog.ReplicaID, ok bool) { m.loop.snapshotSent(to, ok) }

// Transfer is as that of Partition.
func (m *Metadata) Transfer(to seglog.ReplicaID) { m.loop.transfer(to) }

// Confirm is as that of Partition: all that was committed then is in View.
func (m *Metadata) Confirm(ctx context.Context) error { return m.loop.confirm(ctx) }

// Leadership is as that of Partition.
func (m *Metadata) Leadership() Leadership { return m.loop.led() }

// What a Member does is the same for both: nothing, when there is no loop.

func (l *loop[S]) tick() {
	if l != nil && l.core.several() {
		l.box.tick()
	}
}

func (l *loop[S]) receive(m *pb.Message) {
	if l != nil && l.core.several() {
		l.box.receive(m)
	}
}

func (l *loop[S]) lost(node uint32) {
	l.tell(func(now time.Time) error {
		l.core.lost(now, node)
		return nil
	})
}

func (l *loop[S]) unreachable(node uint32) {
	l.tell(func(time.Time) error {
		if v := l.core.voter(node); v != 0 {
			l.core.node.ReportUnreachable(v)
		}
		return nil
	})
}

func (l *loop[S]) snapshotSent(to seglog.ReplicaID, ok bool) {
	status := raft.SnapshotFailure
	if ok {
		status = raft.SnapshotFinish
	}
	l.tell(func(time.Time) error {
		l.core.node.ReportSnapshot(uint64(to), status)
		return nil
	})
}

func (l *loop[S]) transfer(to seglog.ReplicaID) {
	l.tell(func(now time.Time) error { return l.core.transfer(now, to) })
}

// tell has f run in the loop of a group of several, unless the replica is offline then.
func (l *loop[S]) tell(f func(now time.Time) error) {
	if l == nil || !l.core.several() {
		return
	}
	l.box.post(func(now time.Time) {
		if l.core.offline == nil {
			l.check(f(now))
		}
	})
}

func (l *loop[S]) confirm(ctx context.Context) error {
	confirmed := make(chan error, 1)
	posted := l.box.post(func(time.Time) {
		l.core.confirm(func(err error) {
			l.core.after = append(l.core.after, func() { confirmed <- err })
		})
	})
	if !posted {
		return ErrStopped
	}
	select {
	case err := <-confirmed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *loop[S]) led() Leadership {
	return *l.leadership.Load()
}
