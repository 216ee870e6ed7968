package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
)

// faultless builds a history of random batches of several producers, all stored and read back once, in a real-time
// order that the log respects. It returns the records so that a test can plant a fault before it calls Read.
func faultless(rng *rand.Rand, sends int) (*History, []SendID, []Record) {
	h := New()
	var ids []SendID
	var records []Record
	numbers := make(map[int32]int64)
	for range sends {
		p, count := rng.Int32N(3), 1+rng.Int32N(4)
		id := h.Invoke(p, numbers[p], count)
		ids = append(ids, id)
		h.Stored(id, batch.Offset(len(records)))
		for range count {
			records = append(records, Record{Offset: batch.Offset(len(records)), Value: Value{p, numbers[p]}})
			numbers[p]++
		}
	}
	return h, ids, records
}

func (h *History) readAll(records []Record) {
	h.Read(Read{Start: 0, End: batch.Offset(len(records)), Records: records})
}

// renumber gives the records the offsets of their places, as a reader of a log without holes gets them.
func renumber(records []Record) []Record {
	for i := range records {
		records[i].Offset = batch.Offset(i)
	}
	return records
}

func TestFaultless(t *testing.T) {
	for seed := range uint64(50) {
		h, _, records := faultless(rand.New(rand.NewPCG(seed, 1)), 200)
		h.readAll(records)
		h.readAll(slices.Clone(records[:len(records)/2])) // a second reader, shorter
		v := h.JudgeRealTime()
		if !v.OK() || len(v.Examples) != 0 {
			t.Fatalf("seed %d: a faultless history was judged %v", seed, v)
		}
		if v.Sends != 200 || v.Records != len(records) {
			t.Fatalf("seed %d: counted %d sends and %d records, want 200 and %d", seed, v.Sends, v.Records, len(records))
		}
	}
}

func TestUnknownOutcomes(t *testing.T) {
	h := New()
	h.Invoke(1, 0, 2) // not stored
	h.Invoke(1, 2, 2) // stored
	h.Read(Read{End: 2, Records: []Record{{0, Value{1, 2}}, {1, Value{1, 3}}}})
	v := h.JudgeRealTime()
	if !v.OK() || v.Unknown != 1 {
		t.Fatalf("judged %v with %d unknown, want no fault and 1", v, v.Unknown)
	}
}

