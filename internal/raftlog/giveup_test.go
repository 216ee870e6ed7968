package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// patient is a group of three segments, closed, and what a test knows of it.
type patient struct {
	*groupScript
	disk   *memfs.FS
	firsts []seglog.Index
	names  []string // of its files
	beyond int64    // entries that the state file knows of, and the log does not
}

func newPatient(t testing.TB) *patient {
	t.Helper()
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, 3)
	p := &patient{groupScript: c, disk: mem, firsts: c.firsts()}
	must(t, c.close())
	p.names = slices.Sorted(maps.Keys(filesOf(t, mem, c.cfg.Dir)))
	return p
}

// on returns the group's configuration on another disk.
func (p *patient) on(t testing.TB, fsys vfs.FS, boot [16]byte) Config {
	t.Helper()
	state, report := openState(t, fsys, boot)
	cfg := p.cfg
	cfg.FS, cfg.State, cfg.SameBoot = fsys, state, report.SameBoot
	return cfg
}

// inspect inspects without being able to change anything.
func (p *patient) inspect(t testing.TB, disk *memfs.FS, boot [16]byte) Inspection {
	t.Helper()
	fsys := errfs.Wrap(disk, readOnly{t})
	state, report, err := ReadState(fsys, stateDir, boot)
	must(t, err)
	cfg := p.cfg
	cfg.FS, cfg.State, cfg.SameBoot = fsys, state, report.SameBoot
	return Inspect(cfg)
}

const emptyBody = "knows nothing"

// treat demands that Inspect says what OpenGroup says, and that GiveUp makes a group of the damaged one that can be opened,
// with all before and behind what is lost. It returns what happened.
func (p *patient) treat(t *testing.T, disk *memfs.FS, boot [16]byte, what string) string {
	t.Helper()
	i := p.inspect(t, disk, boot)
	probe := disk.KillClone()
	l, _, err := OpenGroup(p.on(t, probe, boot))
	if (err == nil) != (i.Problem == nil) {
		t.Fatalf("%s: inspected: %v, opened: %v", what, i.Problem, err)
	}
	if err == nil {
		must(t, l.Close())
	} else if found, ok := errors.AsType[*seglog.DamageError](err); ok {
		if said, ok := errors.AsType[*seglog.DamageError](i.Problem); !ok || said.File != found.File {
			t.Fatalf("%s: inspected: %v, opened: %v", what, i.Problem, err)
		}
	}
	cfg := p.on(t, disk, boot)
	if i.Problem == nil && len(i.Log.Findings) == 0 {
		if err := GiveUp(cfg, nil); err == nil || !strings.Contains(err.Error(), "not damaged") {
			t.Fatalf("%s: given up although nothing is damaged: %v", what, err)
		}
		return "healthy"
	}
	if !i.Salvageable {
		t.Fatalf("%s: not salvageable: %v", what, i.Problem)
	}
	before := sizeOf(t, disk, cfg.Dir, ".log", ".cut")
	must(t, GiveUp(cfg, []byte(emptyBody)))
	if after := sizeOf(t, disk, cfg.Dir, ".log", ".cut"); after < before {
		t.Fatalf("%s: of %d bytes of log %d are left", what, before, after)
	}
	return p.checkTreated(t, cfg, i.Loss, what)
}

func sizeOf(t testing.TB, disk *memfs.FS, dir string, suffixes ...string) (size int) {
	t.Helper()
	for name, content := range filesOf(t, disk, dir) {
		if slices.Contains(suffixes, filepath.Ext(name)) {
			size += len(content)
		}
	}
	return size
}

