package batch

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// sent returns a batch as a client sends it: three records of a producer, written by another library.
func sent() kmsg.RecordBatch {
	return kmsg.RecordBatch{
		PartitionLeaderEpoch: -1,
		Magic:                2,
		LastOffsetDelta:      2,
		FirstTimestamp:       1_790_000_000_000,
		MaxTimestamp:         1_790_000_000_005,
		ProducerID:           7,
		ProducerEpoch:        0,
		FirstSequence:        10,
		NumRecords:           3,
		Records:              []byte("not looked at"),
	}
}

// seal writes a batch with its right length and CRC.
func seal(b kmsg.RecordBatch) []byte {
	b.Length = int32(HeaderSize - lengthOrigin + len(b.Records))
	return reseal(b.AppendTo(nil))
}

// reseal gives the bytes of a batch the right CRC, in place.
func reseal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[atCRC:], crc32.Checksum(b[atAttributes:], castagnoli))
	return b
}

// TestHeaderAgainstOtherCodec: every field comes from where another implementation of the format puts it.
func TestHeaderAgainstOtherCodec(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := kmsg.RecordBatch{
			FirstOffset:          rapid.Int64().Draw(t, "base offset"),
			Length:               rapid.Int32().Draw(t, "length"),
			PartitionLeaderEpoch: rapid.Int32().Draw(t, "term"),
			Magic:                rapid.Int8().Draw(t, "magic"),
			CRC:                  rapid.Int32().Draw(t, "crc"),
			Attributes:           rapid.Int16().Draw(t, "attributes"),
			LastOffsetDelta:      rapid.Int32().Draw(t, "delta"),
			FirstTimestamp:       rapid.Int64().Draw(t, "base timestamp"),
			MaxTimestamp:         rapid.Int64().Draw(t, "max timestamp"),
			ProducerID:           rapid.Int64().Draw(t, "producer id"),
			ProducerEpoch:        rapid.Int16().Draw(t, "epoch"),
			FirstSequence:        rapid.Int32().Draw(t, "sequence"),
			NumRecords:           rapid.Int32().Draw(t, "count"),
		}
		got, ok := ParseHeader(b.AppendTo(nil))
		want := Header{
			BaseOffset: Offset(b.FirstOffset), Size: int(b.Length) + 12, Term: Term(b.PartitionLeaderEpoch),
			Magic: b.Magic, CRC: uint32(b.CRC), Attributes: b.Attributes, LastOffsetDelta: b.LastOffsetDelta,
			BaseTimestamp: b.FirstTimestamp, MaxTimestamp: b.MaxTimestamp, ProducerID: ProducerID(b.ProducerID),
			ProducerEpoch: Epoch(b.ProducerEpoch), BaseSequence: Sequence(b.FirstSequence), Count: b.NumRecords,
		}
		if !ok || got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
	if _, ok := ParseHeader(make([]byte, HeaderSize-1)); ok {
		t.Error("60 bytes were taken for a header")
	}
}

func TestCheckProduceAccepts(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*kmsg.RecordBatch)
		stamp  Stamp
	}{
		{"a producer's batch", func(*kmsg.RecordBatch) {}, Stamp{7, 0, 10, 12}},
		{"no producer", func(b *kmsg.RecordBatch) {
			b.ProducerID, b.ProducerEpoch, b.FirstSequence = -1, -1, -1
		}, Stamp{-1, -1, -1, -1}},
		{"no producer, as franz-go and sarama send it", func(b *kmsg.RecordBatch) {
			b.ProducerID, b.ProducerEpoch, b.FirstSequence = -1, -1, 0
		}, Stamp{-1, -1, -1, -1}},
		{"one record, every field at its lowest", func(b *kmsg.RecordBatch) {
			b.NumRecords, b.LastOffsetDelta, b.ProducerID, b.FirstSequence = 1, 0, 0, 0
		}, Stamp{0, 0, 0, 0}},
		{"no bytes of records", func(b *kmsg.RecordBatch) { b.Records = nil }, Stamp{7, 0, 10, 12}},
		{"zstd", func(b *kmsg.RecordBatch) { b.Attributes = 4 }, Stamp{7, 0, 10, 12}},
		{"a leader epoch means nothing", func(b *kmsg.RecordBatch) { b.PartitionLeaderEpoch = 9 }, Stamp{7, 0, 10, 12}},
		{"timestamps are not judged", func(b *kmsg.RecordBatch) {
			b.FirstTimestamp, b.MaxTimestamp = math.MaxInt64, math.MinInt64
		}, Stamp{7, 0, 10, 12}},
		{"the sequence wraps inside", func(b *kmsg.RecordBatch) {
			b.FirstSequence, b.LastOffsetDelta, b.NumRecords = math.MaxInt32-10, 20, 21
		}, Stamp{7, 0, math.MaxInt32 - 10, 9}},
		{"every field at its highest", func(b *kmsg.RecordBatch) {
			b.ProducerID, b.ProducerEpoch, b.FirstSequence = math.MaxInt64, math.MaxInt16, math.MaxInt32
			b.NumRecords, b.LastOffsetDelta = math.MaxInt32, math.MaxInt32-1
		}, Stamp{math.MaxInt64, math.MaxInt16, math.MaxInt32, math.MaxInt32 - 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := sent()
			c.change(&b)
			data := seal(b)
			before := bytes.Clone(data)
			h, fault := CheckProduce(data)
			if fault != FaultNone || fault.Class() != ClassNone || h.Size != len(data) {
				t.Fatalf("%v, size %d of %d", fault, h.Size, len(data))
			}
			if got := h.Stamp(); got != c.stamp {
				t.Errorf("stamp %+v, want %+v", got, c.stamp)
			}
			last := Offset(b.LastOffsetDelta)
			if h.LastOffset() != last || h.NextOffset() != last+1 || h.Codec() != int8(b.Attributes) {
				t.Errorf("last offset %d, next %d, codec %d", h.LastOffset(), h.NextOffset(), h.Codec())
			}
			if !bytes.Equal(data, before) {
				t.Error("the check changed the batch")
			}
		})
	}
}

