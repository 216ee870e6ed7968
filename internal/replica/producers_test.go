package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// next is a batch of one record of a producer, epoch 0.
func next(id batch.ProducerID, first batch.Sequence) []byte {
	return batchOf(id, 0, first, 1, fmt.Appendf(nil, "%d/%d", id, first))
}

// accepted produces and demands that the batch was stored now.
func (s *stack) accepted(b []byte) batch.Offset {
	s.t.Helper()
	a := s.produce(b)
	if a.Err != nil || a.Decision.Verdict == dedupe.Duplicate {
		s.t.Fatalf("answer %+v", a)
	}
	return a.Base
}

// remembered reports whether the partition recognises a retry of a stored batch; if not, nothing is stored.
func (s *stack) remembered(b []byte) bool {
	s.t.Helper()
	h, _ := batch.ParseHeader(b)
	known := false
	s.do(func(time.Time) { known = s.partition.core.head.Decide(h.Stamp()).Verdict == dedupe.Duplicate })
	return known
}

// An idle producer is forgotten after the expiration time and not before, however it was reckoned, and goes on as if it
// had never been away; one that the partition never knew must begin at 0.
func TestExpire(t *testing.T) {
	s := openWith(t, memfs.New(), 1, func(c *Settings) { c.ProducerExpiration, c.ProducerEvictionMinAge = time.Hour, time.Hour })
	defer s.close()
	s.accepted(next(7, 0))
	s.accepted(next(9, 0))
	s.clock.advance(time.Hour)
	s.accepted(next(9, 1)) // not idle
	s.housekeep(Expire)
	if !s.remembered(next(7, 0)) {
		t.Fatal("forgotten an hour after its batch, of which the clock may say less")
	}
	s.clock.advance(s.settings.clockInterval())
	s.housekeep(Expire)
	if s.remembered(next(7, 0)) || !s.remembered(next(9, 1)) || s.partition.Status().Producers != 1 || s.host.counted() != 1 {
		t.Fatalf("status %+v, counted %d", s.partition.Status(), s.host.counted())
	}
	before := len(s.kinds())
	s.housekeep(Expire)
	if kinds := s.kinds(); len(kinds) != before || kinds[before-1] != seglog.KindExpire {
		t.Fatalf("entries %v", kinds)
	}
	if a := s.produce(next(8, 5)); !errors.Is(a.Err, ErrRefused) || a.Decision.Reason != dedupe.FirstContactNotZero {
		t.Fatalf("a producer above the mark begins in the middle: %+v", a)
	}
	if a := s.produce(next(7, 1)); a.Err != nil {
		t.Fatalf("the idle producer comes back: %+v", a)
	}
	if a := s.produce(next(7, 1)); a.Err != nil || a.Base != 3 || a.Decision.Verdict != dedupe.Duplicate {
		t.Fatalf("a retry of it: %+v", a)
	}
	if a := s.produce(next(6, 5)); a.Err != nil {
		t.Fatalf("a producer that may have been forgotten: %+v", a)
	}
}

// A producer that has a batch on its way is not idle, whatever the table says; neither is one that is forgotten already
// forgotten again.
func TestNobodyInFlightIsForgotten(t *testing.T) {
	gate := newGateFS()
	s := openStack(t, gate, 1)
	defer s.close()
	s.accepted(next(7, 0))
	s.accepted(next(8, 0))
	s.clock.advance(48 * time.Hour)
	open := gate.shut()
	p := s.submit(next(7, 1))
	<-gate.held
	s.partition.Housekeep(Expire)
	s.do(func(time.Time) {})
	s.partition.Housekeep(Expire)
	s.do(func(time.Time) {})
	q := s.submit(next(8, 1)) // behind its own expiry, as a producer that may have been forgotten
	open()
	must(t, p.wait(t).Err)
	must(t, q.wait(t).Err)
	s.settle()
	if n := countKind(s.kinds(), seglog.KindExpire); n != 1 || !s.remembered(next(7, 0)) || s.remembered(next(8, 0)) || !s.remembered(next(8, 1)) {
		t.Fatalf("%d expire entries, 7 remembered: %v, 8: %v", n, s.remembered(next(7, 0)), s.remembered(next(8, 0)))
	}
}

