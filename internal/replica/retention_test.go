package replica

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// stamped sets the time of a batch's records.
func stamped(b []byte, at time.Time) []byte {
	binary.BigEndian.PutUint64(b[27:], uint64(at.UnixMilli()))
	binary.BigEndian.PutUint64(b[35:], uint64(at.UnixMilli()))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// files returns the names in the group's directory that end so.
func (s *stack) files(suffix string) []string {
	s.t.Helper()
	names, err := s.fs.List("data/groups/7")
	must(s.t, err)
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, suffix) })
}

// fill writes batches of one producer from a sequence on, of about a kilobyte each, and returns the offset behind them.
func (s *stack) fill(id batch.ProducerID, first, n batch.Sequence) (next batch.Offset) {
	s.t.Helper()
	for k := first; k < first+n; k++ {
		b := stamped(batchOf(id, 0, k, 1, make([]byte, 1000)), s.clock.Now())
		next = s.accepted(b) + 1
	}
	return next
}

// checkFiles demands one index and one base snapshot for each segment.
func (s *stack) checkFiles(segments int) {
	s.t.Helper()
	logs := s.files(".log")
	if len(logs) != segments {
		s.t.Fatalf("segments %v, want %d", logs, segments)
	}
	for i, suffix := range []string{".idx", ".base"} {
		other := s.files(suffix)
		for k := range other {
			other[k] = strings.TrimSuffix(other[k], suffix) + ".log"
		}
		if !slices.Equal(other, logs) {
			s.t.Fatalf("segments %v, %s %v", logs, []string{"indexes", "bases"}[i], other)
		}
	}
}

func TestRetentionByBytes(t *testing.T) {
	setSegmentBytes(t, 5000)
	fs := memfs.New()
	s := openWith(t, fs, 1, func(c *Settings) { c.RetentionBytes = 12_000 })
	end := s.fill(7, 0, 40)
	s.settle()
	s.checkFiles(len(s.log.Segments().Segments()))
	s.housekeep(Retain)
	st := s.partition.Status()
	var bytes int64
	segments := s.log.Segments().Segments()
	for _, segment := range segments {
		bytes += segment.Bytes
	}
	if st.HighWatermark != end || st.LogStart != segments[0].FirstOffset || bytes < 12_000 || bytes-segments[0].Bytes >= 12_000 {
		t.Fatalf("status %+v, %d bytes in %+v", st, bytes, segments)
	}
	s.checkFiles(len(segments))
	if _, err := s.partition.Read(nil, st.LogStart-1, 100, true); !errors.Is(err, ErrOutOfRange) {
		t.Fatalf("read below the log start: %v", err)
	}
	// What is gone is not forgotten, before and after a restart.
	for range 2 {
		for k := batch.Sequence(35); k < 40; k++ {
			if !s.remembered(batchOf(7, 0, k, 1, nil)) {
				t.Fatalf("sequence %d is not remembered", k)
			}
		}
		s.close()
		s = openWith(t, fs, 1, func(c *Settings) { c.RetentionBytes = 12_000 })
		if again := s.partition.Status(); again.LogStart != st.LogStart || again.HighWatermark != end {
			t.Fatalf("status after a restart %+v", again)
		}
	}
	s.close()
}

// When all records are too old the active segment goes as well; offsets and sequences go on.
func TestRetentionByTime(t *testing.T) {
	setSegmentBytes(t, 5000)
	s := openWith(t, memfs.New(), 1, func(c *Settings) { c.Retention = time.Hour })
	defer s.close()
	s.fill(7, 0, 10)
	s.clock.advance(30 * time.Minute)
	end := s.fill(7, 10, 2)
	s.clock.advance(30*time.Minute + time.Millisecond)
	s.housekeep(Retain)
	st := s.partition.Status()
	first := s.log.Segments().Segments()[0]
	if st.LogStart == 0 || st.LogStart >= end || st.LogStart != first.FirstOffset || first.MaxTimestamp < s.clock.Now().Add(-time.Hour).UnixMilli() {
		t.Fatalf("status %+v, first segment %+v", st, first)
	}
	s.clock.advance(time.Hour)
	s.housekeep(Retain)
	if st := s.partition.Status(); st.LogStart != end || st.HighWatermark != end {
		t.Fatalf("status %+v, all is too old", st)
	}
	s.checkFiles(1)
	if segments := s.log.Segments().Segments(); segments[0].FirstOffset != end {
		t.Fatalf("left is %+v", segments)
	}
	before := len(s.kinds())
	s.housekeep(Retain)
	if kinds := s.kinds(); len(kinds) != before || len(s.files(".log")) != 1 {
		t.Fatalf("entries %v of nothing to do", kinds)
	}
	if a := s.produce(batchOf(7, 0, 11, 1, nil)); a.Base != end-1 || a.LogStart != end || a.Decision.Verdict != dedupe.Duplicate {
		t.Fatalf("a retry of what is gone: %+v", a)
	}
	if got := s.fill(7, 12, 1); got != end+1 {
		t.Fatalf("the next offset is %d", got)
	}
}

