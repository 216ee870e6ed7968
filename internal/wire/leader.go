package wire

import "encoding/binary"

// CurrentLeader says which broker leads a partition, and since which leader epoch. The zero value says nothing.
type CurrentLeader struct {
	ID, Epoch int32
}

// Endpoint is a broker that clients can reach.
type Endpoint struct {
	ID   int32
	Host string
	Port int32
	Rack string // "": null
}

// The first versions of Produce and Fetch whose clients take a newer leader from an answer (KIP-951), and the tags of the
// fields that tell them.
const (
	produceLeaderVersionMin, fetchLeaderVersionMin = 10, 16
	produceLeaderTag, fetchLeaderTag               = 0, 1
	endpointsTag                                   = 0
)

// HasLeader tells whether answers of this version can say who leads a partition.
func (k Key) HasLeader(version int16) bool {
	switch k {
	case KeyProduce:
		return version >= produceLeaderVersionMin
	case KeyFetch:
		return version >= fetchLeaderVersionMin
	}
	return false
}

// EndpointBytes is what an endpoint has at most beside its texts, and EndpointsBytes all of them together beside theirs.
const (
	EndpointBytes  = 4 + 4 + 1 + 2*5
	EndpointsBytes = 1 + 1 + 5 + 5
)

// appendLeaderTag appends the tagged fields of a partition that has this one alone.
func appendLeaderTag(dst []byte, tag byte, l CurrentLeader) []byte {
	const size = 4 + 4 + 1
	dst = append(dst, 1, tag, size)
	dst = binary.BigEndian.AppendUint32(dst, uint32(l.ID))
	dst = binary.BigEndian.AppendUint32(dst, uint32(l.Epoch))
	return append(dst, 0)
}

// appendEndpointsTag appends the tagged fields of a response that has this one alone.
func appendEndpointsTag(dst []byte, endpoints []Endpoint) []byte {
	size := uvarintSize(uint32(len(endpoints)) + 1)
	for i := range endpoints {
		size += endpoints[i].size()
	}
	dst = appendUvarint(append(dst, 1, endpointsTag), uint32(size))
	dst = appendArrayLength(dst, len(endpoints), true)
	for i := range endpoints {
		e := &endpoints[i]
		dst = binary.BigEndian.AppendUint32(dst, uint32(e.ID))
		dst = appendString(dst, e.Host, true)
		dst = binary.BigEndian.AppendUint32(dst, uint32(e.Port))
		if e.Rack == "" {
			dst = append(dst, 0)
		} else {
			dst = appendString(dst, e.Rack, true)
		}
		dst = append(dst, 0)
	}
	return dst
}

// size is what the endpoint has on the wire.
func (e *Endpoint) size() int {
	size := 4 + uvarintSize(uint32(len(e.Host))+1) + len(e.Host) + 4 + 1 + 1
	if e.Rack != "" {
		size += uvarintSize(uint32(len(e.Rack))+1) + len(e.Rack) - 1
	}
	return size
}

// uvarintSize is the size of a number of variable length.
func uvarintSize(v uint32) int {
	size := 1
	for ; v >= 0x80; v >>= 7 {
		size++
	}
	return size
}
