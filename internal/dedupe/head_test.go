package dedupe

import (
	"bytes"
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"pgregory.net/rapid"
)

// leader is a Head over a Table with the log that both come from.
type leader struct {
	floor            uint32
	table            *Table
	head             *Head
	applied, pending []modelEvent
}

func newLeader(floor uint32) *leader {
	table := New(RulesVersion, floor)
	return &leader{floor: floor, table: table, head: NewHead(table)}
}

// propose notes an entry on the head.
func (l *leader) propose(e modelEvent) {
	l.pending = append(l.pending, e)
	l.note(e)
}

func (l *leader) note(e modelEvent) {
	switch {
	case e.clock != nil:
		l.head.SetClock(*e.clock)
	case e.forget != nil:
		l.head.Forget(e.forget)
	default:
		l.head.Record(e.stamp, e.base)
	}
}

// apply applies the oldest proposal.
func (l *leader) apply() {
	e := l.pending[0]
	l.pending = l.pending[1:]
	l.follow(e)
	switch {
	case e.isBatch():
		l.head.Applied(e.stamp)
	case e.forget != nil:
		l.head.ForgetApplied(e.forget)
	}
}

// follow applies an entry that another leader has proposed.
func (l *leader) follow(e modelEvent) {
	e.apply(l.table)
	l.applied = append(l.applied, e)
}

// withdraw takes back all proposals but the oldest so many.
func (l *leader) withdraw(kept int) {
	l.pending, l.head = l.pending[:kept], NewHead(l.table)
	for _, e := range l.pending {
		l.note(e)
	}
}

// log is the whole log.
func (l *leader) log() []modelEvent { return slices.Concat(l.applied, l.pending) }

// whole is what the whole log comes to.
func (l *leader) whole() modelState {
	m := model{floor: l.floor, events: l.log()}
	return m.state()
}

// next is the offset behind the log.
func (l *leader) next() (next batch.Offset) {
	for _, e := range l.log() {
		if e.isBatch() && e.stamp.ID >= 0 {
			next = e.base + length(e.stamp)
		}
	}
	return next
}

// onTheirWay are the producers that proposals name.
func (l *leader) onTheirWay() map[batch.ProducerID]bool {
	named := map[batch.ProducerID]bool{}
	for _, e := range l.pending {
		for _, f := range e.forget {
			named[f.ID] = true
		}
		if e.isBatch() && e.stamp.ID >= 0 {
			named[e.stamp.ID] = true
		}
	}
	return named
}

// idle is whom Idle has to return in state, which is that of the whole log, and the clock of the first.
func (l *leader) idle(state modelState, before int64, most int) (list []Forgotten, oldest int64) {
	type candidate struct {
		Forgotten
		at int64
	}
	var all []candidate
	named := l.onTheirWay()
	for id, known := range state.known {
		newest := known[len(known)-1]
		if !named[id] {
			all = append(all, candidate{Forgotten{id, newest.stamp.Epoch, modelNext(known)}, newest.at})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.ID, b.ID)) })
	oldest = math.MaxInt64
	if len(all) > 0 {
		oldest = all[0].at
	}
	for _, c := range all {
		if c.at <= before && len(list) < most {
			list = append(list, c.Forgotten)
		}
	}
	return list, oldest
}

// complaint says where the head does not tell what the whole log says, and where the table does not tell what the
// applied part says; empty: nowhere.
func (l *leader) complaint(state modelState) string {
	m := model{floor: l.floor, events: l.applied}
	tableState := m.state()
	oldest := l.head.OldestClock()
	_, want := l.idle(state, math.MaxInt64, 0)
	switch {
	case l.head.Clock() != state.clock:
		return "the clock"
	case l.head.Producers() != len(state.known):
		return "the number of producers"
	case (oldest == math.MaxInt64) != (len(tableState.known) == 0), oldest != math.MaxInt64 && oldest > min(want, l.table.Clock()), oldest < -1:
		return "the oldest clock"
	case l.head.touched.n != len(l.onTheirWay()):
		return "the number of producers in the overlay"
	case !bytes.Equal(l.table.AppendTo(nil), tableState.bytes()):
		return "the table"
	}
	return ""
}