func TestSegmentAge(t *testing.T) {
	fs := memfs.New()
	day := func(c *Settings) { c.SegmentAge = 24 * time.Hour }
	s := openWith(t, fs, 1, day)
	s.clock.advance(48 * time.Hour)
	s.housekeep(Retain) // there is nothing in it
	s.fill(7, 0, 1)
	s.clock.advance(23 * time.Hour)
	s.housekeep(Retain)
	s.checkFiles(1)
	s.close()
	s = openWith(t, fs, 1, day) // the age is that of the first batch, over a restart
	s.fill(7, 1, 1)
	s.clock.advance(24*time.Hour - time.Millisecond)
	s.housekeep(Retain)
	s.checkFiles(1)
	s.clock.advance(time.Millisecond)
	s.housekeep(Retain)
	s.checkFiles(2)
	s.clock.advance(48 * time.Hour)
	s.housekeep(Retain)
	s.checkFiles(2)
	s.fill(7, 2, 1)
	s.housekeep(Retain)
	s.checkFiles(2)
	s.close()
}

// spentByKafka is what Kafka does, written down as one pass by time and one by size, again and again.
func spentByKafka(s *Settings, wall int64, segments []seglog.SegmentInfo) batch.Offset {
	end := batch.Offset(0)
	for before := -1; before != len(segments); {
		before = len(segments)
		for len(segments) > 0 {
			g := segments[0]
			if g.NextOffset > g.FirstOffset && (s.Retention < 0 || g.MaxTimestamp < 0 || wall-g.MaxTimestamp <= s.Retention.Milliseconds()) {
				break
			}
			end, segments = g.NextOffset, segments[1:]
		}
		var size int64
		for _, g := range segments {
			size += g.Bytes
		}
		surplus := size - s.RetentionBytes
		for len(segments) > 0 && s.RetentionBytes >= 0 && surplus-segments[0].Bytes >= 0 {
			surplus -= segments[0].Bytes
			end, segments = segments[0].NextOffset, segments[1:]
		}
	}
	return end
}

func TestSpentLikeKafka(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 4))
	for range 20_000 {
		var segments []seglog.SegmentInfo
		offset := batch.Offset(rng.IntN(10))
		for range rng.IntN(6) + 1 {
			g := seglog.SegmentInfo{FirstOffset: offset, NextOffset: offset, Bytes: rng.Int64N(10) + 1, MaxTimestamp: -1}
			if rng.IntN(4) > 0 {
				g.NextOffset += batch.Offset(rng.IntN(3) + 1)
				g.MaxTimestamp = rng.Int64N(20) - 1
			}
			offset = g.NextOffset
			segments = append(segments, g)
		}
		s := &Settings{Retention: time.Duration(rng.Int64N(12)-1) * time.Millisecond, RetentionBytes: rng.Int64N(20) - 1}
		if got, want := s.spent(20, segments), spentByKafka(s, 20, segments); got != want {
			t.Fatalf("behind %d, want %d: %+v, %+v", got, want, s, segments)
		}
	}
}

// deletions is how many wait for the log start to move.
func (s *stack) deletions() (n int) {
	s.t.Helper()
	s.do(func(time.Time) { n = len(s.partition.core.deletions) })
	return n
}

