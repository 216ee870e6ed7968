package dedupe

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"slices"

	"github.com/oncemq/oncemq/internal/batch"
)

// byID holds one value for each of a set of producer ids. It is a hash table with linear probing whose slots hold the
// values themselves, beside one byte per slot that is enough to pass over nearly all wrong ones, eight at a time. So
// finding one value among a million touches cold memory once. A Go map from id to a place in a slice touches it three
// times, which made a decision three times as slow. The garbage collector finds no pointers to follow.
//
// Invariants, with h the home of an id:
//   - tags[i] is 0 for a free slot and has tagTaken for a taken one; tags[i+k*len(slots)] == tags[i], so that eight
//     tags can be read from any place on
//   - no slot from h up to that of the id, wrapping at the end, is free
//   - at most three quarters of the slots are taken
type byID[T any] struct {
	tags  []uint8 // 8 more than slots
	slots []slot[T]
	n     int
}

type slot[T any] struct {
	id    batch.ProducerID
	value T
}

// shrinkMin is the number of slots from which a byID gives memory back.
const shrinkMin = 1024

// tagTaken is set in the tag of a taken slot; seven bits of the id's hash stand beside it.
const tagTaken = 0x80

// eightTimes repeats a byte in a word of eight.
const eightTimes = 0x0101010101010101

// seed keeps clients, who choose the ids that they send, from choosing ids that collide. It decides where a value
// lies in memory and nothing that can be seen from outside.
var seed = [2]uint64{maphash.Comparable(maphash.MakeSeed(), 0), maphash.Comparable(maphash.MakeSeed(), 0)}

// hash mixes an id with the seed: two rounds of a multiplication whose halves are folded together. It costs a third
// of maphash.Comparable.
func hash(id batch.ProducerID) uint64 {
	hi, lo := bits.Mul64(uint64(id)^seed[0], seed[1])
	hi, lo = bits.Mul64(lo^seed[0], hi^seed[1])
	return hi ^ lo
}

// newByID makes a byID with room for n values, and half as many more.
func newByID[T any](n int) byID[T] {
	size := 2*n + 2
	return byID[T]{tags: make([]uint8, size+8), slots: make([]slot[T], size)}
}

// home is the slot at which the search for an id begins, and the tag of the id. The home rises with the hash, so
// that a rebuild, which takes the slots in order, also fills the new ones in order.
func (m *byID[T]) home(id batch.ProducerID) (slot int, tag uint8) {
	hi, lo := bits.Mul64(hash(id), uint64(len(m.slots)))
	return int(hi), tagTaken | uint8(lo>>56)
}

// wrap brings the number of a slot beyond the end back to the beginning.
func (m *byID[T]) wrap(i int) int {
	for i >= len(m.slots) { // more than once only where there are fewer than eight slots
		i -= len(m.slots)
	}
	return i
}

// find returns the slot of id, -1 when it has none.
func (m *byID[T]) find(id batch.ProducerID) int {
	if m.n == 0 {
		return -1
	}
	i, tag := m.home(id)
	for {
		word := binary.LittleEndian.Uint64(m.tags[i:])
		// A byte of differs is 0 where the tag is the one sought. The next line finds the lowest such byte, and
		// perhaps others above it that are 1: those are passed over because their ids differ.
		differs := word ^ uint64(tag)*eightTimes
		for equal := (differs - eightTimes) &^ differs & (tagTaken * eightTimes); equal != 0; equal &= equal - 1 {
			if k := m.wrap(i + bits.TrailingZeros64(equal)/8); m.slots[k].id == id {
				return k
			}
		}
		if ^word&(tagTaken*eightTimes) != 0 { // a free slot ends the search
			return -1
		}
		i = m.wrap(i + 8)
	}
}

// get returns the value of id, nil when there is none. The pointer is good until the next add or remove.
func (m *byID[T]) get(id batch.ProducerID) *T {
	if i := m.find(id); i >= 0 {
		return &m.slots[i].value
	}
	return nil
}

// add makes a zero value for an id that has none. The pointer is good until the next add or remove.
func (m *byID[T]) add(id batch.ProducerID) *T {
	if 4*(m.n+1) > 3*len(m.slots) {
		m.rebuild()
	}
	i, tag := m.home(id)
	for m.tags[i] != 0 {
		i = m.wrap(i + 1)
	}
	m.n++
	m.setTag(i, tag)
	m.slots[i].id = id
	return &m.slots[i].value
}

// remove drops the value of an id that has one. Values behind it move up over the free slot, or a search for them
// would end there.
func (m *byID[T]) remove(id batch.ProducerID) {
	free := m.find(id)
	for i := m.wrap(free + 1); m.tags[i] != 0; i = m.wrap(i + 1) {
		if home, tag := m.home(m.slots[i].id); m.up(home, i) >= m.up(free, i) {
			m.setTag(free, tag)
			m.slots[free] = m.slots[i]
			free = i
		}
	}
	m.setTag(free, 0)
	m.slots[free] = slot[T]{}
	m.n--
	if len(m.slots) >= shrinkMin && m.n < len(m.slots)/8 {
		m.rebuild()
	}
}

// up is the number of steps from one slot up to another.
func (m *byID[T]) up(from, to int) int { return m.wrap(to - from + len(m.slots)) }

func (m *byID[T]) setTag(i int, tag uint8) {
	for ; i < len(m.tags); i += len(m.slots) {
		m.tags[i] = tag
	}
}

// rebuild makes room for half as many values again, or gives back what a past crowd of producers needed.
func (m *byID[T]) rebuild() {
	old := *m
	*m = newByID[T](old.n)
	for i := range old.slots {
		if old.tags[i] != 0 {
			*m.add(old.slots[i].id) = old.slots[i].value
		}
	}
}

// clone returns a copy that shares nothing with m, as long as the values themselves share nothing.
func (m *byID[T]) clone() byID[T] {
	return byID[T]{tags: slices.Clone(m.tags), slots: slices.Clone(m.slots), n: m.n}
}

// held is one value of a byID in its place.
type held[T any] struct {
	id    batch.ProducerID
	value *T
}

// ascending returns all values in the order of their ids. The pointers are good until the next add or remove.
func (m *byID[T]) ascending() []held[T] {
	list := make([]held[T], 0, m.n)
	for i := range m.slots {
		if m.tags[i] != 0 {
			list = append(list, held[T]{id: m.slots[i].id, value: &m.slots[i].value})
		}
	}
	slices.SortFunc(list, func(a, b held[T]) int { return cmp.Compare(a.id, b.id) })
	return list
}
