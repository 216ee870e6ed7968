package seglog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// stored is a log that was closed, in files that a test changes.
type stored struct {
	cfg     Config
	disk    *memfs.FS
	entries []Entry
	floor   Floor // its end
	// marks has, for each entry of the last segment, the floor behind it; the first is that behind the header.
	marks []Floor
	last  string // name of the last segment without its ending
}

// newStored makes a log of three segments, of which the last ends with some batches and frames.
func newStored(t testing.TB) *stored {
	m := newMaker(11)
	s := &stored{disk: newDisk(t)}
	s.cfg = testConfig(s.disk)
	s.cfg.SegmentEntries = 8
	l := create(t, s.cfg)
	for k := range 23 {
		var e Entry
		switch k % 5 {
		case 2:
			e = m.frame(KindEmpty, 0)
		case 4:
			e = m.frame(KindClock, 8)
		default:
			e = m.batch(1+k%3, 30)
		}
		s.entries = append(s.entries, e)
		must(t, l.Append([]Entry{e}))
		if k == 15 {
			s.marks = append(s.marks, Floor{Index: 17, Segment: 18, Position: headerSize})
		}
		if k > 15 {
			s.marks = append(s.marks, l.End())
		}
	}
	must(t, l.Sync())
	s.floor = l.End()
	s.last = fmt.Sprintf("%020d", s.floor.Segment)
	if len(l.segments) != 3 || s.floor.Segment != 18 {
		t.Fatalf("the log has %d segments, the last is %d", len(l.segments), s.floor.Segment)
	}
	must(t, l.Close())
	return s
}

// with returns the log with one file changed. nil removes the file.
func (s *stored) with(t testing.TB, name string, content []byte) *stored {
	changed := *s
	changed.disk = s.disk.KillClone()
	changed.cfg.FS = changed.disk
	if content != nil {
		writeFile(t, changed.disk, filepath.Join(testDir, name), content)
	} else {
		must(t, changed.disk.Remove(filepath.Join(testDir, name)))
	}
	return &changed
}

func (s *stored) file(t testing.TB, name string) []byte {
	return readFile(t, s.disk, filepath.Join(testDir, name))
}

// refused checks that Open fails with an error of type E, and changes nothing.
func refused[E error](t testing.TB, s *stored, opt OpenOptions) E {
	t.Helper()
	before := files(t, s.disk, testDir)
	_, report, err := Open(s.cfg, opt)
	target, ok := errors.AsType[E](err)
	if !ok {
		t.Fatalf("opened with %+v: %v", report, err)
	}
	if !mapsEqual(before, files(t, s.disk, testDir)) {
		t.Fatalf("%v, but files were changed", err)
	}
	return target
}

// opens checks that Open finds the first n entries.
func (s *stored) opens(t testing.TB, n int, opt OpenOptions) Report {
	t.Helper()
	l, report := open(t, s.cfg, opt)
	if got := all(t, l); len(got) != n || !prefixOf(got, s.entries) {
		t.Fatalf("%d entries recovered, want %d; %+v", len(got), n, report)
	}
	must(t, l.Close())
	return report
}

// TestDamageBelowFloor changes each byte of each segment: all of them are checked, and each change is noticed.
func TestDamageBelowFloor(t *testing.T) {
	s := newStored(t)
	for name := range files(t, s.disk, testDir) {
		if filepath.Ext(name) != logSuffix {
			continue
		}
		content := s.file(t, name)
		for i := range content {
			changed := bytes.Clone(content)
			changed[i] ^= 0x41
			damaged := s.with(t, name, changed)
			for _, sameBoot := range []bool{true, false} {
				err := refused[*DamageError](t, damaged, OpenOptions{Floor: s.floor, SameBoot: sameBoot})
				if filepath.Base(err.File) != name || err.Position > int64(i) {
					t.Fatalf("byte %d of %s: %v", i, name, err)
				}
			}
		}
	}
}

