package batch

import (
	"fmt"
	"hash/crc32"
)

// FaultClass groups the faults by the answer that they get.
type FaultClass uint8

// The classes, with Kafka's error code for each.
const (
	// ClassNone: no fault.
	ClassNone FaultClass = iota
	// ClassCorrupt: the bytes are not what was sent, a retry may arrive whole (CORRUPT_MESSAGE, 2).
	ClassCorrupt
	// ClassInvalid: the client sent what no retry makes right (INVALID_RECORD, 87).
	ClassInvalid
	// ClassTransactional: transactions are not supported (TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 53).
	ClassTransactional
	// ClassTimestamp: the client claims a timestamp that only a broker gives (INVALID_TIMESTAMP, 32).
	ClassTimestamp
)

// Fault is why a batch is refused before any decision about it. Its text is for the person who runs the client.
type Fault uint8

// The faults, in the order in which they are looked for: the first one found is reported.
const (
	// FaultNone: the batch is well-formed.
	FaultNone Fault = iota
	// FaultEmpty: no bytes at all.
	FaultEmpty
	// FaultMagic: another batch format. The byte lies where older formats have it, so it is looked at first.
	FaultMagic
	// FaultShort: fewer bytes than a header.
	FaultShort
	// FaultLengthBelowHeader: batchLength is below 49.
	FaultLengthBelowHeader
	// FaultLengthBeyondEnd: batchLength names more bytes than are there.
	FaultLengthBeyondEnd
	// FaultCRC: the checksum is wrong.
	FaultCRC
	// FaultTrailing: bytes follow the batch, such as a second batch (KIP-98 allows one per partition and request).
	FaultTrailing
	// FaultBaseOffset: a client's batch does not begin at offset 0.
	FaultBaseOffset
	// FaultCount: the record count is below 1, or not lastOffsetDelta + 1.
	FaultCount
	// FaultControl: a control batch, which only brokers write.
	FaultControl
	// FaultAttributes: an attribute bit that a client may not set.
	FaultAttributes
	// FaultCodec: a compression codec that the format does not know.
	FaultCodec
	// FaultProducer: producer id, epoch and base sequence are not all >= 0, and not the -1 of a batch without a producer.
	FaultProducer
	// FaultTransactional: a batch of a transaction.
	FaultTransactional
	// FaultTimestampType: the client set the bit that says that a broker gave the timestamps.
	FaultTimestampType
)

var faults = [...]struct {
	class FaultClass
	text  string
}{
	FaultNone:  {ClassNone, "no fault"},
	FaultEmpty: {ClassInvalid, "records are null or empty: send one record batch per partition"},
	FaultMagic: {ClassInvalid, "magic is not 2: only record batches of format v2 are accepted (Kafka 0.11 and later)"},

	FaultShort:             {ClassCorrupt, "records are cut off: shorter than the 61 bytes of a batch header"},
	FaultLengthBelowHeader: {ClassCorrupt, "batchLength is below 49, the length of an empty batch"},
	FaultLengthBeyondEnd:   {ClassCorrupt, "batchLength reaches beyond the bytes of the records: the batch is cut off"},
	FaultCRC:               {ClassCorrupt, "crc does not match the bytes of the batch: they were changed on the way"},

	FaultTrailing:   {ClassInvalid, "bytes follow the end of the batch: send exactly one record batch per partition"},
	FaultBaseOffset: {ClassInvalid, "baseOffset is not 0: the broker assigns offsets"},
	FaultCount:      {ClassInvalid, "recordCount is below 1 or differs from lastOffsetDelta + 1"},
	FaultControl:    {ClassInvalid, "attributes has the control bit (5): only a broker writes control batches"},
	FaultAttributes: {ClassInvalid, "attributes has a bit from 6 on: clients may not set these"},
	FaultCodec:      {ClassInvalid, "attributes names a compression codec above 4 (zstd)"},
	FaultProducer:   {ClassInvalid, "producerId, producerEpoch and baseSequence must be all at least 0, or producerId and producerEpoch -1"},

	FaultTransactional: {ClassTransactional, "attributes has the transactional bit (4): transactions are not supported"},
	FaultTimestampType: {ClassTimestamp, "attributes has the timestamp type bit (3): only a broker gives log append time"},
}

