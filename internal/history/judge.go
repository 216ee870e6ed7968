package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/oncemq/oncemq/internal/batch"
)

// examplesMax bounds the texts that a Verdict keeps of each kind of fault.
const examplesMax = 3

// Verdict says how much of what was read contradicts what was sent. The package comment tells what each count
// means; all of them are values, except Torn, Contradicted and Stale, which are batches, and Gap, which is offsets.
type Verdict struct {
	Sends   int // batches that were sent
	Records int // records that were read, each offset once
	Unknown int // batches whose outcome is unknown and that were not found: no fault

	Lost, Duplicate, Phantom, WrongOffset, Reordered int
	Divergent, Gap, Torn, Contradicted, Stale        int

	Examples []string // the first few faults of each kind
}

// OK reports whether nothing is wrong.
func (v Verdict) OK() bool {
	return v.Lost+v.Duplicate+v.Phantom+v.WrongOffset+v.Reordered+v.Divergent+v.Gap+v.Torn+v.Contradicted+v.Stale == 0
}

// Plus returns the sum of two verdicts, of different partitions.
func (v Verdict) Plus(w Verdict) Verdict {
	v.Sends += w.Sends
	v.Records += w.Records
	v.Unknown += w.Unknown
	v.Lost += w.Lost
	v.Duplicate += w.Duplicate
	v.Phantom += w.Phantom
	v.WrongOffset += w.WrongOffset
	v.Reordered += w.Reordered
	v.Divergent += w.Divergent
	v.Gap += w.Gap
	v.Torn += w.Torn
	v.Contradicted += w.Contradicted
	v.Stale += w.Stale
	v.Examples = append(slices.Clone(v.Examples), w.Examples...)
	return v
}

// In returns the verdict with a place, such as a partition, before each example.
func (v Verdict) In(place string) Verdict {
	v.Examples = slices.Clone(v.Examples)
	for i, example := range v.Examples {
		v.Examples[i] = place + ": " + example
	}
	return v
}

// String gives the counts in one line, and each example in a line of its own.
func (v Verdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d batches sent, %d records read: %d lost, %d duplicate, %d phantom, %d reordered, %d at a wrong offset, "+
		"%d torn, %d contradicted, %d divergent, %d gaps, %d stale", v.Sends, v.Records, v.Lost, v.Duplicate, v.Phantom,
		v.Reordered, v.WrongOffset, v.Torn, v.Contradicted, v.Divergent, v.Gap, v.Stale)
	for _, e := range v.Examples {
		b.WriteString("\n  " + e)
	}
	return b.String()
}

func (v *Verdict) add(count *int, kind, format string, args ...any) {
	*count++
	if *count <= examplesMax {
		v.Examples = append(v.Examples, kind+": "+fmt.Sprintf(format, args...))
	}
}

// judge is one judgement on its way. Its steps run in the order of newJudge.
type judge struct {
	sends   []send
	seen    []Record
	trimmed batch.Offset
	verdict Verdict
}

// readOrder checks that a reader got each offset of its range once and in rising order.
func (j *judge) readOrder(r Read) {
	next := r.Start
	for _, rec := range r.Records {
		switch {
		case rec.Offset > next:
			j.verdict.add(&j.verdict.Gap, "gap", "offset %d is missing before %d (%v)", next, rec.Offset, rec.Value)
			j.verdict.Gap += int(rec.Offset-next) - 1
		case rec.Offset < next:
			j.verdict.add(&j.verdict.Gap, "gap", "offset %d (%v) came when %d was due", rec.Offset, rec.Value, next)
		}
		next = max(next, rec.Offset+1)
	}
	if next < r.End {
		j.verdict.add(&j.verdict.Gap, "gap", "offset %d is missing, read up to %d", next, r.End)
		j.verdict.Gap += int(r.End-next) - 1
	}
}

// divergence sorts what was read by offset, drops what several reads saw alike, and finds offsets at which they
// saw different values.
func (j *judge) divergence() {
	slices.SortFunc(j.seen, func(a, b Record) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), a.Value.compare(b.Value))
	})
	j.seen = slices.Compact(j.seen)
	j.verdict.Records = len(j.seen)
	for i := 1; i < len(j.seen); i++ {
		if a, b := j.seen[i-1], j.seen[i]; a.Offset == b.Offset {
			j.verdict.Records--
			j.verdict.add(&j.verdict.Divergent, "divergent", "offset %d holds %v and %v", a.Offset, a.Value, b.Value)
		}
	}
}

// places walks the sends and what was read side by side, both sorted by value, and judges each send by the places
// at which its values were found.
func (j *judge) places() {
	slices.SortFunc(j.seen, func(a, b Record) int {
		return cmp.Or(a.Value.compare(b.Value), cmp.Compare(a.Offset, b.Offset))
	})
	slices.SortFunc(j.sends, func(a, b send) int { return a.value(0).compare(b.value(0)) })
	j.verdict.Sends = len(j.sends)
	seen := j.seen
	for i := range j.sends {
		s := &j.sends[i]
		if i > 0 && j.sends[i-1].value(j.sends[i-1].count-1).compare(s.value(0)) >= 0 {
			panic(fmt.Sprintf("history: %v was invoked twice", s.value(0)))
		}
		seen = j.strangers(seen, s.value(0))
		seen = j.sent(s, seen)
	}
	j.strangers(seen, Value{Producer: math.MaxInt32, Number: math.MaxInt64})
}