// TestDamageInSealedSegments: without a floor, too, only the last segment may end badly.
func TestDamageInSealedSegments(t *testing.T) {
	s := newStored(t)
	for _, name := range []string{"00000000000000000002.log", "00000000000000000010.log"} {
		content := s.file(t, name)
		for i := 0; i < len(content); i += 7 {
			changed := bytes.Clone(content)
			changed[i] ^= 1
			refused[*DamageError](t, s.with(t, name, changed), OpenOptions{})
			refused[*DamageError](t, s.with(t, name, content[:i]), OpenOptions{})
			refused[*DamageError](t, s.with(t, name, content[:i]), OpenOptions{SameBoot: true})
		}
		s.with(t, name, append(content, 0, 0, 0)).opens(t, len(s.entries), OpenOptions{Floor: s.floor}) // zeros are an end
	}
}

// TestTornTail cuts the last segment off at each byte, and fills it up with zeros or garbage: the entries that are whole
// are there, and after the end of the process alone nothing is kept of a part of an entry that the file ends with.
func TestTornTail(t *testing.T) {
	s := newStored(t)
	name := s.last + logSuffix
	content := s.file(t, name)
	for size := headerSize; size < len(content); size += step() {
		whole := 0
		for int64(s.marks[whole+1].Position) <= int64(size) {
			whole++
		}
		for fill, tail := range map[string][]byte{
			"nothing": nil,
			"zeros":   make([]byte, len(content)-size),
			"garbage": bytes.Repeat([]byte{0xA5}, len(content)-size),
		} {
			// The index cannot name more than was written whole.
			torn := s.with(t, name, append(bytes.Clone(content[:size]), tail...)).
				with(t, s.last+indexSuffix, s.file(t, s.last+indexSuffix)[:whole*recordSize])
			for _, sameBoot := range []bool{true, false} {
				where := fmt.Sprintf("%d bytes and %s, same boot %v", size, fill, sameBoot)
				again := *torn
				again.disk = torn.disk.KillClone()
				again.cfg.FS = again.disk
				report := again.opens(t, 16+whole, OpenOptions{Floor: s.marks[0], SameBoot: sameBoot})
				cut := int64(size + len(tail) - int(s.marks[whole].Position))
				left := append(bytes.Clone(content[:size]), tail...)[s.marks[whole].Position:]
				if len(bytes.Trim(left, "\x00")) == 0 {
					cut = 0 // zeros, and no bytes at all, are an end
				}
				partial := len(left) < prefixSize || lengthOrigin+int(int32(binary.BigEndian.Uint32(left[atLength:]))) > len(left)
				if report.CutBytes != cut || (report.CutFile != "") != (cut > 0 && !(sameBoot && partial)) {
					t.Fatalf("%s: %+v, want %d bytes cut", where, report, cut)
				}
				if report.CutFile != "" {
					want := append(bytes.Clone(content[:size]), tail...)[s.marks[whole].Position:]
					if got := readFile(t, again.disk, report.CutFile); !bytes.Equal(got, want) {
						t.Fatalf("%s: the side file has %d bytes, want %d", where, len(got), len(want))
					}
				}
				refused[*DamageError](t, torn, OpenOptions{Floor: s.floor, SameBoot: sameBoot})
			}
		}
	}
}

// TestHole damages one entry of the last segment. After the end of the process alone that was not the end of the log
// when the index names it, be it the last one, or when valid entries follow; after the end of the machine it is, and
// all that follows is kept aside.
func TestHole(t *testing.T) {
	s := newStored(t)
	name := s.last + logSuffix
	content := s.file(t, name)
	n := len(s.marks) - 1
	for k := range n {
		start, end := int(s.marks[k].Position), int(s.marks[k+1].Position)
		for _, i := range []int{start, start + 9, start + 13, end - 1} {
			changed := bytes.Clone(content)
			changed[i] ^= 0x10
			holed := s.with(t, name, changed)
			where := fmt.Sprintf("entry %d, byte %d", k, i-start)
			if k == n-1 {
				// The index may not have been written yet.
				unnamed := holed.with(t, s.last+indexSuffix, s.file(t, s.last+indexSuffix)[:k*recordSize])
				report := unnamed.opens(t, 16+k, OpenOptions{Floor: s.marks[k], SameBoot: true})
				longer := i == start+9 // as if a write of more had been interrupted
				if report.CutBytes != int64(end-start) || (report.CutFile == "") != longer {
					t.Fatalf("%s: %+v", where, report)
				}
				if !longer && !bytes.Equal(readFile(t, unnamed.disk, report.CutFile), changed[start:]) {
					t.Fatalf("%s: the entry is not in the side file", where)
				}
			}
			err := refused[*DamageError](t, holed, OpenOptions{Floor: s.marks[k], SameBoot: true})
			if err.Position != int64(start) {
				t.Fatalf("%s: %v", where, err)
			}
			report := holed.opens(t, 16+k, OpenOptions{Floor: s.marks[k]})
			if got := readFile(t, holed.disk, report.CutFile); !bytes.Equal(got, changed[start:]) {
				t.Fatalf("%s: the side file has %d bytes, want %d", where, len(got), len(changed)-start)
			}
			if got := holed.file(t, name); !bytes.Equal(got, content[:start]) {
				t.Fatalf("%s: the log has %d bytes left, want %d", where, len(got), start)
			}
		}
	}
}

