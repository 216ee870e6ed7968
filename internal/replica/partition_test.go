package replica

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAppendAndRetry(t *testing.T) {
	s := openStack(t, memfs.New(), 1)
	defer s.close()
	first := batchOf(7, 0, 0, 3, []byte("abc"))
	if a := s.produce(first); a.Err != nil || a.Base != 0 {
		t.Fatalf("first batch: %+v", a)
	}
	if a := s.produce(batchOf(7, 0, 3, 2, []byte("de"))); a.Err != nil || a.Base != 3 {
		t.Fatalf("second batch: %+v", a)
	}
	if a := s.produce(first); a.Err != nil || a.Base != 0 || a.Decision.Verdict != dedupe.Duplicate {
		t.Fatalf("retry of the first batch: %+v", a)
	}
	if a := s.produce(batchOf(7, 0, 9, 1, []byte("gap"))); !errors.Is(a.Err, ErrRefused) || a.Decision.Reason != dedupe.Gap || a.Base != -1 {
		t.Fatalf("gap: %+v", a)
	}
	if a := s.produce(batchOf(-1, -1, -1, 1, []byte("x"))); a.Err != nil || a.Base != 5 {
		t.Fatalf("batch without a producer: %+v", a)
	}
	if n := len(s.stored()); n != 3 {
		t.Fatalf("%d batches stored, want 3", n)
	}
	if st := s.partition.Status(); st.HighWatermark != 6 || st.NextOffset != 6 || !st.Ready {
		t.Fatalf("status %+v", st)
	}
}

func TestSizeLimitIsBehindTheRetry(t *testing.T) {
	s := openStack(t, memfs.New(), 1)
	defer s.close()
	small := batchOf(7, 0, 0, 1, []byte("a"))
	s.produce(small)
	large := batchOf(7, 0, 0, 1, make([]byte, testMaxMessageBytes))
	if a := s.produce(large); a.Err != nil || a.Base != 0 {
		t.Fatalf("large retry: %+v", a)
	}
	larger := batchOf(7, 0, 1, 1, make([]byte, testMaxMessageBytes))
	if a := s.produce(larger); !errors.Is(a.Err, ErrTooLarge) {
		t.Fatalf("large batch: %+v", a)
	}
	if a := s.produce(batchOf(7, 0, 1, 1, []byte("b"))); a.Err != nil || a.Base != 1 {
		t.Fatalf("the refused batch used up a sequence: %+v", a)
	}
}

// gateFS lets a test hold back and count the syncs and reads of segment files.
type gateFS struct {
	vfs.FS
	hold  atomic.Pointer[chan struct{}] // while set, syncs wait until it is closed
	part  string                        // of the name: the syncs of other files do not wait
	held  chan struct{}                 // receives when a sync waits
	syncs atomic.Int64
	reads atomic.Int64
	fail  atomic.Pointer[error]
}

func newGateFS() *gateFS { return &gateFS{FS: memfs.New(), held: make(chan struct{}, 100)} }

// shut holds back all syncs from now on; open lets those go on that wait, unless the gate was shut again meanwhile.
func (g *gateFS) shut() (open func()) {
	gate := make(chan struct{})
	g.hold.Store(&gate)
	return func() {
		g.hold.CompareAndSwap(&gate, nil)
		close(gate)
	}
}

func (g *gateFS) Create(name string) (vfs.File, error) { return g.wrap(name)(g.FS.Create(name)) }
func (g *gateFS) Open(name string) (vfs.File, error)   { return g.wrap(name)(g.FS.Open(name)) }

func (g *gateFS) wrap(name string) func(vfs.File, error) (vfs.File, error) {
	return func(f vfs.File, err error) (vfs.File, error) {
		if err != nil {
			return nil, err
		}
		return &gateFile{File: f, fs: g, name: name}, nil
	}
}

type gateFile struct {
	vfs.File
	fs   *gateFS
	name string
}

func (f *gateFile) SyncData() error {
	if gate := f.fs.hold.Load(); gate != nil && strings.Contains(f.name, f.fs.part) {
		f.fs.held <- struct{}{}
		<-*gate
	}
	f.fs.syncs.Add(1)
	if err := f.fs.fail.Load(); err != nil {
		return *err
	}
	return f.File.SyncData()
}