// headProgram runs one random program on a head: whatever is proposed, applied and taken back, the head tells what a
// table tells that applied the whole log, proposals included.
func headProgram(t *rapid.T) {
	l := newLeader(rapid.SampledFrom([]uint32{0, math.MaxUint32}).Draw(t, "floor"))
	steps := []string{
		"propose", "propose", "propose", "propose", "clock", "forget", "forget", "apply", "apply", "apply", "withdraw",
		"step down", "follow", "other leader",
	}
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		state := l.whole()
		for range 3 {
			s := drawStamp(t, state)
			if got, want := l.head.Decide(s), state.decide(s); got != want {
				t.Fatalf("decide %+v: %+v, the whole log says %+v", s, got, want)
			}
		}
		list := drawIdle(t, l, state)
		if what := l.complaint(state); what != "" {
			t.Fatalf("%s is wrong after %+v, proposed %+v", what, l.applied, l.pending)
		}
		switch rapid.SampledFrom(steps).Draw(t, "step") {
		case "propose":
			if s := drawStamp(t, state); l.head.Decide(s).Verdict == Append {
				l.propose(modelEvent{stamp: s, base: l.next()})
			}
		case "clock":
			ms := rapid.Int64Range(-5, 1000).Draw(t, "clock")
			l.propose(modelEvent{clock: &ms})
		case "forget":
			if len(list) > 0 {
				l.propose(modelEvent{forget: list})
			}
		case "apply":
			if len(l.pending) > 0 {
				l.apply()
			}
		case "withdraw":
			l.withdraw(rapid.IntRange(0, len(l.pending)).Draw(t, "kept"))
		case "step down": // the proposals are lost, and this replica leads again
			l.withdraw(0)
		case "follow": // another leader commits the proposals; then this replica leads
			for _, e := range l.pending {
				l.follow(e)
			}
			l.withdraw(0)
		case "other leader": // the head has no proposals while other leaders' entries come
			if len(l.pending) == 0 {
				l.follow(drawEvent(t, state))
			}
		}
	}
	for len(l.pending) > 0 {
		l.apply()
	}
	if what := l.complaint(l.whole()); what != "" {
		t.Fatalf("%s is wrong after everything is applied: %+v", what, l.applied)
	}
}

// drawIdle asks the head for idle producers and returns some of them.
func drawIdle(t *rapid.T, l *leader, state modelState) []Forgotten {
	before := rapid.Int64Range(-2, 1000).Draw(t, "before")
	most := rapid.IntRange(-1, 4).Draw(t, "most")
	got := l.head.Idle(before, most)
	want, oldest := l.idle(state, before, most)
	if !slices.Equal(got, want) {
		t.Fatalf("idle since %d: %+v, the whole log says %+v", before, got, want)
	}
	if most > 0 && before >= oldest && l.head.OldestClock() != min(oldest, l.table.Clock()) {
		t.Fatalf("oldest clock %d, the whole log says %d", l.head.OldestClock(), oldest)
	}
	return got[:rapid.IntRange(0, len(got)).Draw(t, "of them")]
}

func TestHeadAgainstWholeLog(t *testing.T) { rapid.Check(t, headProgram) }

func FuzzHead(f *testing.F) { f.Fuzz(rapid.MakeFuzz(headProgram)) }

// TestIdleOfMany compares Idle with a sort of all producers, where there are more than one entry may forget.
func TestIdleOfMany(t *testing.T) {
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, seed))
	l := newLeader(0)
	for i := range ForgottenMax + 300 {
		if rng.IntN(10) == 0 {
			now := int64(i)
			l.follow(modelEvent{clock: &now})
		}
		l.follow(modelEvent{stamp: batch.Stamp{ID: batch.ProducerID(rng.Uint32())}, base: batch.Offset(i)})
	}
	l.propose(modelEvent{forget: l.head.Idle(50, 3)})
	for _, e := range slices.Clone(l.applied[100:200]) {
		if e.isBatch() {
			s := batch.Stamp{ID: e.stamp.ID, First: 1, Last: 1}
			l.propose(modelEvent{stamp: s, base: l.next()})
		}
	}
	state := l.whole()
	for _, most := range []int{1, 2, 3, 64, 65, 1000, ForgottenMax - 1, ForgottenMax, ForgottenMax + 1, math.MaxInt} {
		for _, before := range []int64{100, 2000, math.MaxInt64} {
			want, _ := l.idle(state, before, min(most, ForgottenMax))
			if got := l.head.Idle(before, most); !slices.Equal(got, want) {
				t.Errorf("seed %d: idle since %d, at most %d: %d producers, %d wanted", seed, before, most, len(got), len(want))
			}
		}
	}
}