// TestMissingEnd: an entry that the index names was written, so that a log without it is not what it was, also when it
// ends well. An index that names something else says nothing.
func TestMissingEnd(t *testing.T) {
	s := newStored(t)
	name, idx := s.last+logSuffix, s.file(t, s.last+indexSuffix)
	content := s.file(t, name)
	n := len(s.marks) - 1
	for k := range n {
		end := s.marks[k].Position
		for what, left := range map[string][]byte{
			"nothing":  content[:end],
			"zeros":    append(bytes.Clone(content[:end]), make([]byte, 300)...),
			"one byte": content[:end+1],
		} {
			short := s.with(t, name, left)
			err := refused[*DamageError](t, short, OpenOptions{Floor: s.marks[k], SameBoot: true})
			if err.Position != int64(end) || !strings.Contains(err.Detail, "was whole when") {
				t.Fatalf("%d entries and %s: %v", k, what, err)
			}
			short.with(t, s.last+indexSuffix, idx[:(k+1)*recordSize-1]).opens(t, 16+k, OpenOptions{Floor: s.marks[k], SameBoot: true})
			short.opens(t, 16+k, OpenOptions{Floor: s.marks[k]})
			fields := []int{0, 11, 24} // offset, position, timestamp
			if s.entries[16+k].Kind != KindEmpty {
				fields = append(fields, 19) // term
			}
			for _, at := range append(fields, 12) {
				other := bytes.Clone(idx[:(k+1)*recordSize])
				if other[k*recordSize+at] ^= 0x80; at == 12 {
					binary.BigEndian.PutUint32(other[k*recordSize+at:], frameHeaderSize-1)
				}
				short.with(t, s.last+indexSuffix, other).opens(t, 16+k, OpenOptions{Floor: s.marks[k], SameBoot: true})
			}
		}
	}
}

// TestHoleWithoutIndex: valid entries are looked for only where the index names them.
func TestHoleWithoutIndex(t *testing.T) {
	s := newStored(t)
	name := s.last + logSuffix
	changed := s.file(t, name)
	changed[s.marks[2].Position+20] ^= 1
	for _, idx := range [][]byte{nil, {}, bytes.Repeat([]byte{0xFF}, 10*recordSize), s.file(t, s.last+indexSuffix)[:3*recordSize-1]} {
		report := s.with(t, name, changed).with(t, s.last+indexSuffix, idx).opens(t, 18, OpenOptions{Floor: s.marks[2], SameBoot: true})
		if report.CutBytes != int64(len(changed))-int64(s.marks[2].Position) {
			t.Fatalf("%+v", report)
		}
	}
}

// TestSideFilesAreKept: a cut at a place where there was one before does not replace what was saved then.
func TestSideFilesAreKept(t *testing.T) {
	s := newStored(t)
	name := s.last + logSuffix
	content := s.file(t, name)
	var kept []string
	for i := range 3 {
		changed := append(content[:s.marks[2].Position:s.marks[2].Position], byte(i), 2, 3)
		s = s.with(t, name, changed)
		kept = append(kept, s.opens(t, 18, OpenOptions{Floor: s.marks[2]}).CutFile)
	}
	for i, name := range kept {
		if got := readFile(t, s.disk, name); !bytes.Equal(got, []byte{byte(i), 2, 3}) {
			t.Errorf("%s has %x", name, got)
		}
	}
}

