package replica

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/oncemq/oncemq/internal/raftlog"
)

// Clock tells the time. Its readings carry a monotonic part, as those of time.Now do.
type Clock interface{ Now() time.Time }

// Config is what a replica needs from its node.
type Config struct {
	// Log is the replica's log; the replica closes it when it is closed.
	Log *raftlog.Log
	// Flushers are closed by the node after the last replica has ended.
	Flushers *raftlog.Flushers
	Clock    Clock
	Logger   *slog.Logger
	// Settings are shared by all replicas and do not change.
	Settings *Settings
	Host     Host
	// Peers is nil for a group of one replica.
	Peers Peers
	// MinInSync is min.insync.replicas of a partition; what is not more than Raft's majority asks for nothing.
	MinInSync int
	// Preferred: of a group of several, this is the replica that is to lead when nobody does yet.
	Preferred bool
	// After has f called once, on any goroutine, when d has passed, as time.AfterFunc does. When it is nil, what a group of
	// several plans is done at the next Tick.
	After func(d time.Duration, f func())
	// Stepped is nil but for a simulation: then the replica has no goroutine of its own. It is given the function that makes
	// one turn with what waits, and reports whether there was anything.
	Stepped func(step func() bool)
}

// shell is what a loop does with its core on behalf of the kind of replica.
type shell[S any] interface {
	// admit takes submissions into the core.
	admit(now time.Time, submissions []S)
	// publish shows the outside what the turn has changed, then delivers its answers.
	publish()
}

// loop is the one goroutine of a replica.
type loop[S any] struct {
	core   *core
	shell  shell[S]
	box    *mailbox[S]
	writer *raftlog.Writer
	keeper *keeper
	host   Host
	clock  Clock
	logger *slog.Logger

	peers     Peers
	after     func(d time.Duration, f func())
	preferred bool
	armed     time.Time  // the time for which a wake-up was asked for last
	waiting   []S        // submissions that wait for the end of a hand-over of leadership
	shown     Leadership // as the host was told last
	closing   func()     // of a replica that is stepped: makes the turns that are left
	used      mail[S]    // of the turn before

	leadership atomic.Pointer[Leadership] // as shown

	concluded bool          // opened is closed
	opened    chan struct{} // closed when the replica became ready, or will not
	failure   error         // why it will not; written before opened is closed
	done      chan struct{}
}

func newLoop[S any](cfg Config, c *core, s shell[S]) *loop[S] {
	l := &loop[S]{
		core: c, shell: s, box: newMailbox[S](),
		host: cfg.Host, clock: cfg.Clock, logger: cfg.Logger,
		peers: cfg.Peers, after: cfg.After, preferred: cfg.Preferred,
		opened: make(chan struct{}), done: make(chan struct{}),
	}
	l.writer = cfg.Flushers.NewWriter(cfg.Log, l.box)
	l.keeper = newKeeper(cfg, c.stock, l.box.post, l.writer.Roll)
	l.shown = c.leadership()
	first := l.shown
	l.leadership.Store(&first)
	return l
}

// stepped hands the turns to whoever wants to step this replica; false: nobody does, and run is to be called.
func (l *loop[S]) stepped(cfg Config) bool {
	if cfg.Stepped == nil {
		return false
	}
	step := l.steps()
	l.closing = func() {
		for step() {
		}
		l.finish()
	}
	cfg.Stepped(step)
	return true
}

// run turns until the mailbox is closed and all that was accepted has ended. Then the replica is offline.
func (l *loop[S]) run() {
	l.check(l.core.open(l.clock.Now(), l.preferred))
	for more := true; more; l.used, more = l.box.take(l.used, l.core.settled()) {
		l.work(&l.used)
	}
	l.finish()
}

// steps returns what makes one turn, if there is anything to do.
func (l *loop[S]) steps() func() bool {
	begun := false
	return func() (some bool) {
		if !begun {
			begun = true
			l.check(l.core.open(l.clock.Now(), l.preferred))
			l.work(&l.used)
			return true
		}
		if l.used, some, _ = l.box.takeNow(l.used, l.core.settled()); some {
			l.work(&l.used)
		}
		return some
	}
}

func (l *loop[S]) work(in *mail[S]) {
	l.turn(in)
	l.publish()
	l.follow()
}

// finish ends the loop.
func (l *loop[S]) finish() {
	if l.core.offline == nil {
		l.core.takeOffline(ErrStopped)
	}
	l.resume(l.clock.Now())
	l.publish()
	close(l.done)
}

