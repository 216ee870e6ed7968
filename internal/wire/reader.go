package wire

import "encoding/binary"

// reader takes fields off the front of a buffer. The first field that the buffer does not hold makes it bad: from
// then on it is empty and every field is zero, so callers check once at the end. It never allocates; the slices
// that it returns are parts of the buffer.
type reader struct {
	src []byte
	bad bool
}

func (r *reader) fail() {
	r.src, r.bad = nil, true
}

// span takes n bytes. The result is capped, so that appending to it cannot overwrite what follows.
func (r *reader) span(n int) []byte {
	if n < 0 || n > len(r.src) {
		r.fail()
		return nil
	}
	b := r.src[:n:n]
	r.src = r.src[n:]
	return b
}

func (r *reader) int16() int16 {
	b := r.span(2)
	if b == nil {
		return 0
	}
	return int16(binary.BigEndian.Uint16(b))
}

func (r *reader) int32() int32 {
	b := r.span(4)
	if b == nil {
		return 0
	}
	return int32(binary.BigEndian.Uint32(b))
}

func (r *reader) uuid() (id [16]byte) {
	copy(id[:], r.span(16))
	return id
}

// uvarint takes an unsigned variable-length number of at most 32 bits and 5 bytes.
func (r *reader) uvarint() uint32 {
	v, n := binary.Uvarint(r.src)
	if n <= 0 || n > 5 || v > 1<<32-1 {
		r.fail()
		return 0
	}
	r.src = r.src[n:]
	return uint32(v)
}

// compactLength takes a compact length: its value plus one as a uvarint; 0 is null, returned as -1.
func (r *reader) compactLength() int {
	return int(int64(r.uvarint()) - 1)
}

// nullableString takes a string; null is nil. A length below -1 is a lie.
func (r *reader) nullableString(flexible bool) []byte {
	n := 0
	if flexible {
		n = r.compactLength()
	} else {
		n = int(r.int16())
	}
	if n == -1 {
		return nil
	}
	return r.span(n)
}

// string takes a string that must not be null.
func (r *reader) string(flexible bool) []byte {
	b := r.nullableString(flexible)
	if b == nil {
		r.fail()
	}
	return b
}

// nullableBytes takes a byte field; null is nil.
func (r *reader) nullableBytes(flexible bool) []byte {
	n := 0
	if flexible {
		n = r.compactLength()
	} else {
		n = int(r.int32())
	}
	if n == -1 {
		return nil
	}
	return r.span(n)
}

// arrayLength takes the length of an array that must not be null and whose elements have at least elementMin bytes:
// more elements than the buffer can hold are a lie.
func (r *reader) arrayLength(flexible bool, elementMin int) int {
	n := 0
	if flexible {
		n = r.compactLength()
	} else {
		n = int(r.int32())
	}
	if n < 0 || n > len(r.src)/elementMin {
		r.fail()
		return 0
	}
	return n
}

// skipTags passes over the tagged fields at the end of a flexible struct.
func (r *reader) skipTags(flexible bool) {
	if !flexible {
		return
	}
	for n := r.uvarint(); n > 0 && !r.bad; n-- {
		r.uvarint()
		r.span(int(r.uvarint()))
	}
}
