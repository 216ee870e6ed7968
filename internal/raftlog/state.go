package raftlog

import (
	"errors"
	"fmt"
	"sync"

	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
)

// ErrNoState says that a directory holds no state file: no node lives there yet.
var ErrNoState = errors.New("no state file")

var (
	errStateClosed   = errors.New("state file is closed")
	errStateReadOnly = errors.New("state file is open for reading only")
)

// stateRewriteMin is the size in bytes below which a state file is never written anew.
const stateRewriteMin = 1 << 20

// NodeIdentity is who a data directory belongs to.
type NodeIdentity struct {
	Cluster [16]byte
	Node    uint32 // from 1 upwards
}

// StatePosition is a place in the state file, behind all that was written by the call which returned it. Positions rise,
// and stay valid when the file is rewritten.
type StatePosition uint64

// StateFile holds what is not log, of all groups of a node: terms, votes, durable marks, and which replicas there are.
// It is one append-only file, so that the votes of thousands of groups share one fdatasync. Writing is two steps: a Set
// method puts records into the file, where they outlive the process, and Sync makes them durable. Answers that depend
// on a record must wait for its Sync.
//
// All methods may be called at the same time. The first error of a write or sync stays: every later call that writes
// or syncs returns it (seglog.ErrSync), because what the file holds then is unknown until it is read back after a restart. A full disk is
// no such error: the call returns ErrFull, and its records count as given; the next call that writes completes them before
// anything else, the same bytes in the same place, so that what a part of them has left there never gets another end.
//
// Invariants, under mu:
//
//  1. The file holds the records up to the sequence written and ends at end. buf holds those behind them, up to ahead;
//     at end there may be a part of them.
//  2. durable <= written; records up to durable are on disk.
//  3. table is the sum of the records in the file and in buf, or err is set.
//  4. At most one goroutine syncs (syncing), and nobody replaces file meanwhile.
type StateFile struct {
	fs   vfs.FS
	dir  string
	boot [16]byte // of the machine now; recorded by FinishRecovery

	mu         sync.Mutex
	turn       *sync.Cond // a sync has ended
	table      *stateTable
	file       vfs.File
	name       string
	generation uint64
	end        int64
	written    uint64 // sequence of the last record
	durable    uint64 // sequence up to which records are on disk
	sum        uint32 // CRC of the last record
	buf        []byte // records of an append that are not in the file yet
	ahead      link   // of what comes behind buf
	postponed  int64  // size below which the file is not rewritten, because there was no room for it
	syncing    bool
	err        error
}

// Node returns who the file belongs to.
func (s *StateFile) Node() NodeIdentity {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.identity
}

// Group returns what is written about a group, durable or not. ok is false when there is no record of it: no replica was
// ever born here.
func (s *StateFile) Group(g seglog.GroupID) (state GroupState, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state, ok = s.table.groups[g]
	if !ok || !state.born() {
		return GroupState{}, false
	}
	return state, true
}

// Groups returns the groups that Group knows, ascending.
func (s *StateFile) Groups() []seglog.GroupID {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.table.groupIDs()
	born := ids[:0]
	for _, g := range ids {
		if s.table.groups[g].born() {
			born = append(born, g)
		}
	}
	return born
}

// Birth records a new replica with the term that its base snapshot has and no vote, durable on return. The files of
// the group must be durable before. Many births at once share their syncs.
func (s *StateFile) Birth(g seglog.GroupID, replica seglog.ReplicaID, term uint64) error {
	invariant.Check(term > 0, "birth of group %d with term 0", g)
	return s.record(
		stateRecord{recordType: recordReplica, group: g, replica: replica, life: replicaLive},
		stateRecord{recordType: recordVote, group: g, term: term},
	)
}

// SetVote writes a group's term and vote; vote is the id of a replica, 0 for none. It is a bug to go back to an older
// term or to change a vote given in the same one. The position is to be synced before anything that tells of the
// term or vote leaves the node.
func (s *StateFile) SetVote(g seglog.GroupID, term, vote uint64) (StatePosition, error) {
	return s.append(stateRecord{recordType: recordVote, group: g, term: term, vote: vote})
}

// SetCommit writes a lower bound of a group's commit index. One that is not above the one recorded changes nothing.
func (s *StateFile) SetCommit(g seglog.GroupID, index seglog.Index) (StatePosition, error) {
	return s.append(stateRecord{recordType: recordCommit, group: g, index: index})
}

// SetMark writes a group's durable mark: the caller has synced the log up to it. A mark that is not above the one
// recorded changes nothing. It needs no sync: an older mark is still true.
func (s *StateFile) SetMark(g seglog.GroupID, mark seglog.Floor) (StatePosition, error) {
	return s.append(markRecord(g, mark))
}

func markRecord(g seglog.GroupID, mark seglog.Floor) stateRecord {
	return stateRecord{
		recordType: recordMark, group: g, index: mark.Index, segment: mark.Segment, position: mark.Position,
	}
}

// Deleting returns the groups whose deletion was begun and has not ended, ascending: DeleteGroup is to be called again.
func (s *StateFile) Deleting() []seglog.GroupID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var groups []seglog.GroupID
	for _, g := range s.table.groupIDs() {
		if s.table.intents[g].record.intent == intentDelete {
			groups = append(groups, g)
		}
	}
	return groups
}

