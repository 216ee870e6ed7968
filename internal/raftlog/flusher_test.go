package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// sink is a Sink of functions.
type sink struct {
	carried func([]*pb.Message)
	failed  func(error)
}

func (s sink) Carried(responses []*pb.Message, _ []seglog.Index) { s.carried(responses) }
func (s sink) Failed(err error)                                  { s.failed(err) }

func fatalIn(t testing.TB) Events {
	fail := func(err error) { t.Errorf("unexpected: %v", err) }
	return Events{Fatal: fail, Full: fail}
}

// carry is a flush of messages, without a flusher.
func (w *Writer) carry(messages []*pb.Message) error {
	w.flushing = messages
	return w.flush()
}

// A mark never says more than what is on disk, in any order of marker and flushers and over the ends of segments: before
// every operation on a file the marker writes what it has, and the disk is looked at as a machine crash leaves it in
// the worst case, all of the state file there and of the log only what is durable. A mark above the log's end is
// damage, so the log must open, with all that was answered.
func TestMarksNeverRunAhead(t *testing.T) {
	mem := newStateFS(t)
	var f *Flushers
	answered := seglog.Index(1)
	checks := 0
	judge := func(op errfs.Op) {
		if f == nil || !strings.Contains(op.Path, "groups") {
			return
		}
		must(t, f.markers.write())
		must(t, f.state.file.SyncData())
		disk := mem.CrashClone(0, nil)
		state, _ := openState(t, disk, boot2)
		l, _, err := OpenGroup(logConfig(disk, state, 1))
		if err != nil {
			t.Fatalf("before %v: %v", op, err)
		}
		if last := l.segments.LastIndex(); last < answered {
			t.Fatalf("before %v: answered for entry %d, the log ends at %d", op, answered, last)
		}
		must(t, l.Close())
		must(t, state.Close())
		checks++
	}
	fs := errfs.Wrap(mem, hook(judge))
	state, cfg := createState(t, mem), logConfig(fs, nil, 1)
	cfg.State, cfg.SegmentBytes = state, 1500
	must(t, mem.MkdirAll("groups"))
	must(t, mem.SyncDir("/"))
	must(t, CreateGroup(cfg, Base{
		Cluster: cfg.Identity.Cluster, Group: 1, Index: 1, Term: 1,
		Members: Members{Voters: []uint64{uint64(logReplica)}}, Body: []byte("body"),
	}))
	l, _, err := OpenGroup(cfg)
	must(t, err)
	defer l.Close()

	f = &Flushers{state: state, markers: marker{state: state, ends: map[seglog.GroupID]seglog.Floor{}}}
	w := f.NewWriter(l, sink{func(responses []*pb.Message) {
		if n := len(responses); n > 0 {
			answered = seglog.Index(responses[n-1].GetIndex())
		}
	}, func(err error) { t.Error(err) }})
	must(t, w.carry([]*pb.Message{storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil))}))
	rng := rand.New(rand.NewPCG(1, 1))
	next := uint64(3)
	for range 60 {
		var messages []*pb.Message
		for range rng.IntN(3) + 1 {
			var entries []*pb.Entry
			for range rng.IntN(4) {
				payload := strings.Repeat("x", rng.IntN(400))
				entries = append(entries, entry(next, 2, storedBatch(batch.Offset(next-3), 2, payload)))
				next++
			}
			messages = append(messages, storageAppend(0, 0, next-1, entries...))
		}
		if rng.IntN(3) == 0 {
			w.unmarked = markBytes // so that this flush writes its mark itself
		}
		must(t, w.carry(messages))
	}
	if s, _ := state.Group(1); s.Mark.Segment == 2 || checks < 100 {
		t.Fatalf("mark %+v after %d checks", s.Mark, checks)
	}
	f = nil
}

// A group is marked within markInterval, and at once after markBytes; not with every flush.
func TestMarksAreLazy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newStateFS(t)
		state := createState(t, fs)
		l := newLog(t, fs, state, 1)
		f := NewFlushers(1, state, fatalIn(t))
		defer f.Close()
		w := f.NewWriter(l, sink{func([]*pb.Message) {}, func(err error) { t.Error(err) }})
		mark := func(want seglog.Index) {
			t.Helper()
			synctest.Wait()
			if s, _ := state.Group(1); s.Mark.Index != want {
				t.Fatalf("mark %+v, want index %d", s.Mark, want)
			}
		}
		w.Submit(storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
		mark(0)
		w.Submit(storageAppend(0, 0, 3, entry(3, 2, storedBatch(0, 2, "x"))))
		mark(0)
		time.Sleep(markInterval) // virtual
		mark(3)
		w.unmarked = markBytes - 1
		w.Submit(storageAppend(0, 0, 4, entry(4, 2, storedBatch(1, 2, "x"))))
		mark(4)
		w.Submit(storageAppend(0, 0, 5, entry(5, 2, storedBatch(2, 2, "x"))))
		mark(4)
		time.Sleep(2 * markInterval)
		mark(5)
	})
}

