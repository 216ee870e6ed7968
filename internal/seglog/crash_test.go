package seglog

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

var campaign = flag.Int("campaign", 1,
	"multiplies the number of seeds of the random tests; above 1, tests that go over bytes leave out none")

// step is the distance of the bytes that such tests look at. It has no divisor in common with the size of any record.
func step() int {
	if *campaign > 1 {
		return 1
	}
	return 7
}

// TestScript uses a log at random, with kills and power losses between the operations, and compares it with the model.
// What was synced is there, the log is a beginning of what was appended, and opening what was recovered once more
// changes nothing.
func TestScript(t *testing.T) {
	for seed := range uint64(8 * *campaign) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newScript(t, seed)
			for range 80 {
				s.step()
			}
			checkFrom(t, s.log, s.first, s.entries, s.m.rng)
		})
	}
}

type script struct {
	*user
	fs *memfs.FS
}

// smallConfig has segments of a random size that is small enough for a script to make many. One seed of four has so many
// entries that an index has several pages, which a crash may leave or not.
func smallConfig(fs *memfs.FS, seed uint64) Config {
	rng := rand.New(rand.NewPCG(seed, 3))
	cfg := testConfig(fs)
	if seed%4 == 1 {
		cfg.SegmentBytes, cfg.SegmentEntries = 100000, 150+rng.IntN(300)
		return cfg
	}
	cfg.SegmentBytes = 500 + rng.Int64N(3000)
	cfg.SegmentEntries = 1 + rng.IntN(12)
	return cfg
}

func newScript(t testing.TB, seed uint64) *script {
	disk := newDisk(t)
	return &script{newUser(t, seed, smallConfig(disk, seed)), disk}
}

func (s *script) step() {
	s.t.Helper()
	switch n := s.m.rng.IntN(20); {
	case n == 0:
		s.crash(s.fs.KillClone(), true)
	case n == 1:
		if s.m.rng.IntN(2) == 0 {
			s.fs.WriteBack(50, s.m.rng)
		}
		s.crash(s.fs.CrashClone([]int{0, 100, s.m.rng.IntN(101)}[s.m.rng.IntN(3)], s.m.rng), false)
	case n < 4:
		checkFrom(s.t, s.log, s.first, s.entries, s.m.rng)
	default:
		op := s.next()
		if err := op.do(); err != nil {
			s.t.Fatalf("%s: %v", op.name, err)
		}
		s.finish()
	}
}

// crash goes on with a disk as it was left, opens the log that is on it, and then once more.
func (s *script) crash(disk *memfs.FS, sameBoot bool) {
	s.t.Helper()
	s.fs, s.cfg.FS = disk, disk
	synced := s.last()
	must(s.t, s.user.open(OpenOptions{Floor: s.mark, SameBoot: sameBoot, From: s.anyFrom()}))
	if sameBoot && s.last() != synced {
		s.t.Fatalf("the log ends with entry %d after a kill, it was %d", s.last(), synced)
	}
	l := s.log
	mark, before := l.End(), files(s.t, disk, testDir)
	for _, opt := range []OpenOptions{{Floor: mark}, {Floor: mark, SameBoot: true}, {Floor: s.mark, SameBoot: true}, {Floor: s.mark}} {
		again, report := open(s.t, s.cfg, opt)
		if report.CutBytes != 0 || report.CutFile != "" || opt.Floor == mark && report.Rewritten != 0 {
			s.t.Fatalf("the second recovery still has to do: %+v", report)
		}
		if !mapsEqual(before, files(s.t, disk, testDir)) {
			s.t.Fatalf("the second recovery changes files")
		}
		must(s.t, again.Close())
	}
	// What Open returns is durable.
	lost, report := open(s.t, testConfig(disk.CrashClone(0, nil)), OpenOptions{Floor: mark})
	if err := s.known.holdsIn(lost); err != nil || report.Rewritten != 0 {
		s.t.Fatalf("what was recovered was not on disk: %+v, %v", report, err)
	}
	must(s.t, lost.Close())
	s.finish()
}

