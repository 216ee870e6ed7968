package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// patience bounds every wait for the broker. It is long because other work may share the machine, and costs nothing
// as long as the broker answers.
const patience = 30 * time.Second

var workDir string

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) (code int) {
	var err error
	if workDir, err = os.MkdirTemp("", "oncemq-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer func() {
		if err := errors.Join(stopShared(), os.RemoveAll(workDir)); err != nil {
			fmt.Fprintln(os.Stderr, "e2e: clean up:", err)
			code = 1
		}
	}()
	return m.Run()
}

// buildOnce builds the binary for the first test that needs it.
var buildOnce = sync.OnceValues(func() (string, error) { return testbroker.Build(context.Background(), workDir) })

// oncemq returns the path of the binary.
func oncemq(t *testing.T) string {
	t.Helper()
	path, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// shared is the broker that most tests use. It is started by the first of them.
var shared = sync.OnceValues(func() (*testbroker.Broker, error) {
	return launch(testbroker.Config{Data: filepath.Join(workDir, "shared")})
})

var sharedStarted atomic.Bool

func stopShared() error {
	if !sharedStarted.Load() {
		return nil
	}
	b, err := shared()
	if err != nil {
		return nil // the test that wanted it said so
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	code, err := b.Terminate(ctx)
	if err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("exit code %d:\n%s", code, b.Output())
	}
	return nil
}

func sharedBroker(t *testing.T) *testbroker.Broker {
	t.Helper()
	sharedStarted.Store(true)
	b, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// launch starts a broker, on free ports where cfg names none, and waits until it is ready.
func launch(cfg testbroker.Config) (*testbroker.Broker, error) {
	var err error
	if cfg.Binary, err = buildOnce(); err != nil {
		return nil, err
	}
	b, err := testbroker.Start(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := b.AwaitReady(ctx); err != nil {
		_ = b.Kill()
		return nil, err
	}
	return b, nil
}

// ownBroker starts a broker for one test. At the end of the test it must stop with 0, unless the test ended it.
func ownBroker(t *testing.T, cfg testbroker.Config) *testbroker.Broker {
	t.Helper()
	b, err := launch(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-b.Done():
		default:
			terminate(t, b)
		}
	})
	return b
}

// terminate stops a broker with SIGTERM, which must end it with 0.
func terminate(t *testing.T, b *testbroker.Broker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	code, err := b.Terminate(ctx)
	if err != nil {
		_ = b.Kill()
		t.Errorf("stop with SIGTERM: %v", err)
		return
	}
	if code != 0 {
		t.Errorf("SIGTERM ended the broker with code %d:\n%s", code, b.Output())
	}
}

func dial(t *testing.T, b *testbroker.Broker) *rawkafka.Client {
	t.Helper()
	c, err := rawkafka.Dial(b.Addr(), rawkafka.Options{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

var topics atomic.Int64

// freshName returns the name of a topic that does not exist yet.
func freshName() string { return fmt.Sprintf("topic-%d", topics.Add(1)) }

func newTopic(t *testing.T, c *rawkafka.Client, partitions int32) rawkafka.Topic {
	t.Helper()
	topic, err := c.CreateTopic(freshName(), partitions)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

func newProducerID(t *testing.T, c *rawkafka.Client) batch.ProducerID {
	t.Helper()
	id, epoch, err := c.InitProducerID()
	if err != nil {
		t.Fatal(err)
	}
	if id < 0 || epoch != 0 {
		t.Fatalf("producer id %d with epoch %d, want an id from 0 on with epoch 0", id, epoch)
	}
	return id
}

// produce sends one batch to partition 0 and returns the answer.
func produce(t *testing.T, c *rawkafka.Client, topic rawkafka.Topic, records []byte) rawkafka.ProduceAnswer {
	t.Helper()
	a, err := c.Produce(rawkafka.ProduceVersion, topic, 0, records)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// mustStore sends one batch to partition 0; it must be stored at base.
func mustStore(t *testing.T, c *rawkafka.Client, topic rawkafka.Topic, records []byte, base batch.Offset) {
	t.Helper()
	if a := produce(t, c, topic, records); a.Code != 0 || a.Base != base {
		t.Fatalf("the batch was answered with code %d (%s) and offset %d, want 0 and %d", a.Code, a.Text, a.Base, base)
	}
}

// payloads returns n different small payloads.
func payloads(name string, n int) [][]byte {
	var out [][]byte
	for i := range n {
		out = append(out, fmt.Appendf(nil, "%s-%d", name, i))
	}
	return out
}

// mustHold reads partition 0 from its beginning: it must hold exactly these payloads, offset by offset from 0 on.
func mustHold(t *testing.T, c *rawkafka.Client, topic rawkafka.Topic, want [][]byte) {
	t.Helper()
	mustHoldAt(t, c, rawkafka.FetchVersion, topic, 0, want)
}

func mustHoldAt(t *testing.T, c *rawkafka.Client, fetchVersion int16, topic rawkafka.Topic, partition int32, want [][]byte) {
	t.Helper()
	log, end, err := c.ReadLog(fetchVersion, topic, partition)
	if err != nil {
		t.Fatal(err)
	}
	if end != batch.Offset(len(want)) {
		t.Errorf("the high watermark is %d, want %d", end, len(want))
	}
	offset := 0
	for _, b := range log {
		for _, payload := range b.Records {
			if offset < len(want) && string(payload) != string(want[offset]) {
				t.Fatalf("offset %d holds %.40q, want %.40q", offset, payload, want[offset])
			}
			offset++
		}
	}
	if offset != len(want) {
		t.Errorf("the log holds %d records, want %d", offset, len(want))
	}
}
