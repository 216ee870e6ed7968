package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemq/oncemq/internal/replica"
)

// What creates or deletes something waits for it as long as the request says, but no longer than changeTimeoutMax. Of the
// things that one request deletes, changesAtOnce are waited for at a time.
const (
	changeTimeoutMax = 5 * time.Minute
	changesAtOnce    = 64
)

// within returns the context of a request that changes something and may take so long. Kafka would begin and report a
// timeout at once when it names no time; here it is over sooner than the client can ask again.
func (s *Server) within(c *call, timeoutMillis int32) (context.Context, context.CancelFunc) {
	timeout := time.Duration(timeoutMillis) * time.Millisecond
	if timeout <= 0 {
		timeout = s.config.AutoCreateTimeout
	}
	ctx, cancel := context.WithTimeout(c.ctx, min(timeout, changeTimeoutMax))
	return untilStopped(ctx, cancel, c.server.changes)
}

// untilStopped has a context end with stop as well.
func untilStopped(ctx context.Context, cancel context.CancelFunc, stop context.Context) (context.Context, context.CancelFunc) {
	release := context.AfterFunc(stop, cancel)
	return ctx, func() {
		release()
		cancel()
	}
}

// changeCode is the code of a change of the metadata that failed. When the node stops, or the metadata's leader was
// deposed, it may be made nevertheless, which is what a timeout says.
func changeCode(err error) code {
	if errors.Is(err, replica.ErrStopped) || errors.Is(err, replica.ErrCutOff) {
		return codeRequestTimedOut
	}
	code, _ := codeOf(err)
	if code == codeNotLeaderOrFollower {
		return codeNotController // the leader that is missing is the metadata's
	}
	return code
}

// each calls change for 0 to n-1, some at a time, so that one that has to wait does not use up the time of the others.
func each(n int, change func(i int)) {
	var group sync.WaitGroup
	var begun atomic.Int64
	for range min(n, changesAtOnce) {
		group.Go(func() {
			for i := int(begun.Add(1)) - 1; i < n; i = int(begun.Add(1)) - 1 {
				change(i)
			}
		})
	}
	group.Wait()
}
