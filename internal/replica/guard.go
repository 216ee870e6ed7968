package replica

import (
	"fmt"
	"math"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
)

// receive steps messages of other replicas. Raft takes them on trust, and panics at those that cannot be: one that no
// replica in order sends is dropped here. A replica that has lost the end of its log so stays behind, and the process
// goes on.
func (c *core) receive(now time.Time, messages []*pb.Message) error {
	for _, m := range messages {
		if err := c.judge(m); err != nil {
			c.warn(now, m, err)
			continue
		}
		c.heard(m.GetFrom())
		err := c.storage.guard(func() error {
			_ = c.node.Step(m) // only what was proposed here can be refused
			return nil
		})
		if err != nil {
			return fmt.Errorf("step %s: %w", m.GetType(), err)
		}
	}
	return nil
}

// warnInterval is how often it is logged, at most, that a message was dropped.
const warnInterval = time.Minute

func (c *core) warn(now time.Time, m *pb.Message, reason error) {
	if !c.warned.IsZero() && now.Sub(c.warned) < warnInterval {
		return
	}
	c.warned = now
	c.logger.Warn("message of another replica is dropped", "group", c.stock.frame.Group, "type", m.GetType().String(),
		"from", fmt.Sprintf("%x", m.GetFrom()), "term", m.GetTerm(), "reason", reason)
}

// judge says why a message must not be stepped, or nil.
func (c *core) judge(m *pb.Message) error {
	switch {
	case m.GetTo() != uint64(c.id):
		return fmt.Errorf("it is for replica %x", m.GetTo())
	case m.GetFrom() == uint64(c.id) || !slices.Contains(c.voters, m.GetFrom()):
		return fmt.Errorf("the group has no such other replica")
	case m.GetTerm() == 0 || m.GetTerm() >= math.MaxInt32:
		return fmt.Errorf("no term can be so")
	}
	switch m.GetType() {
	case pb.MsgVote, pb.MsgVoteResp, pb.MsgPreVote, pb.MsgPreVoteResp, pb.MsgTimeoutNow:
		return nil
	case pb.MsgHeartbeat:
		if m.GetTerm() >= uint64(c.term) && m.GetCommit() > uint64(c.last) {
			return fmt.Errorf("entry %d is committed, as the leader knows of this replica's log, which ends at %d", m.GetCommit(), c.last)
		}
		return nil
	case pb.MsgHeartbeatResp:
		if m.GetTerm() >= uint64(c.term) && !c.soundAck(m) {
			return fmt.Errorf("it answers a question that was not asked")
		}
		return nil
	case pb.MsgAppResp:
		if m.GetTerm() >= uint64(c.term) && !m.GetReject() && m.GetIndex() > uint64(c.last) {
			return fmt.Errorf("entry %d is acknowledged, the log ends at %d", m.GetIndex(), c.last)
		}
		return nil
	case pb.MsgApp:
		return judgeEntries(m)
	case pb.MsgSnap:
		return c.judgeSnapshot(m.GetSnapshot())
	default:
		return fmt.Errorf("no replica sends such a one")
	}
}

// judgeEntries says what is wrong with the entries of a MsgApp: each must follow the one before it, and be what can be
// written into a log.
func judgeEntries(m *pb.Message) error {
	index, term, next := m.GetIndex(), m.GetLogTerm(), batch.Offset(-1)
	for _, e := range m.GetEntries() {
		if e == nil || e.GetIndex() != index+1 || e.GetTerm() < term || e.GetTerm() > m.GetTerm() {
			return fmt.Errorf("entry %d of term %d follows entry %d of term %d", e.GetIndex(), e.GetTerm(), index, term)
		}
		if err := raftlog.CheckEntry(e, term); err != nil {
			return err
		}
		index, term = e.GetIndex(), e.GetTerm()
		data := e.GetData()
		if _, isCommand := raftlog.DecodeCommand(data); isCommand || len(data) == 0 || e.GetType() != pb.EntryNormal {
			continue
		}
		h, ok := batch.ParseHeader(data)
		switch {
		case !ok || h.Size != len(data) || h.BaseOffset < 0 || h.LastOffsetDelta < 0 || uint64(h.Term) != term:
			return fmt.Errorf("entry %d is neither a command nor a batch of its term", index)
		case next >= 0 && h.BaseOffset != next:
			return fmt.Errorf("entry %d has offset %d, the one before it ends at %d", index, h.BaseOffset, next)
		}
		next = h.NextOffset()
	}
	return nil
}

// judgeSnapshot says what is wrong with a snapshot: it must hold a base snapshot of this group, whole, and be of its index,
// term and membership.
func (c *core) judgeSnapshot(s *pb.Snapshot) error {
	b, err := c.baseOf(s)
	if err != nil {
		return err
	}
	if raft.IsEmptySnap(s) || !slices.Contains(b.Members.Voters, uint64(c.id)) {
		return fmt.Errorf("snapshot of index %d, members %x", b.Index, b.Members.Voters)
	}
	_, err = c.m.parse(b.Body)
	return err
}

// baseOf returns the base snapshot that a snapshot holds. Its body aliases the snapshot.
func (c *core) baseOf(s *pb.Snapshot) (raftlog.Base, error) {
	b, err := raftlog.DecodeBase("received", s.GetData())
	if err != nil {
		return b, err
	}
	frame, meta := c.stock.frame, s.GetMetadata()
	if b.Cluster != frame.Cluster || b.Group != frame.Group {
		return b, fmt.Errorf("it is a base snapshot of group %d of cluster %x", b.Group, b.Cluster)
	}
	if b.Index != seglog.Index(meta.GetIndex()) || uint64(b.Term) != meta.GetTerm() || !sameMembers(b.Members, meta.GetConfState()) {
		return b, fmt.Errorf("it says that it is of index %d and term %d and holds index %d and term %d", meta.GetIndex(), meta.GetTerm(), b.Index, b.Term)
	}
	return b, nil
}

func sameMembers(m raftlog.Members, c *pb.ConfState) bool {
	return slices.Equal(m.Voters, c.GetVoters()) && slices.Equal(m.Learners, c.GetLearners()) &&
		slices.Equal(m.Outgoing, c.GetVotersOutgoing()) && slices.Equal(m.LearnersNext, c.GetLearnersNext()) && m.AutoLeave == c.GetAutoLeave()
}
