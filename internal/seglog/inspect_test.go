package seglog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
)

// inspected inspects a log and checks that nothing is changed and that Open judges as Inspect does: it succeeds when
// nothing was found, cuts what was torn and sees the same segments, and else it reports one of the findings. When an
// end of the log is before all damage, Abandon leaves a log up to there that opens. It returns what Inspect found.
func (s *stored) inspected(t testing.TB, opt OpenOptions) Inspection {
	t.Helper()
	before := files(t, s.disk, testDir)
	seen := visits(&opt)
	got, err := Inspect(s.cfg, opt)
	inspected := *seen
	if !mapsEqual(before, files(t, s.disk, testDir)) {
		t.Fatal("Inspect changes files")
	}
	opened := s.clone()
	*seen = nil
	l, report, openErr := Open(opened.cfg, opt)
	if n := len(*seen); n > len(inspected) || !slices.Equal(*seen, inspected[:n]) || openErr == nil && n != len(inspected) {
		t.Fatalf("Open visits entries %v, Inspect %v", *seen, inspected)
	}
	if err != nil {
		_, isFormat := errors.AsType[*FormatError](err)
		_, isIdentity := errors.AsType[*IdentityError](err)
		if openErr == nil || !isFormat && !isIdentity {
			t.Fatalf("inspected: %v, opened: %v", err, openErr)
		}
		return got
	}
	if len(got.Findings) == 0 {
		must(t, openErr)
		if segments := l.Segments(); !slices.Equal(segments, got.Segments) || report.CutBytes != got.TornBytes {
			t.Fatalf("inspected %+v, opened %+v, %+v", got, segments, report)
		}
		must(t, l.Close())
		return got
	}
	damage, ok := errors.AsType[*DamageError](openErr)
	if !ok || !slices.ContainsFunc(got.Findings, func(f Finding) bool {
		return DamageError{File: f.File, Position: f.Position, Detail: f.Detail} == *damage
	}) {
		t.Fatalf("found %+v, opened: %v", got.Findings, openErr)
	}
	s.abandoned(t, got, opt.From)
	return got
}

// visits notes which entries are visited.
func visits(opt *OpenOptions) *[]Index {
	var seen []Index
	opt.Visit = func(i Index, _ Entry, _ batch.Header) error {
		seen = append(seen, i)
		return nil
	}
	return &seen
}

// abandoned abandons a log at the first finding, and checks what is left and what is kept aside. Before from there may
// be damage that was not looked for.
func (s *stored) abandoned(t testing.TB, found Inspection, from Index) {
	t.Helper()
	first := found.Findings[0].Index // they are in order
	for _, f := range found.Findings {
		if f.LostEntries < 0 || f.LostOffsets < 0 || f.Index > 0 && f.Index < first {
			t.Fatalf("finding %+v behind %+v", f, found.Findings[0])
		}
	}
	if first == 0 || from >= first {
		return
	}
	left := s.clone()
	must(t, Abandon(left.cfg, first))
	if err := Abandon(left.cfg, first); err != nil {
		t.Fatalf("again: %v", err)
	}
	l, _, err := Open(left.cfg, OpenOptions{SameBoot: true, From: from})
	if len(found.Segments) == 0 || first <= found.Segments[0].First {
		if err == nil {
			t.Fatalf("all was abandoned from entry %d on, and there is a log from entry %d on", first, l.FirstIndex())
		}
		return
	}
	if err != nil {
		t.Fatalf("abandoned from entry %d on: %v", first, err)
	}
	if l.LastIndex() != first-1 || l.FirstIndex() != found.Segments[0].First {
		t.Fatalf("abandoned from entry %d on: the log has entries %d to %d", first, l.FirstIndex(), l.LastIndex())
	}
	for i := max(from, l.FirstIndex()); i < first; i++ {
		_, err := l.Entry(i)
		must(t, err)
	}
	must(t, l.Close())
	keepsAll(t, files(t, s.disk, testDir), files(t, left.disk, testDir))
}

