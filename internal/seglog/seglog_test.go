package seglog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

var testIdentity = Identity{
	Cluster: [16]byte{1, 2, 3}, Group: 7, Replica: 3<<32 | 5, Topic: [16]byte{9, 8, 7}, Partition: 4,
}

const testDir = "/group"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// makeBatch builds a record batch as the log gets it. What stands for its records is random.
func makeBatch(base batch.Offset, term batch.Term, records int, size int, timestamp int64, rng *rand.Rand) []byte {
	b := make([]byte, batch.HeaderSize+size)
	for i := batch.HeaderSize; i < len(b); i++ {
		b[i] = byte(rng.Uint32())
	}
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	b[16] = 2
	binary.BigEndian.PutUint32(b[23:], uint32(records-1))
	binary.BigEndian.PutUint64(b[35:], uint64(timestamp))
	for i := 43; i < 57; i++ {
		b[i] = 0xFF // no producer
	}
	binary.BigEndian.PutUint32(b[57:], uint32(records))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	batch.SetPlace(b, base, term)
	return b
}

// maker makes entries that continue a log.
type maker struct {
	rng  *rand.Rand
	next place // of the next entry
}

func newMaker(seed uint64) *maker {
	return &maker{rng: rand.New(rand.NewPCG(seed, 1)), next: place{index: 2, term: 1}}
}

func (m *maker) batch(records, size int) Entry {
	e := Entry{Term: m.next.term, Data: makeBatch(m.next.offset, m.next.term, records, size, m.rng.Int64N(1000)-1, m.rng)}
	m.next.index++
	m.next.offset += batch.Offset(records)
	return e
}

func (m *maker) frame(kind Kind, size int) Entry {
	if kind == KindEmpty {
		m.next.term += batch.Term(m.rng.IntN(3))
	}
	e := Entry{Kind: kind, Version: 1, Term: m.next.term, Data: make([]byte, size)}
	for i := range e.Data {
		e.Data[i] = byte(m.rng.Uint32())
	}
	m.next.index++
	return e
}

// any makes an entry of any kind and size; three of four are batches.
func (m *maker) any(maxSize int) Entry {
	switch m.rng.IntN(8) {
	case 0:
		return m.frame(KindEmpty, 0)
	case 1:
		kinds := []Kind{KindConfChange, KindConfChangeV2, KindRules, KindClock, KindExpire, KindEvict, KindLogStart, KindMarkEverything, KindCommand}
		return m.frame(kinds[m.rng.IntN(len(kinds))], m.rng.IntN(maxSize))
	default:
		return m.batch(1+m.rng.IntN(5), m.rng.IntN(maxSize))
	}
}

func (m *maker) several(n, maxSize int) []Entry {
	entries := make([]Entry, n)
	for i := range entries {
		entries[i] = m.any(maxSize)
	}
	return entries
}

// replace makes m go on behind entries, which are a log from its beginning.
func (m *maker) replace(entries []Entry) {
	m.next = place{index: 2, term: 1}
	for _, e := range entries {
		m.next = follow(m.next, e)
	}
}

// follow returns the place behind an entry.
func follow(at place, e Entry) place {
	at.index++
	at.term = e.Term
	if e.Kind == KindBatch {
		h, _ := batch.ParseHeader(e.Data)
		at.offset = h.NextOffset()
	}
	return at
}

// testConfig has small segments, so that little data makes many.
func testConfig(f vfs.FS) Config {
	return Config{FS: f, Dir: testDir, Identity: testIdentity, SegmentBytes: 4096, SegmentEntries: 20}
}

func newDisk(t testing.TB) *memfs.FS {
	f := memfs.New()
	must(t, f.MkdirAll(testDir))
	must(t, f.SyncDir("/"))
	return f
}

func create(t testing.TB, cfg Config) *Log {
	t.Helper()
	l, err := Create(cfg, 2, 1, 0)
	must(t, err)
	return l
}

