package seglog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
)

// names of the segments of a stored log, which begin with entries 2, 10 and 18.
var storedNames = []string{"00000000000000000002", "00000000000000000010", "00000000000000000018"}

// opensFrom checks that Open with a From finds all entries, and reads them like any other.
func (s *stored) opensFrom(t testing.TB, opt OpenOptions) Report {
	t.Helper()
	l, report := open(t, s.cfg, opt)
	check(t, l, s.entries, newMaker(1).rng)
	must(t, l.Close())
	return report
}

// TestFrom: from each segment on, the log is the same, and of the segments before it only the header and the end are
// read.
func TestFrom(t *testing.T) {
	s := newStored(t)
	before := files(t, s.disk, testDir)
	for k, from := range []Index{2, 10, 18} {
		reads := map[string]int{}
		watched := *s
		watched.cfg.FS = errfs.Wrap(s.disk, injectorFunc(func(op errfs.Op) error {
			if op.Kind == errfs.OpRead {
				reads[filepath.Base(op.Path)]++
			}
			return nil
		}))
		l, report, err := Open(watched.cfg, OpenOptions{Floor: s.floor, From: from})
		must(t, err)
		must(t, l.Close())
		if want := 25 - int(from); !reflect.DeepEqual(report, Report{Entries: want}) {
			t.Errorf("from %d: %+v, want %d entries", from, report, want)
		}
		for _, name := range storedNames[:k] {
			if log, idx := reads[name+logSuffix], reads[name+indexSuffix]; log > 2 || idx != 1 {
				t.Errorf("from %d: %d reads of segment %s, %d of its index", from, log, name, idx)
			}
		}
		for _, floor := range append(s.marks, Floor{}, Floor{Index: 9, Segment: 2, Position: 500}) {
			for _, sameBoot := range []bool{false, true} {
				clone := s.clone()
				clone.opensFrom(t, OpenOptions{Floor: floor, From: max(from, 10), SameBoot: sameBoot})
				if !mapsEqual(before, files(t, clone.disk, testDir)) {
					t.Errorf("from %d: files were changed", from)
				}
			}
		}
	}
	for _, from := range []Index{1, 3, 17, 19, 26} {
		err := refused[*DamageError](t, s, OpenOptions{Floor: s.floor, From: from})
		if err.File != segmentName(testDir, from, logSuffix) {
			t.Errorf("from %d: %v", from, err)
		}
	}
	// The mark has its entry in a segment that begins later.
	for _, floor := range []Floor{{Index: 20, Segment: 2, Position: 300}, {Index: 18, Segment: 10, Position: 300}} {
		refused[*DamageError](t, s, OpenOptions{Floor: floor, From: 18})
	}
}

func (s *stored) clone() *stored {
	clone := *s
	clone.disk = s.disk.KillClone()
	clone.cfg.FS = clone.disk
	return &clone
}

// TestFromRewrites only what is read: what is before was on disk when its successor was begun.
func TestFromRewrites(t *testing.T) {
	s := newStored(t)
	size := func(k int) int64 { return int64(len(s.file(t, storedNames[k]+logSuffix))) }
	for from, want := range map[Index]int64{0: size(0) + size(1) + size(2), 10: size(1) + size(2), 18: size(2)} {
		if report := s.opensFrom(t, OpenOptions{From: from}); report.Rewritten != want {
			t.Errorf("from %d: %+v, want %d bytes rewritten", from, report, want)
		}
	}
}

// TestFromOlderIndex: the index of a segment that is not read is made anew when its end, or its size, is not right. What
// is inside is met by those who read there.
func TestFromOlderIndex(t *testing.T) {
	s := newStored(t)
	want := files(t, s.disk, testDir)
	for _, name := range storedNames[:2] {
		name += indexSuffix
		content := s.file(t, name)
		variants := [][]byte{nil, {}, content[:5], content[:len(content)-recordSize], content[:len(content)-1],
			append(bytes.Clone(content), 0), append(bytes.Clone(content), content[:recordSize]...), make([]byte, len(content))}
		last := len(content) - recordSize
		for at := last - recordSize; at < len(content); at++ {
			if in := at + recordSize - last; in == 7 || in == 20 || in >= 24 && in < recordSize {
				continue // of the one before the last, what is in order can be right
			}
			for _, flip := range []byte{1, 0x80, 0xFF} {
				changed := bytes.Clone(content)
				changed[at] ^= flip
				variants = append(variants, changed)
			}
		}
		for _, length := range []uint32{0, 5, frameHeaderSize - 1} {
			changed := bytes.Clone(content)
			binary.BigEndian.PutUint32(changed[last+12:], length)
			variants = append(variants, changed)
		}
		for i, v := range variants {
			changed := s.with(t, name, v)
			if report := changed.opensFrom(t, OpenOptions{Floor: s.floor, From: 18}); report.Entries != 7 {
				t.Fatalf("%s, variant %d: %+v", name, i, report)
			}
			if got := files(t, changed.disk, testDir); !mapsEqual(got, want) {
				t.Fatalf("%s, variant %d: the index is not as it was", name, i)
			}
		}
	}
}