// unfinished returns the intent of a group that was begun and is not done.
func (s *StateFile) unfinished(g seglog.GroupID) (stateRecord, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	begun, ok := s.table.intents[g]
	return begun.record, ok
}

// record writes records of a group, durable on return.
func (s *StateFile) record(records ...stateRecord) error {
	pos, err := s.append(records...)
	if err != nil {
		return err
	}
	return s.Sync(pos)
}

// finish records that the unfinished intent of a group is done, durable on return: were it carried out again later, it
// would take away what was written since. mark is what is on disk then; its zero value: nothing new is known.
func (s *StateFile) finish(g seglog.GroupID, mark seglog.Floor) error {
	records := []stateRecord{{recordType: recordDone, group: g}}
	if mark != (seglog.Floor{}) {
		records = append(records, markRecord(g, mark))
	}
	return s.record(records...)
}

// FinishRecovery records that every log of the node has been opened and synced since the machine came up. Until then
// each OpenState reports SameBoot false, so that a process that is killed in the middle of this work leaves the rest of
// the logs to be judged as what they are: written before the machine went down.
func (s *StateFile) FinishRecovery() error {
	return s.record(stateRecord{recordType: recordBoot, boot: s.boot})
}

// Sync returns once everything up to pos is durable. Callers that come while a sync runs share the next one.
//
// Two flushers, A with record 7 and B with record 8, both written: A finds nobody syncing and syncs up to 8, all that
// was written before its fdatasync began; B waits for A's end and returns without a sync of its own. C writes 9 while A's
// fdatasync runs. Whether that one still takes C's bytes along nobody knows, so C is not covered by it: it waits for
// A's end, finds the durable sequence at 8 and syncs next, for itself and all that have written meanwhile.
func (s *StateFile) Sync(pos StatePosition) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	invariant.Check(uint64(pos) <= s.written, "sync of the state file beyond its end")
	for s.err == nil && s.durable < uint64(pos) {
		if s.syncing {
			s.turn.Wait()
			continue
		}
		s.syncWritten()
	}
	return s.err
}

// syncWritten makes all that is written durable. Called with mu held, which it gives up while the disk works.
func (s *StateFile) syncWritten() {
	if s.mustRewrite() {
		s.rewrite()
		return
	}
	file, written := s.file, s.written
	s.syncing = true
	s.mu.Unlock()
	err := file.SyncData()
	s.mu.Lock()
	s.syncing = false
	if err != nil {
		s.fail("sync", err)
	} else {
		s.durable = written
	}
	s.turn.Broadcast()
}

// append writes records at the end of the file, in one write, and adds them to the table. Those that say nothing new
// are left out. It returns the position behind everything that is written.
func (s *StateFile) append(records ...stateRecord) (StatePosition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.complete(); err != nil {
		return 0, err
	}
	next := link{sequence: s.written, durable: s.durable, previous: s.sum}
	for _, r := range records {
		if s.table.says(r) {
			continue
		}
		if r.recordType == recordDone {
			r.intentSequence = s.table.intents[r.group].sequence // rewriting the file changes it
		}
		next.sequence++
		// Before the write, so that what is wrong never reaches the file.
		if err := s.table.apply(r, next.sequence); err != nil {
			invariant.Bug("state file %s: %v", s.name, err)
		}
		s.buf, next.previous = appendRecord(s.buf, next, r)
	}
	s.ahead = next
	if err := s.complete(); err != nil {
		return 0, err
	}
	if s.mustRewrite() && !s.syncing {
		s.rewrite()
	}
	return StatePosition(s.written), s.err
}

// complete writes what is in buf. Called with mu held.
func (s *StateFile) complete() error {
	if s.err != nil || len(s.buf) == 0 {
		return s.err
	}
	err := s.file.WriteVAt([][]byte{s.buf}, s.end)
	if vfs.IsFull(err) {
		return fmt.Errorf("append to state file %s: %w", s.name, asFull(err))
	}
	if err != nil {
		return s.fail("append to", err)
	}
	s.end += int64(len(s.buf))
	s.written, s.sum = s.ahead.sequence, s.ahead.previous
	s.buf = s.buf[:0]
	return nil
}

// fail keeps the first error and returns it. Called with mu held.
func (s *StateFile) fail(verb string, err error) error {
	if s.err == nil {
		s.err = fmt.Errorf("%s state file %s: %w: %w", verb, s.name, seglog.ErrSync, err)
	}
	return s.err
}

// Close syncs what is written and closes the file. What a full disk does not let in was promised to nobody, and is lost.
func (s *StateFile) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(s.err, errStateReadOnly) {
		return nil
	}
	_ = s.complete() // s.err tells
	for s.syncing || s.err == nil && s.durable < s.written {
		if s.syncing {
			s.turn.Wait()
			continue
		}
		s.syncWritten()
	}
	if errors.Is(s.err, errStateClosed) {
		return s.err
	}
	err := s.err
	s.err = errStateClosed
	if closeErr := s.file.Close(); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("close state file %s: %w", s.name, closeErr))
	}
	return err
}
