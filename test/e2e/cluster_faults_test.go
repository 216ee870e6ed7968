package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// followerOf is a node that does not lead a topic's partition, nor is among the others.
func followerOf(t *testing.T, c *testbroker.Cluster, topic rawkafka.Topic, others ...int) int {
	t.Helper()
	leader := leaderOf(t, c, topic)
	for node := range c.Nodes() {
		if node != leader && !slices.Contains(others, node) {
			return node
		}
	}
	t.Fatal("there is no other node")
	return -1
}

// impatiently sends a batch to a node, over a connection of its own, and hangs up when no answer comes in a moment. None may
// come.
func impatiently(t *testing.T, c *testbroker.Cluster, node int, topic rawkafka.Topic, raw []byte) {
	t.Helper()
	const requestTimeout = 200 * time.Millisecond
	conn, err := rawkafka.Dial(c.Addr(node), rawkafka.Options{Timeout: requestTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if a, err := conn.Produce(rawkafka.ProduceVersion, topic, 0, raw); err == nil {
		t.Fatalf("the batch was answered with code %d offset %d, and not all replicas have it", a.Code, a.Base)
	}
}

// The lesson of a payment that is charged three times: with min.insync.replicas=3 a slow follower holds the answer back for
// longer than the client waits, and the client sends the payment again, twice. Without idempotence it is there three times.
// With it, once, and the retry gets the first one's offset: from the same leader, and when that was killed before the retry
// came, from the next.
func slowFollowerAndLostAnswer(t *testing.T, c *testbroker.Cluster) {
	for _, scene := range []struct {
		name       string
		idempotent bool
		killed     bool
		copies     int
	}{
		{"without idempotence", false, false, 3},
		{"with idempotence", true, false, 1},
		{"with idempotence, and the leader is killed", true, true, 1},
	} {
		topic := replicatedTopic(t, c, map[string]string{"min.insync.replicas": "3"})
		p := newClusterProducer(t, c, topic)
		payment := p.next(1)[0]
		if !scene.idempotent {
			payment = rawkafka.Plain(p.log[0]).Bytes()
		}
		leader, slow := leaderOf(t, c, topic), followerOf(t, c, topic)
		if err := c.Node(slow).Pause(); err != nil {
			t.Fatal(err)
		}
		tries := 3
		if scene.killed {
			tries = 1
		}
		for range tries {
			impatiently(t, c, leader, topic, payment)
		}
		awaitEnd(t, c, leader, topic, batch.Offset(scene.copies)) // a majority has it
		if scene.killed {
			if err := c.Node(leader).Kill(); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Node(slow).Resume(); err != nil {
			t.Fatal(err)
		}
		if scene.killed {
			leaderOf(t, c, topic, leader)
			if err := c.Start(leader); err != nil {
				t.Fatal(err)
			}
		}
		awaitWhole(t, c, topic)
		if scene.idempotent {
			p.again(t, 1)
		}
		want := slices.Repeat(p.log[:1], scene.copies)
		mustHold(t, dialNode(t, c, leaderOf(t, c, topic)), topic, want)
	}
}

// awaitEnd waits until a node says that a partition ends at an offset.
func awaitEnd(t *testing.T, c *testbroker.Cluster, node int, topic rawkafka.Topic, end batch.Offset) {
	t.Helper()
	conn := dialNode(t, c, node)
	eventually(t, func() (bool, string) {
		_, got, err := conn.Offsets(topic, 0)
		return err == nil && got == end, fmt.Sprintf("%s ends at %d, %v, want %d", topic.Name, got, err, end)
	})
}

// A run of duplicates after leadership had moved (AutoMQ/automq issue 437): five batches are in flight, and behind the second
// answer the leader is killed, or hands over. All five, sent again to the next leader, are answered with success, those that
// were answered before with their offsets, and stand there once.
func pipelineAcrossLeaders(t *testing.T, c *testbroker.Cluster) {
	topic := replicatedTopic(t, c, nil)
	p := newClusterProducer(t, c, topic)
	for round, change := range []func(leader int){
		func(leader int) {
			if err := c.Node(leader).Kill(); err != nil {
				t.Fatal(err)
			}
			p.again(t, 5, leader)
			if err := c.Start(leader); err != nil {
				t.Fatal(err)
			}
		},
		func(leader int) {
			elected := dialNode(t, c, followerOf(t, c, topic)).ElectPreferredLeader(topic, 0)
			if elected != nil {
				t.Fatal(elected)
			}
			if next := leaderOf(t, c, topic, leader); next == leader {
				t.Fatal("the preferred leader does not lead")
			}
		},
		func(leader int) {
			terminate(t, c.Node(leader))
			p.again(t, 5, leader)
			if err := c.Start(leader); err != nil {
				t.Fatal(err)
			}
		},
	} {
		leader := leaderOf(t, c, topic)
		conn := dialNode(t, c, leader)
		if err := conn.SendAll(p.requests(p.next(5))...); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			a, err := conn.ReceiveProduce()
			if err != nil || a.Code != 0 || a.Base != batch.Offset(5*round+i) {
				t.Fatalf("batch %d was answered with code %d offset %d, %v", 5*round+i, a.Code, a.Base, err)
			}
		}
		change(leader)
		p.again(t, 5)
		p.again(t, 5)
		awaitWhole(t, c, topic)
		p.mustHold(t)
	}
}

// A client asked the one node it knew for a producer id, the node was cut off from the others, and the client asked for ever
// or gave up (confluentinc/confluent-kafka-python issue 1335, Apache Kafka KAFKA-14417). Right is: an id, or 14, soon. A
// client that knows only this node delivers everything once when the node is back.
func idFromANodeThatIsCutOff(t *testing.T, c *testbroker.Cluster) {
	const soon = 5 * time.Second
	topic := replicatedTopic(t, c, nil)
	cutOff := leaderOf(t, c, topic)
	c.Links.Isolate(cutOff)
	defer c.Links.Heal(cutOff)
	given := make(map[int64]bool)
	for version := range int16(5) {
		for node := range c.Nodes() {
			req := kmsg.NewPtrInitProducerIDRequest()
			req.Version, req.ProducerID, req.ProducerEpoch = version, -1, -1
			begun := time.Now()
			a, err := rawkafka.Roundtrip[*kmsg.InitProducerIDResponse](dialNode(t, c, node), req)
			took := time.Since(begun)
			switch {
			case err != nil:
				t.Fatal(err)
			case took > soon:
				t.Errorf("version %d: node %d answers after %v", version, node+1, took)
			case a.ErrorCode == codeCoordinatorLoading && node == cutOff:
			case a.ErrorCode != 0 || a.ProducerID < 0 || a.ProducerEpoch != 0 || given[a.ProducerID]:
				t.Errorf("version %d: node %d, cut off %v, answers %+v", version, node+1, node == cutOff, a)
			}
			given[a.ProducerID] = true
		}
	}
	var lines strings.Builder
	for i := range 100 {
		fmt.Fprintf(&lines, "payment %d\n", i)
	}
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		// All in one batch: librdkafka before 2.3.0 may lose count of its sequences behind one that it is in doubt of.
		runKcatThrough(t, []byte(lines.String()), "-P", "-E", "-b", c.Addr(cutOff), "-t", topic.Name, "-p", "0", "-X", "linger.ms=200",
			"-X", "enable.idempotence=true", "-X", "acks=all", "-X", "request.timeout.ms=1000", "-X", "socket.timeout.ms=1000")
	}()
	leaderOf(t, c, topic, cutOff) // the others have elected another one
	c.Links.Heal(cutOff)
	<-delivered
	awaitWhole(t, c, topic)
	got := runKcat(t, nil, "-C", "-b", c.Addr(cutOff), "-t", topic.Name, "-p", "0", "-o", "beginning", "-e", "-q")
	if string(got) != lines.String() {
		t.Errorf("kcat reads back %d bytes, and sent %d", len(got), lines.Len())
	}
}

// A follower that is away drags nobody down (redpanda-data/redpanda issue 9718): while it is frozen every batch is stored,
// with acks=all, also where two replicas must have it; and when it is back it catches up.
func frozenFollower(t *testing.T, c *testbroker.Cluster) {
	const soon = 2 * time.Second // far below the time in which a frozen node is given up
	for _, minInSync := range []string{"1", "2"} {
		topic := replicatedTopic(t, c, map[string]string{"min.insync.replicas": minInSync})
		p := newClusterProducer(t, c, topic)
		conn := dialNode(t, c, leaderOf(t, c, topic))
		p.store(t, conn)
		frozen := followerOf(t, c, topic)
		if err := c.Node(frozen).Pause(); err != nil {
			t.Fatal(err)
		}
		for range 200 {
			begun := time.Now()
			p.store(t, conn)
			if took := time.Since(begun); took > soon {
				t.Errorf("min.insync.replicas=%s: a batch took %v while a follower was frozen", minInSync, took)
			}
		}
		if err := c.Node(frozen).Resume(); err != nil {
			t.Fatal(err)
		}
		awaitWhole(t, c, topic)
		p.mustHold(t)
	}
}

// A node that is behind does not say of a topic that it does not know that there is none: while it cannot ask, the answer
// is one that clients repeat.
func nodeThatIsBehind(t *testing.T, c *testbroker.Cluster) {
	const behind = 2
	c.Links.Isolate(behind)
	defer c.Links.Heal(behind)
	topic, err := dialNode(t, c, 0).CreateReplicatedTopic("made-while-one-was-away", 1, 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn := dialNode(t, c, behind)
	wants := func(what string, err error, code int16) {
		t.Helper()
		if e, ok := errors.AsType[*rawkafka.CodeError](err); !ok || e.Code != code {
			t.Errorf("%s: got %v, want code %d", what, err, code)
		}
	}
	_, err = conn.FindTopic(topic.Name)
	wants("metadata", err, codeLeaderNotAvailable)
	wants("delete", conn.DeleteTopic(topic.Name), codeTimedOut)
	p := newClusterProducer(t, c, topic)
	answer, err := conn.Produce(rawkafka.ProduceVersion, topic, 0, p.next(1)[0])
	if err != nil || answer.Code != codeNotLeader {
		t.Errorf("produce: %+v, %v", answer, err)
	}
	c.Links.Heal(behind)
	awaitWhole(t, c, topic)
	if found, err := conn.FindTopic(topic.Name); err != nil || found != topic {
		t.Errorf("found %v, %v", found, err)
	}
}
