package meta

import (
	"sync/atomic"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/invariant"
)

// idsPerStart is the number of producer ids of one start number.
const idsPerStart = 1 << 32

// ProducerIDs gives out producer ids from memory: the start number in the upper half, a counter from 0 in the lower. As
// start numbers never repeat, neither do ids, whatever becomes of the node. The zero value has none to give. It is
// safe for concurrent use.
type ProducerIDs struct {
	// The start number in the upper 31 bits, the ids left of it in the lower 33. In one word, so that taking an
	// id is one step: with two, a goroutine could read the old start number, sleep while the last id of it is taken
	// and the next number arrives, and then take counter 0 of the old one for a second time.
	state atomic.Uint64
}

const leftBits = 33

// Use begins with the ids of a start number, which is higher than any used before, and drops what was left of the old
// one.
func (p *ProducerIDs) Use(startNumber uint32) {
	invariant.Check(startNumber <= StartNumberMax, "start number %d is too high", startNumber)
	next := uint64(startNumber)<<leftBits | idsPerStart
	for {
		old := p.state.Load()
		invariant.Check(uint64(startNumber) > old>>leftBits, "start number %d is used a second time", startNumber)
		if p.state.CompareAndSwap(old, next) {
			return
		}
	}
}

// Next returns an id that was never given out before. ok is false when there is none left, or was none yet: a new
// start number is needed.
func (p *ProducerIDs) Next() (id batch.ProducerID, ok bool) {
	for {
		old := p.state.Load()
		left := old & (1<<leftBits - 1)
		if left == 0 {
			return -1, false
		}
		if p.state.CompareAndSwap(old, old-1) {
			return batch.ProducerID(old>>leftBits<<32 | (idsPerStart - left)), true
		}
	}
}