// open opens a log and checks that Visit sees what is read later.
func open(t testing.TB, cfg Config, opt OpenOptions) (*Log, Report) {
	t.Helper()
	var visited []Entry
	var first Index
	opt.Visit = func(i Index, e Entry, h batch.Header) error {
		if len(visited) == 0 {
			first = i
		}
		if i != first+Index(len(visited)) {
			return fmt.Errorf("entry %d visited out of order", i)
		}
		if e.Kind == KindBatch {
			if got, ok := batch.ParseHeader(e.Data); !ok || len(e.Data) != batch.HeaderSize || got != h {
				return fmt.Errorf("entry %d comes with another header or %d bytes", i, len(e.Data))
			}
		}
		e.Data = bytes.Clone(e.Data)
		visited = append(visited, e)
		return nil
	}
	l, report, err := Open(cfg, opt)
	must(t, err)
	from := max(opt.From, l.FirstIndex())
	if report.Entries != len(visited) || int(l.LastIndex()-from)+1 != len(visited) || len(visited) > 0 && first != from {
		t.Fatalf("visited %d entries from %d on, report %+v, last index %d", len(visited), first, report, l.LastIndex())
	}
	for k, want := range visited {
		got, err := l.Entry(from + Index(k))
		must(t, err)
		if got.Kind == KindBatch {
			got.Data = got.Data[:batch.HeaderSize]
		}
		if !equal(got, want) {
			t.Fatalf("entry %d: visited %v, read %v", k, want, got)
		}
	}
	return l, report
}

func equal(a, b Entry) bool {
	return a.Kind == b.Kind && a.Version == b.Version && a.Term == b.Term && bytes.Equal(a.Data, b.Data)
}

// files returns the content of all files of a directory.
func files(t testing.TB, f vfs.FS, dir string) map[string]string {
	t.Helper()
	names, err := f.List(dir)
	must(t, err)
	all := map[string]string{}
	for _, name := range names {
		all[name] = string(readFile(t, f, filepath.Join(dir, name)))
	}
	return all
}

func readFile(t testing.TB, f vfs.FS, name string) []byte {
	t.Helper()
	file, err := f.Open(name)
	must(t, err)
	defer file.Close()
	size, err := file.Size()
	must(t, err)
	b := make([]byte, size)
	if _, err := file.ReadAt(b, 0); err != io.EOF {
		must(t, err)
	}
	return b
}

// writeFile makes or replaces a file.
func writeFile(t testing.TB, f vfs.FS, name string, b []byte) {
	t.Helper()
	if err := f.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	file, err := f.Create(name)
	must(t, err)
	_, err = file.WriteAt(b, 0)
	must(t, err)
	must(t, file.SyncData())
	must(t, file.Close())
	must(t, f.SyncDir(filepath.Dir(name)))
}

// check compares a log with the entries that it must hold, by all ways of reading.
func check(t testing.TB, l *Log, entries []Entry, rng *rand.Rand) {
	t.Helper()
	checkFrom(t, l, 2, entries, rng)
}

