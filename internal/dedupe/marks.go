package dedupe

import (
	"fmt"
	"math"
	"slices"

	"github.com/oncemq/oncemq/internal/batch"
)

// marksMax is the number of start numbers of which a partition keeps a mark of their own.
const marksMax = 1024

// floorAll is the floor that marks every producer id: no start number reaches it.
const floorAll = math.MaxUint32

// marks says which producer ids a partition may have forgotten.
type marks struct {
	floor uint32 // every id with a start number below it is marked
	list  []mark // ascending start numbers, all >= floor, at most marksMax
}

// mark says that the ids of one start number up to a counter may have been forgotten.
type mark struct{ start, counter uint32 }

// clone returns a copy that shares nothing with m.
func (m *marks) clone() marks { return marks{floor: m.floor, list: slices.Clone(m.list)} }

// split takes a producer id apart. id must be >= 0.
func split(id batch.ProducerID) mark { return mark{start: uint32(id >> 32), counter: uint32(id)} }

func (m *marks) find(start uint32) (int, bool) {
	return slices.BinarySearchFunc(m.list, start, func(k mark, start uint32) int {
		switch {
		case k.start < start:
			return -1
		case k.start > start:
			return 1
		}
		return 0
	})
}

// covers reports whether id may have been forgotten.
func (m *marks) covers(id batch.ProducerID) bool {
	k := split(id)
	if k.start < m.floor {
		return true
	}
	i, ok := m.find(k.start)
	return ok && k.counter <= m.list[i].counter
}

// add marks id. Beyond marksMax the lowest start number merges into the floor: too much is marked then, never
// too little.
func (m *marks) add(id batch.ProducerID) {
	k := split(id)
	if k.start < m.floor {
		return
	}
	i, ok := m.find(k.start)
	if ok {
		m.list[i].counter = max(m.list[i].counter, k.counter)
		return
	}
	m.list = slices.Insert(m.list, i, k)
	if len(m.list) > marksMax {
		m.floor = m.list[0].start + 1
		m.list = slices.Delete(m.list, 0, 1)
	}
}

// check returns an error unless (D6) holds.
func (m *marks) check() error {
	if len(m.list) > marksMax {
		return fmt.Errorf("check marks: %d start numbers, at most %d are kept", len(m.list), marksMax)
	}
	for i, k := range m.list {
		if k.start < m.floor || k.start > math.MaxInt32 || i > 0 && k.start <= m.list[i-1].start {
			return fmt.Errorf("check marks: start number %d at place %d, floor %d", k.start, i, m.floor)
		}
	}
	return nil
}
