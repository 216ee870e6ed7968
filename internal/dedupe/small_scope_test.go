package dedupe

import (
	"bytes"
	"flag"
	"math"
	"slices"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
)

// What random programs meet by chance, the tests in this file meet for certain: they go through all scripts of a
// small world, up to a length. A world is small when few producers, epochs and sequences are in it; an error in the rule
// that needs a large one to show would have to count past what the window, the wrap and two epochs have to offer.
//
// Only steps that change something make a script longer. After each step every batch of the world is asked for, so a
// refused batch and a retry are tried everywhere, and as they must leave no trace, going on behind them would be
// going on without them.
var deeper = flag.Int("deeper", 0, "steps that the scripts of the small-scope tests have beyond their usual length")

// world is what scripts are made of.
type world struct {
	name    string
	floor   uint32 // at birth
	ids     []batch.ProducerID
	epochs  batch.Epoch
	firsts  []batch.Sequence
	lengths int32 // 1 to this
	entries bool  // forgetting and marking are steps too
	steps   int   // of the longest scripts
}

// around returns the sequences from before the wrap to behind it.
func around(before, behind int32) []batch.Sequence {
	var list []batch.Sequence
	for i := range before + behind {
		list = append(list, batch.AddSequence(maxSequence-batch.Sequence(before-1), i))
	}
	return list
}

// stamps returns every batch of the world.
func (w world) stamps() []batch.Stamp {
	var all []batch.Stamp
	for _, id := range w.ids {
		for epoch := range w.epochs {
			for _, first := range w.firsts {
				for delta := range w.lengths {
					all = append(all, batch.Stamp{ID: id, Epoch: epoch, First: first, Last: batch.AddSequence(first, delta)})
				}
			}
		}
	}
	return all
}

// depth is how long the scripts are in this run.
func (w world) depth() int {
	if testing.Short() {
		return w.steps - 2
	}
	return w.steps + *deeper
}

// TestEveryScriptOfATable goes through all scripts of stored batches, forgetting and marking. At each of their ends
// the table and the model write the same bytes and agree on every batch; a table that was written and read back goes
// on. Each step is at a log time of its own.
func TestEveryScriptOfATable(t *testing.T) {
	for _, w := range []world{
		// Long enough to fill the window, move it on and begin it anew.
		{name: "window", ids: []batch.ProducerID{5}, epochs: 2, firsts: around(1, 9), lengths: 2, steps: 8},
		{name: "window across the wrap", floor: floorAll, ids: []batch.ProducerID{5}, epochs: 2, firsts: around(3, 5), lengths: 2, steps: 6},
		{name: "forgotten", ids: []batch.ProducerID{5}, epochs: 2, firsts: around(2, 3), lengths: 2, entries: true, steps: 5},
		// Neighbours under one mark.
		{name: "two producers", ids: []batch.ProducerID{5, 6}, epochs: 2, firsts: around(2, 2), lengths: 2, entries: true, steps: 4},
		{name: "two producers, batches only", ids: []batch.ProducerID{5, 6}, epochs: 2, firsts: around(2, 4), lengths: 3, steps: 4},
		{name: "two producers, begin anywhere", floor: floorAll, ids: []batch.ProducerID{5, 6}, epochs: 2, firsts: around(2, 2), lengths: 2, steps: 3},
		// The start number of the first is below the floor, the others have marks of their own.
		{name: "three start numbers", floor: 1, ids: []batch.ProducerID{5, 1 << 32, 2 << 32}, epochs: 1, firsts: around(1, 2), lengths: 1, entries: true, steps: 5},
	} {
		t.Run(w.name, func(t *testing.T) {
			v := tableScripts{world: w, all: w.stamps(), model: &model{floor: w.floor}}
			v.visit(t, New(RulesVersion, w.floor), 0, w.depth())
			t.Logf("%d scripts of up to %d steps, %d decisions", v.scripts, w.depth(), v.scripts*len(v.all))
		})
	}
}

type tableScripts struct {
	world
	all     []batch.Stamp
	model   *model
	scripts int
}

// visit checks a table that came about as the model did, and every table that comes out of it in so many steps.
func (v *tableScripts) visit(t *testing.T, table *Table, next batch.Offset, steps int) {
	v.scripts++
	state := v.model.state()
	data := table.AppendTo(nil)
	if want := state.bytes(); !bytes.Equal(data, want) {
		t.Fatalf("after %+v: bytes\n%x, the model writes\n%x", v.model.events, data, want)
	}
	if err := table.Check(); err != nil {
		t.Fatalf("after %+v: %v", v.model.events, err)
	}
	var appended []batch.Stamp
	for _, s := range v.all {
		got := table.Decide(s)
		if want := state.decide(s); got != want {
			t.Fatalf("after %+v: decide %+v: %+v, the model says %+v", v.model.events, s, got, want)
		}
		if got.Verdict == Append {
			appended = append(appended, s)
		}
	}
	entries := v.entriesThatCount(table, state)
	if !bytes.Equal(table.AppendTo(nil), data) {
		t.Fatalf("after %+v: what should change nothing made it\n%s", v.model.events, show(table))
	}
	if steps == 0 {
		return
	}
	for _, s := range appended {
		v.step(t, data, modelEvent{stamp: s, base: next}, next+length(s), steps)
	}
	if !v.world.entries {
		return
	}
	for _, e := range entries {
		v.step(t, data, e, next, steps)
	}
}

