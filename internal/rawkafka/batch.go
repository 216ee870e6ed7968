package rawkafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/oncemq/oncemq/internal/batch"
)

// Where the fields of a record batch v2 begin, in bytes. Everything from FieldAttributes on is covered by the
// checksum.
const (
	FieldBaseOffset      = 0  // 8 bytes
	FieldBatchLength     = 8  // 4, bytes after this field
	FieldLeaderEpoch     = 12 // 4
	FieldMagic           = 16 // 1
	FieldCRC             = 17 // 4
	FieldAttributes      = 21 // 2
	FieldLastOffsetDelta = 23 // 4
	FieldBaseTimestamp   = 27 // 8
	FieldMaxTimestamp    = 35 // 8
	FieldProducerID      = 43 // 8
	FieldProducerEpoch   = 51 // 2
	FieldBaseSequence    = 53 // 4
	FieldCount           = 57 // 4
	BatchHeaderSize      = 61
)

// Bits of FieldAttributes.
const (
	AttributeLogAppendTime = 1 << 3
	AttributeTransactional = 1 << 4
	AttributeControl       = 1 << 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Batch is a record batch to build, or one that was read. Records hold the values only: built records have a null
// key and no headers.
type Batch struct {
	BaseOffset batch.Offset     // 0 in a batch that a client sends
	Term       int32            // partitionLeaderEpoch: -1 in a batch that a client sends
	ProducerID batch.ProducerID // with Epoch and Sequence; all -1 for a batch without idempotence
	Epoch      batch.Epoch
	Sequence   batch.Sequence
	Timestamp  int64 // ms, of every record
	Records    [][]byte
	Raw        []byte // the bytes as read; not used for building
}

// Plain returns a batch without a producer.
func Plain(records ...[]byte) Batch {
	return Batch{Term: -1, ProducerID: -1, Epoch: -1, Sequence: -1, Records: records}
}

// Idempotent returns a batch of one producer; its first record has the given sequence.
func Idempotent(id batch.ProducerID, epoch batch.Epoch, sequence batch.Sequence, records ...[]byte) Batch {
	return Batch{Term: -1, ProducerID: id, Epoch: epoch, Sequence: sequence, Records: records}
}

// NextOffset is the offset after the last record.
func (b Batch) NextOffset() batch.Offset { return b.BaseOffset + batch.Offset(len(b.Records)) }

// Bytes returns the batch in wire form, with its length and checksum right.
func (b Batch) Bytes() []byte {
	raw := make([]byte, BatchHeaderSize)
	binary.BigEndian.PutUint64(raw[FieldBaseOffset:], uint64(b.BaseOffset))
	binary.BigEndian.PutUint32(raw[FieldLeaderEpoch:], uint32(b.Term))
	raw[FieldMagic] = 2
	binary.BigEndian.PutUint32(raw[FieldLastOffsetDelta:], uint32(len(b.Records)-1))
	binary.BigEndian.PutUint64(raw[FieldBaseTimestamp:], uint64(b.Timestamp))
	binary.BigEndian.PutUint64(raw[FieldMaxTimestamp:], uint64(b.Timestamp))
	binary.BigEndian.PutUint64(raw[FieldProducerID:], uint64(b.ProducerID))
	binary.BigEndian.PutUint16(raw[FieldProducerEpoch:], uint16(b.Epoch))
	binary.BigEndian.PutUint32(raw[FieldBaseSequence:], uint32(b.Sequence))
	binary.BigEndian.PutUint32(raw[FieldCount:], uint32(len(b.Records)))
	var record []byte
	for i, value := range b.Records {
		record = append(record[:0], 0)                 // attributes
		record = binary.AppendVarint(record, 0)        // timestamp delta
		record = binary.AppendVarint(record, int64(i)) // offset delta
		record = binary.AppendVarint(record, -1)       // no key
		record = binary.AppendVarint(record, int64(len(value)))
		record = append(record, value...)
		record = binary.AppendVarint(record, 0) // no headers
		raw = binary.AppendVarint(raw, int64(len(record)))
		raw = append(raw, record...)
	}
	binary.BigEndian.PutUint32(raw[FieldBatchLength:], uint32(len(raw)-FieldLeaderEpoch))
	Seal(raw)
	return raw
}

// Seal writes the right checksum into a batch whose covered fields were changed. It covers all bytes given, so a
// batch with a wrong length field keeps it.
func Seal(raw []byte) {
	binary.BigEndian.PutUint32(raw[FieldCRC:], crc32.Checksum(raw[FieldAttributes:], castagnoli))
}

// ReadBatches reads the whole batches at the front of what a fetch answered; a cut one at the end, which the
// protocol allows, is left out. The result borrows from records. A batch that is not whole in any other way, or is
// compressed, is an error that says where.
func ReadBatches(records []byte) ([]Batch, error) {
	var batches []Batch
	for at := 0; ; {
		rest := records[at:]
		if len(rest) < BatchHeaderSize {
			return batches, nil
		}
		size := int64(int32(binary.BigEndian.Uint32(rest[FieldBatchLength:]))) + FieldLeaderEpoch
		if size < BatchHeaderSize {
			return batches, fmt.Errorf("read batch at byte %d: length %d", at, size)
		}
		if size > int64(len(rest)) {
			return batches, nil
		}
		b, err := readBatch(rest[:size])
		if err != nil {
			return batches, fmt.Errorf("read batch at byte %d: %w", at, err)
		}
		batches = append(batches, b)
		at += int(size)
	}
}

func readBatch(raw []byte) (Batch, error) {
	b := Batch{
		BaseOffset: batch.Offset(binary.BigEndian.Uint64(raw[FieldBaseOffset:])),
		Term:       int32(binary.BigEndian.Uint32(raw[FieldLeaderEpoch:])),
		ProducerID: batch.ProducerID(binary.BigEndian.Uint64(raw[FieldProducerID:])),
		Epoch:      batch.Epoch(binary.BigEndian.Uint16(raw[FieldProducerEpoch:])),
		Sequence:   batch.Sequence(binary.BigEndian.Uint32(raw[FieldBaseSequence:])),
		Timestamp:  int64(binary.BigEndian.Uint64(raw[FieldBaseTimestamp:])),
		Raw:        raw,
	}
	count := int32(binary.BigEndian.Uint32(raw[FieldCount:]))
	delta := int32(binary.BigEndian.Uint32(raw[FieldLastOffsetDelta:]))
	switch {
	case raw[FieldMagic] != 2:
		return b, fmt.Errorf("magic %d", raw[FieldMagic])
	case binary.BigEndian.Uint32(raw[FieldCRC:]) != crc32.Checksum(raw[FieldAttributes:], castagnoli):
		return b, fmt.Errorf("offset %d: wrong checksum", b.BaseOffset)
	case raw[FieldAttributes+1]&7 != 0:
		return b, fmt.Errorf("offset %d: compressed", b.BaseOffset)
	case count < 1 || delta != count-1:
		return b, fmt.Errorf("offset %d: %d records with a last offset delta of %d", b.BaseOffset, count, delta)
	}
	rest := raw[BatchHeaderSize:]
	for i := range int64(count) { // ends at the latest with the bytes: a record takes at least one
		value, tail, err := readRecord(rest, i)
		if err != nil {
			return b, fmt.Errorf("offset %d record %d: %w", b.BaseOffset, i, err)
		}
		b.Records = append(b.Records, value)
		rest = tail
	}
	if len(rest) != 0 {
		return b, fmt.Errorf("offset %d: %d bytes follow the last record", b.BaseOffset, len(rest))
	}
	return b, nil
}

var errRecord = errors.New("malformed record")

// readRecord returns the value of the first record in b and what follows that record.
func readRecord(b []byte, offsetDelta int64) (value, rest []byte, err error) {
	body, rest, ok := cutBytes(b)
	if !ok || len(body) < 1 {
		return nil, nil, errRecord
	}
	_, body, timeOK := cutVarint(body[1:])
	delta, body, deltaOK := cutVarint(body)
	if !timeOK || !deltaOK || delta != offsetDelta {
		return nil, nil, errRecord
	}
	_, body, keyOK := cutBytes(body)
	value, body, valueOK := cutBytes(body)
	headers, _, headersOK := cutVarint(body)
	if !keyOK || !valueOK || !headersOK || headers < 0 {
		return nil, nil, errRecord
	}
	return value, rest, nil
}

func cutVarint(b []byte) (v int64, rest []byte, ok bool) {
	v, n := binary.Varint(b)
	if n <= 0 {
		return 0, nil, false
	}
	return v, b[n:], true
}

// cutBytes reads a length and as many bytes; a length of -1 is null.
func cutBytes(b []byte) (v, rest []byte, ok bool) {
	n, b, ok := cutVarint(b)
	if !ok || n < -1 || n > int64(len(b)) {
		return nil, nil, false
	}
	if n == -1 {
		return nil, b, true
	}
	return b[:n], b[n:], true
}
