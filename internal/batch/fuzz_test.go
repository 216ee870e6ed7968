package batch

import (
	"bytes"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func seeds(f *testing.F) {
	right := seal(sent())
	f.Add(right)
	f.Add(right[:HeaderSize])
	f.Add(right[:atMagic+1])
	f.Add(append(seal(sent()), right...))
	f.Add([]byte{})
}

// FuzzCheckProduce: no input panics, and what passes, also when it is given its CRC by the test, keeps what the package
// promises of it.
func FuzzCheckProduce(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		checkPromise(t, data)
		if len(data) >= HeaderSize {
			checkPromise(t, reseal(bytes.Clone(data)))
		}
	})
}

func checkPromise(t *testing.T, data []byte) {
	h, fault := CheckProduce(data)
	if parsed, _ := ParseHeader(data); h != parsed {
		t.Fatalf("checked header %+v, parsed %+v", h, parsed)
	}
	if fault != FaultNone {
		if fault.Class() == ClassNone {
			t.Fatalf("fault %d has no class", fault)
		}
		return
	}
	s := h.Stamp()
	if h.Size != len(data) || h.Count < 1 || h.NextOffset() != Offset(h.Count) ||
		(s.ID < 0) != (s.First < 0) || (s.ID < 0) != (s.Last < 0) {
		t.Fatalf("passed with %+v, stamp %+v, %d bytes", h, s, len(data))
	}
	stored := append(bytes.Clone(data), "more"...)
	SetPlace(stored, 12, 3)
	if _, err := CheckStored(stored); err != nil {
		t.Fatal(err)
	}
}

// FuzzParseHeader: no input panics, and another codec reads the same.
func FuzzParseHeader(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		h, ok := ParseHeader(data)
		if ok != (len(data) >= HeaderSize) {
			t.Fatalf("%d bytes: %v", len(data), ok)
		}
		if !ok {
			return
		}
		again := kmsg.RecordBatch{
			FirstOffset: int64(h.BaseOffset), Length: int32(h.Size - lengthOrigin), PartitionLeaderEpoch: int32(h.Term),
			Magic: h.Magic, CRC: int32(h.CRC), Attributes: h.Attributes, LastOffsetDelta: h.LastOffsetDelta,
			FirstTimestamp: h.BaseTimestamp, MaxTimestamp: h.MaxTimestamp, ProducerID: int64(h.ProducerID),
			ProducerEpoch: int16(h.ProducerEpoch), FirstSequence: int32(h.BaseSequence), NumRecords: h.Count,
		}
		if got := again.AppendTo(nil); !bytes.Equal(got, data[:HeaderSize]) {
			t.Fatalf("read %x, wrote %x", data[:HeaderSize], got)
		}
	})
}
