package seglog

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/vfs"
)

const (
	logSuffix   = ".log"
	indexSuffix = ".idx"
	nameDigits  = 20
)

// HeaderBytes is the length of a segment that has no entry.
const HeaderBytes = headerSize

// segment is one segment file with its index file. All but the fields marked so is set before readers can see it and
// does not change.
type segment struct {
	first        Index
	firstOffset  batch.Offset
	previousTerm batch.Term // of entry first - 1
	name         string     // path of the segment file
	file, idx    vfs.File   // nil only before the segment is used, when it could not be made yet or has no index yet

	// Of the active segment these change under Log.mu. Nothing of a sealed one does.
	tail    tail
	records []record // nil when sealed: then they are read from idx

	// Of a sealed segment, under Log.removal.
	reread   bool  // a read has met damage, and the segment was read whole
	unmended error // why its index could not be made right, other than damage
}

// tail is the state of a segment behind its last entry.
type tail struct {
	entries      int
	position     int64        // where the next entry begins
	offset       batch.Offset // of the next batch
	term         batch.Term   // of the last entry, of the one before the segment when there is none
	maxTimestamp int64        // largest in the segment, -1 before any batch
}

// newSegment returns the segment that begins at a place, without its files.
func newSegment(dir string, at place) *segment {
	s := &segment{name: segmentName(dir, at.index, logSuffix)}
	s.begin(at)
	return s
}

// begin sets where the segment begins, as its header has it.
func (s *segment) begin(at place) {
	s.first, s.firstOffset, s.previousTerm = at.index, at.offset, at.term
	s.tail = s.start()
}

// start is the tail of the segment before it has an entry.
func (s *segment) start() tail {
	return tail{position: headerSize, offset: s.firstOffset, term: s.previousTerm, maxTimestamp: -1}
}

func segmentName(dir string, first Index, suffix string) string {
	return filepath.Join(dir, fmt.Sprintf("%0*d%s", nameDigits, first, suffix))
}

// parseName returns the first index of the segment whose file has a name. ok is false when no segment file has it.
func parseName(name, suffix string) (first Index, ok bool) {
	digits, found := strings.CutSuffix(name, suffix)
	if !found || len(digits) != nameDigits {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return Index(n), err == nil && n > 0
}

// next is the place of the entry behind the tail.
func (s *segment) next() place {
	return place{index: s.first + Index(s.tail.entries), offset: s.tail.offset, term: s.tail.term}
}

// create makes the files of a new segment and makes its header frame and its names durable (L3). After an error it
// may be called again: it goes on where it stopped.
func (s *segment) create(cfg Config) error {
	if s.file == nil {
		file, err := cfg.FS.Create(s.name)
		if err != nil {
			return fmt.Errorf("create segment: %w", err)
		}
		s.file = file
	}
	header := appendHeader(nil, cfg.Identity, place{index: s.first, offset: s.firstOffset, term: s.previousTerm})
	if _, err := s.file.WriteAt(header, 0); err != nil {
		return fmt.Errorf("write the header of a segment: %w", err)
	}
	if err := s.sync(); err != nil {
		return err
	}
	if err := cfg.syncDir(); err != nil {
		return err
	}
	if s.idx == nil {
		idx, err := cfg.FS.Create(segmentName(cfg.Dir, s.first, indexSuffix))
		if err != nil {
			return fmt.Errorf("create index: %w", err)
		}
		s.idx = idx
	}
	return nil
}

func (s *segment) sync() error {
	if err := s.file.SyncData(); err != nil {
		return fmt.Errorf("sync segment: %w: %w", ErrSync, err)
	}
	return nil
}

// seal makes all of the segment durable, its index too: that is not read again when the log is opened.
func (s *segment) seal() error {
	if err := s.sync(); err != nil {
		return err
	}
	return s.syncIndex()
}

func (s *segment) syncIndex() error {
	if err := s.idx.SyncData(); err != nil {
		return fmt.Errorf("sync index: %w: %w", ErrSync, err)
	}
	return nil
}

// cutEnd cuts off what lies behind the tail, and makes that durable. The index, when there is one, goes first: should
// the process end in between, it must not name an entry that the log does not have (L5).
func (s *segment) cutEnd() error {
	if s.idx != nil {
		if err := s.idx.Truncate(int64(s.tail.entries) * recordSize); err != nil {
			return fmt.Errorf("cut index: %w", err)
		}
	}
	if err := s.file.Truncate(s.tail.position); err != nil {
		return fmt.Errorf("cut segment: %w", err)
	}
	return s.sync()
}

// close closes the files that are open.
func (s *segment) close() error {
	var errs []error
	for _, f := range []vfs.File{s.file, s.idx} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// damage makes the error for what was found at a position of the segment.
func (s *segment) damage(position int64, detail string) error {
	return &DamageError{File: s.name, Position: position, Detail: detail}
}

// located gives errors of parsing bytes at a position the file and the position.
func (s *segment) located(position int64, err error) error {
	var bad badEntry
	var format *FormatError
	switch {
	case errors.As(err, &bad):
		return s.damage(position, string(bad))
	case errors.As(err, &format):
		format.File, format.Position = s.name, position
	}
	return err
}

// Config says where a log lies, whose it is and how large its segments become.
type Config struct {
	FS       vfs.FS
	Dir      string // it must exist
	Identity Identity
	// SegmentBytes is the size in bytes that a segment does not exceed, unless one entry alone does: 0 means 1 GiB, and
	// 4 GiB - 1 is the most that positions can express.
	SegmentBytes int64
	// SegmentEntries is the number of entries that a segment does not exceed. It bounds the index that the active
	// segment keeps in memory, 32 bytes an entry, and what a start has to read again. 0 means 262,144.
	SegmentEntries int
}

// syncDir makes the names of the log's files durable.
func (c Config) syncDir() error {
	if err := c.FS.SyncDir(c.Dir); err != nil {
		return fmt.Errorf("sync directory: %w: %w", ErrSync, err)
	}
	return nil
}

func (c Config) withDefaults() (Config, error) {
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 1 << 30
	}
	if c.SegmentEntries == 0 {
		c.SegmentEntries = 1 << 18
	}
	if c.SegmentBytes < 0 || c.SegmentBytes > math.MaxUint32 || c.SegmentEntries < 0 {
		return c, fmt.Errorf("segments of %d bytes and %d entries: out of range", c.SegmentBytes, c.SegmentEntries)
	}
	return c, nil
}
