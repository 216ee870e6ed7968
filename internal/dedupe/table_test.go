package dedupe

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
)

func TestDecideAllocatesNothing(t *testing.T) {
	table := New(RulesVersion, 3)
	stamp := batch.Stamp{ID: 7 << 32, Epoch: 1, First: 0, Last: 4}
	table.Record(stamp, 0)
	head := NewHead(table)
	proposed := batch.Stamp{ID: 8 << 32, Epoch: 1, First: 0, Last: 4}
	head.Record(proposed, 5)
	forgotten := batch.Stamp{ID: 8<<32 | 1, Epoch: 1, First: 0, Last: 4}
	table.Record(forgotten, 10)
	head.Forget([]Forgotten{{ID: forgotten.ID, Epoch: 1, NextSequence: 5}})
	for _, base := range []batch.Stamp{stamp, proposed, forgotten, {ID: 8<<32 | 2}, {ID: 1}, {ID: 9 << 32}, {ID: -1, Epoch: -1, First: -1, Last: -1}} {
		for _, s := range []batch.Stamp{
			base, {ID: base.ID, Epoch: 1, First: 5, Last: 5}, {ID: base.ID, Epoch: 1, First: 9, Last: 9},
			{ID: base.ID, Epoch: 0}, {ID: base.ID, Epoch: 2}, {ID: base.ID, Epoch: 2, First: 1, Last: 1},
		} {
			if n := testing.AllocsPerRun(10, func() { table.Decide(s) }); n != 0 {
				t.Errorf("Table.Decide(%+v) allocates %v times", s, n)
			}
			if n := testing.AllocsPerRun(10, func() { head.Decide(s) }); n != 0 {
				t.Errorf("Head.Decide(%+v) allocates %v times", s, n)
			}
		}
	}
}

// TestMarksAreBounded: of 1,300 start numbers, forgotten in any order, the lowest merge into the floor.
func TestMarksAreBounded(t *testing.T) {
	const seed = 20
	rng := rand.New(rand.NewPCG(seed, seed))
	m, table, base := &model{}, New(RulesVersion, 0), batch.Offset(0)
	step := func(e modelEvent) {
		e.apply(table)
		m.events = append(m.events, e)
	}
	for _, start := range rng.Perm(1300) {
		id := batch.ProducerID(start)<<32 | batch.ProducerID(rng.IntN(3))
		step(modelEvent{stamp: batch.Stamp{ID: id}, base: base})
		step(modelEvent{forget: []Forgotten{{ID: id, NextSequence: 1}}})
		base++
	}
	state := m.state()
	if got, want := table.AppendTo(nil), state.bytes(); !bytes.Equal(got, want) {
		t.Fatalf("seed %d: bytes\n%x, the model writes\n%x", seed, got, want)
	}
	if err := table.Check(); err != nil {
		t.Fatal(err)
	}
	if n := len(table.marks.list); n != marksMax {
		t.Errorf("%d marks, want %d", n, marksMax)
	}
	table, err := Parse(table.AppendTo(nil))
	if err != nil {
		t.Fatal(err)
	}
	for start := range batch.ProducerID(1302) {
		for counter := range batch.ProducerID(4) {
			s := batch.Stamp{ID: start<<32 | counter, First: 1, Last: 1}
			if got, want := table.Decide(s), state.decide(s); got != want {
				t.Fatalf("seed %d: decide %+v: %+v, the model says %+v", seed, s, got, want)
			}
		}
	}
}