// Each planted fault must raise exactly the counts that it names, by exactly as much.
func TestPlantedFaults(t *testing.T) {
	var b batch.Offset = 6 // producer 1 has 0-2 at 0, 3-5 at 3; producer 2 has 0-2 at 6
	three := func() (*History, []Record) {
		h := New()
		var records []Record
		for i, v := range []Value{{1, 0}, {1, 3}, {2, 0}} {
			id := h.Invoke(v.Producer, v.Number, 3)
			h.Stored(id, batch.Offset(3*i))
			for n := range int64(3) {
				records = append(records, Record{batch.Offset(len(records)), Value{v.Producer, v.Number + n}})
			}
		}
		return h, records
	}
	tests := []struct {
		name  string
		plant func(h *History, r []Record)
		want  Verdict
	}{
		{"lost at the end", func(h *History, r []Record) {
			h.readAll(r[:8])
		}, Verdict{Lost: 1}},
		{"lost inside, the rest moved up", func(h *History, r []Record) {
			h.readAll(renumber(slices.Delete(r, 2, 3)))
		}, Verdict{Lost: 1, WrongOffset: 6}},
		{"lost inside, a hole left", func(h *History, r []Record) {
			h.Read(Read{End: 9, Records: slices.Delete(r, 2, 3)})
		}, Verdict{Lost: 1, Gap: 1}},
		{"everything lost", func(h *History, r []Record) {
			h.Read(Read{})
		}, Verdict{Lost: 9}},
		{"no read at all", func(*History, []Record) {}, Verdict{Lost: 9}},
		{"stored twice", func(h *History, r []Record) {
			h.readAll(renumber(append(r, r[6:9]...)))
		}, Verdict{Duplicate: 3}},
		{"an older batch stored again is a duplicate, not a change of order", func(h *History, r []Record) {
			h.readAll(renumber(append(r, r[0:3]...)))
		}, Verdict{Duplicate: 3}},
		{"unknown and stored twice", func(h *History, r []Record) {
			h.Invoke(3, 0, 1)
			h.readAll(renumber(append(r, Record{9, Value{3, 0}}, Record{10, Value{3, 0}})))
		}, Verdict{Duplicate: 1}},
		{"refused and there", func(h *History, r []Record) {
			h.Refused(h.Invoke(3, 0, 2))
			h.readAll(append(r, Record{9, Value{3, 0}}))
		}, Verdict{Phantom: 1}},
		{"never sent", func(h *History, r []Record) {
			h.readAll(append(r, Record{9, Value{0, 0}}, Record{10, Value{1, 6}}, Record{11, Value{7, 7}}))
		}, Verdict{Phantom: 3}},
		{"at another offset than answered", func(h *History, r []Record) {
			id := h.Invoke(3, 0, 1)
			h.Stored(id, 12)
			h.readAll(append(r, Record{9, Value{3, 0}}))
		}, Verdict{WrongOffset: 1}},
		{"two batches in the wrong order", func(h *History, r []Record) {
			h.readAll(renumber(slices.Concat(r[3:6], r[0:3], r[6:9])))
		}, Verdict{Reordered: 3, WrongOffset: 6}},
		{"unknown batch stands behind its successor", func(h *History, r []Record) {
			h.Invoke(4, 0, 1)
			h.Stored(h.Invoke(4, 1, 1), 9)
			h.readAll(append(r, Record{9, Value{4, 1}}, Record{10, Value{4, 0}}))
		}, Verdict{Reordered: 1}},
		{"half of an unknown batch", func(h *History, r []Record) {
			h.Invoke(3, 0, 2)
			h.readAll(append(r, Record{9, Value{3, 0}}))
		}, Verdict{Torn: 1}},
		{"second half of an unknown batch", func(h *History, r []Record) {
			h.Invoke(3, 0, 2)
			h.readAll(append(r, Record{9, Value{3, 1}}))
		}, Verdict{Torn: 1}},
		{"unknown batch with another inside", func(h *History, r []Record) {
			h.Invoke(3, 0, 2)
			h.Stored(h.Invoke(4, 0, 1), 10)
			h.readAll(append(r, Record{9, Value{3, 0}}, Record{10, Value{4, 0}}, Record{11, Value{3, 1}}))
		}, Verdict{Torn: 1}},
		{"two readers disagree", func(h *History, r []Record) {
			h.readAll(r)
			other := slices.Clone(r)
			other[8].Value, other[7].Value = other[7].Value, other[8].Value
			h.readAll(other)
		}, Verdict{Divergent: 2, Duplicate: 2}},
		{"a reader skips to a later offset", func(h *History, r []Record) {
			h.readAll(r)
			h.Read(Read{Start: 1, End: 9, Records: append(slices.Clone(r[1:3]), r[6:9]...)})
		}, Verdict{Gap: 3}},
		{"a reader misses the end", func(h *History, r []Record) {
			h.readAll(r)
			h.Read(Read{Start: 1, End: 9, Records: slices.Clone(r[1:5])})
		}, Verdict{Gap: 4}},
		{"a reader goes back", func(h *History, r []Record) {
			h.readAll(r)
			h.Read(Read{Start: 1, End: 6, Records: append(slices.Clone(r[1:4]), r[2:6]...)})
		}, Verdict{Gap: 2}},
		{"a retry gets another offset", func(h *History, r []Record) {
			id := h.Invoke(3, 0, 1)
			h.Stored(id, 9)
			h.Stored(id, 10)
			h.Stored(id, 9)
			h.readAll(append(r, Record{9, Value{3, 0}}))
		}, Verdict{Contradicted: 1}},
		{"stored after a refusal", func(h *History, r []Record) {
			id := h.Invoke(3, 0, 1)
			h.Refused(id)
			h.Stored(id, 9)
			h.readAll(r)
		}, Verdict{Contradicted: 1}},
		{"refused after stored", func(h *History, r []Record) {
			id := h.Invoke(3, 0, 1)
			h.Stored(id, 9)
			h.Refused(id)
			h.readAll(append(r, Record{9, Value{3, 0}}))
		}, Verdict{Contradicted: 1}},
		{"stored before something answered earlier", func(h *History, r []Record) {
			h.Stored(h.Invoke(3, 0, 1), 10)
			h.Stored(h.Invoke(4, 0, 1), 9)
			h.readAll(append(r, Record{9, Value{4, 0}}, Record{10, Value{3, 0}}))
		}, Verdict{Stale: 1}},
		{"unknown and stored before something answered earlier", func(h *History, r []Record) {
			h.Stored(h.Invoke(3, 0, 1), 10)
			h.Invoke(4, 0, 1)
			h.readAll(append(r, Record{9, Value{4, 0}}, Record{10, Value{3, 0}}))
		}, Verdict{Stale: 1}},
		{"gone, and only a part of it was to be deleted", func(h *History, r []Record) {
			h.Trim(3)
			h.Trim(2)
			h.Read(Read{Start: 5, End: 9, Records: r[5:]})
		}, Verdict{Lost: 2}},
		{"half of an unknown batch, the other half not deleted", func(h *History, r []Record) {
			h.Trim(9)
			h.Invoke(3, 0, 2)
			h.Read(Read{Start: 10, End: 11, Records: []Record{{10, Value{3, 1}}}})
		}, Verdict{Torn: 1}},
		{"an unknown batch with a hole, its beginning deleted", func(h *History, r []Record) {
			h.Trim(10)
			h.Invoke(3, 0, 4)
			h.Read(Read{Start: 10, End: 12, Records: []Record{{10, Value{3, 1}}, {11, Value{3, 3}}}})
		}, Verdict{Torn: 1}},
		{"the end of an unknown batch, before the first offset", func(h *History, r []Record) {
			h.Trim(9)
			h.Invoke(0, 0, 2)
			h.readAll([]Record{{0, Value{0, 1}}})
		}, Verdict{Torn: 1}},
		{"may repeat, and its neighbour stands twice", func(h *History, r []Record) {
			h.MayRepeat(h.Invoke(3, 0, 1))
			h.readAll(renumber(append(r, r[8])))
		}, Verdict{Duplicate: 1}},
		{"two answers with the same offset", func(h *History, r []Record) {
			h.Stored(h.Invoke(3, 0, 1), b)
			h.readAll(r)
		}, Verdict{Lost: 1, Stale: 1}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h, records := three()
			test.plant(h, records)
			got := h.JudgeRealTime()
			if got.OK() {
				t.Fatal("the fault was not found")
			}
			if len(got.Examples) == 0 {
				t.Error("no example tells what is wrong")
			}
			text := got.String()
			got.Sends, got.Records, got.Unknown, got.Examples = 0, 0, 0, nil
			if fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("judged %s\nwant %v", text, test.want)
			}
		})
	}
}

