package replica

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// held is how many bytes the mailbox holds.
func (s *stack) held() int {
	s.partition.loop.box.mu.Lock()
	defer s.partition.loop.box.mu.Unlock()
	return s.partition.loop.box.held
}

// background runs f and closes the channel when it returns.
func background(f func()) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	return ended
}

func wait(t *testing.T, what string, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s does not come", what)
	}
}

// Whatever becomes of a submission, its bytes are given back.
func TestEveryByteIsGivenBack(t *testing.T) {
	gate := newGateFS()
	s := openFiles(t, gate, 1)
	open := gate.shut()
	s.start(func(error) {})
	<-gate.held
	early := s.produce(batchOf(7, 0, 0, 1, []byte("not ready")))
	open()
	must(t, s.partition.Opened(t.Context()))
	must(t, s.produce(batchOf(7, 0, 0, 1, []byte("a"))).Err)
	answers := []Ack{
		early,
		s.produce(batchOf(7, 0, 0, 1, []byte("applied, a retry"))),
		s.produce(batchOf(7, 0, 5, 1, []byte("gap"))),
		s.produce(batchOf(7, 0, 1, 1, make([]byte, testMaxMessageBytes))),
	}
	open = gate.shut()
	first := s.submit(batchOf(8, 0, 0, 1, []byte("b")))
	<-gate.held
	retry := s.submit(batchOf(8, 0, 0, 1, []byte("b, on its way")))
	wait(t, "the retry", retry.taken)
	if want := first.size + retry.size + 2*submissionBytes; s.held() != want {
		t.Fatalf("%d bytes are held while %d wait", s.held(), want)
	}
	broken := errors.New("input/output error")
	gate.fail.Store(&broken)
	open()
	answers = append(answers, first.wait(t), retry.wait(t), s.produce(batchOf(7, 0, 1, 1, []byte("offline"))))
	for i, want := range []error{ErrNotLeader, nil, ErrRefused, ErrTooLarge, ErrStopped, ErrStopped, ErrOffline} {
		if !errors.Is(answers[i].Err, want) {
			t.Errorf("answer %d: %+v, want %v", i, answers[i], want)
		}
	}
	_ = s.partition.Close()
	if s.held() != 0 || len(s.partition.core.flight.queue) != 0 {
		t.Fatalf("%d bytes are held, and %d batches, when all is answered", s.held(), len(s.partition.core.flight.queue))
	}
	s.flushers.Close()
}

