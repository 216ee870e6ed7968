package seglog

import (
	"fmt"
	"math"

	"github.com/oncemq/oncemq/internal/batch"
)

// scan reads the entries.
func (r *recovery) scan() error {
	var before *place // behind the segment before, nil when that has no right end
	for k, s := range r.segments {
		if damage := r.headless[s.first]; damage != nil {
			if err := r.foundHeadless(s, damage, before); err != nil {
				return err
			}
			before = nil
			continue
		}
		if here := s.next(); before != nil && *before != here {
			if err := r.found(Finding{
				File: s.name, Index: before.index, Offset: before.offset,
				Detail: fmt.Sprintf(
					"it begins with index %d, offset %d after term %d, and the segment before it ends at index %d, offset %d, term %d",
					here.index, here.offset, here.term, before.index-1, before.offset, before.term),
			}); err != nil {
				return err
			}
		}
		whole, err := r.takeOlder(k)
		if err == nil && !whole {
			whole, err = r.scanSegment(k)
		}
		if err != nil {
			return err
		}
		if before = nil; whole {
			end := s.next()
			before = &end
		}
	}
	return nil
}

// takeOlder takes over segment number k, when it is one before OpenOptions.From, as its files and the header of the next
// one describe it. False: it has to be read.
func (r *recovery) takeOlder(k int) (bool, error) {
	if k >= r.full || r.headless[r.segments[k+1].first] != nil {
		return false, nil
	}
	s, end := r.segments[k], r.segments[k+1].next()
	n := uint64(end.index - s.first) // at least 1
	if s.idx == nil || n > math.MaxUint32 {
		return false, nil
	}
	if size, err := s.idx.Size(); err != nil || size != int64(n)*recordSize {
		return false, nil
	}
	if err := r.head.open(s.file, headBytes); err != nil {
		return false, fmt.Errorf("find size of segment: %w", err)
	}
	t := tail{entries: int(n), offset: end.offset, term: end.term}
	agrees, err := r.endsAs(s, &t)
	if err == nil && agrees {
		if agrees, err = r.head.zerosFrom(t.position); agrees {
			s.tail = t
		}
	}
	return agrees, err
}

// endsAs says whether the last records of the index, the header of the last entry, and the size say that the segment in
// r.head ends with a tail, and completes that: the position and the largest timestamp. A record has no checksum, so each
// field of the last one is compared with another source. The others are for those who read there (Log.mend).
func (r *recovery) endsAs(s *segment, t *tail) (bool, error) {
	before, last := record{}, record{kind: KindEmpty, position: headerSize, offset: s.firstOffset, term: s.previousTerm, maxTimestamp: -1}
	start := max(t.entries-2, 0)
	check := indexCheck{file: s.idx, at: int64(start) * recordSize}
	for n := start; n < t.entries; n++ {
		b := check.next()
		if b == nil || [3]byte(b[21:]) != [3]byte{} {
			return false, nil
		}
		before, last = last, parseRecord(b)
	}
	behind := tail{position: before.end(), offset: last.offset, term: before.term, maxTimestamp: before.maxTimestamp}
	if !last.follows(behind) || (last.offset > before.offset) != (before.kind == KindBatch) || last.offset < before.offset ||
		last.end() > r.head.size || last.term != t.term {
		return false, nil
	}
	b, err := r.head.at(int64(last.position), int64(min(last.length, batch.HeaderSize)))
	if err != nil {
		return false, fmt.Errorf("read segment %s: %w", s.name, err)
	}
	if last.checkHeader(b, s.first+Index(t.entries-1)) != nil {
		return false, nil
	}
	next, timestamp := last.offset, int64(-1)
	if h, ok := batch.ParseHeader(b); last.kind == KindBatch {
		if !ok || h.LastOffsetDelta < 0 {
			return false, nil
		}
		next, timestamp = h.NextOffset(), h.MaxTimestamp
	}
	t.position, t.maxTimestamp = last.end(), last.maxTimestamp
	return next == t.offset && last.maxTimestamp == max(before.maxTimestamp, timestamp), nil
}

// scanSegment reads segment number k. Whole: it ends with its last entry.
func (r *recovery) scanSegment(k int) (whole bool, err error) {
	s, last := r.segments[k], k == len(r.segments)-1
	if err := r.window.open(s.file, windowBytes); err != nil {
		return false, fmt.Errorf("find size of segment: %w", err)
	}
	c := scanner{s: s, w: &r.window, tail: s.start()}
	check := indexCheck{file: s.idx}
	for {
		r.meetFloor(s, c.tail)
		more, err := c.next()
		if err != nil {
			return false, fmt.Errorf("read segment %s: %w", s.name, err)
		}
		if !more {
			break
		}
		check.compare(c.record)
		if last {
			s.records = append(s.records, c.record)
		}
		if k < r.full {
			continue
		}
		if err := r.visit(s.first+Index(c.tail.entries)-1, c.entry, c.header); err != nil {
			return false, err
		}
	}
	s.tail = c.tail
	r.wrongIndex[s.first] = !check.complete()
	if c.bad != nil && (!last || r.halfMade != nil) {
		err = r.found(s.lostFrom(s.tail, fmt.Sprintf("%v; another segment follows, so this one was whole", c.bad)))
	}
	r.bad = c.bad
	return c.bad == nil, err
}