// The votes of one flush are one record, the newest, on disk before any answer; a vote that is recorded is not again.
func TestVotesOfOneFlush(t *testing.T) {
	mem := newStateFS(t)
	state := createState(t, mem)
	l := newLog(t, mem, state, 1)
	f := &Flushers{state: state}
	var disk *memfs.FS
	w := f.NewWriter(l, sink{func([]*pb.Message) { disk = mem.CrashClone(0, nil) }, nil})
	must(t, w.carry([]*pb.Message{
		storageAppend(2, 0, 0), storageAppend(2, uint64(logReplica), 0), storageAppend(0, 0, 0), storageAppend(4, 0, 0),
	}))
	onDisk, _ := openState(t, disk, boot1)
	if s, _ := onDisk.Group(1); s.Term != 4 || s.Vote != 0 {
		t.Fatalf("on disk when answered: %+v", s)
	}
	written := state.written
	must(t, w.carry([]*pb.Message{storageAppend(4, 0, 0), storageAppend(0, 0, 0)}))
	if state.written != written {
		t.Fatal("the same vote is recorded again")
	}
	must(t, w.carry([]*pb.Message{storageAppend(4, uint64(logReplica), 0)}))
	onDisk, _ = openState(t, disk, boot1)
	if s, _ := onDisk.Group(1); s.Term != 4 || s.Vote != uint64(logReplica) {
		t.Fatalf("on disk when answered: %+v", s)
	}
}