// What was deleted on request may be missing, or be known from a reader that was quicker; and a producer that was forgotten
// may have stored its retry.
func TestTrimAndRepeat(t *testing.T) {
	h := New()
	h.Stored(h.Invoke(1, 0, 3), 0)
	h.Stored(h.Invoke(1, 3, 3), 3) // deleted in part
	h.Invoke(2, 0, 3)              // unknown, deleted in part
	twice := h.Invoke(3, 0, 1)
	h.Stored(twice, 9)
	h.MayRepeat(twice)
	unknown := h.Invoke(3, 1, 2)
	h.MayRepeat(unknown)
	h.Read(Read{End: 2, Records: []Record{{0, Value{1, 0}}, {1, Value{1, 1}}}})
	h.Trim(8)
	h.Read(Read{Start: 8, End: 15, Records: []Record{
		{8, Value{2, 2}}, {9, Value{3, 0}}, {10, Value{3, 1}}, {11, Value{3, 2}}, {12, Value{3, 0}}, {13, Value{3, 1}}, {14, Value{3, 2}}}})
	if v := h.JudgeRealTime(); !v.OK() || v.Unknown != 0 || v.Records != 9 {
		t.Error(v)
	}
}

// Sends that overlap in time may stand in any order.
func TestConcurrentSendsHaveNoOrder(t *testing.T) {
	h := New()
	first, second := h.Invoke(1, 0, 1), h.Invoke(2, 0, 1)
	h.Stored(first, 1)
	h.Stored(second, 0)
	h.Read(Read{End: 2, Records: []Record{{0, Value{2, 0}}, {1, Value{1, 0}}}})
	if v := h.JudgeRealTime(); !v.OK() {
		t.Fatal(v)
	}
}

