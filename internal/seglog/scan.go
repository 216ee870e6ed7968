package seglog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/vfs"
)

const (
	// windowBytes is what a scan reads at once, unless an entry is larger.
	windowBytes = 256 << 10
	// headBytes is what is read at once where little is read.
	headBytes = 512
	// unprovenBytes is the largest entry that a scan takes into memory before it knows that it is one: more than a batch
	// has by default.
	unprovenBytes = 4 << 20
)

// window is a part of a file in memory, which moves towards the file's end.
type window struct {
	file vfs.File
	size int64 // of the file
	pos  int64 // of the part
	part []byte
}

// at returns n bytes at pos, which the file must have, valid until the next call. Memory grows to the largest n.
func (w *window) at(pos, n int64) ([]byte, error) {
	if pos < w.pos || pos > w.pos+int64(len(w.part)) {
		w.pos, w.part = pos, w.part[:0]
	}
	if have := w.part[pos-w.pos:]; int64(len(have)) < n {
		room := w.part[:cap(w.part)]
		if int64(len(room)) < n {
			room = make([]byte, n)
		}
		old := copy(room, have)
		w.pos, w.part = pos, room[:old]
		w.part = w.part[:min(int64(cap(w.part)), w.size-pos)]
		if err := readFull(w.file, w.part[old:], pos+int64(old)); err != nil {
			w.part = w.part[:old]
			return nil, err
		}
	}
	return w.part[pos-w.pos:][:n:n], nil
}

// open looks at another file, with the memory of the last one, atOnce bytes of it unless more are asked for.
func (w *window) open(file vfs.File, atOnce int64) error {
	size, err := file.Size()
	if n := min(atOnce, size); int64(cap(w.part)) < n {
		w.part = make([]byte, n)
	}
	*w = window{file: file, size: size, part: w.part[:0]}
	return err
}

// entry returns the length bytes at pos, which the file must have, that say they are an entry. When they are many, their
// checksum is proved first, piece by piece: one wrong bit in a length must not cost the memory of a whole segment.
func (w *window) entry(pos, length int64) ([]byte, error) {
	if length > unprovenBytes {
		b, err := w.at(pos, frameHeaderSize)
		if err != nil {
			return nil, err
		}
		want, crc := binary.BigEndian.Uint32(b[atCRC:]), uint32(0)
		if isFrame(b) {
			crc = crc32.Update(0, castagnoli, b[:atCRC])
		}
		for at := pos + atKind; at < pos+length; at += int64(len(b)) {
			if b, err = w.at(at, min(windowBytes, pos+length-at)); err != nil {
				return nil, err
			}
			crc = crc32.Update(crc, castagnoli, b)
		}
		if crc != want {
			return nil, badEntry(fmt.Sprintf("the checksum of %d bytes is wrong", length))
		}
	}
	return w.at(pos, length)
}

// zerosFrom says whether the file has nothing but zeros from pos on.
func (w *window) zerosFrom(pos int64) (bool, error) {
	for pos < w.size {
		n := min(windowBytes, w.size-pos)
		b, err := w.at(pos, n)
		if err != nil {
			return false, err
		}
		for _, c := range b {
			if c != 0 {
				return false, nil
			}
		}
		pos += n
	}
	return true, nil
}

// scanner reads the entries of one segment, one after the other, and checks them.
type scanner struct {
	s    *segment
	w    *window
	tail tail // behind the last valid entry

	// The last valid entry. Data is valid until the next call.
	entry  Entry
	header batch.Header
	record record

	// Why the scan ended: bad is nil at an end that is right.
	bad error
}

// next reads one entry. False: there is none, and bad says whether there should be. An error is one of reading, or a
// FormatError.
func (c *scanner) next() (bool, error) {
	at := c.tail.position
	b, err := candidate(c.w, at)
	if err == nil && b != nil {
		place := place{index: c.s.first + Index(c.tail.entries), offset: c.tail.offset, term: c.tail.term}
		c.entry, c.header, err = parseEntry(b, place)
	}
	if bad, ok := err.(badEntry); ok {
		zeros, err := c.w.zerosFrom(at)
		if err == nil && !zeros {
			c.bad = bad
		}
		return false, err
	}
	if err != nil {
		return false, c.s.located(at, err)
	}
	if b == nil {
		return false, nil
	}
	c.advance(int64(len(b)))
	return true, nil
}

// scanTo reads and checks the first n entries of the segment, calls yield with the record of each, and returns the tail
// behind them. A *DamageError: they are not there, or not whole.
func (s *segment) scanTo(w *window, n int, yield func(record) error) (tail, error) {
	if err := w.open(s.file, windowBytes); err != nil {
		return tail{}, fmt.Errorf("find size of segment: %w", err)
	}
	c := scanner{s: s, w: w, tail: s.start()}
	for c.tail.entries < n {
		more, err := c.next()
		switch {
		case err == nil && more:
			err = yield(c.record)
		case err == nil && c.bad != nil:
			err = s.located(c.tail.position, c.bad)
		case err == nil:
			err = s.damage(c.tail.position, fmt.Sprintf("the segment ends here, before entry %d", s.first+Index(c.tail.entries)))
		default:
			err = fmt.Errorf("read segment %s: %w", s.name, err)
		}
		if err != nil {
			return c.tail, err
		}
	}
	return c.tail, nil
}

// candidate returns the bytes that the entry at a position of a file claims to be, nil at the file's end.
func candidate(w *window, at int64) ([]byte, error) {
	left := w.size - at
	switch {
	case left == 0:
		return nil, nil
	case left < prefixSize:
		return nil, badEntry(fmt.Sprintf("%d bytes are too few for an entry", left))
	case at > math.MaxUint32:
		return nil, badEntry("an entry that begins behind 4 GiB")
	}
	b, err := w.at(at, prefixSize)
	if err != nil {
		return nil, err
	}
	length, err := entryLength(b)
	if err != nil {
		return nil, err
	}
	if length > left || at+length > math.MaxUint32 {
		return nil, badEntry(fmt.Sprintf("an entry of %d bytes reaches beyond the end of the file", length))
	}
	return w.entry(at, length)
}

// advance takes the entry into the tail and makes its record.
func (c *scanner) advance(length int64) {
	t := &c.tail
	c.record = record{
		offset: t.offset, position: uint32(t.position), length: uint32(length), term: c.entry.Term, kind: c.entry.Kind,
	}
	if c.entry.Kind == KindBatch {
		t.offset = c.header.NextOffset()
		t.maxTimestamp = max(t.maxTimestamp, c.header.MaxTimestamp)
		c.entry.Data = c.entry.Data[:batch.HeaderSize:batch.HeaderSize]
	}
	c.record.maxTimestamp = t.maxTimestamp
	t.entries++
	t.position += length
	t.term = c.entry.Term
}
