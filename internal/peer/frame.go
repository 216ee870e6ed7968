package peer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// magic is what every connection begins with, in front of its first frame. Whatever begins otherwise is no peer.
const magic = "OnceMQ\x00P"

// prefixBytes is the size of what stands in front of each frame:
//
//	head length u32, payload length u32, kind u8, 3 zero bytes,
//	CRC-32C u32 of the 12 bytes before it and of the head
const prefixBytes = 16

// kind tells what a frame holds.
type kind uint8

const (
	kindHello    kind = 1 + iota // the dialer says who it is and whom it wants
	kindAccept                   // the other side lets it in, and says who it is
	kindRefuse                   // either side does not want the other, with a text
	kindBegin                    // the dialer is content with who has answered
	kindQuestion                 // of a founder, in the place of a hello
	kindAnswer
	kindPing     // control, dialer to acceptor
	kindPong     // control, acceptor to dialer
	kindBeats    // control: heartbeats and their responses of many groups
	kindMessage  // one message of Raft
	kindSnapshot // data: a MsgSnap begins, without the snapshot's bytes
	kindChunk    // data: more bytes of a snapshot
	kindTell     // control
	kindCall     // control, dialer to acceptor
	kindCancel   // control, dialer to acceptor: nobody waits for a call any more
	kindReply    // control, acceptor to dialer
	kindEnd
)

const (
	kib = 1 << 10
	mib = 1 << 20

	messageHeadMax    = 8 * mib
	messagePayloadMax = 80 * mib // the largest batch, and what Raft puts beside it
	snapshotMax       = 512 * mib
	chunkBytes        = 256 * kib
	tellMax           = mib
	callMax           = 4 * mib
	questionMax       = 64 * kib
)

// frameBounds are the largest head and payload of each kind.
var frameBounds = [kindEnd]struct{ head, payload int }{
	kindHello:    {kib, 0},
	kindAccept:   {kib, 0},
	kindRefuse:   {2 * kib, 0},
	kindBegin:    {0, 0},
	kindQuestion: {0, questionMax},
	kindAnswer:   {0, questionMax},
	kindPing:     {0, 0},
	kindPong:     {0, 0},
	kindBeats:    {2 * mib, 0},
	kindMessage:  {messageHeadMax, messagePayloadMax},
	kindSnapshot: {messageHeadMax, 0},
	kindChunk:    {16, chunkBytes},
	kindTell:     {1, tellMax},
	kindCall:     {9, callMax},
	kindCancel:   {8, 0},
	kindReply:    {9, callMax},
}

// kinds is a set of kinds.
type kinds uint32

func kindSet(list ...kind) (s kinds) {
	for _, k := range list {
		s |= 1 << k
	}
	return s
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal fills in the prefix of a frame whose head stands behind it.
func seal(frame []byte, k kind, payload int) {
	order := binary.BigEndian
	order.PutUint32(frame, uint32(len(frame)-prefixBytes))
	order.PutUint32(frame[4:], uint32(payload))
	order.PutUint32(frame[8:], uint32(k)<<24)
	order.PutUint32(frame[12:], checksum(frame[:12], frame[prefixBytes:]))
}

func checksum(prefix, head []byte) uint32 {
	return crc32.Update(crc32.Checksum(prefix, castagnoli), castagnoli, head)
}

// appendFrame appends a whole frame.
func appendFrame(dst []byte, k kind, head, payload []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, prefixBytes)...)
	dst = append(dst, head...)
	seal(dst[start:], k, len(payload))
	return append(dst, payload...)
}

// frame is one frame as it was received. The head is valid until the next one is read; nobody else has the payload.
type frame struct {
	kind    kind
	head    []byte
	payload []byte
}

const (
	readAhead = 64 * kib
	// firstStep bounds the memory taken for a payload before more of it than that has arrived. A full message of Raft
	// (1 MiB and a little) fits without a second step.
	firstStep = mib + 64*kib
	// headKept is the largest buffer for heads that a connection keeps.
	headKept = 64 * kib
)

var errNotPeer = errors.New("this is no peer: the connection does not begin as one of OnceMQ's")

// frameReader reads frames of the kinds that are expected.
type frameReader struct {
	in     *bufio.Reader
	expect kinds
	prefix [prefixBytes]byte
	head   []byte
}

func newFrameReader(r io.Reader, size int) *frameReader {
	return &frameReader{in: bufio.NewReaderSize(r, size)}
}

// magic reads what a connection begins with. It returns io.EOF when there is nothing.
func (r *frameReader) magic() error {
	var got [len(magic)]byte
	n, err := io.ReadFull(r.in, got[:])
	if string(got[:n]) != magic[:n] {
		return errNotPeer
	}
	return err
}

// next reads one frame. It returns io.EOF when the connection has ended between two frames. Memory is taken as bytes
// arrive: for a payload that does not come, whatever its length says, at most firstStep.
func (r *frameReader) next() (frame, error) {
	if _, err := io.ReadFull(r.in, r.prefix[:]); err != nil {
		return frame{}, err
	}
	order := binary.BigEndian
	head, payload, k := order.Uint32(r.prefix[:]), order.Uint32(r.prefix[4:]), kind(r.prefix[8])
	switch {
	case k >= kindEnd || r.expect&(1<<k) == 0:
		return frame{}, fmt.Errorf("a frame of kind %d is not expected here", k)
	case head > uint32(frameBounds[k].head) || payload > uint32(frameBounds[k].payload):
		return frame{}, fmt.Errorf("a frame of kind %d announces %d and %d bytes, at most %d and %d are allowed",
			k, head, payload, frameBounds[k].head, frameBounds[k].payload)
	}
	if cap(r.head) > headKept {
		r.head = nil
	}
	var err error
	if r.head, err = readSteps(r.in, r.head[:0], int(head)); err != nil {
		return frame{}, err
	}
	if checksum(r.prefix[:12], r.head) != order.Uint32(r.prefix[12:]) {
		return frame{}, fmt.Errorf("the checksum of a frame of kind %d is wrong", k)
	}
	body, err := readSteps(r.in, nil, int(payload))
	return frame{k, r.head, body}, err
}

// readSteps appends n bytes to b, whose room it makes larger as they arrive: what has not arrived costs at most firstStep,
// or as much as has.
func readSteps(r io.Reader, b []byte, n int) ([]byte, error) {
	for len(b) < n {
		if len(b) == cap(b) {
			b = grown(b, n)
		}
		at := len(b)
		b = b[:min(n, cap(b))]
		if _, err := io.ReadFull(r, b[at:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return b, nil
}

// grown returns b with more room, up to n.
func grown(b []byte, n int) []byte {
	larger := make([]byte, len(b), min(n, max(2*len(b), firstStep)))
	copy(larger, b)
	return larger
}
