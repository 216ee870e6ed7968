package replica

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
)

// FuzzApply: a committed entry is applied, or stops the partition because a newer version wrote it or because it does not
// follow the rule. A batch is one that the log let pass, so its header is that of a right batch.
func FuzzApply(f *testing.F) {
	f.Add(raftlog.EncodeCommand(seglog.KindClock, binary.BigEndian.AppendUint64(nil, 1_790_000_000_000)), []byte{})
	f.Add(raftlog.EncodeCommand(seglog.KindClock, nil), make([]byte, batch.HeaderSize))
	f.Add(raftlog.EncodeCommand(seglog.KindExpire, make([]byte, 18)), []byte{})
	forget := dedupe.AppendForgotten(nil, []dedupe.Forgotten{{ID: 7, NextSequence: 3}})
	f.Add(batchOf(7, 0, 0, 3, []byte("first")), raftlog.EncodeCommand(seglog.KindEvict, forget))
	f.Add(batchOf(7, 0, 0, 3, []byte("first")), raftlog.EncodeCommand(seglog.KindLogStart, binary.BigEndian.AppendUint64(nil, 2)))
	f.Add(raftlog.EncodeCommand(seglog.KindMarkEverything, nil), raftlog.EncodeCommand(seglog.KindRules, []byte{0, 1}))
	f.Add(batchOf(7, 0, 0, 3, []byte("first")), batchOf(7, 0, 3, 1, []byte("next")))
	f.Add(batchOf(7, 0, 0, 3, []byte("first")), batchOf(7, 0, 4, 1, []byte("gap")))
	f.Add(batchOf(-1, -1, -1, 2, nil), batchOf(8, 1, 0, 1, nil))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		table := dedupe.New(dedupe.RulesVersion, 0)
		p := &partitionCore{core: &core{}, table: table, head: dedupe.NewHead(table), settings: testSettings()}
		for k, data := range [][]byte{first, second} {
			if _, isCommand := raftlog.DecodeCommand(data); !isCommand {
				if data = storedHeader(data, p.high); data == nil {
					return
				}
			}
			index := uint64(k + 2)
			before := p.high
			err := p.apply(time.Time{}, &pb.Entry{Type: pb.EntryNormal.Enum(), Index: &index, Data: data})
			_, mismatch := errors.AsType[*MismatchError](err)
			if err != nil && !mismatch && !errors.Is(err, ErrNewerLog) {
				t.Fatalf("unexpected error %v", err)
			}
			if err != nil && p.high != before {
				t.Fatalf("%v, but the high watermark moved from %d to %d", err, before, p.high)
			}
			if p.logStart < 0 || p.logStart > p.high {
				t.Fatalf("log start %d, high watermark %d", p.logStart, p.high)
			}
			if err := table.Check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// storedHeader returns the header of a batch that stands at an offset, with the fields that every stored batch has; nil when
// the bytes are none. The checksum was right when the log looked at it.
func storedHeader(data []byte, at batch.Offset) []byte {
	h, ok := batch.ParseHeader(data)
	none := h.ProducerID == -1 && h.ProducerEpoch == -1 && h.BaseSequence == -1
	some := h.ProducerID >= 0 && h.ProducerEpoch >= 0 && h.BaseSequence >= 0
	if !ok || h.LastOffsetDelta < 0 || h.Count < 1 || int64(h.Count) != int64(h.LastOffsetDelta)+1 || !none && !some || at > batch.MaxBaseOffset {
		return nil
	}
	header := append([]byte{}, data[:batch.HeaderSize]...)
	batch.SetPlace(header, at, 1)
	return header
}
