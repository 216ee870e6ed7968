package replica

import (
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"

	"github.com/oncemq/oncemq/internal/seglog"
)

const (
	// campaignStep lies between the campaigns of two voters that miss the same leader: long enough for the first to be
	// elected.
	campaignStep = 150 * time.Millisecond
	// campaignSpread sets groups apart from each other, campaignWaitMax bounds how long a voter waits for the end of its campaign.
	campaignSpread  = 5 * time.Millisecond
	campaignWaitMax = 8 * time.Second
	// preferredDelay and otherDelay are how long a replica that was just opened waits to hear of a leader: it is the
	// preferred one of a group that may be new, or another.
	preferredDelay = 100 * time.Millisecond
	otherDelay     = 300 * time.Millisecond
	// transferHold is how long submissions wait while leadership is handed over, transferLag how many entries the one that
	// is to lead may be behind.
	transferHold = 500 * time.Millisecond
	transferLag  = 1024
)

// election is what a replica plans beside Raft's own timeouts.
type election struct {
	// campaignAt is when it campaigns, unless a leader is heard of before.
	campaignAt time.Time
	attempts   uint // campaigns since a leader was heard of
	// transferUntil is until when submissions wait for the end of a hand-over.
	transferUntil time.Time
}

// ended says that there is a leader.
func (e *election) ended() { e.campaignAt, e.attempts = noTime, 0 }

// open is called once, before all else.
func (c *core) open(now time.Time, preferred bool) error {
	switch {
	case !c.several():
		return c.campaign()
	case preferred:
		c.election.campaignAt = now.Add(preferredDelay)
	default:
		c.election.campaignAt = now.Add(otherDelay + c.rank(0))
	}
	return nil
}

// rank is how long this voter lets those before it try first; without is the one that is gone.
func (c *core) rank(without uint64) time.Duration {
	rank := time.Duration(0)
	for _, v := range c.voters {
		if v < uint64(c.id) && v != without {
			rank++
		}
	}
	return rank * campaignStep
}

// lost says that the process of a node is gone: when its replica leads, another one is to.
func (c *core) lost(now time.Time, node uint32) {
	gone := c.voter(node)
	if !c.several() || c.offline != nil || gone == 0 || gone == uint64(c.id) {
		return
	}
	if c.firstOwn > 0 {
		c.outOfSync(gone)
		c.look(now)
		return
	}
	if c.leader != 0 && c.leader != seglog.ReplicaID(gone) {
		return
	}
	_ = c.node.ForgetLeader() // it fails for nobody but a candidate, who has none
	if c.election.campaignAt.IsZero() {
		c.election.campaignAt = now.Add(c.rank(gone))
	}
}

// outOfSync takes a voter out of those in sync until it is heard of, and level again.
func (c *core) outOfSync(voter uint64) {
	at := slices.IndexFunc(c.followers.peers, func(v peerLog) bool { return v.id == voter })
	c.followers.peers[at].level, c.followers.peers[at].gone = noTime, true
}

// campaignDue campaigns when that is due and still wanted, and again until there is a leader.
func (c *core) campaignDue(now time.Time) error {
	at := c.election.campaignAt
	if at.IsZero() || now.Before(at) || c.offline != nil {
		return nil
	}
	c.election.campaignAt = now.Add(c.interval())
	c.election.attempts++
	return c.campaign()
}

// interval is how long this voter waits for the end of a campaign. It doubles, since where many groups elect at once votes
// take their time, and a new campaign throws away those under way. Each voter has an interval of its own, and each group,
// so that those who campaign at the same time once do not do so again and again.
func (c *core) interval() time.Duration {
	first := time.Duration(len(c.voters))*campaignStep + c.rank(0) + time.Duration(c.stock.frame.Group%16)*campaignSpread
	return min(first<<min(c.election.attempts, 10), campaignWaitMax)
}

// transfer hands leadership over, if this replica leads and the other is nearly level.
func (c *core) transfer(now time.Time, to seglog.ReplicaID) error {
	if !c.several() || !c.ready() || to == c.id {
		return nil
	}
	near := false
	c.node.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		near = near || id == uint64(to) && !p.IsLearner && p.State == tracker.StateReplicate &&
			seglog.Index(p.Match)+transferLag >= c.last
	})
	if !near {
		return nil
	}
	c.election.transferUntil = now.Add(transferHold)
	return c.storage.guard(func() error {
		c.node.TransferLeader(uint64(to))
		return nil
	})
}

// transferring reports whether submissions are to wait for the end of a hand-over.
func (c *core) transferring(now time.Time) bool {
	until := c.election.transferUntil
	return !until.IsZero() && now.Before(until) && c.offline == nil
}

// tick is one tick of Raft's clock.
func (c *core) tick(now time.Time) error {
	if !c.several() {
		return nil
	}
	err := c.storage.guard(func() error {
		c.node.Tick()
		return nil
	})
	c.look(now)
	c.followers.end = c.last
	return err
}