// keepsAll checks that of each segment there was before, what is not in it any more is in side files. Zeros at the end
// are nothing.
func keepsAll(t testing.TB, before, after map[string]string) {
	t.Helper()
	for name, was := range before {
		if filepath.Ext(name) != logSuffix || len(name) != nameDigits+len(logSuffix) {
			continue
		}
		left, aside := after[name], ""
		for side, content := range after {
			if strings.HasPrefix(side, name[:nameDigits]+"-") && strings.HasSuffix(side, sideSuffix) {
				aside += content
			}
		}
		if !strings.HasPrefix(was, left) || strings.TrimRight(left+aside, "\x00") != strings.TrimRight(was, "\x00") {
			t.Fatalf("segment %s had %d bytes, %d are left and %d aside", name, len(was), len(left), len(aside))
		}
	}
}

// TestInspectWhole finds nothing in a log that is whole, and says what Open would.
func TestInspectWhole(t *testing.T) {
	s := newStored(t)
	for _, from := range []Index{0, 2, 10, 18} {
		got := s.inspected(t, OpenOptions{Floor: s.floor, From: from})
		if len(got.Findings) != 0 || len(got.Segments) != 3 || len(got.WrongIndexes) != 0 {
			t.Errorf("from %d: %+v", from, got)
		}
	}
	content := s.file(t, s.last+logSuffix)
	torn := s.with(t, s.last+logSuffix, append(bytes.Clone(content), 1, 2, 3))
	if got := torn.inspected(t, OpenOptions{Floor: s.floor}); got.TornBytes != 3 || len(got.Findings) != 0 {
		t.Errorf("%+v", got)
	}
	// An index that disagrees inside is seen by those who read all.
	idx := s.file(t, sealedIndex)
	idx[2*recordSize+7] ^= 1
	lying := s.with(t, sealedIndex, idx)
	if got := lying.inspected(t, OpenOptions{}); !slices.Equal(got.WrongIndexes, []string{filepath.Join(testDir, sealedIndex)}) {
		t.Errorf("%+v", got)
	}
}

// TestInspectOneFinding has one damaged place in a log of 23 entries and tells what would be lost.
func TestInspectOneFinding(t *testing.T) {
	s := newStored(t)
	end := placeOf(25, s.entries)
	for k := range s.entries {
		i := Index(k + 2)
		at, name := placeOf(i, s.entries), storedNames[(i-2)/8]
		r := parseRecord(s.file(t, name+indexSuffix)[int(i-2)%8*recordSize:])
		changed := s.file(t, name+logSuffix)
		changed[r.position+20] ^= 1
		damaged := s.with(t, name+logSuffix, changed)
		for _, opt := range []OpenOptions{{Floor: s.floor}, {Floor: s.floor, SameBoot: true}, {SameBoot: true}} {
			got := damaged.inspected(t, opt)
			if len(got.Findings) != 1 {
				t.Fatalf("entry %d, %+v: %+v", i, opt, got.Findings)
			}
			f := got.Findings[0]
			f.Detail = ""
			want := Finding{
				File: filepath.Join(testDir, name+logSuffix), Position: int64(r.position), Index: i, Offset: at.offset,
				LostEntries: int64(25 - i), LostOffsets: int64(end.offset - at.offset),
			}
			if f.LostOffsets == want.LostOffsets-2 && i == 24 {
				f.LostOffsets += 2 // of the last batch only the index tells, and not how long it is
			}
			if f != want {
				t.Fatalf("entry %d: got %+v, want %+v", i, f, want)
			}
		}
		// Without the index nothing behind it in its segment is known.
		got := damaged.with(t, name+indexSuffix, nil).inspected(t, OpenOptions{Floor: s.floor})
		if f := got.Findings[0]; len(got.Findings) != 1 || f.Index != i || f.LostEntries != int64(25-i) {
			t.Fatalf("entry %d, no index: %+v", i, got.Findings)
		}
	}
}

// TestInspectSeveral goes on behind damage, in the same segment and in the next one.
func TestInspectSeveral(t *testing.T) {
	s := newStored(t)
	damage := func(name string, numbers ...int) {
		content, idx := s.file(t, name+logSuffix), s.file(t, name+indexSuffix)
		for _, n := range numbers {
			content[parseRecord(idx[n*recordSize:]).position+18] ^= 0xFF
		}
		s = s.with(t, name+logSuffix, content)
	}
	damage(storedNames[0], 1, 4, 5)
	damage(storedNames[1], 0, 7)
	damage(storedNames[2], 2)
	want := []Index{3, 6, 10, 17, 20} // 7 is behind 6, and no more is known of it
	var got []Index
	found := s.inspected(t, OpenOptions{Floor: s.floor, SameBoot: true})
	for _, f := range found.Findings {
		got = append(got, f.Index)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("found %+v", found.Findings)
	}
	for _, f := range found.Findings {
		if f.LostEntries != int64(25-f.Index) {
			t.Errorf("%+v", f)
		}
	}
}

