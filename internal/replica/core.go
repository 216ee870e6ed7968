package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
)

// machine is what a group's committed entries add up to.
type machine interface {
	// apply takes the next committed entry; of a batch, its Data is the header only. An error means that this
	// replica cannot go on: the entry is written by a newer version, or the log and the rule do not agree.
	apply(now time.Time, e *pb.Entry) error
	// cut is called where a segment ends, behind the entry applied last, and returns the state there. It must be quick.
	cut() state
	// start is the offset below which the group's log is not needed any more.
	start() batch.Offset
	// fail ends all who wait: what they wait for will not be known here.
	fail(err error)
	// lead is called when this replica has applied the first entry of its own term as leader: from now on it proposes.
	lead()
	// follow is called when a replica that led does not lead any more.
	follow()
	// cutOff says that the entries from index on that are not applied are gone from this replica's log.
	cutOff(from seglog.Index)
	// replicated is called when core.enough or core.flushed may have risen.
	replicated()
	// parse reads the body of a base snapshot, without any effect; install makes what parse returned the state.
	parse(body []byte) (any, error)
	install(now time.Time, b raftlog.Base, parsed any)
}

// state is what a base snapshot says of a state machine, as it was when it was taken.
type state struct {
	logStart, nextOffset batch.Offset
	// body writes the canonical bytes; it belongs to no goroutine. size is about how much memory it holds, in bytes.
	body interface{ AppendTo(dst []byte) []byte }
	size int
}

// core drives one RawNode. It belongs to one goroutine.
type core struct {
	id      seglog.ReplicaID
	voters  []uint64 // ascending
	grouped bool     // it had several voters when it was opened
	logger  *slog.Logger
	node    *raft.RawNode
	storage *storage // what node reads
	log     *raftlog.Log
	m       machine

	term     batch.Term
	leader   seglog.ReplicaID // 0: unknown
	firstOwn seglog.Index     // the first entry of its term as leader; 0: it does not lead
	applied  seglog.Index
	// last is the end of Raft's log, stored or on the way; stagedLast the same without what was proposed in this turn.
	last, stagedLast seglog.Index
	appliedTerm      batch.Term // of the entry applied
	// boundaries are the first indexes of the segments that begin above applied, as far as known here, ascending: no more
	// than the log has segments.
	boundaries []seglog.Index
	stock      *stock

	followers followers
	election  election
	reads     reads
	coming    *coming // the base snapshot that is being installed; nil: none

	// out is what is to be sent to other replicas, after what runs when the turn is published.
	out   []*pb.Message
	after []func()

	// What the turn has made due: tasks for the next turn, one for each entry that was applied at most, the end of the
	// active segment, a look for segments to remove.
	due         []task
	rollWanted  bool
	sweepWanted bool
	rolling     seglog.Index // first index of the segment that the writer was asked to end last
	// warned is when it was logged last that a message of another replica was dropped.
	warned time.Time
	// offline is why the replica cannot go on; nil while it can.
	offline error
}

const (
	// A group of several is ticked every 100 ms, a group of one is not. A leader is missed after 10 to 20 ticks.
	electionTicks    = 10
	heartbeatTicks   = 2
	maxMessageBytes  = 1 << 20
	maxInflight      = 64
	maxInflightBytes = 8 << 20
)

