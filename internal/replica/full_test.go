package replica

import (
	"errors"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// While the node says that the disk is full nothing new gets in, and a retry of what is stored is answered as ever. Of a
// pipeline each batch hears of the disk, not of the gap that the first one leaves. Log start and expiry go on.
func TestFullDiskRefuses(t *testing.T) {
	s := openStack(t, memfs.New(), 1)
	defer s.close()
	s.accepted(next(7, 0))
	s.host.full.Store(true)
	before := s.log.Segments().LastIndex()
	for _, b := range [][]byte{
		next(7, 1), next(7, 2), next(8, 0), batchOf(-1, -1, -1, 1, nil), batchOf(7, 0, 1, 1, make([]byte, testMaxMessageBytes)),
	} {
		if a := s.produce(b); !errors.Is(a.Err, ErrDiskFull) || a.Base != -1 {
			t.Fatalf("answer %+v", a)
		}
	}
	if a := s.produce(next(7, 0)); a.Err != nil || a.Base != 0 || a.Decision.Verdict != dedupe.Duplicate {
		t.Fatalf("a retry: %+v", a)
	}
	if last := s.log.Segments().LastIndex(); last != before || s.host.counted() != 1 {
		t.Fatalf("the log went from %d to %d", before, last)
	}
	if data, err := s.partition.Read(nil, 0, 1000, true); len(data) == 0 || err != nil {
		t.Fatalf("read: %d bytes, %v", len(data), err)
	}
	if start, err := s.partition.DeleteRecords(t.Context(), -1); start != 1 || err != nil {
		t.Fatalf("DeleteRecords: %d, %v", start, err)
	}
	s.clock.advance(48 * time.Hour)
	s.housekeep(Expire)
	if s.remembered(next(7, 0)) {
		t.Fatal("nobody expires while the disk is full")
	}
	s.host.full.Store(false)
	if a := s.produce(next(7, 1)); a.Err != nil || a.Base != 1 {
		t.Fatalf("when there is room again: %+v", a)
	}
}

// openNarrow opens a partition that holds one batch, on a disk with room for so many bytes more. It is told by parked,
// each time, that the writer waits for room.
func openNarrow(t *testing.T, room int64) (s *stack, fs *memfs.FS, parked <-chan struct{}) {
	t.Helper()
	fs = memfs.New()
	s = openFiles(t, fs, 1)
	full := make(chan struct{}, 100)
	s.startWith(raftlog.Events{Fatal: s.noFatal, Full: func(error) { full <- struct{}{} }})
	must(t, s.partition.Opened(t.Context()))
	s.accepted(next(7, 0))
	free, total, err := fs.Space("data")
	must(t, err)
	fs.SetCapacity(total - free + room)
	return s, fs, full
}

// A batch that was accepted and meets a full disk waits, as do those behind it; when there is room each is stored once,
// at the offset that it was given.
func TestAcceptedWaitsForRoom(t *testing.T) {
	s, fs, parked := openNarrow(t, 4<<10)
	var all []*pending
	for k := batch.Sequence(1); k < 6; k++ {
		all = append(all, s.submit(batchOf(7, 0, k, 1, make([]byte, 10_000))))
	}
	<-parked
	retry := s.submit(batchOf(7, 0, 1, 1, make([]byte, 10_000)))
	s.flushers.Retry() // there is no room yet
	<-parked
	for i, p := range append(all, retry) {
		select {
		case <-p.done:
			t.Fatalf("answer %d on a full disk: %+v", i, p.ack)
		default:
		}
	}
	if st := s.partition.Status(); !st.Ready || st.HighWatermark != 1 {
		t.Fatalf("status %+v", st)
	}
	fs.SetCapacity(0)
	s.flushers.Retry()
	for i, p := range all {
		if a := p.wait(t); a.Err != nil || a.Base != batch.Offset(i+1) {
			t.Fatalf("answer %d: %+v", i, a)
		}
	}
	if a := retry.wait(t); a.Err != nil || a.Base != 1 {
		t.Fatalf("retry: %+v", a)
	}
	if n := len(s.stored()); n != 6 {
		t.Fatalf("%d batches stored", n)
	}
	s.close()
	checkRebuilt(t, s)
}

// A partition on a full disk can be closed: what it accepted and could not store ends without a word of whether it is
// stored, and its retry finds out.
func TestCloseOnAFullDisk(t *testing.T) {
	s, fs, parked := openNarrow(t, 0)
	b := batchOf(7, 0, 1, 1, make([]byte, 10_000))
	p := s.submit(b)
	<-parked
	deleted := make(chan error, 1)
	go func() {
		_, err := s.partition.DeleteRecords(t.Context(), 1)
		deleted <- err
	}()
	waitFor(t, func() bool {
		var starting batch.Offset
		s.do(func(time.Time) { starting = s.partition.core.starting })
		return starting == 1
	})
	ended := background(func() { must(t, s.partition.Close()) })
	if a := p.wait(t); !errors.Is(a.Err, ErrStopped) {
		t.Fatalf("answer %+v", a)
	}
	if err := <-deleted; !errors.Is(err, ErrStopped) {
		t.Fatalf("DeleteRecords: %v", err)
	}
	wait(t, "the end of Close", ended)
	s.flushers.Close()
	must(t, s.state.Close())
	if s.held() != 0 {
		t.Fatalf("%d bytes are held", s.held())
	}
	fs.SetCapacity(0)
	s = openStack(t, fs, 1)
	defer s.close()
	if a := s.produce(b); a.Err != nil || a.Base != 1 {
		t.Fatalf("retry: %+v", a)
	}
	if n := len(s.stored()); n != 2 {
		t.Fatalf("%d batches stored", n)
	}
}

// A partition that could not be opened answers everything with the reason.
func TestOpenOffline(t *testing.T) {
	damage := errors.New("segment is damaged at byte 7")
	p := OpenOffline(3, damage)
	done := newPending()
	b := next(7, 0)
	h, _ := batch.CheckProduce(b)
	must(t, p.Submit(&Submission{Batch: b, Header: h, Done: done}))
	select {
	case <-done.done:
	default:
		t.Fatal("no answer when Submit returns")
	}
	if a := done.ack; !errors.Is(a.Err, ErrOffline) || !errors.Is(a.Err, damage) || a.Base != -1 {
		t.Fatalf("answer %+v", a)
	}
	if err := p.Opened(t.Context()); !errors.Is(err, damage) {
		t.Errorf("opened: %v", err)
	}
	if _, err := p.Read(nil, 0, 1, true); !errors.Is(err, ErrOffline) {
		t.Errorf("read: %v", err)
	}
	if _, err := p.Available(0, 1); !errors.Is(err, ErrOffline) {
		t.Errorf("available: %v", err)
	}
	if _, err := p.DeleteRecords(t.Context(), -1); !errors.Is(err, ErrOffline) {
		t.Errorf("DeleteRecords: %v", err)
	}
	p.Housekeep(Expire | Retain | RetryBases)
	p.EvictIdle(0, 1)
	wake := make(chan struct{}, 1)
	p.Watch(wake)
	p.Unwatch(wake)
	if st := p.Status(); st.Ready || st.Term != 3 || st.Offline != damage || st.OldestIdle != 0 {
		t.Errorf("status %+v", st)
	}
	must(t, p.Close())
}

// Damage that a read meets is never given to anybody; the node hears of it, and the rest of the partition is read.
func TestDamageIsNotServed(t *testing.T) {
	setSegmentBytes(t, 5000)
	fs := memfs.New()
	s := openStack(t, fs, 1)
	defer s.close()
	s.fill(7, 0, 10)
	flip(t, fs, "data/groups/7/"+s.files(".log")[0], 1500)
	before, err := s.partition.Read(nil, 0, 5000, true)
	if err != nil || len(before) == 0 {
		t.Fatalf("read what is before the damage: %d bytes, %v", len(before), err)
	}
	last, err := batch.CheckStored(before)
	if err != nil || last.Size != len(before) {
		t.Fatalf("what is before the damage is not one whole batch of %d bytes: %v", len(before), err)
	}
	for range 2 {
		data, err := s.partition.Read([]byte("before"), last.NextOffset(), 5000, true)
		if !errors.Is(err, ErrDamaged) || string(data) != "before" {
			t.Fatalf("read %d bytes, %v", len(data), err)
		}
	}
	if d := s.host.damaged(); len(d) != 2 {
		t.Fatalf("the node heard %v", d)
	}
	if data, err := s.partition.Read(nil, 8, 5000, true); err != nil || len(data) == 0 {
		t.Fatalf("read elsewhere: %d bytes, %v", len(data), err)
	}
	s.fill(7, 10, 1)
}

// flip turns one bit of a file.
func flip(t testing.TB, fs vfs.FS, path string, at int64) {
	t.Helper()
	file, err := fs.Open(path)
	must(t, err)
	b := make([]byte, 1)
	_, err = file.ReadAt(b, at)
	must(t, err)
	b[0] ^= 1
	_, err = file.WriteAt(b, at)
	must(t, err)
	must(t, file.Close())
}

// Where Raft reads its log and the disk fails, the partition goes offline; the process goes on. The bug of anybody else
// still ends it.
func TestStorageOfRaftFails(t *testing.T) {
	s := openStack(t, memfs.New(), 1)
	s.accepted(next(7, 0))
	broken := errors.New("input/output error")
	s.do(func(time.Time) { s.partition.core.storage.failed = broken })
	if a := s.produce(next(7, 1)); !errors.Is(a.Err, ErrOffline) || !errors.Is(a.Err, broken) {
		t.Fatalf("answer %+v", a)
	}
	if d := s.host.damaged(); len(d) != 1 || !errors.Is(d[0], broken) {
		t.Fatalf("the node heard %v", d)
	}
	s.close()

	st := &storage{}
	if err := st.guard(func() error { st.failed = broken; panic(broken) }); err != broken {
		t.Fatalf("a panic because of the storage: %v", err)
	}
	defer func() {
		if recover() != "bug" {
			t.Fatal("a panic that has another reason is kept quiet")
		}
	}()
	_ = (&storage{}).guard(func() error { panic("bug") })
}