// TestSideFileThatFails is removed, and nothing is cut. The next try saves it all.
func TestSideFileThatFails(t *testing.T) {
	s := newStored(t)
	content := s.file(t, s.last+logSuffix)
	content[s.marks[2].Position+9] ^= 1
	bad := s.with(t, s.last+logSuffix, content)
	before := files(t, bad.disk, testDir)
	for _, op := range []errfs.Kind{errfs.OpWrite, errfs.OpSyncData, errfs.OpClose} {
		failing := *bad
		failing.cfg.FS = errfs.Wrap(bad.disk, errfs.PathSuffix(".cut.tmp", errfs.On(op, errfs.ShortWrite(10, syscall.ENOSPC))))
		if _, _, err := Open(failing.cfg, OpenOptions{Floor: s.marks[1]}); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%s: %v", op, err)
		}
		if !mapsEqual(before, files(t, bad.disk, testDir)) {
			t.Fatalf("%s: files are left, or changed", op)
		}
	}
	report := bad.opens(t, 18, OpenOptions{Floor: s.marks[1]})
	if got := readFile(t, bad.disk, report.CutFile); !bytes.Equal(got, content[s.marks[2].Position:]) {
		t.Fatalf("the side file has %d bytes", len(got))
	}
}

// TestIndexIsMadeAnew: whatever became of index files, they are made from the log.
func TestIndexIsMadeAnew(t *testing.T) {
	s := newStored(t)
	want := files(t, s.disk, testDir)
	for name := range want {
		if filepath.Ext(name) != indexSuffix {
			continue
		}
		content := s.file(t, name)
		variants := [][]byte{nil, {}, content[:5], content[:recordSize], content[:len(content)-1], append(bytes.Clone(content), 0),
			append(bytes.Clone(content), content[:recordSize]...), make([]byte, len(content)), bytes.Repeat([]byte{0xFF}, 100000)}
		for i := range content {
			changed := bytes.Clone(content)
			changed[i] ^= 1
			variants = append(variants, changed)
		}
		for i, v := range variants {
			changed := s.with(t, name, v)
			report := changed.opens(t, len(s.entries), OpenOptions{Floor: s.floor})
			if len(report.Indexes) != 1 || report.Indexes[0] != filepath.Join(testDir, name) {
				t.Fatalf("%s, variant %d: %+v", name, i, report)
			}
			if got := files(t, changed.disk, testDir); !mapsEqual(got, want) {
				t.Fatalf("%s, variant %d: the index is not as it was", name, i)
			}
		}
	}
}