func countKind(kinds []seglog.Kind, kind seglog.Kind) int {
	n := 0
	for _, k := range kinds {
		if k == kind {
			n++
		}
	}
	return n
}

// More than one entry can name are forgotten one entry after the other, and other work is done in between.
func TestExpireMany(t *testing.T) {
	setSegmentBytes(t, 1<<20)
	table := dedupe.New(dedupe.RulesVersion, 0)
	table.SetClock(1000)
	const many = 2*dedupe.ForgottenMax + 17
	for id := range batch.ProducerID(many) {
		table.Record(batch.Stamp{ID: id}, batch.Offset(id))
	}
	s := openFilesWith(t, memfs.New(), 1, raftlog.Base{LogStart: many, NextOffset: many, Body: table.AppendTo(nil)}).opened()
	defer s.close()
	if n := s.host.counted(); n != many {
		t.Fatalf("the node counts %d of the %d that were there", n, many)
	}
	if idle := s.partition.Status().OldestIdle; idle != 0 {
		t.Fatalf("idle for %v, and no time has passed here", idle)
	}
	s.clock.advance(25 * time.Hour)
	if st := s.partition.Status(); st.OldestIdle != 25*time.Hour || st.Producers != many {
		t.Fatalf("status %+v", st)
	}
	s.partition.EvictIdle(time.Hour, dedupe.ForgottenMax+10)
	s.settle()
	if n := s.host.counted(); n != many-dedupe.ForgottenMax-10 {
		t.Fatalf("%d are left", n)
	}
	s.housekeep(Expire)
	if st := s.partition.Status(); st.Producers != 0 || st.OldestIdle != 0 || s.host.counted() != 0 {
		t.Fatalf("status %+v, counted %d", st, s.host.counted())
	}
	kinds := s.kinds()
	if countKind(kinds, seglog.KindEvict) != 2 || countKind(kinds, seglog.KindExpire) != 2 {
		t.Fatalf("entries %v", kinds)
	}
}

// At the cap a new producer makes room: the least recently used go, in front of its batch in the same proposal; when nobody
// may go it is refused, with a reason and a time, and nothing is stored or counted.
func TestCap(t *testing.T) {
	fs := memfs.New()
	small := func(c *Settings) { c.ProducersMax, c.ProducerEvictionMinAge = 3, time.Minute }
	s := openWith(t, fs, 1, small)
	for id := range batch.ProducerID(3) {
		s.accepted(next(10+id, 0))
		s.clock.advance(20 * time.Second)
	}
	s.accepted(next(10, 1))                       // used again: 11 is the oldest now, idle for 40 s
	for _, wait := range []string{"15s", "20s"} { // 10 was the oldest at the last look
		a := s.produce(next(13, 0))
		if !errors.Is(a.Err, ErrTooManyProducers) || a.Base != -1 || !strings.Contains(a.Err.Error(), "producer.id.max.per.partition (3)") ||
			!strings.Contains(a.Err.Error(), "in "+wait+" at the earliest") {
			t.Fatalf("a fourth producer: %+v", a)
		}
		s.clock.advance(15 * time.Second)
	}
	if n := s.host.counted(); n != 3 || countKind(s.kinds(), seglog.KindEvict) != 0 {
		t.Fatalf("%d counted, entries %v", n, s.kinds())
	}
	s.clock.advance(5*time.Second - time.Millisecond)
	if a := s.produce(next(13, 0)); !errors.Is(a.Err, ErrTooManyProducers) {
		t.Fatalf("too early: %+v", a)
	}
	s.clock.advance(time.Millisecond)
	s.accepted(next(13, 0))
	kinds := s.kinds()
	if n := len(kinds); kinds[n-3] != seglog.KindEvict || kinds[n-2] != seglog.KindClock || kinds[n-1] != seglog.KindBatch {
		t.Fatalf("entries %v", kinds)
	}
	if s.remembered(next(11, 0)) || !s.remembered(next(12, 0)) || !s.remembered(next(10, 1)) {
		t.Fatal("not the least recently used was forgotten")
	}
	s.clock.advance(20 * time.Second)
	s.accepted(next(11, 1)) // it is marked, and makes room for itself in turn
	if n := s.host.counted(); n != 3 || s.remembered(next(12, 0)) {
		t.Fatalf("%d counted, 12 remembered: %v", n, s.remembered(next(12, 0)))
	}
	s.close()
	if n := s.host.counted(); n != 0 {
		t.Fatalf("%d counted after the end", n)
	}
	s = openWith(t, fs, 1, small)
	defer s.close()
	if n := s.host.counted(); n != 3 {
		t.Fatalf("%d counted after a restart", n)
	}
}

