package raftlog

import (
	"math/rand/v2"
	"slices"
	"testing"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// randomMessage is one that a replica may have for its writer, at a term.
func randomMessage(rng *rand.Rand, term, next uint64) *pb.Message {
	m := &pb.Message{Type: pb.MsgStorageAppend.Enum()}
	if rng.IntN(3) == 0 {
		m.Term, m.Vote, m.Commit = new(term), new(rng.Uint64N(4)), new(next-1)
	}
	switch rng.IntN(20) {
	case 0:
		m.Entries = []*pb.Entry{entry(next, term, nil)}
	case 1:
		m.Snapshot = &pb.Snapshot{Metadata: &pb.SnapshotMetadata{Index: new(next)}}
	}
	for range rng.IntN(4) {
		r := &pb.Message{
			To: new(2 + rng.Uint64N(2)), From: new(uint64(1)), Term: new(term), Index: new(next - rng.Uint64N(min(next, 3))),
			Type: []pb.MessageType{pb.MsgAppResp, pb.MsgVoteResp, pb.MsgPreVoteResp}[rng.IntN(3)].Enum(),
		}
		if rng.IntN(3) == 0 {
			r.Reject = new(true)
		}
		m.Responses = append(m.Responses, r)
	}
	if rng.IntN(2) == 0 || m.Snapshot != nil {
		m.Responses = append(m.Responses, &pb.Message{
			Type: pb.MsgStorageAppendResp.Enum(), To: new(uint64(1)), Term: new(term), Index: new(next), Snapshot: m.Snapshot,
		})
	}
	return m
}

// What waits is bounded by what brings entries or snapshots. All of that is there in order, with its own responses; the newest
// term and vote are; and a response is left out only when another one that is there says as much.
func TestWhatWaitsIsBounded(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var pending, bringing, given []*pb.Message
		var term, vote, next uint64 = 1, 0, 2
		rolls := 0 // those that have something before them, or are the first
		after := true
		for range 3000 {
			if rng.IntN(10) == 0 {
				pending = queued(pending, nil)
				if after {
					rolls++
				}
				after = false
				continue
			}
			term += uint64(rng.IntN(30) / 29)
			m := randomMessage(rng, term, next)
			if m.Term != nil {
				vote = m.GetVote()
			}
			if brings(m) {
				next++
				after = true
				bringing = append(bringing, m)
			}
			given = append(given, m.GetResponses()...)
			pending = queued(pending, m)
		}
		if most := 3*len(bringing) + 2; len(pending) > most {
			t.Fatalf("seed %d: %d wait, %d bring something", seed, len(pending), len(bringing))
		}
		checkPending(t, pending, bringing, given, rolls)
		w := &Writer{}
		for _, m := range pending {
			if m.GetTerm() != 0 {
				w.term, w.vote = m.GetTerm(), m.GetVote()
			}
		}
		if w.vote != vote {
			t.Fatalf("seed %d: the vote is %d, and was %d at last", seed, w.vote, vote)
		}
	}
}

func checkPending(t *testing.T, pending, bringing, given []*pb.Message, rolls int) {
	t.Helper()
	var got, left []*pb.Message
	for _, m := range pending {
		switch {
		case m == nil:
			rolls--
		case brings(m):
			got = append(got, m)
		case len(m.GetResponses()) > 2*3*2+1+4: // the first came with 4 at most
			t.Fatalf("%d responses in one message", len(m.GetResponses()))
		}
		left = append(left, m.GetResponses()...)
	}
	if !slices.Equal(got, bringing) || rolls != 0 {
		t.Fatalf("%d of %d messages that bring something, %d rolls are missing", len(got), len(bringing), rolls)
	}
	at := 0
	for n, r := range given {
		if at < len(left) && left[at] == r {
			at++
			continue
		}
		says := func(other *pb.Message) bool {
			higher := other.GetTerm() > r.GetTerm() || r.GetType() != pb.MsgAppResp || r.GetReject() || other.GetIndex() >= r.GetIndex()
			return other.GetType() == r.GetType() && other.GetTo() == r.GetTo() && other.GetReject() == r.GetReject() &&
				other.GetTerm() >= r.GetTerm() && higher
		}
		later := slices.IndexFunc(left[at:], says)
		if before := r.GetType() == pb.MsgAppResp && slices.ContainsFunc(left, says); later < 0 && !before {
			t.Fatalf("response %d, %v, is missing, and what it says", n, r)
		}
		if r.GetSnapshot() != nil {
			t.Fatalf("response %d has a snapshot, and is missing", n)
		}
	}
	if at != len(left) {
		t.Fatalf("%d responses are out of order", len(left)-at)
	}
}

// quietLogger has Raft say nothing.
type quietLogger struct{ raft.DefaultLogger }