// TestHalfMadeSegment: the newest segment may be without a whole header, when nothing is behind it. With something
// behind it, valid or not, it was whole once: what was acknowledged may be in there.
func TestHalfMadeSegment(t *testing.T) {
	s := newStored(t)
	newest := s.last + logSuffix
	content := s.file(t, newest)
	before := s.marks[0]
	before.Index, before.Segment, before.Position = 17, 10, uint32(len(s.file(t, "00000000000000000010.log")))
	corrupt := bytes.Clone(content[:headerSize])
	corrupt[20] ^= 1
	for name, made := range map[string][]byte{
		"empty": {}, "byte": {0xFF}, "most": content[:headerSize-1], "zeros": make([]byte, headerSize), "more zeros": make([]byte, 5000),
		"corrupt": corrupt, "corrupt, zeros": append(bytes.Clone(corrupt), make([]byte, 300)...),
	} {
		for _, sameBoot := range []bool{true, false} {
			half := s.with(t, newest, made).with(t, s.last+indexSuffix, []byte{})
			refused[*DamageError](t, half, OpenOptions{Floor: s.marks[0], SameBoot: sameBoot}) // the header was on disk
			half.opens(t, 16, OpenOptions{Floor: before, SameBoot: sameBoot})
			names := slices.Sorted(maps.Keys(files(t, half.disk.CrashClone(0, nil), testDir)))
			if len(names) != 4 {
				t.Fatalf("%s, same boot %v: left are %v", name, sameBoot, names)
			}
		}
	}
	// The segment before it was durable when it was begun.
	sealed := "00000000000000000010"
	torn := s.file(t, sealed+logSuffix)
	refused[*DamageError](t, s.with(t, newest, nil).with(t, s.last+indexSuffix, nil).with(t, newest, corrupt).
		with(t, sealed+logSuffix, torn[:len(torn)-3]), OpenOptions{})
	withZeros := func(n int) []byte { return append(make([]byte, n), content[n:]...) }
	for name, made := range map[string][]byte{
		"entry follows":        append(bytes.Clone(corrupt), content[headerSize:]...),
		"torn entry":           append(bytes.Clone(corrupt), content[headerSize:headerSize+50]...),
		"a byte":               append(bytes.Clone(corrupt), 0, 0, 1),
		"header is lost":       withZeros(headerSize),
		"first entry is lost":  withZeros(int(s.marks[1].Position)),
		"all but the last one": withZeros(int(s.marks[len(s.marks)-2].Position)),
	} {
		for _, sameBoot := range []bool{true, false} {
			half := s.with(t, newest, made)
			for _, changed := range []*stored{half, half.with(t, s.last+indexSuffix, nil)} {
				err := refused[*DamageError](t, changed, OpenOptions{Floor: before, SameBoot: sameBoot})
				if !strings.Contains(err.Detail, "was whole when") {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
}

// TestCutIsDurable: the side file is on disk before the log is cut, and the cut is when Open returns.
func TestCutIsDurable(t *testing.T) {
	s := newStored(t)
	name := s.last + logSuffix
	content := s.file(t, name)
	bad := []byte("what a machine left of a batch")
	torn := s.with(t, name, append(bytes.Clone(content), bad...))
	for _, sameBoot := range []bool{false, true} {
		disk := torn.disk.KillClone()
		watch := injectorFunc(func(errfs.Op) error {
			for name, left := range files(t, disk.CrashClone(0, nil), testDir) {
				if (name == s.last+logSuffix || filepath.Ext(name) == ".cut") && strings.HasSuffix(left, string(bad)) {
					return nil
				}
			}
			if !sameBoot {
				t.Error("the log is cut, and the side file is not on disk")
			}
			return nil
		})
		l, report := open(t, testConfig(errfs.Wrap(disk, watch)), OpenOptions{Floor: s.floor, SameBoot: sameBoot})
		must(t, l.Close())
		if report.CutBytes != int64(len(bad)) {
			t.Errorf("%+v", report)
		}
		if got := files(t, disk.CrashClone(0, nil), testDir)[name]; got != string(content) {
			t.Errorf("same boot %v: %d bytes are left on disk, want %d", sameBoot, len(got), len(content))
		}
	}
}

// TestNewSegmentWithoutEntries: a header that is whole stays, and is made durable, as its name is.
func TestNewSegmentWithoutEntries(t *testing.T) {
	s := newStored(t)
	content := s.file(t, s.last+logSuffix)
	fresh := s.with(t, s.last+logSuffix, nil).with(t, s.last+indexSuffix, nil)
	must(t, fresh.disk.SyncDir(testDir))
	file, err := fresh.disk.Create(filepath.Join(testDir, s.last+logSuffix)) // neither it nor its name is durable
	must(t, err)
	_, err = file.WriteAt(content[:headerSize], 0)
	must(t, err)
	floor := Floor{Index: 17, Segment: 10, Position: uint32(len(s.file(t, "00000000000000000010.log")))}
	if report := fresh.opens(t, 16, OpenOptions{Floor: floor, SameBoot: true}); report.Rewritten != headerSize {
		t.Errorf("%+v", report)
	}
	left := files(t, fresh.disk.CrashClone(0, nil), testDir)
	if left[s.last+logSuffix] != string(content[:headerSize]) {
		t.Error("the header or the name is not durable")
	}
}

// TestFloor: a durable mark that the log does not reach, or does not know, is damage; one from before the log begins
// says nothing.
func TestFloor(t *testing.T) {
	s := newStored(t)
	end := s.floor
	for name, floor := range map[string]Floor{
		"index beyond":     {end.Index + 1, end.Segment, end.Position + 50},
		"position beyond":  {end.Index, end.Segment, end.Position + 50},
		"position between": {end.Index, end.Segment, end.Position - 1},
		"index between":    {end.Index - 1, end.Segment, end.Position},
		"segment beyond":   {end.Index, end.Index + 1, headerSize},
		"segment before":   {end.Index, 1, end.Position},
		"no such segment":  {12, 11, 200},
	} {
		for _, sameBoot := range []bool{true, false} {
			t.Log(name, refused[*DamageError](t, s, OpenOptions{Floor: floor, SameBoot: sameBoot}))
		}
	}
	total := int64(0)
	for name, content := range files(t, s.disk, testDir) {
		if filepath.Ext(name) == logSuffix {
			total += int64(len(content))
		}
	}
	for name, tt := range map[string]struct {
		floor     Floor
		rewritten int64
	}{
		"none":           {Floor{}, total},
		"before the log": {Floor{1, 1, 500}, total},
		"header":         {s.marks[0], int64(end.Position) - headerSize},
		"entry":          {s.marks[3], int64(end.Position - s.marks[3].Position)},
		"end":            {end, 0},
	} {
		if report := s.opens(t, len(s.entries), OpenOptions{Floor: tt.floor}); report.Rewritten != tt.rewritten || report.CutBytes != 0 {
			t.Errorf("%s: %+v, want %d bytes rewritten", name, report, tt.rewritten)
		}
	}
}

func TestOtherIdentity(t *testing.T) {
	for name, change := range map[string]func(*Identity){
		"cluster":   func(i *Identity) { i.Cluster[15] = 1 },
		"group":     func(i *Identity) { i.Group++ },
		"replica":   func(i *Identity) { i.Replica++ },
		"topic":     func(i *Identity) { i.Topic[0] = 1 },
		"partition": func(i *Identity) { i.Partition = -1 },
	} {
		s := newStored(t)
		change(&s.cfg.Identity)
		err := refused[*IdentityError](t, s, OpenOptions{Floor: s.floor})
		if err.Want != s.cfg.Identity || err.Got != testIdentity || !strings.Contains(err.Error(), "group 7 replica 3/5") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNewerFormat(t *testing.T) {
	s := newStored(t)
	for _, name := range []string{"00000000000000000002", s.last} {
		content := s.file(t, name+logSuffix)
		header := append(bytes.Clone(content[:headerSize]), 1, 2, 3) // a newer one may be longer
		header[frameHeaderSize+1], header[frameHeaderSize+3] = 3, 2
		f, err := parseFrame(content[:headerSize])
		must(t, err)
		f.payload = header[frameHeaderSize:]
		f.putHeader(header)
		changed := s.with(t, name+logSuffix, append(header, content[headerSize:]...))
		if err := refused[*FormatError](t, changed, OpenOptions{Floor: s.floor}); !strings.Contains(err.Error(), "format 3, readable from format 2") {
			t.Error(err)
		}
	}
	// A kind of entry that this version does not know is not damage either.
	content := s.file(t, s.last+logSuffix)
	start := s.marks[3].Position
	f, err := parseFrame(content[start:s.marks[4].Position])
	must(t, err)
	f.kind = 99
	f.putHeader(content[start:])
	format := refused[*FormatError](t, s.with(t, s.last+logSuffix, content), OpenOptions{Floor: s.marks[1]})
	if format.Position != int64(start) || filepath.Base(format.File) != s.last+logSuffix {
		t.Error(format)
	}
	// Behind a bad one it is a valid entry like any other: the bad one is no interrupted write.
	content[s.marks[2].Position+1] ^= 1
	refused[*DamageError](t, s.with(t, s.last+logSuffix, content).with(t, s.last+indexSuffix, s.indexWithKind(t, 3, 99)),
		OpenOptions{Floor: s.marks[1], SameBoot: true})
}

// indexWithKind returns the index of the last segment with another kind in record n, and without those behind it.
func (s *stored) indexWithKind(t testing.TB, n int, kind Kind) []byte {
	idx := bytes.Clone(s.file(t, s.last+indexSuffix)[:(n+1)*recordSize])
	idx[n*recordSize+20] = byte(kind)
	return idx
}

// TestHeaderThatNobodyWrites has a right checksum.
func TestHeaderThatNobodyWrites(t *testing.T) {
	s := newStored(t)
	name := "00000000000000000002.log"
	content := s.file(t, name)
	for what, change := range map[string]func(f *frame, payload []byte) []byte{
		"no oldest reader": func(f *frame, p []byte) []byte { p[3] = 0; return p },
		"oldest above":     func(f *frame, p []byte) []byte { p[1] = 0; return p },
		"short":            func(f *frame, p []byte) []byte { return p[:headerPayloadSize-1] },
		"none":             func(f *frame, p []byte) []byte { return nil },
		"other kind":       func(f *frame, p []byte) []byte { f.kind = KindEmpty; return p },
		"other index":      func(f *frame, p []byte) []byte { f.index++; return p },
	} {
		f, err := parseFrame(bytes.Clone(content[:headerSize]))
		must(t, err)
		f.payload = change(&f, f.payload)
		header := make([]byte, frameHeaderSize)
		f.putHeader(header)
		changed := s.with(t, name, append(append(header, f.payload...), content[headerSize:]...))
		if err := refused[*DamageError](t, changed, OpenOptions{}); err.Position != 0 {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestSegmentsDoNotMeet: each header says where the segment before it must have ended.
func TestSegmentsDoNotMeet(t *testing.T) {
	s := newStored(t)
	name := s.last + logSuffix
	content := s.file(t, name)
	for what, change := range map[string]func(*frame){
		"offset": func(f *frame) { f.offset++ },
		"term":   func(f *frame) { f.term-- },
	} {
		f, err := parseFrame(bytes.Clone(content[:headerSize]))
		must(t, err)
		change(&f)
		f.putHeader(content)
		for _, from := range []Index{0, 18} {
			err := refused[*DamageError](t, s.with(t, name, content), OpenOptions{From: from})
			if err.Position != 0 || filepath.Base(err.File) != name {
				t.Errorf("%s, from %d: %v", what, from, err)
			}
		}
	}
	refused[*DamageError](t, s.with(t, "00000000000000000010.log", nil), OpenOptions{})
	refused[*DamageError](t, s.with(t, "00000000000000000010.log", nil), OpenOptions{SameBoot: true})
}

func TestOtherFiles(t *testing.T) {
	s := newStored(t)
	for _, name := range []string{"00000000000000000002.base", "notes.txt", "x.cut", "log", "idx"} {
		s.with(t, name, []byte("x")).opens(t, len(s.entries), OpenOptions{Floor: s.floor})
	}
	for _, name := range []string{"2.log", "00000000000000000000.log", "copy of 00000000000000000002.log", ".idx", "x.idx"} {
		refused[*DamageError](t, s.with(t, name, []byte("x")), OpenOptions{Floor: s.floor})
	}
	// An index file of a segment that was removed.
	orphan := s.with(t, "00000000000000000001.idx", []byte("x"))
	orphan.opens(t, len(s.entries), OpenOptions{Floor: s.floor})
	if _, ok := files(t, orphan.disk, testDir)["00000000000000000001.idx"]; ok {
		t.Error("an index file without a segment is still there")
	}
	empty := newDisk(t)
	refused[*DamageError](t, &stored{cfg: testConfig(empty), disk: empty}, OpenOptions{})
}

// TestVisitError ends Open, and nothing was changed.
func TestVisitError(t *testing.T) {
	s := newStored(t)
	s = s.with(t, s.last+logSuffix, s.file(t, s.last+logSuffix)[:200]).with(t, s.last+indexSuffix, nil)
	before := files(t, s.disk, testDir)
	for _, stop := range []Index{2, 10, 18} {
		_, _, err := Open(s.cfg, OpenOptions{Visit: func(i Index, _ Entry, _ batch.Header) error {
			if i == stop {
				return io.ErrNoProgress
			}
			return nil
		}})
		if !errors.Is(err, io.ErrNoProgress) || !strings.Contains(err.Error(), fmt.Sprint("entry ", stop)) {
			t.Errorf("got %v", err)
		}
		if !mapsEqual(before, files(t, s.disk, testDir)) {
			t.Error("files were changed")
		}
	}
}

// TestBoundedMemory: a length that lies, in the log and in the index, costs Open no memory of that size, also when the
// file has so many bytes.
func TestBoundedMemory(t *testing.T) {
	s := newStored(t)
	l, _ := open(t, s.cfg, OpenOptions{Floor: s.floor})
	next := l.active().tail
	must(t, l.Close())
	const length = 100 << 20
	lie := bytes.Clone(s.entries[0].Data)
	binary.BigEndian.PutUint64(lie, uint64(next.offset))
	binary.BigEndian.PutUint32(lie[atLength:], length-lengthOrigin)
	content, idx := s.file(t, s.last+logSuffix), s.file(t, s.last+indexSuffix)
	for range 2 { // one that is bad, and one of which the index says that it follows
		idx = record{offset: next.offset, position: uint32(len(content)), length: length, term: next.term}.appendTo(idx)
		content = append(content, lie...)
	}
	for _, size := range []int64{int64(len(content)), int64(len(content)) + length} {
		lying := s.with(t, s.last+logSuffix, content).with(t, s.last+indexSuffix, idx)
		file, err := lying.disk.Open(filepath.Join(testDir, s.last+logSuffix))
		must(t, err)
		must(t, file.Truncate(size))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := Inspect(lying.cfg, OpenOptions{Floor: s.floor, SameBoot: true}) // as Open, without the copy of the end
		runtime.ReadMemStats(&after)
		if must(t, err); len(got.Findings) > 0 || got.TornBytes == 0 {
			t.Errorf("%+v", got)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 2<<20 {
			t.Errorf("%d bytes allocated for a file of %d", n, size)
		}
	}
}

// TestPositionsBeyondTheIndex: an entry at a position that an index record cannot hold is none.
func TestPositionsBeyondTheIndex(t *testing.T) {
	if _, err := candidate(&window{size: 1 << 40}, 1<<32); !isBad(err) {
		t.Errorf("got %v", err)
	}
}

// FuzzOpen opens arbitrary bytes as the last segment, with arbitrary bytes as its index: it fails or finds a prefix, and
// opening again changes nothing.
func FuzzOpen(f *testing.F) {
	s := newStored(f)
	content, idx := s.file(f, s.last+logSuffix), s.file(f, s.last+indexSuffix)
	f.Add(content, idx, true, uint8(3))
	f.Add(content[:250], idx, false, uint8(0))
	f.Add(append(bytes.Clone(content), make([]byte, 100)...), []byte{}, true, uint8(9))
	f.Fuzz(func(t *testing.T, content, idx []byte, sameBoot bool, mark uint8) {
		floor := s.marks[int(mark)%len(s.marks)]
		if mark >= 128 {
			floor = Floor{}
		}
		fuzzed := s.with(t, s.last+logSuffix, append([]byte{}, content...)).with(t, s.last+indexSuffix, append([]byte{}, idx...))
		before := files(t, fuzzed.disk, testDir)
		l, _, err := Open(fuzzed.cfg, OpenOptions{Floor: floor, SameBoot: sameBoot})
		if err != nil {
			if !mapsEqual(before, files(t, fuzzed.disk, testDir)) {
				t.Fatalf("%v, but files were changed", err)
			}
			return
		}
		entries := all(t, l)
		if len(entries) < 16 || !prefixOf(s.entries[:16], entries) {
			t.Fatalf("%d entries", len(entries))
		}
		end := l.End()
		must(t, l.Close())
		after := files(t, fuzzed.disk, testDir)
		if kept := after[s.last+logSuffix]; !strings.HasPrefix(string(content), kept) {
			t.Fatal("what is left of the segment is not its beginning")
		}
		l, report := open(t, fuzzed.cfg, OpenOptions{Floor: end, SameBoot: sameBoot})
		if !reflect.DeepEqual(report, Report{Entries: len(entries)}) || !mapsEqual(after, files(t, fuzzed.disk, testDir)) {
			t.Fatalf("opening again: %+v", report)
		}
		must(t, l.Close())
	})
}
