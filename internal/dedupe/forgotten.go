package dedupe

import (
	"encoding/binary"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/invariant"
)

// ForgottenMax is the largest number of producers that one expire or evict entry may name: 56 KiB of them.
const ForgottenMax = 4096

// forgottenBytes is the size of one producer in an expire or evict entry.
const forgottenBytes = 8 + 2 + 4

// Forgotten names one producer that an expire or evict entry drops, as its leader saw it.
type Forgotten struct {
	ID           batch.ProducerID
	Epoch        batch.Epoch
	NextSequence batch.Sequence
}

// AppendForgotten appends the payload of an expire or evict entry to dst and returns it. There must be from 1 to
// ForgottenMax producers. Big-endian: u32 count, {id i64, epoch i16, next sequence i32}, in the order of the list.
func AppendForgotten(dst []byte, list []Forgotten) []byte {
	if len(list) < 1 || len(list) > ForgottenMax {
		invariant.Bug("forget %d producers with one entry, 1 to %d are allowed", len(list), ForgottenMax)
	}
	order := binary.BigEndian
	dst = order.AppendUint32(dst, uint32(len(list)))
	for _, f := range list {
		dst = order.AppendUint64(dst, uint64(f.ID))
		dst = order.AppendUint16(dst, uint16(f.Epoch))
		dst = order.AppendUint32(dst, uint32(f.NextSequence))
	}
	return dst
}

// ParseForgotten reads what AppendForgotten wrote, all of src, and refuses a count out of bounds, a cut or longer
// list, and negative numbers. It keeps no reference to src, and takes memory in proportion to src, whatever the count
// in it says.
func ParseForgotten(src []byte) ([]Forgotten, error) {
	r := reader{what: "forgotten producers", src: src}
	if !r.has(4) {
		return nil, r.fail("count cut off")
	}
	n := r.u32()
	if n < 1 || n > ForgottenMax || len(src)-r.at != int(n)*forgottenBytes {
		return nil, r.fail("%d producers in %d bytes", n, len(src)-r.at)
	}
	list := make([]Forgotten, n)
	for i := range list {
		f := Forgotten{ID: batch.ProducerID(r.u64()), Epoch: batch.Epoch(r.u16()), NextSequence: batch.Sequence(r.u32())}
		if f.ID < 0 || f.Epoch < 0 || f.NextSequence < 0 {
			return nil, r.fail("producer %d epoch %d next sequence %d", f.ID, f.Epoch, f.NextSequence)
		}
		list[i] = f
	}
	return list, nil
}
