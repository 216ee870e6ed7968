package dedupe

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/oncemq/oncemq/internal/batch"
)

// ErrUnknownRules: the table, or an entry, is of a rules version that this build does not know.
var ErrUnknownRules = errors.New("rules version unknown to this build")

// Sizes in bytes of the parts of a table.
const (
	tableBytes    = 2 + 8 + 4 + 4 // rules, clock, floor, count of marks
	markBytes     = 4 + 4
	producerBytes = 8 + 2 + 4 + 8 + 1 // without its batches
	batchBytes    = 4 + 4 + 8
)

// AppendTo appends the canonical bytes of the table to dst and returns it. Equal tables give equal bytes.
// Big-endian:
//
//	rules u16, clock i64 (-1: none), floor u32
//	u32 count, marks ascending {start number u32, highest counter u32}
//	u32 count, producers ascending {id i64, epoch i16, next sequence i32, clock i64, u8 count,
//	    batches oldest first {base sequence i32, last sequence i32, base offset i64}}
func (t *Table) AppendTo(dst []byte) []byte {
	order := binary.BigEndian
	dst = order.AppendUint16(dst, t.rules)
	dst = order.AppendUint64(dst, uint64(t.clock))
	dst = order.AppendUint32(dst, t.marks.floor)
	dst = order.AppendUint32(dst, uint32(len(t.marks.list)))
	for _, k := range t.marks.list {
		dst = order.AppendUint32(dst, k.start)
		dst = order.AppendUint32(dst, k.counter)
	}
	dst = order.AppendUint32(dst, uint32(t.producers.n))
	for _, e := range t.producers.ascending() {
		p := e.value
		dst = order.AppendUint64(dst, uint64(e.id))
		dst = order.AppendUint16(dst, uint16(p.epoch))
		dst = order.AppendUint32(dst, uint32(p.next()))
		dst = order.AppendUint64(dst, uint64(p.clock))
		dst = append(dst, p.n)
		for k := range int(p.n) {
			dst = order.AppendUint32(dst, uint32(p.firstOf(k)))
			dst = order.AppendUint32(dst, uint32(p.last[k]))
			dst = order.AppendUint64(dst, uint64(p.base[k]))
		}
	}
	return dst
}

// Parse reads what AppendTo wrote, all of src, and refuses everything that AppendTo would not have written. It keeps
// no reference to src, and takes memory in proportion to src, whatever the counts in it say. The error wraps
// ErrUnknownRules when the table is of a version that this build does not know.
func Parse(src []byte) (*Table, error) {
	r := reader{what: "producer table", src: src}
	if !r.has(tableBytes) {
		return nil, r.fail("table header cut off")
	}
	rules := r.u16()
	if !KnowsRules(rules) {
		return nil, fmt.Errorf("parse producer table of rules %d: %w", rules, ErrUnknownRules)
	}
	t := New(rules, 0)
	if t.clock = int64(r.u64()); t.clock < -1 {
		return nil, r.fail("clock %d", t.clock)
	}
	t.marks.floor = r.u32()
	if err := t.parseMarks(&r); err != nil {
		return nil, err
	}
	if err := t.parseProducers(&r); err != nil {
		return nil, err
	}
	if r.at != len(src) {
		return nil, r.fail("%d bytes follow the table", len(src)-r.at)
	}
	return t, nil
}

func (t *Table) parseMarks(r *reader) error {
	n := r.u32()
	if n > marksMax || !r.has(int(n)*markBytes+4) {
		return r.fail("%d marks, at most %d are kept, %d bytes follow", n, marksMax, len(r.src)-r.at)
	}
	t.marks.list = make([]mark, n)
	for i := range t.marks.list {
		t.marks.list[i] = mark{start: r.u32(), counter: r.u32()}
	}
	if err := t.marks.check(); err != nil {
		return r.fail("%w", err)
	}
	return nil
}

func (t *Table) parseProducers(r *reader) error {
	n := r.u32()
	if uint64(n) > uint64(len(r.src)-r.at)/(producerBytes+batchBytes) {
		return r.fail("%d producers, %d bytes follow", n, len(r.src)-r.at)
	}
	t.producers = newByID[producer](int(n))
	previous := batch.ProducerID(-1)
	for range n {
		if !r.has(producerBytes) {
			return r.fail("producer cut off")
		}
		id := batch.ProducerID(r.u64())
		if id <= previous {
			return r.fail("producer %d follows %d", id, previous)
		}
		previous = id
		p, err := r.producer(id)
		if err != nil {
			return err
		}
		if err := t.check(id, &p); err != nil {
			return r.fail("%w", err)
		}
		*t.producers.add(id) = p
	}
	return nil
}

// reader takes bytes apart. Whoever reads a field has asked before whether the bytes are there.
type reader struct {
	what string // the bytes are, for errors
	src  []byte
	at   int
}

// has reports whether n more bytes are there.
func (r *reader) has(n int) bool { return len(r.src)-r.at >= n }

func (r *reader) u16() uint16 { r.at += 2; return binary.BigEndian.Uint16(r.src[r.at-2:]) }
func (r *reader) u32() uint32 { r.at += 4; return binary.BigEndian.Uint32(r.src[r.at-4:]) }
func (r *reader) u64() uint64 { r.at += 8; return binary.BigEndian.Uint64(r.src[r.at-8:]) }

func (r *reader) fail(format string, args ...any) error {
	return fmt.Errorf("parse %s at byte %d: %w", r.what, r.at, fmt.Errorf(format, args...))
}

// producer reads one producer after its id, of which has(producerBytes) was asked. What the representation cannot
// hold is refused here; Table.check judges the rest.
func (r *reader) producer(id batch.ProducerID) (producer, error) {
	p := producer{epoch: batch.Epoch(r.u16())}
	next := batch.Sequence(r.u32())
	p.clock = int64(r.u64())
	p.n = r.src[r.at]
	r.at++
	if p.n < 1 || p.n > windowMax || !r.has(int(p.n)*batchBytes) {
		return p, r.fail("producer %d has %d batches", id, p.n)
	}
	for i := range int(p.n) {
		first := batch.Sequence(r.u32())
		if i == 0 {
			p.first = first
		} else if first != p.firstOf(i) {
			return p, r.fail("producer %d: batch %d begins at sequence %d after %d", id, i, first, p.last[i-1])
		}
		p.last[i], p.base[i] = batch.Sequence(r.u32()), batch.Offset(r.u64())
	}
	if next != p.next() {
		return p, r.fail("producer %d: next sequence %d after %d", id, next, p.last[p.n-1])
	}
	return p, nil
}