// A refused flood costs no look at all producers each.
func TestFloodAtTheCap(t *testing.T) {
	table := dedupe.New(dedupe.RulesVersion, 0)
	table.SetClock(1000)
	const many = 50_000
	for id := range batch.ProducerID(many) {
		table.Record(batch.Stamp{ID: id}, batch.Offset(id))
	}
	p := &partitionCore{
		core: &core{}, table: table, head: dedupe.NewHead(table), settings: testSettings(), host: &testHost{}, counted: many,
	}
	p.settings.ProducersMax = many
	now := time.Now()
	p.clockApplied = now.Add(-time.Minute)
	var first time.Duration
	for i := range 1000 {
		began := time.Now()
		if err := p.makeRoom(now); !errors.Is(err, ErrTooManyProducers) {
			t.Fatal(err)
		}
		if took := time.Since(began); i == 0 {
			first = took
		} else if i == 999 && took > first {
			t.Errorf("the first refusal takes %v, a later one %v", first, took)
		}
	}
	// Then one of them makes room for many.
	now = now.Add(time.Hour)
	must(t, p.makeRoom(now))
	if got, want := p.head.Producers(), many-many/roomShare; got != want || len(p.entries) != 1 {
		t.Fatalf("%d remembered, want %d; %d entries", got, want, len(p.entries))
	}
	for range many / roomShare {
		must(t, p.makeRoom(now))
		p.head.Record(batch.Stamp{ID: batch.ProducerID(p.head.Producers() + 1<<40)}, batch.Offset(p.head.Producers()))
	}
	if len(p.entries) != 1 {
		t.Fatalf("%d entries to let in as many as the first made room for", len(p.entries))
	}
}

// A cap that was lowered far below what there is frees one entry's worth at a time, until there is room.
func TestLoweredCap(t *testing.T) {
	fs := memfs.New()
	s := openWith(t, fs, 1, func(*Settings) {})
	for id := range batch.ProducerID(50) {
		s.accepted(next(id, 0))
	}
	s.close()
	s = openWith(t, fs, 1, func(c *Settings) { c.ProducersMax = 4 })
	defer s.close()
	if a := s.produce(next(100, 0)); !errors.Is(a.Err, ErrTooManyProducers) || s.host.counted() != 50 {
		t.Fatalf("%+v, %d counted", a, s.host.counted())
	}
	s.clock.advance(time.Hour)
	s.accepted(next(100, 0))
	if st := s.partition.Status(); st.Producers != 4 || s.host.counted() != 4 {
		t.Fatalf("status %+v, counted %d", st, s.host.counted())
	}
}

// At the node's cap a new producer is refused, and an old one served; what a partition forgets counts at once.
func TestNodeCap(t *testing.T) {
	s := openWith(t, memfs.New(), 1, func(c *Settings) { c.ProducersMax = 2 })
	defer s.close()
	s.host.cap = 3
	s.host.CountProducers(1) // another partition's
	s.accepted(next(1, 0))
	s.accepted(next(2, 0))
	s.clock.advance(time.Hour)
	s.accepted(next(3, 0)) // the partition is full as well, and forgets one for it
	s.host.CountProducers(1)
	s.partition.EvictIdle(0, 1)
	s.settle()
	if n := s.host.counted(); n != 3 {
		t.Fatalf("%d counted", n)
	}
	a := s.produce(next(4, 0))
	if !errors.Is(a.Err, ErrTooManyProducers) || !strings.Contains(a.Err.Error(), "producer.id.max.per.node") || s.host.counted() != 3 {
		t.Fatalf("beyond the node's cap: %+v, counted %d", a, s.host.counted())
	}
	s.accepted(next(3, 1))
	s.accepted(batchOf(-1, -1, -1, 1, nil))
	s.host.CountProducers(-1)
	s.accepted(next(4, 0))
}