// TestInspectTornBehindDamage: what a write that was interrupted left is no damage, also when there is some before it.
func TestInspectTornBehindDamage(t *testing.T) {
	s := newStored(t)
	content := s.file(t, s.last+logSuffix)
	content[s.marks[2].Position+20] ^= 1
	got := s.with(t, s.last+logSuffix, append(content, 1, 2, 3)).inspected(t, OpenOptions{SameBoot: true})
	if len(got.Findings) != 1 || got.Findings[0].Index != 20 || got.Findings[0].LostEntries != 5 {
		t.Errorf("found %+v", got.Findings)
	}
}

// TestInspectHeaders: a segment without its header is lost, and what is known of those behind it counts.
func TestInspectHeaders(t *testing.T) {
	s := newStored(t)
	end := placeOf(25, s.entries)
	for k, name := range storedNames {
		content := s.file(t, name+logSuffix)
		content[30] ^= 1
		got := s.with(t, name+logSuffix, content).inspected(t, OpenOptions{Floor: s.floor})
		first := Index(2 + 8*k)
		at := placeOf(first, s.entries)
		f := got.Findings[0]
		if len(got.Findings) != 1 || f.Index != first || f.Offset != at.offset || f.LostEntries != int64(25-first) {
			t.Errorf("segment %d: %+v", k, got.Findings)
		}
		if lost := int64(end.offset - at.offset); f.LostOffsets != lost && (k < 2 || f.LostOffsets < lost-4) {
			t.Errorf("segment %d: %+v, want %d offsets", k, f, lost)
		}
		if i := got.Segments[k]; i != (SegmentInfo{First: first, FirstOffset: -1, NextOffset: -1, MaxTimestamp: -1}) {
			t.Errorf("segment %d: %+v", k, i)
		}
	}
}

// TestInspectMissing: what is not there at all.
func TestInspectMissing(t *testing.T) {
	s := newStored(t)
	end := placeOf(25, s.entries)
	at := placeOf(10, s.entries)
	got := s.with(t, storedNames[1]+logSuffix, nil).inspected(t, OpenOptions{Floor: s.floor})
	if f := got.Findings[0]; len(got.Findings) != 1 || f.Index != 10 || f.Offset != at.offset || f.LostOffsets != int64(end.offset-at.offset) {
		t.Errorf("second segment: %+v", got.Findings)
	}
	got = s.with(t, s.last+logSuffix, nil).inspected(t, OpenOptions{Floor: s.floor})
	if f := got.Findings[0]; len(got.Findings) != 1 || f.Index != 18 || f.LostEntries != 7 || f.LostOffsets != 0 {
		t.Errorf("last segment: %+v", got.Findings)
	}
	got = s.with(t, storedNames[0]+logSuffix, nil).inspected(t, OpenOptions{Floor: Floor{Index: 10, Segment: 2, Position: 200}})
	if f := got.Findings[0]; len(got.Findings) != 1 || f.Index != 0 || f.Offset != -1 {
		t.Errorf("first segment: %+v", got.Findings)
	}
	got = s.with(t, "7.log", []byte{}).inspected(t, OpenOptions{Floor: s.floor, From: 3})
	if len(got.Findings) != 2 || got.Findings[0].Index != 0 || got.Findings[1].Index != 0 {
		t.Errorf("bad name, no segment to begin from: %+v", got.Findings)
	}
	got = s.inspected(t, OpenOptions{Floor: Floor{Index: 20, Segment: 18, Position: 111}})
	if f := got.Findings[0]; len(got.Findings) != 1 || f.Index != 20 || f.LostEntries != 5 {
		t.Errorf("mark inside an entry: %+v", got.Findings)
	}
	empty := newDisk(t)
	got, err := Inspect(testConfig(empty), OpenOptions{})
	if err != nil || len(got.Findings) != 1 || got.Findings[0].File != testDir {
		t.Errorf("nothing: %+v, %v", got, err)
	}
	stop := errors.New("stop")
	if _, err := Inspect(s.cfg, OpenOptions{Visit: func(Index, Entry, batch.Header) error { return stop }}); !errors.Is(err, stop) {
		t.Errorf("visit: %v", err)
	}
	cfg := testConfig(empty)
	cfg.Dir = "/nowhere"
	if _, err := Inspect(cfg, OpenOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// TestMangled changes files of a log in all ways that come to mind, several at once, and compares Inspect, Open and
// Abandon.
func TestMangled(t *testing.T) {
	whole := newStored(t)
	damaged, torn := 0, 0
	for seed := range uint64(1500 * *campaign) {
		rng := rand.New(rand.NewPCG(seed, 21))
		s := whole
		for range 1 + rng.IntN(3) {
			s = s.mangle(t, rng)
		}
		opt := OpenOptions{SameBoot: rng.IntN(2) == 0, From: []Index{0, 0, 2, 10, 18, 5}[rng.IntN(6)]}
		if rng.IntN(2) == 0 {
			opt.Floor = s.marks[rng.IntN(len(s.marks))]
		}
		if ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			got := s.inspected(t, opt)
			if len(got.Findings) > 0 {
				damaged++
			}
			if got.TornBytes > 0 {
				torn++
			}
		}); !ok {
			break
		}
	}
	t.Logf("%d with findings, %d with a torn end", damaged, torn)
}

