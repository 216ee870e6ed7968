package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
)

const (
	testReplica = seglog.ReplicaID(1<<32 | 1)
	testGroup   = seglog.GroupID(7)
)

var testIdentity = seglog.Identity{Cluster: [16]byte{1}, Group: testGroup, Replica: testReplica, Topic: [16]byte{2}, Partition: 0}

// testClock is a clock that only the test moves.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func newTestClock() *testClock { return &testClock{now: time.Now()} }

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// testMaxMessageBytes is max.message.bytes in the tests.
const testMaxMessageBytes = 1048588

func testSettings() *Settings {
	return &Settings{
		MaxMessageBytes:    testMaxMessageBytes,
		ProducerExpiration: 24 * time.Hour, ProducerEvictionMinAge: 15 * time.Minute, ProducersMax: 100_000,
		Retention: -1, RetentionBytes: -1, SegmentAge: 7 * 24 * time.Hour,
	}
}

// testHost is the node of one replica.
type testHost struct {
	full atomic.Bool

	mu        sync.Mutex
	producers int
	cap       int // 0: none
	damage    []error
	held      bool // background jobs wait in jobs
	jobs      []func()
}

func (h *testHost) DiskFull() bool { return h.full.Load() }

func (h *testHost) Background(job func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held {
		h.jobs = append(h.jobs, job)
		return
	}
	go job()
}

// hold keeps back the background jobs that come from now on; release runs them, and those that follow.
func (h *testHost) hold() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.held = false
		for _, job := range h.jobs {
			go job()
		}
		h.jobs = nil
	}
}

func (h *testHost) ReserveProducer() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cap > 0 && h.producers >= h.cap {
		return false
	}
	h.producers++
	return true
}

func (h *testHost) CountProducers(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.producers += n
}

func (h *testHost) Led(Leadership) {}

func (h *testHost) Damaged(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.damage = append(h.damage, err)
}

// counted is how many producers the node counts.
func (h *testHost) counted() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.producers
}

func (h *testHost) damaged() []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.damage)
}

// stack is one partition over its real log, state file and flushers.
type stack struct {
	t         testing.TB
	fs        vfs.FS
	state     *raftlog.StateFile
	flushers  *raftlog.Flushers
	log       *raftlog.Log
	clock     *testClock
	settings  *Settings
	host      *testHost
	partition *Partition
}

// segmentBytes bounds the segments of the tests' logs.
var segmentBytes = int64(64 << 10)

// setSegmentBytes has a test use segments of another size.
func setSegmentBytes(t testing.TB, n int64) {
	before := segmentBytes
	segmentBytes = n
	t.Cleanup(func() { segmentBytes = before })
}

func stackConfig(fs vfs.FS, state *raftlog.StateFile, sameBoot bool) raftlog.Config {
	return raftlog.Config{FS: fs, Dir: "data/groups/7", Identity: testIdentity, State: state, SameBoot: sameBoot, SegmentBytes: segmentBytes}
}

// openStack opens a partition, which is born first if fs holds none, and waits until it is ready.
func openStack(t testing.TB, fs vfs.FS, boot byte) *stack {
	t.Helper()
	return openFiles(t, fs, boot).opened()
}

// openWith opens a partition with settings of its own.
func openWith(t testing.TB, fs vfs.FS, boot byte, change func(*Settings)) *stack {
	t.Helper()
	s := openFiles(t, fs, boot)
	change(s.settings)
	return s.opened()
}

// openFiles opens all that lies under a partition; opened or start starts the partition itself. boot counts the machine's
// runs: another one than when the files were written says that the machine went down in between.
func openFiles(t testing.TB, fs vfs.FS, boot byte) *stack {
	t.Helper()
	return openFilesWith(t, fs, boot, newborn())
}

// openFilesWith opens the files of a partition that is born, if need be, with the offsets and the table of a base.
func openFilesWith(t testing.TB, fs vfs.FS, boot byte, base raftlog.Base) *stack {
	t.Helper()
	state, log, err := openLog(fs, boot, base)
	must(t, err)
	return newStack(t, fs, state, log)
}

func newStack(t testing.TB, fs vfs.FS, state *raftlog.StateFile, log *raftlog.Log) *stack {
	return &stack{t: t, fs: fs, state: state, log: log, clock: newTestClock(), settings: testSettings(), host: &testHost{}}
}