// What Raft refuses is not counted, and what was to be forgotten with it stays.
func TestWithdrawnCount(t *testing.T) {
	s := openWith(t, memfs.New(), 1, func(c *Settings) { c.ProducersMax = 2 })
	s.accepted(next(1, 0))
	s.accepted(next(2, 0))
	s.clock.advance(time.Hour)
	follower, err := newCore(testReplica, s.log, quiet(), s.partition.core)
	must(t, err)
	var leader = s.partition.core.node
	s.do(func(time.Time) { s.partition.core.node = follower.node })
	if a := s.produce(next(3, 0)); !errors.Is(a.Err, ErrNotLeader) || s.host.counted() != 2 {
		t.Fatalf("%+v, counted %d", a, s.host.counted())
	}
	if _, err := s.partition.DeleteRecords(t.Context(), 1); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("DeleteRecords: %v", err)
	}
	s.partition.Housekeep(Expire)
	s.do(func(time.Time) { s.partition.core.node = leader })
	if !s.remembered(next(1, 0)) || !s.remembered(next(2, 0)) || s.partition.core.starting != 0 {
		t.Fatal("forgotten by an entry that was refused")
	}
	s.accepted(next(3, 0))
	if n := s.host.counted(); n != 2 || s.remembered(next(1, 0)) {
		t.Fatalf("%d counted", n)
	}
	s.close()
	if n := s.host.counted(); n != 0 {
		t.Fatalf("%d counted after the end", n)
	}
}

// An offline partition still holds its table, so it counts until it is closed.
func TestOfflineCount(t *testing.T) {
	gate := newGateFS()
	s := openFiles(t, gate, 1)
	s.start(func(error) {})
	must(t, s.partition.Opened(t.Context()))
	s.accepted(next(1, 0))
	broken := errors.New("input/output error")
	gate.fail.Store(&broken)
	s.produce(next(2, 0))
	if st := s.partition.Status(); !errors.Is(st.Offline, broken) || st.Ready {
		t.Fatalf("status %+v", st)
	}
	if _, err := s.partition.Read(nil, 0, 100, true); !errors.Is(err, ErrOffline) {
		t.Fatalf("read: %v", err)
	}
	if _, err := s.partition.DeleteRecords(t.Context(), 0); !errors.Is(err, ErrOffline) {
		t.Fatalf("DeleteRecords: %v", err)
	}
	if a := s.produce(next(1, 1)); !errors.Is(a.Err, ErrOffline) || !errors.Is(a.Err, broken) {
		t.Fatalf("answer %+v", a)
	}
	_ = s.partition.Close()
	if n := s.host.counted(); n != 0 {
		t.Fatalf("%d counted after the end", n)
	}
	s.flushers.Close()
}

