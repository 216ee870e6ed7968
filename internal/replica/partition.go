package replica

import (
	"fmt"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
)

// partitionCore is the pure core of a partition: it decides, proposes and applies.
type partitionCore struct {
	*core
	settings *Settings
	host     Host

	// table is a function of the committed entries alone; head is table plus own proposals.
	table *dedupe.Table
	head  *dedupe.Head
	// high is the offset after the last applied batch, next the one after the last proposed.
	high, next batch.Offset
	// logStart is that of the newest log start entry that is applied, starting of the newest that is proposed: the
	// two differ while one is on its way. retained is the first offset that the log held when it was opened.
	logStart, starting, retained batch.Offset
	// clockApplied is when the table got its clock here, from an entry or from the base snapshot.
	clockApplied time.Time
	// inherited is the log time of the newest clock entry that an earlier leader has proposed, -1 without one.
	inherited int64
	// segmentClock is the log time of the first applied batch of the segment that entries are applied from, -1 while
	// it has none.
	segmentClock int64
	// now is the time of the last turn that brought submissions.
	now time.Time
	// counted is how many producers the node was told of.
	counted int

	flight     flight
	inheritors []inheritor // ascending
	// deletions wait for the log start to move: one for each call of DeleteRecords that has not returned, and those that
	// have given up since the newest came.
	deletions  []deletion
	beginnings beginnings

	entries []*pb.Entry   // of the proposal in the making; flight has staged one for each
	staged  []*Submission // those of the batches among them

	// What the turn has ended, for publish.
	answers    []answer
	freed      int // bytes that the mailbox need not hold any more, beside those of answers
	ended      []func()
	startMoved bool
	// resumed counts producers that began in the middle, because they may have been forgotten; the shell reports them.
	resumed int
}

func newPartitionCore(id seglog.ReplicaID, cfg Config) (*partitionCore, error) {
	base := cfg.Log.Base()
	table, err := dedupe.Parse(base.Body)
	if err != nil {
		return nil, fmt.Errorf("read base snapshot at index %d: %w", base.Index, err)
	}
	segments := cfg.Log.Segments()
	p := &partitionCore{
		settings:     cfg.Settings,
		host:         cfg.Host,
		table:        table,
		head:         dedupe.NewHead(table),
		high:         base.NextOffset,
		next:         segments.NextOffset(),
		logStart:     base.LogStart,
		starting:     base.LogStart,
		retained:     segments.FirstOffset(),
		clockApplied: cfg.Clock.Now(),
		inherited:    table.Clock(),
		segmentClock: -1,
	}
	if p.core, err = newCore(id, cfg.Log, cfg.Logger, p); err != nil {
		return nil, err
	}
	p.followers.demand(cfg.MinInSync, cfg.Settings.LagMax)
	if p.several() { // what is not applied may be cut off
		p.next = p.high
	}
	return p, nil
}

// produce decides each submission in order and proposes all that are to be stored at once. Answers that need not
// wait are in p.answers afterwards.
func (p *partitionCore) produce(now time.Time, subs []*Submission) {
	full := p.host.DiskFull()
	p.now = now
	for _, s := range subs {
		p.admit(now, s, full)
	}
	p.send()
}

// admit decides one submission: it is answered, joins the wait for its original, or is staged for the proposal. A retry
// is recognised before all that may have changed since the original was stored. On a full disk nothing else is said of a
// batch, true as it may be: a client that hears of a full disk for one batch and of a gap for those behind it would
// take the gap for a loss.
func (p *partitionCore) admit(now time.Time, s *Submission, full bool) {
	stamp := s.Header.Stamp()
	reason := p.refusal()
	if reason != nil && !p.served() { // what the head would say may be wrong
		p.beginnings.note(stamp, now)
		p.refuse(s, Ack{Err: reason})
		return
	}
	d := p.head.Decide(stamp)
	if d.AddsProducer() {
		p.beginnings.judge(&d, stamp, now)
	}
	switch {
	case d.Verdict == dedupe.Duplicate:
		p.repeat(s, d)
		return
	case reason != nil: // offline
	case full:
		reason = ErrDiskFull
	default:
		reason = p.short(now, s.Acks)
	}
	switch {
	case reason != nil:
	case s.Header.Size > p.settings.MaxMessageBytes:
		if d.AddsProducer() {
			p.beginnings.note(stamp, now)
		}
		p.verdict(s, Ack{Err: ErrTooLarge})
		return
	case d.Verdict != dedupe.Append:
		p.verdict(s, Ack{Decision: d, Err: ErrRefused})
		return
	case d.AddsProducer():
		reason = p.makeRoom(now)
	}
	if reason != nil {
		if d.AddsProducer() {
			p.beginnings.note(stamp, now)
		}
		p.refuse(s, Ack{Err: reason})
		return
	}
	if d.Reason == dedupe.FirstContactForgotten {
		p.resumed++
	}
	p.stageBatch(now, s, stamp)
}

