package wire

import (
	"encoding/binary"
	"math"
)

// messageBytesMax bounds a text in a response: one that is not compact has a 16-bit length.
const messageBytesMax = 4096

func appendUvarint(dst []byte, v uint32) []byte {
	return binary.AppendUvarint(dst, uint64(v))
}

// appendArrayLength appends the count of an array that is not null.
func appendArrayLength(dst []byte, n int, flexible bool) []byte {
	if flexible {
		return appendUvarint(dst, uint32(n)+1)
	}
	return binary.BigEndian.AppendUint32(dst, uint32(n))
}

// appendString appends a string that is not null. One that is too long for a 16-bit length was read from a flexible
// request, so it is never cut here but by a caller's mistake.
func appendString(dst []byte, s string, flexible bool) []byte {
	if flexible {
		dst = appendUvarint(dst, uint32(len(s))+1)
	} else {
		s = s[:min(len(s), math.MaxInt16)]
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(s)))
	}
	return append(dst, s...)
}

// appendMessage appends a text for a person; the empty one is null.
func appendMessage(dst []byte, s string, flexible bool) []byte {
	if s == "" {
		if flexible {
			return append(dst, 0)
		}
		return append(dst, 0xff, 0xff)
	}
	return appendString(dst, s[:min(len(s), messageBytesMax)], flexible)
}

// appendNoTags ends a flexible struct that has no tagged fields.
func appendNoTags(dst []byte, flexible bool) []byte {
	if flexible {
		return append(dst, 0)
	}
	return dst
}