// TestCheckProduceRefusesFields changes fields of a right batch; length and CRC are right.
func TestCheckProduceRefusesFields(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*kmsg.RecordBatch)
		want   Fault
		class  FaultClass
	}{
		{"format v1", func(b *kmsg.RecordBatch) { b.Magic = 1 }, FaultMagic, ClassInvalid},
		{"a format to come", func(b *kmsg.RecordBatch) { b.Magic = 3 }, FaultMagic, ClassInvalid},
		{"base offset", func(b *kmsg.RecordBatch) { b.FirstOffset = 5 }, FaultBaseOffset, ClassInvalid},
		{"negative base offset", func(b *kmsg.RecordBatch) { b.FirstOffset = -1 }, FaultBaseOffset, ClassInvalid},
		{"fewer records than offsets", func(b *kmsg.RecordBatch) { b.LastOffsetDelta = 4 }, FaultCount, ClassInvalid},
		{"more records than offsets", func(b *kmsg.RecordBatch) { b.LastOffsetDelta = 1 }, FaultCount, ClassInvalid},
		{"no record", func(b *kmsg.RecordBatch) { b.NumRecords, b.LastOffsetDelta = 0, -1 }, FaultCount, ClassInvalid},
		{"negative count", func(b *kmsg.RecordBatch) {
			b.NumRecords, b.LastOffsetDelta = -2, -3
		}, FaultCount, ClassInvalid},
		{"count beyond the highest", func(b *kmsg.RecordBatch) {
			b.NumRecords, b.LastOffsetDelta = math.MinInt32, math.MaxInt32
		}, FaultCount, ClassInvalid},
		{"control batch", func(b *kmsg.RecordBatch) { b.Attributes = controlBit }, FaultControl, ClassInvalid},
		{"control batch of a transaction", func(b *kmsg.RecordBatch) {
			b.Attributes = controlBit | transactionalBit
		}, FaultControl, ClassInvalid},
		{"delete horizon", func(b *kmsg.RecordBatch) { b.Attributes = 1 << 6 }, FaultAttributes, ClassInvalid},
		{"highest attribute bit", func(b *kmsg.RecordBatch) {
			b.Attributes = math.MinInt16
		}, FaultAttributes, ClassInvalid},
		{"codec 5", func(b *kmsg.RecordBatch) { b.Attributes = 5 }, FaultCodec, ClassInvalid},
		{"codec 7", func(b *kmsg.RecordBatch) { b.Attributes = 7 }, FaultCodec, ClassInvalid},
		{"producer without epoch", func(b *kmsg.RecordBatch) { b.ProducerEpoch = -1 }, FaultProducer, ClassInvalid},
		{"producer without sequence", func(b *kmsg.RecordBatch) { b.FirstSequence = -1 }, FaultProducer, ClassInvalid},
		{"sequence counted past the wrap", func(b *kmsg.RecordBatch) {
			b.FirstSequence = math.MinInt32
		}, FaultProducer, ClassInvalid},
		{"producer below -1", func(b *kmsg.RecordBatch) { b.ProducerID = -2 }, FaultProducer, ClassInvalid},
		{"producer below -1, rest none", func(b *kmsg.RecordBatch) {
			b.ProducerID, b.ProducerEpoch, b.FirstSequence = -2, -1, -1
		}, FaultProducer, ClassInvalid},
		{"epoch without producer", func(b *kmsg.RecordBatch) {
			b.ProducerID, b.FirstSequence = -1, -1
		}, FaultProducer, ClassInvalid},
		{"transaction", func(b *kmsg.RecordBatch) {
			b.Attributes = transactionalBit
		}, FaultTransactional, ClassTransactional},
		{"log append time", func(b *kmsg.RecordBatch) {
			b.Attributes = timestampTypeBit
		}, FaultTimestampType, ClassTimestamp},
		{"transaction with log append time", func(b *kmsg.RecordBatch) {
			b.Attributes = transactionalBit | timestampTypeBit
		}, FaultTransactional, ClassTransactional},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := sent()
			c.change(&b)
			if _, fault := CheckProduce(seal(b)); fault != c.want || fault.Class() != c.class {
				t.Errorf("got %q (class %d), want %q (class %d)", fault, fault.Class(), c.want, c.class)
			}
		})
	}
}

