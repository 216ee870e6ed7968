package raftlog

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

var mangleSeeds = flag.Int("mangle.seeds", 60, "random scripts of TestAnyDamage")

// mangle damages up to three files of a group, and says how.
func mangle(t *testing.T, disk *memfs.FS, dir string, rng *rand.Rand) string {
	t.Helper()
	what := ""
	names := slices.Sorted(maps.Keys(filesOf(t, disk, dir)))
	for range 1 + rng.IntN(3) {
		name := names[rng.IntN(len(names))]
		content, ok := filesOf(t, disk, dir)[name]
		if !ok {
			continue
		}
		path := filepath.Join(dir, name)
		must(t, disk.Remove(path))
		b, at := []byte(content), rng.IntN(len(content)+1)
		switch change := rng.IntN(4); {
		case change == 0:
			what += " removed " + name
			continue
		case change == 1 || at == len(b):
			what += fmt.Sprintf(" cut %s to %d of %d", name, at, len(b))
			b = b[:at]
		case change == 2:
			what += fmt.Sprintf(" flipped %s at %d of %d", name, at, len(b))
			b[at] ^= 0x10
		default:
			end := min(len(b), at+1+rng.IntN(600))
			what += fmt.Sprintf(" zeroed %s %d-%d of %d", name, at, end, len(b))
			clear(b[at:end])
		}
		writeFile(t, disk, path, b)
	}
	return what
}

// Whatever is damaged: Inspect says what OpenGroup finds, and when it says that GiveUp helps, that does, with one call
// or several, and the group then has nothing that was not in it.
func TestAnyDamage(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(*mangleSeeds) {
		rng := rand.New(rand.NewPCG(seed, 77))
		mem := newStateFS(t)
		c := newGroupScript(t, seed, mem, mem)
		must(t, c.open(boot1))
		for range 10 + rng.IntN(40) {
			must(t, c.step(boot1))
		}
		boot, left := boot1, mem.KillClone()
		if rng.IntN(2) == 0 {
			boot, left = boot2, mem.CrashClone(rng.IntN(101), rng)
		}
		for n := range 6 {
			disk := left.KillClone()
			what := fmt.Sprintf("seed %d/%d, boot %d:%s", seed, n, boot[0], mangle(t, disk, c.cfg.Dir, rng))
			seen[(&patient{groupScript: c, disk: disk}).recover(t, disk, boot, what)]++
		}
	}
	for _, result := range []string{"healthy", "given up"} {
		if seen[result] == 0 {
			t.Errorf("no group was %s: %v", result, seen)
		}
	}
}

// recover has a damaged group inspected, opened and given up, and says what it was.
func (p *patient) recover(t *testing.T, disk *memfs.FS, boot [16]byte, what string) string {
	t.Helper()
	i := p.inspect(t, disk, boot)
	l, _, err := OpenGroup(p.on(t, disk.KillClone(), boot))
	if (err == nil) != (i.Problem == nil) {
		t.Errorf("%s: inspected: %v, opened: %v", what, i.Problem, err)
	}
	if err == nil {
		must(t, l.Close())
	}
	switch {
	case i.Problem == nil && len(i.Log.Findings) == 0:
		return "healthy"
	case !i.Salvageable:
		return "unsalvageable"
	}
	cfg := p.on(t, disk, boot)
	var gave error
	for range 5 {
		if gave = GiveUp(cfg, []byte(emptyBody)); gave == nil || strings.Contains(gave.Error(), "not damaged") {
			break
		}
	}
	if l, _, err = OpenGroup(cfg); err != nil {
		t.Errorf("%s: given up for %v: %v, opened: %v", what, i.Problem, gave, err)
		return "given up"
	}
	for index := l.segments.FirstIndex(); index <= l.segments.LastIndex(); index++ {
		e, err := l.segments.Entry(index)
		switch {
		case err != nil:
			t.Errorf("%s: %v", what, err)
		case e.Kind == seglog.KindMarkEverything && index == l.segments.LastIndex():
		case int(index) > len(p.stages) || !bytes.Equal(fromLog(index, e).GetData(), p.stages[index-1].entry.GetData()):
			t.Errorf("%s: entry %d is another one", what, index)
		}
	}
	must(t, l.Close())
	return "given up"
}
