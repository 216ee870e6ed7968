package seglog

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/oncemq/oncemq/internal/batch"
)

// view is what readers were shown at one moment. None of it changes any more (L6), so it is read without a lock: the
// appender only adds behind the ends that the view knows.
type view struct {
	segments []*segment
	tail     tail     // of the last segment
	records  []record // of the last segment
}

func (l *Log) view() view {
	l.mu.RLock()
	defer l.mu.RUnlock()
	s := l.segments[len(l.segments)-1]
	return view{segments: l.segments, tail: s.tail, records: s.records}
}

// tailOf returns the tail of segment number k.
func (v view) tailOf(k int) tail {
	if k == len(v.segments)-1 {
		return v.tail
	}
	return v.segments[k].tail // sealed
}

func (v view) firstIndex() Index { return v.segments[0].first }

func (v view) lastIndex() Index {
	return v.segments[len(v.segments)-1].first + Index(v.tail.entries) - 1
}

// each calls yield with the records of segment number k from record n on, until it returns false.
func (v view) each(k, n int, yield func(record) bool) error {
	if k == len(v.segments)-1 {
		for _, r := range v.records[n:] {
			if !yield(r) {
				return nil
			}
		}
		return nil
	}
	s := v.segments[k]
	chunk := make([]record, min(recordsPerRead, s.tail.entries-n))
	for n < s.tail.entries {
		chunk = chunk[:min(len(chunk), s.tail.entries-n)]
		if err := s.readRecords(n, chunk); err != nil {
			return err
		}
		for _, r := range chunk {
			if !yield(r) {
				return nil
			}
		}
		n += len(chunk)
	}
	return nil
}

// readRecords reads records of a sealed segment. Open and Append saw to it that the file holds the right ones; that may
// have changed since, and it has no checksum, so that at least nothing out of bounds leaves here.
func (s *segment) readRecords(n int, dst []record) error {
	if err := readRecords(s.idx, n, dst); err != nil {
		return fmt.Errorf("read index of %s: %w", s.name, err)
	}
	for i, r := range dst {
		if r.position < headerSize || r.length < frameHeaderSize || r.end() > s.tail.position {
			return s.damage(int64(r.position), fmt.Sprintf(
				"the index has entry %d here, in %d bytes, which is outside of the entries", s.first+Index(n+i), r.length))
		}
	}
	return nil
}

// segmentOf returns the number of the segment that an index, not below the first one, belongs to.
func (v view) segmentOf(i Index) int {
	return sort.Search(len(v.segments), func(k int) bool { return v.segments[k].first > i }) - 1
}

// readRecord reads record n of a sealed segment. A batch does not say its index, so what tells that the record is not
// that of another batch is where the entries before and behind it lie.
func (s *segment) readRecord(n int) (record, error) {
	var around [3]record
	low, high := max(n-1, 0), min(n+2, s.tail.entries)
	records := around[:high-low]
	if err := s.readRecords(low, records); err != nil {
		return record{}, err
	}
	r, start, end := records[n-low], int64(headerSize), s.tail.position
	if n > 0 {
		start = records[0].end()
	}
	if n+1 < s.tail.entries {
		end = int64(records[n-low+1].position)
	}
	if int64(r.position) != start || r.end() != end {
		return record{}, s.damage(int64(r.position), fmt.Sprintf(
			"the index has entry %d here, in %d bytes, and those before and behind it leave room from byte %d to byte %d",
			s.first+Index(n), r.length, start, end))
	}
	return r, nil
}

// find returns the segment and the record of an index, which must be in the log.
func (v view) find(i Index) (*segment, record, error) {
	k := v.segmentOf(i)
	s := v.segments[k]
	if k == len(v.segments)-1 {
		return s, v.records[i-s.first], nil
	}
	r, err := s.readRecord(int(i - s.first))
	return s, r, err
}

