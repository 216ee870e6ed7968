package replica

import (
	"encoding/binary"
	"fmt"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
)

// apply implements machine.
func (p *partitionCore) apply(now time.Time, e *pb.Entry) error {
	c, isCommand := raftlog.DecodeCommand(e.GetData())
	var err error
	if isCommand {
		err = p.applyCommand(now, c)
	} else {
		err = p.applyBatch(e)
	}
	if err != nil {
		return err
	}
	if f := p.flight.land(seglog.Index(e.GetIndex()), batch.Term(e.GetTerm())); f != nil {
		p.land(f)
		p.settle()
	}
	return nil
}

// applyBatch decides again (invariant 4) and makes the batch visible.
func (p *partitionCore) applyBatch(e *pb.Entry) error {
	h, ok := batch.ParseHeader(e.GetData())
	invariant.Check(ok, "an entry without a batch header is applied")
	if h.BaseOffset != p.high {
		return &MismatchError{Header: h, Detail: fmt.Sprintf("expected offset %d", p.high)}
	}
	stamp := h.Stamp()
	if d := p.table.Decide(stamp); d.Verdict != dedupe.Append {
		return &MismatchError{Header: h, Decision: d, Detail: fmt.Sprintf("%v, %v", d.Verdict, d.Reason)}
	}
	p.table.Record(stamp, h.BaseOffset)
	p.high = h.NextOffset()
	p.next = max(p.next, p.high)
	if p.segmentClock < 0 {
		p.segmentClock = p.table.Clock()
	}
	return nil
}

func (p *partitionCore) applyCommand(now time.Time, c raftlog.Command) error {
	newer := func() error {
		return fmt.Errorf("%w: kind %d version %d, payload of %d bytes", ErrNewerLog, c.Kind, c.Version, len(c.Payload))
	}
	if c.Version != 1 {
		return newer()
	}
	number := int64(-1)
	if len(c.Payload) == 8 {
		number = int64(binary.BigEndian.Uint64(c.Payload))
	}
	switch {
	case c.Kind == seglog.KindClock && number >= 0:
		p.table.SetClock(number)
		if p.clockApplied = now; !p.ready() {
			p.inherited = p.table.Clock()
		}
	case c.Kind == seglog.KindExpire || c.Kind == seglog.KindEvict:
		list, err := dedupe.ParseForgotten(c.Payload)
		if err != nil {
			return fmt.Errorf("%w: %w", newer(), err)
		}
		p.table.Forget(list)
	case c.Kind == seglog.KindLogStart && number >= 0:
		if batch.Offset(number) > p.high {
			return &MismatchError{Detail: fmt.Sprintf("log start %d above the high watermark %d", number, p.high)}
		}
		p.logStart = max(p.logStart, batch.Offset(number))
		p.startMoved = true
	case c.Kind == seglog.KindMarkEverything && len(c.Payload) == 0:
		p.table.MarkEverything()
	case c.Kind == seglog.KindRules && len(c.Payload) == 2:
		if err := p.table.SetRules(binary.BigEndian.Uint16(c.Payload)); err != nil {
			return fmt.Errorf("%w: %w", ErrNewerLog, err)
		}
	default:
		return newer()
	}
	return nil
}

// land tells the head that an entry of this replica is applied. The head of a replica that has stepped down since knows
// nothing of it.
func (p *partitionCore) land(f *inFlight) {
	leads := p.leads(f)
	switch c := f.command; {
	case c == nil:
		if leads {
			p.head.Applied(f.stamp)
		}
	default:
		if leads && c.forget != nil {
			p.head.ForgetApplied(c.forget)
		}
		if c.applied != nil {
			c.applied()
		}
	}
}

// leads reports whether the leader that proposed an entry still leads.
func (p *partitionCore) leads(f *inFlight) bool { return p.firstOwn > 0 && f.term == p.term }

// cut implements machine.
func (p *partitionCore) cut() state {
	p.segmentClock = -1
	return state{
		logStart: p.logStart, nextOffset: p.high,
		body: p.table.Clone(), size: tableBytes + p.table.Producers()*producerBytes,
	}
}

// The copy of a table takes about producerBytes a producer, and tableBytes for its marks; no less than what it is written
// as.
const (
	producerBytes = 160
	tableBytes    = 10 << 10
)

// MismatchError: a committed entry is not what the rule would have made (invariant 4).
type MismatchError struct {
	// Header is that of the batch; Size 0: the entry is none.
	Header   batch.Header
	Decision dedupe.Decision
	Detail   string
}

func (e *MismatchError) Error() string {
	h := e.Header
	if h.Size == 0 {
		return "committed entry does not follow the rule: " + e.Detail
	}
	return fmt.Sprintf("committed batch at offset %d (producer %d epoch %d sequence %d, %d records) does not follow the rule: %s",
		h.BaseOffset, h.ProducerID, h.ProducerEpoch, h.BaseSequence, h.Count, e.Detail)
}