// Whatever the settings, the times and the restarts: nobody is forgotten before the time that its setting names has
// passed since its last batch was answered.
func TestNeverEarly(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	forgotten := 0
	for range 20 {
		fs := memfs.New()
		var settings Settings
		clock := newTestClock()
		restart := func() *stack {
			settings = *testSettings()
			settings.ProducerExpiration = time.Duration(rng.Int64N(1000)+1) * time.Millisecond << rng.IntN(16)
			settings.ProducerEvictionMinAge = time.Duration(rng.Int64N(1000)+1) * time.Millisecond << rng.IntN(16)
			settings.ProducersMax = rng.IntN(6) + 1
			s := openFiles(t, fs, 1)
			s.settings, s.clock = &settings, clock
			return s.opened()
		}
		s := restart()
		type use struct {
			at   time.Time
			next batch.Sequence
		}
		used := map[batch.ProducerID]use{}
		for range 150 {
			idle := min(settings.ProducerExpiration, settings.ProducerEvictionMinAge)
			switch rng.IntN(12) {
			case 0:
				s.close()
				s = restart()
			case 1:
				s.housekeep(Expire)
			case 2:
				s.partition.EvictIdle(time.Duration(rng.Int64N(int64(idle))), rng.IntN(4)+1)
				s.settle()
			case 3, 4, 5:
				s.clock.advance(time.Duration(rng.Int64N(int64(idle))))
			default:
				id := batch.ProducerID(rng.IntN(10))
				u := used[id]
				if a := s.produce(next(id, u.next)); a.Err == nil {
					used[id] = use{at: s.clock.Now(), next: u.next + 1}
				} else if !errors.Is(a.Err, ErrTooManyProducers) {
					t.Fatalf("producer %d: %+v", id, a)
				}
			}
			for id, u := range used {
				if u.next == 0 || s.remembered(next(id, u.next-1)) {
					continue
				}
				if silent := s.clock.Now().Sub(u.at); silent < idle {
					t.Fatalf("producer %d is forgotten after %v, settings %+v", id, silent, settings)
				}
				delete(used, id)
				forgotten++
			}
		}
		s.close()
	}
	if forgotten < 20 {
		t.Errorf("only %d were forgotten", forgotten)
	}
}

