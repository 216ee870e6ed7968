package replica

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// openMarked opens a partition that may have forgotten every producer below start number 100.
func openMarked(t *testing.T, change func(*Settings)) *stack {
	t.Helper()
	s := openFilesWith(t, memfs.New(), 1, raftlog.Base{Body: dedupe.New(dedupe.RulesVersion, 100).AppendTo(nil)})
	change(s.settings)
	return s.opened()
}

// refusedBeginning has the first batch of a producer refused for a reason that has passed when the second one comes. The
// second must wait for the first: else the first could never be stored.
func refusedBeginning(t *testing.T, s *stack, first, again, second []byte, reason error, pass func()) {
	t.Helper()
	defer s.close()
	if a := s.produce(first); !errors.Is(a.Err, reason) {
		t.Fatalf("the first batch: %+v", a)
	}
	pass()
	h, _ := batch.ParseHeader(first)
	if a := s.produce(second); !errors.Is(a.Err, ErrRefused) || a.Decision.Verdict != dedupe.OutOfOrder ||
		a.Decision.Reason != dedupe.Gap || a.Decision.Expected != h.BaseSequence {
		t.Fatalf("the second batch: %+v", a)
	}
	s.accepted(again)
	if n := len(s.partition.core.beginnings.notes); n != 0 {
		t.Errorf("%d notes stand", n)
	}
	s.accepted(second)
}

func TestBeginningRefusedOnAFullDisk(t *testing.T) {
	for _, first := range []batch.Sequence{0, 5, math.MaxInt32} {
		s := openMarked(t, func(*Settings) {})
		s.host.full.Store(true)
		b := next(7, first)
		refusedBeginning(t, s, b, b, next(7, batch.AddSequence(first, 1)), ErrDiskFull, func() { s.host.full.Store(false) })
	}
}

func TestBeginningRefusedAtTheCap(t *testing.T) {
	s := openMarked(t, func(c *Settings) { c.ProducersMax, c.ProducerEvictionMinAge = 1, time.Minute })
	s.accepted(next(8, 0))
	refusedBeginning(t, s, next(7, 5), next(7, 5), next(7, 6), ErrTooManyProducers, func() { s.clock.advance(2 * time.Minute) })
}

func TestBeginningRefusedForItsSize(t *testing.T) {
	s := openMarked(t, func(c *Settings) { c.MaxMessageBytes = 200 })
	large, half := batchOf(7, 0, 5, 2, make([]byte, 300)), batchOf(7, 0, 5, 2, make([]byte, 50))
	refusedBeginning(t, s, large, half, next(7, 7), ErrTooLarge, func() {})
}

// Before the partition is ready nobody knows which batches are beginnings.
func TestBeginningRefusedBeforeReady(t *testing.T) {
	s := openMarked(t, func(*Settings) {})
	b := next(7, 5)
	s.do(func(now time.Time) { // as it is until the first entry of the term is applied
		c := s.partition.core
		own := c.firstOwn
		c.firstOwn = c.applied + 1
		h, _ := batch.ParseHeader(b)
		c.produce(now, []*Submission{{Batch: b, Header: h, Done: ignored{}}})
		c.answers = c.answers[:0] // its bytes are not of the mailbox
		c.firstOwn = own
	})
	if a := s.produce(next(7, 6)); a.Decision.Reason != dedupe.Gap || a.Decision.Expected != 5 {
		t.Fatalf("the second batch: %+v", a)
	}
	s.accepted(b)
	s.close()
}

// ignored is a Done that nobody waits for.
type ignored struct{}

func (ignored) Taken()   {}
func (ignored) Done(Ack) {}

