package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

const logReplica = seglog.ReplicaID(1<<32 | 1)

func logConfig(fs vfs.FS, state *StateFile, group seglog.GroupID) Config {
	return Config{
		FS: fs, Dir: "groups/" + string(rune('a'+group)), State: state, SameBoot: true,
		Identity: seglog.Identity{Cluster: [16]byte{1}, Group: group, Replica: logReplica},
	}
}

// newLog makes and opens a group.
func newLog(t testing.TB, fs vfs.FS, state *StateFile, group seglog.GroupID) *Log {
	t.Helper()
	cfg := logConfig(fs, state, group)
	must(t, fs.MkdirAll("groups"))
	must(t, CreateGroup(cfg, Base{
		Cluster: cfg.Identity.Cluster, Group: group, Index: 1, Term: 1,
		Members: Members{Voters: []uint64{uint64(logReplica)}}, Body: []byte("body"),
	}))
	l, _, err := OpenGroup(cfg)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// storedBatch is a batch with a place, of one record.
func storedBatch(base batch.Offset, term batch.Term, payload string) []byte {
	b := append(make([]byte, batch.HeaderSize), payload...)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	b[16] = 2
	binary.BigEndian.PutUint64(b[43:], ^uint64(0))
	binary.BigEndian.PutUint16(b[51:], ^uint16(0))
	binary.BigEndian.PutUint32(b[53:], ^uint32(0))
	binary.BigEndian.PutUint32(b[57:], 1)
	batch.SetPlace(b, base, term)
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func entry(index, term uint64, data []byte) *pb.Entry {
	return &pb.Entry{Type: pb.EntryNormal.Enum(), Index: new(index), Term: new(term), Data: data}
}

// storageAppend is a MsgStorageAppend as Raft makes it, answered by a response with the given index.
func storageAppend(term, vote, answer uint64, entries ...*pb.Entry) *pb.Message {
	m := &pb.Message{Type: pb.MsgStorageAppend.Enum(), Entries: entries}
	if term > 0 {
		m.Term, m.Vote, m.Commit = new(term), new(vote), new(uint64(1))
	}
	m.Responses = []*pb.Message{{Type: pb.MsgStorageAppendResp.Enum(), Index: new(answer)}}
	return m
}

func TestEntriesKeepTheirForm(t *testing.T) {
	for name, e := range map[string]*pb.Entry{
		"empty":          entry(2, 3, nil),
		"batch":          entry(2, 3, storedBatch(5, 3, "payload")),
		"command":        entry(2, 3, EncodeCommand(seglog.KindClock, []byte{1, 2, 3})),
		"newer command":  entry(2, 3, []byte{0xff, 17, 0, 7, 1}),
		"empty command":  entry(2, 3, EncodeCommand(seglog.KindMarkEverything, nil)),
		"conf change":    {Type: pb.EntryConfChange.Enum(), Index: new(uint64(2)), Term: new(uint64(3)), Data: []byte{9}},
		"conf change v2": {Type: pb.EntryConfChangeV2.Enum(), Index: new(uint64(2)), Term: new(uint64(3)), Data: []byte{}},
	} {
		if back := fromLog(2, toLog(e)); !proto.Equal(back, e) && !(len(e.Data) == 0 && len(back.Data) == 0) {
			t.Errorf("%s: %v came back as %v", name, e, back)
		}
	}
}

func TestStorageBoundsAndTerms(t *testing.T) {
	fs := newStateFS(t)
	l := newLog(t, fs, createState(t, fs), 1)
	must(t, l.segments.Append([]seglog.Entry{
		{Kind: seglog.KindEmpty, Version: 1, Term: 2},
		{Kind: seglog.KindBatch, Term: 2, Data: storedBatch(0, 2, "first")},
		{Kind: seglog.KindBatch, Term: 2, Data: storedBatch(1, 2, "second")},
	}))
	if first, _ := l.FirstIndex(); first != 2 {
		t.Errorf("first index %d", first)
	}
	if last, _ := l.LastIndex(); last != 4 {
		t.Errorf("last index %d", last)
	}
	for index, want := range map[uint64]uint64{1: 1, 2: 2, 4: 2} {
		if term, err := l.Term(index); err != nil || term != want {
			t.Errorf("term of %d: %d, %v", index, term, err)
		}
	}
	if _, err := l.Term(0); err != raft.ErrCompacted {
		t.Errorf("term before the base: %v", err)
	}
	if _, err := l.Term(5); err != raft.ErrUnavailable {
		t.Errorf("term behind the end: %v", err)
	}
	if _, err := l.Entries(1, 3, 100); err != raft.ErrCompacted {
		t.Errorf("entries before the base: %v", err)
	}
	if _, err := l.Entries(2, 6, 100); err != raft.ErrUnavailable {
		t.Errorf("entries behind the end: %v", err)
	}
	whole, err := l.Entries(2, 5, 1<<20)
	must(t, err)
	if len(whole) != 3 || !bytes.HasSuffix(whole[2].Data, []byte("second")) {
		t.Errorf("entries %v", whole)
	}
	if one, err := l.Entries(3, 5, 0); err != nil || len(one) != 1 {
		t.Errorf("at least one entry: %v, %v", one, err)
	}
	snapshot, err := l.Snapshot()
	must(t, err)
	base, err := DecodeBase("snapshot", snapshot.GetData())
	if err != nil || snapshot.GetMetadata().GetIndex() != 1 || base.Index != 1 || string(base.Body) != "body" {
		t.Errorf("snapshot %v, %v", snapshot, err)
	}
}

// Inside Ready a batch is its header, everything else is whole, and no file is read.
func TestStubsInsideReady(t *testing.T) {
	mem := newStateFS(t)
	var reads atomic.Int64
	fs := errfs.Wrap(mem, errfs.On(errfs.OpRead, hook(func(errfs.Op) { reads.Add(1) })))
	state := createState(t, fs)
	l := newLog(t, fs, state, 1)
	command := EncodeCommand(seglog.KindClock, make([]byte, 8))
	entries := []*pb.Entry{entry(2, 2, nil), entry(3, 2, command), entry(4, 2, storedBatch(0, 2, "payload")), entry(5, 2, storedBatch(1, 2, "more"))}
	l.Staged(entries)
	flushOne(t, state, l, storageAppend(2, uint64(logReplica), 5, entries...))

	check := func(l *Log) {
		t.Helper()
		before := reads.Load()
		l.BeginReady()
		got, err := l.Entries(2, 6, 1<<20)
		l.EndReady()
		must(t, err)
		if len(got) != 4 || len(got[2].Data) != batch.HeaderSize || len(got[3].Data) != batch.HeaderSize || !bytes.Equal(got[1].Data, command) || len(got[0].Data) != 0 {
			t.Fatalf("stubs %v", got)
		}
		if n := reads.Load() - before; n != 0 {
			t.Fatalf("%d reads inside Ready", n)
		}
		l.Applied(4)
		l.BeginReady()
		got, err = l.Entries(5, 6, 0)
		l.EndReady()
		if err != nil || len(got) != 1 || got[0].GetIndex() != 5 {
			t.Fatalf("stubs %v, %v", got, err)
		}
		bug(t, "an applied entry inside Ready", func() { l.BeginReady(); defer l.EndReady(); _, _ = l.Entries(4, 6, 100) })
	}
	check(l)
	must(t, l.Close())
	l, report, err := OpenGroup(logConfig(fs, state, 1))
	must(t, err)
	defer l.Close()
	if report.Entries != 4 {
		t.Fatalf("report %+v", report)
	}
	check(l)
}

// flushOne carries out one message and waits for its responses.
func flushOne(t testing.TB, state *StateFile, l *Log, m *pb.Message) {
	t.Helper()
	f := NewFlushers(1, state, fatalIn(t))
	defer f.Close()
	done := make(chan struct{})
	f.NewWriter(l, sink{func([]*pb.Message) { close(done) }, func(err error) { t.Errorf("failed: %v", err) }}).Submit(m)
	<-done
}

func TestHardStateComesBack(t *testing.T) {
	fs := newStateFS(t)
	state := createState(t, fs)
	l := newLog(t, fs, state, 1)
	hard, conf, err := l.InitialState()
	must(t, err)
	if hard.GetTerm() != 1 || hard.GetVote() != 0 || hard.GetCommit() != 1 || !slices.Equal(conf.Voters, []uint64{uint64(logReplica)}) {
		t.Fatalf("at birth: %v %v", hard, conf)
	}
	flushOne(t, state, l, storageAppend(2, uint64(logReplica), 0))
	must(t, l.Close())
	l, _, err = OpenGroup(logConfig(fs, state, 1))
	must(t, err)
	defer l.Close()
	if hard, _, _ := l.InitialState(); hard.GetTerm() != 2 || hard.GetVote() != uint64(logReplica) {
		t.Fatalf("after a vote: %v", hard)
	}
}

func TestLostVoteIsDamage(t *testing.T) {
	fs := newStateFS(t)
	state := createState(t, fs)
	l := newLog(t, fs, state, 1)
	must(t, l.segments.Append([]seglog.Entry{{Kind: seglog.KindEmpty, Version: 1, Term: 2}}))
	must(t, l.segments.Sync())
	must(t, l.Close())
	_, _, err := OpenGroup(logConfig(fs, state, 1))
	if _, ok := errors.AsType[*seglog.DamageError](err); !ok {
		t.Fatalf("a log of term 2 with a state file at term 1: %v", err)
	}
}

func TestCommittedBeyondTheEndIsDamage(t *testing.T) {
	fs := newStateFS(t)
	state := createState(t, fs)
	l := newLog(t, fs, state, 1)
	must(t, l.Close())
	_, err := state.SetCommit(1, 7)
	must(t, err)
	_, _, err = OpenGroup(logConfig(fs, state, 1))
	if _, ok := errors.AsType[*seglog.DamageError](err); !ok {
		t.Fatalf("commit 7 in an empty log: %v", err)
	}
}

func TestUnbornDirectoryIsMadeAnew(t *testing.T) {
	fs := newStateFS(t)
	state := createState(t, fs)
	cfg := logConfig(fs, state, 1)
	must(t, fs.MkdirAll(cfg.Dir))
	for _, name := range []string{"00000000000000000002.log", "00000000000000000002.base", "junk"} {
		f, err := fs.Create(cfg.Dir + "/" + name)
		must(t, err)
		must(t, f.Close())
	}
	l := newLog(t, fs, state, 1)
	names, err := fs.List(cfg.Dir)
	must(t, err)
	if slices.Contains(names, "junk") || l.segments.LastIndex() != 1 {
		t.Fatalf("files %v", names)
	}
}

// order is what a flush did, in order.
type order struct {
	mu    sync.Mutex
	steps []string
}

func (o *order) add(step string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.steps = append(o.steps, step)
}

func (o *order) take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	steps := o.steps
	o.steps = nil
	return steps
}

func orderedFS(mem *memfs.FS, o *order) vfs.FS {
	return errfs.Wrap(mem, hook(func(op errfs.Op) {
		file := "segment"
		switch {
		case bytes.Contains([]byte(op.Path), []byte("state-")):
			file = "state"
		case bytes.HasSuffix([]byte(op.Path), []byte(".idx")):
			return
		}
		switch op.Kind {
		case errfs.OpWrite:
			o.add("write " + file)
		case errfs.OpSyncData:
			o.add("sync " + file)
		}
	}))
}

func TestOrderOfOneFlush(t *testing.T) {
	var o order
	fs := orderedFS(newStateFS(t), &o)
	state := createState(t, fs)
	l := newLog(t, fs, state, 1)
	f := NewFlushers(1, state, fatalIn(t))
	defer f.Close()
	done := make(chan struct{})
	w := f.NewWriter(l, sink{func([]*pb.Message) { o.add("answer"); done <- struct{}{} }, func(err error) { t.Error(err) }})
	o.take()

	w.Submit(storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
	<-done
	if got := o.take(); !slices.Equal(got, []string{"write state", "sync state", "write segment", "sync segment", "answer"}) {
		t.Errorf("new term and an entry: %v", got)
	}
	w.Submit(storageAppend(2, uint64(logReplica), 3, entry(3, 2, storedBatch(0, 2, "x"))))
	<-done
	if got := o.take(); !slices.Equal(got, []string{"write segment", "sync segment", "answer"}) {
		t.Errorf("an entry of the same term: %v", got)
	}
	w.unmarked = markBytes
	w.Submit(storageAppend(2, uint64(logReplica), 4, entry(4, 2, storedBatch(1, 2, "x"))))
	<-done
	if got := o.take(); !slices.Equal(got, []string{"write segment", "sync segment", "write state", "answer"}) {
		t.Errorf("an entry with a mark behind it: %v", got)
	}
	w.Submit(storageAppend(2, uint64(logReplica), 5, entry(5, 2, storedBatch(2, 2, "x"))))
	<-done
	if got := o.take(); !slices.Equal(got, []string{"write segment", "sync segment", "answer"}) {
		t.Errorf("an entry while a mark is not synced: %v", got)
	}
	w.Submit(storageAppend(2, uint64(logReplica), 5))
	<-done
	if got := o.take(); !slices.Equal(got, []string{"answer"}) {
		t.Errorf("only a new commit index: %v", got)
	}
}

// Many groups over few flushers: each group's answers come in its own order, and all of them.
func TestGroupsKeepTheirOrder(t *testing.T) {
	fs := newStateFS(t)
	state := createState(t, fs)
	f := NewFlushers(3, state, fatalIn(t))
	const groups, messages = 8, 60
	var all sync.WaitGroup
	for g := range seglog.GroupID(groups) {
		l := newLog(t, fs, state, g+1)
		var got []uint64
		done := make(chan struct{})
		w := f.NewWriter(l, sink{func(responses []*pb.Message) {
			for _, m := range responses {
				if got = append(got, m.GetIndex()); len(got) == messages {
					close(done)
				}
			}
		}, func(err error) { t.Error(err) }})
		all.Go(func() {
			w.Submit(storageAppend(2, uint64(logReplica), 2, entry(2, 2, nil)))
			for i := range uint64(messages - 1) {
				w.Submit(storageAppend(0, 0, 3+i, entry(3+i, 2, storedBatch(batch.Offset(i), 2, "x"))))
			}
			<-done
			for i, index := range got {
				if index != uint64(i)+2 {
					t.Errorf("group %d: answers %v", g, got)
					return
				}
			}
		})
	}
	all.Wait()
	f.Close()
	for g := range seglog.GroupID(groups) {
		if s, _ := state.Group(g + 1); s.Mark.Index != messages+1 {
			t.Errorf("group %d: mark %+v after an orderly close", g, s.Mark)
		}
	}
}
