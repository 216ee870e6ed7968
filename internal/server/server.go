package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/wire"
)

// Server answers Kafka requests for one node. It is made by New and holds no connection until Serve.
type Server struct {
	config  Config
	node    Node
	self    []int32 // this node
	log     *slog.Logger
	now     func() time.Time
	apis    []api
	frames  frames
	calls   sync.Pool // of *produceCall
	budgets budgets
	// changes ends, by endChanges, when nothing may be waited for any more that a request changes.
	changes    context.Context
	endChanges context.CancelFunc
	// What CreateTopics accepts and says of each topic.
	topicConfigs    topicConfigs
	topicConfigRows []kmsg.CreateTopicsResponseTopicConfig
	// For the log: partitions that cannot be read or changed, connections that are refused, and those that are closed
	// because of what they sent.
	storage, refusals, closings seldom
}

// New makes a server. It fails when a setting is out of its bounds. now is the clock.
func New(config Config, node Node, log *slog.Logger, now func() time.Time) (*Server, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{config: config, node: node, self: []int32{node.NodeID()}, log: log, now: now, apis: apis, topicConfigs: newTopicConfigs(config.TopicDefaults)}
	s.changes, s.endChanges = context.WithCancel(context.Background())
	s.storage.most, s.refusals.most, s.closings.most = 1, 1, 100
	s.topicConfigRows = s.topicConfigs.rows()
	s.budgets.divide(config.QueuedRequestBytesMax)
	return s, nil
}

// BeginStop ends the waits of requests that change something, now and from now on: they are answered with a timeout, and
// what they asked for may happen yet. It may be called while Serve runs, before its context ends.
func (s *Server) BeginStop() { s.endChanges() }

// api finds the row of an API in the dispatch table.
func (s *Server) api(key wire.Key) (api, bool) {
	for _, a := range s.apis {
		if a.key == key {
			return a, true
		}
	}
	return api{}, false
}

// storageFailed leaves a line in the log about a partition that could not be read or changed, but for what the partition
// has told already: clients ask again and again, and each line would say the same.
func (s *Server) storageFailed(what string, topic *meta.Topic, index int32, offset batch.Offset, err error) {
	if _, known := codeOf(err); known || errors.Is(err, replica.ErrStopped) {
		return
	}
	if unsaid, now := s.storage.now(s.now()); now {
		s.log.Error(what, "topic", topic.Name, "partition", index, "offset", int64(offset), "err", err, "similar", unsaid)
	}
}

// seldomInterval is how long what is logged again and again is counted together.
const seldomInterval = 10 * time.Second

// seldom keeps what clients repeat from flooding the log, which may be on the same disk as everything else.
type seldom struct {
	most int // lines in each interval

	mu           sync.Mutex
	began        time.Time // the interval
	said, unsaid int
}

// now tells whether to log it now, and how often it was not logged since the last time.
func (s *seldom) now(now time.Time) (unsaid int, log bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.began) >= seldomInterval {
		s.began, s.said = now, 0
	}
	if s.said == s.most {
		s.unsaid++
		return 0, false
	}
	s.said++
	unsaid, s.unsaid = s.unsaid, 0
	return unsaid, true
}

// Accepting pauses after a failure, such as a lack of file descriptors, for a time that doubles between these.
const (
	acceptPauseMin = 5 * time.Millisecond
	acceptPauseMax = time.Second
)

// Serve accepts connections from l until ctx ends, and then stops: it closes l, lets the requests in flight finish,
// and closes each connection when its answers are written, all of them after Config.StopTimeout. Produces are in
// flight until their partitions answer, so the partitions must be stopped after Serve has returned. The error is that
// of a listener which failed for good; connections that had to be cut are a line in the log.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	// Handlers may go on after ctx has ended, until the stop runs out of time.
	cutting, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	stop := context.AfterFunc(ctx, func() { s.BeginStop(); l.Close() })
	defer stop()
	group := newConnections()
	var watching sync.WaitGroup
	watching.Go(func() { (&janitor{s, group}).run(ctx) })
	err := s.accept(ctx, l, func(nc net.Conn) {
		if group.start(newConnection(s, group, nc, cutting, ctx.Done()), s.config.MaxConnections) {
			return
		}
		nc.Close()
		if unsaid, now := s.refusals.now(s.now()); now {
			s.log.Warn("connections refused: max.connections are open", "max.connections", s.config.MaxConnections,
				"refused", unsaid+1, "remote", nc.RemoteAddr().String())
		}
	})
	s.BeginStop()
	end()
	watching.Wait()
	if wereCut, waiting := group.stop(s.config.StopTimeout, cut); wereCut > 0 {
		s.log.Warn("connections cut: their requests had not ended, or their clients did not read the answers",
			"connections", wereCut, "after", s.config.StopTimeout, "waiting_for_a_partition", waiting)
	}
	return err
}

// accept hands connections to serve until ctx ends or the listener fails for good.
func (s *Server) accept(ctx context.Context, l net.Listener, serve func(net.Conn)) error {
	var pause time.Duration
	for {
		nc, err := l.Accept()
		switch {
		case err == nil && ctx.Err() == nil:
			pause = 0
			serve(nc)
		case ctx.Err() != nil:
			if err == nil {
				nc.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept connection: %w", err)
		default:
			pause = min(max(2*pause, acceptPauseMin), acceptPauseMax)
			s.log.Error("accept connection failed", "err", err, "pause", pause)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
}
