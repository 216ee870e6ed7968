package e2e

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// await waits until a path answers with a status.
func await(t *testing.T, b *testbroker.Broker, path string, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for ticker := time.NewTicker(time.Millisecond); ; {
		status, err := b.Probe(ctx, path)
		if err == nil && status == want {
			ticker.Stop()
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %d, %v, want %d", path, status, err, want)
		case <-b.Done():
			t.Fatalf("%s: the broker has ended:\n%s", path, b.Output())
		case <-ticker.C:
		}
	}
}

// stopping returns a broker that was told to stop and waits for a client that does not read its answer, which is more
// than the sockets hold.
func stopping(t *testing.T) (*testbroker.Broker, net.Conn) {
	t.Helper()
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	c := dial(t, b)
	topic := newTopic(t, c, 1)
	mega := bytes.Repeat([]byte{'x'}, 1_000_000)
	for range 30 {
		if a := produce(t, c, topic, rawkafka.Plain(mega).Bytes()); a.Code != 0 {
			t.Fatalf("error code %d %s", a.Code, a.Text)
		}
	}
	req := rawkafka.FetchRequest(rawkafka.FetchVersion, topic, 0, 0, 0)
	req.MaxBytes, req.Topics[0].Partitions[0].PartitionMaxBytes = 30_000_000, 30_000_000
	reader, err := net.DialTimeout("tcp", b.Addr(), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	frame, _ := c.Frame(req)
	if _, err := reader.Write(frame); err != nil {
		t.Fatal(err)
	}
	// One byte of the answer shows that the broker is writing it.
	if _, err := io.ReadFull(reader, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := b.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return b, reader
}

// From SIGTERM on the broker lives, but is not ready: nobody should come to it any more.
func TestNotReadyWhileStopping(t *testing.T) {
	b, reader := stopping(t)
	await(t, b, "/readyz", http.StatusServiceUnavailable)
	await(t, b, "/livez", http.StatusOK)
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if code, err := b.Wait(ctx); err != nil || code != 0 {
		t.Errorf("code %d, %v:\n%s", code, err, b.Output())
	}
}

// A second signal ends the broker at once, for an operator who has no patience.
func TestSecondSignal(t *testing.T) {
	b, _ := stopping(t)
	await(t, b, "/readyz", http.StatusServiceUnavailable)
	began := time.Now()
	if code, err := b.Terminate(t.Context()); err != nil || code != -1 || time.Since(began) > 5*time.Second {
		t.Errorf("code %d, %v after %v:\n%s", code, err, time.Since(began), b.Output())
	}
}
