package dedupe

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/oncemq/oncemq/internal/batch"
)

// TestVectors runs the stories under testdata, one a file. A story is told in these commands:
//
//	new [floor=N|all]       a partition at birth; it stands at offset 0
//	send                    batches reach a replica one by one: decided on and, when the verdict is Append, recorded
//	ask                     as send, but nothing is recorded
//	lead                    the replica begins to lead: an empty overlay over the table
//	propose, ask-head       as send and ask, on the overlay; what is proposed waits to be applied
//	propose-clock MS        a clock entry is proposed
//	idle BEFORE [MOST]      who could be forgotten, as the overlay says
//	propose-forget BEFORE [MOST]  an entry is proposed that forgets them
//	apply [N]               the oldest N proposals (default: all) are committed and applied
//	withdraw N              the newest N proposals are refused
//	step-down               the proposals are lost, the replica leads no more
//	clock MS                a clock entry is applied
//	forget                  an expire or evict entry is applied
//	mark-everything         a mark-everything entry is applied
//	restart                 the table is written, read back and replaced
//	show                    all that the table remembers
//
// A batch is "PRODUCER eEPOCH FIRST..LAST [at OFFSET]", a producer "COUNTER" or "START/COUNTER", and MAX is 2147483647;
// "none N" is a batch of N records without a producer. Every decision is also asked of the model, which for the overlay
// has seen the proposals too.
func TestVectors(t *testing.T) {
	datadriven.Walk(t, "testdata/vectors", func(t *testing.T, path string) {
		s := &story{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(t, d) })
	})
}

// story is the state in the middle of one file.
type story struct {
	table   *Table
	model   *model
	end     batch.Offset // of the table
	leader  *leader      // nil: the replica does not lead
	headEnd batch.Offset
}

func (s *story) run(t *testing.T, d *datadriven.TestData) string {
	if d.Cmd != "new" && s.table == nil {
		d.Fatalf(t, "begin with new")
	}
	if out, ok := s.lead(t, d); ok {
		return out
	}
	switch d.Cmd {
	case "new":
		*s = story{model: &model{}}
		if len(d.CmdArgs) > 0 && d.CmdArgs[0].Vals[0] == "all" {
			s.model.floor = math.MaxUint32
		} else {
			d.MaybeScanArgs(t, "floor", &s.model.floor)
		}
		s.table = New(RulesVersion, s.model.floor)
	case "send", "ask", "propose", "ask-head":
		var out strings.Builder
		for line := range strings.Lines(d.Input) {
			fmt.Fprintln(&out, s.batch(t, d, strings.Fields(line)))
		}
		return out.String()
	case "clock":
		ms := int64(number(t, d, d.CmdArgs[0].Key))
		s.entry(modelEvent{clock: &ms})
	case "forget":
		list := []Forgotten{}
		for line := range strings.Lines(d.Input) {
			words := strings.Fields(line)
			list = append(list, Forgotten{
				ID:           producerID(t, d, words[0]),
				Epoch:        batch.Epoch(number(t, d, strings.TrimPrefix(words[1], "e"))),
				NextSequence: batch.Sequence(number(t, d, strings.TrimPrefix(words[2], "next="))),
			})
		}
		s.entry(modelEvent{forget: list})
		return show(s.table)
	case "mark-everything":
		s.entry(modelEvent{everything: true})
	case "restart":
		data := s.table.AppendTo(nil)
		state := s.model.state()
		if want := state.bytes(); !bytes.Equal(data, want) {
			d.Fatalf(t, "bytes %x, the model writes %x", data, want)
		}
		parsed, err := Parse(data)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		s.table, s.leader = parsed, nil
		return show(s.table)
	case "show":
		return show(s.table)
	default:
		d.Fatalf(t, "unknown command")
	}
	return ""
}

// lead carries out the commands of a leader.
func (s *story) lead(t *testing.T, d *datadriven.TestData) (out string, ok bool) {
	switch d.Cmd {
	case "lead":
		s.leader = &leader{floor: s.model.floor, table: s.table, head: NewHead(s.table), applied: slices.Clone(s.model.events)}
		s.headEnd = s.end
	case "propose-clock":
		ms := int64(number(t, d, d.CmdArgs[0].Key))
		s.leader.propose(modelEvent{clock: &ms})
	case "idle", "propose-forget":
		before, most := int64(number(t, d, d.CmdArgs[0].Key)), math.MaxInt
		if len(d.CmdArgs) > 1 {
			most = number(t, d, d.CmdArgs[1].Key)
		}
		list := s.leader.head.Idle(before, most)
		if want, _ := s.leader.idle(s.leader.whole(), before, most); !slices.Equal(list, want) {
			d.Fatalf(t, "%+v, the model says %+v", list, want)
		}
		if d.Cmd == "propose-forget" {
			s.leader.propose(modelEvent{forget: list})
		}
		for _, f := range list {
			out += fmt.Sprintf("%s e%d next=%d\n", showID(f.ID), f.Epoch, f.NextSequence)
		}
	case "apply":
		out = s.apply(t, d)
	case "withdraw":
		s.leader.withdraw(len(s.leader.pending) - number(t, d, d.CmdArgs[0].Key))
	case "step-down":
		s.leader = nil
	default:
		return "", false
	}
	if s.leader != nil {
		if what := s.leader.complaint(s.leader.whole()); what != "" {
			d.Fatalf(t, "%s is wrong", what)
		}
	}
	return out, true
}