// checkTreated opens a group that was given up in part.
func (p *patient) checkTreated(t *testing.T, cfg Config, loss Loss, what string) string {
	t.Helper()
	if after := Inspect(cfg); after.Problem != nil || after.Salvageable || after.Unfinished != "" {
		t.Fatalf("%s: after giving up: %+v", what, after)
	}
	l, _, err := OpenGroup(cfg)
	must(t, err)
	defer l.Close()
	first, last := l.segments.FirstIndex(), l.segments.LastIndex()
	result := "head"
	if e, err := l.segments.Entry(last); err == nil && e.Kind == seglog.KindMarkEverything {
		result, last = "end", last-1
		if first > p.firsts[0] {
			result = "head and end"
		}
	} else if last != p.last() {
		t.Fatalf("%s: the log ends at %d of %d, and producers are taken for known", what, last, p.last())
	}
	for i := first; i <= last; i++ {
		entry, err := l.segments.Entry(i)
		must(t, err)
		if want := p.stages[i-1].entry; !bytes.Equal(fromLog(i, entry).GetData(), want.GetData()) {
			t.Fatalf("%s: entry %d is another one", what, i)
		}
	}
	p.checkLoss(t, l, loss, last, what)
	base := l.Base()
	s := stage{body: base.Body, nextOffset: base.NextOffset, logStart: base.LogStart}
	if string(base.Body) == emptyBody {
		result += ", forgotten"
	} else if want := p.base(base.Index); !bytes.Equal(base.Body, want.Body) || base.NextOffset != want.NextOffset || base.LogStart < want.LogStart {
		t.Fatalf("%s: base %+v, want %+v", what, base, want)
	}
	if start := l.segments.FirstOffset(); start > s.logStart && l.logStart < start {
		t.Fatalf("%s: the log starts at %d, with %d", what, l.logStart, start)
	}
	return result
}

// checkLoss compares what was lost with what was announced.
func (p *patient) checkLoss(t *testing.T, l *Log, loss Loss, last seglog.Index, what string) {
	t.Helper()
	end, first := p.stages[len(p.stages)-1], l.segments.FirstIndex()
	offsets := int64(end.nextOffset-p.stages[last-1].nextOffset) + int64(max(0, l.segments.FirstOffset()-p.stages[0].logStart))
	if first == p.firsts[0] {
		offsets = int64(end.nextOffset - p.stages[last-1].nextOffset)
	}
	entries := int64(p.last()-last) + int64(first-p.firsts[0]) + p.beyond
	if loss.Offsets > offsets || loss.Entries > entries {
		t.Fatalf("%s: announced %+v, lost %d offsets and %d entries", what, loss, offsets, entries)
	}
	if loss.Offset >= 0 && loss.Offset != p.stages[last-1].nextOffset && first == p.firsts[0] {
		t.Fatalf("%s: announced %+v, lost from %d", what, loss, p.stages[last-1].nextOffset)
	}
}

// change writes other bytes into a file of the group.
func (p *patient) change(t testing.TB, name string, change func([]byte) []byte) *memfs.FS {
	t.Helper()
	disk := p.disk.KillClone()
	path := filepath.Join(p.cfg.Dir, name)
	content := []byte(filesOf(t, disk, p.cfg.Dir)[name])
	must(t, disk.Remove(path))
	if b := change(content); b != nil {
		writeFile(t, disk, path, b)
	}
	return disk
}

// Bytes of each file are changed, with and without a machine crash behind it.
func TestEachByteOfAGroupFlipped(t *testing.T) {
	p := newPatient(t)
	seen := map[string]int{}
	for n, name := range p.names {
		size := len(filesOf(t, p.disk, p.cfg.Dir)[name])
		for i := n % *groupStride; i < size; i += *groupStride {
			for _, boot := range [][16]byte{boot1, boot2} {
				disk := p.change(t, name, func(b []byte) []byte { b[i] ^= 0x20; return b })
				result := p.treat(t, disk, boot, fmt.Sprintf("byte %d of %d of %s, %v", i, size, name, boot[0]))
				seen[filepath.Ext(name)+" "+result]++
			}
		}
	}
	t.Logf("%v", seen)
	for _, want := range []string{".log end", ".log head", ".base healthy", ".idx healthy"} {
		if seen[want] == 0 {
			t.Errorf("not seen: %s", want)
		}
	}
}