// TestCloneIsIndependent: what is done to a table or to its copy is not seen in the other one, in any of their parts.
func TestCloneIsIndependent(t *testing.T) {
	change := func(table *Table) {
		table.SetClock(3000)
		table.Record(batch.Stamp{ID: 7, Epoch: 258, First: 3, Last: 3}, 30) // known
		table.Record(batch.Stamp{ID: 3<<32 | 10}, 31)                       // new
		table.Forget([]Forgotten{{ID: 3<<32 | 10, NextSequence: 1}})        // raises a mark
		table.Record(batch.Stamp{ID: 4 << 32}, 32)
		table.Forget([]Forgotten{{ID: 4 << 32, NextSequence: 1}, {ID: 3<<32 | 8, Epoch: 2, NextSequence: 1}}) // adds one
	}
	want := sample().AppendTo(nil)
	for name, pick := range map[string]func(one, other *Table) (changed, left *Table){
		"the copy":  func(one, other *Table) (*Table, *Table) { return other, one },
		"the table": func(one, other *Table) (*Table, *Table) { return one, other },
	} {
		one := sample()
		one.marks.list = slices.Grow(one.marks.list, 8) // room in which a copy could grow
		changed, left := pick(one, one.Clone())
		if !bytes.Equal(changed.AppendTo(nil), want) {
			t.Errorf("%s is another one", name)
		}
		change(changed)
		if bytes.Equal(changed.AppendTo(nil), want) || !bytes.Equal(left.AppendTo(nil), want) || left.Check() != nil {
			t.Errorf("%s was changed, and the other is\n%s", name, show(left))
		}
	}
}

// TestProposalsDoNotTouchTheTable: a producer enters the overlay once, and the table's memory of it is not touched.
func TestProposalsDoNotTouchTheTable(t *testing.T) {
	table := New(RulesVersion, 0)
	table.Record(batch.Stamp{ID: 7, Last: 4}, 0)
	before := table.AppendTo(nil)
	head := NewHead(table)
	head.SetClock(5)
	head.Record(batch.Stamp{ID: 7, First: 5, Last: 5}, 5)
	head.Record(batch.Stamp{ID: 7, Epoch: 1}, 6)
	head.Record(batch.Stamp{ID: 8}, 7)
	head.Record(batch.Stamp{ID: -1, Epoch: -1, First: -1, Last: -1}, 8)
	head.Applied(batch.Stamp{ID: -1, Epoch: -1, First: -1, Last: -1})
	if head.touched.n != 2 {
		t.Errorf("%d producers in the overlay", head.touched.n)
	}
	if !bytes.Equal(table.AppendTo(nil), before) {
		t.Errorf("the table is now\n%s", show(table))
	}
}

func TestRules(t *testing.T) {
	table := New(RulesVersion, 0)
	if err := table.SetRules(RulesVersion + 1); !errors.Is(err, ErrUnknownRules) {
		t.Errorf("got %v", err)
	}
	if err := table.SetRules(RulesVersion); err != nil || table.Rules() != RulesVersion {
		t.Errorf("rules %d, %v", table.Rules(), err)
	}
}

// TestBugs: a caller that breaks the contract is stopped before it leaves a trace.
func TestBugs(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*Table, *Head)
	}{
		{"unknown rules", func(*Table, *Head) { New(RulesVersion+1, 0) }},
		{"record a duplicate", func(t *Table, _ *Head) { t.Record(batch.Stamp{ID: 7, Last: 4}, 20) }},
		{"record a gap", func(t *Table, _ *Head) { t.Record(batch.Stamp{ID: 7, First: 6, Last: 6}, 20) }},
		{"record a first gap", func(t *Table, _ *Head) { t.Record(batch.Stamp{ID: 8, First: 1, Last: 1}, 20) }},
		{"record at a taken offset", func(t *Table, _ *Head) { t.Record(batch.Stamp{ID: 7, First: 5, Last: 5}, 14) }},
		{"record a new epoch there", func(t *Table, _ *Head) { t.Record(batch.Stamp{ID: 7, Epoch: 1}, 14) }},
		{"record at a negative offset", func(t *Table, _ *Head) { t.Record(batch.Stamp{ID: 8}, -1) }},
		{"record at too high an offset", func(t *Table, _ *Head) { t.Record(batch.Stamp{ID: 8}, batch.MaxBaseOffset+1) }},
		{"propose a duplicate", func(_ *Table, h *Head) { h.Record(batch.Stamp{ID: 7, Last: 4}, 20) }},
		{"propose at a taken offset", func(_ *Table, h *Head) { h.Record(batch.Stamp{ID: 7, First: 5, Last: 5}, 14) }},
		{"negative epoch", func(t *Table, _ *Head) { t.Decide(batch.Stamp{ID: 7, Epoch: -1}) }},
		{"negative first sequence", func(t *Table, _ *Head) { t.Decide(batch.Stamp{ID: 7, First: -1}) }},
		{"negative last sequence", func(_ *Table, h *Head) { h.Decide(batch.Stamp{ID: 8, Last: -1}) }},
		{"all sequences at once", func(_ *Table, h *Head) { h.Decide(batch.Stamp{ID: 8, First: 5, Last: 4}) }},
		{"applied, not proposed", func(_ *Table, h *Head) { h.Applied(batch.Stamp{ID: 7, Last: 4}) }},
		{"forget who is not known", func(_ *Table, h *Head) { h.Forget([]Forgotten{{ID: 8}}) }},
		{"forget another epoch", func(_ *Table, h *Head) { h.Forget([]Forgotten{{ID: 7, Epoch: 1, NextSequence: 5}}) }},
		{"forget another sequence", func(_ *Table, h *Head) { h.Forget([]Forgotten{{ID: 7, NextSequence: 4}}) }},
		{"forgotten, not proposed", func(_ *Table, h *Head) { h.ForgetApplied([]Forgotten{{ID: 7, NextSequence: 5}}) }},
		{"forget nobody", func(*Table, *Head) { AppendForgotten(nil, nil) }},
		{"forget too many at once", func(*Table, *Head) { AppendForgotten(nil, make([]Forgotten, ForgottenMax+1)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := New(RulesVersion, 0)
			table.Record(batch.Stamp{ID: 7, Last: 4}, 10)
			head, before := NewHead(table), table.AppendTo(nil)
			defer func() {
				if text, _ := recover().(string); !strings.HasPrefix(text, "BUG: ") {
					t.Errorf("got %q", text)
				}
				if !bytes.Equal(table.AppendTo(nil), before) || head.touched.n != 0 || head.Producers() != 1 {
					t.Error("it left a trace")
				}
			}()
			c.do(table, head)
		})
	}
}

