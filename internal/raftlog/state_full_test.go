package raftlog

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// Each write of a script finds no room, at some byte. The call says so and can be repeated; what a kill or a crash leaves at
// that moment has all that was promised; and in the end nothing is missing and nothing is there twice.
func TestStateFullAtEveryWrite(t *testing.T) {
	for _, room := range []int{0, 1, 31, 60, 500} {
		for n := 1; ; n++ { // without the first one nothing begins
			injector := errfs.OnIndex(n, errfs.ShortWrite(room, syscall.ENOSPC))
			stateOnFullDisk(t, errfs.On(errfs.OpWrite, injector), n == 7)
			if !injector.Reached() {
				if n < 25 {
					t.Fatalf("only %d writes", n)
				}
				break
			}
		}
	}
}

func stateOnFullDisk(t *testing.T, injector errfs.Injector, rewrites bool) {
	t.Helper()
	mem := newStateFS(t)
	c := newStateScript(9)
	c.full = func(err error) {
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), stateDir) {
			t.Fatalf("%s: error %v", injector, err)
		}
		if c.promised > 0 {
			c.checkCrash(t, mem.KillClone(), boot1, len(c.history)-2)
			c.checkCrash(t, mem.CrashClone(100, nil), boot2, c.promised)
			c.checkCrash(t, mem.CrashClone(50, c.luck), boot2, c.promised)
		}
	}
	c.state = createState(t, errfs.Wrap(mem, injector))
	for err := c.state.Birth(0, 70, 1); err != nil; err = c.state.record() {
		c.full(err)
	}
	c.history = append(c.history, c.groups())
	c.promised = 1
	for i := range 30 {
		must(t, c.step())
		if i == 15 && rewrites {
			c.state.mu.Lock()
			c.state.rewrite()
			c.state.mu.Unlock()
		}
	}
	must(t, c.state.Close())
	s, report := openState(t, mem, boot1)
	if report.CutBytes != 0 || !maps.Equal(stateGroups(s), c.history[len(c.history)-1]) {
		t.Fatalf("%s: %+v, %v", injector, report, stateGroups(s))
	}
}

// There is no room for a second file. The old one goes on, nothing of the attempt is left, and the next attempts wait until the
// file has grown; with room it is rewritten.
func TestNoRoomForRewriting(t *testing.T) {
	mem := newStateFS(t)
	s := createState(t, mem)
	must(t, s.Birth(1, 70, 1))
	attempts := 0
	s.fs = errfs.Wrap(mem, hook(func(op errfs.Op) {
		if op.Kind == errfs.OpCreate {
			attempts++
		}
	}))
	next := seglog.Index(2)
	grow := func(until func() bool) {
		for ; !until(); next++ {
			mem.SetCapacity((s.end + recordSize(recordMark) + 4095) / 4096 * 4096) // enough for this record
			_, err := s.SetMark(1, seglog.Floor{Index: next, Segment: 2})
			must(t, err)
		}
	}
	grow(func() bool { return attempts == 1 })
	size := s.end
	if size < stateRewriteMin || s.generation != 1 {
		t.Fatalf("generation %d, %d bytes", s.generation, size)
	}
	names, err := mem.List(stateDir)
	must(t, err)
	if !slices.Equal(names, []string{stateName(1)}) {
		t.Fatalf("left: %v", names)
	}
	grow(func() bool { return attempts == 2 })
	if grown := s.end - size; grown < stateRewriteMin || s.generation != 1 {
		t.Fatalf("the second attempt after %d bytes, generation %d", grown, s.generation)
	}
	must(t, s.Sync(StatePosition(s.written)))
	mem.SetCapacity(0)
	for s.generation == 1 {
		_, err := s.SetMark(1, seglog.Floor{Index: next, Segment: 2})
		must(t, err)
		next++
	}
	if attempts != 3 || s.postponed != 0 {
		t.Fatalf("%d attempts, the next one from %d bytes on", attempts, s.postponed)
	}
	must(t, s.Close())
	s, _ = openState(t, mem, boot1)
	wantGroup(t, s, 1, GroupState{Replica: 70, Live: true, Term: 1, Mark: seglog.Floor{Index: next - 1, Segment: 2}})
}

