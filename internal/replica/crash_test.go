package replica

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

var (
	crashSeeds = flag.Int("crash.seeds", 1, "scripts of TestEveryCrash")
	crashTurns = flag.Int("crash.turns", 40, "turns of each script of TestEveryCrash")
	faultTurns = flag.Int("fault.turns", 10, "turns of each script of TestEveryFault")
	crashSeed  = flag.Uint64("crash.seed", 0, "first seed of TestEveryCrash and TestEveryFault; 0: by the time")
)

func firstSeed() uint64 {
	if *crashSeed != 0 {
		return *crashSeed
	}
	return uint64(time.Now().UnixNano())
}

// hookFS calls after behind each operation that changes something, and keeps the segments and base snapshots that go.
type hookFS struct {
	*memfs.FS
	after func()

	mu    sync.Mutex
	gone  map[string][]byte // segments that were removed, by their names
	bases map[string][]byte // all base snapshots that there ever were, by their names
}

func newHookFS() *hookFS {
	return &hookFS{FS: memfs.New(), after: func() {}, gone: map[string][]byte{}, bases: map[string][]byte{}}
}

func (f *hookFS) Create(name string) (vfs.File, error) {
	file, err := f.FS.Create(name)
	f.after()
	return f.wrap(file, err)
}

func (f *hookFS) Open(name string) (vfs.File, error) { return f.wrap(f.FS.Open(name)) }

func (f *hookFS) wrap(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &hookFile{File: file, after: f.after}, nil
}

func (f *hookFS) Remove(name string) error {
	if strings.HasSuffix(name, ".log") {
		f.keep(f.gone, name)
	}
	defer f.after()
	return f.FS.Remove(name)
}

func (f *hookFS) Rename(oldName, newName string) error {
	err := f.FS.Rename(oldName, newName)
	if strings.HasSuffix(newName, ".base") && err == nil {
		f.keep(f.bases, newName)
	}
	f.after()
	return err
}

func (f *hookFS) SyncDir(dir string) error {
	defer f.after()
	return f.FS.SyncDir(dir)
}

func (f *hookFS) keep(in map[string][]byte, name string) {
	content := readFile(f.FS, name)
	f.mu.Lock()
	defer f.mu.Unlock()
	in[filepath.Base(name)] = content
}

func readFile(fs vfs.FS, name string) []byte {
	file, err := fs.Open(name)
	if err != nil {
		return nil
	}
	defer file.Close()
	size, _ := file.Size()
	content := make([]byte, size)
	if _, err := file.ReadAt(content, 0); err != nil && err != io.EOF {
		return nil
	}
	return content
}

type hookFile struct {
	vfs.File
	after func()
}

func (f *hookFile) WriteAt(p []byte, off int64) (int, error) {
	defer f.after()
	return f.File.WriteAt(p, off)
}

func (f *hookFile) WriteVAt(bufs [][]byte, off int64) error {
	defer f.after()
	return f.File.WriteVAt(bufs, off)
}

func (f *hookFile) Truncate(size int64) error {
	defer f.after()
	return f.File.Truncate(size)
}

func (f *hookFile) SyncData() error {
	defer f.after()
	return f.File.SyncData()
}

// crash is what a disk was left with, and what the clients knew then.
type crash struct {
	fs   *memfs.FS
	boot byte
	book book
	what string
}

// TestEveryCrash lets a partition live a long random life, and takes the disk away behind every operation that changes
// something on it, as the end of the process or of the machine would leave it. Each of these disks is opened, and then
// everything that was answered is there, once, at its offset, unless it lies below the log start; the last five batches of
// each producer that was not idle for too long are known; what is in doubt is stored once when it is sent again; and
// the state is what the log alone adds up to.
func TestEveryCrash(t *testing.T) {
	setSegmentBytes(t, 3000)
	first := firstSeed()
	for seed := first; seed < first+uint64(*crashSeeds); seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { everyCrash(t, seed) })
	}
}

