package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/setting"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// member is one of several brokers that run in this process.
type member struct {
	o     serveOptions
	stop  context.CancelFunc
	ended chan error
}

func (m *member) start(t *testing.T) {
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	m.stop, m.ended = stop, make(chan error, 1)
	go func() { m.ended <- serve(ctx, m.o) }()
}

func (m *member) end(t *testing.T) {
	t.Helper()
	m.stop()
	if err := <-m.ended; err != nil {
		t.Error(err)
	}
}

// three starts three brokers that found a cluster.
func three(t *testing.T) []*member {
	t.Helper()
	addresses := make([]string, 6)
	for i := range addresses {
		var err error
		if addresses[i], err = testbroker.FreeAddr(); err != nil {
			t.Fatal(err)
		}
	}
	settings, err := setting.Parse([]string{"disk.reserve.bytes=4096", "min.insync.replicas=2"})
	if err != nil {
		t.Fatal(err)
	}
	var members []*member
	for i := range 3 {
		peers, err := peerOptions{listen: addresses[3+i], founders: addresses[3:]}.check()
		if err != nil {
			t.Fatal(err)
		}
		m := &member{o: serveOptions{
			data: filepath.Join(t.TempDir(), "data"), listen: addresses[i], http: "127.0.0.1:0", rack: fmt.Sprint("r", i), peers: peers, settings: settings,
		}}
		m.start(t)
		members = append(members, m)
	}
	return members
}

