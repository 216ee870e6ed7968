package dedupe

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
)

// filled returns a table of n producers with full windows, as nodes give ids out: counters of a few start numbers.
func filled(n int) (*Table, []batch.ProducerID) {
	t := New(RulesVersion, 0)
	t.SetClock(1_790_000_000_000)
	ids := make([]batch.ProducerID, n)
	for i := range ids {
		ids[i] = batch.ProducerID(4711+i%3)<<32 | batch.ProducerID(i/3)
	}
	base := batch.Offset(0)
	for k := range batch.Sequence(windowMax) {
		for _, id := range ids {
			t.Record(batch.Stamp{ID: id, First: 10 * k, Last: 10*k + 9}, base)
			base += 10
		}
	}
	return t, ids
}

// stampCount is a constant power of two: a division would cost the benchmark as much as a decision.
const stampCount = 1 << 16

// stampsFor returns batches of randomly chosen producers, so that a large table is not met in the cache.
func stampsFor(ids []batch.ProducerID, first batch.Sequence) []batch.Stamp {
	rng := rand.New(rand.NewPCG(1, 2))
	stamps := make([]batch.Stamp, stampCount)
	for i := range stamps {
		stamps[i] = batch.Stamp{ID: ids[rng.IntN(len(ids))], First: first, Last: first + 9}
	}
	return stamps
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{1, 1000, 1_000_000} {
		table, ids := filled(n)
		head := NewHead(table)
		for _, c := range []struct {
			name  string
			first batch.Sequence
			want  Verdict
		}{{"append", 50, Append}, {"duplicate", 20, Duplicate}} {
			stamps := stampsFor(ids, c.first)
			b.Run(fmt.Sprintf("table/producers=%d/%s", n, c.name), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if table.Decide(stamps[i%stampCount]).Verdict != c.want {
						b.Fatal("another verdict than the benchmark is about")
					}
				}
			})
			b.Run(fmt.Sprintf("head/producers=%d/%s", n, c.name), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if head.Decide(stamps[i%stampCount]).Verdict != c.want {
						b.Fatal("another verdict than the benchmark is about")
					}
				}
			})
		}
	}
}

// BenchmarkDecideForgetting is a decision on a head while other producers are being forgotten.
func BenchmarkDecideForgetting(b *testing.B) {
	table, ids := filled(1000)
	head := NewHead(table)
	for i := range batch.ProducerID(100) {
		table.Record(batch.Stamp{ID: 1<<40 + i}, 1<<40)
		head.Forget([]Forgotten{{ID: 1<<40 + i, NextSequence: 1}})
	}
	stamps := stampsFor(ids, 50)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if head.Decide(stamps[i%stampCount]).Verdict != Append {
			b.Fatal("not in order")
		}
	}
}

// BenchmarkRecord is a batch on its way through a leader: decided, proposed, decided again, applied.
func BenchmarkRecord(b *testing.B) {
	table, ids := filled(1000)
	head := NewHead(table)
	stamps := make([]batch.Stamp, len(ids))
	for i, id := range ids {
		stamps[i] = batch.Stamp{ID: id, First: 50, Last: 59}
	}
	base := batch.Offset(1 << 40)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		s := &stamps[i%len(stamps)]
		i++
		if head.Decide(*s).Verdict != Append {
			b.Fatal("not in order")
		}
		head.Record(*s, base)
		table.Record(*s, base)
		head.Applied(*s)
		base += 10
		s.First = batch.AddSequence(s.First, 10)
		s.Last = batch.AddSequence(s.Last, 10)
	}
}

// BenchmarkMemory reports what one producer with a full window costs on the heap, everything included.
func BenchmarkMemory(b *testing.B) {
	for _, n := range []int{1, 1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("producers=%d", n), func(b *testing.B) {
			for b.Loop() {
				tables := max(1, 10_000/n)
				before := heapBytes()
				kept := make([]*Table, tables)
				for i := range kept {
					kept[i], _ = filled(n)
				}
				b.ReportMetric(float64(heapBytes()-before)/float64(n*tables), "B/producer")
				runtime.KeepAlive(kept)
			}
		})
	}
}

func heapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkSnapshot(b *testing.B) {
	table, _ := filled(100_000)
	data := table.AppendTo(nil)
	b.Run("append", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			data = table.AppendTo(data[:0])
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := Parse(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkIdle looks for producers to forget: among many that all could be, and where nobody was idle for so long.
func BenchmarkIdle(b *testing.B) {
	table, _ := filled(100_000)
	head := NewHead(table)
	for _, most := range []int{1, 100, ForgottenMax} {
		b.Run(fmt.Sprintf("producers=100000/most=%d", most), func(b *testing.B) {
			for b.Loop() {
				if len(head.Idle(table.Clock(), most)) != most {
					b.Fatal("too few")
				}
			}
		})
	}
	b.Run("producers=100000/none", func(b *testing.B) {
		for b.Loop() {
			if head.Idle(table.Clock()-1, 1) != nil {
				b.Fatal("too many")
			}
		}
	})
}

func BenchmarkClone(b *testing.B) {
	for _, n := range []int{1, 1000, 100_000, 1_000_000} {
		table, _ := filled(n)
		b.Run(fmt.Sprintf("producers=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				table.Clone()
			}
		})
	}
}
