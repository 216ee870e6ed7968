package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/seglog"
)

// Partition is a partition's replica on this node. Its methods are safe for concurrent use. One that could not be opened
// (OpenOffline) has a status and nothing else.
type Partition struct {
	core   *partitionCore // of the loop
	loop   *loop[*Submission]
	log    *seglog.Log
	host   Host
	clock  Clock
	agenda agenda

	mu        sync.Mutex
	status    Status    // without OldestIdle
	oldestUse time.Time // zero: nobody can be forgotten
	watchers  map[chan<- struct{}]struct{}

	reported time.Time // when reportResumed wrote last; of the loop
}

// OpenPartition starts the replica whose log was opened as cfg.Log. It is ready some time later: see Opened.
func OpenPartition(id seglog.ReplicaID, cfg Config) (*Partition, error) {
	core, err := newPartitionCore(id, cfg)
	if err != nil {
		return nil, err
	}
	p := &Partition{
		core: core, log: cfg.Log.Segments(), host: cfg.Host, clock: cfg.Clock,
		status:   core.status(),
		watchers: make(map[chan<- struct{}]struct{}),
	}
	p.loop = newLoop(cfg, core.core, p)
	if !p.loop.stepped(cfg) {
		go p.loop.run()
	}
	return p, nil
}

// Opened waits until the replica is ready, in a group of several until it runs; it returns why it will not, or the context's
// error.
func (p *Partition) Opened(ctx context.Context) error {
	if p.loop == nil {
		return p.offline()
	}
	return p.loop.wait(ctx)
}

// Submit hands a batch over. Submissions of one caller are decided in the order of its calls. Submit does not wait for
// the disk; it waits while the partition holds 32 MiB that it has not answered yet. When it returns an error the
// partition is closed, and neither Taken nor Done is called. A partition that could not be opened calls both before
// it returns.
func (p *Partition) Submit(s *Submission) error {
	if p.loop == nil {
		s.Done.Taken()
		s.Done.Done(Ack{Base: -1, LogStart: -1, Err: p.offline()})
		return nil
	}
	if !p.loop.box.put(s, s.held()) {
		return ErrStopped
	}
	return nil
}

// OpenOffline returns a partition that cannot be opened because of err: it answers every submission and every read with
// ErrOffline and err. term is the newest that is recorded of it, 0 when there is none. Its Close does nothing.
func OpenOffline(term batch.Term, err error) *Partition {
	return &Partition{
		status:   Status{Term: term, Offline: err},
		watchers: make(map[chan<- struct{}]struct{}),
	}
}

// offline is the error of a partition that cannot store or read, nil while it can.
func (p *Partition) offline() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status.refusal()
}

func (s *Status) refusal() error {
	if s.Offline == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrOffline, s.Offline)
}

// Status returns the state of the partition as last published. An answer is delivered after the status that it
// follows from is published.
func (p *Partition) Status() Status {
	p.mu.Lock()
	s, used := p.status, p.oldestUse
	p.mu.Unlock()
	if !used.IsZero() {
		s.OldestIdle = max(p.clock.Now().Sub(used), 0)
	}
	return s
}

// Read appends to dst whole batches below the high watermark, beginning with the one that holds from, of at most
// maxBytes together; with minOne the first is given even when it is larger. At the high watermark there is nothing. It
// fails with ErrNotLeader while the partition is not ready, with ErrOutOfRange when from lies outside the log, with
// ErrOffline when the partition cannot read, and with ErrDamaged when the disk gives back something else than was
// stored: dst is as it was then.
func (p *Partition) Read(dst []byte, from batch.Offset, maxBytes int, minOne bool) ([]byte, error) {
	ranges, err := p.locate(from, maxBytes, minOne)
	if err != nil {
		return dst, err
	}
	read, err := p.log.Read(dst, ranges)
	if err != nil {
		return dst, p.readError(from, err)
	}
	return read, nil
}

