package seglog

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// DropBefore removes all segments before the one that begins with first. They are out of the log at once: FirstIndex is
// first, and a read that still has a part of them fails with ErrOutOfRange. Then their files go, oldest first; they are
// gone for good when DropBefore returns. ErrOutOfRange: no segment begins with first. When it is below FirstIndex, its
// segments are gone already.
//
// After an error that is not ErrSync, files may be left; the next call goes on with them, and if there is none, they are
// in the log again when it is opened anew.
func (l *Log) DropBefore(first Index) error {
	l.removal.Lock()
	defer l.removal.Unlock()
	err := l.unlist(first)
	for err == nil && len(l.dropped) > 0 {
		if err = l.failSync(removeSegment(l.cfg, l.dropped[0].first)); err == nil {
			l.dropped = l.dropped[1:]
		}
	}
	if err != nil {
		return fmt.Errorf("drop what is before entry %d from log %s: %w", first, l.cfg.Dir, err)
	}
	return nil
}

// unlist takes the segments before the one that begins with first out of the list, and closes them.
func (l *Log) unlist(first Index) error {
	l.mu.Lock()
	n := slices.IndexFunc(l.segments, func(s *segment) bool { return s.first >= first })
	var err error
	switch {
	case l.closed:
		err = fs.ErrClosed
	case l.failed != nil: // a removal that came later could become durable before one whose sync has failed
		err = l.failed
	case n < 0 || n > 0 && l.segments[n].first != first:
		err = fmt.Errorf("no segment begins with it: %w", ErrOutOfRange)
	}
	if err != nil {
		l.mu.Unlock()
		return err
	}
	gone := l.segments[:n]
	l.segments = slices.Clone(l.segments[n:])
	l.mu.Unlock()
	for _, s := range gone {
		err = errors.Join(err, s.close())
	}
	l.dropped = append(l.dropped, gone...)
	return err
}

// removeSegment removes the files of a segment, as far as they are there, and makes that durable (L9). The index goes
// last: without its segment it is nothing, and Open removes it, but without its index a segment has to be read.
func removeSegment(cfg Config, first Index) error {
	for _, suffix := range []string{logSuffix, indexSuffix} {
		if err := cfg.FS.Remove(segmentName(cfg.Dir, first, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove segment: %w", err)
		}
	}
	return cfg.syncDir()
}

// TruncateSuffix removes all entries from from on: the log ends with entry from - 1, durable, and goes on from there.
// The segment that begins with from stays, without an entry. Nothing happens when the log ends before from.
// ErrOutOfRange: from is below FirstIndex. A *DamageError found no whole entries before from in its segment, or could not read
// them, and a *FormatError some of a newer version; nothing was changed. A durable mark from from on must not be handed to Open any more, from before the call.
//
// A read of what goes fails, or finds what is appended later in its place; one of what stays does not notice. Whole segments
// go first, newest first, then a part of the one that stays, so that the log can be opened whenever the process
// or the machine ends meanwhile: it has at least the entries before from, and the call has to be repeated, which is
// for the caller to remember. Every other error is ErrSync, whatever its cause: the log must be opened anew and the call
// repeated.
func (l *Log) TruncateSuffix(from Index) error {
	l.removal.Lock()
	defer l.removal.Unlock()
	if err := l.truncateSuffix(from); err != nil {
		return fmt.Errorf("truncate log %s from entry %d: %w", l.cfg.Dir, from, l.failSync(err))
	}
	return nil
}

func (l *Log) truncateSuffix(from Index) error {
	v, a := l.view(), &l.appender
	if err := l.failure(); err != nil {
		return err
	}
	if from < v.firstIndex() {
		return ErrOutOfRange
	}
	// What a failed write or roll left is not in the log, but could be at the next start.
	if from > v.lastIndex() && !a.ragged && a.next == nil {
		return nil
	}
	k, kept, err := v.beginning(from)
	if err != nil {
		return err
	}
	l.mu.Lock()
	gone := l.segments[k+1:]
	l.segments = append(slices.Clone(l.segments[:k]), kept) // a copy, as readers use the list and the segment
	l.mu.Unlock()
	if a.next != nil {
		gone = append(slices.Clone(gone), a.next)
	}
	if err := l.removeEnd(gone, kept); err != nil {
		return fmt.Errorf("%w: %w", ErrSync, err)
	}
	a.next, a.ragged = nil, false
	return nil
}

// removeEnd removes segments, newest first, and what is behind the tail of the one before them.
func (l *Log) removeEnd(gone []*segment, kept *segment) error {
	var err error
	for _, s := range gone {
		err = errors.Join(err, s.close())
	}
	for _, s := range slices.Backward(gone) {
		if err == nil {
			err = removeSegment(l.cfg, s.first)
		}
	}
	if err != nil {
		return err
	}
	return kept.cutEnd()
}

// beginning returns the number of the segment that entry from belongs to, or would belong to at the end of the log, and
// that segment as it is without the entries from from on. Nothing is changed.
func (v view) beginning(from Index) (int, *segment, error) {
	last := len(v.segments) - 1
	k := v.segmentOf(from)
	s := *v.segments[k]
	s.tail, s.records = v.tail, v.records
	s.reread, s.unmended = false, nil
	n := int(min(from, v.lastIndex()+1) - s.first)
	switch {
	case k < last: // its index is in a file, which is not proved
		s.records = make([]record, 0, n)
		var w window
		var err error
		s.tail, err = s.scanTo(&w, n, func(r record) error {
			s.records = append(s.records, r)
			return nil
		})
		return k, &s, s.asDamage(err)
	case n < s.tail.entries:
		s.tail = tail{entries: n, position: int64(s.records[n].position), offset: s.records[n].offset}
		s.tail.term, s.tail.maxTimestamp = s.previousTerm, -1
		if n > 0 {
			s.tail.term, s.tail.maxTimestamp = s.records[n-1].term, s.records[n-1].maxTimestamp
		}
	}
	s.records = s.records[:n:n] // what is appended goes elsewhere: readers use what is behind
	return k, &s, nil
}

// asDamage makes an error of reading a segment one of its damage, unless it says what is wrong with it already.
func (s *segment) asDamage(err error) error {
	_, damage := errors.AsType[*DamageError](err)
	_, format := errors.AsType[*FormatError](err)
	if err == nil || damage || format {
		return err
	}
	return s.damage(s.tail.position, fmt.Sprintf("it cannot be read: %v", err))
}
