package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// LengthSize is the size of the field that begins each frame and counts the bytes after itself.
	LengthSize = 4
	// PrefixSize is the size of what follows the length in every request, whatever its API: key, version and
	// correlation id.
	PrefixSize = 8
	// frameBytesMin is the least a frame can count: the prefix and a null client id. (Only ControlledShutdown v0,
	// which no client sends, has no client id.)
	frameBytesMin = PrefixSize + 2
)

// Prefix is the part of a request header that all APIs share.
type Prefix struct {
	Key           Key
	Version       int16
	CorrelationID int32
}

// ParseLength reads the length field of a frame: the number of bytes that follow it, prefix included. It refuses
// what no request can have, and more than bytesMax.
func ParseLength(b [LengthSize]byte, bytesMax int) (int, error) {
	n := int32(binary.BigEndian.Uint32(b[:]))
	if n < frameBytesMin {
		return 0, fmt.Errorf("frame length %d is below the %d bytes of the smallest request", n, frameBytesMin)
	}
	if int(n) > bytesMax {
		return 0, fmt.Errorf("frame length %d is above the limit of %d bytes", n, bytesMax)
	}
	return int(n), nil
}

// ParsePrefix reads the first bytes after the length field.
func ParsePrefix(b [PrefixSize]byte) Prefix {
	return Prefix{
		Key:           Key(binary.BigEndian.Uint16(b[0:])),
		Version:       int16(binary.BigEndian.Uint16(b[2:])),
		CorrelationID: int32(binary.BigEndian.Uint32(b[4:])),
	}
}

// CheckFrame refuses a frame whose length is above the bound of its API, before memory is taken for it. Produce
// has no bound here but the one given to ParseLength.
func (p Prefix) CheckFrame(length int) error {
	a, ok := p.Key.api()
	if !ok {
		return fmt.Errorf("request with unknown %s", p.Key)
	}
	if a.bytesMax > 0 && length > a.bytesMax {
		return fmt.Errorf("frame length %d is above the limit of %d bytes for %s", length, a.bytesMax, p.Key)
	}
	return nil
}

// ParseHeader reads the rest of the request header, which begins right after the prefix, and returns the client id
// (nil when null) and the body. Both are parts of rest.
func (p Prefix) ParseHeader(rest []byte) (clientID, body []byte, err error) {
	r := reader{src: rest}
	// The client id is never compact, so that old brokers can read the header of a first ApiVersions (KIP-511).
	clientID = r.nullableString(false)
	r.skipTags(p.Key.Flexible(p.Version))
	if r.bad {
		return nil, nil, fmt.Errorf("parse %s v%d header: cut off or a lie about a length", p.Key, p.Version)
	}
	return clientID, r.src, nil
}

// Decode reads a body into req with kmsg, at the version of the prefix. What req holds afterwards shares no memory
// with body, except byte fields.
func (p Prefix) Decode(req kmsg.Request, body []byte) error {
	req.SetVersion(p.Version)
	if err := req.ReadFrom(body); err != nil {
		return fmt.Errorf("decode %s v%d request of %d bytes: %w", p.Key, p.Version, len(body), err)
	}
	return nil
}

// BeginResponse appends an unfinished frame: room for the length, and the response header. EndResponse, given the
// length that dst had before, finishes it.
func (p Prefix) BeginResponse(dst []byte) []byte {
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(p.CorrelationID))
	// A client reads the answer to ApiVersions before it knows what the broker speaks: that header has no tags (KIP-511).
	if p.Key != KeyApiVersions && p.Key.Flexible(p.Version) {
		dst = append(dst, 0)
	}
	return dst
}

// EndResponse writes the length of the frame that begins at start.
func EndResponse(dst []byte, start int) {
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-LengthSize))
}