// Available returns how many bytes Read would append, the first batch counted even when it is larger than maxBytes. It
// fails as Read does.
func (p *Partition) Available(from batch.Offset, maxBytes int) (int, error) {
	ranges, err := p.locate(from, maxBytes, true)
	total := 0
	for _, r := range ranges {
		total += r.Length
	}
	return total, err
}

func (p *Partition) locate(from batch.Offset, maxBytes int, minOne bool) ([]seglog.Range, error) {
	p.mu.Lock()
	s := p.status
	p.mu.Unlock()
	switch {
	case s.Offline != nil:
		return nil, s.refusal()
	case !s.Ready:
		return nil, ErrNotLeader
	case from < s.LogStart || from > s.NextOffset:
		return nil, ErrOutOfRange
	case from >= s.HighWatermark:
		return nil, nil
	}
	ranges, err := p.log.Locate(from, s.HighWatermark, maxBytes, minOne, nil)
	if err != nil {
		return nil, p.readError(from, err)
	}
	return ranges, nil
}

// readError says what a failed read means. A segment may have been removed between the look at the status and the read.
func (p *Partition) readError(from batch.Offset, err error) error {
	if errors.Is(err, seglog.ErrOutOfRange) {
		if from < p.Status().LogStart {
			return ErrOutOfRange
		}
		return ErrNotLeader // a snapshot has taken the place of the log, so another replica leads
	}
	if _, damaged := errors.AsType[*seglog.DamageError](err); !damaged {
		return err
	}
	p.host.Damaged(err)
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

// Watch has wake receive a value, if it can without waiting, after each change of Status that a waiting read may care
// about: high watermark, log start, term, readiness. Unwatch ends it.
func (p *Partition) Watch(wake chan<- struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watchers[wake] = struct{}{}
}

// Unwatch ends what Watch began.
func (p *Partition) Unwatch(wake chan<- struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.watchers, wake)
}

// Close lets nothing further in, waits until all that was accepted is stored and answered, and closes the log. On a disk
// that is full it does not wait for room: what was accepted and is not stored is answered with ErrStopped. In a group of
// several it does not wait for the others either. The flushers must still run, or, when it is Stepped, have carried out
// what was submitted to them.
func (p *Partition) Close() error {
	if p.loop == nil {
		return nil
	}
	p.loop.close()
	p.core.uncount()
	return p.core.log.Close()
}

// admit implements shell.
func (p *Partition) admit(now time.Time, submissions []*Submission) { p.core.produce(now, submissions) }

// publish implements shell: first the status, then the answers that follow from it.
func (p *Partition) publish() {
	p.core.count()
	p.reportResumed()
	p.core.followStart()
	p.announce(p.core.status(), p.core.oldestUse())
	released := p.core.freed
	p.core.freed = 0
	for i := range p.core.answers {
		a := &p.core.answers[i]
		released += a.size
		a.done.Done(a.ack)
		*a = answer{}
	}
	p.core.answers = p.core.answers[:0]
	if released > 0 {
		p.loop.box.release(released)
	}
	for _, end := range p.core.ended {
		end()
	}
	clear(p.core.ended)
	p.core.ended = p.core.ended[:0]
}

// reportInterval is how often it is logged, at most, that producers began in the middle.
const reportInterval = time.Minute

// reportResumed logs how many producers began in the middle since it was logged last.
func (p *Partition) reportResumed() {
	if p.core.resumed == 0 {
		return
	}
	now := p.clock.Now()
	if !p.reported.IsZero() && now.Sub(p.reported) < reportInterval {
		return
	}
	p.loop.logger.Info("producers that may have been forgotten here began in the middle of their sequences", "producers", p.core.resumed)
	p.reported, p.core.resumed = now, 0
}

func (p *Partition) announce(now Status, oldestUse time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.status
	p.status, p.oldestUse = now, oldestUse
	if before.HighWatermark == now.HighWatermark && before.LogStart == now.LogStart &&
		before.Term == now.Term && before.Ready == now.Ready {
		return
	}
	for wake := range p.watchers {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}