func (f *gateFile) ReadAt(p []byte, off int64) (int, error) {
	f.fs.reads.Add(1)
	return f.File.ReadAt(p, off)
}

func TestNoAnswerBeforeTheSync(t *testing.T) {
	fs := newGateFS()
	s := openStack(t, fs, 1)
	defer s.close()
	gate := make(chan struct{})
	fs.hold.Store(&gate)

	first := batchOf(7, 0, 0, 1, []byte("a"))
	original := s.submit(first)
	<-fs.held // written, and now in its fdatasync
	retry := s.submit(first)
	second := s.submit(batchOf(7, 0, 1, 1, []byte("b")))
	<-retry.taken
	<-second.taken
	for name, p := range map[string]*pending{"original": original, "retry": retry, "second": second} {
		select {
		case <-p.done:
			t.Fatalf("%s answered before the sync: %+v", name, p.ack)
		default:
		}
	}
	if st := s.partition.Status(); st.HighWatermark != 0 {
		t.Fatalf("visible before the sync: %+v", st)
	}
	fs.hold.Store(nil)
	close(gate)
	if a, b, c := original.wait(t), retry.wait(t), second.wait(t); a.Base != 0 || b.Base != 0 || c.Base != 1 || a.Err != nil || b.Err != nil || c.Err != nil {
		t.Fatalf("answers %+v %+v %+v", a, b, c)
	}
}