// TestIdleAtTheExtremes: no log time and no id is taken for "none".
func TestIdleAtTheExtremes(t *testing.T) {
	for _, clock := range []int64{-1, 0, math.MaxInt64} {
		table := New(RulesVersion, 0)
		table.SetClock(clock)
		table.Record(batch.Stamp{ID: 0}, 0)
		head := NewHead(table)
		if got := head.OldestClock(); got != clock {
			t.Errorf("oldest clock %d, want %d", got, clock)
		}
		if got := head.Idle(clock, 1); !slices.Equal(got, []Forgotten{{NextSequence: 1}}) {
			t.Errorf("idle since %d: %+v", clock, got)
		}
		if got := head.Idle(clock-1, 1); clock > -1 && len(got) > 0 {
			t.Errorf("idle since %d: %+v", clock-1, got)
		}
	}
}

// TestHeadMarksAreBounded: the lowest of too many marks merge on the head as they will in the table.
func TestHeadMarksAreBounded(t *testing.T) {
	const seed = 8
	l := newLeader(0)
	for _, start := range rand.New(rand.NewPCG(seed, seed)).Perm(1300) {
		s := batch.Stamp{ID: batch.ProducerID(start)<<32 | 5}
		l.follow(modelEvent{stamp: s, base: l.next()})
	}
	check := func() {
		t.Helper()
		if n := len(l.head.marks.list); n > marksMax {
			t.Fatalf("seed %d: %d marks", seed, n)
		}
		state := l.whole()
		for start := range batch.ProducerID(1301) {
			for counter := range batch.ProducerID(7) {
				s := batch.Stamp{ID: start<<32 | counter, First: 1, Last: 1}
				if got, want := l.head.Decide(s), state.decide(s); got != want {
					t.Fatalf("seed %d: decide %+v: %+v, the model says %+v", seed, s, got, want)
				}
			}
		}
	}
	for list := l.head.Idle(0, 400); len(list) > 0; list = l.head.Idle(0, 400) {
		l.propose(modelEvent{forget: list})
	}
	check()
	for range 2 {
		l.apply()
	}
	check()
	for len(l.pending) > 0 {
		l.apply()
	}
	check()
}

// TestHeadIsBounded: a head takes memory for what is on its way, and gives it back.
func TestHeadIsBounded(t *testing.T) {
	table, ids := filled(20_000)
	head := NewHead(table)
	stamp := func(id batch.ProducerID) batch.Stamp { return batch.Stamp{ID: id, First: 50, Last: 59} }
	for round := range batch.Offset(3) {
		for i, id := range ids[:10_000] {
			s := stamp(id)
			s.First, s.Last = s.First+batch.Sequence(10*round), s.Last+batch.Sequence(10*round)
			head.Record(s, 1<<40+(round*10_000+batch.Offset(i))*10)
		}
	}
	list := head.Idle(math.MaxInt64, ForgottenMax)
	head.Forget(list)
	if n := len(head.touched.slots); head.touched.n != 10_000+ForgottenMax || n > 4*head.touched.n {
		t.Errorf("%d producers in %d slots", head.touched.n, n)
	}
	for round := range batch.Offset(3) {
		for i, id := range ids[:10_000] {
			s := stamp(id)
			s.First, s.Last = s.First+batch.Sequence(10*round), s.Last+batch.Sequence(10*round)
			table.Record(s, 1<<40+(round*10_000+batch.Offset(i))*10)
			head.Applied(s)
		}
	}
	table.Forget(list)
	head.ForgetApplied(list)
	if n := len(head.touched.slots); head.touched.n != 0 || n >= shrinkMin || head.marks != &table.marks {
		t.Errorf("%d producers in %d slots, marks of its own: %v", head.touched.n, n, head.marks != &table.marks)
	}
	if head.Producers() != 20_000-ForgottenMax || table.Producers() != head.Producers() {
		t.Errorf("%d producers, %d in the table", head.Producers(), table.Producers())
	}
}
