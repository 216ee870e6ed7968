package history

import (
	"cmp"
	"encoding/binary"
	"fmt"
)

// PayloadSizeMin is the size in bytes of the smallest payload that AppendPayload makes.
const PayloadSizeMin = 12

// Value names one record. No value is sent twice, except by a retry of the same batch.
type Value struct {
	Producer int32
	Number   int64 // counts up in the order in which the producer sends, >= 0
}

// String names both parts, for a person.
func (v Value) String() string { return fmt.Sprintf("producer %d number %d", v.Producer, v.Number) }

func (v Value) compare(w Value) int {
	return cmp.Or(cmp.Compare(v.Producer, w.Producer), cmp.Compare(v.Number, w.Number))
}

// AppendPayload appends size bytes that carry the value; the bytes behind the value follow from it, so that
// ParsePayload notices a change anywhere. A size below PayloadSizeMin counts as PayloadSizeMin.
func AppendPayload(dst []byte, v Value, size int) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(v.Producer))
	dst = binary.BigEndian.AppendUint64(dst, uint64(v.Number))
	f := newFiller(v)
	for i := PayloadSizeMin; i < size; i++ {
		dst = append(dst, f.next())
	}
	return dst
}

// ParsePayload returns the value in a payload that AppendPayload made, and an error when a byte of it changed.
func ParsePayload(b []byte) (Value, error) {
	if len(b) < PayloadSizeMin {
		return Value{}, fmt.Errorf("read payload of %d bytes: a payload has at least %d", len(b), PayloadSizeMin)
	}
	v := Value{Producer: int32(binary.BigEndian.Uint32(b)), Number: int64(binary.BigEndian.Uint64(b[4:]))}
	f := newFiller(v)
	for i, c := range b[PayloadSizeMin:] {
		if want := f.next(); c != want {
			return v, fmt.Errorf("read payload of %v: byte %d is %#02x, sent was %#02x", v, PayloadSizeMin+i, c, want)
		}
	}
	return v, nil
}

// filler makes the bytes behind a value: a linear congruential sequence, seeded with the value.
type filler struct{ state uint64 }

func newFiller(v Value) filler {
	return filler{state: uint64(v.Number)*0x9E3779B97F4A7C15 ^ uint64(uint32(v.Producer))<<17}
}

func (f *filler) next() byte {
	f.state = f.state*6364136223846793005 + 1442695040888963407
	return byte(f.state >> 56)
}