func franz(t *testing.T, opts ...kgo.Opt) (*kgo.Client, *kadm.Client) {
	t.Helper()
	client, err := kgo.NewClient(append(opts, kgo.MetadataMinAge(50*time.Millisecond), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client, kadm.NewClient(client)
}

// await asks for the metadata until it is as wanted: brokers hear of each other and of leaders a moment later.
func await(ctx context.Context, t *testing.T, admin *kadm.Client, wanted func(kadm.Metadata) bool) kadm.Metadata {
	t.Helper()
	for {
		m, err := admin.Metadata(ctx)
		if err == nil && wanted(m) {
			return m
		}
		select {
		case <-ctx.Done():
			t.Fatalf("metadata %+v, %v", m, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// led tells whether each partition of a topic of three has a leader.
func led(m kadm.Metadata) bool {
	for _, p := range m.Topics["t"].Partitions {
		if p.Err != nil {
			return false
		}
	}
	return len(m.Topics["t"].Partitions) == 3
}

// Three brokers are one cluster to its clients: any of them tells of everything and takes every request, each record is
// stored once, and a broker that stops is missed by nobody.
func TestThreeBrokers(t *testing.T) {
	members := three(t)
	seeds := []string{members[0].o.listen, members[1].o.listen, members[2].o.listen}
	client, admin := franz(t, kgo.SeedBrokers(seeds...), kgo.DefaultProduceTopic("t"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, seed := range seeds {
		_, one := franz(t, kgo.SeedBrokers(seed))
		await(ctx, t, one, func(m kadm.Metadata) bool { return len(m.Brokers) == 3 })
	}
	value := "2"
	created, err := admin.CreateTopics(ctx, 3, -1, map[string]*string{"min.insync.replicas": &value}, "t")
	if err != nil || created["t"].Err != nil || created["t"].ReplicationFactor != 3 || created["t"].NumPartitions != 3 {
		t.Fatalf("created %+v, %v", created, err)
	}
	for i, seed := range seeds {
		_, one := franz(t, kgo.SeedBrokers(seed))
		got := await(ctx, t, one, led)
		if rack := got.Brokers[i].Rack; rack == nil || *rack != fmt.Sprint("r", i) {
			t.Errorf("broker %d: %+v", i, got.Brokers)
		}
		for _, p := range got.Topics["t"].Partitions {
			if p.Leader < 1 || p.LeaderEpoch < 1 || len(p.Replicas) != 3 || len(p.OfflineReplicas) > 0 {
				t.Errorf("broker %d: %+v", i, p)
			}
		}
	}
	produce := func(from int) {
		t.Helper()
		for i := range 30 {
			if err := client.ProduceSync(ctx, &kgo.Record{Partition: int32(i % 3), Value: fmt.Append(nil, from+i)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	produce(0)
	members[1].end(t)
	produce(30) // two of three are enough
	members[1].start(t)
	produce(60)
	set := kadm.TopicsSet{}
	set.Add("t", 0, 1, 2)
	for elected := false; !elected; { // until it is in sync again, the preferred leader cannot lead
		results, err := admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, set)
		if err != nil {
			t.Fatal(err)
		}
		elected = true
		for _, r := range results["t"] {
			elected = elected && (r.Err == nil || errors.Is(r.Err, kerr.ElectionNotNeeded))
		}
	}
	produce(90)
	ends, err := admin.ListEndOffsets(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	for i := range int32(3) {
		if end, ok := ends.Lookup("t", i); !ok || end.Err != nil || end.Offset != 40 {
			t.Errorf("partition %d: %+v", i, end)
		}
	}
	wantConsumed(t, ctx, seeds[1])
	for _, m := range members {
		m.end(t)
	}
}

// wantConsumed wants the values from 0 to 119, each once and in order in its partition.
func wantConsumed(t *testing.T, ctx context.Context, seed string) {
	t.Helper()
	consumer, _ := franz(t, kgo.SeedBrokers(seed), kgo.ConsumeTopics("t"))
	got := make([][]string, 3)
	for n := 0; n < 120; {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			got[r.Partition] = append(got[r.Partition], string(r.Value))
			n++
		})
	}
	for p := range got {
		var want []string
		for i := p; i < 120; i += 3 {
			want = append(want, fmt.Sprint(i))
		}
		if strings.Join(got[p], " ") != strings.Join(want, " ") {
			t.Errorf("partition %d has %v", p, got[p])
		}
	}
}

// The second half of five batches in flight meets a leader that hands over, and all five are sent again to the next one: each
// is there once, at the offset that was answered (field report B05).
func TestRetriesAtTheNextLeader(t *testing.T) {
	members := three(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, admin := franz(t, kgo.SeedBrokers(members[0].o.listen, members[1].o.listen, members[2].o.listen))
	await(ctx, t, admin, func(m kadm.Metadata) bool { return len(m.Brokers) == 3 })
	if created, err := admin.CreateTopics(ctx, 1, 3, nil, "t"); err != nil || created["t"].Err != nil {
		t.Fatalf("created %+v, %v", created, err)
	}
	leads := func(other int32) func(m kadm.Metadata) bool {
		return func(m kadm.Metadata) bool {
			p, ok := m.Topics["t"].Partitions[0]
			return ok && p.Err == nil && p.Leader != other
		}
	}
	old := await(ctx, t, admin, leads(-1)).Topics["t"].Partitions[0].Leader
	c := dial(t, members[old-1].o.listen, members[old-1].ended)
	id, _, err := c.InitProducerID()
	if err != nil {
		t.Fatal(err)
	}
	topic, err := c.FindTopic("t")
	if err != nil {
		t.Fatal(err)
	}
	batches := make([][]byte, 5)
	for i := range batches {
		batches[i] = rawkafka.Idempotent(id, 0, batch.Sequence(i), fmt.Append(nil, i)).Bytes()
		if err := c.Send(rawkafka.ProduceRequest(rawkafka.ProduceVersion, topic, 0, batches[i])); err != nil {
			t.Fatal(err)
		}
	}
	var codes []int16
	for i := range batches {
		answer, err := c.ReceiveProduce()
		if err != nil {
			break // closed: the outcome is not known
		}
		if codes = append(codes, answer.Code); answer.Code == 0 && answer.Base != batch.Offset(i) || !slices.Contains([]int16{0, 6, 7, 20}, answer.Code) {
			t.Errorf("batch %d: code %d, offset %d", i, answer.Code, answer.Base)
		}
		if i == 1 {
			members[old-1].stop()
		}
	}
	if len(codes) < 2 || codes[0] != 0 || codes[1] != 0 {
		t.Fatalf("codes %v", codes)
	}
	members[old-1].end(t)
	_, others := franz(t, kgo.SeedBrokers(members[old%3].o.listen))
	next := await(ctx, t, others, leads(old)).Topics["t"].Partitions[0].Leader
	c = dial(t, members[next-1].o.listen, members[next-1].ended)
	for range 2 {
		for i, b := range batches {
			if answer, err := c.Produce(rawkafka.ProduceVersion, topic, 0, b); err != nil || answer.Code != 0 || answer.Base != batch.Offset(i) {
				t.Errorf("batch %d again: %+v, %v", i, answer, err)
			}
		}
	}
	if _, end, err := c.Offsets(topic, 0); err != nil || end != 5 {
		t.Errorf("the partition ends at %d, %v", end, err)
	}
	// A node that reaches no majority still gives producer ids, fresh ones, and says 6 or waits with the rest (B11).
	for _, m := range members {
		if m != members[old-1] && m != members[next-1] {
			m.end(t)
		}
	}
	if fresh, _, err := c.InitProducerID(); err != nil || fresh == id {
		t.Errorf("the id of a producer at a node alone: %d, %v", fresh, err)
	}
	members[next-1].end(t)
}

// One founder alone waits for the others, and can be stopped meanwhile; with another list it is refused.
func TestFounderThatWaits(t *testing.T) {
	address, err := testbroker.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	o := serveOptions{data: filepath.Join(t.TempDir(), "data"), listen: "127.0.0.1:0", http: "127.0.0.1:0", settings: setting.Defaults()}
	o.peers = peerOptions{listen: address, advertise: address, founders: []string{address, "127.0.0.1:1"}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := serve(ctx, o); err != nil {
		t.Error(err)
	}
	o.peers.founders = []string{address, "127.0.0.1:2"}
	if err := failed(serve(t.Context(), o)); exitCode(err) != exitUsage || err == nil {
		t.Errorf("another list: %v", err)
	}
	o.peers = peerOptions{}
	if err := failed(serve(t.Context(), o)); exitCode(err) != exitUsage || err == nil {
		t.Errorf("no list: %v", err)
	}
}