func TestWaitingBatchesShareOneSync(t *testing.T) {
	fs := newGateFS()
	s := openStack(t, fs, 1)
	defer s.close()
	gate := make(chan struct{})
	fs.hold.Store(&gate)
	all := []*pending{s.submit(batchOf(1, 0, 0, 1, []byte("a")))}
	<-fs.held
	for id := range batch.ProducerID(50) {
		all = append(all, s.submit(batchOf(id+2, 0, 0, 1, []byte("b"))))
	}
	for _, p := range all {
		<-p.taken
	}
	before := fs.syncs.Load()
	fs.hold.Store(nil)
	close(gate)
	for _, p := range all {
		if a := p.wait(t); a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	if n := fs.syncs.Load() - before; n != 2 {
		t.Fatalf("%d syncs, want 2: the one under way and one for all that waited", n)
	}
}

// Nothing is read from the segments while Raft's Ready is made: not for what was just proposed, and not at a start, for
// what was read back. The counted reads are all reads of files between opening the log and the end.
func TestNoPayloadIsReadToApply(t *testing.T) {
	fs := newGateFS()
	s := openStack(t, fs, 1)
	for i := range batch.Sequence(100) {
		s.produce(batchOf(7, 0, i, 1, bytes.Repeat([]byte("p"), 1000)))
	}
	if n := fs.reads.Load(); n > 20 {
		t.Fatalf("%d reads to make and apply 100 batches", n)
	}
	s.close()

	s = openFiles(t, fs, 1)
	s.start(s.noFatal)
	defer s.close()
	opened := fs.reads.Load()
	must(t, s.partition.Opened(t.Context()))
	s.produce(batchOf(7, 0, 100, 1, []byte("p")))
	if n := fs.reads.Load() - opened; n != 0 {
		t.Fatalf("%d reads between the opened log and a ready partition", n)
	}
	if st := s.partition.Status(); st.HighWatermark != 101 {
		t.Fatalf("status %+v", st)
	}
}

func TestFailedSyncAnswersNobody(t *testing.T) {
	fs := newGateFS()
	var fatal atomic.Bool
	s := openFiles(t, fs, 1)
	s.start(func(error) { fatal.Store(true) })
	must(t, s.partition.Opened(t.Context()))
	broken := errors.New("input/output error")
	fs.fail.Store(&broken)
	if a := s.produce(batchOf(7, 0, 0, 1, []byte("a"))); !errors.Is(a.Err, ErrStopped) {
		t.Fatalf("answer after a failed sync: %+v", a)
	}
	if a := s.produce(batchOf(7, 0, 1, 1, []byte("b"))); !errors.Is(a.Err, ErrOffline) {
		t.Fatalf("answer once offline: %+v", a)
	}
	waitFor(t, fatal.Load) // a failed sync is fatal for the process
	if st := s.partition.Status(); st.Ready {
		t.Fatalf("status %+v", st)
	}
	_ = s.partition.Close()
	s.flushers.Close()
}

func TestNothingIsDecidedBeforeReady(t *testing.T) {
	fs := newGateFS()
	s := openStack(t, fs, 1)
	s.produce(batchOf(7, 0, 0, 1, []byte("a")))
	s.close()

	s = openFiles(t, fs, 1)
	open := fs.shut()
	s.start(s.noFatal)
	defer s.close()
	for _, at := range []string{"the vote", "the first entry of the term"} { // it leads from the first to the second
		<-fs.held
		if a := s.produce(batchOf(7, 0, 5, 1, []byte("gap"))); !errors.Is(a.Err, ErrNotLeader) {
			t.Fatalf("answer before ready, at %s: %+v", at, a)
		}
		if _, err := s.partition.Read(nil, 0, 100, true); !errors.Is(err, ErrNotLeader) {
			t.Fatalf("read before ready, at %s: %v", at, err)
		}
		before := open
		open = fs.shut()
		before()
	}
	open()
	must(t, s.partition.Opened(t.Context()))
	if a := s.produce(batchOf(7, 0, 0, 1, []byte("a"))); a.Err != nil || a.Base != 0 {
		t.Fatalf("retry after restart: %+v", a)
	}
}

func TestMailboxBoundHoldsSubmittersBack(t *testing.T) {
	fs := newGateFS()
	s := openStack(t, fs, 1)
	defer s.close()
	gate := make(chan struct{})
	fs.hold.Store(&gate)
	big := make([]byte, 1<<20)
	var submitted atomic.Int64
	var all sync.WaitGroup
	const n = 40
	for id := range batch.ProducerID(n) {
		b := batchOf(id, 0, 0, 1, big[:1<<20-batch.HeaderSize-submissionBytes])
		all.Go(func() {
			p := s.submit(b)
			submitted.Add(1)
			if a := p.wait(t); a.Err != nil {
				t.Error(a.Err)
			}
		})
	}
	waitFor(t, func() bool { return submitted.Load() == heldMax/(1<<20) })
	s.partition.loop.box.mu.Lock()
	held := s.partition.loop.box.held
	s.partition.loop.box.mu.Unlock()
	if held > heldMax || submitted.Load() >= n {
		t.Fatalf("%d bytes held, %d of %d submitted", held, submitted.Load(), n)
	}
	fs.hold.Store(nil)
	close(gate)
	all.Wait()
	waitFor(t, func() bool {
		s.partition.loop.box.mu.Lock()
		defer s.partition.loop.box.mu.Unlock()
		return s.partition.loop.box.held == 0
	})
}

func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("condition does not come true")
		}
	}
}

func TestWatchWakesOnCommit(t *testing.T) {
	s := openStack(t, memfs.New(), 1)
	defer s.close()
	wake := make(chan struct{}, 1)
	s.partition.Watch(wake)
	s.produce(batchOf(7, 0, 0, 1, []byte("a")))
	<-wake // sent before the answer
	s.partition.Unwatch(wake)
	s.produce(batchOf(7, 0, 1, 1, []byte("a")))
	select {
	case <-wake:
		t.Fatal("woken after Unwatch")
	default:
	}
}

func TestClockEntries(t *testing.T) {
	fs := memfs.New()
	s := openStack(t, fs, 1)
	s.clock.advance(10 * time.Minute) // without a batch no clock
	s.produce(batchOf(7, 0, 0, 1, []byte("a")))
	wall := s.clock.Now().UnixMilli()
	s.clock.advance(59 * time.Second)
	s.produce(batchOf(7, 0, 1, 1, []byte("b")))
	s.clock.advance(2 * time.Second)
	s.produce(batchOf(7, 0, 2, 1, []byte("c")))
	if got := s.clocks(); !slices.Equal(got, []int64{wall, wall + 61_000}) {
		t.Fatalf("clock entries %v, want %d and 61 s more", got, wall)
	}
	s.close()

	// The time that passes while nobody leads does not count: late expiry is safe, early expiry is not.
	s = openStack(t, fs, 1)
	defer s.close()
	s.clock.advance(time.Hour)
	s.produce(batchOf(7, 0, 3, 1, []byte("d")))
	if got := s.clocks(); got[len(got)-1] != wall+61_000+3_600_000 {
		t.Fatalf("clock entries %v", got)
	}
}