// checkFrom compares a log that begins with first. The entries before it are in entries, too, which begins with entry 2.
func checkFrom(t testing.TB, l *Log, first Index, entries []Entry, rng *rand.Rand) {
	t.Helper()
	at := placeOf(first, entries)
	start := at
	if term, err := l.Term(first - 1); err != nil || term != at.term || l.FirstIndex() != first || l.FirstOffset() != at.offset {
		t.Fatalf("the log begins with index %d, offset %d after term %d (%v), want %+v", l.FirstIndex(), l.FirstOffset(), term, err, at)
	}
	for _, want := range entries[first-2:] {
		got, err := l.Entry(at.index)
		must(t, err)
		if !equal(got, want) {
			t.Fatalf("entry %d: got kind %d, term %d, %d bytes, want kind %d, term %d, %d bytes",
				at.index, got.Kind, got.Term, len(got.Data), want.Kind, want.Term, len(want.Data))
		}
		if term, err := l.Term(at.index); err != nil || term != want.Term {
			t.Fatalf("term of entry %d: got %d, %v, want %d", at.index, term, err, want.Term)
		}
		at = follow(at, want)
	}
	if l.LastIndex() != at.index-1 || l.NextOffset() != at.offset {
		t.Fatalf("the log ends at index %d, offset %d, want %d, %d", l.LastIndex(), l.NextOffset(), at.index-1, at.offset)
	}
	for _, i := range []Index{0, first - 1, at.index, at.index + 100} {
		if _, err := l.Term(i); i != first-1 && !errors.Is(err, ErrOutOfRange) {
			t.Fatalf("term of entry %d: %v", i, err)
		}
		if _, err := l.Entry(i); !errors.Is(err, ErrOutOfRange) {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
	checkSegments(t, l, first, entries)
	if _, err := l.Locate(start.offset-1, at.offset, 1, true, nil); !errors.Is(err, ErrOutOfRange) {
		t.Fatalf("locate offset %d: %v", start.offset-1, err)
	}
	checkLocate(t, l, entries, start.offset, at.offset, 1<<30, true)
	width := at.offset - start.offset
	random := func() batch.Offset { return start.offset + batch.Offset(rng.Int64N(int64(width)+2)) }
	checkLocate(t, l, entries, random(), at.offset, 1<<30, false)
	for from := start.offset; from < at.offset+2; from++ {
		if width > 50 && rng.IntN(int(width)/50) > 0 {
			continue
		}
		checkLocate(t, l, entries, from, at.offset, rng.IntN(3000), true)
		checkLocate(t, l, entries, from, random(), rng.IntN(3000), rng.IntN(2) == 0)
	}
}

// placeOf returns the place of an entry among entries that begin with entry 2.
func placeOf(i Index, entries []Entry) place {
	at := place{index: 2, term: 1}
	for at.index < i {
		at = follow(at, entries[at.index-2])
	}
	return at
}

// checkSegments compares what the log says of its segments with the entries.
func checkSegments(t testing.TB, l *Log, first Index, entries []Entry) {
	t.Helper()
	at := placeOf(first, entries)
	for _, s := range l.Segments() {
		want := SegmentInfo{
			First: at.index, FirstOffset: at.offset, PreviousTerm: at.term, Entries: s.Entries, Bytes: headerSize, MaxTimestamp: -1,
		}
		for range s.Entries {
			e := entries[at.index-2]
			if h, ok := batch.ParseHeader(e.Data); e.Kind == KindBatch && ok {
				want.MaxTimestamp = max(want.MaxTimestamp, h.MaxTimestamp)
			} else {
				want.Bytes += frameHeaderSize
			}
			want.Bytes += int64(len(e.Data))
			at = follow(at, e)
		}
		if want.NextOffset = at.offset; s != want {
			t.Fatalf("got segment %+v, want %+v", s, want)
		}
	}
	if at.index != l.LastIndex()+1 {
		t.Fatalf("the segments end before index %d, the log after %d", at.index, l.LastIndex())
	}
}

// checkLocate compares Locate and Read with a search through all entries.
func checkLocate(t testing.TB, l *Log, entries []Entry, from, limit batch.Offset, maxBytes int, minOne bool) {
	t.Helper()
	var want []byte
	runs, adjacent := 0, false
	for _, e := range entries {
		if e.Kind != KindBatch {
			adjacent = false
			continue
		}
		h, _ := batch.ParseHeader(e.Data)
		if h.LastOffset() < from {
			continue
		}
		if h.NextOffset() > limit || from >= limit || len(want)+len(e.Data) > maxBytes && (len(want) > 0 || !minOne) {
			break
		}
		if want = append(want, e.Data...); !adjacent {
			runs++
		}
		adjacent = true
	}
	prefix := []Range{{Position: 42}}
	ranges, err := l.Locate(from, limit, maxBytes, minOne, prefix)
	must(t, err)
	if len(ranges) == 0 || ranges[0] != prefix[0] {
		t.Fatalf("locate %d: what was in dst is gone", from)
	}
	got, err := l.Read([]byte("before"), ranges[1:])
	must(t, err)
	if !bytes.Equal(got, append([]byte("before"), want...)) {
		t.Fatalf("offset %d, limit %d, %d bytes, min one %v: got %d bytes in %d ranges, want %d in %d or more",
			from, limit, maxBytes, minOne, len(got)-6, len(ranges)-1, len(want), runs)
	}
	// A range ends at a frame, or at the end of a segment.
	if len(ranges)-1 < runs || len(ranges)-1 > runs+len(l.segments) {
		t.Fatalf("offset %d: %d ranges for %d runs of batches", from, len(ranges)-1, runs)
	}
}

// TestRoundTrip writes all kinds and sizes of entries over many segments, in calls of different length, and reads
// everything back, before and after opening again, in order and with nothing to repair.
func TestRoundTrip(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newMaker(seed)
			cfg := testConfig(newDisk(t))
			l := create(t, cfg)
			var entries []Entry
			for range 12 {
				some := m.several(m.rng.IntN(15), 600)
				must(t, l.Append(some))
				entries = append(entries, some...)
			}
			check(t, l, entries, m.rng)
			must(t, l.Sync())
			floor := l.End()
			must(t, l.Close())
			before := files(t, cfg.FS, testDir)
			l, report := open(t, cfg, OpenOptions{Floor: floor})
			check(t, l, entries, m.rng)
			if !reflect.DeepEqual(report, Report{Entries: len(entries)}) || !mapsEqual(before, files(t, cfg.FS, testDir)) {
				t.Fatalf("a log that was closed in order is repaired: %+v", report)
			}
			some := m.several(30, 600)
			must(t, l.Append(some))
			check(t, l, append(entries, some...), m.rng)
			checkSizes(t, cfg)
		})
	}
}

