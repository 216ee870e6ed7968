package seglog

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/vfs"
)

// TestConcurrentReaders reads by all ways while entries are appended, synced and segments rolled. Whatever a reader is
// shown is whole, and remains what it was.
func TestConcurrentReaders(t *testing.T) {
	m := newMaker(12)
	entries := m.several(1500, 120)
	offsets := offsetsBehind(entries)
	cfg := testConfig(vfs.OS())
	cfg.Dir = t.TempDir()
	l := create(t, cfg)
	var done atomic.Bool
	var wg sync.WaitGroup
	for reader := range 3 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(reader), 5))
			for last := false; !last; {
				last = done.Load() // read once more when all is there
				readSome(t, l, entries, offsets, rng)
			}
		})
	}
	rng := rand.New(rand.NewPCG(9, 9))
	for rest := entries; len(rest) > 0; {
		n := min(len(rest), 1+rng.IntN(6))
		must(t, l.Append(rest[:n]))
		rest = rest[n:]
		if rng.IntN(10) == 0 {
			must(t, l.Sync())
		}
	}
	done.Store(true)
	wg.Wait()
	must(t, l.Close())
}

// offsetsBehind returns the offset behind each entry of a log from its beginning.
func offsetsBehind(entries []Entry) []batch.Offset {
	offsets := make([]batch.Offset, len(entries))
	at := place{index: 2, term: 1}
	for k, e := range entries {
		at = follow(at, e)
		offsets[k] = at.offset
	}
	return offsets
}

// readSome reads an entry and some batches. It says whether they had been dropped when it came.
func readSome(t *testing.T, l *Log, entries []Entry, offsets []batch.Offset, rng *rand.Rand) (late bool) {
	first, next, last := l.FirstIndex(), l.NextOffset(), l.LastIndex() // in this order: what next tells is at or before last
	if last < first {
		return false
	}
	gone := func(err error) bool {
		isGone := errors.Is(err, ErrOutOfRange) && l.FirstIndex() > first
		late = late || isGone
		return isGone
	}
	i := first + Index(rng.IntN(int(last-first)+1))
	if rng.IntN(2) == 0 {
		i = last - min(Index(rng.IntN(5)), last-first)
	}
	got, err := l.Entry(i)
	if !gone(err) && (err != nil || !equal(got, entries[i-2])) {
		t.Errorf("entry %d: %v", i, err)
	}
	if term, err := l.Term(i); !gone(err) && (err != nil || term != entries[i-2].Term) {
		t.Errorf("term of entry %d: %d, %v", i, term, err)
	}
	from := batch.Offset(0)
	if first > 2 {
		from = offsets[first-3]
	}
	if next > offsets[last-2] || next == from {
		return late
	}
	from += batch.Offset(rng.Int64N(int64(next - from)))
	ranges, err := l.Locate(from, next, rng.IntN(5000), true, nil)
	if err == nil {
		var b []byte
		if b, err = l.Read(nil, ranges); err == nil && !holds(b, entries, int64(from)) {
			t.Errorf("read offset %d of %d: %d bytes of something else", from, next, len(b))
		}
	}
	if err != nil && !gone(err) {
		t.Errorf("read offset %d of %d: %v", from, next, err)
	}
	return late
}
