package seglog

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/vfs"
)

// An index record, big-endian:
//
//	at  size  field
//	 0     8  base offset; of a frame the next offset
//	 8     4  position of the entry in the segment
//	12     4  its length
//	16     4  its term
//	20     1  0 for a batch, else the kind of the frame
//	21     3  0
//	24     8  the largest timestamp in the segment up to and with this entry, -1 before any batch
const recordSize = 32

// recordsPerRead bounds what is held of the index of a sealed segment.
const recordsPerRead = 128

// indexBytesAtOnce is what is read at once of an index that is read in order.
const indexBytesAtOnce = 1024 * recordSize

// record is an index record, decoded. It has the size of an encoded one.
type record struct {
	offset       batch.Offset
	maxTimestamp int64
	position     uint32
	length       uint32
	term         batch.Term
	kind         Kind
}

func (r record) appendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.offset))
	dst = binary.BigEndian.AppendUint32(dst, r.position)
	dst = binary.BigEndian.AppendUint32(dst, r.length)
	dst = binary.BigEndian.AppendUint32(dst, uint32(r.term))
	dst = append(dst, byte(r.kind), 0, 0, 0)
	return binary.BigEndian.AppendUint64(dst, uint64(r.maxTimestamp))
}

func parseRecord(b []byte) record {
	return record{
		offset:       batch.Offset(binary.BigEndian.Uint64(b)),
		position:     binary.BigEndian.Uint32(b[8:]),
		length:       binary.BigEndian.Uint32(b[12:]),
		term:         batch.Term(binary.BigEndian.Uint32(b[16:])),
		kind:         Kind(b[20]),
		maxTimestamp: int64(binary.BigEndian.Uint64(b[24:])),
	}
}

// end is the position that follows the entry.
func (r record) end() int64 { return int64(r.position) + int64(r.length) }

// checkHeader says whether the entry of which b is the beginning, batch.HeaderSize bytes or the whole, is the
// one that the record of an index means.
func (r record) checkHeader(b []byte, index Index) error {
	length, err := entryLength(b)
	switch {
	case err != nil:
		return err
	case length != int64(r.length):
		return badEntry(fmt.Sprintf("an entry of %d bytes where the index has one of %d", length, r.length))
	case batch.Term(binary.BigEndian.Uint32(b[atTerm:])) != r.term:
		return badEntry("the term is not the one in the index")
	case isFrame(b) != (r.kind != KindBatch):
		return badEntry("a frame where the index has a batch, or the reverse")
	case !isFrame(b) && (b[atMarker] != 2 || batch.Offset(binary.BigEndian.Uint64(b)) != r.offset):
		return badEntry(fmt.Sprintf("not the batch at offset %d that the index has there", r.offset))
	case isFrame(b) && (b[atMarker] != frameMarker || Kind(b[atKind]) != r.kind ||
		Index(binary.BigEndian.Uint64(b[atIndex:])) != index):
		return badEntry(fmt.Sprintf("not the frame of index %d that the index has there", index))
	}
	return nil
}

// readRecords reads records from an index file, at most len(dst), beginning with record n. The file must hold them.
func readRecords(idx vfs.File, n int, dst []record) error {
	buf := make([]byte, min(len(dst), recordsPerRead)*recordSize)
	for len(dst) > 0 {
		part := buf[:min(len(dst)*recordSize, len(buf))]
		if err := readFull(idx, part, int64(n)*recordSize); err != nil {
			return fmt.Errorf("read record %d of the index: %w", n, err)
		}
		for len(part) > 0 {
			dst[0] = parseRecord(part)
			dst, part, n = dst[1:], part[recordSize:], n+1
		}
	}
	return nil
}

// readFull fills b. That the file ends before is an error like any other.
func readFull(f vfs.File, b []byte, off int64) error {
	n, err := f.ReadAt(b, off)
	switch {
	case n == len(b):
		return nil
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	default:
		return err
	}
}