// Each file is missing, or ends anywhere.
func TestEachFileOfAGroupMissing(t *testing.T) {
	p := newPatient(t)
	seen := map[string]int{}
	for _, name := range p.names {
		size := len(filesOf(t, p.disk, p.cfg.Dir)[name])
		for _, boot := range [][16]byte{boot1, boot2} {
			disk := p.change(t, name, func([]byte) []byte { return nil })
			seen[p.treat(t, disk, boot, name+" is missing")]++
			for length := 0; length < size; length += 1 + size/20 {
				disk := p.change(t, name, func(b []byte) []byte { return b[:length] })
				seen[p.treat(t, disk, boot, fmt.Sprintf("%s has %d bytes of %d", name, length, size))]++
			}
		}
	}
	t.Logf("%v", seen)
	if len(seen) < 3 {
		t.Errorf("seen only %v", seen)
	}
}

// No base snapshot is good: the log is kept, and begins with a state that knows nothing; when something is missing before it
// as well.
func TestGiveUpAllBases(t *testing.T) {
	p := newPatient(t)
	for _, bad := range []bool{true, false} {
		for kept := range p.firsts {
			disk := p.disk.KillClone()
			for n, first := range p.firsts {
				must(t, disk.Remove(p.path(first, baseSuffix)))
				if bad {
					writeFile(t, disk, p.path(first, baseSuffix), []byte("OMQBASE1 no more"))
				}
				if n < kept {
					must(t, disk.Remove(p.path(first, ".log")))
					must(t, disk.Remove(p.path(first, ".idx")))
				}
			}
			if result := p.treat(t, disk, boot1, fmt.Sprint("bases bad: ", bad)); !strings.HasSuffix(result, "end, forgotten") {
				t.Fatalf("bases bad: %v, without %d segments: %s", bad, kept, result)
			}
			if _, there := filesOf(t, disk, p.cfg.Dir)[filepath.Base(p.path(p.firsts[2], baseSuffix))+badSuffix]; there != bad {
				t.Fatalf("bad base kept: %v, want %v", there, bad)
			}
		}
	}
}

// What the state file knows is behind the end of the log.
func TestGiveUpWhatIsMissingAtTheEnd(t *testing.T) {
	p := newPatient(t)
	p.beyond = 5
	for _, what := range []string{"mark", "commit"} {
		disk := p.disk.KillClone()
		state, _ := openState(t, disk, boot1)
		if what == "mark" {
			_, err := state.SetMark(1, seglog.Floor{Index: p.last() + seglog.Index(p.beyond), Segment: p.firsts[2], Position: 1 << 20})
			must(t, err)
		} else {
			_, err := state.SetCommit(1, p.last()+seglog.Index(p.beyond))
			must(t, err)
		}
		must(t, state.Close())
		if result := p.treat(t, disk, boot1, what); result != "end" {
			t.Fatalf("%s: %s", what, result)
		}
	}
}

// The last segment is missing, and nothing says so but its base snapshot: what was in it is lost, and with it what it told of
// producers.
func TestGiveUpAfterALostSegment(t *testing.T) {
	mem := newStateFS(t)
	c := builtGroup(t, mem, mem, 3)
	p := &patient{groupScript: c, disk: mem, firsts: c.firsts()}
	clear(c.flush.markers.ends) // no mark was written yet
	must(t, c.close())
	must(t, mem.Remove(p.path(p.firsts[2], ".log")))
	if result := p.treat(t, mem, boot1, "no mark"); result != "end" {
		t.Fatalf("%s", result)
	}
}