// lostFrom makes the finding of what is wrong behind a tail.
func (s *segment) lostFrom(t tail, detail string) Finding {
	return Finding{File: s.name, Position: t.position, Detail: detail, Index: s.first + Index(t.entries), Offset: t.offset}
}

func (r *recovery) visit(i Index, e Entry, h batch.Header) error {
	r.report.Entries++
	if r.opt.Visit == nil {
		return nil
	}
	if err := r.opt.Visit(i, e, h); err != nil {
		return fmt.Errorf("visit entry %d: %w", i, err)
	}
	return nil
}

// meetFloor notes that the floor is where it can be: behind an entry or a header.
func (r *recovery) meetFloor(s *segment, t tail) {
	here := Floor{Index: s.first + Index(t.entries) - 1, Segment: s.first, Position: uint32(t.position)}
	r.floorMet = r.floorMet || here == r.opt.Floor
}

// judge decides whether the log may end as it does, and whether a bad end may be cut off.
func (r *recovery) judge() error {
	if len(r.segments) == 0 || r.broken(r.segments[len(r.segments)-1]) {
		return nil
	}
	floor, from, last := r.opt.Floor, r.segments[r.full].first, r.segments[len(r.segments)-1]
	known := floor.Segment >= from
	ends := "the log ends here"
	if r.bad != nil {
		ends = r.bad.Error()
	}
	detail := ""
	switch next := last.next().index; {
	case !known && floor.Index >= from:
		return r.found(Finding{
			File: segmentName(r.cfg.Dir, floor.Segment, logSuffix), Offset: -1,
			Detail: fmt.Sprintf("the segment of the durable mark is missing, or entry %d is not in it", floor.Index),
		})
	case known && next <= floor.Index:
		detail = fmt.Sprintf("%s, where entry %d must be: all up to %d were on disk", ends, next, floor.Index)
	case known && !r.floorMet:
		return r.found(Finding{
			File: segmentName(r.cfg.Dir, floor.Segment, logSuffix), Position: int64(floor.Position), Index: floor.Index, Offset: -1,
			Detail: fmt.Sprintf("entry %d does not end here, as the durable mark has it", floor.Index),
		})
	case r.opt.SameBoot:
		why, err := r.wasWhole(last)
		if err != nil || why == "" {
			return err
		}
		detail = ends + why
	default:
		return nil
	}
	return r.found(last.lostFrom(last.tail, detail))
}

// wasWhole says why the last segment, in the window, was written whole behind its last valid entry, when its index
// tells so: an index record is written after the entry (L5), and entries one after the other. Empty: nothing tells.
func (r *recovery) wasWhole(s *segment) (string, error) {
	if s.idx == nil {
		return "", nil
	}
	check := indexCheck{file: s.idx, at: int64(s.tail.entries) * recordSize}
	if b := check.next(); b != nil && parseRecord(b).follows(s.tail) {
		return fmt.Sprintf(", but entry %d was whole when the index was written", s.next().index), nil
	}
	if r.bad == nil {
		return "", nil
	}
	_, valid, err := r.findValid(s, s.tail)
	if err != nil || valid == nil {
		return "", err
	}
	return fmt.Sprintf(", but a valid entry follows at byte %d", valid.position), nil
}

// follows says whether the record can be that of the entry behind a tail.
func (r record) follows(t tail) bool {
	return int64(r.position) == t.position && r.length >= frameHeaderSize && r.offset == t.offset &&
		(r.term == t.term || r.term > t.term && r.kind == KindEmpty) && r.maxTimestamp >= t.maxTimestamp
}

// findValid looks for a valid entry in the segment in the window, behind the first one that does not belong to a tail,
// where the index names one, and returns its number and record.
func (r *recovery) findValid(s *segment, t tail) (int, *record, error) {
	if s.idx == nil {
		return 0, nil, nil
	}
	check := indexCheck{file: s.idx, at: int64(t.entries+1) * recordSize}
	for n := t.entries + 1; ; n++ {
		b := check.next()
		if b == nil {
			return 0, nil, nil
		}
		rec, index := parseRecord(b), s.first+Index(n)
		if int64(rec.position) <= t.position || rec.length < frameHeaderSize || rec.end() > r.window.size {
			continue
		}
		head, err := r.window.at(int64(rec.position), int64(min(rec.length, batch.HeaderSize)))
		if err != nil {
			return 0, nil, err
		}
		if rec.checkHeader(head, index) != nil {
			continue
		}
		whole, err := r.window.entry(int64(rec.position), int64(rec.length))
		if isBad(err) {
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		// An entry of a kind that only a newer version knows is a valid one too.
		if _, _, err := parseEntry(whole, place{index: index, offset: rec.offset, term: rec.term}); !isBad(err) {
			return n, &rec, nil
		}
	}
}