// strangers takes the records below the value off seen: nobody sent them.
func (j *judge) strangers(seen []Record, below Value) []Record {
	for len(seen) > 0 && seen[0].Value.compare(below) < 0 {
		j.verdict.add(&j.verdict.Phantom, "phantom", "%v at offset %d was never sent", seen[0].Value, seen[0].Offset)
		seen = seen[1:]
	}
	return seen
}

// sent takes the records of one send off seen and judges them. For a send whose outcome is unknown it remembers where its
// batch was found.
func (j *judge) sent(s *send, seen []Record) []Record {
	found, missing, whole := int32(0), int32(-1), true // missing: the last one that is
	base := batch.Offset(-1)                           // as the first value that was found tells it
	for i := range s.count {
		value := s.value(i)
		n := 0
		for n < len(seen) && seen[n].Value == value {
			n++
		}
		at := seen[:n]
		seen = seen[n:]
		if !s.mayRepeat {
			j.verdict.duplicate(at)
		}
		j.place(s, i, at)
		if n == 0 {
			missing = i
			continue
		}
		if found++; found == 1 {
			base = at[0].Offset - batch.Offset(i)
		}
		whole = whole && at[0].Offset == base+batch.Offset(i)
	}
	if s.outcome != unknown {
		return seen
	}
	trimmed := missing < 0 || base+batch.Offset(missing) < j.trimmed
	switch {
	case found == 0:
		j.verdict.Unknown++
	case base < 0 || !whole || !trimmed:
		j.verdict.add(&j.verdict.Torn, "torn", "%v: of a batch of %d, %d were found, not as one batch", s.value(0), s.count, found)
	default:
		s.base = base
	}
	return seen
}

func (v *Verdict) duplicate(at []Record) {
	for i := 1; i < len(at); i++ {
		v.add(&v.Duplicate, "duplicate", "%v at offsets %d and %d", at[i].Value, at[0].Offset, at[i].Offset)
	}
}

// place judges the value number i of a send whose outcome is known by the places at which it was found.
func (j *judge) place(s *send, i int32, at []Record) {
	want := s.base + batch.Offset(i)
	switch {
	case s.outcome == refused && len(at) > 0:
		j.verdict.add(&j.verdict.Phantom, "phantom", "%v was refused and stands at offset %d", s.value(i), at[0].Offset)
	case s.outcome == stored && len(at) == 0:
		if want >= j.trimmed {
			j.verdict.add(&j.verdict.Lost, "lost", "%v was answered with offset %d", s.value(i), want)
		}
	case s.outcome == stored:
		if !slices.ContainsFunc(at, func(r Record) bool { return r.Offset == want }) {
			j.verdict.add(&j.verdict.WrongOffset, "wrong offset", "%v stands at offset %d, answered was %d", s.value(i), at[0].Offset, want)
		}
	}
}

// reordered walks the log in the order of its offsets and compares each value with the highest number of its
// producer so far. Of a value that stands at several offsets only the first counts: the others are duplicates.
func (j *judge) reordered() {
	// places left seen sorted by value and offset, so the first copy of a value comes first.
	firsts := slices.CompactFunc(j.seen, func(a, b Record) bool { return a.Value == b.Value })
	slices.SortFunc(firsts, func(a, b Record) int { return cmp.Compare(a.Offset, b.Offset) })
	highest := make(map[int32]Record)
	for _, r := range firsts {
		top, known := highest[r.Value.Producer]
		if known && r.Value.Number < top.Value.Number {
			j.verdict.add(&j.verdict.Reordered, "reordered", "%v at offset %d stands after number %d at %d",
				r.Value, r.Offset, top.Value.Number, top.Offset)
			continue
		}
		highest[r.Value.Producer] = r
	}
}

// realTime sweeps over all beginnings and ends in the order in which they happened: a send must stand behind
// everything that had been answered when it began.
func (j *judge) realTime() {
	placed := slices.DeleteFunc(slices.Clone(j.sends), func(s send) bool { return s.base < 0 })
	answered := slices.DeleteFunc(slices.Clone(placed), func(s send) bool { return s.outcome != stored })
	slices.SortFunc(placed, func(a, b send) int { return cmp.Compare(a.invoked, b.invoked) })
	slices.SortFunc(answered, func(a, b send) int { return cmp.Compare(a.ended, b.ended) })
	last, lastOf := batch.Offset(-1), send{}
	for _, s := range placed {
		for len(answered) > 0 && answered[0].ended < s.invoked {
			if end := answered[0].base + batch.Offset(answered[0].count) - 1; end > last {
				last, lastOf = end, answered[0]
			}
			answered = answered[1:]
		}
		if s.base <= last {
			j.verdict.add(&j.verdict.Stale, "stale", "%v at offset %d began after the answer to %v, which ends at %d",
				s.value(0), s.base, lastOf.value(0), last)
		}
	}
}
