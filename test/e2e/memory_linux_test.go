package e2e

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// A hundred connections that claim frames of 100 MiB, and send a part of them, cost bounded memory.
func TestClaimedFramesCostBoundedMemory(t *testing.T) {
	const (
		connections = 100
		claimed     = 100 << 20
		sent        = 256 << 10
		peakMax     = 128 << 20 // what was sent is 25 MiB, what was claimed 10 GiB
	)
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	steady := dial(t, b)
	topic := newTopic(t, steady, 1)
	idle, _, err := b.Memory()
	if err != nil {
		t.Fatal(err)
	}
	raw := rawkafka.Plain(bytes.Repeat([]byte("x"), sent)).Bytes()
	req := rawkafka.ProduceRequest(rawkafka.ProduceVersion, topic, 0, raw)
	var claims []*rawkafka.Client
	for range connections {
		c := dial(t, b)
		part, _ := c.Frame(req)
		binary.BigEndian.PutUint32(part, claimed)
		if err := c.SendRaw(part[:sent]); err != nil {
			t.Fatal(err)
		}
		claims = append(claims, c)
	}
	for i := range 100 { // the broker serves the others meanwhile
		mustStore(t, steady, topic, rawkafka.Plain([]byte("x")).Bytes(), batch.Offset(i))
	}
	for _, c := range claims {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	now, peak, err := b.Memory()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("resident memory: idle %d MiB, with the claims %d MiB, peak %d MiB", idle>>20, now>>20, peak>>20)
	if peak > peakMax {
		t.Errorf("%d connections that claim %d MiB each took %d MiB of memory, at most %d are allowed",
			connections, claimed>>20, peak>>20, peakMax>>20)
	}
}
