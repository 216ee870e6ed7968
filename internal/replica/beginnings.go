package replica

import (
	"math"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
)

const (
	// beginningsMax is how many beginnings are noted. At the bound all are forgotten, and the next ones are noted.
	beginningsMax = 4096
	// beginningKept is how long a note stands after the batch was refused last. A client tries again within seconds, and for
	// 2 minutes with usual settings (delivery.timeout.ms).
	beginningKept = 5 * time.Minute
)

// beginnings notes where producers begin whose first batch was refused for a reason that passes.
//
// A producer that may have been forgotten begins at any sequence. It sends several batches at once: when the first is
// refused, because the disk is full, say, and there is room again when the second comes, the second would be taken for
// the beginning, and the first would be too late for ever. While a note stands, nothing behind it is taken as a beginning.
//
// It is the memory of one leader and no part of the state: a note that is lost makes the partition as it was without.
type beginnings struct {
	notes map[incarnation]beginning
}

// incarnation is a producer between two changes of its epoch.
type incarnation struct {
	id    batch.ProducerID
	epoch batch.Epoch
}

type beginning struct {
	first   batch.Sequence
	refused time.Time // last
}

// note notes a refused batch that is, or may be, its producer's first one here.
func (b *beginnings) note(s batch.Stamp, now time.Time) {
	if s.ID < 0 {
		return
	}
	noted, ok := b.find(s, now)
	if ok && behind(noted.first, s.First) {
		return
	}
	if b.notes == nil || !ok && len(b.notes) >= beginningsMax {
		b.notes = make(map[incarnation]beginning)
	}
	b.notes[incarnation{s.ID, s.Epoch}] = beginning{first: s.First, refused: now}
}

// judge turns the decision that a batch may be its producer's beginning into a gap if the noted beginning lies before it.
func (b *beginnings) judge(d *dedupe.Decision, s batch.Stamp, now time.Time) {
	if noted, ok := b.find(s, now); ok && behind(noted.first, s.First) {
		d.Verdict, d.Reason, d.Expected = dedupe.OutOfOrder, dedupe.Gap, noted.first
	}
}

// drop ends a note: a batch of this producer is on its way into the log.
func (b *beginnings) drop(s batch.Stamp) {
	if len(b.notes) > 0 {
		delete(b.notes, incarnation{s.ID, s.Epoch})
	}
}

func (b *beginnings) find(s batch.Stamp, now time.Time) (beginning, bool) {
	key := incarnation{s.ID, s.Epoch}
	noted, ok := b.notes[key]
	if ok && now.Sub(noted.refused) >= beginningKept {
		delete(b.notes, key)
		return beginning{}, false
	}
	return noted, ok
}

// behind reports whether s comes after first: by less than half of all sequences, which live modulo 2^31.
func behind(first, s batch.Sequence) bool {
	distance := (uint32(s) - uint32(first)) & math.MaxInt32
	return distance != 0 && distance < 1<<30
}