// TestForgetBugs: nobody is forgotten who has a proposal on its way.
func TestForgetBugs(t *testing.T) {
	f := Forgotten{ID: 7, NextSequence: 5}
	for name, do := range map[string]func(*Table, *Head){
		"a batch":               func(_ *Table, h *Head) { h.Record(batch.Stamp{ID: 7, First: 5, Last: 5}, 15); h.Forget([]Forgotten{f}) },
		"an entry that forgets": func(_ *Table, h *Head) { h.Forget([]Forgotten{f}); h.Forget([]Forgotten{f}) },
		"the same entry":        func(_ *Table, h *Head) { h.Forget([]Forgotten{f, f}) },
		"a batch that is new here": func(_ *Table, h *Head) {
			h.Record(batch.Stamp{ID: 8}, 15)
			h.Forget([]Forgotten{{ID: 8, NextSequence: 1}})
		},
		"more applied than noted": func(t *Table, h *Head) {
			h.Forget([]Forgotten{f})
			h.ForgetApplied([]Forgotten{f})
			h.ForgetApplied([]Forgotten{f})
		},
		"applied after it was gone": func(t *Table, h *Head) {
			h.Forget([]Forgotten{f})
			h.ForgetApplied([]Forgotten{f})
			h.Applied(batch.Stamp{ID: 7})
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if text, _ := recover().(string); !strings.HasPrefix(text, "BUG: ") {
					t.Errorf("got %q", text)
				}
			}()
			table := New(RulesVersion, 0)
			table.Record(batch.Stamp{ID: 7, Last: 4}, 10)
			do(table, NewHead(table))
		})
	}
}

// TestAddsProducer: exactly the decisions after which the table has one more.
func TestAddsProducer(t *testing.T) {
	table := New(RulesVersion, 3)
	table.Record(batch.Stamp{ID: 5 << 32, Epoch: 1, Last: 4}, 0)
	seen := map[Reason]bool{}
	for _, s := range []batch.Stamp{
		{ID: -1, Epoch: -1, First: -1, Last: -1},
		{ID: 5<<32 | 1}, {ID: 1 << 32, First: 5, Last: 5}, {ID: 5<<32 | 1, First: 5, Last: 5},
		{ID: 5 << 32, Epoch: 1, First: 5, Last: 5}, {ID: 5 << 32, Epoch: 1, Last: 4}, {ID: 5 << 32},
		{ID: 5 << 32, Epoch: 1, First: 6, Last: 6}, {ID: 5 << 32, Epoch: 1, First: 1, Last: 1},
		{ID: 5 << 32, Epoch: 2}, {ID: 5 << 32, Epoch: 2, First: 1, Last: 1},
	} {
		d := table.Decide(s)
		after := table.Clone()
		if d.Verdict == Append {
			after.Record(s, 5)
		}
		if got, want := d.AddsProducer(), after.Producers() > table.Producers(); got != want {
			t.Errorf("%+v, %v: %v, want %v", s, d.Reason, got, want)
		}
		seen[d.Reason] = true
	}
	if len(seen) != int(FirstContactNotZero)+1 {
		t.Errorf("not every reason was met: %v", seen)
	}
}