// checkSizes checks the bounds on segments.
func checkSizes(t *testing.T, cfg Config) {
	t.Helper()
	for name, content := range files(t, cfg.FS, testDir) {
		if filepath.Ext(name) != logSuffix {
			continue
		}
		idx := readFile(t, cfg.FS, filepath.Join(testDir, name[:nameDigits]+indexSuffix))
		n := len(idx) / recordSize
		if n > cfg.SegmentEntries || int64(len(content)) > cfg.SegmentBytes && n > 1 {
			t.Fatalf("segment %s has %d bytes and %d entries", name, len(content), n)
		}
	}
}

// TestLargeEntry: an entry that is larger than a segment may be has one of its own.
func TestLargeEntry(t *testing.T) {
	m := newMaker(1)
	cfg := testConfig(newDisk(t))
	l := create(t, cfg)
	entries := []Entry{m.batch(1, 10), m.batch(1, 3*windowBytes), m.batch(1, 10), m.frame(KindCommand, 10000), m.frame(KindClock, 8)}
	must(t, l.Append(entries))
	check(t, l, entries, m.rng)
	if got := len(l.segments); got != 5 {
		t.Fatalf("%d segments", got)
	}
	l, _ = open(t, cfg, OpenOptions{SameBoot: true})
	check(t, l, entries, m.rng)
}

// TestVeryLargeEntry: what is too large to be read before it is proved is read like all else, and its bytes are checked.
func TestVeryLargeEntry(t *testing.T) {
	m := newMaker(1)
	entries := []Entry{m.batch(1, unprovenBytes+1), m.frame(KindCommand, unprovenBytes+1), m.batch(1, 10)}
	disk := newDisk(t)
	cfg := testConfig(disk)
	cfg.SegmentBytes = 1 << 30
	l := create(t, cfg)
	must(t, l.Append(entries))
	name, records := l.active().name, l.active().records
	must(t, l.Close())
	l, _ = open(t, cfg, OpenOptions{})
	check(t, l, entries, m.rng)
	must(t, l.Close())
	for k, r := range records[:2] {
		for _, at := range []uint32{16, 5000, r.length - 1} {
			clone := disk.KillClone()
			b := readFile(t, clone, name)
			b[r.position+at] ^= 1
			writeFile(t, clone, name, b)
			l, _ = open(t, testConfig(clone), OpenOptions{})
			if got := all(t, l); len(got) != k {
				t.Fatalf("entry %d, byte %d is changed: %d entries are found", k, at, len(got))
			}
			must(t, l.Close())
		}
	}
}

// TestSegmentIsFull: a segment takes what fits to the byte.
func TestSegmentIsFull(t *testing.T) {
	for _, missing := range []int{0, 1} {
		m := newMaker(1)
		cfg := testConfig(newDisk(t))
		entries := []Entry{m.batch(1, 100), m.frame(KindClock, 8), m.batch(1, 100)}
		cfg.SegmentBytes = headerSize + 2*(batch.HeaderSize+100) + frameHeaderSize + 8 - int64(missing)
		l := create(t, cfg)
		must(t, l.Append(entries))
		if got := len(l.segments); got != 1+missing {
			t.Errorf("%d bytes too few: %d segments", missing, got)
		}
		check(t, l, entries, m.rng)
	}
}

// TestRangesOfTwoSegments: a batch that begins in its segment where the range in the one before ends is a range of its
// own.
func TestRangesOfTwoSegments(t *testing.T) {
	m := newMaker(1)
	cfg := testConfig(newDisk(t))
	cfg.SegmentEntries = 2
	l := create(t, cfg)
	entries := []Entry{m.frame(KindClock, 8), m.batch(1, 100), m.frame(KindCommand, 8+batch.HeaderSize+100), m.batch(1, 10)}
	must(t, l.Append(entries))
	if first, second := l.segments[0].tail.position, l.view().records[1].position; first != int64(second) {
		t.Fatalf("the test is wrong: %d, %d", first, second)
	}
	check(t, l, entries, m.rng)
}

// TestFramesOnly: raft0 has no batches; offsets stay where they are.
func TestFramesOnly(t *testing.T) {
	m := newMaker(1)
	cfg := testConfig(newDisk(t))
	l := create(t, cfg)
	var entries []Entry
	for range 50 {
		entries = append(entries, m.frame(KindCommand, m.rng.IntN(100)))
	}
	must(t, l.Append(entries))
	check(t, l, entries, m.rng)
}

