package seglog

import (
	"fmt"

	"github.com/oncemq/oncemq/internal/invariant"
)

// entriesBytesAtOnce bounds in bytes what Entries reads at once, unless one entry alone is larger.
const entriesBytesAtOnce = 1 << 20

// Entry returns a whole entry, its data freshly allocated, after checking it as Open does. ErrOutOfRange: there is no
// such entry.
func (l *Log) Entry(i Index) (Entry, error) {
	entries, err := l.Entries(i, i+1, 1)
	if err != nil {
		return Entry{}, err
	}
	return entries[0], nil
}

// Entries returns whole entries from from on, before to, each checked as Open does; their data shares one fresh allocation.
// It is those that one read gives: they lie in one segment, and have together no more than maxBytes in it, nor 1 MiB, but
// always one. to must be above from. ErrOutOfRange: the log does not have all of them.
func (l *Log) Entries(from, to Index, maxBytes int64) ([]Entry, error) {
	invariant.Check(from < to, "read the entries from %d to %d of log %s", from, to, l.cfg.Dir)
	var entries []Entry
	err := l.attempt(func() (err error) {
		entries, err = l.entries(from, to, min(maxBytes, entriesBytesAtOnce))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read entries from %d on of log %s: %w", from, l.cfg.Dir, err)
	}
	return entries, nil
}

func (l *Log) entries(from, to Index, maxBytes int64) ([]Entry, error) {
	v := l.view()
	if from < v.firstIndex() || to-1 > v.lastIndex() {
		return nil, ErrOutOfRange
	}
	k := v.segmentOf(from)
	s := v.segments[k]
	n, end := int(from-s.first), v.tailOf(k).entries
	if want := s.first + Index(end); to < want {
		end = int(to - s.first)
	}
	run, err := v.run(k, n, end, maxBytes)
	if err != nil {
		return nil, l.late(err, s)
	}
	entries, err := s.entriesAt(run, from)
	return entries, l.late(err, s)
}

// run returns the records from n on, before end, of segment number k whose entries have together no more than maxBytes, but
// always one.
func (v view) run(k, n, end int, maxBytes int64) ([]record, error) {
	s := v.segments[k]
	if k == len(v.segments)-1 {
		return within(v.records[n:end], maxBytes), nil
	}
	first, err := s.readRecord(n)
	if err != nil || int64(first.length) >= maxBytes || n+1 == end {
		return []record{first}, err
	}
	// A batch does not say its index, so what tells that a record is not that of another batch is where those around it lie.
	records := make([]record, min(end+1, n+recordsPerRead+1, s.tail.entries)-n)
	if err := s.readRecords(n, records); err != nil {
		return nil, err
	}
	if n+len(records) == s.tail.entries { // no record follows; that it ends with the segment is checked by its neighbour
		last, err := s.readRecord(s.tail.entries - 1)
		if err != nil {
			return nil, err
		}
		records[len(records)-1] = last
	}
	records[0] = first
	for i := 1; i < len(records); i++ {
		if r := records[i]; int64(r.position) != records[i-1].end() {
			return nil, s.damage(records[i-1].end(), fmt.Sprintf(
				"the entry before %d ends here, and the index has that at byte %d", s.first+Index(n+i), r.position))
		}
	}
	usable := len(records)
	if n+usable < s.tail.entries {
		usable-- // nothing tells where that one ends
	}
	return within(records[:min(usable, end-n)], maxBytes), nil
}

// within returns those records, from the first on, whose entries have together no more than maxBytes, but always one.
func within(records []record, maxBytes int64) []record {
	size := int64(0)
	for i, r := range records {
		if size += int64(r.length); size > maxBytes && i > 0 {
			return records[:i]
		}
	}
	return records
}

// entriesAt reads and checks, in one piece, the entries that records, which lie one behind the other, mean. The first one
// has the index from.
func (s *segment) entriesAt(records []record, from Index) ([]Entry, error) {
	start := int64(records[0].position)
	b := make([]byte, records[len(records)-1].end()-start)
	if err := readFull(s.file, b, start); err != nil {
		return nil, fmt.Errorf("read %s: %w", s.name, err)
	}
	entries := make([]Entry, 0, len(records))
	for i, r := range records {
		at := int64(r.position) - start
		e, err := s.parseAt(b[at:at+int64(r.length):at+int64(r.length)], r, from+Index(i))
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// parseAt checks that the bytes of an entry are those that a record means.
func (s *segment) parseAt(b []byte, r record, i Index) (Entry, error) {
	err := r.checkHeader(b, i)
	var e Entry
	if err == nil {
		e, _, err = parseEntry(b, place{index: i, offset: r.offset, term: r.term})
	}
	return e, s.located(int64(r.position), err)
}