// turn takes in what the mailbox held, and hands on what the core has become ready to say. A segment is heard of before
// the responses that let its entries be applied. Messages of other replicas come before what is proposed: they may
// say that this one does not lead any more.
func (l *loop[S]) turn(in *mail[S]) {
	if l.failed(in.failure); raftlog.IsDamage(in.failure) {
		l.host.Damaged(in.failure)
	}
	now := l.clock.Now()
	if l.core.offline == nil {
		l.core.begun(in.rolled)
		l.check(l.core.step(now, in.responses))
	}
	if l.core.offline == nil && l.core.several() {
		l.check(l.hear(now, in))
	}
	for _, t := range in.tasks {
		t(now)
	}
	l.admit(now, in.submissions)
	if l.core.offline == nil {
		l.check(l.advance(now))
	}
	if len(l.waiting) > 0 && !l.core.transferring(now) { // the hand-over has ended
		l.resume(now)
		if l.core.offline == nil {
			l.check(l.advance(now))
		}
	}
}

// hear takes in what other replicas say, and the time that has passed.
func (l *loop[S]) hear(now time.Time, in *mail[S]) error {
	if err := l.core.receive(now, in.received); err != nil {
		return err
	}
	if in.ticked {
		if err := l.core.tick(now); err != nil {
			return err
		}
	}
	return l.core.campaignDue(now)
}

// admit takes submissions into the core. While leadership is handed over they wait, for a while: the new leader is going
// to be asked soon.
func (l *loop[S]) admit(now time.Time, submissions []S) {
	if l.core.transferring(now) {
		l.waiting = append(l.waiting, submissions...)
		return
	}
	l.resume(now)
	if len(submissions) > 0 {
		l.shell.admit(now, submissions)
	}
}

// resume admits the submissions that wait.
func (l *loop[S]) resume(now time.Time) {
	if len(l.waiting) > 0 {
		l.shell.admit(now, l.waiting)
		l.waiting = nil
	}
}

// publish has the shell publish, tells the host who leads, and lets those go on who wait for the replica to open, or for
// what the turn has found out.
func (l *loop[S]) publish() {
	now := l.core.leadership()
	told := !now.equal(l.shown)
	if told {
		l.shown = now
		l.leadership.Store(&now)
	}
	l.shell.publish()
	if told {
		l.host.Led(now)
	}
	for _, f := range l.core.after {
		f()
	}
	clear(l.core.after)
	l.core.after = l.core.after[:0]
	if !l.concluded && (l.core.ready() || l.core.offline != nil || l.core.several()) {
		l.concluded, l.failure = true, l.core.offline
		close(l.opened)
	}
}

// follow begins what the turn has made due. It comes after publish: a segment may go only when the log start that lets
// it go was published.
func (l *loop[S]) follow() {
	if l.core.offline != nil {
		return
	}
	for _, t := range l.core.due {
		l.box.post(t)
	}
	clear(l.core.due)
	l.core.due = l.core.due[:0]
	if l.core.rollDue() {
		l.writer.Roll()
	}
	l.keeper.sweep = l.keeper.sweep || l.core.sweepWanted
	l.core.sweepWanted = false
	if !l.core.several() {
		l.keeper.work(l.core.m.start(), everything)
		return
	}
	l.keeper.work(l.core.m.start(), l.core.needed(l.clock.Now()))
	l.arm()
}

// arm asks for a wake-up when the core has something to do at a time of its own.
func (l *loop[S]) arm() {
	at := l.core.election.campaignAt
	if l.after == nil || at.IsZero() || at.Equal(l.armed) {
		return
	}
	l.armed = at
	l.after(at.Sub(l.clock.Now()), l.box.wake)
}

// wait waits until the replica is ready; it returns why it will not be, or the context's error.
func (l *loop[S]) wait(ctx context.Context) error {
	select {
	case <-l.opened:
		return l.failure
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// advance hands on what the core has become ready to say.
func (l *loop[S]) advance(now time.Time) error {
	store, err := l.core.advance(now)
	if len(l.core.out) > 0 && l.peers != nil {
		l.peers.Send(l.core.stock.frame.Group, l.core.out)
	}
	l.core.out = nil
	for _, m := range store {
		l.writer.Submit(m)
	}
	return err
}

// check takes the replica offline when it cannot go on, and tells the node when that is because of what stands in the log.
func (l *loop[S]) check(err error) {
	if err == nil || l.core.offline != nil {
		return
	}
	l.failed(err)
	if !errors.Is(err, ErrNewerLog) {
		l.host.Damaged(err)
	}
}

// failed takes the replica offline because of the flushers, which have told the node.
func (l *loop[S]) failed(err error) {
	if err == nil || l.core.offline != nil {
		return
	}
	l.logger.Error("replica goes offline", "error", err)
	l.core.takeOffline(err)
}

// close waits until all that was accepted has been answered and nothing is on its way to the log any more. It does not wait
// for room on the disk: what was accepted and found none ends with ErrStopped.
func (l *loop[S]) close() {
	l.box.close()
	l.writer.BeginClose()
	if l.closing != nil {
		l.closing()
	}
	<-l.done
	l.writer.Close()
}
