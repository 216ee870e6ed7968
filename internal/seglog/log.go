package seglog

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"sync"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/invariant"
)

// Log is the log of one Raft group. Append, Sync, Roll, TruncateSuffix, Reset, End and Close are for one caller at a time, the
// appender; all other methods may run at any time until Close.
type Log struct {
	cfg Config

	mu       sync.RWMutex // guards what readers share with the appender: the fields below, and tail and records of the active segment
	segments []*segment   // oldest first; the last is the active one. What a reader has of the list is never changed, only added to
	failed   error        // ErrSync: nothing may be written any more (L8)
	closed   bool

	removal sync.Mutex // taken before mu: segments are removed, or mended, by one caller at a time, and not after Close
	dropped []*segment // not in the list any more, closed, and their files are still to be removed; oldest first

	appender appender
}

// appender is what only the appender uses.
type appender struct {
	next   *segment // the one that a roll was making when it failed
	ragged bool     // bytes of a failed write may lie behind the end

	// Of a Reset that has not come to its end.
	fresh *segment // the only one of the list; its files may be still to be made
	gone  []Index  // first indexes of the segments whose files are still to be removed, ascending

	// Scratch of Append.
	staged  []record
	headers []byte
	bufs    [][]byte
	encoded []byte
}

// Floor is a durable mark: what is known to be on disk.
type Floor struct {
	Index    Index  // all entries up to and including this one; 0: none
	Segment  Index  // first index of the segment that Position is in
	Position uint32 // in bytes: everything before it, in this segment and the ones before, is on disk
}

// Create makes the log of a group that has none. Its first entry will be first, and stand at firstOffset; previous is
// the term of the entry before it, which a base snapshot covers. The first segment and its name in the directory are
// durable when Create returns; the directory's own name is the caller's to make so. It fails with fs.ErrExist when
// the directory holds segments. When it fails otherwise, files may be left that have to be removed before another try.
func Create(cfg Config, first Index, previous batch.Term, firstOffset batch.Offset) (*Log, error) {
	invariant.Check(first > 0 && firstOffset >= 0 && previous <= math.MaxInt32,
		"create a log from index %d, term %d, offset %d", first, previous, firstOffset)
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("create log %s: %w", cfg.Dir, err)
	}
	if err := checkEmpty(cfg); err != nil {
		return nil, fmt.Errorf("create log %s: %w", cfg.Dir, err)
	}
	s := newSegment(cfg.Dir, place{index: first, offset: firstOffset, term: previous})
	if err := s.create(cfg); err != nil {
		return nil, fmt.Errorf("create log %s: %w", cfg.Dir, errors.Join(err, s.close()))
	}
	return &Log{cfg: cfg, segments: []*segment{s}}, nil
}

// Append writes entries behind the last one and shows them to readers; Sync makes them durable. The entries must
// continue the log: offsets and terms that do not are a bug of the caller. It keeps no reference to the entries.
//
// When it fails, a part of the entries, from the first on, may have been appended: LastIndex tells. Unless the error
// is ErrSync the log is as sound as before, and Append may be called again with the others, for example when a disk
// that was full has room.
func (l *Log) Append(entries []Entry) error {
	a := &l.appender
	if err := l.failure(); err != nil {
		return fmt.Errorf("append to log %s: %w", l.cfg.Dir, err)
	}
	staged := l.stage(entries)
	defer func() { clear(a.bufs[:cap(a.bufs)]) }() // the batches belong to the caller
	for len(entries) > 0 {
		n := l.room(staged[:len(entries)])
		err := error(nil)
		if n == 0 {
			err = l.roll()
		} else if err = l.write(entries[:n], staged[:n], staged[n].offset); err == nil {
			entries, staged = entries[n:], staged[n:]
		}
		if err != nil {
			return fmt.Errorf("append to log %s at index %d: %w", l.cfg.Dir, l.active().next().index, l.failSync(err))
		}
	}
	return nil
}

// failSync remembers a failed sync (L8).
func (l *Log) failSync(err error) error {
	if errors.Is(err, ErrSync) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.failed = err
	}
	return err
}

