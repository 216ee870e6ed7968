package seglog

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
)

// Abandon takes everything from entry from on out of a log that is damaged there, so that Open finds a log that ends
// with entry from - 1. What is taken out is kept in side files: segments that begin with from or later as a whole, of
// the one before them the part, which needs room on the disk. The log must not be open. A durable mark from before
// says nothing about what is left, and must not be handed to Open.
//
// When from is not above the first index, nothing is left, and the caller can make a new log by Create. A *DamageError
// found no whole entries before from in their segment, and nothing was changed; a *FormatError and an *IdentityError
// are as in Open. Whatever ends it, the call may be repeated; a part of a segment that was saved already is then saved
// once more at most.
func Abandon(cfg Config, from Index) error {
	cfg, err := cfg.withDefaults()
	if err == nil {
		err = abandon(cfg, from)
	}
	if err != nil {
		return fmt.Errorf("abandon log %s from entry %d: %w", cfg.Dir, from, err)
	}
	return nil
}

func abandon(cfg Config, from Index) error {
	names, err := cfg.FS.List(cfg.Dir)
	if err != nil {
		return fmt.Errorf("list directory: %w", err)
	}
	var kept Index // the last segment that keeps a part
	var gone []Index
	for _, name := range names {
		switch first, ok := parseName(name, logSuffix); {
		case ok && first < from:
			kept = max(kept, first)
		case ok:
			gone = append(gone, first)
		}
	}
	s := &segment{}
	if kept > 0 {
		if s, err = openTo(cfg, kept, from); err != nil {
			return err
		}
	}
	err = removeStrayIndexes(cfg, names)
	for _, first := range slices.Backward(gone) {
		if err == nil {
			err = setAside(cfg, first)
		}
	}
	if err == nil && kept > 0 {
		err = s.cutAside(cfg)
	}
	return errors.Join(err, s.close())
}

// removeStrayIndexes removes the index files whose segments are gone, as Open does: setAside may have been cut short.
// When nothing is left, Create would refuse the directory.
func removeStrayIndexes(cfg Config, names []string) error {
	for _, name := range names {
		first, ok := parseName(name, indexSuffix)
		if !ok || slices.Contains(names, filepath.Base(segmentName(cfg.Dir, first, logSuffix))) {
			continue
		}
		if err := cfg.FS.Remove(filepath.Join(cfg.Dir, name)); err != nil {
			return fmt.Errorf("remove index: %w", err)
		}
	}
	return nil
}

// openTo opens the segment that begins with first and reads it up to entry from, which comes behind its tail then.
func openTo(cfg Config, first, from Index) (*segment, error) {
	r := &recovery{cfg: cfg, segments: []*segment{newSegment(cfg.Dir, place{index: first})}}
	s := r.segments[0]
	err := r.openFiles(s)
	if err == nil {
		err = s.located(0, r.readHeader(s))
	}
	if err == nil {
		n := min(from-first, math.MaxUint32) // more than a segment can have
		s.tail, err = s.scanTo(&r.window, int(n), func(record) error { return nil })
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	return s, nil
}

// AbandonBefore takes all segments before the one that begins with first out of a log that is damaged there, and keeps
// them in side files. The log must not be open. A *DamageError: no segment begins with first, and nothing was changed.
// Whatever ends it, the call may be repeated.
func AbandonBefore(cfg Config, first Index) error {
	if err := abandonBefore(cfg, first); err != nil {
		return fmt.Errorf("abandon log %s before entry %d: %w", cfg.Dir, first, err)
	}
	return nil
}

func abandonBefore(cfg Config, first Index) error {
	names, err := cfg.FS.List(cfg.Dir)
	if err != nil {
		return fmt.Errorf("list directory: %w", err)
	}
	name := segmentName(cfg.Dir, first, logSuffix)
	if !slices.Contains(names, filepath.Base(name)) {
		return &DamageError{File: name, Detail: "the segment is missing, with which the log is to begin"}
	}
	for _, name := range names {
		if i, ok := parseName(name, logSuffix); ok && i < first {
			if err := setAside(cfg, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// setAside makes a segment a side file, and that durable (L9). Without it, its index is nothing.
func setAside(cfg Config, first Index) error {
	name, err := sideName(cfg, first, 0)
	if err != nil {
		return err
	}
	if err := cfg.FS.Rename(segmentName(cfg.Dir, first, logSuffix), name); err != nil {
		return fmt.Errorf("set segment aside: %w", err)
	}
	if err := cfg.FS.Remove(segmentName(cfg.Dir, first, indexSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove index: %w", err)
	}
	return cfg.syncDir()
}

// cutAside moves what lies behind the tail to a side file, unless it is nothing but zeros.
func (s *segment) cutAside(cfg Config) error {
	var w window
	if err := w.open(s.file, windowBytes); err != nil {
		return fmt.Errorf("find size of segment: %w", err)
	}
	zeros, err := w.zerosFrom(s.tail.position)
	if err != nil {
		return fmt.Errorf("read segment %s: %w", s.name, err)
	}
	if !zeros {
		if _, err := saveEnd(cfg, s, s.tail.position, w.size); err != nil {
			return err
		}
	}
	return s.cutEnd()
}