// When a flush fails, at whichever operation, its group is told, the process is to end, and nothing of the group is
// answered or written any more; the other groups go on.
func TestFailedFlush(t *testing.T) {
	for _, failure := range []string{"state- write", "state- syncdata", ".log write", ".log syncdata", ".idx write"} {
		t.Run(failure, func(t *testing.T) {
			suffix, kind, _ := strings.Cut(failure, " ")
			var failing atomic.Bool
			mem := newStateFS(t)
			fs := errfs.Wrap(mem, injectIf(func(op errfs.Op) bool {
				return failing.Load() && string(op.Kind) == kind && strings.Contains(op.Path, suffix) && !strings.Contains(op.Path, "/b/")
			}))
			state := createState(t, fs)
			l, other := newLog(t, fs, state, 0), newLog(t, fs, state, 1)
			var fatal, failed atomic.Int32
			f := NewFlushers(1, state, Events{Fatal: func(err error) {
				if !errors.Is(err, syscall.EIO) {
					t.Errorf("fatal: %v", err)
				}
				fatal.Add(1)
			}})
			var answers atomic.Int32
			broken := make(chan struct{})
			w := f.NewWriter(l, sink{func([]*pb.Message) { answers.Add(1) }, func(err error) {
				if !errors.Is(err, syscall.EIO) || failed.Add(1) > 1 {
					t.Errorf("failed: %v", err)
				}
				close(broken)
			}})
			failing.Store(true)
			w.Submit(storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
			<-broken
			failing.Store(false)
			w.Submit(storageAppend(0, 0, 3, entry(3, 2, storedBatch(0, 2, "x"))))
			w.Close() // nothing is to be waited for

			if suffix != "state-" { // after a failed write of the state file nobody can vote
				done := make(chan struct{})
				o := f.NewWriter(other, sink{func([]*pb.Message) { close(done) }, func(err error) { t.Errorf("other group: %v", err) }})
				o.Submit(storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
				<-done
			}
			f.Close()
			if answers.Load() != 0 || failed.Load() != 1 || fatal.Load() < 1 {
				t.Fatalf("%d answers, told %d times, fatal %d times", answers.Load(), failed.Load(), fatal.Load())
			}
			if last := l.segments.LastIndex(); last > 2 {
				t.Fatalf("entry %d was written behind the failed one", last)
			}
		})
	}
}

// injectIf fails the operations that it picks.
type injectIf func(errfs.Op) bool

func (i injectIf) Inject(op errfs.Op) error {
	if i(op) {
		return syscall.EIO
	}
	return nil
}
func (i injectIf) String() string { return "if" }

// Close of a writer waits for its group, and for no other.
func TestWriterCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newStateFS(t)
		state := createState(t, mem)
		gate := make(chan struct{})
		var closed atomic.Bool
		fs := errfs.Wrap(mem, hook(func(op errfs.Op) {
			if closed.Load() && op.Kind == errfs.OpSyncData && strings.Contains(op.Path, "/a/") {
				<-gate
			}
		}))
		f := NewFlushers(2, state, fatalIn(t))
		slow, fast := newLog(t, fs, state, 0), newLog(t, fs, state, 1)
		closed.Store(true)
		none := sink{func([]*pb.Message) {}, nil}
		held, other := f.NewWriter(slow, none), f.NewWriter(fast, none)
		held.Close() // nothing was submitted
		held.Submit(storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
		synctest.Wait()
		held.Submit(storageAppend(0, 0, 3, entry(3, 2, storedBatch(0, 2, "behind it"))))
		other.Submit(storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
		other.Close()
		if last := fast.segments.LastIndex(); last != 2 {
			t.Fatalf("the other log ends at %d after its writer's close", last)
		}
		var all sync.WaitGroup
		var over atomic.Bool
		all.Go(func() { held.Close(); over.Store(true) })
		synctest.Wait()
		if over.Load() {
			t.Fatal("closed while a flusher works")
		}
		close(gate)
		all.Wait()
		if last := slow.segments.LastIndex(); last != 3 {
			t.Fatalf("the log ends at %d after its writer's close", last)
		}
		f.Close()
	})
}

// An entry of a removed directory is never deleted for want of a record: what a cut-off birth leaves behind has none.
func TestNothingWithEntriesIsMadeAnew(t *testing.T) {
	fs := newStateFS(t)
	state := createState(t, fs)
	l := newLog(t, fs, state, 1)
	empty, err := fs.Open("groups/b/00000000000000000002.log")
	must(t, err)
	if size, err := empty.Size(); err != nil || size != unusedBytesMax {
		t.Fatalf("a segment without entries has %d bytes, %v", size, err)
	}
	header := make([]byte, unusedBytesMax)
	_, err = empty.ReadAt(header, 0)
	must(t, err)
	if previous := binary.BigEndian.Uint32(header[12:]); previous != uint32(l.base.Term) {
		t.Fatalf("the segment follows term %d, the base has term %d", previous, l.base.Term)
	}
	must(t, empty.Close())
	flushOne(t, state, l, storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
	bug(t, "a second birth", func() { _ = CreateGroup(logConfig(fs, state, 1), l.base) })
	must(t, l.Close())
	l, _, err = OpenGroup(logConfig(fs, state, 1))
	must(t, err)
	if last := l.segments.LastIndex(); last != 2 {
		t.Fatalf("after a second birth the log ends at %d", last)
	}
	must(t, l.Close())
	must(t, state.Close())
	must(t, fs.Remove(stateDir+"/"+stateName(1))) // as an older copy that knows nothing of the group would
	state = createState(t, fs)
	before, err := fs.List("groups/b")
	must(t, err)
	err = CreateGroup(logConfig(fs, state, 1), l.base)
	damage, ok := errors.AsType[*seglog.DamageError](err)
	if !ok || !strings.Contains(damage.File, "groups/b/") {
		t.Fatalf("a group with entries is made anew: %v", err)
	}
	if after, _ := fs.List("groups/b"); len(after) != len(before) {
		t.Fatalf("files were %v, are %v", before, after)
	}
}

// A term is a leader epoch of Kafka's, a signed number of 32 bits: the last one is not passed.
func TestTermsEnd(t *testing.T) {
	fs := newStateFS(t)
	state := createState(t, fs)
	must(t, newLog(t, fs, state, 1).Close())
	for _, term := range []uint64{1<<31 - 2, 1<<31 - 1, 1 << 32} {
		_, err := state.SetVote(1, term, uint64(logReplica))
		must(t, err)
		l, _, err := OpenGroup(logConfig(fs, state, 1))
		_, refused := errors.AsType[*seglog.DamageError](err)
		if want := term >= 1<<31-1; refused != want {
			t.Fatalf("term %d: %v", term, err)
		}
		if err == nil {
			must(t, l.Close())
		}
	}
}

// The machine goes down before each operation of a birth: then the group is born whole, or is made anew.
func TestBirthEveryCrash(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 3))
		mem := newStateFS(t)
		must(t, mem.MkdirAll("groups"))
		must(t, mem.SyncDir("/"))
		state := createState(t, mem)
		base := Base{
			Cluster: [16]byte{1}, Group: 1, Index: 1, Term: 1,
			Members: Members{Voters: []uint64{uint64(logReplica)}}, Body: []byte("body"),
		}
		ended := false
		judge := func(op errfs.Op) {
			disk := mem.CrashClone(int(seed%5)*25, rng)
			state, _ := openState(t, disk, boot2)
			cfg := logConfig(disk, state, 1)
			_, born := state.Group(1)
			if ended && !born {
				t.Fatalf("seed %d: the birth has ended and is lost", seed)
			}
			if !born {
				if err := CreateGroup(cfg, base); err != nil {
					t.Fatalf("seed %d, before %v: %v", seed, op, err)
				}
			}
			l, _, err := OpenGroup(cfg)
			if err != nil {
				t.Fatalf("seed %d, before %v, born: %v: %v", seed, op, born, err)
			}
			must(t, l.Close())
			must(t, state.Close())
		}
		fs := errfs.Wrap(mem, hook(judge))
		state.fs = fs
		must(t, CreateGroup(logConfig(fs, state, 1), base))
		ended = true
		judge(errfs.Op{Path: "the end"})
		must(t, state.Close())
	}
}

