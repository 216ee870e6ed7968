package replica

import (
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
)

// coming is a base snapshot that the writer installs in place of the log.
type coming struct {
	base   raftlog.Base
	parsed any
	// behind are the entries that follow it and were staged meanwhile: the ring takes them when it stands at the base.
	behind [][]*pb.Entry
}

// announced takes note of a snapshot that goes to the writer. All that is not applied of the log is gone with it, as far
// as those who wait can know.
func (c *core) announced(s *pb.Snapshot) {
	b, err := c.baseOf(s)
	invariant.Check(err == nil, "a snapshot that was good when it came: %v", err)
	parsed, err := c.m.parse(b.Body)
	invariant.Check(err == nil, "a snapshot that was good when it came: %v", err)
	invariant.Check(b.Index > c.applied, "snapshot of entry %d, applied is %d", b.Index, c.applied)
	c.m.cutOff(0)
	c.coming = &coming{base: b, parsed: parsed}
	c.last, c.stagedLast = b.Index, b.Index
}

// installed makes the snapshot the state: the writer has put it in place of the log. An older one than the newest that is
// coming is passed over.
func (c *core) installed(now time.Time, s *pb.Snapshot) {
	arrived := c.coming
	if arrived == nil || arrived.base.Index != seglog.Index(s.GetMetadata().GetIndex()) {
		return
	}
	c.coming = nil
	b := arrived.base
	c.log.Restored(b)
	c.log.ReleaseBase()
	for _, entries := range arrived.behind {
		c.log.Staged(entries)
	}
	c.applied, c.appliedTerm = b.Index, b.Term
	c.voters = b.Members.Voters
	c.followers.of(c.voters)
	for len(c.boundaries) > 0 && c.boundaries[0] <= b.Index+1 {
		c.boundaries = c.boundaries[1:]
	}
	c.stock.restart(b)
	c.rolling = 0
	c.sweepWanted = true
	c.m.install(now, b, arrived.parsed)
}
