package dedupe

import (
	"bytes"
	"math"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"pgregory.net/rapid"
)

// The producers of the random programs: neighbours within a start number, neighbouring start numbers, the extremes.
var someIDs = []batch.ProducerID{0, 1, 2, 7 << 32, 7<<32 | 1, 7<<32 | math.MaxUint32, 8 << 32, math.MaxInt64}

const maxSequence = batch.Sequence(math.MaxInt32)

// drawStamp draws a batch that is likely to matter: next in sequence, a retry, near either, or anything.
func drawStamp(t *rapid.T, state modelState) batch.Stamp {
	if rapid.IntRange(0, 19).Draw(t, "without producer") == 0 {
		return batch.Stamp{ID: -1, Epoch: -1, First: -1, Last: -1}
	}
	id := rapid.SampledFrom(someIDs).Draw(t, "id")
	known := state.known[id]
	s := batch.Stamp{ID: id}
	if len(known) > 0 {
		s.Epoch = known[0].stamp.Epoch
		s.First = modelNext(known)
	}
	switch rapid.SampledFrom([]string{"next", "next", "next", "retry", "epoch", "near", "any"}).Draw(t, "shape") {
	case "retry":
		if len(known) > 0 {
			s = rapid.SampledFrom(known[max(0, len(known)-7):]).Draw(t, "original").stamp
		}
		if rapid.Bool().Draw(t, "whole") {
			return s
		}
	case "epoch":
		s.Epoch = batch.Epoch(min(int(s.Epoch)+rapid.IntRange(-1, 2).Draw(t, "epoch step"), math.MaxInt16))
		s.Epoch = max(s.Epoch, 0)
		s.First = batch.Sequence(rapid.IntRange(0, 1).Draw(t, "first"))
	case "near":
		off := rapid.SampledFrom([]int32{1, 2, math.MaxInt32, math.MaxInt32 - 1}).Draw(t, "off by")
		s.First = batch.AddSequence(s.First, off)
	case "any":
		s.Epoch = batch.Epoch(rapid.SampledFrom([]int{0, 1, 2, math.MaxInt16}).Draw(t, "epoch"))
		s.First = rapid.SampledFrom([]batch.Sequence{0, 1, 5, maxSequence / 2, maxSequence - 1, maxSequence}).Draw(t, "first")
	}
	delta := rapid.SampledFrom([]int32{0, 0, 1, 4, 9, math.MaxInt32 / 2, math.MaxInt32 - 1}).Draw(t, "delta")
	s.Last = batch.AddSequence(s.First, delta)
	return s
}

// length is the number of offsets that a batch takes.
func length(s batch.Stamp) batch.Offset { return batch.Offset(distance(s.First, s.Last)) + 1 }

// drawForget lists producers to forget, some of them with fields that are not right.
func drawForget(t *rapid.T, state modelState) []Forgotten {
	list := []Forgotten{}
	for _, id := range rapid.SliceOfN(rapid.SampledFrom(someIDs), 0, 3).Draw(t, "forget") {
		f := Forgotten{ID: id}
		if known := state.known[id]; len(known) > 0 {
			f.Epoch, f.NextSequence = known[0].stamp.Epoch, modelNext(known)
		}
		switch rapid.IntRange(0, 5).Draw(t, "wrong field") {
		case 0:
			f.Epoch++
		case 1:
			f.NextSequence = batch.AddSequence(f.NextSequence, 1)
		}
		list = append(list, f)
	}
	return list
}

// drawEvent draws an entry that is not a batch.
func drawEvent(t *rapid.T, state modelState) modelEvent {
	kinds := []string{"clock", "clock", "clock", "forget", "forget", "forget", "everything"}
	switch rapid.SampledFrom(kinds).Draw(t, "entry") {
	case "clock":
		ms := rapid.Int64Range(-5, 1000).Draw(t, "clock")
		return modelEvent{clock: &ms}
	case "forget":
		return modelEvent{forget: drawForget(t, state)}
	}
	return modelEvent{everything: true}
}

// apply brings an entry into a table.
func (e modelEvent) apply(t *Table) {
	switch {
	case e.clock != nil:
		t.SetClock(*e.clock)
	case e.forget != nil:
		t.Forget(e.forget)
	case e.everything:
		t.MarkEverything()
	default:
		t.Record(e.stamp, e.base)
	}
}

func (e modelEvent) isBatch() bool { return e.clock == nil && e.forget == nil && !e.everything }

// tableProgram runs one random program on a table and on the model: they agree on every decision, also those that
// are only asked for, and on every byte; a table read back is the same table, and so is a copy, whatever happens to
// the other.
func tableProgram(t *rapid.T) {
	floor := rapid.SampledFrom([]uint32{0, 0, 0, 1, 8, math.MaxUint32}).Draw(t, "floor")
	m, table, next := &model{floor: floor}, New(RulesVersion, floor), batch.Offset(0)
	left := map[*Table][]byte{} // tables that the program went away from, and what they were
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		state := m.state()
		if rapid.IntRange(0, 5).Draw(t, "not a batch") == 0 {
			e := drawEvent(t, state)
			e.apply(table)
			m.events = append(m.events, e)
		} else {
			s := drawStamp(t, state)
			before := table.AppendTo(nil)
			got, want := table.Decide(s), state.decide(s)
			if got != want {
				t.Fatalf("decide %+v: %+v, the model says %+v", s, got, want)
			}
			if !bytes.Equal(before, table.AppendTo(nil)) {
				t.Fatalf("decide %+v changed the table", s)
			}
			if got.Verdict == Append {
				e := modelEvent{stamp: s, base: next}
				e.apply(table)
				m.events = append(m.events, e)
				next += length(s)
			}
		}
		data := table.AppendTo(nil)
		state = m.state()
		if want := state.bytes(); !bytes.Equal(data, want) {
			t.Fatalf("bytes\n%x, the model writes\n%x", data, want)
		}
		if err := table.Check(); err != nil {
			t.Fatal(err)
		}
		parsed, err := Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(parsed.AppendTo(nil), data) {
			t.Fatal("a table read back is another one")
		}
		switch rapid.IntRange(0, 9).Draw(t, "go on with") {
		case 0:
			table = parsed
		case 1:
			left[table] = data
			table = table.Clone()
		case 2:
			left[table.Clone()] = data
		}
	}
	for old, data := range left {
		if !bytes.Equal(old.AppendTo(nil), data) {
			t.Fatal("a table and its copy are not independent")
		}
	}
}

func TestTableAgainstModel(t *testing.T) { rapid.Check(t, tableProgram) }

func FuzzTable(f *testing.F) { f.Fuzz(rapid.MakeFuzz(tableProgram)) }