// late returns the error of a read in segments: errLate when one of them was removed, or replaced by a shorter one, after
// the read had begun, as whatever it met was no damage then. Segments go from the ends of the list, so of several the first and
// the last are enough.
func (l *Log) late(err error, segments ...*segment) error {
	if err == nil {
		return nil
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, s := range segments {
		if !slices.Contains(l.segments, s) {
			return errLate
		}
	}
	return err
}

// Segments describes the segments that the log has now, oldest first; the last is the active one.
func (l *Log) Segments() []SegmentInfo {
	v := l.view()
	list := make([]SegmentInfo, len(v.segments))
	for k, s := range v.segments {
		list[k] = s.info(v.tailOf(k))
	}
	return list
}

// info describes the segment with a tail.
func (s *segment) info(t tail) SegmentInfo {
	return SegmentInfo{
		First: s.first, FirstOffset: s.firstOffset, PreviousTerm: s.previousTerm, NextOffset: t.offset,
		Entries: t.entries, Bytes: t.position, MaxTimestamp: t.maxTimestamp,
	}
}

// FirstIndex is the index of the first entry that the log has, or will have.
func (l *Log) FirstIndex() Index { return l.view().firstIndex() }

// LastIndex is the index of the last entry, FirstIndex - 1 when there is none.
func (l *Log) LastIndex() Index { return l.view().lastIndex() }

// FirstOffset is the offset of the first batch that the log has, or will have.
func (l *Log) FirstOffset() batch.Offset { return l.view().segments[0].firstOffset }

// NextOffset is the offset of the next batch.
func (l *Log) NextOffset() batch.Offset { return l.view().tail.offset }

// Term returns the term of an entry, or of the one before the first. ErrOutOfRange: there is no such entry.
func (l *Log) Term(i Index) (batch.Term, error) {
	var term batch.Term
	err := l.attempt(func() (err error) {
		term, err = l.term(i)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find term of entry %d in log %s: %w", i, l.cfg.Dir, err)
	}
	return term, nil
}

func (l *Log) term(i Index) (batch.Term, error) {
	v := l.view()
	switch {
	case i == v.firstIndex()-1:
		return v.segments[0].previousTerm, nil
	case i < v.firstIndex() || i > v.lastIndex():
		return 0, ErrOutOfRange
	}
	s, r, err := v.find(i)
	if err == nil && s != v.segments[len(v.segments)-1] {
		err = s.checkAt(r, i) // a sealed segment's index comes from a file, and has no checksum
	}
	return r.term, l.late(err, s)
}

// checkAt checks that the entry that a record means lies where it says.
func (s *segment) checkAt(r record, i Index) error {
	var buf [batch.HeaderSize]byte
	b := buf[:min(len(buf), int(r.length))]
	if err := readFull(s.file, b, int64(r.position)); err != nil {
		return fmt.Errorf("read %s: %w", s.name, err)
	}
	return s.located(int64(r.position), r.checkHeader(b, i))
}

// Range is a part of one segment that holds whole batches, one after the other. It stays valid until Close, or until the
// segment is removed.
type Range struct {
	segment  *segment
	Position int64 // in bytes
	Length   int   // in bytes
	first    batch.Offset
	next     batch.Offset // behind the last batch
	term     batch.Term   // of all of them: it rises at a frame only
	request  request
}

// request is what Locate was asked for.
type request struct {
	from, limit batch.Offset
	maxBytes    int
	minOne      bool
}

// Locate finds the batches from the one that holds the offset from on, as long as all their offsets are below limit and
// they have together no more than maxBytes; with minOne the first one is found however large it is. It
// appends their ranges to dst: zero-width frames lie between two ranges, batches without one between them are one range.
// Nothing is found from limit or the log's end on. ErrOutOfRange: from is below FirstOffset.
func (l *Log) Locate(from, limit batch.Offset, maxBytes int, minOne bool, dst []Range) ([]Range, error) {
	ranges := dst
	err := l.attempt(func() (err error) {
		ranges, err = l.locate(request{from: from, limit: limit, maxBytes: maxBytes, minOne: minOne}, dst)
		return err
	})
	if err != nil {
		return dst, fmt.Errorf("locate offset %d in log %s: %w", from, l.cfg.Dir, err)
	}
	return ranges, nil
}

func (l *Log) locate(q request, dst []Range) ([]Range, error) {
	v := l.view()
	q.limit = min(q.limit, v.tail.offset)
	if q.from < v.segments[0].firstOffset {
		return dst, ErrOutOfRange
	}
	if q.from >= q.limit {
		return dst, nil
	}
	k := sort.Search(len(v.segments), func(k int) bool { return v.segments[k].firstOffset > q.from }) - 1
	n, err := v.search(k, q.from)
	c := collector{request: q, ranges: dst}
	for ; err == nil && k < len(v.segments) && !c.full; k, n = k+1, 0 {
		err = c.addSegment(v, k, n)
	}
	return c.ranges, l.late(err, v.segments[0], v.segments[len(v.segments)-1])
}

// search returns the number of the last record in segment number k whose offset is not above from. It is the batch that
// holds from: the offset is below the end of the log, and frames have the offset of the batch behind them.
func (v view) search(k int, from batch.Offset) (int, error) {
	records, first := v.records, 0
	if k < len(v.segments)-1 {
		var err error
		if records, first, err = v.segments[k].searchChunk(from); err != nil {
			return 0, err
		}
	}
	n := sort.Search(len(records), func(n int) bool { return records[n].offset > from }) - 1
	return first + max(n, 0), nil
}

// searchChunk returns the records of a sealed segment among which the one is that search looks for, and the number of
// the first.
func (s *segment) searchChunk(from batch.Offset) ([]record, int, error) {
	var probe [1]record
	low, high := 0, s.tail.entries // record low is not above from, record high is
	for high-low > recordsPerRead {
		middle := low + (high-low)/2
		if err := s.readRecords(middle, probe[:]); err != nil {
			return nil, 0, err
		}
		if probe[0].offset > from {
			high = middle
		} else {
			low = middle
		}
	}
	chunk := make([]record, high-low)
	return chunk, low, s.readRecords(low, chunk)
}

// collector makes ranges of records.
type collector struct {
	request
	ranges []Range
	bytes  int // of what was taken
	full   bool
}

// addSegment adds the batches of segment number k from record n on. A record is added when the one behind it is known:
// that has the offset behind the entry.
func (c *collector) addSegment(v view, k, n int) error {
	s, end := v.segments[k], v.tailOf(k).offset
	var waiting record
	var bad error
	isWaiting := false
	add := func(next batch.Offset) bool {
		if isWaiting && next > end {
			bad = s.damage(int64(waiting.position), fmt.Sprintf(
				"the index has offset %d behind here, and the segment ends at %d", next, end))
		} else if isWaiting {
			bad = c.add(s, waiting, next)
		}
		return bad == nil && !c.full
	}
	err := v.each(k, n, func(r record) bool {
		more := add(r.offset)
		waiting, isWaiting = r, more
		return more
	})
	if err == nil && bad == nil && !c.full {
		add(end)
	}
	return cmp.Or(err, bad)
}

// add takes the batch of a record, or finds that it is too much. Frames are skipped.
func (c *collector) add(s *segment, r record, next batch.Offset) error {
	isBatch, isFirst := r.kind == KindBatch, c.bytes == 0
	follows := r.offset <= c.from && next > c.from
	if !isFirst {
		follows = r.offset == c.ranges[len(c.ranges)-1].next
	}
	if isBatch != (next > r.offset) || isBatch && !follows {
		return s.damage(int64(r.position), fmt.Sprintf(
			"the index has an entry of kind %d, offset %d, before offset %d here, on the way to offset %d",
			r.kind, r.offset, next, c.from))
	}
	if !isBatch {
		return nil
	}
	if next > c.limit || c.bytes+int(r.length) > c.maxBytes && (!isFirst || !c.minOne) {
		c.full = true
		return nil
	}
	c.bytes += int(r.length)
	if !isFirst {
		p := &c.ranges[len(c.ranges)-1]
		if p.segment == s && p.Position+int64(p.Length) == int64(r.position) {
			p.Length += int(r.length)
			p.next = next
			return nil
		}
	}
	c.ranges = append(c.ranges, Range{
		segment: s, Position: int64(r.position), Length: int(r.length), first: r.offset, next: next, term: r.term,
		request: c.request,
	})
	return nil
}

// Read appends the bytes of the ranges that one Locate found to dst: whole batches, each checked as Open does, at the
// offset and in the term that the index promised. Where the index was wrong, it is made right, and what that Locate should
// have found is read; so is what it would find now, when segments went away. What is whole before damage is returned without an error: the next read begins at the damage.
// A *DamageError: the first batch is not what was stored. ErrOutOfRange: a segment was removed meanwhile.
func (l *Log) Read(dst []byte, ranges []Range) ([]byte, error) {
	if len(ranges) == 0 {
		return dst, nil
	}
	out, again, asked := dst, false, ranges[0].request
	err := l.attempt(func() (err error) {
		if again {
			ranges, err = l.locate(asked, nil)
			if err == nil && len(ranges) == 0 {
				err = fmt.Errorf("read offset %d of log %s: %w", asked.from, l.cfg.Dir, ErrOutOfRange)
			}
		}
		if err == nil {
			out, err = l.read(dst, ranges)
		}
		again = true
		return err
	})
	return out, err
}

func (l *Log) read(dst []byte, ranges []Range) ([]byte, error) {
	out := dst
	for _, r := range ranges {
		out = slices.Grow(out, r.Length)
		b := out[len(out) : len(out)+r.Length]
		if err := readFull(r.segment.file, b, r.Position); err != nil {
			return dst, fmt.Errorf("read offset %d from %s: %w", r.first, r.segment.name, l.late(err, r.segment))
		}
		whole, err := r.check(b)
		out = out[:len(out)+whole]
		if err != nil && len(out) > len(dst) {
			break // the next read begins here
		} else if err != nil {
			return dst, fmt.Errorf("read offset %d: %w", r.first, l.late(err, r.segment))
		}
	}
	return out, nil
}

// check walks over the batches that b is. Offsets have no gap, so the end of one is the beginning of the next: a walk
// that meets the expected end in bytes and offset has seen each batch where the index has it. It returns the length of
// those that are whole.
func (r Range) check(b []byte) (whole int, err error) {
	offset := r.first
	for at := 0; at < len(b); {
		h, err := batch.CheckStored(b[at:])
		if err == nil && (h.BaseOffset != offset || h.Term != r.term) {
			err = badEntry(fmt.Sprintf("a batch at offset %d, of term %d", h.BaseOffset, h.Term))
		}
		if err != nil {
			return at, r.segment.damage(r.Position+int64(at), fmt.Sprintf(
				"not the batch at offset %d, of term %d, that the index has there: %v", offset, r.term, err))
		}
		at += h.Size
		offset = h.NextOffset()
	}
	if offset != r.next {
		return 0, r.segment.damage(r.Position, fmt.Sprintf(
			"the batches end at offset %d and not %d, as the index has it", offset, r.next))
	}
	return len(b), nil
}