// Fail tells of a sync of the log's directory that somebody else has made in vain; err is ErrSync. Nothing is written any
// more, as after a failed Sync: the next sync of the directory would succeed without what was lost. It may be called at any
// time.
func (l *Log) Fail(err error) {
	invariant.Check(errors.Is(err, ErrSync), "log %s fails without a sync: %v", l.cfg.Dir, err)
	_ = l.failSync(err)
}

// failure is the sync that has failed.
func (l *Log) failure() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.failed
}

// active is the segment that is appended to. The appender, which alone changes it, uses it without the lock.
func (l *Log) active() *segment {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.segments[len(l.segments)-1]
}

// stage checks that entries continue the log, and makes their index records: the position, and what depends on the
// segment, are still open. One more has the offset behind them.
func (l *Log) stage(entries []Entry) []record {
	staged := l.appender.staged[:0]
	at := l.active().next()
	for i := range entries {
		r, next := stageEntry(&entries[i], at)
		staged = append(staged, r)
		at = place{index: at.index + 1, offset: next, term: r.term}
	}
	staged = append(staged, record{offset: at.offset})
	l.appender.staged = staged
	return staged
}

// stageEntry makes the record of one entry, with the batch's own maxTimestamp, and returns the offset behind it.
func stageEntry(e *Entry, at place) (record, batch.Offset) {
	h, err := e.check(at.term)
	if err == nil && e.Kind == KindBatch && h.BaseOffset != at.offset {
		err = badEntry(fmt.Sprintf("a batch of offset %d", h.BaseOffset))
	}
	if err != nil {
		invariant.Bug("append at index %d, offset %d, after term %d: %v", at.index, at.offset, at.term, err)
	}
	r := record{offset: at.offset, maxTimestamp: -1, term: e.Term, kind: e.Kind}
	if e.Kind == KindBatch {
		r.length, r.maxTimestamp = uint32(h.Size), h.MaxTimestamp
		return r, h.NextOffset()
	}
	r.length = uint32(frameHeaderSize + len(e.Data))
	return r, at.offset
}

// room returns how many of the entries go into the active segment. An empty segment has room for any entry; one whose
// successor is begun has none: that one is named after the entry that made a roll necessary, which is the next one even
// when the caller, after a failure, comes with another that would still fit.
func (l *Log) room(staged []record) int {
	if l.appender.next != nil {
		return 0
	}
	t := l.active().tail
	for i, r := range staged {
		t.position += int64(r.length)
		if t.entries+i >= l.cfg.SegmentEntries || t.position > l.cfg.SegmentBytes && t.entries+i > 0 {
			return i
		}
	}
	return len(staged)
}

// write writes entries that fit into the active segment and shows them to readers. The offset behind them is next.
func (l *Log) write(entries []Entry, staged []record, next batch.Offset) error {
	s := l.active()
	if err := l.trim(s); err != nil {
		return err
	}
	t := s.tail
	for i := range staged {
		r := &staged[i]
		r.position = uint32(t.position)
		t.maxTimestamp = max(t.maxTimestamp, r.maxTimestamp)
		r.maxTimestamp = t.maxTimestamp
		t.position, t.term = r.end(), r.term
	}
	t.entries += len(staged)
	t.offset = next
	l.appender.ragged = true
	if err := s.file.WriteVAt(l.gather(entries, staged, s.next().index), s.tail.position); err != nil {
		return fmt.Errorf("write segment: %w", err)
	}
	if _, err := s.idx.WriteAt(l.encode(staged), int64(s.tail.entries)*recordSize); err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	l.appender.ragged = false
	l.mu.Lock()
	defer l.mu.Unlock()
	s.records = append(s.records, staged...)
	s.tail = t
	return nil
}

// trim cuts off what a failed write left behind the end. The next write may be another one, and what is left behind it
// must not look like its continuation: entries that nobody appended would come to life at the next start. The cut is
// durable before that write: the kernel may have written the failed one to the disk already, and a machine crash could
// leave the next one with the rest of it.
func (l *Log) trim(s *segment) error {
	if !l.appender.ragged {
		return nil
	}
	if err := s.cutEnd(); err != nil {
		return fmt.Errorf("after a failed write: %w", err)
	}
	l.appender.ragged = false
	return nil
}

