package replica

import (
	"encoding/binary"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/seglog"
)

// reads confirms that this replica leads (Raft's ReadIndex): a majority must answer a heartbeat that was sent after the
// question was asked. One round runs at a time; all who ask while it runs share the next one, since it began before they
// asked. A round that is not answered is never asked again under the same number: Raft repeats it with each heartbeat,
// until this replica steps down.
type reads struct {
	counter   uint64 // of the newest round, over all terms
	rounds    uint64 // in this term
	waiting   []func(error)
	asked     []func(error) // of the round that runs; none runs: nil
	confirmed bool          // the round is, and ends when index is applied
	index     seglog.Index
}

// confirm has answer run in the loop, before the turn is published: with nil when this replica led at a moment after
// this call, and all that was committed then is applied; with ErrNotLeader when it does not lead, or steps down before.
func (c *core) confirm(answer func(error)) {
	switch {
	case c.offline != nil:
		answer(c.gone())
	case !c.served():
		answer(ErrNotLeader)
	case !c.several():
		answer(nil)
	default:
		c.reads.waiting = append(c.reads.waiting, answer)
	}
}

// askReads begins a round if somebody waits for one and none runs.
func (c *core) askReads() error {
	r := &c.reads
	if len(r.asked) > 0 || len(r.waiting) == 0 {
		return nil
	}
	if c.node.BasicStatus().RaftState != raft.StateLeader { // the Ready that says so ends all who wait
		return nil
	}
	r.asked, r.waiting = r.waiting, nil
	r.confirmed = false
	r.counter++
	r.rounds++
	number := binary.BigEndian.AppendUint64(nil, r.counter)
	return c.storage.guard(func() error {
		c.node.ReadIndex(number)
		return nil
	})
}

// noteReads takes what Raft says of the round.
func (c *core) noteReads(states []raft.ReadState) {
	for _, s := range states {
		if len(s.RequestCtx) == 8 && binary.BigEndian.Uint64(s.RequestCtx) == c.reads.counter && len(c.reads.asked) > 0 {
			c.reads.confirmed, c.reads.index = true, seglog.Index(s.Index)
		}
	}
}

// answerReads ends the round when it is confirmed and what it read of is applied.
func (c *core) answerReads() {
	r := &c.reads
	if !r.confirmed || c.applied < r.index || !c.served() {
		return
	}
	asked := r.asked
	r.asked, r.confirmed = nil, false
	for _, answer := range asked {
		answer(nil)
	}
}

// endReads ends all who wait for a round.
func (c *core) endReads(err error) {
	ending := append(c.reads.asked, c.reads.waiting...)
	c.reads = reads{counter: c.reads.counter}
	for _, answer := range ending {
		answer(err)
	}
}

// soundAck: the number in a heartbeat's answer, which Raft counts rounds with, is one that it has given out in this term.
func (c *core) soundAck(m *pb.Message) bool {
	number := m.GetContext()
	return len(number) == 0 || len(number) == 8 && binary.LittleEndian.Uint64(number) <= c.reads.rounds
}