// entriesThatCount returns the entries that are no batch and change the table. Those that name a producer wrongly change nothing,
// and are applied at once.
func (v *tableScripts) entriesThatCount(table *Table, state modelState) []modelEvent {
	var list []modelEvent
	for _, id := range v.ids {
		known := state.known[id]
		if len(known) == 0 {
			table.Forget([]Forgotten{{ID: id}})
			continue
		}
		right := Forgotten{ID: id, Epoch: known[0].stamp.Epoch, NextSequence: modelNext(known)}
		epoch, sequence := right, right
		epoch.Epoch++
		sequence.NextSequence = batch.AddSequence(right.NextSequence, math.MaxInt32)
		table.Forget([]Forgotten{epoch, sequence})
		list = append(list, modelEvent{forget: []Forgotten{right}})
	}
	if table.marks.floor != floorAll {
		list = append(list, modelEvent{everything: true})
	}
	return list
}

// step goes on from the table that data is.
func (v *tableScripts) step(t *testing.T, data []byte, e modelEvent, next batch.Offset, steps int) {
	table, err := Parse(data)
	if err != nil {
		t.Fatalf("after %+v: %v", v.model.events, err)
	}
	now := int64(len(v.model.events))
	for _, e := range []modelEvent{{clock: &now}, e} {
		e.apply(table)
		v.model.events = append(v.model.events, e)
	}
	v.visit(t, table, next, steps-1)
	v.model.events = v.model.events[:len(v.model.events)-2]
}

// TestEveryScriptOfAHead goes through all scripts of a leader: batches and forgetting proposed, applied, taken back,
// and committed by another leader. At each of their ends the head decides as the model does that has seen the whole log,
// proposals included, and names the same producers as idle. Each proposal is at a log time of its own.
func TestEveryScriptOfAHead(t *testing.T) {
	for _, w := range []world{
		{name: "one producer", ids: []batch.ProducerID{5}, epochs: 2, firsts: around(1, 3), lengths: 2, steps: 6},
		{name: "one producer, begins anywhere", floor: floorAll, ids: []batch.ProducerID{5}, epochs: 2, firsts: around(2, 2), lengths: 2, steps: 5},
		{name: "two producers", ids: []batch.ProducerID{5, 6}, epochs: 2, firsts: around(1, 2), lengths: 1, steps: 6},
		// Long enough to be forgotten, come back, and be forgotten again, all of it on its way at once or not.
		{name: "one producer, one epoch", ids: []batch.ProducerID{5}, epochs: 1, firsts: []batch.Sequence{0, 1}, lengths: 1, steps: 9},
		{name: "three producers", ids: []batch.ProducerID{5, 6, 1 << 32}, epochs: 1, firsts: []batch.Sequence{0, 1}, lengths: 1, steps: 6},
	} {
		t.Run(w.name, func(t *testing.T) {
			v := headScripts{world: w, all: w.stamps()}
			v.visit(t, w.depth())
			t.Logf("%d scripts of up to %d steps, %d decisions", v.scripts, w.depth(), v.scripts*len(v.all))
		})
	}
}

// leaderStep is one step of a leader: an entry proposed, or one of the others.
type leaderStep struct {
	propose *modelEvent
	what    leaderEvent
}

type leaderEvent int

const (
	proposes   leaderEvent = iota
	applies                // the oldest proposal
	withdraws              // the newest proposal
	stepsDown              // the proposals are lost, and this replica leads again
	isReplaced             // another leader commits the proposals; then this replica leads
)

type headScripts struct {
	world
	all     []batch.Stamp
	script  []leaderStep
	scripts int
}

// visit checks a leader behind the script, and behind every script that goes on from there in so many steps.
func (v *headScripts) visit(t *testing.T, steps int) {
	v.scripts++
	l := v.run()
	state := l.whole()
	if what := l.complaint(state); what != "" {
		t.Fatalf("after %v: %s is wrong", v.script, what)
	}
	var following []leaderStep
	for _, s := range v.all {
		got, want := l.head.Decide(s), state.decide(s)
		if got != want {
			t.Fatalf("after %v: decide %+v: %+v, the model says %+v", v.script, s, got, want)
		}
		if got.Verdict == Append {
			following = append(following, leaderStep{propose: &modelEvent{stamp: s, base: l.next()}})
		}
	}
	idle := l.head.Idle(math.MaxInt64, math.MaxInt)
	if want, _ := l.idle(state, math.MaxInt64, math.MaxInt); !slices.Equal(idle, want) {
		t.Fatalf("after %v: idle are %+v, the model says %+v", v.script, idle, want)
	}
	if steps == 0 {
		return
	}
	for i := range idle {
		for j := i + 1; j <= len(idle); j++ {
			following = append(following, leaderStep{propose: &modelEvent{forget: idle[i:j]}})
		}
	}
	if len(l.pending) > 0 {
		following = append(following, leaderStep{what: applies}, leaderStep{what: withdraws}, leaderStep{what: isReplaced})
	}
	if len(l.pending) > 2 { // taking back one proposal, with its clock, is stepping down
		following = append(following, leaderStep{what: stepsDown})
	}
	for _, s := range following {
		v.script = append(v.script, s)
		v.visit(t, steps-1)
		v.script = v.script[:len(v.script)-1]
	}
}

// run carries out the script. Each proposal has a clock entry before it.
func (v *headScripts) run() *leader {
	l := newLeader(v.floor)
	for i, s := range v.script {
		switch s.what {
		case proposes:
			now := int64(i)
			l.propose(modelEvent{clock: &now})
			l.propose(*s.propose)
		case applies:
			l.apply()
			l.apply()
		case withdraws:
			l.withdraw(len(l.pending) - 2)
		case stepsDown:
			l.withdraw(0)
		case isReplaced:
			for _, e := range l.pending {
				l.follow(e)
			}
			l.withdraw(0)
		}
	}
	return l
}