// newborn is the base snapshot of a partition that remembers nobody.
func newborn() raftlog.Base {
	return raftlog.Base{Body: dedupe.New(dedupe.RulesVersion, 0).AppendTo(nil)}
}

// openLog opens the files; it closes what it has opened when it returns an error.
func openLog(fs vfs.FS, boot byte, base raftlog.Base) (_ *raftlog.StateFile, _ *raftlog.Log, err error) {
	if err := errors.Join(fs.MkdirAll("data/groups"), fs.SyncDir("data"), fs.SyncDir(".")); err != nil {
		return nil, nil, err
	}
	state, report, err := raftlog.OpenState(fs, "data", [16]byte{boot})
	if errors.Is(err, raftlog.ErrNoState) {
		report.SameBoot = true
		state, err = raftlog.CreateState(fs, "data", raftlog.NodeIdentity{Cluster: testIdentity.Cluster, Node: 1}, [16]byte{boot})
	}
	if err != nil {
		return nil, nil, err
	}
	cfg := stackConfig(fs, state, report.SameBoot)
	if _, born := state.Group(testGroup); !born {
		base.Cluster, base.Group, base.Index, base.Term = testIdentity.Cluster, testGroup, 1, 1
		base.Members.Voters = []uint64{uint64(testReplica)}
		if err := raftlog.CreateGroup(cfg, base); err != nil {
			return nil, nil, errors.Join(err, state.Close())
		}
	}
	log, _, err := raftlog.OpenGroup(cfg)
	if err != nil {
		return nil, nil, errors.Join(err, state.Close())
	}
	if err := state.FinishRecovery(); err != nil {
		return nil, nil, errors.Join(err, log.Close(), state.Close())
	}
	return state, log, nil
}

// opened starts the partition, which nothing fatal is to befall, and waits until it is ready.
func (s *stack) opened() *stack {
	s.t.Helper()
	s.start(s.noFatal)
	must(s.t, s.partition.Opened(s.t.Context()))
	return s
}

func (s *stack) noFatal(err error) { s.t.Errorf("fatal: %v", err) }

func (s *stack) start(fatal func(error)) {
	s.t.Helper()
	s.startWith(raftlog.Events{Fatal: fatal, Full: func(error) {}})
}

func (s *stack) startWith(events raftlog.Events) {
	s.t.Helper()
	s.flushers = raftlog.NewFlushers(2, s.state, events)
	var err error
	s.partition, err = OpenPartition(testReplica, s.config())
	must(s.t, err)
}

func (s *stack) config() Config {
	return Config{Log: s.log, Flushers: s.flushers, Clock: s.clock, Logger: quiet(), Settings: s.settings, Host: s.host}
}

func (s *stack) close() {
	s.t.Helper()
	must(s.t, s.partition.Close())
	s.flushers.Close()
	must(s.t, s.state.Close())
}

// do runs f in the partition's loop, and returns when it has run and the turn is published.
func (s *stack) do(f func(now time.Time)) {
	s.t.Helper()
	ran := make(chan struct{})
	if !s.partition.loop.box.post(func(now time.Time) {
		f(now)
		s.partition.core.ended = append(s.partition.core.ended, func() { close(ran) })
	}) {
		s.t.Fatal("the partition is closed")
	}
	select {
	case <-ran:
	case <-time.After(30 * time.Second):
		s.t.Fatal("the loop does not come to a task")
	}
}

// settle waits until nothing is on its way any more: no entry, no chore, no base snapshot, no removal.
func (s *stack) settle() {
	s.t.Helper()
	var busy string
	looks := 0 // a task that was due may stand in the mailbox behind the first look
	for deadline := time.Now().Add(30 * time.Second); looks < 2; looks++ {
		s.do(func(time.Time) { busy = s.busy() })
		if busy == "" {
			continue
		}
		if looks = -1; time.Now().After(deadline) {
			s.t.Fatalf("the partition does not settle: %s", busy)
		}
		time.Sleep(time.Millisecond)
	}
}