func (s *story) entry(e modelEvent) {
	e.apply(s.table)
	s.model.events = append(s.model.events, e)
	if s.leader != nil {
		s.leader.applied = append(s.leader.applied, e)
	}
}

// batch carries out one line of send, ask, propose or ask-head.
func (s *story) batch(t *testing.T, d *datadriven.TestData, words []string) string {
	onHead, records := strings.HasSuffix(d.Cmd, "head") || d.Cmd == "propose", !strings.HasPrefix(d.Cmd, "ask")
	end := &s.end
	if onHead {
		if s.leader == nil {
			d.Fatalf(t, "lead first")
		}
		end = &s.headEnd
	}
	stamp, size := batch.Stamp{ID: -1, Epoch: -1, First: -1, Last: -1}, batch.Offset(0)
	if words[0] == "none" {
		size = batch.Offset(number(t, d, words[1]))
	} else {
		first, last, _ := strings.Cut(words[2], "..")
		stamp = batch.Stamp{
			ID:    producerID(t, d, words[0]),
			Epoch: batch.Epoch(number(t, d, strings.TrimPrefix(words[1], "e"))),
			First: batch.Sequence(number(t, d, first)),
			Last:  batch.Sequence(number(t, d, last)),
		}
		size = length(stamp)
		if len(words) == 5 {
			*end = batch.Offset(number(t, d, words[4]))
		}
	}
	decide, state, record := s.table.Decide, s.model.state(), s.entry
	if onHead {
		decide, state, record = s.leader.head.Decide, s.leader.whole(), s.leader.propose
	}
	decision := decide(stamp)
	if decision != state.decide(stamp) {
		d.Fatalf(t, "%v: %+v, the model says %+v", words, decision, state.decide(stamp))
	}
	if !records || decision.Verdict != Append {
		return describe(decision, -1)
	}
	e := modelEvent{stamp: stamp, base: *end}
	record(e)
	*end += size
	return describe(decision, e.base)
}

func (s *story) apply(t *testing.T, d *datadriven.TestData) string {
	n := len(s.leader.pending)
	if len(d.CmdArgs) > 0 {
		n = number(t, d, d.CmdArgs[0].Key)
	}
	for range n {
		e := s.leader.pending[0]
		if e.isBatch() {
			if got := s.table.Decide(e.stamp); got.Verdict != Append {
				d.Fatalf(t, "apply %+v: %v, %v", e.stamp, got.Verdict, got.Reason)
			}
			s.end = e.base + length(e.stamp)
		}
		s.leader.apply()
		s.model.events = append(s.model.events, e)
	}
	return fmt.Sprintf("%d proposals left\n%s", len(s.leader.pending), show(s.table))
}

// describe prints a decision; base is where the batch was recorded, -1 when it was not.
func describe(d Decision, base batch.Offset) string {
	line := fmt.Sprintf("%v %v", d.Verdict, d.Reason)
	switch {
	case d.Verdict == Append && base >= 0:
		line += fmt.Sprintf(" at %d", base)
	case d.Verdict == Duplicate:
		line += fmt.Sprintf(" of %d..%d", d.Base, d.Last)
	case d.Verdict == Fenced:
		line += fmt.Sprintf(", epoch %d seen", d.SeenEpoch)
	case d.Verdict == OutOfOrder:
		line += fmt.Sprintf(", %d expected", d.Expected)
	}
	return line
}

// show prints all that a table remembers, the clock only once there is one.
func show(t *Table) string {
	var out strings.Builder
	if t.clock >= 0 {
		fmt.Fprintf(&out, "clock %d\n", t.clock)
	}
	switch t.marks.floor {
	case 0:
	case math.MaxUint32:
		fmt.Fprintln(&out, "everything marked")
	default:
		fmt.Fprintf(&out, "marked below %d/0\n", t.marks.floor)
	}
	for _, k := range t.marks.list {
		fmt.Fprintf(&out, "marked up to %d/%d\n", k.start, k.counter)
	}
	for _, e := range t.producers.ascending() {
		p := e.value
		fmt.Fprintf(&out, "%s e%d next %d", showID(e.id), p.epoch, p.next())
		if t.clock >= 0 {
			fmt.Fprintf(&out, " clock %d", p.clock)
		}
		out.WriteString(":")
		for i := range int(p.n) {
			fmt.Fprintf(&out, " %d..%d@%d", p.firstOf(i), p.last[i], p.base[i])
		}
		out.WriteString("\n")
	}
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}

func showID(id batch.ProducerID) string {
	if id < 1<<32 {
		return strconv.Itoa(int(id))
	}
	return fmt.Sprintf("%d/%d", id>>32, id&math.MaxUint32)
}

func producerID(t *testing.T, d *datadriven.TestData, word string) batch.ProducerID {
	if start, counter, ok := strings.Cut(word, "/"); ok {
		return batch.ProducerID(number(t, d, start))<<32 | batch.ProducerID(number(t, d, counter))
	}
	return batch.ProducerID(number(t, d, word))
}

// number reads a decimal number, MAX, or MAX-N.
func number(t *testing.T, d *datadriven.TestData, word string) int {
	rest, ok := strings.CutPrefix(word, "MAX")
	n := 0
	if rest != "" {
		var err error
		if n, err = strconv.Atoi(rest); err != nil {
			d.Fatalf(t, "%v", err)
		}
	}
	if ok {
		n += math.MaxInt32
	}
	return n
}
