package seglog

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/invariant"
)

// Reset removes all that the log has and begins it anew, as Create would: its first entry will be first, and stand at
// firstOffset; previous is the term of the entry before it. It is for the appender. Readers keep the Log: it has no
// entry from the moment on at which Reset begins, and a read that still has a part of what goes fails with ErrOutOfRange.
//
// On disk the segments go newest first, then the new one is made, durable when Reset returns. What a crash leaves on the way
// is no log: the caller must know that a reset was begun, and then call Erase and Create. After an error that is not
// ErrSync the call is to be repeated, with the same arguments, before anything else is written. A durable mark from before
// must not be handed to Open any more, from before the call.
func (l *Log) Reset(first Index, previous batch.Term, firstOffset batch.Offset) error {
	invariant.Check(first > 0 && firstOffset >= 0 && previous <= math.MaxInt32,
		"reset log %s to index %d, term %d, offset %d", l.cfg.Dir, first, previous, firstOffset)
	l.removal.Lock()
	defer l.removal.Unlock()
	if err := l.reset(place{index: first, offset: firstOffset, term: previous}); err != nil {
		return fmt.Errorf("reset log %s to entry %d: %w", l.cfg.Dir, first, l.failSync(err))
	}
	return nil
}

func (l *Log) reset(at place) error {
	a := &l.appender
	if err := l.failure(); err != nil {
		return err
	}
	if a.fresh == nil {
		if err := l.unlistAll(newSegment(l.cfg.Dir, at)); err != nil {
			return err
		}
	}
	invariant.Check(a.fresh.next() == at, "a reset of log %s goes on at another place", l.cfg.Dir)
	for n := len(a.gone); n > 0; n = len(a.gone) {
		if err := removeSegment(l.cfg, a.gone[n-1]); err != nil {
			return err
		}
		a.gone = a.gone[:n-1]
	}
	if err := a.fresh.create(l.cfg); err != nil {
		return err
	}
	a.fresh = nil
	return nil
}

// unlistAll replaces all segments by a fresh one, whose files are still to be made: as it has no entry, no reader wants them.
func (l *Log) unlistAll(fresh *segment) error {
	a := &l.appender
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return fs.ErrClosed
	}
	gone := l.segments
	l.segments = []*segment{fresh}
	l.mu.Unlock()
	if a.next != nil {
		gone = append(slices.Clone(gone), a.next)
	}
	var err error
	a.gone = a.gone[:0]
	for _, s := range l.dropped { // closed already
		a.gone = append(a.gone, s.first)
	}
	for _, s := range gone {
		err = errors.Join(err, s.close())
		a.gone = append(a.gone, s.first)
	}
	l.dropped, a.next, a.ragged, a.fresh = nil, nil, false, fresh
	return err
}

// Erase removes the segments in the directory of a log that is not open, newest first, each for good before the next one.
// Whatever ends it, the call may be repeated.
func Erase(cfg Config) error {
	if err := erase(cfg); err != nil {
		return fmt.Errorf("erase log %s: %w", cfg.Dir, err)
	}
	return nil
}

func erase(cfg Config) error {
	names, err := cfg.FS.List(cfg.Dir)
	if err != nil {
		return fmt.Errorf("list directory: %w", err)
	}
	for _, name := range slices.Backward(names) { // of equal length, and so in the order of the indexes
		if first, ok := parseName(name, logSuffix); ok {
			if err := removeSegment(cfg, first); err != nil {
				return err
			}
		}
	}
	return removeStrayIndexes(cfg, names)
}