// A large random history, with one fault at a random place: each must be found. A checker that finds a fault only
// where the small cases above put it would pass those.
func TestPlantedFaultAnywhere(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		h, ids, records := faultless(rng, 100)
		at := rng.IntN(len(records))
		var count func(v Verdict) int
		switch kind := seed % 6; kind {
		case 0:
			records = slices.Delete(records, at, at+1)
			count = func(v Verdict) int { return v.Lost }
		case 1:
			records = slices.Insert(records, rng.IntN(len(records)), records[at])
			count = func(v Verdict) int { return v.Duplicate }
		case 2:
			records = slices.Insert(records, at, Record{Value: Value{9, int64(at)}})
			count = func(v Verdict) int { return v.Phantom }
		case 3:
			h.sends[ids[rng.IntN(len(ids))]].base += 1 + batch.Offset(rng.IntN(50))
			count = func(v Verdict) int { return v.WrongOffset }
		case 4:
			at = slices.IndexFunc(records, func(r Record) bool { return r.Value.Number >= 5 })
			before := slices.IndexFunc(records, func(r Record) bool { return r.Value.Producer == records[at].Value.Producer })
			records[at].Value, records[before].Value = records[before].Value, records[at].Value
			count = func(v Verdict) int { return v.Reordered }
		case 5:
			h.Refused(h.Invoke(8, 0, 1))
			records = append(records, Record{Value: Value{8, 0}})
			count = func(v Verdict) int { return v.Phantom }
		}
		h.readAll(renumber(records))
		if v := h.Judge(); count(v) == 0 {
			t.Fatalf("seed %d: the fault of kind %d was not found: %v", seed, seed%6, v)
		}
	}
}

func TestInvokedTwicePanics(t *testing.T) {
	for _, second := range []int64{0, 1, 2} {
		h := New()
		h.Invoke(1, 0, 3)
		h.Invoke(1, second, 1)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("value %d was invoked twice and nothing said so", second)
				}
			}()
			h.Judge()
		}()
	}
}

func TestIn(t *testing.T) {
	v := Verdict{Lost: 2, Examples: []string{"lost: a", "lost: b"}}
	got := v.In("t/0")
	if want := (Verdict{Lost: 2, Examples: []string{"t/0: lost: a", "t/0: lost: b"}}); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if v.Examples[0] != "lost: a" {
		t.Errorf("the verdict itself changed: %+v", v)
	}
}

func TestPlus(t *testing.T) {
	a := Verdict{Sends: 1, Records: 1, Unknown: 1, Lost: 1, Duplicate: 1, Phantom: 1, WrongOffset: 1, Reordered: 1,
		Divergent: 1, Gap: 1, Torn: 1, Contradicted: 1, Stale: 1, Examples: []string{"a"}}
	want := Verdict{Sends: 2, Records: 2, Unknown: 2, Lost: 2, Duplicate: 2, Phantom: 2, WrongOffset: 2, Reordered: 2,
		Divergent: 2, Gap: 2, Torn: 2, Contradicted: 2, Stale: 2, Examples: []string{"a", "a"}}
	if got := a.Plus(a); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestExamplesAreBounded(t *testing.T) {
	h := New()
	for i := range int64(100) {
		h.Stored(h.Invoke(1, i, 1), batch.Offset(i))
	}
	v := h.Judge()
	if v.Lost != 100 || len(v.Examples) != examplesMax || !strings.Contains(v.String(), "producer 1 number 0") {
		t.Errorf("judged %v", v)
	}
}

func TestPayload(t *testing.T) {
	for _, size := range []int{0, PayloadSizeMin, PayloadSizeMin + 1, 100, 5000} {
		v := Value{Producer: 7, Number: 1<<40 + int64(size)}
		b := AppendPayload([]byte("x"), v, size)[1:]
		if len(b) != max(size, PayloadSizeMin) {
			t.Fatalf("payload of %d bytes, want %d", len(b), size)
		}
		got, err := ParsePayload(b)
		if err != nil || got != v {
			t.Fatalf("parsed %v, %v, want %v", got, err, v)
		}
		for i := range b {
			b[i] ^= 0x10
			if got, err := ParsePayload(b); err == nil && got == v {
				t.Fatalf("size %d: a change of byte %d was not noticed", size, i)
			}
			b[i] ^= 0x10
		}
	}
	if _, err := ParsePayload(make([]byte, PayloadSizeMin-1)); err == nil {
		t.Error("a short payload was taken")
	}
}

func BenchmarkJudge(b *testing.B) {
	h, _, records := faultless(rand.New(rand.NewPCG(1, 1)), 400_000)
	h.readAll(records)
	for b.Loop() {
		h.JudgeRealTime()
	}
	b.ReportMetric(float64(len(records)), "records/op")
}