// repeat answers a retry, or has it wait for its original. Offline, whether an original that is not applied is stored
// will not be known here; one that is applied is.
func (p *partitionCore) repeat(s *Submission, d dedupe.Decision) {
	if p.offline != nil && (d.Base >= p.high || !p.followers.majority()) {
		p.refuse(s, Ack{Err: fmt.Errorf("%w: %w", ErrStopped, p.offline)})
		return
	}
	s.Done.Taken()
	p.wait(d.Base, answerTo(s, Ack{Base: d.Base, Decision: d}))
}

func (p *partitionCore) refuse(s *Submission, ack Ack) {
	s.Done.Taken()
	ack.Base, ack.LogStart = -1, p.start()
	p.answers = append(p.answers, answerTo(s, ack))
}

// stageBatch gives the batch its place in the log.
func (p *partitionCore) stageBatch(now time.Time, s *Submission, stamp batch.Stamp) {
	p.stageClock(now)
	p.beginnings.drop(stamp)
	base := p.next
	batch.SetPlace(s.Batch, base, p.term)
	p.staged = append(p.staged, s)
	p.stage(s.Batch, inFlight{
		base: base, next: base + batch.Offset(s.Header.LastOffsetDelta) + 1, stamp: stamp,
		own: answerTo(s, Ack{Base: base}),
	})
}

func (p *partitionCore) stageCommand(payload []byte, c command) {
	p.stage(raftlog.EncodeCommand(c.kind, payload), inFlight{base: p.next, next: p.next, command: &c})
}

func (p *partitionCore) stage(data []byte, f inFlight) {
	p.entries = append(p.entries, &pb.Entry{Data: data})
	p.flight.stage(f)
	p.note(&f)
}

// note counts an entry in that is on its way.
func (p *partitionCore) note(f *inFlight) {
	p.next = f.next
	switch c := f.command; {
	case c == nil:
		p.head.Record(f.stamp, f.base)
	case c.kind == seglog.KindClock:
		p.head.SetClock(c.clock)
	case c.kind == seglog.KindLogStart:
		p.starting = c.logStart
	default:
		p.head.Forget(c.forget)
	}
}

// send proposes all that is staged.
func (p *partitionCore) send() {
	if len(p.entries) == 0 {
		return
	}
	first, err := p.propose(p.entries)
	for _, s := range p.staged {
		s.Done.Taken()
	}
	if err == nil {
		p.flight.proposed(first, p.term)
	} else {
		p.withdraw(fmt.Errorf("%w: %w", ErrNotLeader, err))
	}
	clear(p.entries)
	clear(p.staged)
	p.entries, p.staged = p.entries[:0], p.staged[:0]
}

// withdraw takes back all that was staged, after Raft has refused the whole proposal: nothing of it was accepted. The head
// cannot take proposals back, so it is made anew from the table and those that are still on their way.
func (p *partitionCore) withdraw(reason error) {
	withdrawn := p.flight.withdraw()
	p.abandon(withdrawn, reason)
	for _, f := range withdrawn {
		switch {
		case f.command == nil && p.several(): // while leadership is handed over, which may fail
			p.beginnings.note(f.stamp, p.now)
		case f.command == nil:
		case f.command.kind == seglog.KindLogStart:
			p.endDeletions(reason)
		}
	}
	p.head, p.next, p.starting = dedupe.NewHead(p.table), p.high, p.logStart
	p.flight.eachAhead(p.note)
}

// fail implements machine: what Raft has accepted may be stored or not, so nobody is told either.
func (p *partitionCore) fail(err error) {
	reason := fmt.Errorf("%w: %w", ErrStopped, err)
	p.abandon(p.flight.queue[p.flight.first:], reason)
	p.flight = flight{}
	p.endInheritors(reason)
	p.endDeletions(reason)
}

func (p *partitionCore) status() Status {
	s := Status{
		Ready: p.ready(), Term: p.term,
		LogStart: p.start(), HighWatermark: p.high, NextOffset: p.next,
		Producers: p.head.Producers(),
		Leader:    p.leader,
	}
	if p.firstOwn > 0 {
		s.InSync = p.followers.inSync
	}
	if p.offline != ErrStopped {
		s.Offline = p.offline
	}
	return s
}