// mangle changes one file.
func (s *stored) mangle(t testing.TB, rng *rand.Rand) *stored {
	names := []string{"00000000000000000099.log", "00000000000000000018.cut.tmp"}
	for name := range files(t, s.disk, testDir) {
		names = append(names, name)
	}
	slices.Sort(names)
	name := names[rng.IntN(len(names))]
	var content []byte
	if i := slices.Index(names, name); i >= 0 {
		if _, ok := files(t, s.disk, testDir)[name]; ok {
			content = s.file(t, name)
		}
	}
	at := 0
	if len(content) > 0 {
		at = rng.IntN(len(content))
	}
	switch rng.IntN(9) {
	case 0:
		if content == nil {
			return s
		}
		return s.with(t, name, nil)
	case 1:
		content = content[:at]
	case 2:
		content = append(content, make([]byte, rng.IntN(300))...)
	case 3:
		content = append(content, bytes.Repeat([]byte{byte(rng.Uint32())}, 1+rng.IntN(200))...)
	case 4:
		clear(content[at:])
	case 5:
		other := names[rng.IntN(len(names))]
		if all := files(t, s.disk, testDir); all[other] != "" && filepath.Ext(other) == filepath.Ext(name) {
			content = []byte(all[other])
		}
	default:
		if len(content) > 0 {
			content[at] ^= byte(1 + rng.IntN(255))
		}
	}
	return s.with(t, name, append([]byte{}, content...))
}

// FuzzInspect replaces a segment and its index by arbitrary bytes, with right checksums as far as lengths can be
// followed, and compares Inspect, Open and Abandon.
func FuzzInspect(f *testing.F) {
	s := newStored(f)
	for k, name := range storedNames {
		content, idx := s.file(f, name+logSuffix), s.file(f, name+indexSuffix)
		f.Add(content, idx, uint8(k), uint8(3), uint8(0), true)
		f.Add(content[:250], idx, uint8(k), uint8(200), uint8(10), false)
		longer := binary.BigEndian.AppendUint64(bytes.Clone(content), frameMagic)
		f.Add(longer, idx[recordSize:], uint8(k+128), uint8(0), uint8(18), true)
	}
	f.Fuzz(func(t *testing.T, content, idx []byte, which, mark, from uint8, sameBoot bool) {
		name := storedNames[int(which&127)%3]
		if which >= 128 {
			content = sealed(content)
		}
		opt := OpenOptions{SameBoot: sameBoot, From: Index(from)}
		if mark < 128 {
			opt.Floor = s.marks[int(mark)%len(s.marks)]
		}
		s.with(t, name+logSuffix, append([]byte{}, content...)).with(t, name+indexSuffix, append([]byte{}, idx...)).inspected(t, opt)
	})
}
