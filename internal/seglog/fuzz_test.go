package seglog

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
)

// sealedIndex is the index file that the tests below change. Its segment is the second and holds entries 10 to 17.
const sealedIndex = "00000000000000000010" + indexSuffix

// FuzzSealedIndex changes the index of a sealed segment in every way while the log is open.
func FuzzSealedIndex(f *testing.F) {
	s := newStored(f)
	idx := s.file(f, sealedIndex)
	f.Add(idx)
	f.Add(idx[:len(idx)-recordSize])
	f.Add([]byte{})
	f.Add(append(idx[recordSize:len(idx):len(idx)], idx[:recordSize]...))
	f.Fuzz(func(t *testing.T, changed []byte) { s.readsTruth(t, changed, false) })
}

// TestSealedIndexLies changes each byte of the index of a sealed segment in several ways, and puts each record in the
// place of each other one.
func TestSealedIndexLies(t *testing.T) {
	s := newStored(t)
	idx := s.file(t, sealedIndex)
	for at := range idx {
		changed := bytes.Clone(idx)
		changed[at] ^= []byte{1, 0x80}[at/recordSize%2]
		s.readsTruth(t, changed, true)
	}
	for n := recordSize; n <= 2*recordSize; n += recordSize { // one record, two of them
		for from := 0; from+n <= len(idx); from += recordSize {
			for to := 0; to+n <= len(idx); to += recordSize {
				changed := bytes.Clone(idx)
				copy(changed[to:], idx[from:from+n])
				s.readsTruth(t, changed, true)
				copy(changed[from:], idx[to:to+n])
				s.readsTruth(t, changed, true)
			}
		}
	}
}

// readsTruth changes the index of a sealed segment while the log is open, when nothing checks it any more as a whole:
// each read finds what was stored, or fails. One lie cannot be noticed: a batch does not say its Raft index, so three
// records in a row that are right for three batches in a row pass for others. When it is exact there is no such lie.
func (s *stored) readsTruth(t *testing.T, changed []byte, exact bool) {
	t.Helper()
	altered := *s
	altered.disk = s.disk.KillClone()
	altered.cfg.FS = altered.disk
	l, _ := open(t, altered.cfg, OpenOptions{Floor: s.floor, SameBoot: true})
	file, err := altered.disk.Open(filepath.Join(testDir, sealedIndex)) // the file that the log has open, too
	must(t, err)
	must(t, file.Truncate(0))
	_, err = file.WriteAt(changed, 0)
	must(t, err)
	must(t, file.Close())
	for i := Index(9); i <= 18; i++ {
		want, isStored := s.entries[i-l.FirstIndex()], false
		got, err := l.Entry(i)
		for _, e := range s.entries[8:16] {
			isStored = isStored || !exact && e.Kind == KindBatch && got.Term == e.Term && bytes.Equal(got.Data, e.Data)
		}
		if err == nil && (got.Kind != want.Kind || !bytes.Equal(got.Data, want.Data)) && !isStored {
			t.Fatalf("index %x: entry %d is read as %+v, stored is %+v", changed, i, got, want)
		}
		if term, termErr := l.Term(i); err == nil && (termErr != nil || term != got.Term) {
			t.Fatalf("index %x: entry %d has term %d, Term says %d, %v", changed, i, got.Term, term, termErr)
		}
	}
	right := batchesOf(s.entries)
	for offset := l.segments[1].firstOffset - 2; offset < l.segments[2].firstOffset+2; offset++ {
		for _, bytesMax := range []int{1, 200, 1 << 20} {
			ranges, err := l.Locate(offset, l.NextOffset(), bytesMax, true, nil)
			if err != nil {
				continue
			}
			got, err := l.Read(nil, ranges)
			if err == nil && !right.answers(offset, got) {
				t.Fatalf("index %x: offset %d, at most %d bytes: read\n%x, stored is\n%x", changed, offset, bytesMax, got, right)
			}
		}
	}
	must(t, l.Close())
}

// storedBatches are the batches of a log in order.
type storedBatches [][]byte

func batchesOf(entries []Entry) (list storedBatches) {
	for _, e := range entries {
		if e.Kind == KindBatch {
			list = append(list, e.Data)
		}
	}
	return list
}

