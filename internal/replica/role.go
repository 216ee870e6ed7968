package replica

import (
	"slices"

	"go.etcd.io/raft/v3"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
)

// observe notes a change of term, of leader and of role. The entry with which a leader begins its term is in the same
// Ready as the change.
func (c *core) observe(ready raft.Ready) {
	if !raft.IsEmptyHardState(ready.HardState) {
		term := batch.Term(ready.HardState.GetTerm())
		invariant.Check(term >= c.term, "term %d after term %d", term, c.term)
		c.term = term
	}
	soft := ready.SoftState
	if soft == nil {
		return
	}
	c.leader = seglog.ReplicaID(soft.Lead)
	if c.leader != 0 {
		c.election.ended()
	}
	leads := soft.RaftState == raft.StateLeader
	if c.firstOwn > 0 {
		invariant.Check(c.several() && !leads, "a leader begins another term without stepping down")
		c.stepDown()
	}
	if leads {
		c.begin(ready)
	}
}

// begin begins to lead. It serves when firstOwn is applied.
func (c *core) begin(ready raft.Ready) {
	for _, e := range ready.Entries {
		if e.GetTerm() == uint64(c.term) {
			c.firstOwn = seglog.Index(e.GetIndex())
			c.reads = reads{counter: c.reads.counter}
			c.followers.begin()
			return
		}
	}
	invariant.Bug("a new leader has no entry of its own term")
}

// stepDown ends what only a leader does.
func (c *core) stepDown() {
	c.firstOwn = 0
	c.election.transferUntil = noTime
	c.m.follow()
	c.endReads(ErrNotLeader)
}

// leadership is what the node is told.
func (c *core) leadership() Leadership {
	if c.offline != nil {
		return Leadership{Term: c.term}
	}
	l := Leadership{Leader: c.leader, Term: c.term, Ready: c.ready()}
	if c.firstOwn > 0 {
		l.InSync = c.followers.inSync
	}
	return l
}

func (l Leadership) equal(other Leadership) bool {
	return l.Leader == other.Leader && l.Term == other.Term && l.Ready == other.Ready && slices.Equal(l.InSync, other.InSync)
}