// TestCheckProduceRefusesBytes changes the bytes of a right batch; several faults at once show the order.
func TestCheckProduceRefusesBytes(t *testing.T) {
	right := seal(sent())
	put := func(at int, value uint32) []byte {
		b := bytes.Clone(right)
		binary.BigEndian.PutUint32(b[at:], value)
		return b
	}
	oldFormat := bytes.Clone(right)
	oldFormat[atMagic] = 0
	flipped := bytes.Clone(right)
	flipped[len(flipped)-1] ^= 1
	twice := slices.Concat(right, right)
	offsetAndTrailing := slices.Concat(right, []byte{0})
	offsetAndTrailing[7] = 5
	for _, c := range []struct {
		name  string
		bytes []byte
		want  Fault
		class FaultClass
	}{
		{"null", nil, FaultEmpty, ClassInvalid},
		{"empty", []byte{}, FaultEmpty, ClassInvalid},
		{"one byte", right[:1], FaultShort, ClassCorrupt},
		{"up to the magic", right[:atMagic], FaultShort, ClassCorrupt},
		{"with the magic", right[:atMagic+1], FaultShort, ClassCorrupt},
		{"with an old magic", oldFormat[:atMagic+1], FaultMagic, ClassInvalid},
		{"old magic, wrong CRC", oldFormat, FaultMagic, ClassInvalid},
		{"less than a header", right[:HeaderSize-1], FaultShort, ClassCorrupt},
		{"a header only", right[:HeaderSize], FaultLengthBeyondEnd, ClassCorrupt},
		{"a byte missing", right[:len(right)-1], FaultLengthBeyondEnd, ClassCorrupt},
		{"length a byte too short for a header", put(atBatchLength, 48), FaultLengthBelowHeader, ClassCorrupt},
		{"length zero", put(atBatchLength, 0), FaultLengthBelowHeader, ClassCorrupt},
		{"length negative", put(atBatchLength, math.MaxUint32), FaultLengthBelowHeader, ClassCorrupt},
		{"length lowest", put(atBatchLength, 1<<31), FaultLengthBelowHeader, ClassCorrupt},
		{"length highest", put(atBatchLength, math.MaxInt32), FaultLengthBeyondEnd, ClassCorrupt},
		{"length a byte shorter", put(atBatchLength, uint32(len(right)-lengthOrigin-1)), FaultCRC, ClassCorrupt},
		{"a bit flipped in the records", flipped, FaultCRC, ClassCorrupt},
		{"a wrong CRC", put(atCRC, 0), FaultCRC, ClassCorrupt},
		{"a count changed on the way", put(atCount, 4), FaultCRC, ClassCorrupt},
		{"two batches", twice, FaultTrailing, ClassInvalid},
		{"a byte behind the batch, and a base offset", offsetAndTrailing, FaultTrailing, ClassInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, fault := CheckProduce(c.bytes); fault != c.want || fault.Class() != c.class {
				t.Errorf("got %q (class %d), want %q (class %d)", fault, fault.Class(), c.want, c.class)
			}
		})
	}
}

// TestCheckProduceSeesEveryBit: no single flipped bit under the CRC, or in the fields that a client sets, passes.
func TestCheckProduceSeesEveryBit(t *testing.T) {
	right := seal(sent())
	for at := range right {
		if at >= atTerm && at < atMagic {
			continue // partitionLeaderEpoch is the broker's
		}
		for bit := range 8 {
			b := bytes.Clone(right)
			b[at] ^= 1 << bit
			if _, fault := CheckProduce(b); fault == FaultNone {
				t.Errorf("bit %d of byte %d", bit, at)
			}
		}
	}
}

