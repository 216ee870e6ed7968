package node

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type clock struct{}

func (clock) Now() time.Time { return time.Now() }

func env(t testing.TB, fs vfs.FS, boot byte) Env {
	return Env{
		FS: fs, Clock: clock{}, Random: rand.Reader, Boot: [16]byte{boot},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Fatal:  func(err error) { t.Errorf("fatal: %v", err) },
	}
}

var config = Config{
	Dir: "var/data", Host: "127.0.0.1", Port: 9092, ProducersMax: 1000,
	Settings: replica.Settings{
		MaxMessageBytes:    1 << 20,
		ProducerExpiration: 24 * time.Hour, ProducerEvictionMinAge: 15 * time.Minute, ProducersMax: 100,
		Retention: -1, RetentionBytes: -1, SegmentAge: 7 * 24 * time.Hour,
		LagMax: 30 * time.Second,
	},
	DiskLowWater: 1 << 20, DiskReserve: 64 << 10,
}

func open(t testing.TB, fs vfs.FS, boot byte) *Node {
	t.Helper()
	n, err := Open(t.Context(), env(t, fs, boot), config)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func openWith(t testing.TB, fs vfs.FS, cfg Config) *Node {
	t.Helper()
	n, err := Open(t.Context(), env(t, fs, 1), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func closeNode(t testing.TB, n *Node) {
	t.Helper()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}

func create(t testing.TB, n *Node, name string, partitions int32) *meta.Topic {
	t.Helper()
	topic, err := n.CreateTopic(t.Context(), NewTopic{Name: name, Partitions: partitions, Replication: -1}, false)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

type done chan replica.Ack

func (done) Taken()               {}
func (d done) Done(a replica.Ack) { d <- a }

// submission is a batch of one record, of now. done gets its answer.
func submission(t testing.TB, id batch.ProducerID, sequence batch.Sequence, d done) *replica.Submission {
	t.Helper()
	return submissionOf(t, id, sequence, d, "record")
}

func submissionOf(t testing.TB, id batch.ProducerID, sequence batch.Sequence, d done, text string) *replica.Submission {
	t.Helper()
	b := append(make([]byte, batch.HeaderSize), text...)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	b[16] = 2
	binary.BigEndian.PutUint64(b[27:], uint64(time.Now().UnixMilli()))
	binary.BigEndian.PutUint64(b[35:], uint64(time.Now().UnixMilli()))
	binary.BigEndian.PutUint64(b[43:], uint64(id))
	binary.BigEndian.PutUint32(b[53:], uint32(sequence))
	binary.BigEndian.PutUint32(b[57:], 1)
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	h, fault := batch.CheckProduce(b)
	if fault != batch.FaultNone {
		t.Fatal(fault)
	}
	return &replica.Submission{Batch: b, Header: h, Done: d}
}

// produce stores one batch of one record and returns its answer.
func produce(t testing.TB, n *Node, topic *meta.Topic, id batch.ProducerID, sequence batch.Sequence) replica.Ack {
	t.Helper()
	d := make(done, 1)
	submit(t, n, topic, submission(t, id, sequence, d))
	return <-d
}

func submit(t testing.TB, n *Node, topic *meta.Topic, s *replica.Submission) {
	t.Helper()
	p, ok := n.Partition(topic.ID, 0)
	if !ok {
		t.Fatalf("topic %s has no partition 0 here", topic.Name)
	}
	if err := p.Submit(s); err != nil {
		t.Fatal(err)
	}
}

func TestFoundAndRestart(t *testing.T) {
	fs := memfs.New()
	n := open(t, fs, 1)
	cluster := n.ClusterID()
	if len(cluster) != 22 || n.NodeID() != 1 {
		t.Fatalf("cluster %q node %d", cluster, n.NodeID())
	}
	topic := create(t, n, "payments", 3)
	first, err := n.NextProducerID()
	if err != nil {
		t.Fatal(err)
	}
	if first>>32 < 1 || first>>32 > meta.FirstStartNumberMax {
		t.Fatalf("first producer id %x", first)
	}
	for i := range batch.Sequence(7) {
		if a := produce(t, n, topic, first, i); a.Err != nil || a.Base != batch.Offset(i) {
			t.Fatalf("batch %d: %+v", i, a)
		}
	}
	closeNode(t, n)

	for restart := range batch.ProducerID(3) {
		n = open(t, fs, 1)
		if n.ClusterID() != cluster {
			t.Fatal("another cluster after a restart")
		}
		again, ok := n.Topics().ByName("payments")
		if !ok || again.ID != topic.ID || len(again.Partitions) != 3 {
			t.Fatalf("topic after a restart: %+v", again)
		}
		for i := batch.Sequence(2); i < 7; i++ {
			if a := produce(t, n, again, first, i); a.Err != nil || a.Base != batch.Offset(i) {
				t.Fatalf("retry of batch %d after restart %d: %+v", i, restart, a)
			}
		}
		id, err := n.NextProducerID()
		if err != nil || id>>32 != first>>32+restart+1 {
			t.Fatalf("producer id %x after restart %d, %v; the first was %x", id, restart, err, first)
		}
		closeNode(t, n)
	}
}

func TestRefusals(t *testing.T) {
	n := open(t, memfs.New(), 1)
	defer closeNode(t, n)
	create(t, n, "there", 1)
	for _, c := range []struct {
		name        string
		partitions  int32
		replication int16
		want        error
	}{
		{"there", 1, 1, meta.ErrTopicExists},
		{"a b", 1, 1, meta.ErrInvalidName},
		{"__consumer_offsets", 50, 1, meta.ErrInvalidName},
		{"zero", 0, 1, meta.ErrInvalidPartitions},
		{"many", meta.PartitionsPerTopicMax + 1, 1, meta.ErrInvalidPartitions},
		{"three", 1, 3, meta.ErrInvalidReplication},
	} {
		for _, validateOnly := range []bool{false, true} {
			if _, err := n.CreateTopic(t.Context(), NewTopic{Name: c.name, Partitions: c.partitions, Replication: c.replication}, validateOnly); !errors.Is(err, c.want) {
				t.Errorf("create %s: %v, want %v", c.name, err, c.want)
			}
		}
	}
	if _, err := n.CreateTopic(t.Context(), NewTopic{Name: "dry", Partitions: 2, Replication: -1}, true); err != nil {
		t.Error(err)
	}
	if len(n.Topics().All()) != 1 {
		t.Errorf("topics %v", n.Topics().All())
	}
}

func TestManyCreateTheSameTopic(t *testing.T) {
	n := open(t, memfs.New(), 1)
	defer closeNode(t, n)
	var made atomic.Int32
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			switch _, err := n.CreateTopic(t.Context(), NewTopic{Name: "one", Partitions: 4, Replication: 1}, false); {
			case err == nil:
				made.Add(1)
			case !errors.Is(err, meta.ErrTopicExists):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 {
		t.Fatalf("made %d times", made.Load())
	}
}

func TestOneProcessAtATime(t *testing.T) {
	fs := memfs.New()
	n := open(t, fs, 1)
	defer closeNode(t, n)
	var changes atomic.Int32
	watched := errfs.Wrap(fs, onOp(func(op errfs.Op) {
		switch op.Kind {
		case errfs.OpMkdirAll, errfs.OpLock, errfs.OpOpen:
		default:
			changes.Add(1)
		}
	}))
	if _, err := Open(t.Context(), env(t, watched, 1), config); !errors.Is(err, ErrInUse) {
		t.Fatalf("second process: %v", err)
	}
	if changes.Load() != 0 {
		t.Fatal("the second process touched the directory")
	}
}

func TestLostStateFileIsDamage(t *testing.T) {
	fs := memfs.New()
	closeNode(t, open(t, fs, 1))
	names, err := fs.List(config.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, "state-") {
			if err := fs.Remove(config.Dir + "/" + name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := Open(t.Context(), env(t, fs, 1), config); !errors.Is(err, ErrDamage) {
		t.Fatalf("groups without a state file: %v", err)
	}
}

func TestStopWhileOpening(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, env(t, memfs.New(), 1), config); !errors.Is(err, context.Canceled) {
		t.Fatalf("opened under a context that had ended: %v", err)
	}
}

// onOp calls a function before each operation and injects nothing.
type onOp func(errfs.Op)

func (f onOp) Inject(op errfs.Op) error { f(op); return nil }
func (f onOp) String() string           { return "watch" }

// The machine goes down before each single operation on the disk of a node's founding, of making a topic and of a few
// batches. The next start must succeed, whatever is left, and everything that was answered must be there.
func TestCrashAtEveryOperation(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for n := 0; ; n++ {
		rng := mathrand.New(mathrand.NewPCG(seed, uint64(n)))
		if !crashAt(t, n, []int{0, 100, 50, 50}[rng.IntN(4)], rng) {
			if n < 50 {
				t.Fatalf("the script has only %d operations", n)
			}
			return
		}
	}
}

// crashAt runs the script up to operation n, and opens what is left of the disk then. It reports false when the script
// has fewer operations.
func crashAt(t *testing.T, n, percent int, rng *mathrand.Rand) bool {
	mem := memfs.New()
	var mu sync.Mutex
	var answered, atCrash script
	var left *memfs.FS
	count := 0
	fs := errfs.Wrap(mem, onOp(func(errfs.Op) {
		mu.Lock()
		defer mu.Unlock()
		if count == n {
			left, atCrash = mem.CrashClone(percent, rng), answered
		}
		count++
	}))
	note := func(f func()) { mu.Lock(); defer mu.Unlock(); f() }

	node := open(t, fs, 1)
	id, err := node.NextProducerID()
	if err != nil {
		t.Fatal(err)
	}
	note(func() { answered.id = id })
	topic := create(t, node, "topic", 2)
	note(func() { answered.topic = topic })
	for i := range batch.Sequence(3) {
		if a := produce(t, node, topic, id, i); a.Err != nil {
			t.Fatal(a.Err)
		}
		note(func() { answered.batches++ })
	}
	closeNode(t, node)
	if left == nil {
		return false
	}
	atCrash.check(t, left, fmt.Sprintf("crash before operation %d, %d %% of what was not synced is left", n, percent))
	return true
}

// script is what was answered before the crash.
type script struct {
	id      batch.ProducerID
	topic   *meta.Topic
	batches batch.Sequence
}

func (s script) check(t *testing.T, fs vfs.FS, when string) {
	t.Helper()
	n, err := Open(t.Context(), env(t, fs, 2), config)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	defer closeNode(t, n)
	if id, err := n.NextProducerID(); err != nil || s.id != 0 && id>>32 == s.id>>32 {
		t.Fatalf("%s: producer id %x, %v; before the crash %x", when, id, err, s.id)
	}
	topic, ok := n.Topics().ByName("topic")
	if !ok {
		if s.topic != nil {
			t.Fatalf("%s: the topic is lost", when)
		}
		create(t, n, "topic", 2)
		return
	}
	for i := range s.batches {
		if a := produce(t, n, topic, s.id, i); a.Err != nil || a.Base != batch.Offset(i) || a.Decision.Base != a.Base {
			t.Fatalf("%s: retry of batch %d of %d: %+v", when, i, s.batches, a)
		}
	}
}
