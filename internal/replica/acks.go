package replica

import (
	"fmt"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
)

// answer is an Ack on its way out.
type answer struct {
	done Done // nil: it is out
	ack  Ack
	size int // bytes that the mailbox holds for it
	// all: it waits for the commit and min.insync.replicas, else for the leader's disk.
	all bool
}

func answerTo(s *Submission, ack Ack) answer {
	return answer{done: s.Done, size: s.held(), ack: ack, all: s.Acks == -1}
}

// inheritor is a retry of a batch that is applied and that nobody waits for any more: an earlier leader has stored it, or this
// one when it was sent with other acks. It waits for an entry behind its original to be on enough replicas.
type inheritor struct {
	answer answer
	index  seglog.Index
}

// wait has w wait for the batch at base, as long as a batch with w's acks would.
func (p *partitionCore) wait(base batch.Offset, w answer) {
	f, onDisk := p.flight.find(base)
	switch {
	case f != nil && (w.all || !onDisk):
		f.retries = append(f.retries, w)
	case f != nil:
		p.release(&w)
	default:
		invariant.Check(base < p.high, "the original of a retry is neither applied nor on its way")
		if w.all && p.followers.enough < p.applied {
			p.inheritors = append(p.inheritors, inheritor{answer: w, index: p.applied})
			return
		}
		p.release(&w)
	}
}

// replicated implements machine.
func (p *partitionCore) replicated() {
	for f := p.flight.flushed(p.followers.flushed); f != nil; f = p.flight.flushed(p.followers.flushed) {
		if !f.own.all {
			f.owed, f.own.size = f.own.size, 0
		}
		f.each(func(w *answer) {
			if !w.all {
				p.release(w)
			}
		})
	}
	p.settle()
	for len(p.inheritors) > 0 && p.followers.enough >= p.inheritors[0].index {
		p.release(&p.inheritors[0].answer)
		p.inheritors[0] = inheritor{}
		p.inheritors = p.inheritors[1:]
	}
}

func (p *partitionCore) endInheritors(reason error) {
	for i := range p.inheritors {
		p.end(&p.inheritors[i].answer, reason)
	}
	p.inheritors = nil
}

// settle answers for the entries that are applied and on enough replicas, and is done with those that nobody waits for. Of
// those of a replica that has stepped down since, on how many they are is not known.
func (p *partitionCore) settle() {
	for {
		enough := p.followers.enough
		if !p.served() {
			enough = everything
		}
		f, ok := p.flight.pop(enough)
		if !ok {
			return
		}
		p.freed += f.owed
		sure := p.leads(&f) || p.followers.majority()
		f.each(func(w *answer) {
			if w.all && !sure {
				p.end(w, fmt.Errorf("%w: on how many replicas it is stored is not known", ErrCutOff))
				return
			}
			p.release(w)
		})
	}
}

// each visits the answers that wait for an entry.
func (f *inFlight) each(visit func(*answer)) {
	if f.command != nil {
		return
	}
	visit(&f.own)
	for i := range f.retries {
		visit(&f.retries[i])
	}
}

// release answers with success, unless the answer is out.
func (p *partitionCore) release(w *answer) {
	if w.done == nil {
		return
	}
	w.ack.LogStart = p.start()
	p.answers = append(p.answers, *w)
	w.done = nil
}

// end answers with an error, unless the answer is out.
func (p *partitionCore) end(w *answer, reason error) {
	if w.done == nil {
		return
	}
	w.ack = Ack{Base: -1, LogStart: p.start(), Err: reason}
	p.answers = append(p.answers, *w)
	w.done = nil
}

// abandon ends those who wait for entries that will not be applied, or not here.
func (p *partitionCore) abandon(entries []inFlight, reason error) {
	for i := range entries {
		p.freed += entries[i].owed
		entries[i].each(func(w *answer) { p.end(w, reason) })
	}
}

// verdict answers that a batch must not be stored. That makes a client give up, so in a group of several it is said only
// when a majority has confirmed, after the decision, that this replica leads: else another one may have stored what it
// knows nothing of.
func (p *partitionCore) verdict(s *Submission, ack Ack) {
	if !p.several() {
		p.refuse(s, ack)
		return
	}
	s.Done.Taken()
	w := answerTo(s, ack)
	p.confirm(func(err error) {
		if err != nil {
			p.end(&w, err)
			return
		}
		w.ack.Base, w.ack.LogStart = -1, p.start()
		p.answers = append(p.answers, w)
	})
}

// short says that too few replicas are in sync for a batch that waits for all of them.
func (p *partitionCore) short(now time.Time, acks int16) error {
	f := &p.followers
	if acks != -1 || len(f.inSync) >= f.minInSync {
		return nil
	}
	if p.look(now); len(f.inSync) >= f.minInSync {
		return nil
	}
	return fmt.Errorf("%w: %d of %d", ErrNotEnoughReplicas, len(f.inSync), f.minInSync)
}

// lead implements machine: all that was stored is applied, and nothing is on its way.
func (p *partitionCore) lead() {
	invariant.Check(p.flight.empty(), "entries of an earlier term are in flight when a leader begins to serve")
	p.head, p.next, p.starting = dedupe.NewHead(p.table), p.high, p.logStart
}

// follow implements machine. What Raft has accepted may still be committed, so it stays in flight.
func (p *partitionCore) follow() {
	p.head, p.next, p.starting = dedupe.NewHead(p.table), p.high, p.logStart
	p.settle()
	p.endInheritors(fmt.Errorf("%w: on how many replicas it is stored is not known", ErrCutOff))
	p.endDeletions(ErrCutOff)
}

// cutOff implements machine.
func (p *partitionCore) cutOff(from seglog.Index) {
	p.abandon(p.flight.cutOff(from), ErrCutOff)
}

// parse implements machine.
func (p *partitionCore) parse(body []byte) (any, error) { return dedupe.Parse(body) }

// install implements machine.
func (p *partitionCore) install(now time.Time, b raftlog.Base, parsed any) {
	p.table = parsed.(*dedupe.Table)
	p.high, p.logStart, p.retained = b.NextOffset, b.LogStart, p.log.Segments().FirstOffset()
	p.head, p.next, p.starting = dedupe.NewHead(p.table), p.high, p.logStart
	p.clockApplied, p.inherited, p.segmentClock = now, p.table.Clock(), -1
	p.startMoved = true
}
