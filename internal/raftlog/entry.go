package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
)

// A command of ours (clock, raft0 command and the like) travels through Raft as an entry whose Data begins with a
// byte that no batch begins with: a stored batch begins with its base offset, which is not negative.
const (
	commandMark       = 0xff
	commandHeaderSize = 4
	payloadVersion    = 1
)

// Command is what a zero-width entry of ours says.
type Command struct {
	Kind    seglog.Kind
	Version uint16
	// Payload aliases the entry it was read from.
	Payload []byte
}

// EncodeCommand returns the Entry.Data of a zero-width entry: FF, kind, payload version, payload.
func EncodeCommand(kind seglog.Kind, payload []byte) []byte {
	return appendCommand(make([]byte, 0, commandHeaderSize+len(payload)), kind, payloadVersion, payload)
}

func appendCommand(dst []byte, kind seglog.Kind, version uint16, payload []byte) []byte {
	dst = append(dst, commandMark, byte(kind))
	dst = binary.BigEndian.AppendUint16(dst, version)
	return append(dst, payload...)
}

// DecodeCommand reads what EncodeCommand wrote. ok is false when the entry is a batch or empty.
func DecodeCommand(data []byte) (c Command, ok bool) {
	if len(data) < commandHeaderSize || data[0] != commandMark {
		return Command{}, false
	}
	return Command{
		Kind:    seglog.Kind(data[1]),
		Version: binary.BigEndian.Uint16(data[2:]),
		Payload: data[commandHeaderSize:],
	}, true
}

// toLog translates a Raft entry into the log's form. The result aliases e.Data.
func toLog(e *pb.Entry) seglog.Entry {
	entry := seglog.Entry{Term: batch.Term(e.GetTerm()), Version: payloadVersion, Data: e.GetData()}
	switch e.GetType() {
	case pb.EntryConfChange:
		entry.Kind = seglog.KindConfChange
		return entry
	case pb.EntryConfChangeV2:
		entry.Kind = seglog.KindConfChangeV2
		return entry
	}
	if len(entry.Data) == 0 {
		entry.Kind = seglog.KindEmpty
		return entry
	}
	if c, ok := DecodeCommand(entry.Data); ok {
		entry.Kind, entry.Version, entry.Data = c.Kind, c.Version, c.Payload
		return entry
	}
	invariant.Check(len(entry.Data) >= batch.HeaderSize && entry.Data[0] < 0x80, "entry is neither a command nor a batch")
	entry.Kind, entry.Version = seglog.KindBatch, 0
	return entry
}

// CheckEntry says whether an entry that came from another replica can be stored behind one of term previous: an error tells
// why the writer would hold it for a bug. That it follows in index, and a batch in offset, is for the caller to check, and
// the checksum of a batch.
func CheckEntry(e *pb.Entry, previous uint64) error {
	data := e.GetData()
	c, isCommand := DecodeCommand(data)
	switch {
	case previous > math.MaxInt32 || e.GetTerm() > math.MaxInt32:
		return fmt.Errorf("an entry of term %d after term %d", e.GetTerm(), previous)
	case e.GetType() == pb.EntryConfChange || e.GetType() == pb.EntryConfChangeV2:
	case e.GetType() != pb.EntryNormal:
		return fmt.Errorf("an entry of type %d", e.GetType())
	case isCommand && c.Kind <= seglog.KindConfChangeV2:
		return fmt.Errorf("a command of kind %d", c.Kind)
	case !isCommand && len(data) > 0 && (len(data) < batch.HeaderSize || data[0] >= 0x80):
		return errors.New("neither a command nor a batch")
	}
	logged := toLog(e)
	return logged.Check(batch.Term(previous))
}

// fromLog translates an entry of the log into Raft's form. For a batch the result aliases entry.Data, for a command
// it is a copy.
func fromLog(index seglog.Index, entry seglog.Entry) *pb.Entry {
	e := &pb.Entry{
		Type:  pb.EntryNormal.Enum(),
		Index: new(uint64(index)),
		Term:  new(uint64(entry.Term)),
	}
	switch entry.Kind {
	case seglog.KindEmpty:
	case seglog.KindConfChange:
		e.Type, e.Data = pb.EntryConfChange.Enum(), entry.Data
	case seglog.KindConfChangeV2:
		e.Type, e.Data = pb.EntryConfChangeV2.Enum(), entry.Data
	case seglog.KindBatch:
		e.Data = entry.Data
	default:
		dst := make([]byte, 0, commandHeaderSize+len(entry.Data))
		e.Data = appendCommand(dst, entry.Kind, entry.Version, entry.Data)
	}
	return e
}

// stub returns the entry as it is applied: of a batch only the header, all else whole. It aliases e.Data.
func stub(e *pb.Entry) *pb.Entry {
	data := e.GetData()
	if e.GetType() != pb.EntryNormal || len(data) <= batch.HeaderSize || data[0] == commandMark {
		return e
	}
	return &pb.Entry{Type: e.Type, Index: e.Index, Term: e.Term, Data: data[:batch.HeaderSize:batch.HeaderSize]}
}
