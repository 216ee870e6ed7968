package seglog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/oncemq/oncemq/internal/batch"
)

// A frame, big-endian. Length, term, marker and CRC lie where a batch has them, so that one reader walks both. No batch
// begins as a frame does: the first 8 bytes would be a negative offset.
//
//	at  size  field
//	 0     8  FF4F4E43454D510A
//	 8     4  total length - 12
//	12     4  term; in a header frame the term of the entry before the segment
//	16     1  81
//	17     4  CRC-32C of 0-16 and 21-end
//	21     1  kind
//	22     2  version of the payload
//	24     8  Raft index; in a header frame the first one of the segment
//	32     8  next offset; in a header frame the first one of the segment
//	40     n  payload
const (
	frameMagic      = 0xFF4F4E43454D510A
	frameMarker     = 0x81
	frameHeaderSize = 40

	atLength  = 8
	atTerm    = 12
	atMarker  = 16
	atCRC     = 17
	atKind    = 21
	atVersion = 22
	atIndex   = 24
	atOffset  = 32

	// lengthOrigin is where the length field begins to count.
	lengthOrigin = 12
	// prefixSize is what must be there to know the length of an entry.
	prefixSize = 12
	// entryBytesMax is the largest entry: its length field is a signed number of 32 bits, as in a batch.
	entryBytesMax = lengthOrigin + math.MaxInt32
)

