package rawkafka

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
)

// The vector was computed outside this package, with a bitwise CRC-32C.
func TestBatchBytes(t *testing.T) {
	const want = "00000000000000000000004cffffffff02ebe922640000000000020000018bcfe568000000018bcfe568" +
		"00000000070000000900037ffffffe00000003" +
		"120000000106706179" + "00" + "0c00000201000012000004010678787800"
	b := Idempotent(7<<32|9, 3, 2147483646, []byte("pay"), nil, []byte("xxx"))
	b.Timestamp = 1_700_000_000_000
	if got := hex.EncodeToString(b.Bytes()); got != want {
		t.Errorf("built\n%s, want\n%s", got, want)
	}
}

// What Bytes builds, an independent reader understands.
func TestBatchBytesAsKmsgReadsThem(t *testing.T) {
	in := Idempotent(11, 2, 5, []byte("a"), bytes.Repeat([]byte("b"), 300))
	raw := in.Bytes()
	var got kmsg.RecordBatch
	if err := got.ReadFrom(raw); err != nil {
		t.Fatal(err)
	}
	want := kmsg.RecordBatch{
		Length: int32(len(raw) - 12), PartitionLeaderEpoch: -1, Magic: 2, CRC: got.CRC, LastOffsetDelta: 1,
		ProducerID: 11, ProducerEpoch: 2, FirstSequence: 5, NumRecords: 2, Records: raw[BatchHeaderSize:],
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("kmsg reads %+v, want %+v", got, want)
	}
	rest := got.Records
	for i, value := range in.Records {
		var r kmsg.Record
		length, n := binary.Varint(rest)
		if err := r.ReadFrom(rest[:n+int(length)]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n+int(length):]
		if !bytes.Equal(r.Value, value) || r.OffsetDelta != int32(i) || r.Key != nil || len(r.Headers) != 0 {
			t.Errorf("record %d: kmsg reads %+v", i, r)
		}
	}
}

func TestReadBatches(t *testing.T) {
	one := Plain([]byte("a"), []byte("b"))
	two := Idempotent(3, 0, 9, []byte("c"))
	two.BaseOffset, two.Term = 2, 4
	records := slices.Concat(one.Bytes(), two.Bytes())
	cut := append(slices.Clone(records), two.Bytes()[:65]...) // a fetch may end with a part of a batch
	for _, in := range [][]byte{records, cut, append(slices.Clone(records), 0, 0, 0)} {
		got, err := ReadBatches(in)
		if err != nil || len(got) != 2 {
			t.Fatalf("read %d batches, %v", len(got), err)
		}
		for i, want := range []Batch{one, two} {
			want.Raw = want.Bytes()
			if fmt.Sprint(got[i]) != fmt.Sprint(want) {
				t.Errorf("read %+v, want %+v", got[i], want)
			}
		}
		if got[1].NextOffset() != 3 {
			t.Errorf("next offset %d, want 3", got[1].NextOffset())
		}
	}
}

func TestReadBatchesRefuses(t *testing.T) {
	put16 := func(at int, v uint16) func([]byte) {
		return func(b []byte) { binary.BigEndian.PutUint16(b[at:], v); Seal(b) }
	}
	put32 := func(at int, v uint32) func([]byte) {
		return func(b []byte) { binary.BigEndian.PutUint32(b[at:], v); Seal(b) }
	}
	faults := map[string]func([]byte){
		"short length":      put32(FieldBatchLength, 48),
		"negative length":   put32(FieldBatchLength, 1<<31),
		"magic":             func(b []byte) { b[FieldMagic] = 1 },
		"checksum":          func(b []byte) { b[FieldCRC]++ },
		"payload":           func(b []byte) { b[len(b)-2]++ },
		"compressed":        put16(FieldAttributes, 4),
		"count 0":           put32(FieldCount, 0),
		"count too high":    put32(FieldCount, 3),
		"huge count":        func(b []byte) { put32(FieldCount, 1<<30)(b); put32(FieldLastOffsetDelta, 1<<30-1)(b) },
		"count too low":     func(b []byte) { put32(FieldCount, 1)(b); put32(FieldLastOffsetDelta, 0)(b) },
		"record length":     func(b []byte) { b[BatchHeaderSize] = 0x7f; Seal(b) },
		"record length -1":  func(b []byte) { b[BatchHeaderSize] = 1; Seal(b) },
		"offset delta":      func(b []byte) { b[BatchHeaderSize+3] = 2; Seal(b) },
		"value length":      func(b []byte) { b[BatchHeaderSize+5] = 0x7e; Seal(b) },
		"negative headers":  func(b []byte) { b[BatchHeaderSize+7] = 1; Seal(b) },
		"unfinished varint": func(b []byte) { b[len(b)-1] = 0x80; Seal(b) },
	}
	for name, plant := range faults {
		raw := Plain([]byte("a"), []byte("b")).Bytes()
		if _, err := ReadBatches(raw); err != nil {
			t.Fatal(err)
		}
		plant(raw)
		if got, err := ReadBatches(raw); err == nil {
			t.Errorf("%s: read as %+v", name, got)
		}
	}
}

func TestReadBatchesNeverPanics(t *testing.T) {
	for seed := range uint64(20_000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		raw := Plain([]byte("a"), []byte("bcd"), nil).Bytes()
		for range 1 + rng.IntN(3) {
			raw[FieldAttributes+rng.IntN(len(raw)-FieldAttributes)] = byte(rng.Uint32())
		}
		Seal(raw)
		batches, err := ReadBatches(raw)
		if err == nil && len(batches) != 1 {
			t.Fatalf("seed %d: %d batches", seed, len(batches))
		}
	}
}

func TestSequenceAndOffsetTypes(t *testing.T) {
	b := Plain([]byte("x"))
	if b.ProducerID != -1 || b.Epoch != -1 || b.Sequence != -1 || b.NextOffset() != batch.Offset(1) {
		t.Errorf("a plain batch carries %+v", b)
	}
}