// TestFromOlderDamage: of a segment that is not read, the header, the header of the last entry, and the size are
// looked at.
func TestFromOlderDamage(t *testing.T) {
	s := newStored(t)
	for k, name := range storedNames[:2] {
		name += logSuffix
		content := s.file(t, name)
		start, kind := s.lastEntry(t, k)
		for at := range content {
			changed := bytes.Clone(content)
			changed[at] ^= 0x41
			damaged := s.with(t, name, changed)
			if at < headerSize || endsWith(kind, at-start) {
				refused[*DamageError](t, damaged, OpenOptions{Floor: s.floor, From: 18})
				continue
			}
			l, _, err := Open(damaged.cfg, OpenOptions{Floor: s.floor, From: 18})
			if inTimestamp := at >= start+35 && at < start+43; inTimestamp && err != nil {
				continue // it is looked at whether it is above the one in the index
			}
			must(t, err)
			must(t, l.Close())
		}
		for what, changed := range map[string][]byte{
			"cut":     content[:len(content)-1],
			"garbage": append(bytes.Clone(content), 1, 2, 3),
			"longer":  append(bytes.Clone(content), content[headerSize:]...),
		} {
			t.Log(what, refused[*DamageError](t, s.with(t, name, changed), OpenOptions{Floor: s.floor, From: 18}))
		}
		s.with(t, name, append(bytes.Clone(content), 0, 0, 0)).opensFrom(t, OpenOptions{Floor: s.floor, From: 18})
	}
	for _, from := range []Index{0, 18} {
		err := refused[*DamageError](t, s.with(t, storedNames[1]+logSuffix, nil), OpenOptions{Floor: s.floor, From: from})
		if from == 0 && err.File != segmentName(testDir, 18, logSuffix) {
			t.Errorf("from %d: %v", from, err)
		}
	}
}

// endsWith says whether a byte of the last entry, of a kind, tells that the segment ends with that entry. All others
// are checked by those who read the entry.
func endsWith(kind Kind, at int) bool {
	if kind == KindBatch {
		return at >= 0 && at <= atMarker || at >= 23 && at < 27
	}
	return at >= 0 && at <= atMarker || at == atKind || at >= atIndex && at < atOffset
}

// lastEntry returns where the last entry of segment number k begins, and its kind.
func (s *stored) lastEntry(t testing.TB, k int) (int, Kind) {
	idx := s.file(t, storedNames[k]+indexSuffix)
	r := parseRecord(idx[len(idx)-recordSize:])
	return int(r.position), r.kind
}

// TestFromFarAway: the next segment begins at an index that is so far away that the size of the index in between wraps.
func TestFromFarAway(t *testing.T) {
	s := newStored(t)
	content := s.file(t, s.last+logSuffix)
	f, err := parseFrame(bytes.Clone(content[:headerSize]))
	must(t, err)
	f.index = 18 + 1<<59
	f.putHeader(content)
	name := filepath.Base(segmentName("", f.index, logSuffix))
	far := s.with(t, s.last+logSuffix, nil).with(t, s.last+indexSuffix, nil).with(t, name, content[:headerSize])
	refused[*DamageError](t, far, OpenOptions{From: f.index})
}

// TestFromHalfMade: the segment from which on the log is read was begun for good, or nothing could be known from there
// on.
func TestFromHalfMade(t *testing.T) {
	s := newStored(t)
	half := s.with(t, s.last+logSuffix, []byte{}).with(t, s.last+indexSuffix, nil)
	refused[*DamageError](t, half, OpenOptions{From: 18})
	half.clone().opens(t, 16, OpenOptions{From: 10})
	// An index that has something in it was made after the header was on disk.
	named := half.with(t, s.last+indexSuffix, []byte{0})
	for _, sameBoot := range []bool{true, false} {
		if err := refused[*DamageError](t, named, OpenOptions{From: 10, SameBoot: sameBoot}); !strings.Contains(err.Detail, "its index") {
			t.Error(err)
		}
	}
}

// TestFromVisitError: an error of Visit ends Open, with a From as without.
func TestFromVisitError(t *testing.T) {
	s := newStored(t)
	stop := errors.New("stop")
	var visited []Index
	_, _, err := Open(s.cfg, OpenOptions{From: 10, Visit: func(i Index, _ Entry, _ batch.Header) error {
		if visited = append(visited, i); i == 12 {
			return stop
		}
		return nil
	}})
	if !errors.Is(err, stop) || len(visited) != 3 || visited[0] != 10 {
		t.Errorf("visited %v: %v", visited, err)
	}
}
