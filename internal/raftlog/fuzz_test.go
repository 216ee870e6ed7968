package raftlog

import (
	"bytes"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/seglog"
)

// FuzzEntry: whatever Raft hands over as an entry's data is either a command, a batch or neither; what the log keeps of
// an entry is given back to Raft as it came, and what is applied of it is its beginning.
func FuzzEntry(f *testing.F) {
	f.Add(uint8(pb.EntryNormal), []byte{})
	f.Add(uint8(pb.EntryNormal), EncodeCommand(seglog.KindClock, make([]byte, 8)))
	f.Add(uint8(pb.EntryNormal), EncodeCommand(seglog.KindCommand, []byte("\x00\x01{}")))
	f.Add(uint8(pb.EntryNormal), EncodeCommand(seglog.KindMarkEverything, nil))
	f.Add(uint8(pb.EntryNormal), []byte{commandMark, 17, 0})
	f.Add(uint8(pb.EntryNormal), make([]byte, batch.HeaderSize+30))
	f.Add(uint8(pb.EntryConfChange), []byte{8, 1})
	f.Add(uint8(pb.EntryConfChangeV2), []byte{})
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		e := &pb.Entry{Type: pb.EntryType(kind % 3).Enum(), Index: new(uint64(9)), Term: new(uint64(3)), Data: data}
		c, isCommand := DecodeCommand(data)
		if again := appendCommand(nil, c.Kind, c.Version, c.Payload); isCommand && !bytes.Equal(again, data) {
			t.Fatalf("read %x, wrote %x", data, again)
		}
		isBatch := len(data) >= batch.HeaderSize && data[0] < 0x80
		if e.GetType() == pb.EntryNormal && len(data) > 0 && !isCommand && !isBatch {
			return // no leader proposes it, and no log holds it
		}
		switch c.Kind {
		case seglog.KindBatch, seglog.KindEmpty, seglog.KindConfChange, seglog.KindConfChangeV2:
			if isCommand {
				return // the same: these kinds have forms of their own
			}
		}
		again := fromLog(9, toLog(e))
		if again.GetType() != e.GetType() || again.GetIndex() != 9 || again.GetTerm() != 3 || !bytes.Equal(again.GetData(), data) {
			t.Fatalf("%v went into the log and came out as %v", e, again)
		}
		applied := stub(e).GetData()
		if !bytes.HasPrefix(data, applied) || len(applied) != len(data) && len(applied) != batch.HeaderSize {
			t.Fatalf("%x is applied as %x", data, applied)
		}
		if isCommand && len(applied) != len(data) {
			t.Fatalf("of a command of %d bytes %d are applied", len(data), len(applied))
		}
	})
}