func everyCrash(t *testing.T, seed uint64) {
	fs := newHookFS()
	c := newScript(t, fs, seed)
	rng := rand.New(rand.NewPCG(seed, 6))
	var mu sync.Mutex
	var crashes []crash
	operations := 0
	fs.after = func() {
		mu.Lock()
		defer mu.Unlock()
		operations++
		if rng.IntN(8) == 0 {
			fs.WriteBack(50, rng)
		}
		// First the book: what is answered from here on is more than the disk below must hold.
		c.mu.Lock()
		known := c.book.clone()
		c.mu.Unlock()
		if rng.IntN(3) == 0 {
			crashes = append(crashes, crash{fs: fs.KillClone(), boot: c.boot, book: known, what: fmt.Sprint("kill behind operation ", operations)})
			return
		}
		percent := []int{0, 50, 100}[rng.IntN(3)]
		left := fs.CrashClone(percent, rng)
		crashes = append(crashes, crash{fs: left, boot: c.boot + 1, book: known, what: fmt.Sprintf("crash behind operation %d (%d %%)", operations, percent)})
	}
	drain := func() {
		mu.Lock()
		all := crashes
		crashes = nil
		mu.Unlock()
		for _, k := range all {
			k.check(t)
			if t.Failed() {
				t.Fatalf("%s", k.what)
			}
		}
	}
	must(t, c.open())
	for range *crashTurns {
		c.turn()
		drain()
	}
	c.s.settle()
	c.close()
	drain()
	checkRebuilt(t, c.s)
	checkRecording(t, fs, c.s)
	t.Logf("%d operations, %d producers, log from %d to %d, %d segments and %d bases are gone", operations,
		len(c.book.producers), c.s.partition.core.logStart, c.s.partition.core.high, len(fs.gone), len(fs.bases)-len(c.s.files(".base")))
}

// check opens what a crash has left.
func (k crash) check(t *testing.T) {
	t.Helper()
	state, log, err := openLog(k.fs, k.boot, newborn())
	if err != nil {
		t.Errorf("open: %v", err)
		return
	}
	s := newStack(t, k.fs, state, log)
	s.settings = scriptSettings()
	s.start(s.noFatal)
	if err := s.partition.Opened(t.Context()); err != nil {
		t.Errorf("open: %v", err)
		return
	}
	k.book.check(s)
	s.settle()
	if n := s.host.counted(); n != s.partition.Status().Producers {
		t.Errorf("%d producers counted, %d remembered", n, s.partition.Status().Producers)
	}
	s.close()
	checkRebuilt(t, s)
}

// check holds a partition against what its clients know, and lets them send again what is in doubt.
func (b *book) check(s *stack) {
	s.t.Helper()
	st := s.partition.Status()
	if st.LogStart < b.started || st.LogStart > b.startMax {
		s.t.Errorf("log start %d, answered was %d, asked for %d at most", st.LogStart, b.started, b.startMax)
	}
	stored := b.stored(s)
	for _, l := range b.anonymous {
		b.present(s, stored, l)
	}
	for _, id := range slices.Sorted(maps.Keys(b.producers)) {
		p := b.producers[id]
		newest := len(p.lines) - 1
		for newest >= 0 && !s.remembered(p.lines[newest].bytes()) {
			newest--
		}
		for i, l := range p.lines {
			b.present(s, stored, l)
			if i >= p.sure && l.base >= 0 && i > newest {
				s.t.Errorf("producer %d: batch %d was answered and is not known", id, i)
			}
			if inWindow := i >= p.sure && i <= newest && i > newest-5 && l.stamp.Epoch == p.lines[newest].stamp.Epoch; !inWindow {
				continue
			}
			if a := s.produce(l.bytes()); a.Err != nil || a.Decision.Verdict != dedupe.Duplicate || l.base >= 0 && a.Base != l.base {
				s.t.Errorf("producer %d: retry of batch %d, answered with %d: %+v", id, i, l.base, a)
			}
		}
		b.sendAgain(s, p)
	}
	b.stored(s)
}

// sendAgain sends what is in doubt, in order.
func (b *book) sendAgain(s *stack, p *producerBook) {
	s.t.Helper()
	for i, l := range p.lines {
		if l.base >= 0 {
			continue
		}
		a := s.produce(l.bytes())
		if errors.Is(a.Err, ErrTooManyProducers) && i >= 0 {
			return // it goes on later
		}
		if a.Err != nil {
			s.t.Errorf("batch %+v is sent again: %+v", l.stamp, a)
		}
	}
}

// present demands that an answered batch is where the answer said, unless that is below the log start.
func (b *book) present(s *stack, stored map[string]batch.Offset, l line) {
	s.t.Helper()
	if l.base < 0 || l.base < s.partition.Status().LogStart {
		return
	}
	if at, is := stored[l.key]; !is || at != l.base {
		s.t.Errorf("%+v was answered with offset %d; stored: %v at %d", l.stamp, l.base, is, at)
	}
}

// stored reads the whole partition. No two batches are the same, and none is there of which an answer has said that it is
// not.
func (b *book) stored(s *stack) map[string]batch.Offset {
	s.t.Helper()
	at := make(map[string]batch.Offset)
	st := s.partition.Status()
	for from := st.LogStart; from < st.HighWatermark; {
		data, err := s.partition.Read(nil, from, 1<<20, true)
		must(s.t, err)
		for len(data) > 0 {
			h, err := batch.CheckStored(data)
			must(s.t, err)
			if h.BaseOffset > from || h.NextOffset() <= from {
				s.t.Fatalf("batch of offsets %d to %d, want %d", h.BaseOffset, h.NextOffset(), from)
			}
			key := string(data[batch.HeaderSize:h.Size])
			if before, twice := at[key]; twice {
				s.t.Errorf("a batch is stored at %d and at %d", before, h.BaseOffset)
			}
			at[key] = h.BaseOffset
			data, from = data[h.Size:], h.NextOffset()
		}
	}
	for _, key := range b.refused {
		if base, is := at[key]; is {
			s.t.Errorf("a batch that was refused is stored at %d", base)
		}
	}
	return at
}

