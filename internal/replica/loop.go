package replica

import (
	"context"
	"errors"
	"log/slog"
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

	concluded bool          // opened is closed
	opened    chan struct{} // closed when the replica became ready, or will not
	failure   error         // why it will not; written before opened is closed
	done      chan struct{}
}

func startLoop[S any](cfg Config, c *core, s shell[S]) *loop[S] {
	l := &loop[S]{
		core: c, shell: s, box: newMailbox[S](),
		host: cfg.Host, clock: cfg.Clock, logger: cfg.Logger,
		opened: make(chan struct{}), done: make(chan struct{}),
	}
	l.writer = cfg.Flushers.NewWriter(cfg.Log, l.box)
	l.keeper = newKeeper(cfg, c.stock, l.box.post, l.writer.Roll)
	return l
}

// run campaigns, and turns until the mailbox is closed and all that was accepted has ended. Then the replica is offline.
func (l *loop[S]) run() {
	defer close(l.done)
	l.check(l.core.campaign())
	var in mail[S]
	for more := true; more; in, more = l.box.take(in, l.core.settled()) {
		l.turn(&in)
		l.publish()
		l.follow()
	}
	if l.core.offline == nil {
		l.core.takeOffline(ErrStopped)
	}
	l.publish()
}

// turn takes in what the mailbox held, and hands on what the core has become ready to say. A segment is heard of before
// the responses that let its entries be applied.
func (l *loop[S]) turn(in *mail[S]) {
	l.failed(in.failure)
	if l.core.offline == nil {
		l.core.begun(in.rolled)
		l.check(l.core.step(in.responses))
	}
	now := l.clock.Now()
	for _, t := range in.tasks {
		t(now)
	}
	if len(in.submissions) > 0 {
		l.shell.admit(now, in.submissions)
	}
	if l.core.offline == nil {
		l.check(l.advance(now))
	}
}

// publish has the shell publish, and lets those go on who wait for the replica to open.
func (l *loop[S]) publish() {
	l.shell.publish()
	if !l.concluded && (l.core.ready() || l.core.offline != nil) {
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
	l.keeper.work(l.core.m.start())
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
	<-l.done
	l.writer.Close()
}
