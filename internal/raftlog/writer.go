package raftlog

import (
	"errors"
	"sync"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
)

// Sink is what a group hears from its Writer, from one goroutine at a time. Its methods must not block.
type Sink interface {
	// Carried delivers the responses of messages whose writes are durable, in order, those to other replicas among them,
	// and the first indexes of the segments that were begun with them and want a base snapshot, ascending. An entry of a
	// segment is never in responses before the segment is in rolled. A segment may go again with the entries that are cut
	// off; one that begins later with the same index is in rolled once more. responses is the writer's again when Carried
	// returns.
	Carried(responses []*pb.Message, rolled []seglog.Index)
	// Failed says that nothing is delivered any more: a write or sync has failed, which is fatal (Events); or, with ErrFull,
	// the disk was still full when the writer was closed; or the group's own files are damaged (IsDamage), which nobody
	// else is told.
	Failed(error)
}

// writerState is where a writer is. It changes under the lock of Flushers.
type writerState uint8

const (
	writerIdle   writerState = iota
	writerQueued             // in Flushers.waiting, or being flushed
	writerParked             // in Flushers.parked: its flush has met a full disk
	// writerBroken: its flush has failed. No flusher takes it up again: what follows must not be written behind a hole.
	writerBroken
)

// Writer carries out one group's storage messages.
type Writer struct {
	flushers *Flushers
	log      *Log
	sink     Sink

	// Under the lock of flushers.
	state   writerState
	pending []*pb.Message // what the next flush will carry out, in order (queued); nil stands for Roll
	closing bool          // a full disk is a failure
	settled sync.Cond     // state has changed

	// Of the one flusher that carries out this group's messages.
	flushing   []*pb.Message // what this flush carries out; empty: there is none
	gathered   bool          // the fields down to responses hold what is in flushing
	entries    []seglog.Entry
	appended   int      // how many of entries are in the log
	changes    []change // in order; those done are gone
	size       int64    // of entries, in bytes
	responses  []*pb.Message
	term, vote uint64       // as recorded
	segment    seglog.Index // the newest one that sink knows
	unmarked   int64        // bytes that the durable mark does not cover
}

// NewWriter returns the writer of a group.
func (f *Flushers) NewWriter(log *Log, sink Sink) *Writer {
	w := &Writer{
		flushers: f, log: log, sink: sink,
		term: log.hard.GetTerm(), vote: log.hard.GetVote(),
		segment: log.segments.End().Segment,
	}
	w.settled.L = &f.mu
	return w
}

// become changes the state. The caller holds the lock.
func (w *Writer) become(state writerState) {
	w.state = state
	w.settled.Broadcast()
}

// BeginClose says that the writer is going to be closed: from now on it does not wait for room on the disk any more. One
// that does tries once more, and then gives up. What is submitted is carried out as ever.
func (w *Writer) BeginClose() {
	f := w.flushers
	f.mu.Lock()
	defer f.mu.Unlock()
	w.closing = true
	f.unpark(func(parked *Writer) bool { return parked == w })
}

// Close waits until nothing of what was submitted is on its way to the log any more, so that the log can be closed. It
// does not wait for room on the disk. Nothing may be submitted afterwards.
func (w *Writer) Close() {
	w.BeginClose()
	w.flushers.mu.Lock()
	defer w.flushers.mu.Unlock()
	for w.state == writerQueued {
		if w.flushers.stepped {
			w.flushers.mu.Unlock()
			w.flushers.Step()
			w.flushers.mu.Lock()
			continue
		}
		w.settled.Wait()
	}
}

// Submit queues a MsgStorageAppend, for the group's loop; m is the writer's from then on. It never waits; the entries that may be
// queued are bounded by the partition's bound on accepted bytes, and all else by the number of messages that have some: what
// only answers takes the place of older answers that it makes idle. Entries that begin within the log cut it off first. A snapshot, which whoever received it has
// verified with DecodeBase, takes the place of the whole log; the response that has it comes when it is on disk, and the loop
// then calls Log.Restored. It belongs to the writer until then.
func (w *Writer) Submit(m *pb.Message) {
	invariant.Check(m.GetType() == pb.MsgStorageAppend, "not a storage message")
	if s := m.GetSnapshot(); s != nil {
		w.log.restoring(seglog.Index(s.GetMetadata().GetIndex()), m.GetEntries())
	}
	w.queue(m)
}

// Roll has a segment begin behind all that was submitted before, unless one begins there already.
func (w *Writer) Roll() { w.queue(nil) }

func (w *Writer) queue(m *pb.Message) {
	w.flushers.mu.Lock()
	defer w.flushers.mu.Unlock()
	invariant.Check(!w.flushers.closed, "storage message after close")
	w.pending = queued(w.pending, m)
	if w.state == writerIdle {
		w.flushers.enqueue(w)
	}
}

// flush carries out what is in flushing: vote, changes and entries in their order, sync, answers (invariant 1). A message without entries and without
// a new term or vote causes no sync; it was queued behind those that it waits for. After ErrFull it goes on where it
// stopped.
func (w *Writer) flush() error {
	if err := w.recordVote(); err != nil {
		return err
	}
	w.gather()
	if err := w.write(); err != nil {
		return asFull(err)
	}
	if len(w.entries) > 0 {
		if err := w.log.segments.Sync(); err != nil {
			return err
		}
		if err := w.mark(); err != nil {
			return err
		}
	}
	w.sink.Carried(w.responses, w.rolled())
	clear(w.entries)
	clear(w.responses)
	w.gathered = false
	return nil
}

// recordVote writes the newest term and vote in flushing, if they differ from the recorded ones, and syncs the state file.
// The commit index that comes with them needs no record: a group of one commits its whole log again, and a leader of several
// tells it anew.
func (w *Writer) recordVote() error {
	term, vote := w.term, w.vote
	for _, m := range w.flushing {
		if m.GetTerm() != 0 {
			term, vote = m.GetTerm(), m.GetVote()
		}
	}
	if term == w.term && vote == w.vote {
		return nil
	}
	position, err := w.flushers.state.SetVote(w.log.group, term, vote)
	if err != nil {
		return err
	}
	if err := w.flushers.state.Sync(position); err != nil {
		return err
	}
	w.term, w.vote = term, vote
	return nil
}

// rolled returns the first indexes of the segments that were begun since it was last called, and are there.
func (w *Writer) rolled() []seglog.Index {
	newest := w.log.segments.End().Segment
	if newest == w.segment {
		return nil
	}
	var begun []seglog.Index
	for _, s := range w.log.segments.Segments() {
		if s.First > w.segment {
			begun = append(begun, s.First)
		}
	}
	w.segment = newest
	return begun
}

// mark sees to it that the durable mark follows the flushed end of the log. On a full disk an older mark has to do.
func (w *Writer) mark() error {
	end := w.log.segments.End()
	if w.unmarked += w.size; w.unmarked >= markBytes {
		_, err := w.flushers.state.SetMark(w.log.group, end)
		if err == nil {
			w.unmarked = 0
			return nil
		}
		if !errors.Is(err, ErrFull) {
			return err
		}
	}
	w.flushers.markers.later(w.log.group, end)
	return nil
}
