package raftlog

import (
	"fmt"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
)

// change is what is to be done with the log between two entries of a flush. With neither cut nor base a segment begins.
type change struct {
	after int          // so many entries of the flush are to be in the log before
	cut   seglog.Index // the entries from it on are to go; 0: none
	base  *Base        // all is to go, and the log to begin anew behind it; nil: not so
}

// gather takes from flushing what is to be written and answered.
func (w *Writer) gather() {
	if w.gathered {
		return
	}
	w.gathered = true
	w.entries, w.changes, w.responses = w.entries[:0], w.changes[:0], w.responses[:0]
	w.appended, w.size = 0, 0
	next := w.log.segments.LastIndex() + 1
	for _, m := range w.flushing {
		if m == nil {
			w.changes = append(w.changes, change{after: len(w.entries)})
			continue
		}
		if s := m.GetSnapshot(); s != nil {
			base := w.baseOf(s)
			w.changes = append(w.changes, change{after: len(w.entries), base: &base})
			next = base.Index + 1
		}
		next = w.gatherEntries(m.GetEntries(), next)
		w.responses = append(w.responses, m.GetResponses()...)
	}
}

// gatherEntries takes the entries of one message, and returns the index behind the last. next is the one behind the log as
// it is going to be before them.
func (w *Writer) gatherEntries(entries []*pb.Entry, next seglog.Index) seglog.Index {
	for i, e := range entries {
		index := seglog.Index(e.GetIndex())
		if i == 0 && index < next {
			w.changes = append(w.changes, change{after: len(w.entries), cut: index})
			next = index
		}
		invariant.Check(index == next, "group %d is to store entry %d, and %d is next", w.log.group, index, next)
		next++
		w.entries = append(w.entries, toLog(e))
		w.size += int64(len(e.GetData()))
	}
	return next
}

// baseOf returns the base snapshot that a snapshot of Raft is.
func (w *Writer) baseOf(s *pb.Snapshot) Base {
	base, err := DecodeBase("in a snapshot", s.GetData())
	meta, identity := s.GetMetadata(), w.log.cfg.Identity
	invariant.Check(err == nil, "a snapshot of group %d was not verified: %v", w.log.group, err)
	invariant.Check(base.Cluster == identity.Cluster && base.Group == identity.Group &&
		uint64(base.Index) == meta.GetIndex() && uint64(base.Term) == meta.GetTerm(),
		"group %d gets the snapshot of group %d, index %d, term %d as one of index %d, term %d",
		identity.Group, base.Group, base.Index, base.Term, meta.GetIndex(), meta.GetTerm())
	return base.first()
}

// write appends what is left of the entries, and changes the log where that is due.
func (w *Writer) write() error {
	segments := w.log.segments
	for {
		end := len(w.entries)
		if len(w.changes) > 0 {
			end = w.changes[0].after
		}
		last := segments.LastIndex()
		err := segments.Append(w.entries[w.appended:end])
		w.appended += int(segments.LastIndex() - last)
		if err != nil || len(w.changes) == 0 {
			return err
		}
		if err := w.carryOut(w.changes[0]); err != nil {
			return err
		}
		w.changes = slices.Delete(w.changes, 0, 1)
	}
}

// carryOut makes one change. After ErrFull it goes on where it stopped.
func (w *Writer) carryOut(c change) error {
	var err error
	switch {
	case c.base != nil:
		// Before the intent: a mark that is written behind it would name what is gone.
		w.flushers.markers.forget(w.log.group)
		err = w.log.install(*c.base)
	case c.cut > 0:
		w.flushers.markers.forget(w.log.group)
		err = w.log.cutFrom(c.cut)
	default:
		return w.log.segments.Roll()
	}
	if err != nil {
		return fmt.Errorf("make way for what a leader has: %w", err)
	}
	// The sink may know segments that are gone, and knows that a base snapshot has its segment.
	w.segment = min(w.segment, w.log.segments.End().Segment)
	if c.base != nil {
		w.segment = c.base.Index + 1
	}
	return nil
}