// Close carries out what waits, also that of a group to which no flusher has come yet.
func TestFlushersCloseCarriesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newStateFS(t)
		state := createState(t, mem)
		gate := make(chan struct{})
		var shut atomic.Bool
		fs := errfs.Wrap(mem, hook(func(op errfs.Op) {
			if shut.Load() && op.Kind == errfs.OpSyncData && strings.Contains(op.Path, "/a/") {
				<-gate
			}
		}))
		f := NewFlushers(1, state, fatalIn(t))
		first, second := newLog(t, fs, state, 0), newLog(t, fs, state, 1)
		shut.Store(true)
		var answers atomic.Int32
		for _, l := range []*Log{first, second} {
			f.NewWriter(l, sink{func([]*pb.Message) { answers.Add(1) }, nil}).Submit(storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
			synctest.Wait()
		}
		var all sync.WaitGroup
		all.Go(f.Close)
		synctest.Wait()
		close(gate)
		all.Wait()
		if answers.Load() != 2 {
			t.Fatalf("%d of 2 answered at the end", answers.Load())
		}
	})
}

// A mark that cannot be written ends the process like any other write: the state file is of no use any more.
func TestFailedMarkIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failing atomic.Bool
		fs := errfs.Wrap(newStateFS(t), injectIf(func(op errfs.Op) bool { return failing.Load() && op.Kind == errfs.OpWrite }))
		state := createState(t, fs)
		l := newLog(t, fs, state, 1)
		var fatal atomic.Int32
		f := NewFlushers(1, state, Events{Fatal: func(err error) {
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("fatal: %v", err)
			}
			fatal.Add(1)
		}})
		defer f.Close()
		w := f.NewWriter(l, sink{func([]*pb.Message) {}, func(err error) { t.Error(err) }})
		w.Submit(storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
		w.Close()
		failing.Store(true)
		time.Sleep(2 * markInterval) // virtual
		if fatal.Load() != 1 {
			t.Fatalf("fatal %d times", fatal.Load())
		}
	})
}

// threeEntries makes a group whose log holds an empty entry and two batches, without a durable mark.
func threeEntries(t *testing.T, fs *memfs.FS, state *StateFile) {
	t.Helper()
	l := newLog(t, fs, state, 1)
	_, err := state.SetVote(1, 2, uint64(logReplica))
	must(t, err)
	must(t, l.segments.Append([]seglog.Entry{
		{Kind: seglog.KindEmpty, Version: 1, Term: 2},
		{Kind: seglog.KindBatch, Term: 2, Data: storedBatch(0, 2, "first")},
		{Kind: seglog.KindBatch, Term: 2, Data: storedBatch(1, 2, "second")},
	}))
	must(t, l.segments.Sync())
	must(t, l.Close())
}

// What the node knows of a log is what decides about a bad entry: below the durable mark it is damage; above it, after
// the machine went down, the log ends there; and when only the process ended, valid entries behind it are damage.
func TestMarkAndBootDecide(t *testing.T) {
	for _, c := range []struct {
		marked, sameBoot, damage bool
	}{{false, false, false}, {false, true, true}, {true, false, true}, {true, true, true}} {
		fs := newStateFS(t)
		state := createState(t, fs)
		threeEntries(t, fs, state)
		file, err := fs.Open("groups/b/00000000000000000002.log")
		must(t, err)
		size, err := file.Size()
		must(t, err)
		if c.marked {
			_, err := state.SetMark(1, seglog.Floor{Index: 4, Segment: 2, Position: uint32(size)})
			must(t, err)
		}
		second := int64(len(storedBatch(1, 2, "second")))
		_, err = file.WriteAt([]byte{'F'}, size-second-5) // of "first"
		must(t, err)
		must(t, file.Close())
		cfg := logConfig(fs, state, 1)
		cfg.SameBoot = c.sameBoot
		l, report, err := OpenGroup(cfg)
		if _, damage := errors.AsType[*seglog.DamageError](err); damage != c.damage {
			t.Errorf("%+v: %v", c, err)
		}
		if err == nil {
			if report.Entries != 1 || l.segments.LastIndex() != 2 {
				t.Errorf("%+v: %+v", c, report)
			}
			must(t, l.Close())
		}
	}
}

