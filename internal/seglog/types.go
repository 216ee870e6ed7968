package seglog

import (
	"fmt"
	"math"

	"github.com/oncemq/oncemq/internal/batch"
)

// Index is a position in the Raft log of one group. A group is born with index 1 taken by its base snapshot;
// its first entry is 2. 0 means "none".
type Index uint64

// GroupID names one Raft group, for ever: ids are minted by the metadata group and never used again. 0 is raft0.
type GroupID uint64

// ReplicaID names one replica of a group: the node's id in the upper 32 bits, the node's disk life in the lower
// 32. It is never used again.
type ReplicaID uint64

// Kind tells what an entry is.
type Kind uint8

// The kinds of entry. All but KindBatch are zero-width: they own a Raft index, but no offset.
const (
	KindBatch          Kind = 0
	KindEmpty          Kind = 1 // the entry with which a new leader's term begins
	KindConfChange     Kind = 2
	KindConfChangeV2   Kind = 3
	KindRules          Kind = 16
	KindClock          Kind = 17
	KindExpire         Kind = 18
	KindEvict          Kind = 19
	KindLogStart       Kind = 20
	KindMarkEverything Kind = 21
	KindCommand        Kind = 32 // raft0 only
	kindHeader         Kind = 127
)

// Entry is one Raft entry in the form in which the log stores it.
type Entry struct {
	Kind    Kind
	Version uint16     // payload version of a frame; 0 for a batch
	Term    batch.Term // of the entry
	// Data is the whole record batch, already stamped with its base offset and term, or a frame's payload. The
	// log borrows it for the length of the call that it is passed to; what the log returns belongs to the caller.
	Data []byte
}

// Check says whether an entry can be appended behind one of term previous, wherever that is: an error tells why Append would
// hold it for a bug of its caller. What it says does not depend on the offset, nor on the checksum of a batch.
func (e *Entry) Check(previous batch.Term) error {
	_, err := e.check(previous)
	return err
}

// check returns the header of a batch, too.
func (e *Entry) check(previous batch.Term) (h batch.Header, err error) {
	if e.Kind == KindBatch {
		h, ok := batch.ParseHeader(e.Data)
		if !ok || h.Size != len(e.Data) || h.Magic != 2 || h.LastOffsetDelta < 0 || h.BaseOffset < 0 {
			return h, badEntry(fmt.Sprintf("%d bytes that are not one batch", len(e.Data)))
		}
		if h.Term != previous || e.Term != previous {
			return h, badEntry(fmt.Sprintf("a batch of term %d, in an entry of term %d, after term %d", h.Term, e.Term, previous))
		}
		return h, nil
	}
	if !e.Kind.isEntry() || e.Version == 0 || len(e.Data) > entryBytesMax-frameHeaderSize {
		return h, badEntry(fmt.Sprintf("a frame of kind %d, version %d, %d bytes", e.Kind, e.Version, len(e.Data)))
	}
	if e.Term > math.MaxInt32 || e.Term != previous && (e.Term < previous || e.Kind != KindEmpty) {
		return h, badEntry(fmt.Sprintf("a frame of kind %d and term %d after term %d", e.Kind, e.Term, previous))
	}
	return h, nil
}

// Identity is who a log belongs to. It stands in the header frame of each segment.
type Identity struct {
	Cluster   [16]byte
	Group     GroupID
	Replica   ReplicaID
	Topic     [16]byte // zero for raft0
	Partition int32    // -1 for raft0
}

// SegmentInfo describes one segment.
type SegmentInfo struct {
	First        Index        // of its first entry, whether it has one yet or not
	FirstOffset  batch.Offset // of its first batch, as First
	PreviousTerm batch.Term   // of the entry before First
	NextOffset   batch.Offset // behind its last batch
	Entries      int
	Bytes        int64 // of the segment file, its header included
	// MaxTimestamp is the largest timestamp of a record in it, in milliseconds since 1970; -1 when it has no batch, or only
	// batches without timestamps.
	MaxTimestamp int64
}