// clocks returns the payloads of the clock entries in the log.
func (s *stack) clocks() []int64 {
	var times []int64
	for i := s.log.Segments().FirstIndex(); i <= s.log.Segments().LastIndex(); i++ {
		e, err := s.log.Segments().Entry(i)
		must(s.t, err)
		if e.Kind == seglog.KindClock {
			var ms int64
			for _, b := range e.Data {
				ms = ms<<8 | int64(b)
			}
			times = append(times, ms)
		}
	}
	return times
}

// A committed batch that the rule would not have stored takes the partition offline and says everything about it.
func TestMismatchTakesThePartitionOffline(t *testing.T) {
	fs := memfs.New()
	s := openStack(t, fs, 1)
	s.produce(batchOf(7, 0, 0, 1, []byte("a")))
	last := s.log.Segments().LastIndex()
	s.close()

	// Write past the decision, as only a bug could.
	cfg := stackConfig(fs, nil, true)
	log, _, err := seglog.Open(seglog.Config{FS: fs, Dir: cfg.Dir, Identity: cfg.Identity}, seglog.OpenOptions{SameBoot: true})
	must(t, err)
	term, err := log.Term(last)
	must(t, err)
	b := batchOf(7, 0, 5, 1, []byte("gap"))
	batch.SetPlace(b, 1, term)
	must(t, log.Append([]seglog.Entry{{Kind: seglog.KindBatch, Term: term, Data: b}}))
	must(t, log.Sync())
	must(t, log.Close())

	s = openFiles(t, fs, 1)
	s.start(s.noFatal)
	defer s.close()
	err = s.partition.Opened(t.Context())
	m, ok := errors.AsType[*MismatchError](err)
	if !ok || m.Header.BaseSequence != 5 || m.Decision.Reason != dedupe.Gap {
		t.Fatalf("opened: %v", err)
	}
	if a := s.produce(batchOf(7, 0, 1, 1, []byte("b"))); !errors.Is(a.Err, ErrOffline) {
		t.Fatalf("answer of an offline partition: %+v", a)
	}
}

// When Raft drops a proposal, nothing of it was accepted: it leaves no offset and no sequence behind.
func TestDroppedProposalLeavesNoTrace(t *testing.T) {
	s := openStack(t, memfs.New(), 1)
	s.produce(batchOf(7, 0, 0, 1, []byte("a")))
	s.close()

	// A core that believes to be ready, over a node that is not leader: Raft drops what it proposes.
	core := s.partition.core
	fresh, err := newCore(testReplica, s.log, quiet(), core)
	must(t, err)
	fresh.firstOwn, fresh.term, fresh.applied, fresh.last = core.firstOwn, core.term, core.applied, core.last
	core.core = fresh
	before := fmt.Sprintf("%+v", core.status())
	b := batchOf(7, 0, 1, 1, []byte("b"))
	h, _ := batch.CheckProduce(b)
	core.produce(time.Now(), []*Submission{
		{Batch: b, Header: h, Done: newPending()},
		{Batch: b, Header: h, Done: newPending()}, // a retry of it
	})
	if len(core.answers) != 2 || !errors.Is(core.answers[0].ack.Err, ErrNotLeader) || !errors.Is(core.answers[1].ack.Err, ErrNotLeader) {
		t.Fatalf("answers %+v", core.answers)
	}
	if after := fmt.Sprintf("%+v", core.status()); after != before {
		t.Fatalf("status %s, before %s", after, before)
	}
	if d := core.head.Decide(h.Stamp()); d.Verdict != dedupe.Append {
		t.Fatalf("the dropped batch is remembered: %+v", d)
	}
}

// retained is what a producer of the crash test knows of one of its batches.
type retained struct {
	bytes []byte
	base  batch.Offset
	acked bool
}