// The payload of a header frame: format u16, oldest format whose readers can read it u16, cluster 16 bytes, group u64,
// replica u64, topic id 16 bytes, partition i32.
const (
	headerPayloadSize = 56
	headerSize        = frameHeaderSize + headerPayloadSize
	formatVersion     = 1
	frameVersion      = 1 // of all payloads so far
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frame is a frame, decoded.
type frame struct {
	kind    Kind
	version uint16
	term    batch.Term
	index   Index
	offset  batch.Offset
	payload []byte
}

// putHeader writes all of the frame but the payload, which follows it, into dst.
func (f frame) putHeader(dst []byte) {
	dst = dst[:frameHeaderSize]
	binary.BigEndian.PutUint64(dst, frameMagic)
	binary.BigEndian.PutUint32(dst[atLength:], uint32(frameHeaderSize+len(f.payload)-lengthOrigin))
	binary.BigEndian.PutUint32(dst[atTerm:], uint32(f.term))
	dst[atMarker] = frameMarker
	dst[atKind] = byte(f.kind)
	binary.BigEndian.PutUint16(dst[atVersion:], f.version)
	binary.BigEndian.PutUint64(dst[atIndex:], uint64(f.index))
	binary.BigEndian.PutUint64(dst[atOffset:], uint64(f.offset))
	binary.BigEndian.PutUint32(dst[atCRC:], frameCRC(dst, f.payload))
}

func frameCRC(header, payload []byte) uint32 {
	crc := crc32.Update(0, castagnoli, header[:atCRC])
	crc = crc32.Update(crc, castagnoli, header[atKind:frameHeaderSize])
	return crc32.Update(crc, castagnoli, payload)
}

// isFrame tells a frame from a batch by the first 8 bytes.
func isFrame(b []byte) bool { return binary.BigEndian.Uint64(b) == frameMagic }

// entryLength returns the length that the entry beginning with b, at least prefixSize bytes, says it has.
func entryLength(b []byte) (int64, error) {
	least := int64(batch.HeaderSize)
	if isFrame(b) {
		least = frameHeaderSize
	}
	length := lengthOrigin + int64(int32(binary.BigEndian.Uint32(b[atLength:])))
	if length < least {
		return 0, badEntry(fmt.Sprintf("a length of %d bytes is too small for an entry", length))
	}
	return length, nil
}

// parseFrame decodes the frame that b is, from the first byte to the last. The payload is a part of b.
func parseFrame(b []byte) (frame, error) {
	if len(b) < frameHeaderSize || !isFrame(b) || b[atMarker] != frameMarker {
		return frame{}, badEntry("not a frame")
	}
	if length, err := entryLength(b); err != nil || length != int64(len(b)) {
		return frame{}, badEntry("the length of the frame is wrong")
	}
	if binary.BigEndian.Uint32(b[atCRC:]) != frameCRC(b, b[frameHeaderSize:]) {
		return frame{}, badEntry("the checksum of the frame is wrong")
	}
	f := frame{
		kind:    Kind(b[atKind]),
		version: binary.BigEndian.Uint16(b[atVersion:]),
		term:    batch.Term(binary.BigEndian.Uint32(b[atTerm:])),
		index:   Index(binary.BigEndian.Uint64(b[atIndex:])),
		offset:  batch.Offset(binary.BigEndian.Uint64(b[atOffset:])),
		payload: b[frameHeaderSize:],
	}
	if f.term > math.MaxInt32 || f.offset < 0 {
		return frame{}, badEntry("a frame with a term or an offset that no version writes")
	}
	return f, nil
}

// isEntry tells the kinds of frame that stand for an entry.
func (k Kind) isEntry() bool {
	switch k {
	case KindEmpty, KindConfChange, KindConfChangeV2, KindRules, KindClock, KindExpire, KindEvict, KindLogStart,
		KindMarkEverything, KindCommand:
		return true
	}
	return false
}

// place is where in the log an entry is expected.
type place struct {
	index  Index
	offset batch.Offset
	term   batch.Term // of the entry before it
}

// parseEntry decodes and checks the entry that b is, from the first byte to the last, at its place: all checksums,
// (L1) and (L2). The header is that of a batch. Data is a part of b. The error is a badEntry, or a FormatError without
// the file when b is right but its kind unknown.
func parseEntry(b []byte, at place) (Entry, batch.Header, error) {
	if len(b) >= prefixSize && isFrame(b) {
		e, err := parseFrameEntry(b, at)
		return e, batch.Header{}, err
	}
	h, err := batch.CheckStored(b)
	switch {
	case err != nil:
		return Entry{}, h, badEntry(err.Error())
	case h.Size != len(b):
		return Entry{}, h, badEntry("the length of the batch is wrong")
	case h.BaseOffset != at.offset:
		return Entry{}, h, badEntry(fmt.Sprintf("a batch at offset %d where %d must follow", h.BaseOffset, at.offset))
	case h.Term != at.term:
		return Entry{}, h, badEntry(fmt.Sprintf("a batch of term %d after an entry of term %d", h.Term, at.term))
	}
	return Entry{Kind: KindBatch, Term: h.Term, Data: b}, h, nil
}

func parseFrameEntry(b []byte, at place) (Entry, error) {
	f, err := parseFrame(b)
	switch {
	case err != nil:
		return Entry{}, err
	case f.index != at.index:
		return Entry{}, badEntry(fmt.Sprintf("a frame of index %d where %d must follow", f.index, at.index))
	case f.offset != at.offset:
		return Entry{}, badEntry(fmt.Sprintf("a frame before offset %d where %d must follow", f.offset, at.offset))
	case f.term != at.term && (f.term < at.term || f.kind != KindEmpty):
		return Entry{}, badEntry(fmt.Sprintf("a frame of term %d and kind %d after an entry of term %d", f.term, f.kind, at.term))
	case f.kind == kindHeader || f.kind == KindBatch || f.version == 0:
		return Entry{}, badEntry(fmt.Sprintf("a frame of kind %d, version %d is no entry", f.kind, f.version))
	case !f.kind.isEntry():
		return Entry{}, &FormatError{Detail: fmt.Sprintf("entry %d has the unknown kind %d", f.index, f.kind)}
	}
	return Entry{Kind: f.kind, Version: f.version, Term: f.term, Data: f.payload}, nil
}

// appendHeader appends the header frame of a segment that begins at a place.
func appendHeader(dst []byte, id Identity, at place) []byte {
	payload := make([]byte, 0, headerPayloadSize)
	payload = binary.BigEndian.AppendUint16(payload, formatVersion)
	payload = binary.BigEndian.AppendUint16(payload, formatVersion)
	payload = append(payload, id.Cluster[:]...)
	payload = binary.BigEndian.AppendUint64(payload, uint64(id.Group))
	payload = binary.BigEndian.AppendUint64(payload, uint64(id.Replica))
	payload = append(payload, id.Topic[:]...)
	payload = binary.BigEndian.AppendUint32(payload, uint32(id.Partition))
	f := frame{kind: kindHeader, version: frameVersion, term: at.term, index: at.index, offset: at.offset, payload: payload}
	n := len(dst)
	dst = append(dst, make([]byte, frameHeaderSize)...)
	f.putHeader(dst[n:])
	return append(dst, payload...)
}

// parseHeader decodes the header frame with which the segment in b begins. The error is a badEntry, or a
// FormatError without the file.
func parseHeader(b []byte) (Identity, place, error) {
	if len(b) < prefixSize || !isFrame(b) {
		return Identity{}, place{}, badEntry("no header frame")
	}
	length, err := entryLength(b)
	if err != nil || length > int64(len(b)) {
		return Identity{}, place{}, badEntry("the header frame is cut off")
	}
	f, err := parseFrame(b[:length])
	switch {
	case err != nil:
		return Identity{}, place{}, err
	case f.kind != kindHeader || len(f.payload) < 4:
		return Identity{}, place{}, badEntry("the first frame is no header")
	}
	format, oldest := binary.BigEndian.Uint16(f.payload), binary.BigEndian.Uint16(f.payload[2:])
	switch {
	case oldest > formatVersion:
		return Identity{}, place{}, &FormatError{Detail: fmt.Sprintf(
			"format %d, readable from format %d on, and this version reads up to %d", format, oldest, formatVersion)}
	case oldest < 1 || format < oldest || len(f.payload) != headerPayloadSize:
		return Identity{}, place{}, badEntry("the header frame is not one that any version writes")
	}
	p := f.payload[4:]
	var id Identity
	copy(id.Cluster[:], p)
	id.Group = GroupID(binary.BigEndian.Uint64(p[16:]))
	id.Replica = ReplicaID(binary.BigEndian.Uint64(p[24:]))
	copy(id.Topic[:], p[32:])
	id.Partition = int32(binary.BigEndian.Uint32(p[48:]))
	return id, place{index: f.index, offset: f.offset, term: f.term}, nil
}