// Class tells which answer the fault gets.
func (f Fault) Class() FaultClass { return faults[f].class }

// String names the field at fault and what is wrong with it.
func (f Fault) String() string { return faults[f].text }

// CheckProduce checks the records that a client sends for one partition: exactly one batch, whole and well-formed.
// It reads the bytes once, for the CRC, and keeps no reference to them. The header is that of the bytes also when
// there is a fault, as far as they hold one, and zero otherwise. The records inside are not looked at.
func CheckProduce(records []byte) (Header, Fault) {
	if len(records) == 0 {
		return Header{}, FaultEmpty
	}
	h, fault := checkWhole(records)
	if fault == FaultNone {
		fault = h.checkSent(len(records))
	}
	return h, fault
}

// CheckStored checks the batch with which b begins, as it was once accepted and placed; more bytes may follow it.
// It reads the batch once, for the CRC. Whether offset and term fit their neighbours is the log's to judge.
func CheckStored(b []byte) (Header, error) {
	h, fault := checkWhole(b)
	switch {
	case fault != FaultNone:
	case !h.countIsRight():
		fault = FaultCount
	case !h.producerIsWhole():
		fault = FaultProducer
	case h.BaseOffset < 0 || h.BaseOffset > MaxBaseOffset:
		return h, fmt.Errorf("check stored batch of %d bytes: base offset %d is out of range", h.Size, h.BaseOffset)
	}
	if fault != FaultNone {
		return h, fmt.Errorf("check stored batch at offset %d: %s", h.BaseOffset, fault)
	}
	return h, nil
}

// checkWhole proves (B1), and that the format is v2.
func checkWhole(b []byte) (Header, Fault) {
	h, ok := ParseHeader(b)
	switch {
	case len(b) > atMagic && b[atMagic] != 2:
		return h, FaultMagic
	case !ok:
		return h, FaultShort
	case h.Size < HeaderSize: // where int has 32 bits, a size beyond 2^31 has wrapped to here
		return h, FaultLengthBelowHeader
	case h.Size > len(b):
		return h, FaultLengthBeyondEnd
	case crc32.Checksum(b[atAttributes:h.Size], castagnoli) != h.CRC:
		return h, FaultCRC
	}
	return h, FaultNone
}

// checkSent checks what is a client's to get right, given the number of bytes that it sent.
func (h Header) checkSent(size int) Fault {
	switch {
	case h.Size != size:
		return FaultTrailing
	case h.BaseOffset != 0: // (B4) follows
		return FaultBaseOffset
	case !h.countIsRight():
		return FaultCount
	case h.Attributes&controlBit != 0:
		return FaultControl
	case h.Attributes&unknownAttributes != 0:
		return FaultAttributes
	case h.Codec() > codecMax:
		return FaultCodec
	case !h.producerIsWhole():
		return FaultProducer
	case h.Attributes&transactionalBit != 0:
		return FaultTransactional
	case h.Attributes&timestampTypeBit != 0:
		return FaultTimestampType
	}
	return FaultNone
}

// countIsRight is (B2). The sum is made in 64 bits: a delta of 2147483647 must not wrap to a count.
func (h Header) countIsRight() bool {
	return h.Count >= 1 && int64(h.Count) == int64(h.LastOffsetDelta)+1
}

// producerIsWhole is (B3). Without a producer the sequence means nothing: the Java client and librdkafka send -1 then,
// franz-go and sarama 0.
func (h Header) producerIsWhole() bool {
	if h.ProducerID == -1 {
		return h.ProducerEpoch == -1
	}
	return h.ProducerID >= 0 && h.ProducerEpoch >= 0 && h.BaseSequence >= 0
}
