// Package stage is what the campaigns share that end, start and fill one broker under load: the broker itself, what it
// broke, the consumer that reads along, and the judgement at the end. It is test support; the broker does not import it.
//
//  1. A broker that is started again has the data directory and the addresses of the one before.
//  2. After a violation the log is still read and judged: that tells more than the first symptom.
//  3. Whenever a run fails, its data directory is kept.
//
// Records take this path: Consumer (while they are written) and ReadBack (at the end) -> Partition.History -> Judge.
package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

const (
	// readyWithin bounds a start, and a stop in good order.
	readyWithin = 60 * time.Second
	// violationsMax bounds the violations that are kept as text.
	violationsMax = 10
)

// Error codes that may be answered to a right request.
const (
	CodeOffsetOutOfRange   = 1
	CodeNotLeader          = 6
	CodeTimedOut           = 7
	CodeCoordinatorLoading = 14
	CodeNotEnoughReplicas  = 19
	CodeCutOff             = 20 // NOT_ENOUGH_REPLICAS_AFTER_APPEND: it may be stored or not
	CodeStorage            = 56
)

// ErrViolated is what Broken wraps.
var ErrViolated = errors.New("a promise was broken")

// Partition is one partition under load, and what is known of it.
type Partition struct {
	Topic   rawkafka.Topic
	Index   int32
	History *history.History
	// Parse finds the value in a record, nil for history.ParsePayload.
	Parse func(record []byte) (history.Value, error)
	// Asked is the offset up to which records were asked to be deleted last, before the request left; Kept the one of
	// the last answer. The log starts between the two.
	Asked, Kept atomic.Int64
}

// String is TOPIC/INDEX.
func (p *Partition) String() string { return fmt.Sprintf("%s/%d", p.Topic.Name, p.Index) }

// Stage is a broker under load. Its fields belong to one goroutine, the controller, but for Partitions, which all may read
// when it has filled it. All may call Violate, Broken, Violated, Dial and Reconnect.
type Stage struct {
	Out        io.Writer
	Binary     string
	Data       string             // directory
	Broker     *testbroker.Broker // of the last start
	Partitions []*Partition

	answerWithin, retryEvery time.Duration
	addr, http               string // the same in every generation

	violated   chan struct{} // closed at the first violation
	mu         sync.Mutex
	violations []string
}

// New returns a stage without a broker. answerWithin bounds the wait for one answer, retryEvery is the pause before a
// broker that cannot be reached is tried again.
func New(out io.Writer, answerWithin, retryEvery time.Duration) *Stage {
	return &Stage{Out: out, answerWithin: answerWithin, retryEvery: retryEvery, violated: make(chan struct{})}
}

// Violate notes that the broker broke a promise.
func (s *Stage) Violate(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.violations) == 0 {
		close(s.violated)
	}
	if len(s.violations) < violationsMax {
		s.violations = append(s.violations, fmt.Sprintf(format, args...))
	}
}

// Violated is closed at the first violation.
func (s *Stage) Violated() <-chan struct{} { return s.violated }

// Broken returns the violations as an error, nil when there are none.
func (s *Stage) Broken() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.violations) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n  %s", ErrViolated, strings.Join(s.violations, "\n  "))
}

// Play runs the load and, unless it could not go on for another reason than a violation, the verdict.
func (s *Stage) Play(ctx context.Context, load, verdict func(context.Context) error) error {
	if err := load(ctx); err != nil && !errors.Is(err, ErrViolated) {
		return errors.Join(err, s.Broken())
	}
	if err := verdict(ctx); err != nil {
		return errors.Join(err, s.Broken())
	}
	return s.Broken()
}

// End ends the broker and removes the data directory, or keeps it when err is not nil. One on a file system that ends with
// this process is copied into the directory keepIn; "" leaves it where it is.
func (s *Stage) End(err error, keepIn string) error {
	if s.Broker != nil {
		err = errors.Join(err, s.Broker.Kill())
	}
	if err == nil {
		return os.RemoveAll(s.Data)
	}
	kept := s.Data
	if keepIn != "" {
		kept = filepath.Join(keepIn, "kept")
		if failed := os.CopyFS(kept, os.DirFS(s.Data)); failed != nil {
			return errors.Join(err, fmt.Errorf("keep the data directory: %w", failed))
		}
	}
	fmt.Fprintf(s.Out, "data directory kept: %s\n", kept)
	return err
}

// Start starts the broker with these settings, and does not wait until it is ready.
func (s *Stage) Start(settings []string) error {
	b, err := testbroker.Start(testbroker.Config{Binary: s.Binary, Data: s.Data, Kafka: s.addr, HTTP: s.http, Set: settings})
	if err != nil {
		return err
	}
	s.Broker = b
	if s.addr == "" { // the first start: nobody else knows the stage yet
		s.addr, s.http = b.Addr(), b.Config().HTTP
	}
	return nil
}

// AwaitReady waits until the broker is ready and returns how long after its start that was.
func (s *Stage) AwaitReady(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	return s.Broker.AwaitReady(ctx)
}

// Stop ends the broker with SIGTERM. Another status than 0 is a violation.
func (s *Stage) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	code, err := s.Broker.Terminate(ctx)
	if err != nil {
		return err
	}
	if code != 0 {
		s.Violate("SIGTERM ended the broker with status %d:\n%s", code, s.Broker.Output())
	}
	return nil
}

// Addr is the HOST:PORT for Kafka clients, of every generation; "" before the first.
func (s *Stage) Addr() string { return s.addr }

// Dial opens a connection that ends with hangUp, or with ctx.
func (s *Stage) Dial(ctx context.Context) (conn *rawkafka.Client, hangUp func(), err error) {
	return DialTo(ctx, s.addr, s.answerWithin)
}

// DialTo opens a connection to a broker that ends with hangUp, or with ctx. within bounds the wait for it and for each answer.
func DialTo(ctx context.Context, addr string, within time.Duration) (conn *rawkafka.Client, hangUp func(), err error) {
	conn, err = rawkafka.Dial(addr, rawkafka.Options{Timeout: within})
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return conn, func() {
		stop()
		_ = conn.Close()
	}, nil
}

// CreateTopic creates a topic and takes its partitions up.
func (s *Stage) CreateTopic(admin *rawkafka.Client, name string, partitions int) error {
	topic, err := admin.CreateTopic(name, int32(partitions))
	if err == nil {
		s.TakeUp(topic, partitions)
	}
	return err
}

// TakeUp adds the partitions of a topic that was created.
func (s *Stage) TakeUp(topic rawkafka.Topic, partitions int) {
	for index := range int32(partitions) {
		s.Partitions = append(s.Partitions, &Partition{Topic: topic, Index: index, History: history.New()})
	}
}

// Reconnect gives work one connection after the other, until one comes back without an error, or ctx ends. The error says
// only why the connection ended.
func (s *Stage) Reconnect(ctx context.Context, work func(context.Context, *rawkafka.Client) error) {
	for ctx.Err() == nil {
		conn, hangUp, err := s.Dial(ctx)
		if err == nil {
			err = work(ctx, conn)
			hangUp()
		}
		if err == nil {
			return
		}
		s.Pause(ctx) // the broker is down or not ready; a connection that broke while it ran costs this as well
	}
}

// Pause waits before the broker is asked again, or until ctx ends.
func (s *Stage) Pause(ctx context.Context) {
	select {
	case <-time.After(s.retryEvery):
	case <-ctx.Done():
	}
}