// TestCheck breaks a table in ways that its methods never would.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*Table, *producer)
	}{
		{"(D1) no batch", func(_ *Table, p *producer) { p.n = 0 }},
		{"(D1) too many batches", func(_ *Table, p *producer) { p.n = windowMax + 1 }},
		{"(D1) epoch", func(_ *Table, p *producer) { p.epoch = -1 }},
		{"(D2) first sequence", func(_ *Table, p *producer) { p.first = -1 }},
		{"(D2) last sequence", func(_ *Table, p *producer) { p.last[1] = -1 }},
		{"(D2) all sequences", func(_ *Table, p *producer) { p.last[1] = p.last[0] }},
		{"(D3) negative offset", func(_ *Table, p *producer) { p.base[0] = -1 }},
		{"(D3) offset too high", func(_ *Table, p *producer) { p.base[1] = batch.MaxBaseOffset + 1 }},
		{"(D3) offsets overlap", func(_ *Table, p *producer) { p.base[1] = p.lastOffset(0) }},
		{"(D4) begins too late", func(_ *Table, p *producer) { p.first = 1 }},
		{"(D5) clock ahead", func(_ *Table, p *producer) { p.clock = 11 }},
		{"(D5) clock below", func(_ *Table, p *producer) { p.clock = -2 }},
		{"(D6) below the floor", func(t *Table, _ *producer) { t.marks.list[0].start = 2 }},
		{"(D6) no start number", func(t *Table, _ *producer) { t.marks.list[1].start = 1 << 31 }},
		{"(D6) the same twice", func(t *Table, _ *producer) { t.marks.list[1].start = 5 }},
		{"(D6) descending", func(t *Table, _ *producer) { t.marks.list[1].start = 4 }},
		{"(D6) too many", func(t *Table, _ *producer) {
			for i := range uint32(marksMax) {
				t.marks.list = append(t.marks.list, mark{start: 7 + i})
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := New(RulesVersion, 3)
			table.marks.list = []mark{{start: 5}, {start: 6}}
			table.SetClock(10)
			table.Record(batch.Stamp{ID: 7 << 32, Last: 4}, 0)
			table.Record(batch.Stamp{ID: 7 << 32, First: 5, Last: 9}, 5)
			if err := table.Check(); err != nil {
				t.Fatal(err)
			}
			c.spoil(table, table.producers.get(7<<32))
			if err := table.Check(); err == nil {
				t.Error("not noticed")
			} else {
				t.Log(err)
			}
		})
	}
}

// TestHighestOffset: the last place at which any batch could stand is one.
func TestHighestOffset(t *testing.T) {
	table := New(RulesVersion, 0)
	table.Record(batch.Stamp{ID: 7, Last: maxSequence - 1}, batch.MaxBaseOffset)
	if _, err := Parse(table.AppendTo(nil)); err != nil {
		t.Error(err)
	}
	d := table.Decide(batch.Stamp{ID: 7, Last: maxSequence - 1})
	if d.Last != batch.MaxBaseOffset+batch.Offset(maxSequence)-1 {
		t.Errorf("last offset %d", d.Last)
	}
}

// TestNames: every value of the closed sets has a name of its own, and every reason a verdict.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for v := range OutOfOrder + 1 {
		seen[v.String()] = true
	}
	for r := range FirstContactNotZero + 1 {
		seen[r.String()] = true
	}
	if len(seen) != int(OutOfOrder)+1+int(FirstContactNotZero)+1 || seen[""] {
		t.Errorf("names: %v", seen)
	}
}
