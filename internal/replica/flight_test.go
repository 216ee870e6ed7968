package replica

import (
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/seglog"
)

// A queue that is never empty keeps its order and does not grow.
func TestFlightThatNeverLands(t *testing.T) {
	var f flight
	const pending = 10
	landed := seglog.Index(0)
	for i := range batch.Offset(10_000) {
		f.stage(inFlight{base: i, next: i + 1, own: answer{size: int(i)}})
		if i%3 == 0 { // the others are proposed together with the next
			continue
		}
		f.proposed(seglog.Index(f.queue[f.staged].base)+1, 1)
		join(t, &f, i, answer{size: -1})
		for len(f.queue)-f.first > pending {
			b, ok := pop(&f, landed+1)
			if !ok || b.base != batch.Offset(landed) || b.own.size != int(landed) || len(b.retries) != 0 && b.retries[0].size != -1 {
				t.Fatalf("popped %+v, %v; want base %d", b, ok, landed)
			}
			landed++
			if _, again := pop(&f, landed); again {
				t.Fatal("popped twice")
			}
		}
	}
	if c := cap(f.queue); c > 8*pending {
		t.Fatalf("queue has room for %d, with %d in flight", c, pending)
	}
	seen := landed
	f.eachAhead(func(b *inFlight) {
		if b.base != batch.Offset(seen) {
			t.Fatalf("visited base %d, want %d", b.base, seen)
		}
		seen++
	})
}

func TestFlightWithdraw(t *testing.T) {
	var f flight
	f.stage(inFlight{base: 0, next: 1, own: answer{size: 1}})
	f.proposed(7, 1)
	f.stage(inFlight{base: 1, next: 2, own: answer{size: 2}})
	join(t, &f, 1, answer{size: 3})
	if w := f.withdraw(); len(w) != 1 || w[0].own.size != 2 || len(w[0].retries) != 1 || w[0].retries[0].size != 3 {
		t.Fatalf("withdrawn %+v", w)
	}
	if b, ok := pop(&f, 7); !ok || b.base != 0 {
		t.Fatalf("the proposed one is gone: %+v", b)
	}
}

// join adds a retry of the batch at base.
func join(t *testing.T, f *flight, base batch.Offset, w answer) {
	t.Helper()
	b, _ := f.find(base)
	if b == nil {
		t.Fatalf("nothing is in flight at %d", base)
	}
	b.retries = append(b.retries, w)
}

// pop has an entry land, and removes it.
func pop(f *flight, index seglog.Index) (inFlight, bool) {
	if f.land(index, 1) == nil {
		return inFlight{}, false
	}
	return f.pop(index)
}
