package seglog

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/oncemq/oncemq/internal/vfs"
)

// removeLeftovers removes the files of a half-made segment, index files whose segment is gone, and side files that were
// not finished.
func (r *recovery) removeLeftovers() error {
	if s := r.halfMade; s != nil {
		if err := s.close(); err != nil {
			return fmt.Errorf("close half-made segment: %w", err)
		}
		hadIndex := s.idx != nil
		s.file, s.idx = nil, nil
		if err := r.cfg.FS.Remove(s.name); err != nil {
			return fmt.Errorf("remove half-made segment: %w", err)
		}
		if hadIndex {
			r.leftover = append(r.leftover, filepath.Base(segmentName(r.cfg.Dir, s.first, indexSuffix)))
		}
	}
	for _, name := range r.leftover {
		if err := r.cfg.FS.Remove(filepath.Join(r.cfg.Dir, name)); err != nil {
			return fmt.Errorf("remove what nothing belongs to: %w", err)
		}
	}
	if r.halfMade == nil && len(r.leftover) == 0 {
		return nil
	}
	return r.cfg.syncDir()
}

// cut cuts off a bad end.
func (r *recovery) cut() error {
	if r.bad == nil {
		return nil
	}
	s, size := r.segments[len(r.segments)-1], r.window.size
	// A write that was interrupted left a part of an entry, and had not come to the index yet: that ends where the log
	// does. Where either is not so, what is cut off may be more than that.
	partial, err := r.endsInside(s.tail.position)
	if err != nil {
		return fmt.Errorf("read segment %s: %w", s.name, err)
	}
	if !r.opt.SameBoot || r.wrongIndex[s.first] || !partial {
		if r.report.CutFile, err = saveEnd(r.cfg, s, s.tail.position, size); err != nil {
			return err
		}
	}
	r.report.CutBytes = size - s.tail.position
	return s.cutEnd()
}

// endsInside says whether the segment in the window ends before the entry that begins at a position does.
func (r *recovery) endsInside(at int64) (bool, error) {
	left := r.window.size - at
	b, err := r.window.at(at, min(left, prefixSize))
	if err != nil || left < prefixSize {
		return true, err
	}
	length, bad := entryLength(b)
	return bad == nil && length > left, nil
}

// repairIndexes makes the index files anew that do not agree with the log.
func (r *recovery) repairIndexes() error {
	for k, s := range r.segments {
		if !r.wrongIndex[s.first] {
			continue
		}
		name := segmentName(r.cfg.Dir, s.first, indexSuffix)
		r.report.Indexes = append(r.report.Indexes, name)
		err := r.repairIndex(s, name)
		if err == nil && k < len(r.segments)-1 {
			err = s.syncIndex()
		}
		if err != nil {
			return fmt.Errorf("make index of %s anew: %w", s.name, err)
		}
	}
	return nil
}

func (r *recovery) repairIndex(s *segment, name string) error {
	if s.idx == nil {
		idx, err := r.cfg.FS.Create(name)
		if err != nil {
			return err
		}
		s.idx = idx
	}
	_, err := s.writeIndex(&r.window)
	return err
}

// writeIndex reads the segment and makes its index right, where it is: there may be readers. It stops before damage, and
// returns the tail before that.
func (s *segment) writeIndex(w *window) (tail, error) {
	if err := s.idx.Truncate(int64(s.tail.entries) * recordSize); err != nil {
		return tail{}, err
	}
	encoded := make([]byte, 0, recordsPerRead*recordSize)
	written := int64(0)
	flush := func() error {
		_, err := s.idx.WriteAt(encoded, written)
		written += int64(len(encoded))
		encoded = encoded[:0]
		return err
	}
	t, err := s.scanTo(w, s.tail.entries, func(rec record) error {
		if encoded = rec.appendTo(encoded); len(encoded) < cap(encoded) {
			return nil
		}
		return flush()
	})
	return t, errors.Join(err, flush())
}

// rewrite writes again, where they are, the bytes above the floor, and the index of the last segment, which is not on
// disk before that is sealed. It makes the bytes and the names of the segments durable. The log was closed in order
// when nothing is above the floor; but the names may be those of a process that ended between a removal, or a renaming,
// and the sync of the directory.
func (r *recovery) rewrite() error {
	floor, last := r.opt.Floor, r.segments[len(r.segments)-1]
	if floor == (Floor{Index: last.next().index - 1, Segment: last.first, Position: uint32(last.tail.position)}) {
		return r.cfg.syncDir()
	}
	for _, s := range r.segments[r.full:] {
		start := int64(0)
		switch {
		case s.first < floor.Segment:
			continue
		case s.first == floor.Segment:
			start = int64(floor.Position)
		}
		if err := copyRange(s.file, start, s.tail.position, s.file, start); err != nil {
			return fmt.Errorf("write segment %s again: %w", s.name, err)
		}
		r.report.Rewritten += s.tail.position - start
		if err := s.sync(); err != nil {
			return err
		}
	}
	if err := copyRange(last.idx, 0, int64(last.tail.entries)*recordSize, last.idx, 0); err != nil {
		return fmt.Errorf("write the index of %s again: %w", last.name, err)
	}
	return r.cfg.syncDir()
}

// indexCheck reads an index file in order. One that the disk does not give back is wrong like any other: it has nothing
// that the log does not have.
type indexCheck struct {
	file  vfs.File // nil: there is none
	at    int64
	chunk []byte
	wrong bool
	want  []byte
}

// next returns the next record, nil at the end of the file, before a part of a record, and when it cannot be read.
func (c *indexCheck) next() []byte {
	if c.file == nil || c.wrong {
		return nil
	}
	if len(c.chunk) < recordSize {
		size, err := c.file.Size()
		n := min(size-c.at, indexBytesAtOnce) / recordSize * recordSize
		if err == nil && n <= 0 {
			return nil
		}
		if err == nil {
			c.chunk = make([]byte, n)
			err = readFull(c.file, c.chunk, c.at)
		}
		if err != nil {
			c.wrong = true
			return nil
		}
	}
	b := c.chunk[:recordSize]
	c.chunk, c.at = c.chunk[recordSize:], c.at+recordSize
	return b
}

// compare notes, for complete, whether the next record is r.
func (c *indexCheck) compare(r record) {
	if c.wrong {
		return
	}
	b := c.next()
	c.want = r.appendTo(c.want[:0])
	c.wrong = !bytes.Equal(b, c.want)
}

// complete says whether the file has the records that were compared, and no other.
func (c *indexCheck) complete() bool {
	if c.file == nil || c.wrong {
		return false
	}
	size, err := c.file.Size()
	return err == nil && size == c.at
}
