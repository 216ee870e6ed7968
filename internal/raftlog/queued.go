package raftlog

import (
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"
)

// queued adds a message, or nil for Roll, to those of the next flush, which writes all that they bring before it delivers the
// first of their responses. On a full disk that may be in days, and Raft goes on: a leader sends an empty MsgApp at each
// response to a heartbeat, replicas ask for votes, terms rise. Behind a message that brings entries or a snapshot there is
// therefore one at most that brings neither, and one Roll: what comes later becomes a part of these.
func queued(pending []*pb.Message, m *pb.Message) []*pb.Message {
	if brings(m) {
		return append(pending, m)
	}
	for _, p := range slices.Backward(pending) {
		switch {
		case brings(p):
			return append(pending, m)
		case m == nil && p == nil: // nothing has come that could follow in a segment of its own
			return pending
		case m != nil && p != nil:
			join(p, m)
			return pending
		}
	}
	return append(pending, m)
}

// brings says whether a message changes the log.
func brings(m *pb.Message) bool { return m.GetSnapshot() != nil || len(m.GetEntries()) > 0 }

// join makes m, which does not change the log, a part of an earlier message like it.
func join(earlier, m *pb.Message) {
	if m.GetTerm() != 0 { // as recordVote has it: the newest is what counts
		earlier.Term, earlier.Vote, earlier.Commit = m.Term, m.Vote, m.Commit
	}
	for _, r := range m.GetResponses() {
		earlier.Responses = answered(earlier.Responses, r)
	}
}

// answered adds a response to others that are going to be delivered together with it, and takes out the one that it makes
// idle, if there is one. So there is one of each type at most, and one rejection of each type, to each replica, but for those of the first message. The order of
// those that stay is that in which they came.
//
// To another replica each of them could as well be lost on its way, and the newest is never missing. Those to the replica
// itself tell how far its log is on disk, or that its own vote is: of the same term the newest tells it all, and those of an
// older term are ignored.
func answered(responses []*pb.Message, r *pb.Message) []*pb.Message {
	at := slices.IndexFunc(responses, func(old *pb.Message) bool {
		return old.GetType() == r.GetType() && old.GetTo() == r.GetTo() && old.GetReject() == r.GetReject()
	})
	if at < 0 {
		return append(responses, r)
	}
	// An answer to a message that came late, or to a probe, may tell of less than what the leader was to be told already.
	old := responses[at]
	if r.GetType() == pb.MsgAppResp && !r.GetReject() && old.GetTerm() == r.GetTerm() && old.GetIndex() > r.GetIndex() {
		return responses
	}
	return append(slices.Delete(responses, at, at+1), r)
}