func TestCheckProduceAllocatesNothing(t *testing.T) {
	for _, data := range [][]byte{seal(sent()), seal(sent())[:70], nil} {
		if n := testing.AllocsPerRun(10, func() { CheckProduce(data) }); n != 0 {
			t.Errorf("%d bytes: %v allocations", len(data), n)
		}
	}
}

// TestSetPlace: a placed batch is whole, and only the two fields changed.
func TestSetPlace(t *testing.T) {
	data := seal(sent())
	before := bytes.Clone(data)
	SetPlace(data, 1_000_000_007, 42)
	h, err := CheckStored(data)
	if err != nil {
		t.Fatal(err)
	}
	if h.BaseOffset != 1_000_000_007 || h.LastOffset() != 1_000_000_009 || h.NextOffset() != 1_000_000_010 ||
		h.Term != 42 {
		t.Errorf("got %+v", h)
	}
	SetPlace(data[:HeaderSize], MaxBaseOffset, math.MaxInt32)
	SetPlace(data[:HeaderSize], 0, math.MaxInt32)
	copy(before[atTerm:], data[atTerm:atMagic])
	if !bytes.Equal(data, before) {
		t.Error("other fields changed")
	}
	for _, f := range []func(){
		func() { SetPlace(data[:HeaderSize-1], 0, 1) },
		func() { SetPlace(data, -1, 1) },
		func() { SetPlace(data, MaxBaseOffset+1, 1) },
		func() { SetPlace(data, 0, math.MaxInt32+1) },
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.HasPrefix(text, "BUG: ") {
					t.Errorf("got %q", text)
				}
			}()
			f()
		}()
	}
}

func TestCheckStored(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*kmsg.RecordBatch)
		want   string // in the error; empty: none
	}{
		{"as it was sent", func(*kmsg.RecordBatch) {}, ""},
		{"placed", func(b *kmsg.RecordBatch) { b.FirstOffset, b.PartitionLeaderEpoch = 99, 3 }, ""},
		{"log append time is the broker's", func(b *kmsg.RecordBatch) { b.Attributes = timestampTypeBit }, ""},
		{"the last place there is", func(b *kmsg.RecordBatch) { b.FirstOffset = int64(MaxBaseOffset) }, ""},
		{"beyond it", func(b *kmsg.RecordBatch) { b.FirstOffset = int64(MaxBaseOffset) + 1 }, "out of range"},
		{"no place", func(b *kmsg.RecordBatch) { b.FirstOffset = -1 }, "out of range"},
		{"no record", func(b *kmsg.RecordBatch) { b.NumRecords, b.LastOffsetDelta = 0, -1 }, "recordCount"},
		{"another count", func(b *kmsg.RecordBatch) { b.NumRecords = 2 }, "recordCount"},
		{"half a producer", func(b *kmsg.RecordBatch) { b.ProducerEpoch = -1 }, "producerEpoch"},
		{"format v1", func(b *kmsg.RecordBatch) { b.Magic = 1 }, "magic"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := sent()
			c.change(&b)
			_, err := CheckStored(append(seal(b), "the next entry"...))
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	right := seal(sent())
	for n := range right {
		if _, err := CheckStored(right[:n]); err == nil {
			t.Errorf("%d of %d bytes were taken for a batch", n, len(right))
		}
	}
}

func TestAddSequence(t *testing.T) {
	for _, c := range []struct {
		s    Sequence
		n    int32
		want Sequence
	}{
		{0, 0, 0}, {5, 1, 6}, {math.MaxInt32, 0, math.MaxInt32}, {math.MaxInt32, 1, 0}, {math.MaxInt32, 100, 99},
		{99, math.MaxInt32, 98}, {math.MaxInt32 - 10, 20, 9}, {math.MaxInt32, math.MaxInt32, math.MaxInt32 - 1},
	} {
		if got := AddSequence(c.s, c.n); got != c.want {
			t.Errorf("%d + %d = %d, want %d", c.s, c.n, got, c.want)
		}
	}
}

// TestFaultTexts: every fault has a class and a text of its own.
func TestFaultTexts(t *testing.T) {
	seen := map[string]bool{}
	for f := range FaultTimestampType + 1 {
		if f.String() == "" || seen[f.String()] || (f.Class() == ClassNone) != (f == FaultNone) {
			t.Errorf("fault %d: %q, class %d", f, f, f.Class())
		}
		seen[f.String()] = true
	}
}
