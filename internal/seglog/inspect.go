package seglog

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/oncemq/oncemq/internal/batch"
)

// Inspection is what Inspect found.
type Inspection struct {
	// Segments are those that have files, oldest first. A damaged one is described up to the damage; one whose header is
	// bad has offsets of -1 and no entries.
	Segments []SegmentInfo
	// Findings are the damage in the order of Finding.Index; none: Open would succeed.
	Findings []Finding
	// TornBytes is the length of the bad end that Open would cut off.
	TornBytes int64
	// WrongIndexes are the index files that do not agree with their segments, or are missing, of the segments that were
	// read. Open makes them anew when it reads the segment, which it always does when the file is missing; else whoever
	// reads there has it made right.
	WrongIndexes []string
}

// Finding is one damaged place.
type Finding struct {
	File     string
	Position int64 // in bytes
	Detail   string
	// Index is the first entry that would be lost if the log went on before the damage, 0: no end of the log is before it.
	Index  Index
	Offset batch.Offset // of that entry; -1: not known
	// LostEntries and LostOffsets count from there to the end of the log as far as it is known: what whole entries,
	// headers and index records behind the damage tell, and the durable mark. At least so much would be lost; 0 also when
	// nothing is known.
	LostEntries, LostOffsets int64
}

// survey is what Inspect gathers.
type survey struct {
	findings []Finding
	end      place // the farthest that is known to have been in the log
}

// reach notes that the log went up to a place.
func (v *survey) reach(index Index, offset batch.Offset) {
	v.end.index, v.end.offset = max(v.end.index, index), max(v.end.offset, offset)
}

// Inspect reads a log as Open would, with the same options, judges it in the same way, and goes on behind damage as
// far as the files allow. It changes nothing. The log must not be open. OpenOptions.Visit is called as by Open, and
// for entries behind damage, too: the index that it is given tells. The errors are those of reading and of Visit,
// *FormatError and *IdentityError.
func Inspect(cfg Config, opt OpenOptions) (Inspection, error) {
	cfg, err := cfg.withDefaults()
	r := &recovery{cfg: cfg, opt: opt, survey: &survey{}}
	var result Inspection
	for _, step := range []func() error{
		r.list, r.readHeaders, r.scan, r.judge, r.surveyRest,
		func() (err error) { result, err = r.inspection(); return err },
	} {
		if err == nil {
			err = step()
		}
	}
	if err = errors.Join(err, r.close()); err != nil {
		return Inspection{}, fmt.Errorf("inspect log %s: %w", cfg.Dir, err)
	}
	return result, nil
}

// foundHeadless reports a segment without a good header. Nothing in it is read: without its header it is not
// known whose it is.
func (r *recovery) foundHeadless(s *segment, damage *DamageError, before *place) error {
	f := Finding{File: damage.File, Position: damage.Position, Detail: damage.Detail, Index: s.first, Offset: -1}
	if before != nil {
		f.Index, f.Offset = before.index, before.offset
	} else if s.idx != nil {
		check := indexCheck{file: s.idx}
		if b := check.next(); b != nil && parseRecord(b).position == headerSize {
			f.Offset = max(-1, parseRecord(b).offset)
		}
	}
	return r.found(f)
}

// broken says whether damage was found in a segment.
func (r *recovery) broken(s *segment) bool {
	return r.survey != nil && (r.headless[s.first] != nil ||
		slices.ContainsFunc(r.survey.findings, func(f Finding) bool { return f.File == s.name }))
}

// surveyRest looks behind the damage for more of it, and for the end of the log.
func (r *recovery) surveyRest() error {
	r.survey.reach(r.opt.Floor.Index+1, 0)
	for k, s := range r.segments {
		r.survey.reach(s.first, 0)
		if r.headless[s.first] != nil {
			r.reachNamed(s, s.tail)
			continue
		}
		r.survey.reach(s.next().index, s.next().offset)
		if r.broken(s) {
			if err := r.readOn(s, k == len(r.segments)-1); err != nil {
				return fmt.Errorf("read segment %s: %w", s.name, err)
			}
		}
	}
	return nil
}

// readOn reads a segment from the next valid entry behind its tail on, where the index names one, again and again.
func (r *recovery) readOn(s *segment, last bool) error {
	if err := r.window.open(s.file, windowBytes); err != nil {
		return err
	}
	var bad error // found by the last reading
	for t := s.tail; ; {
		n, rec, err := r.findValid(s, t)
		if err != nil {
			return err
		}
		if bad != nil && (rec != nil || !last) { // else the log ends there, and may be torn
			if err := r.found(s.lostFrom(t, bad.Error())); err != nil {
				return err
			}
		}
		if rec == nil {
			r.reachNamed(s, t)
			return nil
		}
		c := scanner{s: s, w: &r.window, tail: tail{
			entries: n, position: int64(rec.position), offset: rec.offset, term: rec.term, maxTimestamp: rec.maxTimestamp,
		}}
		for more := true; more; {
			if more, err = c.next(); err != nil {
				return err
			}
		}
		t, bad = c.tail, c.bad
		r.survey.reach(s.first+Index(t.entries), t.offset)
		if bad == nil {
			return nil
		}
	}
}

// reachNamed reads what the index has behind a tail, as long as its records follow from each other.
func (r *recovery) reachNamed(s *segment, t tail) {
	if s.idx == nil {
		return
	}
	check := indexCheck{file: s.idx, at: int64(t.entries) * recordSize}
	for b := check.next(); b != nil; b = check.next() {
		rec := parseRecord(b)
		if int64(rec.position) != t.position || rec.length < frameHeaderSize || rec.offset < t.offset || rec.term < t.term {
			return
		}
		t = tail{entries: t.entries + 1, position: rec.end(), offset: rec.offset, term: rec.term}
		if rec.kind == KindBatch {
			t.offset++ // it has at least one
		}
		r.survey.reach(s.first+Index(t.entries), t.offset)
	}
}

// inspection puts the result together.
func (r *recovery) inspection() (Inspection, error) {
	var i Inspection
	for _, s := range r.segments {
		info := s.info(s.tail)
		if r.headless[s.first] != nil {
			info.FirstOffset, info.NextOffset, info.Bytes = -1, -1, 0
		}
		i.Segments = append(i.Segments, info)
		if r.wrongIndex[s.first] {
			i.WrongIndexes = append(i.WrongIndexes, segmentName(r.cfg.Dir, s.first, indexSuffix))
		}
	}
	i.Findings = r.survey.findings
	for k := range i.Findings {
		f := &i.Findings[k]
		if f.Index > 0 {
			f.LostEntries = max(0, int64(r.survey.end.index-f.Index))
		}
		if f.Index > 0 && f.Offset >= 0 {
			f.LostOffsets = max(0, int64(r.survey.end.offset-f.Offset))
		}
	}
	slices.SortStableFunc(i.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Position, b.Position))
	})
	if len(i.Findings) == 0 && r.bad != nil {
		s := r.segments[len(r.segments)-1]
		size, err := s.file.Size()
		if err != nil {
			return i, fmt.Errorf("find size of segment: %w", err)
		}
		i.TornBytes = size - s.tail.position
	}
	return i, nil
}