// The machine, or the process, goes down before each operation of giving up: what is found opens, or can be given up again,
// with the same result.
func TestGiveUpEveryCrash(t *testing.T) {
	p := newPatient(t)
	for _, c := range p.cases(t) {
		operations := 0
		mem := c.disk.KillClone()
		loss := p.inspect(t, mem, boot1).Loss
		check := func(disk *memfs.FS, boot [16]byte, op errfs.Op) {
			t.Helper()
			cfg := p.on(t, disk, boot)
			if i := Inspect(cfg); i.Salvageable {
				must(t, GiveUp(cfg, []byte(emptyBody)))
			}
			l, _, err := OpenGroup(cfg)
			if err != nil {
				t.Fatalf("%s, before %v: %v", c.name, op, err)
			}
			must(t, l.Close())
			p.checkTreated(t, cfg, Loss{Offset: -1}, fmt.Sprintf("%s, before %v", c.name, op))
		}
		judge := func(op errfs.Op) {
			if operations++; operations%min(*groupStride, 4) != 0 {
				return
			}
			for _, percent := range []int{0, 100, p.luck.IntN(101)} {
				check(mem.CrashClone(percent, p.luck), boot2, op)
			}
			check(mem.KillClone(), boot1, op)
		}
		cfg := p.on(t, errfs.Wrap(mem, hook(judge)), boot1)
		must(t, GiveUp(cfg, []byte(emptyBody)))
		p.checkTreated(t, cfg, loss, c.name)
		check(mem.CrashClone(0, nil), boot2, errfs.Op{Path: "the end"})
	}
}

// illness is a damaged group.
type illness struct {
	name string
	disk *memfs.FS
}

// cases are damages of each kind.
func (p *patient) cases(t testing.TB) []illness {
	t.Helper()
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 1; return b }
	}
	segment := func(n int) string { return filepath.Base(p.path(p.firsts[n], ".log")) }
	noBases := p.disk.KillClone()
	for _, first := range p.firsts {
		must(t, noBases.Remove(p.path(first, baseSuffix)))
	}
	return []illness{
		{"an entry of the last segment", p.change(t, segment(2), flip(150))},
		{"the header of the last segment", p.change(t, segment(2), flip(30))},
		{"the header of an old segment", p.change(t, segment(1), flip(30))},
		{"an entry of an old segment", p.change(t, segment(0), flip(150))},
		{"the last segment is missing", p.change(t, segment(2), func([]byte) []byte { return nil })},
		{"an old segment is missing", p.change(t, segment(1), func([]byte) []byte { return nil })},
		{"no base snapshots", noBases},
	}
}

// Each operation of giving up fails: the call says so, or did without; afterwards it can be repeated.
func TestGiveUpEveryError(t *testing.T) {
	p := newPatient(t)
	for _, c := range p.cases(t) {
		for i, failure := range []errfs.Injector{errfs.EIO, errfs.ShortWrite(20, syscall.ENOSPC)} {
			for n := i; ; n += *groupStride {
				mem := c.disk.KillClone()
				injector := errfs.OnIndex(n, failure)
				armed := false
				cfg := p.on(t, errfs.Wrap(mem, injectEachIf(func(op errfs.Op) error {
					if armed {
						return injector.Inject(op)
					}
					return nil
				})), boot1)
				armed = true
				err := GiveUp(cfg, []byte(emptyBody))
				if !injector.Reached() {
					must(t, err)
					break
				}
				if err != nil && !strings.Contains(err.Error(), "group 1") {
					t.Fatalf("%s, %s: %v", c.name, injector, err)
				}
				disk := mem.KillClone()
				cfg = p.on(t, disk, boot1)
				if Inspect(cfg).Salvageable {
					must(t, GiveUp(cfg, []byte(emptyBody)))
				}
				l, _, err := OpenGroup(cfg)
				if err != nil {
					t.Fatalf("%s, %s: %v", c.name, injector, err)
				}
				must(t, l.Close())
				p.checkTreated(t, cfg, Loss{Offset: -1}, c.name)
			}
		}
	}
}