func (*quietLogger) Debugf(string, ...any)   {}
func (*quietLogger) Infof(string, ...any)    {}
func (*quietLogger) Warningf(string, ...any) {}

// waitingFollower is a replica whose writer waits for the disk, and goes on as Raft has it.
type waitingFollower struct {
	*followerScript
	node   *raft.RawNode
	told   []*pb.Message // to others, from the writer
	stable int           // responses that told Raft of what is on disk
}

func newWaitingFollower(t *testing.T) *waitingFollower {
	t.Helper()
	mem := newStateFS(t)
	f := &waitingFollower{followerScript: newFollowerScript(t, 1, mem, mem)}
	must(t, f.open(boot1))
	node, err := raft.NewRawNode(&raft.Config{
		ID: uint64(logReplica), ElectionTick: 10, HeartbeatTick: 1, Storage: f.log, Applied: 1, AsyncStorageWrites: true,
		MaxSizePerMsg: 1 << 20, MaxInflightMsgs: 64, CheckQuorum: true, PreVote: true, Logger: &quietLogger{},
	})
	must(t, err)
	f.node = node
	return f
}

// turn hands what Raft wants to be written to the writer.
func (f *waitingFollower) turn() {
	for f.node.HasReady() {
		f.log.BeginReady()
		ready := f.node.Ready()
		f.log.EndReady()
		for _, m := range ready.Messages {
			if m.GetType() == pb.MsgStorageAppend {
				f.log.Staged(m.GetEntries())
				f.w.Submit(m)
			}
		}
	}
}

func (f *waitingFollower) step(t *testing.T, m *pb.Message) {
	t.Helper()
	m.To = new(uint64(logReplica))
	must(t, f.node.Step(m))
	f.turn()
}

// carry has all carried out, and delivers it.
func (f *waitingFollower) carry(t *testing.T) {
	t.Helper()
	for f.answers = nil; f.flush.Step(); f.answers = nil {
		for _, m := range f.answers {
			if m.GetTo() != uint64(logReplica) {
				f.told = append(f.told, m)
				continue
			}
			if m.GetType() == pb.MsgStorageAppendResp {
				f.stable++
			}
			must(t, f.node.Step(m))
		}
		f.turn()
	}
	must(t, f.failed)
}

// While a follower waits for room on its disk, leaders probe it, ask it for votes and follow each other for days, and it asks for
// votes itself: what waits does not grow, and with room Raft is told what is on disk, and the last leader.
func TestWaitingFollowerStaysSmall(t *testing.T) {
	f := newWaitingFollower(t)
	other := func(n uint64) *uint64 { return new(uint64(logReplica) + n<<32) }
	app := func(from, term, index, logTerm uint64, entries ...*pb.Entry) *pb.Message {
		return &pb.Message{
			Type: pb.MsgApp.Enum(), From: other(from), Term: new(term), Index: new(index), LogTerm: new(logTerm), Entries: entries,
		}
	}
	f.step(t, app(1, 5, 1, 1, entry(2, 5, nil), entry(3, 5, nil)))
	leader, term := uint64(1), uint64(5)
	for n := range 20_000 {
		f.step(t, app(leader, term, 3, 5))
		f.step(t, app(leader, term, 9, 5)) // it rejects that
		if n%50 == 0 {                     // it hears nothing for a while, asks for votes, and others are elected
			for range 40 {
				f.node.Tick()
			}
			f.turn()
			leader, term = 3-leader, term+1
			for _, kind := range []pb.MessageType{pb.MsgPreVote, pb.MsgVote} {
				f.step(t, &pb.Message{
					Type: kind.Enum(), From: other(leader), Term: new(term), Index: new(uint64(3)), LogTerm: new(uint64(5)),
				})
			}
		}
	}
	responses := 0
	for _, m := range f.w.pending {
		responses += len(m.GetResponses())
	}
	if len(f.w.pending) > 2 || responses > 16 {
		t.Fatalf("%d messages wait, with %d responses", len(f.w.pending), responses)
	}
	f.carry(t)
	accepted := slices.ContainsFunc(f.told, func(m *pb.Message) bool {
		return m.GetType() == pb.MsgAppResp && m.GetTo() == *other(leader) && m.GetTerm() == term && !m.GetReject() && m.GetIndex() == 3
	})
	if !accepted {
		t.Fatalf("the leader of term %d was not told: %v", term, f.told)
	}
	if known, _ := f.cfg.State.Group(1); known.Term != term || known.Vote != *other(leader) {
		t.Fatalf("recorded are term %d and vote %x, of term %d", known.Term, known.Vote, term)
	}
	f.stable = 0
	f.step(t, app(leader, term, 3, 5))
	if f.carry(t); f.stable != 0 {
		t.Fatal("Raft does not know that its log is on disk")
	}
	must(t, f.close())
}
