package sim

import (
	"fmt"
	"hash/crc64"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
)

// ledger is what is known of one partition beside its replicas: its committed log, as it was seen first, and the state to
// which a second application of it comes.
type ledger struct {
	entries []record // of index 2 and up, without a gap
	early   map[seglog.Index]arrival
	leaders map[batch.Term]seglog.ReplicaID

	birth    []byte
	machine  machine
	logStart batch.Offset
	high     batch.Offset

	producers int          // how many numbers of producers were given out
	acked     batch.Offset // behind the last batch that was answered
}

// record is one committed entry, and the state behind it.
type record struct {
	term           batch.Term
	sum            uint64 // of kind, version, term and data
	state          uint64 // of the table's bytes
	logStart, high batch.Offset
}

// arrival is an entry that was seen before those in front of it.
type arrival struct{ entry seglog.Entry }

// machine is a second state.
type machine interface {
	AppendTo(dst []byte) []byte
	// command applies an entry that is no batch.
	command(e seglog.Entry) error
}

// table is the state of a partition.
type table struct{ *dedupe.Table }

func newLedger(m machine) *ledger {
	return &ledger{early: map[seglog.Index]arrival{}, leaders: map[batch.Term]seglog.ReplicaID{}, machine: m, birth: m.AppendTo(nil)}
}

// newborn is the body of the base snapshot with which the group is born.
func (l *ledger) newborn() []byte { return l.birth }

var polynomial = crc64.MakeTable(crc64.ECMA)

func sumOf(e seglog.Entry) uint64 {
	head := fmt.Appendf(nil, "%d %d %d ", e.Kind, e.Version, e.Term)
	return crc64.Update(crc64.Checksum(head, polynomial), polynomial, e.Data)
}

// at returns the record of an index, nil when it is not known.
func (l *ledger) at(i seglog.Index) *record {
	if i < 2 || int(i-2) >= len(l.entries) {
		return nil
	}
	return &l.entries[i-2]
}

// committed notes that a replica has an entry as committed, and compares it with what was seen before.
func (l *ledger) committed(i seglog.Index, e seglog.Entry) error {
	if known := l.at(i); known != nil {
		if known.sum != sumOf(e) {
			return fmt.Errorf("entry %d of term %d (%v) is committed, and was committed with term %d before", i, e.Term, e.Kind, known.term)
		}
		return nil
	}
	if int(i-2) > len(l.entries) {
		l.early[i] = arrival{e}
		return nil
	}
	for {
		if err := l.apply(i, e); err != nil {
			return err
		}
		i++
		next, ok := l.early[i]
		if !ok {
			return nil
		}
		delete(l.early, i)
		e = next.entry
	}
}

// apply carries an entry out on the second state.
func (l *ledger) apply(i seglog.Index, e seglog.Entry) error {
	var err error
	switch e.Kind {
	case seglog.KindBatch:
		err = l.applyBatch(e)
	case seglog.KindEmpty:
	case seglog.KindLogStart:
		l.logStart = max(l.logStart, batch.Offset(number(e.Data)))
	default:
		err = l.machine.command(e)
	}
	if err != nil {
		return fmt.Errorf("committed entry %d: %w", i, err)
	}
	l.entries = append(l.entries, record{
		term: e.Term, sum: sumOf(e), state: crc64.Checksum(l.machine.AppendTo(nil), polynomial), logStart: l.logStart, high: l.high,
	})
	return nil
}

func (l *ledger) applyBatch(e seglog.Entry) error {
	h, err := batch.CheckStored(e.Data)
	t, partition := l.machine.(*table)
	if err != nil || !partition {
		return fmt.Errorf("batch in a log of %T: %w", l.machine, err)
	}
	d := t.Decide(h.Stamp())
	if h.Term != e.Term || h.BaseOffset != l.high || h.Size != len(e.Data) || d.Verdict != dedupe.Append {
		return fmt.Errorf("term %d, offset %d, %d bytes, %v %v; it is an entry of term %d, of %d bytes, and offset %d is next",
			h.Term, h.BaseOffset, h.Size, d.Verdict, d.Reason, e.Term, len(e.Data), l.high)
	}
	t.Record(h.Stamp(), h.BaseOffset)
	l.high = h.NextOffset()
	return nil
}

// command implements machine.
func (t *table) command(e seglog.Entry) error {
	switch e.Kind {
	case seglog.KindClock:
		t.SetClock(number(e.Data))
	case seglog.KindExpire, seglog.KindEvict:
		list, err := dedupe.ParseForgotten(e.Data)
		if err != nil {
			return err
		}
		t.Forget(list)
	default:
		return fmt.Errorf("kind %d", e.Kind)
	}
	return nil
}

func number(payload []byte) int64 {
	n := int64(0)
	for _, b := range payload {
		n = n<<8 | int64(b)
	}
	return n
}

// based compares a base snapshot with the second state; known is false when that has not come so far. Where a snapshot was
// installed, records that the leader still has may be gone, so that the log starts later.
func (l *ledger) based(b raftlog.Base) (known bool, err error) {
	if b.Index == 1 {
		return true, nil
	}
	r := l.at(b.Index)
	if r == nil {
		return false, nil
	}
	if sum := crc64.Checksum(b.Body, polynomial); sum != r.state || b.Term != r.term || b.NextOffset != r.high ||
		b.LogStart < r.logStart || b.LogStart > r.high {
		return true, fmt.Errorf("base snapshot %d of term %d, offsets %d to %d, %d bytes: the log comes to term %d, offsets %d to %d, same table: %t",
			b.Index, b.Term, b.LogStart, b.NextOffset, len(b.Body), r.term, r.logStart, r.high, sum == r.state)
	}
	return true, nil
}