// Who waits for a replica to open hears of it when it is closed before.
func TestClosedBeforeReady(t *testing.T) {
	gate := newGateFS()
	s := openFiles(t, gate, 1)
	open := gate.shut()
	s.start(s.noFatal)
	<-gate.held // the vote
	ended := background(func() { must(t, s.partition.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.partition.Opened(ctx); !errors.Is(err, ErrStopped) {
		t.Errorf("opened: %v", err)
	}
	open()
	wait(t, "the end of Close", ended)
	s.flushers.Close()
	must(t, s.state.Close())
}

// A replica that went offline still has entries on their way to the disk. Its log stays open until they are there: a
// flusher that finds the file closed would take it for a broken disk, and end the process.
func TestCloseWaitsForTheFlusher(t *testing.T) { synctest.Test(t, closeWhileFlushing) }

func closeWhileFlushing(t *testing.T) {
	gate := newGateFS()
	s := openFiles(t, gate, 1)
	var fatal atomic.Pointer[error]
	s.start(func(err error) { fatal.Store(&err) })
	must(t, s.partition.Opened(t.Context()))
	first := gate.shut()
	a := s.submit(batchOf(7, 0, 0, 1, []byte("a")))
	<-gate.held
	b := s.submit(batchOf(7, 0, 1, 1, []byte("b")))
	wait(t, "the second batch", b.taken)
	// What is applied next does not follow the rule; the loop waits for the disk and looks at the table afterwards.
	h, _ := batch.ParseHeader(batchOf(7, 0, 0, 1, nil))
	s.do(func(time.Time) { s.partition.core.table.Record(h.Stamp(), 0) })
	second := gate.shut()
	first()
	for _, p := range []*pending{a, b} {
		if got := p.wait(t); !errors.Is(got.Err, ErrStopped) {
			t.Fatalf("answer of a partition that went offline: %+v", got)
		}
	}
	<-gate.held // the second batch is written and in its fdatasync
	ended := background(func() { must(t, s.partition.Close()) })
	synctest.Wait()
	select {
	case <-ended:
		t.Error("closed while the flusher works")
	default:
	}
	second()
	wait(t, "the end of Close", ended)
	s.flushers.Close()
	if err := fatal.Load(); err != nil {
		t.Fatalf("fatal: %v", *err)
	}
	must(t, s.state.Close())
}

// The disk fails while a partition is being closed, with batches on their way and submitters at the door.
func TestFailureWhileClosing(t *testing.T) {
	gate := newGateFS()
	s := openFiles(t, gate, 1)
	var fatal atomic.Bool
	s.start(func(error) { fatal.Store(true) })
	must(t, s.partition.Opened(t.Context()))
	open := gate.shut()
	p := s.submit(batchOf(7, 0, 0, 1, []byte("a")))
	<-gate.held
	ended := background(func() { _ = s.partition.Close() })
	waitFor(t, func() bool {
		s.partition.loop.box.mu.Lock()
		defer s.partition.loop.box.mu.Unlock()
		return s.partition.loop.box.closed
	})
	select {
	case <-ended:
		t.Fatal("closed with a batch on its way")
	case <-p.done:
		t.Fatal("answered before the sync")
	default:
	}
	broken := errors.New("input/output error")
	gate.fail.Store(&broken)
	open()
	if a := p.wait(t); !errors.Is(a.Err, ErrStopped) {
		t.Fatalf("answer after a failed sync: %+v", a)
	}
	wait(t, "the end of Close", ended)
	waitFor(t, fatal.Load)
	if s.held() != 0 {
		t.Fatalf("%d bytes held", s.held())
	}
	s.flushers.Close()
}

// Closing turns away those who wait for room and lets the others end.
func TestCloseWhileSubmittersWait(t *testing.T) {
	gate := newGateFS()
	s := openStack(t, gate, 1)
	open := gate.shut()
	payload := make([]byte, 1<<20-batch.HeaderSize-submissionBytes)
	var in []*pending
	for id := range batch.ProducerID(heldMax >> 20) {
		in = append(in, s.submit(batchOf(id, 0, 0, 1, payload)))
	}
	<-gate.held
	var turnedAway atomic.Int64
	var waiting sync.WaitGroup
	for id := range batch.ProducerID(5) {
		b := batchOf(100+id, 0, 0, 1, payload)
		h, _ := batch.CheckProduce(b)
		waiting.Go(func() {
			p := newPending()
			if err := s.partition.Submit(&Submission{Batch: b, Header: h, Done: p}); !errors.Is(err, ErrStopped) {
				t.Errorf("submitted to a partition that is being closed: %v", err)
			}
			turnedAway.Add(1)
		})
	}
	ended := background(func() { must(t, s.partition.Close()) })
	wait(t, "the end of those who wait", background(waiting.Wait))
	open()
	for _, p := range in {
		must(t, p.wait(t).Err)
	}
	wait(t, "the end of Close", ended)
	if s.held() != 0 {
		t.Fatalf("%d bytes held", s.held())
	}
	// After the end: no read, no write, and a reader that waits is told.
	if st := s.partition.Status(); st.Ready || st.HighWatermark != batch.Offset(len(in)) {
		t.Errorf("status after the end: %+v", st)
	}
	if _, err := s.partition.Read(nil, 0, 1, true); err == nil || errors.Is(err, fs.ErrClosed) {
		t.Errorf("read after the end: %v", err)
	}
	s.flushers.Close()
	must(t, s.state.Close())
}

// Whoever came first gets in first. Otherwise a large batch could wait for ever while small ones pass it.
func TestMailboxKeepsTheOrderAtTheDoor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := newMailbox[string]()
		if !box.put("first", heldMax/2) {
			t.Fatal("closed")
		}
		var out []string
		var mu sync.Mutex
		enter := func(name string, size int) {
			go func() {
				box.put(name, size)
				mu.Lock()
				defer mu.Unlock()
				out = append(out, name)
			}()
			synctest.Wait()
		}
		entered := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(out, want) {
				t.Fatalf("inside are %q, want %q", out, want)
			}
		}
		enter("larger than all", 2*heldMax)
		enter("small", 1)
		enter("half", heldMax/2)
		enter("last", 1)
		entered()
		box.release(heldMax/2 - 1)
		entered()
		box.release(1) // nothing is held: the large one passes, alone
		entered("larger than all")
		box.release(2 * heldMax)
		entered("larger than all", "small", "half", "last")
		in, _ := box.take(mail[string]{}, false)
		if want := []string{"first", "larger than all", "small", "half", "last"}; !slices.Equal(in.submissions, want) {
			t.Fatalf("taken %q", in.submissions)
		}
		box.release(1 + heldMax/2 + 1)
		if box.held != 0 {
			t.Fatalf("%d bytes held", box.held)
		}
	})
}

