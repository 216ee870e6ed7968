package dedupe

import (
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"pgregory.net/rapid"
)

// TestByIDAgainstMap compares the hash table with a Go map, for hashes good and bad: a seed of zero sends many ids
// to the same home.
func TestByIDAgainstMap(t *testing.T) {
	defer func(old [2]uint64) { seed = old }(seed)
	rapid.Check(t, func(t *rapid.T) {
		anySeed := rapid.OneOf(rapid.SampledFrom([]uint64{0, 1}), rapid.Uint64())
		seed = [2]uint64{anySeed.Draw(t, "seed"), anySeed.Draw(t, "seed")}
		ids := rapid.SampledFrom([]int64{3, 10, 60, 3000}).Draw(t, "ids")
		want := map[batch.ProducerID]int64{}
		m := newByID[int64](rapid.IntRange(0, 5).Draw(t, "room"))
		for step := range rapid.Int64Range(1, 300).Draw(t, "steps") {
			id := batch.ProducerID(rapid.Int64Range(0, ids-1).Draw(t, "id"))
			old, known := want[id]
			if v := m.get(id); (v != nil) != known || known && *v != old {
				t.Fatalf("get %d: %v, want %d, %v", id, v, old, known)
			}
			switch {
			case !known:
				if v := m.add(id); *v != 0 {
					t.Fatalf("add %d gave %d", id, *v)
				}
				*m.get(id) = step
				want[id] = step
			case rapid.Bool().Draw(t, "remove"):
				m.remove(id)
				delete(want, id)
			}
			checkByID(t, &m, want)
		}
	})
}

func checkByID(t *rapid.T, m *byID[int64], want map[batch.ProducerID]int64) {
	if m.n != len(want) || 4*m.n > 3*len(m.slots) {
		t.Fatalf("%d values in %d slots, want %d", m.n, len(m.slots), len(want))
	}
	for i, tag := range m.tags {
		if tag != m.tags[i%len(m.slots)] {
			t.Fatalf("tag %d is not repeated: %x", i, m.tags)
		}
	}
	list := m.ascending()
	if len(list) != len(want) {
		t.Fatalf("%d values listed, want %d", len(list), len(want))
	}
	previous := batch.ProducerID(-1)
	for _, e := range list {
		if v, ok := want[e.id]; e.id <= previous || !ok || *e.value != v || m.get(e.id) != e.value {
			t.Fatalf("listed %d with %d after %d, want %d, %v", e.id, *e.value, previous, v, ok)
		}
		previous = e.id
	}
}

// TestByIDGivesMemoryBack: a crowd that came and went leaves no empty house behind.
func TestByIDGivesMemoryBack(t *testing.T) {
	m := newByID[[80]byte](0)
	for id := range batch.ProducerID(20_000) {
		m.add(id)
	}
	for id := range batch.ProducerID(20_000) {
		m.remove(id)
		if id%1000 == 0 && (m.get(id) != nil || m.get(id+1) == nil) {
			t.Fatalf("after %d removals %d is known %v, %d %v", id+1, id, m.get(id) != nil, id+1, m.get(id+1) != nil)
		}
	}
	if m.n != 0 || len(m.slots) >= shrinkMin {
		t.Errorf("%d values left in %d slots", m.n, len(m.slots))
	}
}

// TestByIDBounds: three quarters of the slots can be taken, and a byID of the least size that gives memory back does so.
func TestByIDBounds(t *testing.T) {
	full := newByID[int64](1)
	size := len(full.slots)
	for id := range batch.ProducerID(size * 3 / 4) {
		full.add(id)
	}
	if len(full.slots) != size {
		t.Errorf("%d values took %d slots instead of %d", full.n, len(full.slots), size)
	}
	full.add(-1)
	if len(full.slots) == size {
		t.Errorf("%d values are in %d slots", full.n, size)
	}
	large := newByID[int64](shrinkMin/2 - 1)
	if len(large.slots) != shrinkMin {
		t.Fatalf("%d slots", len(large.slots))
	}
	for id := range batch.ProducerID(shrinkMin/8 + 1) {
		large.add(id)
	}
	for id, want := range []int{0: shrinkMin, 1: 2*(shrinkMin/8-1) + 2} {
		large.remove(batch.ProducerID(id))
		if len(large.slots) != want {
			t.Errorf("%d values are in %d slots, want %d", large.n, len(large.slots), want)
		}
	}
}