func TestDeleteRecords(t *testing.T) {
	fs := memfs.New()
	s := openStack(t, fs, 1)
	if start, err := s.partition.DeleteRecords(t.Context(), -1); start != 0 || err != nil {
		t.Fatalf("of an empty partition: %d, %v", start, err)
	}
	s.accepted(batchOf(7, 0, 0, 5, []byte("five")))
	wake := make(chan struct{}, 1)
	s.partition.Watch(wake)
	for _, c := range []struct {
		before, start batch.Offset
		err           error
	}{
		{6, -1, ErrOutOfRange}, {-2, -1, ErrOutOfRange}, {2, 2, nil}, {1, 2, nil}, {0, 2, nil}, {2, 2, nil}, {-1, 5, nil}, {5, 5, nil},
	} {
		start, err := s.partition.DeleteRecords(t.Context(), c.before)
		if start != c.start || !errors.Is(err, c.err) {
			t.Fatalf("before %d: %d, %v", c.before, start, err)
		}
		if st := s.partition.Status(); c.err == nil && st.LogStart != c.start {
			t.Fatalf("status %+v after an answer of %d", st, c.start)
		}
		if c.before == 2 { // a batch that holds the log start is read whole
			if data, err := s.partition.Read(nil, 2, 1000, true); err != nil || len(data) != batch.HeaderSize+4 {
				t.Fatalf("read from the log start: %d bytes, %v", len(data), err)
			}
		}
	}
	if len(wake) == 0 {
		t.Fatal("a reader that waits was not woken")
	}
	s.settle()
	if n := countKind(s.kinds(), seglog.KindLogStart); n != 0 { // the segment that held them is gone
		t.Fatalf("entries %v", s.kinds())
	}
	s.checkFiles(1)

	// Offsets do not restart, sequences go on, and a stranger must begin at 0.
	for range 2 {
		for _, b := range [][]byte{batchOf(7, 0, 5, 1, []byte("next")), batchOf(7, 0, 5, 1, []byte("next"))} {
			if a := s.produce(b); a.Err != nil || a.Base != 5 || a.LogStart != 5 {
				t.Fatalf("answer %+v", a)
			}
		}
		for _, b := range [][]byte{batchOf(7, 0, 9, 1, nil), batchOf(8, 0, 40, 1, nil)} {
			if a := s.produce(b); !errors.Is(a.Err, ErrRefused) || a.Decision.Verdict != dedupe.OutOfOrder {
				t.Fatalf("answer %+v", a)
			}
		}
		s.close()
		s = openStack(t, fs, 1)
	}
	ended, cancel := context.WithCancelCause(t.Context())
	tired := errors.New("tired of waiting")
	cancel(tired)
	if _, err := s.partition.DeleteRecords(ended, -1); err != nil && !errors.Is(err, tired) {
		t.Fatalf("with a context that has ended: %v", err)
	}
	s.close()
	if _, err := s.partition.DeleteRecords(t.Context(), -1); !errors.Is(err, ErrStopped) {
		t.Fatalf("after the end: %v", err)
	}
}

// The answer of DeleteRecords comes when the log start is durable, and when that will not be known, it says so.
func TestDeleteRecordsWaitsForTheSync(t *testing.T) {
	gate := newGateFS()
	s := openFiles(t, gate, 1)
	s.start(func(error) {})
	must(t, s.partition.Opened(t.Context()))
	s.accepted(next(7, 0))
	s.accepted(next(7, 1))
	open := gate.shut()
	answers := make(chan error, 2)
	for before := range batch.Offset(2) {
		go func() {
			_, err := s.partition.DeleteRecords(t.Context(), before+1)
			answers <- err
		}()
		if before == 0 {
			<-gate.held
		}
	}
	waitFor(t, func() bool { return s.deletions() == 2 })
	if st := s.partition.Status(); st.LogStart != 0 || len(answers) != 0 {
		t.Fatalf("status %+v, %d answers before the sync", st, len(answers))
	}
	broken := errors.New("input/output error")
	gate.fail.Store(&broken)
	open()
	for range 2 {
		if err := <-answers; !errors.Is(err, ErrStopped) {
			t.Fatalf("answer after a failed sync: %v", err)
		}
	}
	_ = s.partition.Close()
	s.flushers.Close()
}

// A segment goes only when the next one has its base snapshot, and what a stop has kept from going goes after the start.
func TestSegmentsWaitForTheBase(t *testing.T) {
	setSegmentBytes(t, 5000)
	fs := memfs.New()
	s := openStack(t, fs, 1)
	release := s.host.hold()
	s.fill(7, 0, 20)
	segments := len(s.files(".log"))
	if _, err := s.partition.DeleteRecords(t.Context(), -1); err != nil {
		t.Fatal(err)
	}
	s.partition.Housekeep(Retain | RetryBases)
	s.do(func(time.Time) {})
	if n := len(s.files(".log")); n < segments || len(s.files(".base")) != 1 {
		t.Fatalf("%d segments of %d, bases %v", n, segments, s.files(".base"))
	}
	s.close()
	release() // too late for anything to be done
	if n := len(s.files(".log")); n < segments || len(s.files(".base")) != 1 {
		t.Fatalf("%d segments of %d, bases %v", n, segments, s.files(".base"))
	}

	s = openStack(t, fs, 1)
	defer s.close()
	s.settle()
	s.checkFiles(1)
	if st := s.partition.Status(); st.LogStart != 20 || st.HighWatermark != 20 {
		t.Fatalf("status %+v", st)
	}
}