// What GiveUp does not touch.
func TestGiveUpRefuses(t *testing.T) {
	p := newPatient(t)
	damaged := p.cases(t)[0].disk
	for name, change := range map[string]func(*testing.T, *memfs.FS, *Config){
		"three voters": func(t *testing.T, disk *memfs.FS, cfg *Config) {
			for _, first := range p.firsts {
				base := p.base(first - 1)
				base.Members.Voters = []uint64{1, 2, uint64(logReplica)}
				must(t, WriteBase(disk, cfg.Dir, base))
			}
		},
		"a learner": func(t *testing.T, disk *memfs.FS, cfg *Config) {
			for _, first := range p.firsts {
				base := p.base(first - 1)
				base.Members.Learners = []uint64{9}
				must(t, WriteBase(disk, cfg.Dir, base))
			}
		},
		"another replica's": func(t *testing.T, disk *memfs.FS, cfg *Config) { cfg.Identity.Replica++ },
		"lost vote": func(t *testing.T, disk *memfs.FS, cfg *Config) {
			must(t, cfg.State.Close())
			must(t, disk.Remove(stateDir+"/"+stateName(1)))
			cfg.State = createState(t, disk)
			must(t, cfg.State.Birth(1, logReplica, 1))
		},
		"a strange file": func(t *testing.T, disk *memfs.FS, cfg *Config) { writeFile(t, disk, cfg.Dir+"/2.log", []byte("x")) },
	} {
		disk := damaged.KillClone()
		cfg := p.on(t, disk, boot1)
		change(t, disk, &cfg)
		before := fmt.Sprint(filesOf(t, disk, cfg.Dir))
		i := Inspect(cfg)
		if err := GiveUp(cfg, nil); i.Salvageable || i.Problem == nil || err == nil {
			t.Errorf("%s: %+v, %v", name, i.Problem, err)
		}
		if fmt.Sprint(filesOf(t, disk, cfg.Dir)) != before {
			t.Errorf("%s: files were changed", name)
		}
	}
	raft0 := p.on(t, damaged.KillClone(), boot1)
	raft0.Identity.Group = 0
	if i := Inspect(raft0); i.Problem == nil || i.Salvageable {
		t.Errorf("raft0: %+v", i)
	}
}

// ReadGroup gives what a start would rebuild the state from, and changes nothing.
func TestReadGroup(t *testing.T) {
	p := newPatient(t)
	for _, test := range []struct {
		name string
		disk *memfs.FS
		last seglog.Index
	}{
		{"whole", p.disk, p.last()},
		{"damaged end", p.change(t, filepath.Base(p.path(p.firsts[2], ".log")), func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), p.last() - 1},
		{"bad base", p.change(t, filepath.Base(p.path(p.firsts[2], baseSuffix)), func(b []byte) []byte { return b[:9] }), p.last()},
	} {
		fsys := errfs.Wrap(test.disk, readOnly{t})
		state, report, err := ReadState(fsys, stateDir, boot1)
		must(t, err)
		cfg := p.cfg
		cfg.FS, cfg.State, cfg.SameBoot = fsys, state, report.SameBoot
		var s stage
		index := seglog.Index(0)
		var entries []seglog.Entry
		base, err := ReadGroup(cfg, func(e seglog.Entry) error {
			e.Data = bytes.Clone(e.Data)
			entries = append(entries, e)
			return nil
		})
		must(t, err)
		s, index = stage{body: base.Body, nextOffset: base.NextOffset, logStart: base.LogStart}, base.Index
		for _, e := range entries {
			index++
			s = s.after(fromLog(index, e))
		}
		if index != test.last || !bytes.Equal(s.body, p.stages[index-1].body) {
			t.Fatalf("%s: read up to %d, want %d, or another state", test.name, index, test.last)
		}
		stop := errors.New("enough")
		if _, err := ReadGroup(cfg, func(seglog.Entry) error { return stop }); !errors.Is(err, stop) {
			t.Fatalf("%s: the end of a visit: %v", test.name, err)
		}
	}
}
