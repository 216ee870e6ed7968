package peer

import "encoding/binary"

// fields takes fields off the front of a head, big-endian. The first field that it does not hold makes it bad: from then
// on every field is zero, so callers check once at the end.
type fields struct {
	src []byte
	bad bool
}

func (f *fields) span(n int) []byte {
	if n < 0 || n > len(f.src) {
		f.src, f.bad = nil, true
		return nil
	}
	b := f.src[:n:n]
	f.src = f.src[n:]
	return b
}

func (f *fields) u8() uint8 {
	b := f.span(1)
	if b == nil {
		return 0
	}
	return b[0]
}

func (f *fields) u16() uint16 {
	b := f.span(2)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func (f *fields) u32() uint32 {
	b := f.span(4)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func (f *fields) u64() uint64 {
	b := f.span(8)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

func (f *fields) id() (id [16]byte) {
	copy(id[:], f.span(16))
	return id
}

// count takes the number of elements of which each has at least size bytes: more than the head can hold are a lie.
func (f *fields) count(size int) int {
	n := f.u32()
	if uint64(n)*uint64(size) > uint64(len(f.src)) {
		f.src, f.bad = nil, true
		return 0
	}
	return int(n)
}

// done tells whether there was every field and nothing more.
func (f *fields) done() bool { return !f.bad && len(f.src) == 0 }