// All kinds of entry are applied as they say, and what cannot be applied stops the partition.
func TestApplyCommands(t *testing.T) {
	number := func(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
	for _, c := range []struct {
		kind    seglog.Kind
		payload []byte
		wrong   error // nil: it is right
	}{
		{seglog.KindRules, []byte{0, 1}, nil},
		{seglog.KindRules, []byte{0, 2}, dedupe.ErrUnknownRules},
		{seglog.KindRules, []byte{1}, ErrNewerLog},
		{seglog.KindClock, number(5), nil},
		{seglog.KindClock, number(-1), ErrNewerLog},
		{seglog.KindClock, nil, ErrNewerLog},
		{seglog.KindExpire, dedupe.AppendForgotten(nil, []dedupe.Forgotten{{ID: 7, NextSequence: 1}}), nil},
		{seglog.KindEvict, dedupe.AppendForgotten(nil, []dedupe.Forgotten{{ID: 7, NextSequence: 1}}), nil},
		{seglog.KindEvict, []byte{0, 0, 0, 1}, ErrNewerLog},
		{seglog.KindLogStart, number(1), nil},
		{seglog.KindLogStart, number(math.MinInt64), ErrNewerLog},
		{seglog.KindLogStart, number(2), &MismatchError{}},
		{seglog.KindMarkEverything, nil, nil},
		{seglog.KindMarkEverything, []byte{0}, ErrNewerLog},
		{seglog.KindCommand, []byte{0}, ErrNewerLog},
		{99, nil, ErrNewerLog},
	} {
		table := dedupe.New(dedupe.RulesVersion, 0)
		table.Record(batch.Stamp{ID: 7}, 0)
		p := &partitionCore{core: &core{}, table: table, head: dedupe.NewHead(table), high: 1, settings: testSettings()}
		before := table.AppendTo(nil)
		data := raftlog.EncodeCommand(c.kind, c.payload)
		for version := range 2 {
			data[3] = byte(2 - version) // an unknown version first
			err := p.apply(time.Now(), entryOf(2, data))
			if _, mismatch := errors.AsType[*MismatchError](err); version == 0 && !errors.Is(err, ErrNewerLog) ||
				version == 1 && !errors.Is(err, c.wrong) && !mismatch || mismatch && c.kind != seglog.KindLogStart {
				t.Errorf("kind %d payload %x version %d: %v", c.kind, c.payload, 2-version, err)
			}
			if err != nil && (!slices.Equal(before, table.AppendTo(nil)) || p.logStart != 0) {
				t.Errorf("kind %d payload %x is refused and has an effect", c.kind, c.payload)
			}
		}
	}
}

// A log start entry that an earlier leader has proposed later than a higher one moves nothing back.
func TestLogStartDoesNotGoBack(t *testing.T) {
	table := dedupe.New(dedupe.RulesVersion, 0)
	p := &partitionCore{core: &core{}, table: table, head: dedupe.NewHead(table), high: 9, settings: testSettings()}
	for i, c := range []struct{ to, want int64 }{{5, 5}, {3, 5}, {0, 5}, {9, 9}} {
		payload := binary.BigEndian.AppendUint64(nil, uint64(c.to))
		must(t, p.apply(time.Now(), entryOf(uint64(i+2), raftlog.EncodeCommand(seglog.KindLogStart, payload))))
		if p.logStart != batch.Offset(c.want) {
			t.Fatalf("log start %d after an entry of %d", p.logStart, c.to)
		}
	}
}

// Each forgetting entry leaves its mark, a mark-everything entry all of them.
func TestMarksOfEntries(t *testing.T) {
	table := dedupe.New(dedupe.RulesVersion, 0)
	table.Record(batch.Stamp{ID: 7}, 0)
	p := &partitionCore{core: &core{}, table: table, head: dedupe.NewHead(table), high: 1, settings: testSettings()}
	stranger := batch.Stamp{ID: 1 << 40, First: 9, Last: 9}
	forget := dedupe.AppendForgotten(nil, []dedupe.Forgotten{{ID: 7, NextSequence: 1}})
	must(t, p.apply(time.Now(), entryOf(2, raftlog.EncodeCommand(seglog.KindExpire, forget))))
	if table.Producers() != 0 || p.head.Decide(batch.Stamp{ID: 6, First: 3, Last: 3}).Verdict != dedupe.Append ||
		p.head.Decide(stranger).Verdict != dedupe.OutOfOrder {
		t.Fatal("an expire entry")
	}
	must(t, p.apply(time.Now(), entryOf(3, raftlog.EncodeCommand(seglog.KindMarkEverything, nil))))
	if p.head.Decide(stranger).Verdict != dedupe.Append {
		t.Fatal("a mark-everything entry")
	}
}

// A batch of an earlier run may have a clock that is a minute old, whatever the settings are now: who wrote it is not
// forgotten for a minute longer. What was written since is judged by the settings.
func TestIdleOverARestart(t *testing.T) {
	fs := memfs.New()
	s := openWith(t, fs, 1, func(*Settings) {})
	s.accepted(next(7, 0))
	s.clock.advance(59 * time.Second)
	s.accepted(next(8, 0)) // its clock is as old
	s.accepted(next(9, 0))
	s.clock.advance(time.Second)
	s.accepted(next(7, 1)) // with a clock entry of its own
	begun := s.clock
	s.close()
	s = openFiles(t, fs, 1)
	s.clock = begun
	s.settings.ProducerExpiration, s.settings.ProducerEvictionMinAge = 4*time.Second, 4*time.Second
	s.opened()
	defer s.close()
	s.clock.advance(3 * time.Second)
	s.housekeep(Expire)
	if !s.remembered(next(8, 0)) {
		t.Fatal("forgotten 4 s after its batch, of which the restart has not seen as much")
	}
	s.clock.advance(time.Second)
	s.accepted(next(9, 1))
	s.housekeep(Expire)
	if s.remembered(next(8, 0)) || !s.remembered(next(7, 1)) || !s.remembered(next(9, 1)) {
		t.Fatal("64 s after the clock entry before it")
	}
	s.clock.advance(60*time.Second - time.Millisecond)
	s.housekeep(Expire)
	if !s.remembered(next(7, 1)) || !s.remembered(next(9, 1)) {
		t.Fatal("forgotten less than a minute later than the settings of this run say")
	}
	s.clock.advance(time.Millisecond)
	s.housekeep(Expire)
	if n := s.partition.Status().Producers; n != 0 {
		t.Fatalf("%d are remembered", n)
	}
	s.accepted(next(9, 2))
	s.clock.advance(5 * time.Second)
	s.housekeep(Expire)
	if s.remembered(next(9, 2)) {
		t.Fatal("a batch of this run is not judged by its settings")
	}
}