// Exactly the bound fits.
func TestMailboxBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := newMailbox[int]()
		box.put(1, heldMax-1)
		box.put(2, 1)
		ended := background(func() { box.put(3, 1) })
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("one byte more than the bound")
		default:
		}
		box.close()
		<-ended
		if box.put(4, 1) || box.held != heldMax {
			t.Fatalf("put into a closed mailbox, %d bytes held", box.held)
		}
		if in, more := box.take(mail[int]{}, true); !more || !slices.Equal(in.submissions, []int{1, 2}) {
			t.Fatalf("taken %v, more %v", in.submissions, more)
		}
		if _, more := box.take(mail[int]{}, true); more {
			t.Fatal("more of a closed and empty mailbox")
		}
	})
}

// A base snapshot may stand long after the first clock entry. Its log time goes on from there with the time that passes
// here, and does not count what passed before.
func TestLogTimeGoesOnFromTheBase(t *testing.T) {
	table := dedupe.New(dedupe.RulesVersion, 0)
	table.SetClock(5000)
	s := openFilesWith(t, memfs.New(), 1, raftlog.Base{Body: table.AppendTo(nil)}).opened()
	defer s.close()
	must(t, s.produce(batchOf(7, 0, 0, 1, []byte("a"))).Err)
	if got := s.clocks(); len(got) != 0 {
		t.Fatalf("clock entries %v, and no time has passed", got)
	}
	s.clock.advance(61 * time.Second)
	must(t, s.produce(batchOf(7, 0, 1, 1, []byte("b"))).Err)
	if got := s.clocks(); !slices.Equal(got, []int64{66_000}) {
		t.Fatalf("clock entries %v", got)
	}
}

// What must not change unseen: entries are applied as stubs, which an accounting of uncommitted bytes does not survive;
// a follower stamps no offsets; and no storage write is waited for.
func TestRaftConfig(t *testing.T) {
	s := openStack(t, memfs.New(), 1)
	defer s.close()
	cfg := raftConfig(testReplica, &storage{Log: s.log}, quiet())
	if cfg.MaxUncommittedEntriesSize != 0 || !cfg.DisableProposalForwarding || !cfg.AsyncStorageWrites || !cfg.PreVote || !cfg.CheckQuorum {
		t.Fatalf("%+v", cfg)
	}
}

// More is in flight, and later in the log, than Raft gives out at once to apply.
func TestPagesOfCommittedEntries(t *testing.T) {
	fs := memfs.New()
	s := openStack(t, fs, 1)
	const batches = 2 * maxMessageBytes / (batch.HeaderSize + 10) // of stubs
	var all []*pending
	for range batches / 3 {
		all = append(all, s.submit(batchOf(-1, -1, -1, 3, nil)))
	}
	for i, p := range all {
		if a := p.wait(t); a.Err != nil || a.Base != batch.Offset(3*i) {
			t.Fatalf("answer %d: %+v", i, a)
		}
	}
	for range 2 * batches / 3 {
		all = append(all, s.submit(batchOf(-1, -1, -1, 3, nil)))
	}
	for _, p := range all {
		must(t, p.wait(t).Err)
	}
	s.close()
	s = openStack(t, fs, 1)
	defer s.close()
	if st := s.partition.Status(); st.HighWatermark != batch.Offset(3*len(all)) || st.NextOffset != st.HighWatermark {
		t.Fatalf("status after a restart: %+v, stored were %d", st, 3*len(all))
	}
	if a := s.produce(batchOf(7, 0, 0, 1, nil)); a.Err != nil || a.Base != batch.Offset(3*len(all)) {
		t.Fatalf("%+v", a)
	}
}

// The first reason for going offline stays: what fails afterwards follows from it.
func TestFirstFailureStays(t *testing.T) {
	host := &testHost{}
	l := &loop[int]{core: &core{m: &metadataCore{}}, logger: quiet(), host: host}
	first := errors.New("first")
	l.check(nil)
	l.check(first)
	l.check(errors.New("second"))
	l.failed(errors.New("third"))
	if l.core.offline != first || !slices.Equal(host.damaged(), []error{first}) {
		t.Fatalf("offline because of %v, the node was told of %v", l.core.offline, host.damaged())
	}
}

