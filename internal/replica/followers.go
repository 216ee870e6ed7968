package replica

import (
	"math"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"

	"github.com/oncemq/oncemq/internal/seglog"
)

const (
	// lagMaxDefault is replica.lag.time.max.ms where Settings do not say.
	lagMaxDefault = 30 * time.Second
	// feedMax is how long segments are kept for a voter whose log does not grow.
	feedMax = 10 * time.Minute
	// everything is an index that no log reaches.
	everything = seglog.Index(math.MaxUint64)
)

// noTime is a moment that never comes.
var noTime time.Time

// followers is what a leader knows of the others' logs.
type followers struct {
	lagMax    time.Duration
	minInSync int

	// flushed is the end of this leader's log on its disk, enough the last entry that is on as many replicas as
	// min.insync.replicas asks for: everything, when the majority that commits an entry is enough.
	flushed, enough seglog.Index
	// inSync are the replicas in sync, ascending. It is never changed in place.
	inSync []seglog.ReplicaID

	peers []peerLog    // of the voters, ascending, this one included
	end   seglog.Index // of this log at the last tick
	match []seglog.Index
}

// peerLog is what a leader knows of one voter.
type peerLog struct {
	id   uint64
	next seglog.Index // the first entry that it may still have to be sent
	// level is when it had all that the log held one tick before, active when it was level or its log has grown; zero: never.
	level, active time.Time
	match         seglog.Index
	// gone: its process is, and nothing was heard of it since.
	gone bool
}

func newFollowers(id seglog.ReplicaID, voters []uint64) followers {
	f := followers{lagMax: lagMaxDefault, inSync: []seglog.ReplicaID{id}}
	f.of(voters)
	return f
}

// demand sets what is asked of the replicas in sync.
func (f *followers) demand(minInSync int, lagMax time.Duration) {
	f.minInSync = minInSync
	if lagMax > 0 {
		f.lagMax = lagMax
	}
	f.begin()
}

// of says who votes.
func (f *followers) of(voters []uint64) {
	f.peers = nil
	for _, v := range voters {
		f.peers = append(f.peers, peerLog{id: v})
	}
	f.begin()
}

// begin forgets what was known when this replica led before.
func (f *followers) begin() {
	f.flushed, f.enough, f.end = 0, 0, 0
	if f.majority() {
		f.enough = everything
	}
	for i := range f.peers {
		f.peers[i] = peerLog{id: f.peers[i].id}
	}
}

// majority reports whether min.insync.replicas asks for no more than what commits an entry.
func (f *followers) majority() bool { return len(f.peers) <= 1 || f.minInSync <= len(f.peers)/2+1 }

// heard says that a voter's process, or the next one, is there.
func (c *core) heard(voter uint64) {
	for i := range c.followers.peers {
		if v := &c.followers.peers[i]; v.id == voter {
			v.gone = false
		}
	}
}

// measure learns from Raft how far the followers' logs are on disk.
func (c *core) measure() {
	if !c.several() || c.firstOwn == 0 {
		return
	}
	f := &c.followers
	f.match = f.match[:0]
	c.node.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		match := seglog.Index(p.Match)
		if id == uint64(c.id) {
			if match < c.firstOwn {
				match = 0 // what Raft takes for granted when it is elected, and may not be on the disk yet
			}
			f.flushed = match
		}
		f.match = append(f.match, match)
	})
	if !f.majority() {
		slices.Sort(f.match)
		f.enough = f.match[max(len(f.match)-f.minInSync, 0)]
	}
	c.m.replicated()
}

// look finds out who is in sync: at each tick, when this leader begins to serve, and before a batch is refused for want of
// replicas.
func (c *core) look(now time.Time) {
	if c.firstOwn == 0 {
		return
	}
	f := &c.followers
	c.node.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		at := slices.IndexFunc(f.peers, func(v peerLog) bool { return v.id == id })
		if at < 0 {
			return
		}
		v := &f.peers[at]
		v.next = seglog.Index(p.Match) + 1
		if p.State == tracker.StateSnapshot {
			v.next = seglog.Index(p.Next)
		}
		own := id == uint64(c.id)
		if own || p.RecentActive && !v.gone && p.State == tracker.StateReplicate && seglog.Index(p.Match) >= max(f.end, c.firstOwn) {
			v.level, v.active = now, now
		}
		if grown := seglog.Index(p.Match) > v.match; grown || v.active.IsZero() { // at first it has until feedMax
			v.match, v.active = seglog.Index(p.Match), now
		}
	})
	var inSync []seglog.ReplicaID
	for _, v := range f.peers {
		if !v.level.IsZero() && now.Sub(v.level) <= f.lagMax {
			inSync = append(inSync, seglog.ReplicaID(v.id))
		}
	}
	if !slices.Equal(inSync, f.inSync) {
		f.inSync = inSync
	}
}

// needed is the first entry that a follower is still to be fed: those from it on are not removed.
func (c *core) needed(now time.Time) seglog.Index {
	switch {
	case c.firstOwn == 0:
		return everything
	case !c.served():
		return 0 // what the others have is not known yet
	}
	first := everything
	for _, v := range c.followers.peers {
		if v.id != uint64(c.id) && now.Sub(v.active) < feedMax {
			first = min(first, v.next)
		}
	}
	return first
}

// voter returns the replica of a node in this group, 0 when it has none.
func (c *core) voter(node uint32) uint64 {
	for _, v := range c.voters {
		if nodeOf(v) == node {
			return v
		}
	}
	return 0
}

func nodeOf(replica uint64) uint32 { return uint32(replica >> 32) }