func TestCreateRefusesWhatIsThere(t *testing.T) {
	for _, name := range []string{"00000000000000000002.log", "00000000000000000009.idx"} {
		cfg := testConfig(newDisk(t))
		writeFile(t, cfg.FS, filepath.Join(testDir, name), nil)
		if _, err := Create(cfg, 2, 1, 0); !errors.Is(err, fs.ErrExist) {
			t.Errorf("with %s there: %v", name, err)
		}
	}
}

func TestConfigBounds(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.SegmentBytes = -1 },
		func(c *Config) { c.SegmentBytes = 1 << 32 },
		func(c *Config) { c.SegmentEntries = -1 },
	} {
		cfg := testConfig(newDisk(t))
		change(&cfg)
		if _, err := Create(cfg, 2, 1, 0); err == nil {
			t.Errorf("%+v created", cfg)
		}
		if _, _, err := Open(cfg, OpenOptions{}); err == nil {
			t.Errorf("%+v opened", cfg)
		}
	}
	cfg, err := Config{}.withDefaults()
	if err != nil || cfg.SegmentBytes != 1<<30 || cfg.SegmentEntries != 262144 {
		t.Errorf("defaults %+v, %v", cfg, err)
	}
}

// TestAppendChecks: entries that do not continue the log are a bug, and nothing of the call is written.
func TestAppendChecks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	good := Entry{Term: 1, Data: makeBatch(0, 1, 2, 10, 0, rng)}
	damaged := func(at int, b byte) Entry {
		data := bytes.Clone(good.Data)
		data[at] = b
		return Entry{Term: 1, Data: data}
	}
	for name, entries := range map[string][]Entry{
		"offset":         {good, {Term: 1, Data: makeBatch(3, 1, 1, 10, 0, rng)}},
		"offset again":   {good, good},
		"term":           {{Term: 2, Data: makeBatch(0, 2, 1, 10, 0, rng)}},
		"entry's term":   {{Term: 2, Data: good.Data}},
		"empty":          {{Term: 1}},
		"cut off":        {{Term: 1, Data: good.Data[:len(good.Data)-1]}},
		"two batches":    {{Term: 1, Data: append(bytes.Clone(good.Data), good.Data...)}},
		"magic":          {damaged(16, 1)},
		"negative delta": {damaged(23, 0x80)},
		"rising term":    {{Kind: KindClock, Version: 1, Term: 2}},
		"falling term":   {{Kind: KindEmpty, Version: 1, Term: 0}},
		"huge term":      {{Kind: KindEmpty, Version: 1, Term: 1 << 31}},
		"no version":     {{Kind: KindEmpty, Term: 1}},
		"header":         {{Kind: kindHeader, Version: 1, Term: 1}},
		"unknown kind":   {{Kind: 99, Version: 1, Term: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(newDisk(t))
			l := create(t, cfg)
			before := files(t, cfg.FS, testDir)
			defer func() {
				if recover() == nil || l.LastIndex() != 1 || !mapsEqual(before, files(t, cfg.FS, testDir)) {
					t.Error("accepted, or something is written")
				}
			}()
			_ = l.Append(entries)
		})
	}
}

// TestBorrowedBytes: Append keeps no reference to what it is given.
func TestBorrowedBytes(t *testing.T) {
	m := newMaker(3)
	l := create(t, testConfig(newDisk(t)))
	entries := m.several(100, 300)
	var kept []Entry
	for _, e := range entries {
		e.Data = bytes.Clone(e.Data)
		kept = append(kept, e)
	}
	must(t, l.Append(entries))
	for _, e := range entries {
		for i := range e.Data {
			e.Data[i] = 0xEE
		}
	}
	check(t, l, kept, m.rng)
	for _, b := range l.appender.bufs[:cap(l.appender.bufs)] {
		if b != nil {
			t.Fatal("a buffer is still referred to")
		}
	}
}

func mapsEqual(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for name, content := range a {
		if other, ok := b[name]; !ok || other != content {
			return false
		}
	}
	return true
}

// prefixOf says whether got is a prefix of want.
func prefixOf(got, want []Entry) bool {
	return len(got) <= len(want) && slices.EqualFunc(got, want[:len(got)], equal)
}

// all reads all entries of a log.
func all(t testing.TB, l *Log) []Entry {
	t.Helper()
	var entries []Entry
	for i := l.FirstIndex(); i <= l.LastIndex(); i++ {
		e, err := l.Entry(i)
		must(t, err)
		entries = append(entries, e)
	}
	return entries
}