// The newest base snapshot is where a restart begins: what lies before it is not applied again, although the log still
// has it. A recorded commit index is Raft's at the start.
func TestNewestBaseCounts(t *testing.T) {
	fs := newStateFS(t)
	state := createState(t, fs)
	l := newLog(t, fs, state, 1)
	_, err := state.SetVote(1, 2, uint64(logReplica))
	must(t, err)
	must(t, l.segments.Append([]seglog.Entry{
		{Kind: seglog.KindEmpty, Version: 1, Term: 2},
		{Kind: seglog.KindBatch, Term: 2, Data: storedBatch(0, 2, "first")},
	}))
	must(t, l.segments.Roll())
	must(t, l.segments.Append([]seglog.Entry{{Kind: seglog.KindBatch, Term: 2, Data: storedBatch(1, 2, "second")}}))
	must(t, l.segments.Sync())
	cfg := logConfig(fs, state, 1)
	must(t, l.AddBase(Base{
		Cluster: cfg.Identity.Cluster, Group: 1, Index: 3, Term: 2, NextOffset: 1,
		Members: Members{Voters: []uint64{uint64(logReplica)}}, Body: []byte("later"),
	}))
	must(t, l.Close())
	for _, commit := range []seglog.Index{3, 4} {
		_, err := state.SetCommit(1, commit-1) // the first lies before the base
		must(t, err)
		_, err = state.SetCommit(1, commit)
		must(t, err)
		l, _, err := OpenGroup(cfg)
		must(t, err)
		hard, _, _ := l.InitialState()
		if string(l.Base().Body) != "later" || hard.GetCommit() != uint64(commit) {
			t.Errorf("base %+v, %v", l.Base(), hard)
		}
		if first, _ := l.FirstIndex(); first != 2 {
			t.Errorf("first index %d", first)
		}
		if term, err := l.Term(3); err != nil || term != 2 {
			t.Errorf("term of the base: %d, %v", term, err)
		}
		l.BeginReady()
		if got, err := l.Entries(4, 5, 1<<20); err != nil || len(got) != 1 || got[0].GetIndex() != 4 {
			t.Errorf("to apply: %v, %v", got, err)
		}
		l.EndReady()
		l.Applied(4)
		must(t, l.Close())
	}
}

// As many entries as fit into a size, to the byte, and one at least; what is handed out is the caller's to keep.
func TestEntriesFitIntoTheSize(t *testing.T) {
	fs := newStateFS(t)
	state := createState(t, fs)
	threeEntries(t, fs, state)
	l, _, err := OpenGroup(logConfig(fs, state, 1))
	must(t, err)
	defer l.Close()
	for _, ready := range []bool{false, true} {
		l.inReady = ready
		all, err := l.Entries(2, 5, 1<<20)
		must(t, err)
		size := uint64(0)
		for n, e := range all {
			size += uint64(proto.Size(e))
			for less, want := range []int{n + 1, max(n, 1)} {
				if got, err := l.Entries(2, 5, size-uint64(less)); err != nil || len(got) != want {
					t.Errorf("ready %v: %d entries in %d bytes, want %d, %v", ready, len(got), size-uint64(less), want, err)
				}
			}
		}
		all[0] = nil
		if again, _ := l.Entries(2, 5, 1<<20); again[0] == nil {
			t.Errorf("ready %v: the slice is not the caller's", ready)
		}
	}
	l.inReady = false
}

// The first byte of a command is agreed between nodes, and whatever is neither a command nor a batch does not get into a
// log.
func TestFormsOfEntries(t *testing.T) {
	if got := EncodeCommand(seglog.KindClock, []byte{5}); !bytes.Equal(got, []byte{0xff, 17, 0, 1, 5}) {
		t.Errorf("command %x", got)
	}
	high := storedBatch(0, 2, "x")
	high[0] = 0x80
	for name, data := range map[string][]byte{"short": make([]byte, batch.HeaderSize-1), "negative offset": high} {
		bug(t, name, func() { toLog(entry(2, 2, data)) })
	}
}
