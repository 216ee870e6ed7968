package replica

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// BenchmarkProduce is a batch of 1 KiB from its submission to its answer, on a disk in memory, 50 of ten producers in
// flight.
func BenchmarkProduce(b *testing.B) {
	setSegmentBytes(b, 1<<30)
	s := openStack(b, memfs.New(), 1)
	defer s.close()
	payload := make([]byte, 1024-batch.HeaderSize)
	const inFlight = 50
	type flying struct {
		batch []byte
		p     *pending
	}
	var queue [inFlight]flying
	for i := range queue {
		queue[i].batch = batchOf(batch.ProducerID(i%10), 0, 0, 1, payload)
	}
	b.ReportAllocs()
	b.SetBytes(1024)
	b.ResetTimer()
	for i := range b.N {
		f := &queue[i%inFlight]
		if f.p != nil {
			must(b, f.p.wait(b).Err)
		}
		batchAgain(f.batch, batch.Sequence(i/10))
		h, _ := batch.CheckProduce(f.batch)
		f.p = newPending()
		must(b, s.partition.Submit(&Submission{Batch: f.batch, Header: h, Done: f.p}))
	}
	for i := range queue {
		if queue[i].p != nil {
			must(b, queue[i].p.wait(b).Err)
		}
	}
}

// batchAgain makes a stored batch one that a client sends, with another sequence.
func batchAgain(b []byte, first batch.Sequence) {
	h, _ := batch.ParseHeader(b)
	copy(b, batchOf(h.ProducerID, 0, first, 1, b[batch.HeaderSize:]))
}

// crowdedCore is a core whose table has producers with full windows.
func crowdedCore(n int) *partitionCore {
	table := dedupe.New(dedupe.RulesVersion, 0)
	table.SetClock(1)
	offset := batch.Offset(0)
	for k := range batch.Sequence(5) {
		for id := range batch.ProducerID(n) {
			table.Record(batch.Stamp{ID: id, First: k, Last: k}, offset)
			offset++
		}
	}
	settings := testSettings()
	settings.ProducersMax = n
	return &partitionCore{core: &core{}, table: table, head: dedupe.NewHead(table), settings: settings, host: &testHost{}, high: offset}
}

// BenchmarkCut is how long the loop stands still where a segment begins; bytes/producer is what the copy takes until it is
// on disk. BenchmarkBaseBody is the work that is done beside the loop.
func BenchmarkCut(b *testing.B) {
	for _, n := range []int{1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint("producers=", n), func(b *testing.B) {
			p := crowdedCore(n)
			var kept state
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for b.Loop() {
				kept = p.cut()
			}
			b.StopTimer()
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(n), "bytes/producer")
			runtime.KeepAlive(kept)
			runtime.KeepAlive(p)
		})
	}
}

func BenchmarkBaseBody(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprint("producers=", n), func(b *testing.B) {
			body := crowdedCore(n).cut().body
			size := 0
			for b.Loop() {
				size = len(body.AppendTo(nil))
			}
			b.ReportMetric(float64(size)/float64(n), "bytes/producer")
		})
	}
}

// BenchmarkExpire is how long the loop looks for idle producers when there is none, and when all are.
func BenchmarkExpire(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		p := crowdedCore(n)
		now := time.Now()
		p.clockApplied = now.Add(-time.Hour)
		b.Run(fmt.Sprint("none/producers=", n), func(b *testing.B) {
			for b.Loop() {
				if len(p.head.Idle(0, dedupe.ForgottenMax)) > 0 {
					b.Fatal("somebody is idle")
				}
			}
		})
		b.Run(fmt.Sprint("all/producers=", n), func(b *testing.B) {
			for b.Loop() {
				if len(p.head.Idle(p.idleBefore(now, time.Minute), dedupe.ForgottenMax)) != dedupe.ForgottenMax {
					b.Fatal("not all are idle")
				}
			}
		})
		b.Run(fmt.Sprint("refused/producers=", n), func(b *testing.B) {
			early := p.clockApplied
			for b.Loop() {
				if p.makeRoom(early) == nil {
					b.Fatal("there is room")
				}
			}
		})
	}
}
