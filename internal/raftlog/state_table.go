package raftlog

import (
	"fmt"
	"maps"
	"slices"

	"github.com/oncemq/oncemq/internal/seglog"
)

// GroupState is what the state file knows of one group.
type GroupState struct {
	Replica seglog.ReplicaID
	// Live is false when the replica is gone. Then the fields below are zero, and the id is never used again.
	Live bool
	// Term and Vote are Raft's: the newest term seen, and the replica that got this one's vote in it, 0 for none.
	Term, Vote uint64
	// Commit is a lower bound of Raft's commit index, recorded only where it is needed before a start; 0: none.
	Commit seglog.Index
	// Mark is the durable mark, a lower bound of what is on disk; its zero value: nothing is known.
	Mark seglog.Floor
}

// stateTable is what the records of a state file add up to. Writing and opening run the same records through apply,
// so what one would refuse the other never writes.
//
// Invariants, which apply keeps:
//
//  1. A node record is the first, and the only one.
//  2. Terms never fall, and a vote once given in a term stays.
//  3. Commit and mark of a live replica never fall, except that an intent to cut the log takes them back, and one to begin it
//     anew sets the mark.
//  4. The replica ids of a group rise: one that is gone is never live again.
//  5. A group has at most one unfinished intent, and a live replica then: deletion takes the place of any other, and a
//     replica that is gone has none.
//  6. live is the bytes that writing the table anew would take.
type stateTable struct {
	identity NodeIdentity
	boot     [16]byte
	groups   map[seglog.GroupID]GroupState
	intents  map[seglog.GroupID]begunIntent
	live     int64
}

// begunIntent is an intent that was begun and is not done.
type begunIntent struct {
	record   stateRecord
	sequence uint64 // of the record
}

func newStateTable() *stateTable {
	return &stateTable{groups: map[seglog.GroupID]GroupState{}, intents: map[seglog.GroupID]begunIntent{}}
}

// says reports whether a record would change nothing: marks and commits are lower bounds, so a lower one is no news. A
// mark that comes late, when the replica is gone, is none either.
func (t *stateTable) says(r stateRecord) bool {
	s, known := t.groups[r.group]
	switch r.recordType {
	case recordBoot:
		return t.boot == r.boot
	case recordReplica:
		return r.life == replicaGone && known && s == GroupState{Replica: r.replica}
	case recordVote:
		return s.Live && s.Term == r.term && s.Vote == r.vote
	case recordCommit:
		return s.Live && r.index <= s.Commit
	case recordMark:
		return known && !s.Live || s.Live && r.index <= s.Mark.Index
	case recordIntent:
		return t.intents[r.group].record == r
	case recordDone:
		_, unfinished := t.intents[r.group]
		return !unfinished
	}
	return false
}

// apply adds one record. sequence is the record's own. On an error nothing has changed.
func (t *stateTable) apply(r stateRecord, sequence uint64) error {
	switch r.recordType {
	case recordNode:
		return t.applyNode(r)
	case recordBoot:
		t.boot = r.boot
		return nil
	case recordIntent:
		return t.applyIntent(r, sequence)
	case recordDone:
		if begun, ok := t.intents[r.group]; !ok || begun.sequence != r.intentSequence {
			return fmt.Errorf("group %d: end of an intent %d that was not begun", r.group, r.intentSequence)
		}
		t.endIntent(r.group)
		return nil
	}
	old, known := t.groups[r.group]
	state, err := old.after(r, known)
	if err != nil {
		return fmt.Errorf("group %d: %w", r.group, err)
	}
	t.set(r.group, state)
	if !state.Live {
		t.endIntent(r.group)
	}
	return nil
}

// set replaces the state of a group.
func (t *stateTable) set(g seglog.GroupID, state GroupState) {
	if old, known := t.groups[g]; known {
		t.live -= old.size()
	}
	t.live += state.size()
	t.groups[g] = state
}

// endIntent forgets the unfinished intent of a group, if there is one.
func (t *stateTable) endIntent(g seglog.GroupID) {
	if _, begun := t.intents[g]; begun {
		t.live -= recordSize(recordIntent)
		delete(t.intents, g)
	}
}

func (t *stateTable) applyNode(r stateRecord) error {
	if t.live != 0 {
		return fmt.Errorf("a node record that is not the first record")
	}
	if r.oldestReader > stateFormat {
		return &newerError{fmt.Sprintf("format %d can be read from format %d on, known is %d", r.format, r.oldestReader, stateFormat)}
	}
	if r.oldestReader == 0 || r.oldestReader > r.format || r.identity.Node == 0 {
		return fmt.Errorf("node record with format %d, oldest reader %d, node %d", r.format, r.oldestReader, r.identity.Node)
	}
	t.identity = r.identity
	t.live = recordSize(recordNode) + recordSize(recordBoot)
	return nil
}