// A note concerns what lies behind it in the same incarnation, and stands for a while.
func TestNotesOfBeginnings(t *testing.T) {
	stamp := func(id batch.ProducerID, epoch batch.Epoch, first batch.Sequence) batch.Stamp {
		return batch.Stamp{ID: id, Epoch: epoch, First: first, Last: first}
	}
	var b beginnings
	now := time.Now()
	taken := func(s batch.Stamp) bool {
		d := dedupe.Decision{Verdict: dedupe.Append, Reason: dedupe.FirstContactForgotten}
		b.judge(&d, s, now)
		return d.Verdict == dedupe.Append
	}
	b.note(batch.Stamp{ID: -1}, now)
	b.note(stamp(7, 0, 5), now)
	b.note(stamp(7, 0, 6), now.Add(time.Minute)) // behind the first: it changes nothing
	if len(b.notes) != 1 || taken(stamp(7, 0, 6)) || !taken(stamp(7, 0, 5)) || !taken(stamp(7, 0, 4)) || !taken(stamp(7, 1, 6)) || !taken(stamp(8, 0, 6)) {
		t.Fatalf("notes %v", b.notes)
	}
	b.note(stamp(7, 0, 3), now) // one that was lost on its way comes after all
	if taken(stamp(7, 0, 5)) || taken(stamp(7, 0, 4)) || !taken(stamp(7, 0, 3)) {
		t.Fatalf("notes %v", b.notes)
	}
	now = now.Add(beginningKept - 1)
	if taken(stamp(7, 0, 4)) {
		t.Fatal("the note is gone too soon")
	}
	if now = now.Add(1); !taken(stamp(7, 0, 4)) || len(b.notes) != 0 {
		t.Fatal("the note stands for ever")
	}
	for id := range batch.ProducerID(beginningsMax) {
		b.note(stamp(id, 0, 5), now)
	}
	b.note(stamp(0, 0, 5), now) // is noted already
	if len(b.notes) != beginningsMax || taken(stamp(0, 0, 6)) {
		t.Fatalf("%d notes", len(b.notes))
	}
	if b.note(stamp(beginningsMax, 0, 5), now); len(b.notes) != 1 || taken(stamp(beginningsMax, 0, 6)) {
		t.Fatalf("%d notes after one too many", len(b.notes))
	}
}

// The log tells of producers that begin in the middle, once a minute at most, and of each of them once.
func TestBeginningsInTheMiddleAreLogged(t *testing.T) {
	var log bytes.Buffer
	s := openMarked(t, func(*Settings) {})
	defer s.close()
	s.do(func(time.Time) { s.partition.loop.logger = slog.New(slog.NewTextHandler(&log, nil)) })
	wrote := func(want ...int) {
		t.Helper()
		s.do(func(time.Time) {
			if got := strings.Count(log.String(), "\n"); got != len(want) {
				t.Errorf("%d lines: %s", got, log.String())
			}
			for _, n := range want {
				if !strings.Contains(log.String(), fmt.Sprintf("producers=%d\n", n)) {
					t.Errorf("no line of %d: %s", n, log.String())
				}
			}
		})
	}
	s.accepted(next(1, 0))
	wrote()
	s.accepted(next(2, 5))
	wrote(1)
	s.accepted(next(3, 5))
	s.accepted(next(4, 5))
	s.clock.advance(reportInterval - 1)
	s.accepted(next(5, 5))
	wrote(1)
	s.clock.advance(1)
	s.accepted(next(2, 6))
	wrote(1, 3)
}

// Offline, a retry is not told that its batch is not stored: what is applied is stored, and what was on its way may be.
func TestRetryWhileOffline(t *testing.T) {
	s := openStack(t, memfs.New(), 1)
	applied, under, never := next(7, 0), next(7, 1), next(7, 2)
	base := s.accepted(applied)
	broken := errors.New("input/output error")
	s.do(func(now time.Time) {
		c := s.partition.core
		b := append([]byte(nil), under...)
		h, _ := batch.ParseHeader(b)
		c.produce(now, []*Submission{{Batch: b, Header: h, Done: ignored{}}})
		s.partition.loop.check(broken)
		c.answers = c.answers[:0] // its bytes are not of the mailbox
	})
	if a := s.produce(applied); a.Err != nil || a.Base != base || a.Decision.Verdict != dedupe.Duplicate {
		t.Errorf("a batch that is applied: %+v", a)
	}
	if a := s.produce(under); !errors.Is(a.Err, ErrStopped) || !errors.Is(a.Err, broken) || a.Base != -1 {
		t.Errorf("a batch that was on its way: %+v", a)
	}
	if a := s.produce(never); !errors.Is(a.Err, ErrOffline) || !errors.Is(a.Err, broken) {
		t.Errorf("a batch that never came: %+v", a)
	}
	_ = s.partition.Close()
	s.flushers.Close()
}

// The least recently used producer of a partition that is offline cannot be forgotten, so nothing is told of it.
func TestOfflineHasNobodyIdle(t *testing.T) {
	s := openStack(t, memfs.New(), 1)
	s.accepted(next(7, 0))
	s.clock.advance(time.Hour)
	s.housekeep(Expire)
	if idle := s.partition.Status().OldestIdle; idle < 30*time.Minute {
		t.Fatalf("idle for %v", idle)
	}
	s.do(func(time.Time) { s.partition.loop.check(errors.New("input/output error")) })
	if st := s.partition.Status(); st.Offline == nil || st.OldestIdle != 0 || st.Producers != 1 {
		t.Errorf("status %+v", st)
	}
	_ = s.partition.Close()
	s.flushers.Close()
}
