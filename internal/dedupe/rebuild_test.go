package dedupe

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"pgregory.net/rapid"
)

// The settings of the partition in the random lives of TestTableIsRebuiltFromTheLog.
const (
	lifeProducersMax  = 4
	lifeEvictionAge   = 20 // of log time
	lifeExpiration    = 60
	lifeClockInterval = 5
)

// life is a partition of one replica: its log in segments, each with a base snapshot once the state before it was
// there, and a leader who looks after the limits.
type life struct {
	*leader
	now int64 // log time
	// firsts are the places in the log where the retained segments begin. The log itself is kept whole, for the
	// comparison.
	firsts []int
	clones map[int]*Table // taken where a segment begins, not written yet
	bases  map[int][]byte
}

func newLife() *life {
	l := &life{leader: newLeader(0), firsts: []int{0}, clones: map[int]*Table{}, bases: map[int][]byte{}}
	l.reached()
	l.write(0)
	return l
}

// reached takes the state for a base snapshot where a segment begins that has none.
func (l *life) reached() {
	at := len(l.applied)
	if l.bases[at] == nil && slices.Contains(l.firsts, at) {
		l.clones[at] = l.table.Clone()
	}
}

// propose puts an entry into the log, with a clock entry before a batch when it is time for one.
func (l *life) propose(e modelEvent) {
	if e.isBatch() && l.now-l.head.Clock() >= lifeClockInterval {
		now := l.now
		l.leader.propose(modelEvent{clock: &now})
	}
	l.leader.propose(e)
}

// forget proposes to forget those who have been idle for so long, by way of the entry's bytes, and says how many they are.
func (l *life) forget(t *rapid.T, idle int64, most int) int {
	list := l.head.Idle(l.now-idle, most)
	if len(list) == 0 {
		return 0
	}
	list, err := ParseForgotten(AppendForgotten(nil, list))
	if err != nil {
		t.Fatal(err)
	}
	l.propose(modelEvent{forget: list})
	return len(list)
}

// produce brings a batch: a producer too many makes room for itself, or is sent away.
func (l *life) produce(t *rapid.T, s batch.Stamp) {
	d := l.head.Decide(s)
	if d.AddsProducer() && l.head.Producers() >= lifeProducersMax && l.forget(t, lifeEvictionAge, 2) == 0 {
		return
	}
	if d.Verdict == Append {
		l.propose(modelEvent{stamp: s, base: l.next()})
	}
}

func (l *life) applySome(n int) {
	for range min(n, len(l.pending)) {
		l.apply()
		l.reached()
	}
}

// write makes the base snapshots of the states that were taken, in any order.
func (l *life) write(only int) {
	for at, c := range l.clones {
		if at%2 == only {
			l.bases[at] = c.AppendTo(nil)
			delete(l.clones, at)
		}
	}
}

// retain deletes the segments before the second one that has a base snapshot.
func (l *life) retain() {
	if bases := slices.Sorted(maps.Keys(l.bases)); len(bases) > 1 {
		delete(l.bases, bases[0])
		gone := func(at int) bool { return at < bases[1] }
		maps.DeleteFunc(l.clones, func(at int, _ *Table) bool { return gone(at) })
		l.firsts = slices.DeleteFunc(l.firsts, gone)
	}
}

// restart loses what was proposed but the oldest part, and starts from a base snapshot that is not always the newest: a
// damaged one is passed over. What the node had in memory is gone, the states for base snapshots too.
func (l *life) restart(t *rapid.T) {
	log := slices.Concat(l.applied, l.pending[:rapid.IntRange(0, len(l.pending)).Draw(t, "written")])
	l.firsts = slices.DeleteFunc(l.firsts, func(at int) bool { return at > len(log) })
	from := rapid.SampledFrom(slices.Sorted(maps.Keys(l.bases))).Draw(t, "base")
	table, err := Parse(l.bases[from])
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(l.bases, func(at int, _ []byte) bool { return at > from })
	l.leader = &leader{table: table, head: NewHead(table), applied: slices.Clone(log[:from])}
	clear(l.clones)
	for _, e := range log[from:] {
		l.follow(e)
		l.reached()
	}
	l.head = NewHead(table)
}

// step is one step of a life.
func (l *life) step(t *rapid.T) {
	switch rapid.SampledFrom([]string{
		"produce", "produce", "produce", "produce", "time", "time", "expire", "apply", "apply", "roll", "write", "retain", "restart",
	}).Draw(t, "step") {
	case "produce":
		for range rapid.IntRange(1, 5).Draw(t, "batches") {
			l.produce(t, drawStamp(t, l.whole()))
		}
	case "time":
		l.now += rapid.Int64Range(1, 50).Draw(t, "time")
	case "expire":
		l.forget(t, lifeExpiration, ForgottenMax)
	case "apply":
		l.applySome(rapid.IntRange(1, 8).Draw(t, "entries"))
	case "roll":
		if end := len(l.applied) + len(l.pending); end > l.firsts[len(l.firsts)-1] {
			l.firsts = append(l.firsts, end)
			l.reached()
		}
	case "write":
		l.write(rapid.IntRange(0, 1).Draw(t, "which"))
	case "retain":
		l.retain()
	case "restart":
		l.restart(t)
	}
}

// check compares everything that was kept with the log from its first entry on.
func (l *life) check(t *rapid.T) {
	state := l.whole()
	if what := l.complaint(state); what != "" {
		t.Fatalf("%s is wrong after %+v, proposed %+v", what, l.applied, l.pending)
	}
	if len(state.known) > lifeProducersMax {
		t.Fatalf("%d producers are remembered", len(state.known))
	}
	for at, base := range l.bases {
		m := model{events: l.applied[:at]}
		s := m.state()
		if !bytes.Equal(base, s.bytes()) {
			t.Fatalf("the base at %d is %x, the log says %x", at, base, s.bytes())
		}
	}
}

// lifeProgram: after whatever script of produce, retry, expire, evict, roll, write a base, retain and restart, the
// table and every base snapshot equal the table rebuilt from the whole log, byte for byte.
func lifeProgram(t *rapid.T) {
	l := newLife()
	for range rapid.IntRange(1, 80).Draw(t, "steps") {
		l.step(t)
		l.check(t)
	}
	l.applySome(len(l.pending))
	l.write(0)
	l.write(1)
	l.check(t)
	if newest := l.firsts[len(l.firsts)-1]; l.bases[newest] == nil {
		t.Fatalf("the segment that begins at %d has no base", newest)
	}
	l.restart(t)
	l.check(t)
}

func TestTableIsRebuiltFromTheLog(t *testing.T) { rapid.Check(t, lifeProgram) }

func FuzzTableIsRebuiltFromTheLog(f *testing.F) { f.Fuzz(rapid.MakeFuzz(lifeProgram)) }
