package server

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// tick is how often the janitor looks. Connections note the time in ticks, which costs them no clock.
	tick = time.Second
	// stallMax is how long a client may take to send the next receivedMin bytes of a request that it has begun, or to
	// take the next sentMax bytes of an answer. While others wait for the memory that it holds, it is stallScarceMax.
	stallMax       = 30 * time.Second
	stallScarceMax = 3 * time.Second
	receivedMin    = 64 << 10
	sentMax        = 256 << 10
)

var (
	errIdle   = errors.New("nothing happened on the connection for connections.max.idle.ms")
	errSilent = errors.New("the client sent no more of a request that it had begun")
	errDeaf   = errors.New("the client did not take its answer")
)

// attention is what the janitor sees of a connection. Of any goroutine. A time in it is a tick; 0 means not at all.
type attention struct {
	idle       atomic.Int64           // since when the next request is waited for, or the last answer was written; idleOver
	unanswered atomic.Int64           // produces
	reading    atomic.Int64           // since when the rest of a request is waited for
	holds      atomic.Pointer[budget] // of which memory is held for it; nil: none
	writing    atomic.Int64           // since when the client does not take an answer
}

// idleOver: the janitor has closed the connection as idle.
const idleOver = -1

// answered says that n produces were answered just now.
func (a *attention) answered(n int, now int64) {
	// The order matters: the janitor looks at idle, then at unanswered, and then closes the connection only if idle is
	// what it was. So an answer of just now is seen in one or the other.
	if since := a.idle.Load(); since > 0 {
		a.idle.CompareAndSwap(since, now)
	}
	a.unanswered.Add(-int64(n))
}

// isIdle says whether nothing has happened for longer than ticks. When it is true, the reading goroutine will not begin
// another request.
func (a *attention) isIdle(now, ticks int64) bool {
	since := a.idle.Load()
	return since > 0 && now-since > ticks && a.unanswered.Load() == 0 && a.idle.CompareAndSwap(since, idleOver)
}

// janitor closes connections whose clients do nothing, or keep the server waiting in the middle of something.
type janitor struct {
	server      *Server
	connections *connections
}

// run looks at all connections once a tick, until ctx ends.
func (j *janitor) run(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			j.look(j.connections.ticks.Add(1))
		}
	}
}

// stalls are the connections that were cut for one reason in one look.
type stalls struct {
	reason      error
	connections int
	remote      string // of one of them
}

// look closes what has to be closed. What it says of clients is one line for each reason, however many they are.
func (j *janitor) look(now int64) {
	b := &j.server.budgets
	scarce := make(map[*budget]bool)
	for _, b := range []*budget{&b.produces, &b.begun, &b.large, &b.requests} {
		scarce[b] = b.scarce()
	}
	written := b.producing.scarce() || b.answers.scarce()
	silent, deaf := stalls{reason: errSilent}, stalls{reason: errDeaf}
	j.connections.each(func(c *connection) {
		switch {
		case j.server.config.ConnectionIdleMax > 0 && c.attention.isIdle(now, ticksOf(j.server.config.ConnectionIdleMax)):
			c.abort(quiet(errIdle))
		case stalled(c.attention.reading.Load(), now, scarce[c.attention.holds.Load()]):
			silent.cut(c)
		case stalled(c.attention.writing.Load(), now, written):
			deaf.cut(c)
		}
	})
	silent.report(j.server.log)
	deaf.report(j.server.log)
}

func (s *stalls) cut(c *connection) {
	s.connections++
	s.remote = c.nc.RemoteAddr().String()
	c.abort(quiet(s.reason))
}

func (s *stalls) report(log *slog.Logger) {
	if s.connections > 0 {
		log.Warn("connections cut", "reason", s.reason, "connections", s.connections, "one_remote", s.remote)
	}
}

// stalled says whether a wait since a tick is over.
func stalled(since, now int64, scarce bool) bool {
	limit := stallMax
	if scarce {
		limit = stallScarceMax
	}
	return since > 0 && now-since > ticksOf(limit)
}

// ticksOf is how many ticks last for d: a wait of more ticks than that was never shorter.
func ticksOf(d time.Duration) int64 {
	return int64((d + tick - 1) / tick)
}
