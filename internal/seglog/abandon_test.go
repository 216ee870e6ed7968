package seglog

import (
	"bytes"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
)

// sides returns the names of the side files, in order.
func (s *stored) sides(t testing.TB) (names []string) {
	t.Helper()
	for name := range files(t, s.disk, testDir) {
		if strings.HasSuffix(name, sideSuffix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// TestAbandon takes the end out of a log at each entry, with the damage that there is.
func TestAbandon(t *testing.T) {
	s := newStored(t)
	for from := Index(3); from <= 25; from++ {
		left := s.clone()
		k := int(from-2) / 8
		start := len(s.file(t, storedNames[min(k, 2)]+logSuffix))
		if from < 25 {
			start = int(parseRecord(s.file(t, storedNames[k]+indexSuffix)[int(from-2)%8*recordSize:]).position)
			content := s.file(t, storedNames[k]+logSuffix)
			for i := start; i < len(content); i += 5 {
				content[i] ^= 0x55
			}
			left = s.with(t, storedNames[k]+logSuffix, content)
		}
		want := map[string]string{}
		for n, name := range storedNames {
			content := left.file(t, name+logSuffix)
			switch first := Index(2 + 8*n); {
			case first >= from:
				want[name+"-0-0.cut"] = string(content)
			case n == k && from < 25:
				want[sideOf(t, left, first, int64(start))] = string(content[start:])
			}
		}
		for range 2 {
			must(t, Abandon(left.oneByOne(t, func(names []string) bool { return slices.Equal(names, storedNames[:len(names)]) }), from))
			got := files(t, left.disk.CrashClone(0, nil), testDir)
			for name := range got {
				if !strings.HasSuffix(name, sideSuffix) {
					delete(got, name)
				}
			}
			if !mapsEqual(got, want) {
				t.Fatalf("from %d: kept aside are %d files, want %d", from, len(got), len(want))
			}
		}
		for _, sameBoot := range []bool{true, false} {
			if report := left.opens(t, int(from-2), OpenOptions{SameBoot: sameBoot}); report.CutBytes != 0 {
				t.Fatalf("from %d: %+v", from, report)
			}
		}
	}
}

// oneByOne returns the configuration with a disk that checks, before each operation, which segments a crash would leave.
func (s *stored) oneByOne(t testing.TB, right func(names []string) bool) Config {
	cfg := s.cfg
	cfg.FS = errfs.Wrap(s.disk, injectorFunc(func(op errfs.Op) error {
		for _, disk := range []vfs.FS{s.disk, s.disk.CrashClone(0, nil)} {
			names, err := disk.List(testDir)
			must(t, err)
			var left []string
			for _, name := range names {
				if digits, isLog := strings.CutSuffix(name, logSuffix); isLog {
					left = append(left, digits)
				}
			}
			if !right(left) {
				t.Fatalf("before %s of %s: left are the segments %v", op.Kind, op.Path, left)
			}
		}
		return nil
	}))
	return cfg
}

func sideOf(t testing.TB, s *stored, first Index, position int64) string {
	name, err := sideName(s.cfg, first, position)
	must(t, err)
	return filepath.Base(name)
}

// TestAbandonAll leaves nothing, and a log can be made in its place, beside what was kept.
func TestAbandonAll(t *testing.T) {
	for from := range Index(3) {
		s := newStored(t).with(t, storedNames[1]+indexSuffix, nil)
		must(t, Abandon(s.cfg, from))
		must(t, Abandon(s.cfg, from))
		if names, err := s.disk.CrashClone(0, nil).List(testDir); err != nil || len(names) != 3 || len(s.sides(t)) != 3 {
			t.Fatalf("left are %v, %v", names, err)
		}
		l, err := Create(s.cfg, 2, 1, 0)
		must(t, err)
		must(t, l.Append(s.entries))
		must(t, l.Close())
		must(t, Abandon(s.cfg, 2))
		if names := s.sides(t); len(names) != 6 {
			t.Fatalf("kept are %v", names)
		}
	}
}

// TestAbandonBefore takes damaged segments out at the beginning.
func TestAbandonBefore(t *testing.T) {
	s := newStored(t)
	for k, name := range storedNames {
		bad := s.file(t, storedNames[0]+logSuffix)
		bad[20] ^= 1
		headless := s.with(t, storedNames[0]+logSuffix, bad)
		refused[*DamageError](t, headless, OpenOptions{Floor: s.floor})
		first := Index(2 + 8*k)
		want := map[string]string{}
		for _, name := range storedNames[:k] {
			want[name+"-0-0.cut"] = string(headless.file(t, name+logSuffix))
		}
		for range 2 {
			must(t, AbandonBefore(headless.oneByOne(t, func(names []string) bool {
				return slices.Equal(names, storedNames[3-len(names):])
			}), first))
			disk := headless.disk.CrashClone(0, nil)
			for side, content := range want {
				if got := readFile(t, disk, filepath.Join(testDir, side)); string(got) != content {
					t.Fatalf("before %s: %s has %d bytes", name, side, len(got))
				}
			}
			if names, err := disk.List(testDir); err != nil || len(names) != 6-k {
				t.Fatalf("before %s: left are %v, %v", name, names, err)
			}
		}
		if k > 0 {
			l, _ := open(t, headless.cfg, OpenOptions{Floor: s.floor})
			checkFrom(t, l, first, s.entries, newMaker(1).rng)
		}
	}
	for _, first := range []Index{0, 3, 26} {
		before := files(t, s.disk, testDir)
		if _, ok := errors.AsType[*DamageError](AbandonBefore(s.cfg, first)); !ok || !mapsEqual(before, files(t, s.disk, testDir)) {
			t.Errorf("before %d: it is done, or files were changed", first)
		}
	}
}

// TestAbandonRefuses what is not whole before the entry that it is to cut at, and changes nothing then.
func TestAbandonRefuses(t *testing.T) {
	s := newStored(t)
	flipped := s.file(t, storedNames[1]+logSuffix)
	flipped[headerSize+3] ^= 1
	headless := s.file(t, storedNames[1]+logSuffix)
	headless[3] ^= 1
	other := s.clone()
	other.cfg.Identity.Partition++
	for what, tt := range map[string]struct {
		s    *stored
		from Index
	}{
		"damage before it":  {s.with(t, storedNames[1]+logSuffix, flipped), 12},
		"no header":         {s.with(t, storedNames[1]+logSuffix, headless), 11},
		"beyond the end":    {s, 26},
		"far beyond":        {s, math.MaxUint64},
		"a missing segment": {s.with(t, storedNames[1]+logSuffix, nil), 11},
		"torn":              {s.with(t, s.last+logSuffix, s.file(t, s.last+logSuffix)[:300]), 25},
		"somebody else's":   {other, 12},
	} {
		before := files(t, tt.s.disk, testDir)
		err := Abandon(tt.s.cfg, tt.from)
		_, isDamage := errors.AsType[*DamageError](err)
		_, isIdentity := errors.AsType[*IdentityError](err)
		if !isDamage && !isIdentity || isIdentity != (what == "somebody else's") || !mapsEqual(before, files(t, tt.s.disk, testDir)) {
			t.Errorf("%s: %v, or files were changed", what, err)
		}
	}
	// What comes later need not be anybody's, nor anything.
	later := s.with(t, s.last+logSuffix, []byte("garbage")).with(t, "00000000000000000077.log", []byte{})
	must(t, Abandon(later.cfg, 17))
	later.opens(t, 15, OpenOptions{})
	if names := later.sides(t); len(names) != 3 {
		t.Errorf("kept are %v", names)
	}
}

// TestAbandonAtGap: the log ends before a missing segment, and there is nothing to cut off from the one before.
func TestAbandonAtGap(t *testing.T) {
	s := newStored(t)
	gap := s.with(t, storedNames[1]+logSuffix, nil)
	must(t, Abandon(gap.cfg, 10))
	gap.opens(t, 8, OpenOptions{SameBoot: true})
	if names := gap.sides(t); !slices.Equal(names, []string{s.last + "-0-0.cut"}) {
		t.Errorf("kept are %v", names)
	}
	// Zeros at the end are nothing to keep, and an index that names more than there is goes with it.
	content := s.file(t, s.last+logSuffix)
	zeros := s.with(t, s.last+logSuffix, append(bytes.Clone(content[:s.marks[3].Position]), make([]byte, 500)...))
	must(t, Abandon(zeros.cfg, 21))
	zeros.opens(t, 19, OpenOptions{SameBoot: true})
	if names := zeros.sides(t); len(names) != 0 {
		t.Errorf("kept are %v", names)
	}
}

// TestUnfinishedSideFile: a side file that a crash left unfinished goes at the next start.
func TestUnfinishedSideFile(t *testing.T) {
	s := newStored(t)
	unfinished := s.with(t, s.last+"-300-0.cut.tmp", []byte("some"))
	unfinished.opens(t, len(s.entries), OpenOptions{Floor: s.floor})
	if names, err := unfinished.disk.CrashClone(0, nil).List(testDir); err != nil || len(names) != 6 {
		t.Errorf("left are %v, %v", names, err)
	}
	at := parseRecord(s.file(t, s.last+indexSuffix)[3*recordSize:]).position
	name := sideOf(t, s, 18, int64(at))
	again := s.with(t, name+unfinishedSuffix, []byte("some"))
	must(t, Abandon(again.cfg, 21))
	if got := again.file(t, name); !bytes.Equal(got, s.file(t, s.last+logSuffix)[at:]) || len(again.sides(t)) != 1 {
		t.Errorf("%s has %d bytes", name, len(got))
	}
}

// FuzzAbandon abandons a log with an arbitrary segment anywhere: it refuses, and changes nothing, or nothing of what
// was there is lost and what is left ends where it is to.
func FuzzAbandon(f *testing.F) {
	s := newStored(f)
	for k, name := range storedNames {
		content := s.file(f, name+logSuffix)
		f.Add(content, uint8(k), uint64(8*k+5))
		f.Add(content[:len(content)/2], uint8(k), uint64(8*k+3))
		f.Add(append(bytes.Clone(content[:300]), content...), uint8(k+128), uint64(8*k+4))
	}
	f.Fuzz(func(t *testing.T, content []byte, which uint8, from uint64) {
		name := storedNames[int(which&127)%3]
		if which >= 128 {
			content = sealed(content)
		}
		fuzzed := s.with(t, name+logSuffix, append([]byte{}, content...))
		before := files(t, fuzzed.disk, testDir)
		if err := Abandon(fuzzed.cfg, Index(from)); err != nil {
			if !mapsEqual(before, files(t, fuzzed.disk, testDir)) {
				t.Fatalf("%v, but files were changed", err)
			}
			return
		}
		after := files(t, fuzzed.disk, testDir)
		keepsAll(t, before, after)
		for k, name := range storedNames {
			if _, isLeft := after[name+logSuffix]; isLeft != (Index(2+8*k) < Index(from)) {
				t.Fatalf("abandoned from %d on: segment %s is there: %v", from, name, isLeft)
			}
		}
		must(t, Abandon(fuzzed.cfg, Index(from)))
		if !mapsEqual(after, files(t, fuzzed.disk, testDir)) {
			t.Fatal("once more changes files")
		}
	})
}