// A record that a full disk has not let in is completed by whoever writes next, of any group, and before that in any case.
func TestUnfinishedRecordComesFirst(t *testing.T) {
	mem := newStateFS(t)
	failing := true
	full := injectEachIf(func(op errfs.Op) error {
		if failing && op.Kind == errfs.OpWrite && op.Off > 0 {
			return syscall.EDQUOT
		}
		return nil
	})
	s := createState(t, errfs.Wrap(mem, full))
	if err := s.Birth(1, 70, 1); !errors.Is(err, ErrFull) {
		t.Fatalf("birth on a full disk: %v", err)
	}
	if _, err := s.SetVote(1, 2, 70); !errors.Is(err, ErrFull) {
		t.Fatalf("vote on a full disk: %v", err)
	}
	wantGroup(t, s, 1, GroupState{Replica: 70, Live: true, Term: 1}) // the vote was refused
	failing = false
	must(t, s.Birth(2, 71, 1))
	crashed, _ := openState(t, mem.CrashClone(0, nil), boot2)
	wantGroup(t, crashed, 1, GroupState{Replica: 70, Live: true, Term: 1})
	wantGroup(t, crashed, 2, GroupState{Replica: 71, Live: true, Term: 1})
}

// Rewriting the file takes along what a full disk has not let in, and that is not written once more.
func TestRewritingTakesUnfinishedRecordsAlong(t *testing.T) {
	mem := newStateFS(t)
	failing := false
	s := createState(t, errfs.Wrap(mem, injectEachIf(func(op errfs.Op) error {
		if failing && op.Kind == errfs.OpWrite && op.Off > 0 {
			return syscall.ENOSPC
		}
		return nil
	})))
	must(t, s.Birth(1, 70, 1))
	failing = true
	if _, err := s.SetVote(1, 2, 70); !errors.Is(err, ErrFull) {
		t.Fatalf("vote on a full disk: %v", err)
	}
	s.rewrite() // there is room for a file
	must(t, s.err)
	failing = false
	must(t, s.Birth(2, 71, 1))
	must(t, s.Close())
	s, report := openState(t, mem, boot1)
	if report.CutBytes > 0 {
		t.Fatalf("report %+v", report)
	}
	wantGroup(t, s, 1, GroupState{Replica: 70, Live: true, Term: 2, Vote: 70})
	wantGroup(t, s, 2, GroupState{Replica: 71, Live: true, Term: 1})
}

// A mark that comes while older ones are being refused is not overwritten by them.
func TestNewerMarkStays(t *testing.T) {
	mem := newStateFS(t)
	full := true
	m := marker{ends: map[seglog.GroupID]seglog.Floor{}, first: make(chan struct{}, 1)}
	m.state = createState(t, errfs.Wrap(mem, injectEachIf(func(op errfs.Op) error {
		if op.Kind != errfs.OpWrite || op.Off < 500 || !full {
			return nil
		}
		m.later(2, seglog.Floor{Index: 9, Segment: 2, Position: 900})
		return syscall.ENOSPC
	})))
	for g := range seglog.GroupID(3) {
		must(t, m.state.Birth(g, 70, 1))
	}
	for g := range seglog.GroupID(3) {
		m.later(g, seglog.Floor{Index: 5, Segment: 2, Position: 500})
	}
	must(t, m.write())
	full = false
	must(t, m.write())
	for g, want := range []seglog.Index{5, 5, 9} {
		if s, _ := m.state.Group(seglog.GroupID(g)); s.Mark.Index != want {
			t.Errorf("group %d: mark %+v", g, s.Mark)
		}
	}
}

// injectEachIf fails operations with the error that it returns.
type injectEachIf func(errfs.Op) error

func (i injectEachIf) Inject(op errfs.Op) error { return i(op) }
func (i injectEachIf) String() string           { return "each if" }

// Closing on a full disk ends; what was promised to nobody is not there afterwards.
func TestCloseOnFullDisk(t *testing.T) {
	mem := newStateFS(t)
	s := createState(t, mem)
	must(t, s.Birth(1, 70, 1))
	var err error
	s.file, err = errfs.Wrap(mem, errfs.On(errfs.OpWrite, errfs.ShortWrite(20, syscall.ENOSPC))).Open(s.name)
	must(t, err)
	if _, err := s.SetVote(1, 2, 70); !errors.Is(err, ErrFull) {
		t.Fatalf("vote: %v", err)
	}
	must(t, s.Close())
	s, report := openState(t, mem, boot1)
	if report.CutBytes == 0 {
		t.Fatal("the part that was written is gone by itself")
	}
	wantGroup(t, s, 1, GroupState{Replica: 70, Live: true, Term: 1})
}