// answers says whether b is what a consumer may get who asks for an offset: batches one after the other, of which one
// holds that offset. To begin with an earlier one is a waste and nothing worse, consumers pass over what they did not
// ask for.
func (list storedBatches) answers(offset batch.Offset, b []byte) bool {
	for k := range list {
		var run []byte
		holds := false
		for _, next := range list[k:] {
			h, _ := batch.ParseHeader(next)
			holds = holds || h.BaseOffset <= offset && offset <= h.LastOffset()
			if run = append(run, next...); holds && bytes.Equal(run, b) {
				return true
			}
		}
	}
	return false
}

// FuzzSegment opens a log whose only segment is arbitrary bytes, with checksums that are right where the lengths
// allow, so that what is behind them is reached: whatever Open takes for an entry can be read again as it was visited,
// and opening again changes nothing.
func FuzzSegment(f *testing.F) {
	s := newStored(f)
	const first = "00000000000000000002"
	content := s.file(f, first+logSuffix)
	f.Add(content, true)
	f.Add(content[:len(content)-40], false)
	f.Add(content[:headerSize], true)
	for _, at := range []int{headerSize + 7, headerSize + batch.HeaderSize - 1, headerSize + 23, 21, 43} {
		changed := bytes.Clone(content)
		changed[at] ^= 1
		f.Add(changed, true)
	}
	empty := newDisk(f)
	f.Fuzz(func(t *testing.T, content []byte, sameBoot bool) {
		cfg, disk := s.cfg, empty.KillClone()
		cfg.FS = disk
		writeFile(t, disk, filepath.Join(testDir, first+logSuffix), sealed(content))
		before := files(t, disk, testDir)
		var visited []Entry
		l, _, err := Open(cfg, OpenOptions{SameBoot: sameBoot, Visit: func(i Index, e Entry, h batch.Header) error {
			if parsed, ok := batch.ParseHeader(e.Data); e.Kind == KindBatch && (!ok || parsed != h) {
				t.Fatalf("entry %d is visited with header %+v and bytes %x", i, h, e.Data)
			}
			e.Data = bytes.Clone(e.Data)
			visited = append(visited, e)
			return nil
		}})
		if err != nil {
			if !mapsEqual(before, files(t, disk, testDir)) {
				t.Fatalf("%v, but files were changed", err)
			}
			return
		}
		entries := all(t, l)
		if len(entries) != len(visited) {
			t.Fatalf("%d entries are read, %d were visited", len(entries), len(visited))
		}
		for k, e := range entries {
			if !strings.HasPrefix(string(e.Data), string(visited[k].Data)) || e.Kind != visited[k].Kind || e.Term != visited[k].Term {
				t.Fatalf("entry %d is read as %+v, visited was %+v", k, e, visited[k])
			}
		}
		if from := l.FirstOffset(); from < l.NextOffset() {
			ranges, err := l.Locate(from, l.NextOffset(), 1<<30, true, nil)
			must(t, err)
			got, err := l.Read(nil, ranges)
			must(t, err)
			if want := bytes.Join(batchesOf(entries), nil); !bytes.Equal(got, want) {
				t.Fatalf("read\n%x, the entries are\n%x", got, want)
			}
		}
		end := l.End()
		must(t, l.Close())
		after := files(t, disk, testDir)
		l, report := open(t, cfg, OpenOptions{Floor: end, SameBoot: sameBoot})
		if !reflect.DeepEqual(report, Report{Entries: len(entries)}) || !mapsEqual(after, files(t, disk, testDir)) {
			t.Fatalf("opening again: %+v", report)
		}
		must(t, l.Close())
	})
}

// sealed returns the bytes with right checksums in each entry, as far as lengths can be followed.
func sealed(content []byte) []byte {
	content = bytes.Clone(content)
	for rest := content; len(rest) >= prefixSize; {
		length, err := entryLength(rest)
		if err != nil || length > int64(len(rest)) {
			break
		}
		entry := rest[:length]
		crc := crc32.Checksum(entry[atKind:], castagnoli)
		if isFrame(entry) {
			crc = frameCRC(entry, entry[frameHeaderSize:])
		}
		binary.BigEndian.PutUint32(entry[atCRC:], crc)
		rest = rest[length:]
	}
	return content
}
