package server

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/replica"
)

// franz is a client of franz-go.
func (h *harness) franz(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	dial := func(context.Context, string, string) (net.Conn, error) { return h.listener.dial(), nil }
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers("broker.example:9092"), kgo.Dialer(dial))...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestFranzAdmin(t *testing.T) {
	node := twoPartitions()
	node.add("a", 1)
	node.add("b", 1)
	h := start(t, Config{}, node)
	defer h.stop()
	admin := kadm.NewClient(h.franz(t))
	defer admin.Close()
	ctx := t.Context()

	trims := kadm.Offsets{}
	trims.AddOffset("t", 0, 4, -1)
	trims.AddOffset("t", 1, -1, -1)
	answers, err := admin.DeleteRecords(ctx, trims)
	if err != nil {
		t.Fatal(err)
	}
	for partition, want := range map[int32]int64{0: 4, 1: 3} {
		if a, ok := answers.Lookup("t", partition); !ok || a.Err != nil || a.LowWatermark != want {
			t.Errorf("partition %d: %+v", partition, a)
		}
	}
	trims.AddOffset("t", 0, 10, -1)
	if answers, err = admin.DeleteRecords(ctx, trims); err != nil || !errors.Is(answers.Error(), kerr.OffsetOutOfRange) {
		t.Errorf("above the end: %+v, %v", answers, err)
	}
	if starts, err := admin.ListStartOffsets(ctx, "t"); err != nil || starts["t"][0].Offset != 4 || starts["t"][1].Offset != 3 {
		t.Errorf("offsets %+v, %v", starts, err)
	}

	deletions, err := admin.DeleteTopics(ctx, "a", "missing", "t")
	if err != nil || deletions["a"].Err != nil || deletions["t"].Err != nil || !errors.Is(deletions["missing"].Err, kerr.UnknownTopicOrPartition) {
		t.Errorf("deletions %+v, %v", deletions, err)
	}
	if topics, err := admin.ListTopics(ctx); err != nil || len(topics) != 1 || !topics.Has("b") {
		t.Errorf("topics %v, %v", topics.Names(), err)
	}
	h.quiet()
}

// What is refused for a passing reason, franz-go sends again until it is stored: a full disk, and too many producers.
func TestFranzRetriesWhatPasses(t *testing.T) {
	node := newFakeNode()
	node.add("t", 1)
	refusals := []error{replica.ErrDiskFull, replica.ErrTooManyProducers, replica.ErrNotLeader}
	node.at("t", 0).verdict = func(h batch.Header) replica.Ack {
		if len(refusals) == 0 {
			return replica.Ack{Base: 0}
		}
		err := refusals[0]
		refusals = refusals[1:]
		return replica.Ack{Base: -1, Err: err}
	}
	h := start(t, Config{}, node)
	defer h.stop()
	client := h.franz(t, kgo.DefaultProduceTopic("t"), kgo.MetadataMinAge(10*time.Millisecond),
		kgo.RetryBackoffFn(func(int) (none time.Duration) { return none }))
	defer client.Close()
	result := client.ProduceSync(t.Context(), &kgo.Record{Value: []byte("v")})
	if err := result.FirstErr(); err != nil || result[0].Record.Offset != 0 || len(refusals) > 0 {
		t.Errorf("%v, offset %d, %d refusals are left", err, result[0].Record.Offset, len(refusals))
	}
	h.quiet()
}