// gather lists the bytes of entries, of which the first has the given index. Only the headers of frames are made; all
// other bytes stay where they are.
func (l *Log) gather(entries []Entry, staged []record, first Index) [][]byte {
	a := &l.appender
	frames := 0
	for i := range entries {
		if entries[i].Kind != KindBatch {
			frames++
		}
	}
	if need := frames * frameHeaderSize; cap(a.headers) < need {
		a.headers = make([]byte, 0, need)
	}
	headers := a.headers[:0]
	bufs := a.bufs[:0]
	for i := range entries {
		e := &entries[i]
		if e.Kind != KindBatch {
			headers = headers[:len(headers)+frameHeaderSize]
			header := headers[len(headers)-frameHeaderSize:]
			f := frame{
				kind: e.Kind, version: e.Version, term: e.Term,
				index: first + Index(i), offset: staged[i].offset, payload: e.Data,
			}
			f.putHeader(header)
			bufs = append(bufs, header)
		}
		if len(e.Data) > 0 {
			bufs = append(bufs, e.Data)
		}
	}
	a.bufs = bufs
	return bufs
}

// encode returns the index records as they stand in the file.
func (l *Log) encode(staged []record) []byte {
	encoded := l.appender.encoded[:0]
	for _, r := range staged {
		encoded = r.appendTo(encoded)
	}
	l.appender.encoded = encoded
	return encoded
}

// Roll seals the active segment and begins the next one, whose first index End then names. Nothing happens when the
// active one has no entry. All that was appended is durable afterwards. After an error that is not ErrSync the call may
// be repeated; meanwhile the log can be used, and the next Append rolls first.
func (l *Log) Roll() error {
	err := l.failure()
	if err == nil && l.active().tail.entries > 0 {
		err = l.failSync(l.roll())
	}
	if err != nil {
		return fmt.Errorf("roll log %s: %w", l.cfg.Dir, err)
	}
	return nil
}

// roll seals the active segment and makes the next one the active one.
func (l *Log) roll() error {
	old, a := l.active(), &l.appender
	if err := l.trim(old); err != nil {
		return err
	}
	if err := old.seal(); err != nil { // (L4)
		return err
	}
	if a.next == nil {
		a.next = newSegment(l.cfg.Dir, old.next())
	}
	if err := a.next.create(l.cfg); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segments = append(l.segments, a.next)
	old.records, a.next = nil, nil
	return nil
}

// Sync makes durable all that was appended before the call. A failure is always ErrSync, and final.
func (l *Log) Sync() error {
	err := l.failure()
	if err == nil {
		err = l.failSync(l.active().sync())
	}
	if err != nil {
		return fmt.Errorf("sync log %s: %w", l.cfg.Dir, err)
	}
	return nil
}

// End is the end of the log: after a Sync by the same caller, the durable mark.
func (l *Log) End() Floor {
	s := l.active()
	return Floor{Index: s.next().index - 1, Segment: s.first, Position: uint32(s.tail.position)}
}

// Close closes the files, after a DropBefore that runs, or a read that makes an index right. It makes nothing durable. Reads that run meanwhile, and all
// calls that come later, fail with fs.ErrClosed.
func (l *Log) Close() error {
	l.removal.Lock()
	defer l.removal.Unlock()
	l.mu.Lock()
	l.closed = true
	segments := l.segments
	l.mu.Unlock()
	if l.appender.next != nil {
		segments = append(segments[:len(segments):len(segments)], l.appender.next)
	}
	var errs []error
	for _, s := range segments {
		errs = append(errs, s.close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close log %s: %w", l.cfg.Dir, err)
	}
	return nil
}

// checkEmpty reports fs.ErrExist when a directory holds files of a log.
func checkEmpty(cfg Config) error {
	names, err := cfg.FS.List(cfg.Dir)
	if err != nil {
		return fmt.Errorf("list directory: %w", err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, logSuffix) || strings.HasSuffix(name, indexSuffix) {
			return fmt.Errorf("find %s: %w", name, fs.ErrExist)
		}
	}
	return nil
}