// checkRecording reads all that was ever in the log from its first entry on, removed segments included: a naive reader of
// it comes to the state that the partition has, and past each base snapshot that there ever was.
func checkRecording(t *testing.T, fs *hookFS, s *stack) {
	t.Helper()
	whole := memfs.New()
	dir := "data/groups/7"
	must(t, whole.MkdirAll(dir))
	for _, name := range s.files(".log") {
		fs.gone[name] = readFile(fs.FS, filepath.Join(dir, name))
	}
	for name, content := range fs.gone {
		file, err := whole.Create(filepath.Join(dir, name))
		must(t, err)
		_, err = file.WriteAt(content, 0)
		must(t, err)
		must(t, file.Close())
	}
	bases := map[seglog.Index]raftlog.Base{}
	for name, content := range fs.bases {
		b, err := raftlog.DecodeBase(name, content)
		must(t, err)
		bases[b.Index] = b
	}
	r := rebuildFrom(t, raftlog.Base{Index: 1, Term: 1, Body: newborn().Body})
	compare := func() {
		if b, is := bases[r.index]; is {
			delete(bases, r.index)
			if d := r.differs(b); d != "" {
				t.Error(d)
			}
		}
	}
	log, _, err := seglog.Open(seglog.Config{FS: whole, Dir: dir, Identity: testIdentity}, seglog.OpenOptions{
		SameBoot: true,
		Visit: func(index seglog.Index, e seglog.Entry, h batch.Header) error {
			compare()
			return r.visit(index, e, h)
		},
	})
	must(t, err)
	compare()
	must(t, log.Close())
	if d := r.differs(s.base()); d != "" {
		t.Error(d)
	}
	if len(bases) > 0 {
		t.Errorf("bases %v stand nowhere in the log", slices.Collect(maps.Keys(bases)))
	}
}

// TestEveryFault lets a partition live a short random life in which one operation on the disk fails, each in turn, and then
// looks at what the process leaves when it ends, and the machine. No batch is lost that was answered, and none is
// stored twice. A disk that has no room for a moment ends nothing.
func TestEveryFault(t *testing.T) {
	setSegmentBytes(t, 3000)
	seed := firstSeed()
	t.Logf("seed %d", seed)
	for _, fault := range []errfs.Injector{
		errfs.EIO, errfs.ENOSPC, errfs.ShortWrite(int(seed%700), syscall.ENOSPC), errfs.ShortWrite(int(seed%700), syscall.EIO),
	} {
		n := 0
		for everyFault(t, seed, n, fault) && !t.Failed() {
			n++
		}
		if n < 100 {
			t.Errorf("only %d operations with %v", n, fault)
		}
	}
}

// atIndex is an OnIndex that tells what it has failed.
type atIndex struct {
	*errfs.Index
	failed atomic.Pointer[errfs.Op]
}

func (i *atIndex) Inject(op errfs.Op) error {
	err := i.Index.Inject(op)
	if err != nil {
		i.failed.Store(&op)
	}
	return err
}

// everyFault fails operation n. It returns false when there are not so many.
func everyFault(t *testing.T, seed uint64, n int, fault errfs.Injector) bool {
	mem := memfs.New()
	at := &atIndex{Index: errfs.OnIndex(n, fault)}
	c := newScript(t, errfs.Wrap(mem, at), seed)
	c.faults = true
	opened := c.open()
	alive := opened == nil
	for k := 0; alive && k < *faultTurns; k++ {
		alive = c.turn()
	}
	if alive {
		c.s.settle()
		c.close()
	}
	op := at.failed.Load()
	if op == nil {
		return false
	}
	what := fmt.Sprintf("seed %d, %v at %+v", seed, at, *op)
	room := strings.Contains(fault.String(), errfs.ENOSPC.String()) && (op.Kind == errfs.OpWrite || op.Kind == errfs.OpCreate)
	if err := c.failure(); err != nil && room {
		t.Errorf("%s: a full disk ends the process: %v", what, err)
	}
	rng := rand.New(rand.NewPCG(seed, uint64(n)))
	for _, k := range []crash{
		{fs: mem.KillClone(), boot: c.boot, book: c.book.clone()},
		{fs: mem.CrashClone([]int{0, 50, 100}[rng.IntN(3)], rng), boot: c.boot + 1, book: c.book.clone()},
	} {
		k.check(t)
		if t.Failed() {
			t.Fatalf("%s, boot %d", what, k.boot)
		}
	}
	return true
}