// TestEveryCrash ends the process and the machine before each single operation on the disk of a script, also those of
// Open, TruncateSuffix, DropBefore and Abandon.
func TestEveryCrash(t *testing.T) {
	total, kinds := 0, map[string]int{}
	for seed := range uint64(2 * *campaign) {
		disk, rng := newDisk(t), rand.New(rand.NewPCG(seed, 7))
		cfg := smallConfig(disk, seed)
		w := &watch{disk: disk, rng: rng}
		w.user = newUser(t, seed, cfg)
		must(t, w.close())
		w.cfg.FS = errfs.Wrap(disk, w) // from here on each operation leaves clones of the disk
		must(t, w.user.open(OpenOptions{Floor: w.mark}))
		for step := range 16 {
			op := w.next()
			switch { // the first ones remove several segments at once
			case seed == 0 && step < 9 && step%3 != 2:
				op = w.append()
			case seed == 0 && step < 9:
				op = []operation{w.truncate(w.first + 2), w.drop(w.firsts[len(w.firsts)-1]), w.abandonEnd(w.first + 1)}[step/3]
			}
			w.during = op.name
			if err := op.do(); err != nil {
				t.Fatalf("seed %d, %s: %v", seed, op.name, err)
			}
			w.finish()
		}
		for _, c := range w.crashes {
			c.check(t, rng, fmt.Sprintf("seed %d, during %s, before %s of %s", seed, c.during, c.op.Kind, c.op.Path))
			kinds[string(c.op.Kind)]++
		}
		total += len(w.crashes)
	}
	t.Logf("%d crashes, before %v", total, kinds)
}

// crash is the disk and what is known at one moment.
type crash struct {
	known
	disk     *memfs.FS
	op       errfs.Op
	during   string
	sameBoot bool
	from     Index
}

// watch is an injector that injects nothing, but takes clones.
type watch struct {
	*user
	disk    *memfs.FS
	rng     *rand.Rand
	during  string
	crashes []*crash
}

func (w *watch) String() string { return "watch" }

func (w *watch) Inject(op errfs.Op) error {
	if reads(op) {
		return nil // nothing has changed since the operation before
	}
	add := func(disk *memfs.FS, sameBoot bool) {
		c := &crash{known: w.known, disk: disk, op: op, during: w.during, sameBoot: sameBoot}
		if k := w.rng.IntN(len(w.firsts) + 1); k < len(w.firsts) {
			c.from = w.firsts[k]
		}
		w.crashes = append(w.crashes, c)
	}
	add(w.disk.KillClone(), true)
	for _, percent := range []int{0, 20 + w.rng.IntN(60), 100} {
		add(w.disk.CrashClone(percent, w.rng), false)
	}
	w.disk.WriteBack(20, w.rng)
	return nil
}

// reads tells operations that change nothing on the disk.
func reads(op errfs.Op) bool {
	switch op.Kind {
	case errfs.OpRead, errfs.OpOpen, errfs.OpSize, errfs.OpList, errfs.OpClose:
		return true
	}
	return false
}

// check recovers what a crash left, crashes again while that goes on, and recovers once more.
func (c *crash) check(t *testing.T, rng *rand.Rand, where string) {
	t.Helper()
	disk := c.disk.KillClone()
	var again []*memfs.FS
	var boots []bool
	w := injectorFunc(func(op errfs.Op) error {
		if !reads(op) {
			again = append(again, disk.KillClone(), disk.CrashClone(rng.IntN(101), rng))
			boots = append(boots, c.sameBoot, false)
			disk.WriteBack(20, rng)
		}
		return nil
	})
	recovered := func(disk *memfs.FS, cfg Config, sameBoot bool, what string) *Log {
		l, err := c.recover(cfg, OpenOptions{Floor: c.mark, SameBoot: sameBoot, From: c.from})
		if err != nil {
			t.Fatalf("%s, %s, from %d: %v", where, what, c.from, err)
		}
		return l
	}
	must(t, recovered(disk, testConfig(errfs.Wrap(disk, w)), c.sameBoot, "watched").Close())
	if len(again) > 0 {
		k := rng.IntN(len(again))
		must(t, recovered(again[k], testConfig(again[k]), boots[k], "again").Close())
	}
	l := recovered(c.disk, testConfig(c.disk), c.sameBoot, "once")
	// The log goes on where it ends.
	m := newMaker(1000)
	after := c.known
	after.entries = c.entries[: l.LastIndex()-1 : l.LastIndex()-1]
	m.replace(after.entries)
	some := m.several(5, 300)
	must(t, l.Append(some))
	must(t, l.Sync())
	must(t, l.Close())
	after.entries = append(after.entries, some...)
	after.synced, after.cut = after.last(), 0
	l, err := after.recover(testConfig(c.disk.CrashClone(0, nil)), OpenOptions{Floor: c.mark, From: c.from})
	if err != nil {
		t.Fatalf("%s: what was appended after the recovery: %v", where, err)
	}
	must(t, l.Close())
}

type injectorFunc func(errfs.Op) error

func (f injectorFunc) Inject(op errfs.Op) error { return f(op) }

func (f injectorFunc) String() string { return "function" }