// Marks wait until there is room; nothing ends for want of it.
func TestMarksOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newStateFS(t)
		var full atomic.Bool
		fs := errfs.Wrap(mem, injectEachIf(func(op errfs.Op) error {
			if full.Load() && op.Kind == errfs.OpWrite && strings.Contains(op.Path, statePrefix) {
				return syscall.ENOSPC
			}
			return nil
		}))
		state := createState(t, fs)
		f := NewFlushers(1, state, fatalIn(t))
		defer f.Close()
		var writers []*Writer
		for g := range seglog.GroupID(3) {
			w := f.NewWriter(newLog(t, fs, state, g), sink{func([]*pb.Message) {}, func(err error) { t.Error(err) }})
			w.Submit(storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
			writers = append(writers, w)
		}
		synctest.Wait()
		full.Store(true)
		writers[0].Submit(storageAppend(0, 0, 3, entry(3, 2, storedBatch(0, 2, "x"))))
		synctest.Wait()
		writers[1].unmarked = markBytes // this one writes its mark with the flush
		writers[1].Submit(storageAppend(0, 0, 3, entry(3, 2, storedBatch(0, 2, "x"))))
		time.Sleep(10 * markInterval) // virtual
		full.Store(false)
		time.Sleep(2 * markInterval)
		synctest.Wait()
		for g, want := range []seglog.Index{3, 3, 2} {
			if s, _ := state.Group(seglog.GroupID(g)); s.Mark.Index != want {
				t.Errorf("group %d: mark %+v", g, s.Mark)
			}
		}
	})
}

// ReadState sees what OpenState would see, and leaves a torn tail, older generations and unfinished ones as they are.
func TestReadState(t *testing.T) {
	mem := newStateFS(t)
	s := createState(t, mem)
	must(t, s.Birth(1, 70, 1))
	s.rewrite()
	must(t, s.record(stateRecord{recordType: recordIntent, group: 1, intent: intentDelete}))
	end := s.end
	_, err := s.SetVote(1, 2, 70)
	must(t, err)
	must(t, s.Close())
	f, err := mem.Open(s.name)
	must(t, err)
	must(t, f.Truncate(end+40))
	must(t, f.Close())
	for _, name := range []string{stateName(1), stateName(3) + temporarySuffix} {
		f, err := mem.Create(stateDir + "/" + name)
		must(t, err)
		must(t, f.Close())
	}
	before := fmt.Sprint(filesOf(t, mem, stateDir))
	r, report, err := ReadState(errfs.Wrap(mem, readOnly{t}), stateDir, boot1)
	must(t, err)
	if !report.SameBoot || report.CutBytes == 0 || r.Node() != testNode || !slices.Equal(r.Deleting(), []seglog.GroupID{1}) {
		t.Fatalf("report %+v, node %+v, deleting %v", report, r.Node(), r.Deleting())
	}
	wantGroup(t, r, 1, GroupState{Replica: 70, Live: true, Term: 1})
	if _, err := r.SetVote(1, 2, 70); !errors.Is(err, errStateReadOnly) {
		t.Fatalf("vote: %v", err)
	}
	must(t, r.Close())
	if after := fmt.Sprint(filesOf(t, mem, stateDir)); after != before {
		t.Fatal("reading changed files")
	}
	if _, _, err := ReadState(mem, "/nowhere", boot1); !errors.Is(err, ErrNoState) {
		t.Fatalf("no directory: %v", err)
	}
}

// readOnly fails a test in which a file is changed.
type readOnly struct{ t testing.TB }

func (r readOnly) Inject(op errfs.Op) error {
	switch op.Kind {
	case errfs.OpOpen, errfs.OpRead, errfs.OpSize, errfs.OpList, errfs.OpClose:
	default:
		r.t.Errorf("%v while only reading", op)
	}
	return nil
}
func (r readOnly) String() string { return "read only" }

// filesOf returns the content of all files of a directory.
func filesOf(t testing.TB, mem *memfs.FS, dir string) map[string]string {
	t.Helper()
	names, err := mem.List(dir)
	must(t, err)
	files := map[string]string{}
	for _, name := range names {
		f, err := mem.Open(dir + "/" + name)
		must(t, err)
		size, err := f.Size()
		must(t, err)
		b := make([]byte, size)
		if n, err := f.ReadAt(b, 0); n < len(b) {
			t.Fatal(err)
		}
		must(t, f.Close())
		files[name] = string(b)
	}
	return files
}
