package raftlog

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// parkedInstall is a replica in a log of several segments with a base each, to which a snapshot comes while the disk is full.
type parkedInstall struct {
	*followerScript
	mem   *memfs.FS
	bases []Base // of its segments, ascending
	armed bool   // the snapshot is on its way
	ended bool   // it is installed
}

func newParkedInstall(t *testing.T, seed uint64, injector errfs.Injector) *parkedInstall {
	t.Helper()
	p := &parkedInstall{mem: newStateFS(t)}
	p.followerScript = newFollowerScript(t, seed, p.mem, errfs.Wrap(p.mem, injectEachIf(func(op errfs.Op) error {
		if !p.armed || p.ended {
			return nil
		}
		return injector.Inject(op)
	})))
	must(t, p.open(boot1))
	for len(p.log.Segments().Segments()) < 5 {
		must(t, p.write())
	}
	start := p.now.at(p.now.last()).nextOffset // all that is there may be dropped
	e := entry(uint64(p.now.last())+1, p.term, logStartAt(start))
	p.now = p.now.with(e)
	p.log.Staged([]*pb.Entry{e})
	p.submit(nil, []*pb.Entry{e})
	for p.flush.Step() {
	}
	p.applied = p.now.last()
	p.log.Applied(p.applied)
	for _, s := range p.log.Segments().Segments()[1:] {
		p.bases = append(p.bases, p.base(p.now, s.First-1))
	}
	for _, b := range p.bases[:2] {
		must(t, p.log.AddBase(b))
	}
	return p
}

// beside does what the keeper may do at any time while the install waits for room.
func (p *parkedInstall) beside(t *testing.T, what int) {
	t.Helper()
	b := p.bases[min(what, len(p.bases)-1)]
	err := p.log.AddBase(b)
	for errors.Is(err, ErrFull) {
		err = p.log.AddBase(b)
	}
	must(t, err)
	err = p.log.DropBefore(b.Index + 1)
	if err != nil && !strings.Contains(err.Error(), "no base snapshot") && !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

// install installs a snapshot, and demands that it is on disk when it is answered, and can be opened.
func (p *parkedInstall) install(t *testing.T) {
	t.Helper()
	low := p.now.last()
	p.possible = []possible{{p.now, low}}
	installed := p.snapshot(p.applied)
	p.possible = append(p.possible, possible{p.now, installed.Index})
	p.armed = true
	p.submit(installed.snapshot(), nil)
	for p.flush.Step() {
	}
	p.ended = true
	must(t, p.failed)
	p.possible = p.possible[1:]
	p.log.Restored(installed)
	if _, err := ReadBase(p.mem, basePath(p.cfg.Dir, installed.Index)); err != nil {
		t.Fatalf("the snapshot was answered, and is not on disk: %v", err)
	}
	if _, err := p.log.Snapshot(); err != nil {
		t.Fatal(err)
	}
	p.checkDisk(t, p.mem.CrashClone(0, nil), boot2)
	p.checkDisk(t, p.mem.KillClone(), boot1)
	must(t, p.close())
}

// takesRoom asks only for operations that a file system that is full may refuse without a word about what is on disk.
type takesRoom struct{ errfs.Injector }

func (i takesRoom) Inject(op errfs.Op) error {
	switch op.Kind {
	case errfs.OpCreate, errfs.OpWrite, errfs.OpRename, errfs.OpRemove:
		return i.Injector.Inject(op)
	}
	return nil
}

// An install meets a full disk at each of its operations, and before it is repeated bases are made and segments dropped: the
// snapshot is there from its intent on, whatever ends the process meanwhile.
func TestKeeperBesideAParkedInstall(t *testing.T) {
	for seed := range uint64(4) {
		for n := 0; ; n++ {
			injector := errfs.OnIndex(n, errfs.ENOSPC)
			p := newParkedInstall(t, seed+7, takesRoom{injector})
			p.onFull = func() {
				p.beside(t, int(seed))
				p.checkDisk(t, p.mem.KillClone(), boot1)
				for _, percent := range []int{0, 100, p.luck.IntN(101)} {
					p.checkDisk(t, p.mem.CrashClone(percent, p.luck), boot2)
				}
			}
			p.install(t)
			if !injector.Reached() {
				if n < 8 {
					t.Fatalf("only %d operations", n)
				}
				break
			}
			if p.full == 0 {
				t.Fatalf("%s: the writer was not parked", injector)
			}
		}
	}
}

// What has arrived is lost, or damaged, while the install waits for room: it is written again, and nothing is removed before.
func TestParkedInstallWritesAgainWhatIsLost(t *testing.T) {
	for name, spoil := range map[string]func(*testing.T, *parkedInstall, string){
		"lost": func(t *testing.T, p *parkedInstall, path string) { must(t, p.mem.Remove(path)) },
		"damaged": func(t *testing.T, p *parkedInstall, path string) {
			file, err := p.mem.Open(path)
			must(t, err)
			must(t, file.WriteVAt([][]byte{{0xff, 0xff}}, 20))
			must(t, file.Close())
		},
	} {
		for _, suffix := range []string{arrivedSuffix, ""} {
			t.Run(name+suffix, func(t *testing.T) {
				var p *parkedInstall
				full, arrived := true, false
				p = newParkedInstall(t, 7, injectEachIf(func(op errfs.Op) error {
					arrived = arrived || op.Kind == errfs.OpRename
					atIntent := arrived && op.Kind == errfs.OpWrite && strings.HasPrefix(op.Path, stateDir+"/state")
					atRemove := op.Kind == errfs.OpRemove && strings.HasSuffix(op.Path, baseSuffix)
					if full && (suffix != "" && atIntent || suffix == "" && atRemove) {
						return syscall.ENOSPC
					}
					return nil
				}))
				p.onFull = func() {
					full = false
					spoil(t, p, basePath(p.cfg.Dir, p.now.first)+suffix)
				}
				p.install(t)
				if p.full != 1 {
					t.Fatalf("parked %d times", p.full)
				}
			})
		}
	}
}

// No base snapshot is removed for one that is not there.
func TestTakePlaceOfNothing(t *testing.T) {
	p := newParkedInstall(t, 7, injectEachIf(func(errfs.Op) error { return nil }))
	before, err := ListBases(p.mem, p.cfg.Dir)
	must(t, err)
	if err := takePlace(p.cfg, p.applied+seglog.Index(3)); err == nil {
		t.Fatal("the place is taken")
	}
	after, err := ListBases(p.mem, p.cfg.Dir)
	if must(t, err); len(after) != len(before) || len(before) < 3 {
		t.Fatalf("bases were %v, are %v", before, after)
	}
	must(t, p.close())
}