// applyIntent takes mark and commit back at once: what an intent removes is not on disk any more when it is done.
func (t *stateTable) applyIntent(r stateRecord, sequence uint64) error {
	state, ok := t.groups[r.group]
	if !ok || !state.Live {
		return fmt.Errorf("group %d: intent for a replica that is not live", r.group)
	}
	begun, unfinished := t.intents[r.group]
	if unfinished && r.intent != intentDelete {
		return fmt.Errorf("group %d: intent %d before the end of intent %d", r.group, sequence, begun.sequence)
	}
	switch r.intent {
	case intentTruncate, intentGiveUp:
		if r.index < 2 {
			return fmt.Errorf("group %d: intent to cut the log at index %d", r.group, r.index)
		}
		// Where the entry before the cut ends is not known, and no mark is always true. A mark from just after a roll names
		// the entry before the cut, and a segment that goes with it.
		if state.Mark.Index >= r.index || state.Mark.Segment >= r.index {
			state.Mark = seglog.Floor{}
		}
		state.Commit = min(state.Commit, r.index-1)
		t.set(r.group, state)
	case intentInstall:
		if r.index < 1 || r.index+1 == 0 {
			return fmt.Errorf("group %d: intent to begin the log anew behind index %d", r.group, r.index)
		}
		// Before the intent is done the log is nothing but this: a segment with its header.
		state.Mark = seglog.Floor{Index: r.index, Segment: r.index + 1, Position: seglog.HeaderBytes}
		t.set(r.group, state)
	case intentDelete:
	default:
		return &newerError{fmt.Sprintf("group %d: unknown intent %d", r.group, r.intent)}
	}
	t.endIntent(r.group)
	t.intents[r.group] = begunIntent{record: r, sequence: sequence}
	t.live += recordSize(recordIntent)
	return nil
}

// after returns the state after one record about the group. known is false when this is its first.
func (s GroupState) after(r stateRecord, known bool) (GroupState, error) {
	if r.recordType == recordReplica {
		return s.afterReplica(r, known)
	}
	if !s.Live {
		return s, fmt.Errorf("record type %d for a replica that is not live", r.recordType)
	}
	switch r.recordType {
	case recordVote:
		if r.term < s.Term || r.term == 0 {
			return s, fmt.Errorf("term falls from %d to %d", s.Term, r.term)
		}
		if r.term == s.Term && s.Vote != 0 && r.vote != s.Vote {
			return s, fmt.Errorf("vote in term %d changes from %d to %d", s.Term, s.Vote, r.vote)
		}
		s.Term, s.Vote = r.term, r.vote
	case recordCommit:
		if r.index <= s.Commit {
			return s, fmt.Errorf("commit falls from %d to %d", s.Commit, r.index)
		}
		s.Commit = r.index
	case recordMark:
		if r.index <= s.Mark.Index {
			return s, fmt.Errorf("durable mark falls from %d to %d", s.Mark.Index, r.index)
		}
		s.Mark = seglog.Floor{Index: r.index, Segment: r.segment, Position: r.position}
	}
	return s, nil
}

func (s GroupState) afterReplica(r stateRecord, known bool) (GroupState, error) {
	switch {
	case r.replica == 0:
		return s, fmt.Errorf("replica id 0")
	case r.life == replicaLive && !known:
		return GroupState{Replica: r.replica, Live: true}, nil
	case r.life == replicaLive && !s.born() && r.replica >= s.Replica:
		return GroupState{Replica: r.replica, Live: true}, nil
	case r.life == replicaLive && !s.Live && r.replica > s.Replica:
		return GroupState{Replica: r.replica, Live: true}, nil
	case r.life == replicaGone && (!known || s.Live && r.replica == s.Replica):
		return GroupState{Replica: r.replica}, nil
	}
	return s, fmt.Errorf("replica %d becomes %d while replica %d (live: %t) is recorded", r.replica, r.life, s.Replica, s.Live)
}

// size returns the bytes of the records that say the same.
func (s GroupState) size() int64 {
	size := recordSize(recordReplica)
	if s.Term != 0 {
		size += recordSize(recordVote)
	}
	if s.Commit != 0 {
		size += recordSize(recordCommit)
	}
	if s.Mark.Index != 0 {
		size += recordSize(recordMark)
	}
	return size
}

// born says whether the birth is whole. A crash can leave the replica record without the first vote behind it; then
// nobody was told of the replica, and it is made anew.
func (s GroupState) born() bool { return !s.Live || s.Term != 0 }

// groupIDs returns all groups, unborn ones too, ascending.
func (t *stateTable) groupIDs() []seglog.GroupID {
	return slices.Sorted(maps.Keys(t.groups))
}

// records returns the shortest list of records that adds up to the table.
func (t *stateTable) records() []stateRecord {
	list := []stateRecord{
		{recordType: recordNode, format: stateFormat, oldestReader: stateFormat, identity: t.identity},
		{recordType: recordBoot, boot: t.boot},
	}
	for _, g := range t.groupIDs() {
		s := t.groups[g]
		life := replicaGone
		if s.Live {
			life = replicaLive
		}
		list = append(list, stateRecord{recordType: recordReplica, group: g, replica: s.Replica, life: life})
		if s.Term != 0 {
			list = append(list, stateRecord{recordType: recordVote, group: g, term: s.Term, vote: s.Vote})
		}
		if s.Commit != 0 {
			list = append(list, stateRecord{recordType: recordCommit, group: g, index: s.Commit})
		}
		if m := s.Mark; m.Index != 0 {
			list = append(list, markRecord(g, m))
		}
		if begun, ok := t.intents[g]; ok {
			list = append(list, begun.record)
		}
	}
	return list
}
