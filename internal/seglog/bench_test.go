package seglog

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/vfs"
)

// TestAppendAllocations: nothing is allocated per entry. What is left is the kernel's vector of a large write, and the
// growing index.
func TestAppendAllocations(t *testing.T) {
	m := newMaker(1)
	cfg := testConfig(vfs.OS())
	cfg.Dir = t.TempDir()
	cfg.SegmentBytes, cfg.SegmentEntries = 0, 0
	l := create(t, cfg)
	const runs, perCall = 10, 1000
	calls := make([][]Entry, runs+1)
	for i := range calls {
		calls[i] = m.several(perCall, 200)
	}
	next := 0
	allocs := testing.AllocsPerRun(runs, func() {
		must(t, l.Append(calls[next]))
		next++
	})
	if allocs > 25 {
		t.Errorf("%v allocations for %d entries", allocs, perCall)
	}
	must(t, l.Close())
}

// BenchmarkAppendSync appends batches and makes them durable, and does the same, with the same number of bytes, by a
// bare pwrite and fdatasync, in turns: "ratio" is bare time by ours, 1 is perfect.
func BenchmarkAppendSync(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		for _, batches := range []int{1, 16} {
			b.Run(fmt.Sprintf("%dKiB/%d", size>>10, batches), func(b *testing.B) { benchmarkAppendSync(b, size, batches) })
		}
	}
}

func benchmarkAppendSync(b *testing.B, size, batches int) {
	m := newMaker(1)
	cfg := Config{FS: vfs.OS(), Dir: b.TempDir(), Identity: testIdentity}
	l := create(b, cfg)
	raw, err := cfg.FS.Create(filepath.Join(b.TempDir(), "raw"))
	must(b, err)
	entries := make([]Entry, batches)
	for i := range entries {
		entries[i] = m.batch(1, size/batches-batch.HeaderSize)
	}
	payload := make([]byte, size)
	offset := batch.Offset(0)
	appendSync := func() {
		for i := range entries {
			batch.SetPlace(entries[i].Data, offset, 1)
			offset++
		}
		must(b, l.Append(entries))
		must(b, l.Sync())
	}
	position := int64(0)
	writeSync := func() {
		_, err := raw.WriteAt(payload, position)
		must(b, err)
		must(b, raw.SyncData())
		if position += int64(size); position >= 1<<30 { // as a segment
			must(b, raw.Truncate(0))
			position = 0
		}
	}
	var ours, bare time.Duration
	timed := func(total *time.Duration, f func()) {
		start := time.Now()
		f()
		*total += time.Since(start)
	}
	b.ResetTimer()
	for n := range b.N {
		if n%2 == 0 {
			timed(&bare, writeSync)
		}
		timed(&ours, appendSync)
		if n%2 == 1 {
			timed(&bare, writeSync)
		}
	}
	b.StopTimer()
	b.ReportMetric(0, "ns/op") // of both together
	b.ReportMetric(float64(ours.Nanoseconds())/float64(b.N), "log-ns/op")
	b.ReportMetric(float64(bare.Nanoseconds())/float64(b.N), "bare-ns/op")
	b.ReportMetric(float64(bare)/float64(ours), "ratio")
	must(b, l.Close())
	must(b, raw.Close())
}

// BenchmarkRead locates and reads 64 KiB of batches of 4 KiB, at the end of the log, from memory's index, and in a
// sealed segment, from the file's.
func BenchmarkRead(b *testing.B) {
	m := newMaker(1)
	cfg := Config{FS: vfs.OS(), Dir: b.TempDir(), Identity: testIdentity, SegmentBytes: 64 << 20}
	l := create(b, cfg)
	for range 28000 { // the active segment has about 11,000 of them
		must(b, l.Append([]Entry{m.batch(10, 4<<10-batch.HeaderSize)}))
	}
	for _, where := range []struct {
		name  string
		first batch.Offset
	}{{"active", l.active().firstOffset}, {"sealed", 0}} {
		b.Run(where.name, func(b *testing.B) {
			const span = 16000 // offsets
			var ranges []Range
			var buf []byte
			var err error
			from := batch.Offset(0)
			b.ReportAllocs()
			for b.Loop() {
				if ranges, err = l.Locate(where.first+from%span, l.NextOffset(), 64<<10, true, ranges[:0]); err != nil {
					b.Fatal(err)
				}
				if buf, err = l.Read(buf[:0], ranges); err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(buf)))
				from += 160
			}
		})
	}
	must(b, l.Close())
}

// BenchmarkCheckRange checks 64 KiB that are in memory, which is what Read does beyond copying them from the file.
func BenchmarkCheckRange(b *testing.B) {
	for _, size := range []int{1 << 10, 4 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			m := newMaker(1)
			var bytes []byte
			for len(bytes) < 64<<10 {
				bytes = append(bytes, m.batch(10, size-batch.HeaderSize).Data...)
			}
			r := Range{segment: &segment{}, Length: len(bytes), next: m.next.offset, term: m.next.term}
			b.SetBytes(int64(len(bytes)))
			b.ReportAllocs()
			for b.Loop() {
				_, err := r.check(bytes)
				must(b, err)
			}
		})
	}
}

// BenchmarkOpenFrom opens a log of ten segments of 64 MiB with the last one read, which has 1 MiB, and whole.
func BenchmarkOpenFrom(b *testing.B) {
	m := newMaker(1)
	cfg := Config{FS: vfs.OS(), Dir: b.TempDir(), Identity: testIdentity}
	l := create(b, cfg)
	const size = 64 << 10
	for segment := range 10 {
		for range map[bool]int{true: 16, false: 1024}[segment == 9] {
			must(b, l.Append([]Entry{m.batch(10, size-batch.HeaderSize)}))
		}
		if segment < 9 {
			must(b, l.Roll())
		}
	}
	must(b, l.Sync())
	floor := l.End()
	must(b, l.Close())
	for _, from := range []Index{floor.Segment, 0} {
		b.Run(fmt.Sprintf("%t", from > 0), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l, _, err := Open(cfg, OpenOptions{Floor: floor, From: from})
				must(b, err)
				must(b, l.Close())
			}
		})
	}
}

// BenchmarkOpen reads a log of 256 MiB back, checksums included.
func BenchmarkOpen(b *testing.B) {
	m := newMaker(1)
	cfg := Config{FS: vfs.OS(), Dir: b.TempDir(), Identity: testIdentity}
	l := create(b, cfg)
	const total, size = 256 << 20, 64 << 10
	for range total / size {
		must(b, l.Append([]Entry{m.batch(10, size-batch.HeaderSize)}))
	}
	must(b, l.Sync())
	floor := l.End()
	must(b, l.Close())
	b.SetBytes(total)
	b.ReportAllocs()
	for b.Loop() {
		l, _, err := Open(cfg, OpenOptions{Floor: floor})
		if err != nil {
			b.Fatal(err)
		}
		must(b, l.Close())
	}
}