// What could not be removed is removed when a chore says so, or at the next start. A segment that holds a record at or above
// the log start stays.
func TestRemovalsAreMadeUpFor(t *testing.T) {
	setSegmentBytes(t, 5000)
	mem := memfs.New()
	inject := &failing{part: ".log"}
	s := openStack(t, errfs.Wrap(mem, errfs.On(errfs.OpRemove, inject)), 1)
	s.fill(7, 0, 30)
	s.settle()
	segments := s.log.Segments().Segments()
	remove := func(before batch.Offset) {
		t.Helper()
		_, err := s.partition.DeleteRecords(t.Context(), before)
		must(t, err)
		s.settle()
	}
	remove(segments[2].FirstOffset - 1)
	s.checkFiles(len(segments) - 1)
	if data, err := s.partition.Read(nil, segments[2].FirstOffset-1, 1, true); err != nil || len(data) == 0 {
		t.Fatalf("the first record is not read: %v", err)
	}
	inject.on(syscall.EIO)
	remove(segments[2].FirstOffset)
	s.housekeep(Retain | RetryBases)
	if n := len(s.files(".log")); n != len(segments)-1 {
		t.Fatalf("%d segments, removed while that fails", n)
	}
	inject.off()
	s.housekeep(RetryBases)
	s.checkFiles(len(segments) - 2)
	inject.on(syscall.EIO)
	remove(segments[4].FirstOffset)
	s.close()
	if n := len(s.files(".log")); n != len(segments)-2 {
		t.Fatalf("%d segments, removed while that fails", n)
	}
	s = openStack(t, mem, 1)
	defer s.close()
	s.settle()
	s.checkFiles(len(segments) - 4)
}

// Readers and removals meet: whoever reads what goes gets it, or hears that it is below the log start.
func TestReadsWhileSegmentsGo(t *testing.T) {
	setSegmentBytes(t, 5000)
	s := openStack(t, memfs.New(), 1)
	defer s.close()
	stop := make(chan struct{})
	read := background(func() {
		for from := batch.Offset(0); ; {
			data, err := s.partition.Read(nil, from, 10_000, true)
			switch {
			case errors.Is(err, ErrOutOfRange):
				from = s.partition.Status().LogStart
			case err != nil:
				t.Errorf("read from %d: %v", from, err)
				return
			case len(data) > 0:
				h, err := batch.CheckStored(data)
				if err != nil || h.BaseOffset > from || h.NextOffset() <= from {
					t.Errorf("read from %d: %+v, %v", from, h, err)
					return
				}
				if from = h.NextOffset(); from%7 == 0 {
					from = 0
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for k := batch.Sequence(0); k < 300; k += 10 {
		s.fill(7, k, 10)
		if _, err := s.partition.DeleteRecords(t.Context(), batch.Offset(k)); err != nil {
			t.Fatal(fmt.Errorf("delete before %d: %w", k, err))
		}
	}
	close(stop)
	wait(t, "the reader's end", read)
	s.settle()
	if n := len(s.files(".log")); n > 6 {
		t.Fatalf("%d segments are left", n)
	}
}

// However many want to delete while the disk does not answer, one log start entry is on its way; those who have given up
// are not waited for.
func TestDeletionsShareAnEntry(t *testing.T) {
	gate := newGateFS()
	s := openStack(t, gate, 1)
	s.fill(7, 0, 20)
	open := gate.shut()
	impatient, giveUp := context.WithCancel(t.Context())
	var ended []chan error
	remove := func(ctx context.Context, before batch.Offset) {
		done := make(chan error, 1)
		ended = append(ended, done)
		n := s.deletions()
		go func() {
			start, err := s.partition.DeleteRecords(ctx, before)
			if err == nil && start < before {
				err = fmt.Errorf("log start %d, wanted %d", start, before)
			}
			done <- err
		}()
		waitFor(t, func() bool { return s.deletions() > n })
	}
	remove(t.Context(), 3)
	<-gate.held
	for before := batch.Offset(18); before > 4; before -= 2 {
		remove(impatient, before)
	}
	remove(t.Context(), 2)
	giveUp()
	for _, done := range ended[1:8] {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("whoever gave up hears %v", err)
		}
	}
	go func() { // it clears away those who have given up
		_, err := s.partition.DeleteRecords(t.Context(), 7)
		ended[1] <- err
	}()
	waitFor(t, func() bool { return s.deletions() == 3 })
	open()
	for _, done := range []chan error{ended[0], ended[8], ended[1]} {
		must(t, <-done)
	}
	s.settle()
	if st := s.partition.Status(); st.LogStart != 7 || countKind(s.kinds(), seglog.KindLogStart) != 2 {
		t.Fatalf("status %+v, entries %v", st, s.kinds())
	}
	s.close()
}