// TestCrashesLoseNothing runs producers against a partition and takes the disk away at random points, as a machine
// that loses power would leave it. Everything that was answered before must be there, once, at its offset; the last
// five batches of each producer, sent again, get their original offsets; and the table is the one that the log alone
// adds up to.
func TestCrashesLoseNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	fs := memfs.New()
	history := make(map[batch.ProducerID][]retained)
	boot := byte(1)
	for crash := range 25 {
		s := openStack(t, fs, boot)
		checkHistory(t, s, history)
		clone := make(chan *memfs.FS)
		stop := make(chan struct{})
		go func() {
			<-stop
			if crash%3 == 0 {
				clone <- fs.KillClone()
			} else {
				boot++
				clone <- fs.CrashClone(rng.IntN(101), rand.New(rand.NewPCG(seed, uint64(crash))))
			}
		}()
		runProducers(s, history, rng.IntN(60)+1, rng.IntN(10)+1, func() { close(stop) })
		fs = <-clone
		s.close()
	}
	s := openStack(t, fs, boot)
	checkHistory(t, s, history)
	s.close()
	checkRebuilt(t, s)
}

// runProducers sends batches until crash is called after n answers; what is answered afterwards is not counted on.
func runProducers(s *stack, history map[batch.ProducerID][]retained, n, producers int, crash func()) {
	type sent struct {
		id batch.ProducerID
		at int
		p  *pending
	}
	var flight []sent
	answered := 0
	for answered < n || len(flight) > 0 {
		if answered < n && len(flight) < 3*producers {
			id := batch.ProducerID(len(flight)%producers) + 100
			list := history[id]
			next := batch.Sequence(0)
			if len(list) > 0 {
				h, _ := batch.ParseHeader(list[len(list)-1].bytes)
				next = batch.AddSequence(h.BaseSequence, h.Count)
			}
			b := batchOf(id, 0, next, int32(len(list)%4+1), fmt.Appendf(nil, "%d/%d", id, next))
			history[id] = append(list, retained{bytes: b, base: -1})
			flight = append(flight, sent{id: id, at: len(list), p: s.submit(b)})
			continue
		}
		a := flight[0].p.wait(s.t)
		must(s.t, a.Err)
		if answered < n {
			history[flight[0].id][flight[0].at].base = a.Base
			history[flight[0].id][flight[0].at].acked = true
		}
		flight = flight[1:]
		if answered++; answered == n {
			crash()
		}
	}
}

// checkHistory holds the partition against what was answered, and sends each producer's last batches again.
func checkHistory(t *testing.T, s *stack, history map[batch.ProducerID][]retained) {
	t.Helper()
	at := make(map[string]batch.Offset)
	for _, b := range s.stored() {
		h, _ := batch.ParseHeader(b)
		key := string(b[batch.HeaderSize:])
		if before, twice := at[key]; twice {
			t.Fatalf("batch %q is stored at %d and at %d", key, before, h.BaseOffset)
		}
		at[key] = h.BaseOffset
	}
	for id, list := range history {
		for i, r := range list {
			base, stored := at[string(r.bytes[batch.HeaderSize:])]
			if r.acked && (!stored || base != r.base) {
				t.Fatalf("producer %d batch %d was answered with offset %d; stored %v at %d", id, i, r.base, stored, base)
			}
			if stored {
				list[i].base, list[i].acked = base, true
			}
		}
		// What was never answered may be lost, from some batch on; the producer sends it again, in order.
		from := max(0, len(list)-8)
		for i := max(from, len(list)-5); i < len(list); i++ {
			if list[i].acked && i >= storedEnd(list)-5 {
				if a := s.produce(list[i].bytes); a.Err != nil || a.Base != list[i].base || a.Decision.Verdict != dedupe.Duplicate {
					t.Fatalf("producer %d: retry of batch %d stored at %d: %+v", id, i, list[i].base, a)
				}
			}
		}
		for i := storedEnd(list); i < len(list); i++ {
			a := s.produce(list[i].bytes)
			must(t, a.Err)
			list[i].base, list[i].acked = a.Base, true
		}
	}
}

func storedEnd(list []retained) int {
	n := 0
	for n < len(list) && list[n].acked {
		n++
	}
	return n
}