// A batch that does not stand at the next offset is not what this replica's rule stored, wherever it stands.
func TestAppliedAtAnotherOffset(t *testing.T) {
	for at := range batch.Offset(3) {
		table := dedupe.New(dedupe.RulesVersion, 0)
		p := &partitionCore{core: &core{}, table: table, head: dedupe.NewHead(table), high: 1}
		b := batchOf(7, 0, 0, 1, nil)
		batch.SetPlace(b, at, 1)
		err := p.apply(time.Time{}, &pb.Entry{Index: new(uint64(2)), Data: b})
		if _, mismatch := errors.AsType[*MismatchError](err); mismatch != (at != 1) || mismatch && (p.high != 1 || table.Producers() != 0) {
			t.Errorf("at offset %d: %v, high watermark %d", at, err, p.high)
		}
	}
}

// A partition whose log begins at a later offset says so in every answer.
func TestAnswersNameTheLogStart(t *testing.T) {
	s := openFilesWith(t, memfs.New(), 1, raftlog.Base{LogStart: 5, NextOffset: 5, Body: newborn().Body}).opened()
	defer s.close()
	for _, what := range []string{"batch", "retry"} {
		if a := s.produce(batchOf(7, 0, 0, 3, nil)); a.Base != 5 || a.LogStart != 5 || a.Err != nil {
			t.Errorf("%s: %+v", what, a)
		}
	}
	if a := s.produce(batchOf(7, 0, 9, 1, nil)); a.Base != -1 || a.LogStart != 5 || !errors.Is(a.Err, ErrRefused) {
		t.Errorf("refusal: %+v", a)
	}
	if _, err := s.partition.Read(nil, 4, 1, true); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("read below the log start: %v", err)
	}
	if st := s.partition.Status(); st.LogStart != 5 || st.HighWatermark != 8 {
		t.Errorf("status %+v", st)
	}
}

// observer is a submission that looks at the partition at the moment of its answer.
type observer struct {
	*pending
	partition *Partition
	status    Status
}

func (o *observer) Done(a Ack) {
	o.status = o.partition.Status()
	o.pending.Done(a)
}

// What a status says, and when: the high watermark before the answers that follow from it; what is proposed and not
// committed lies inside the log and is not given to readers; and readers that wait hear when there is no leader any more.
func TestStatusAndReaders(t *testing.T) {
	gate := newGateFS()
	s := openFiles(t, gate, 1)
	open := gate.shut()
	s.start(func(error) {})
	wake := make(chan struct{}, 1)
	s.partition.Watch(wake)
	open()
	must(t, s.partition.Opened(t.Context()))
	wait(t, "the waking of a reader when the partition is ready", wake1(wake))

	open = gate.shut()
	b := batchOf(7, 0, 0, 1, nil)
	h, _ := batch.CheckProduce(b)
	o := &observer{partition: s.partition, pending: newPending()}
	must(t, s.partition.Submit(&Submission{Batch: b, Header: h, Done: o}))
	<-gate.held
	waitFor(t, func() bool { return s.partition.Status().NextOffset == 1 })
	if data, err := s.partition.Read(nil, 1, 100, true); err != nil || len(data) != 0 {
		t.Errorf("read at the log end: %d bytes, %v", len(data), err)
	}
	if data, err := s.partition.Read(nil, 0, 100, true); err != nil || len(data) != 0 {
		t.Errorf("read of what is not committed: %d bytes, %v", len(data), err)
	}
	if _, err := s.partition.Read(nil, 2, 100, true); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("read behind the log end: %v", err)
	}
	open()
	must(t, o.wait(t).Err)
	if o.status.HighWatermark != 1 {
		t.Errorf("status at the answer: %+v", o.status)
	}
	for len(wake) > 0 {
		<-wake
	}
	broken := errors.New("input/output error")
	gate.fail.Store(&broken)
	s.produce(batchOf(7, 0, 1, 1, nil))
	wait(t, "the waking of a reader when the partition is offline", wake1(wake))
	_ = s.partition.Close()
	s.flushers.Close()
}

// wake1 is closed when wake has got a value.
func wake1(wake <-chan struct{}) <-chan struct{} { return background(func() { <-wake }) }