// busy says, in the loop, what is on its way, "" for nothing.
func (s *stack) busy() string {
	c, k := s.partition.core, s.partition.loop.keeper
	switch {
	case c.offline != nil:
		return ""
	case !c.settled():
		return fmt.Sprintf("entries %d to %d", c.applied+1, c.last)
	case c.rolling == newest(s).First || c.rollWanted || len(c.boundaries) > 0:
		return fmt.Sprintf("the end of segment %d, those that begin at %v", newest(s).First, c.boundaries)
	case len(c.due) > 0:
		return "tasks"
	case k.busy || k.stock.newest() > k.failed:
		return fmt.Sprintf("base snapshots up to %d", k.stock.newest())
	case k.sweep || c.sweepWanted:
		return "a sweep"
	default:
		return ""
	}
}

// housekeep does chores and waits until they are done.
func (s *stack) housekeep(chores Chore) {
	s.t.Helper()
	s.partition.Housekeep(chores)
	s.settle()
}

// roll ends the active segment, and waits until the next one has its base snapshot.
func (s *stack) roll() {
	s.t.Helper()
	s.do(func(time.Time) { s.partition.core.rollWanted = true })
	s.settle()
}

// kinds returns what stands in the log: the kinds of its entries, from the first retained one on.
func (s *stack) kinds() []seglog.Kind {
	s.t.Helper()
	var kinds []seglog.Kind
	log := s.log.Segments()
	for i := log.FirstIndex(); i <= log.LastIndex(); i++ {
		e, err := log.Entry(i)
		must(s.t, err)
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pending is a submission whose end the test waits for.
type pending struct {
	taken, done chan struct{}
	ack         Ack
	batch       []byte // the partition's until it is taken
	size        int
	dead        bool // the process that had it is gone
}

func newPending() *pending { return &pending{taken: make(chan struct{}), done: make(chan struct{})} }

// Taken has the next request overwrite the batch, as it does in a connection's buffer.
func (p *pending) Taken() {
	for i := range p.batch {
		p.batch[i] = 0xee
	}
	close(p.taken)
}

func (p *pending) Done(a Ack) {
	select {
	case <-p.taken:
	default:
		panic("done before taken")
	}
	p.ack = a
	close(p.done)
}

func (p *pending) wait(t testing.TB) Ack {
	t.Helper()
	select {
	case <-p.done:
		return p.ack
	case <-time.After(30 * time.Second):
		t.Fatal("no answer")
		return Ack{}
	}
}

// submit hands a copy of b over; the partition may scribble on it.
func (s *stack) submit(b []byte) *pending {
	s.t.Helper()
	mine := append([]byte(nil), b...)
	h, fault := batch.CheckProduce(mine)
	if fault != batch.FaultNone {
		s.t.Fatalf("test batch is bad: %v", fault)
	}
	p := newPending()
	p.batch, p.size = mine, len(mine)
	must(s.t, s.partition.Submit(&Submission{Batch: mine, Header: h, Done: p}))
	return p
}

func (s *stack) produce(b []byte) Ack {
	s.t.Helper()
	return s.submit(b).wait(s.t)
}

// batchOf makes a batch of n records whose record bytes are payload: a partition does not look inside.
func batchOf(id batch.ProducerID, epoch batch.Epoch, first batch.Sequence, n int32, payload []byte) []byte {
	b := make([]byte, batch.HeaderSize, batch.HeaderSize+len(payload))
	b = append(b, payload...)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[12:], ^uint32(0))
	b[16] = 2
	binary.BigEndian.PutUint32(b[23:], uint32(n-1))
	binary.BigEndian.PutUint64(b[43:], uint64(id))
	binary.BigEndian.PutUint16(b[51:], uint16(epoch))
	binary.BigEndian.PutUint32(b[53:], uint32(first))
	binary.BigEndian.PutUint32(b[57:], uint32(n))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// stored reads the partition from offset 0 and returns its batches.
func (s *stack) stored() [][]byte {
	s.t.Helper()
	var all [][]byte
	for next := batch.Offset(0); ; {
		data, err := s.partition.Read(nil, next, 1<<20, true)
		must(s.t, err)
		if len(data) == 0 {
			return all
		}
		for len(data) > 0 {
			h, err := batch.CheckStored(data)
			must(s.t, err)
			if h.BaseOffset != next {
				s.t.Fatalf("batch at offset %d, want %d", h.BaseOffset, next)
			}
			all = append(all, data[:h.Size])
			data, next = data[h.Size:], h.NextOffset()
		}
	}
}

// entryOf is a committed entry.
func entryOf(index uint64, data []byte) *pb.Entry {
	return &pb.Entry{Type: pb.EntryNormal.Enum(), Index: &index, Data: data}
}
