package node

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// The node remembers no more producers than it may, whatever each partition may. The least recently used ones of all
// partitions go, none that is too young; a new one is refused, retriably, while all are.
func TestProducersOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, minAge = 40, 10 * time.Minute
		cfg := config
		cfg.ProducersMax = most
		cfg.Settings.ProducerExpiration, cfg.Settings.ProducerEvictionMinAge = 100*time.Hour, minAge
		fs := memfs.New()
		n := openWith(t, fs, cfg)
		topics := []*meta.Topic{create(t, n, "a", 1), create(t, n, "b", 1)}
		steady, first := producerID(t, n), producerID(t, n)
		if a := produce(t, n, topics[0], steady, 0); a.Err != nil {
			t.Fatal(a.Err)
		}
		// A new producer a minute, on each topic in turn: after half an hour the cap is near.
		for i := range batch.ProducerID(200) {
			if a := produce(t, n, topics[i%2], first+i, 0); a.Err != nil {
				t.Fatalf("producer %d: %v", i, a.Err)
			}
			if a := produce(t, n, topics[0], steady, 1+batch.Sequence(i)); a.Err != nil {
				t.Fatalf("the steady producer, batch %d: %v", i, a.Err)
			}
			pass(time.Minute)
			if have := n.producers.Load(); have > most*95/100 || i > most && have < most*80/100 {
				t.Fatalf("%d producers are remembered after %d", have, i)
			}
		}
		for i := range batch.ProducerID(20) { // they are remembered: a gap is noticed
			id := first + 199 - i
			if a := produce(t, n, topics[id%2^first%2], id, 7); !errors.Is(a.Err, replica.ErrRefused) {
				t.Fatalf("one of the youngest producers, %d, is forgotten: %+v", i, a)
			}
		}
		if a := produce(t, n, topics[0], first, 7); a.Err != nil {
			t.Fatalf("the oldest producer is not forgotten: %+v", a)
		}
		testCap(t, n, topics, first+200)
		held := n.producers.Load()
		deleteTopic(t, n, "b")
		if left := n.producers.Load(); left >= held || left < 2 {
			t.Errorf("%d producers before the deletion of a topic, %d after", held, left)
		}
		left := n.producers.Load()
		closeNode(t, n)
		if n.producers.Load() != 0 {
			t.Errorf("%d producers are remembered of a closed node", n.producers.Load())
		}
		n = openWith(t, fs, cfg)
		if again := n.producers.Load(); again != left {
			t.Errorf("%d producers before the restart, %d after", left, again)
		}
		closeNode(t, n)
	})
}

// testCap has more new producers come than the node may remember before any is old enough.
func testCap(t *testing.T, n *Node, topics []*meta.Topic, next batch.ProducerID) {
	refused := 0
	for i := range batch.ProducerID(n.cfg.ProducersMax) {
		switch a := produce(t, n, topics[i%2], next+i, 0); {
		case errors.Is(a.Err, replica.ErrTooManyProducers):
			refused++
		case a.Err != nil:
			t.Fatal(a.Err)
		}
		pass(time.Second)
		if have := n.producers.Load(); have > int64(n.cfg.ProducersMax) {
			t.Fatalf("%d producers are remembered", have)
		}
	}
	if refused == 0 {
		t.Fatal("none is refused")
	}
	pass(2 * n.cfg.Settings.ProducerEvictionMinAge)
	if a := produce(t, n, topics[0], next+batch.ProducerID(n.cfg.ProducersMax), 0); a.Err != nil {
		t.Fatalf("later a new producer is still refused: %v", a.Err)
	}
}

// Expiry and retention are looked for as often as they are to be, without anybody producing.
func TestChores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := small()
		cfg.ExpiryInterval, cfg.RetentionInterval = 10*time.Minute, 30*time.Minute
		cfg.Settings.ProducerExpiration, cfg.Settings.Retention = time.Hour, 5*time.Hour
		fs := memfs.New()
		n := openWith(t, fs, cfg)
		id, topic := producerID(t, n), create(t, n, "payments", 1)
		for i := range batch.Sequence(30) {
			if a := produce(t, n, topic, id, i); a.Err != nil {
				t.Fatal(a.Err)
			}
		}
		p, _ := n.Partition(topic.ID, 0)
		pass(59 * time.Minute)
		if got := p.Status().Producers; got != 1 {
			t.Errorf("%d producers are remembered before expiry", got)
		}
		pass(30 * time.Minute)
		if got := p.Status().Producers; got != 0 {
			t.Errorf("%d producers are remembered after expiry", got)
		}
		segments := len(filesOf(t, fs, 1, ".log"))
		if p.Status().LogStart != 0 || segments < 3 {
			t.Errorf("log start %d, %d segments before retention", p.Status().LogStart, segments)
		}
		pass(5 * time.Hour)
		if got := filesOf(t, fs, 1, ".log"); p.Status().LogStart != 30 || len(got) != 1 {
			t.Errorf("log start %d, segments %v after retention", p.Status().LogStart, got)
		}
		closeNode(t, n)
	})
}

// A partition that is offline has nobody to give, and does not say how old those of the others must be.
func TestOfflineIsNoCandidate(t *testing.T) {
	n := open(t, memfs.New(), 1)
	defer closeNode(t, n)
	create(t, n, "a", 2)
	topic := create(t, n, "b", 1)
	if got := len(n.candidates()); got != 3 {
		t.Errorf("%d candidates", got)
	}
	b, _ := n.placer.find(topic.ID)
	before := b.partitions[0].replica.Swap(replica.OpenOffline(1, errors.New("input/output error")))
	defer b.partitions[0].replica.Store(before)
	if got := len(n.candidates()); got != 2 {
		t.Errorf("%d candidates, with one partition offline", got)
	}
}

// The reliever leaves those alone that have nobody old enough, and takes from the others in proportion.
func TestIdlest(t *testing.T) {
	c := []candidate{{nil, 10 * time.Hour, 5}, {nil, 9 * time.Hour, 1}, {nil, 8 * time.Hour, 1}, {nil, 0, 7}, {nil, 10 * time.Hour, 0}}
	got, idle := idlest(slices.Clone(c), time.Hour)
	if want := 10 * time.Hour / 8 * 7; idle != want || !slices.Equal(got, c[:2]) {
		t.Errorf("%v of %v", got, idle)
	}
	if got, _ := idlest(slices.Clone(c), 11*time.Hour); len(got) > 0 {
		t.Errorf("%v are to give, and all are too young", got)
	}
}
