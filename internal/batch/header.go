package batch

import (
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/oncemq/oncemq/internal/invariant"
)

// HeaderSize is the size of the fixed header in bytes; the records follow it.
const HeaderSize = 61

// MaxBaseOffset is the highest offset at which a batch may stand: whatever its number of records, the offset that
// follows it is one.
const MaxBaseOffset Offset = math.MaxInt64 - math.MaxInt32

// Where the header's fields begin, in bytes.
const (
	atBaseOffset      = 0
	atBatchLength     = 8
	atTerm            = 12
	atMagic           = 16
	atCRC             = 17
	atAttributes      = 21
	atLastOffsetDelta = 23
	atBaseTimestamp   = 27
	atMaxTimestamp    = 35
	atProducerID      = 43
	atProducerEpoch   = 51
	atBaseSequence    = 53
	atCount           = 57
)

// lengthOrigin is the position from which batchLength counts: the end of that field.
const lengthOrigin = 12

// The attribute bits of a batch.
const (
	codecMask         = 0x07
	timestampTypeBit  = 1 << 3
	transactionalBit  = 1 << 4
	controlBit        = 1 << 5
	unknownAttributes = ^0x3f // bit 6, the delete horizon, is set by compaction and never by a client
)

// codecMax is zstd, the last compression codec that the format knows.
const codecMax = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header is the fixed header of a record batch, decoded. It is a value and keeps no reference to the bytes that it
// was read from. Until a check has passed, every field is what the bytes say.
type Header struct {
	BaseOffset Offset
	// Size is the length of the whole batch in bytes, header included: 12 + batchLength.
	Size int
	// Term is partitionLeaderEpoch. What a client sends there means nothing.
	Term  Term
	Magic int8
	// CRC is the checksum that the header carries: CRC-32C of everything from the attributes on.
	CRC        uint32
	Attributes int16
	// LastOffsetDelta is the offset, and the sequence, of the last record minus those of the first.
	LastOffsetDelta int32
	// BaseTimestamp and MaxTimestamp are in milliseconds since 1970, as the client chose them.
	BaseTimestamp, MaxTimestamp int64
	ProducerID                  ProducerID
	ProducerEpoch               Epoch
	BaseSequence                Sequence
	// Count is the number of records.
	Count int32
}

// Stamp is what a producer says of a batch so that a retry can be told from a new batch (KIP-98).
type Stamp struct {
	// ID is -1, and the other fields too, for a batch without a producer.
	ID    ProducerID
	Epoch Epoch
	// First and Last are the sequences of the first and of the last record. Last is lower than First when the
	// sequence wraps inside the batch.
	First, Last Sequence
}

// ParseHeader decodes the first HeaderSize bytes of b. It reports false when b is shorter, and checks nothing else.
func ParseHeader(b []byte) (Header, bool) {
	if len(b) < HeaderSize {
		return Header{}, false
	}
	return parseHeader((*[HeaderSize]byte)(b)), true
}

func parseHeader(b *[HeaderSize]byte) Header {
	return Header{
		BaseOffset:      Offset(binary.BigEndian.Uint64(b[atBaseOffset:])),
		Size:            lengthOrigin + int(int32(binary.BigEndian.Uint32(b[atBatchLength:]))),
		Term:            Term(binary.BigEndian.Uint32(b[atTerm:])),
		Magic:           int8(b[atMagic]),
		CRC:             binary.BigEndian.Uint32(b[atCRC:]),
		Attributes:      int16(binary.BigEndian.Uint16(b[atAttributes:])),
		LastOffsetDelta: int32(binary.BigEndian.Uint32(b[atLastOffsetDelta:])),
		BaseTimestamp:   int64(binary.BigEndian.Uint64(b[atBaseTimestamp:])),
		MaxTimestamp:    int64(binary.BigEndian.Uint64(b[atMaxTimestamp:])),
		ProducerID:      ProducerID(binary.BigEndian.Uint64(b[atProducerID:])),
		ProducerEpoch:   Epoch(binary.BigEndian.Uint16(b[atProducerEpoch:])),
		BaseSequence:    Sequence(binary.BigEndian.Uint32(b[atBaseSequence:])),
		Count:           int32(binary.BigEndian.Uint32(b[atCount:])),
	}
}

// LastOffset is the offset of the batch's last record. It comes from the delta, never from the count: the format
// lets a compacted batch keep fewer records than offsets.
func (h Header) LastOffset() Offset { return h.BaseOffset + Offset(h.LastOffsetDelta) }

// NextOffset is the offset that follows the batch.
func (h Header) NextOffset() Offset { return h.LastOffset() + 1 }

// Codec is the compression codec, 0 to 7: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd, the others undefined.
func (h Header) Codec() int8 { return int8(h.Attributes & codecMask) }

// Stamp returns what the producer says of the batch. The header must have passed CheckProduce or CheckStored.
func (h Header) Stamp() Stamp {
	if h.ProducerID < 0 {
		return Stamp{ID: -1, Epoch: -1, First: -1, Last: -1}
	}
	return Stamp{
		ID:    h.ProducerID,
		Epoch: h.ProducerEpoch,
		First: h.BaseSequence,
		Last:  AddSequence(h.BaseSequence, h.LastOffsetDelta),
	}
}

// AddSequence is the sequence n records after s, modulo 2^31. Both must be >= 0.
func AddSequence(s Sequence, n int32) Sequence {
	return Sequence((uint32(s) + uint32(n)) & math.MaxInt32)
}

// SetPlace writes where a batch stands in the log into its header: the offset of its first record, and the term of
// the leader that appends it. The CRC covers neither field and stays right. b is changed in place and must hold at
// least a header; base must be from 0 to MaxBaseOffset, and term fit a signed 32-bit leader epoch.
func SetPlace(b []byte, base Offset, term Term) {
	if len(b) < HeaderSize || base < 0 || base > MaxBaseOffset || term > math.MaxInt32 {
		invariant.Bug("place a batch of %d bytes at offset %d, term %d", len(b), base, term)
	}
	binary.BigEndian.PutUint64(b[atBaseOffset:], uint64(base))
	binary.BigEndian.PutUint32(b[atTerm:], uint32(term))
}