func newCore(id seglog.ReplicaID, log *raftlog.Log, logger *slog.Logger, m machine) (*core, error) {
	base := log.Base()
	defer log.ReleaseBase()
	var node *raft.RawNode
	storage := &storage{Log: log}
	err := storage.guard(func() (err error) {
		node, err = raft.NewRawNode(raftConfig(id, storage, logger))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start raft of replica %x: %w", uint64(id), err)
	}
	return &core{
		id: id, voters: base.Members.Voters, logger: logger, node: node, storage: storage, log: log, m: m,
		grouped:     len(base.Members.Voters) > 1,
		followers:   newFollowers(id, base.Members.Voters),
		term:        batch.Term(node.BasicStatus().GetTerm()),
		applied:     base.Index,
		appliedTerm: base.Term,
		last:        log.Segments().LastIndex(),
		stagedLast:  log.Segments().LastIndex(),
		boundaries:  log.WantBases(),
		stock:       newStock(base),
	}, nil
}

// raftConfig sets no MaxUncommittedEntriesSize: Raft would count each batch whole when it is proposed and take off only
// the header that is applied, and drop every proposal from some point on.
func raftConfig(id seglog.ReplicaID, log *storage, logger *slog.Logger) *raft.Config {
	return &raft.Config{
		ID:                        uint64(id),
		ElectionTick:              electionTicks,
		HeartbeatTick:             heartbeatTicks,
		Storage:                   log,
		Applied:                   uint64(log.Base().Index),
		AsyncStorageWrites:        true,
		MaxSizePerMsg:             maxMessageBytes,
		MaxInflightMsgs:           maxInflight,
		MaxInflightBytes:          maxInflightBytes,
		CheckQuorum:               true,
		PreVote:                   true,
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
		Logger:                    raftLogger{logger},
	}
}

// several reports whether the group has more than one voter.
func (c *core) several() bool { return c.grouped }

// campaign makes a group of one leader: nothing else starts an election there, since it is not ticked. In a group of
// several it asks the others.
func (c *core) campaign() error {
	return c.storage.guard(c.node.Campaign)
}

// step takes the responses of storage messages that were carried out: its own, and those that go to other replicas.
func (c *core) step(now time.Time, responses []*pb.Message) error {
	for _, m := range responses {
		if m.GetTo() != uint64(c.id) {
			c.out = append(c.out, m)
			continue
		}
		if m.GetSnapshot() != nil {
			c.installed(now, m.GetSnapshot())
		}
		if err := c.storage.guard(func() error { return c.node.Step(m) }); err != nil {
			return fmt.Errorf("step %s: %w", m.GetType(), err)
		}
	}
	return nil
}

// propose hands entries to Raft, all or none. The caller's buffers are free when it returns: Raft has copied them.
// The first entry's index is returned.
func (c *core) propose(entries []*pb.Entry) (seglog.Index, error) {
	proposal := &pb.Message{Type: pb.MsgProp.Enum(), From: new(uint64(c.id)), Entries: entries}
	err := c.storage.guard(func() error { return c.node.Step(proposal) })
	if err != nil {
		return 0, err
	}
	first := c.last + 1
	c.last += seglog.Index(len(entries))
	return first, nil
}

// advance takes all that Raft is ready to say and applies what is committed. It returns the messages for the group's
// writer, in order.
func (c *core) advance(now time.Time) (store []*pb.Message, err error) {
	for {
		if err := c.askReads(); err != nil {
			return store, err
		}
		ready, more, err := c.take()
		if err != nil {
			return store, err
		}
		if !more {
			c.measure()
			return store, nil
		}
		c.observe(ready)
		c.noteReads(ready.ReadStates)
		c.stage(ready)
		for _, m := range ready.Messages {
			switch m.GetTo() {
			case raft.LocalAppendThread:
				store = append(store, m)
			case raft.LocalApplyThread:
				if err := c.apply(now, m.GetEntries()); err != nil {
					return store, err
				}
				if err := c.step(now, m.GetResponses()); err != nil {
					return store, err
				}
			default:
				invariant.Check(c.several(), "message %s to %x from a group of one", m.GetType(), m.GetTo())
				c.out = append(c.out, m)
			}
		}
		c.answerReads()
	}
}

// stage takes note of what is on its way to the log. Entries that begin at or below its end replace those there.
func (c *core) stage(ready raft.Ready) {
	if !raft.IsEmptySnap(ready.Snapshot) {
		c.announced(ready.Snapshot)
	}
	if len(ready.Entries) == 0 {
		return
	}
	if first := seglog.Index(ready.Entries[0].GetIndex()); first <= c.stagedLast {
		invariant.Check(first > c.applied, "applied entries are replaced from %d on, applied is %d", first, c.applied)
		c.m.cutOff(first)
		c.rolling = 0 // the segment behind it may be gone
	}
	c.stagedLast = seglog.Index(ready.Entries[len(ready.Entries)-1].GetIndex())
	c.last = c.stagedLast
	if c.coming != nil {
		c.coming.behind = append(c.coming.behind, ready.Entries)
		return
	}
	c.log.Staged(ready.Entries)
}

// take takes what Raft has to say next.
func (c *core) take() (ready raft.Ready, some bool, err error) {
	err = c.storage.guard(func() error {
		if some = c.node.HasReady(); some {
			c.log.BeginReady()
			ready = c.node.Ready()
			c.log.EndReady()
		}
		return nil
	})
	return ready, some, err
}

func (c *core) apply(now time.Time, entries []*pb.Entry) error {
	for _, e := range entries {
		index := seglog.Index(e.GetIndex())
		invariant.Check(index == c.applied+1, "entries are applied out of order")
		if err := c.applyEntry(now, e); err != nil {
			return fmt.Errorf("apply entry %d of term %d: %w", index, e.GetTerm(), err)
		}
		c.applied, c.appliedTerm = index, batch.Term(e.GetTerm())
		c.cross()
		if index == c.firstOwn {
			c.m.lead()
			c.look(now)
		}
	}
	c.log.Applied(c.applied)
	return nil
}

func (c *core) applyEntry(now time.Time, e *pb.Entry) error {
	if e.GetType() != pb.EntryNormal {
		return fmt.Errorf("%w: membership entry", ErrNewerLog)
	}
	if len(e.GetData()) == 0 {
		return nil
	}
	return c.m.apply(now, e)
}

// begun takes note of segments that were begun. None of their entries is applied yet. One that begins at or below another
// has taken its place: the entries there were replaced.
func (c *core) begun(firsts []seglog.Index) {
	for _, first := range firsts {
		invariant.Check(first > c.applied, "segment %d is heard of when %d is applied", first, c.applied)
		c.boundaries = slices.DeleteFunc(c.boundaries, func(known seglog.Index) bool { return known >= first })
		c.boundaries = append(c.boundaries, first)
	}
	c.cross()
}

// rollDue reports whether the writer is to be asked to end the active segment: once for each, and not while it is empty,
// since that does nothing.
func (c *core) rollDue() bool {
	if !c.rollWanted {
		return false
	}
	c.rollWanted = false
	segments := c.log.Segments().Segments()
	active := segments[len(segments)-1]
	if active.Entries == 0 || active.First == c.rolling {
		return false
	}
	c.rolling = active.First
	return true
}

// cross takes a snapshot of the state if a segment begins behind the entry applied last. One that was begun and then
// removed, since its entries were replaced, needs none.
func (c *core) cross() {
	if len(c.boundaries) == 0 || c.boundaries[0] != c.applied+1 {
		return
	}
	first := c.boundaries[0]
	c.boundaries = c.boundaries[1:]
	if c.several() && !slices.ContainsFunc(c.log.Segments().Segments(), func(s seglog.SegmentInfo) bool { return s.First == first }) {
		return
	}
	c.stock.add(c.applied, c.appliedTerm, c.m.cut())
}

// refusal is why nothing can be proposed, or nil.
func (c *core) refusal() error {
	switch {
	case c.offline != nil:
		return fmt.Errorf("%w: %w", ErrOffline, c.offline)
	case !c.ready():
		return ErrNotLeader
	default:
		return nil
	}
}

// served reports whether the replica was ready once: then all that earlier leaders stored is applied.
func (c *core) served() bool { return c.firstOwn > 0 && c.applied >= c.firstOwn }

// ready reports whether the replica serves.
func (c *core) ready() bool { return c.offline == nil && c.served() }

// takeOffline stops the core for good.
func (c *core) takeOffline(err error) {
	c.offline = err
	c.m.fail(err)
	c.endReads(c.gone())
}

// gone is the error of those who ask a core that is offline.
func (c *core) gone() error {
	if c.offline == ErrStopped {
		return ErrStopped
	}
	return fmt.Errorf("%w: %w", ErrOffline, c.offline)
}

// settled reports that nothing is on its way: all that Raft accepted is applied, or never will be here. In a group of
// several that depends on others, and is not waited for.
func (c *core) settled() bool { return c.offline != nil || c.several() || c.applied == c.last }

// ErrNewerLog: the log holds an entry that this version does not know.
var ErrNewerLog = errors.New("log was written by a newer version")
