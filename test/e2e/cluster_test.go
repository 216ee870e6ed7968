package e2e

import (
	"context"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

const (
	codeLeaderNotAvailable = 5
	codeCoordinatorLoading = 14
	codeCutOff             = 20 // NOT_ENOUGH_REPLICAS_AFTER_APPEND
)

// Three nodes are one cluster for all that follows: each part leaves it as whole as it was.
func TestCluster(t *testing.T) {
	c := startCluster(t, 3)
	for _, part := range []struct {
		name string
		test func(*testing.T, *testbroker.Cluster)
	}{
		{"any node serves any client", anyNodeServes},
		{"a slow follower and a lost answer", slowFollowerAndLostAnswer},
		{"a pipeline across a change of leaders", pipelineAcrossLeaders},
		{"a producer id from a node that is cut off", idFromANodeThatIsCutOff},
		{"a frozen follower", frozenFollower},
		{"a node that is behind", nodeThatIsBehind},
		{"an emptied data directory", emptiedDirectory},
		{"strangers at the peer port", strangersAtThePeerPort},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, c) })
		if t.Failed() {
			for i := range c.Nodes() {
				t.Logf("node %d says at last:\n%s", i+1, lastLines(c.Node(i).Output(), 20))
			}
			return
		}
	}
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// startCluster starts nodes with links between them. At the end of the test all must stop with 0.
func startCluster(t *testing.T, n int) *testbroker.Cluster {
	t.Helper()
	c, err := testbroker.StartCluster(testbroker.ClusterConfig{Binary: oncemq(t), Dir: t.TempDir(), Nodes: n, Links: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if !t.Failed() {
			if err := c.Terminate(ctx); err != nil {
				t.Error(err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	awaitNodes(t, c)
	return c
}

// awaitNodes waits until all nodes are ready.
func awaitNodes(t *testing.T, c *testbroker.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := c.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
}

// eventually asks until a condition holds. what says so when it does not.
func eventually(t *testing.T, holds func() (ok bool, what string)) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for begun := time.Now(); ; <-ticker.C {
		ok, what := holds()
		if ok {
			return
		}
		if time.Since(begun) > patience {
			t.Fatalf("still not so after %v: %s", patience, what)
		}
	}
}

func dialNode(t *testing.T, c *testbroker.Cluster, node int) *rawkafka.Client {
	t.Helper()
	return dial(t, c.Node(node))
}

// metadataOf is what a node says of the cluster and a topic within a second; nil when it does not.
func metadataOf(c *testbroker.Cluster, node int, topic string) *kmsg.MetadataResponse {
	conn, err := rawkafka.Dial(c.Addr(node), rawkafka.Options{Timeout: time.Second})
	if err != nil {
		return nil
	}
	defer conn.Close()
	answer, err := conn.Metadata(topic)
	if err != nil || len(answer.Topics) != 1 {
		return nil
	}
	return answer
}

// nodeOf is the node of a broker id in an answer, -1 when there is none.
func nodeOf(c *testbroker.Cluster, answer *kmsg.MetadataResponse, id int32) int {
	for _, b := range answer.Brokers {
		if b.NodeID == id {
			return slices.Index(c.Addrs(), net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
		}
	}
	return -1
}

// leaderOf waits until a node says who leads partition 0 of a topic, and it is none of those that are away, which are not
// asked either.
func leaderOf(t *testing.T, c *testbroker.Cluster, topic rawkafka.Topic, away ...int) (leader int) {
	t.Helper()
	eventually(t, func() (bool, string) {
		for node := range c.Nodes() {
			if slices.Contains(away, node) {
				continue
			}
			answer := metadataOf(c, node, topic.Name)
			if answer == nil || len(answer.Topics[0].Partitions) == 0 {
				continue
			}
			leader = nodeOf(c, answer, answer.Topics[0].Partitions[0].Leader)
			if leader >= 0 && !slices.Contains(away, leader) {
				return true, ""
			}
		}
		return false, topic.Name + " has no leader"
	})
	return leader
}

// awaitWhole waits until all nodes say the same of a topic, and all its replicas are in sync.
func awaitWhole(t *testing.T, c *testbroker.Cluster, topic rawkafka.Topic) {
	t.Helper()
	awaitNodes(t, c)
	eventually(t, func() (bool, string) {
		var first *kmsg.MetadataResponse
		for node := range c.Nodes() {
			answer := metadataOf(c, node, topic.Name)
			if answer == nil {
				return false, fmt.Sprintf("node %d does not answer", node+1)
			}
			if first == nil {
				first = answer
			}
			if wrong := differs(first, answer); wrong != "" {
				return false, fmt.Sprintf("nodes 1 and %d do not agree: %s", node+1, wrong)
			}
			for _, p := range answer.Topics[0].Partitions {
				if p.Leader < 0 || len(p.ISR) != len(p.Replicas) {
					return false, fmt.Sprintf("%+v is not whole", p)
				}
			}
		}
		return true, ""
	})
}

// differs says in what two nodes do not agree; in what order they say it is their own affair.
func differs(a, b *kmsg.MetadataResponse) string {
	brokers := func(m *kmsg.MetadataResponse) []kmsg.MetadataResponseBroker {
		return slices.SortedFunc(slices.Values(m.Brokers), func(x, y kmsg.MetadataResponseBroker) int { return int(x.NodeID - y.NodeID) })
	}
	partitions := func(m *kmsg.MetadataResponse) []kmsg.MetadataResponseTopicPartition {
		all := slices.SortedFunc(slices.Values(m.Topics[0].Partitions),
			func(x, y kmsg.MetadataResponseTopicPartition) int { return int(x.Partition - y.Partition) })
		for i := range all {
			slices.Sort(all[i].ISR)
		}
		return all
	}
	switch {
	case *a.ClusterID != *b.ClusterID:
		return fmt.Sprintf("cluster %s, and %s", *a.ClusterID, *b.ClusterID)
	case !reflect.DeepEqual(brokers(a), brokers(b)):
		return fmt.Sprintf("brokers %+v, and %+v", brokers(a), brokers(b))
	case a.Topics[0].ErrorCode != b.Topics[0].ErrorCode, a.Topics[0].TopicID != b.Topics[0].TopicID:
		return fmt.Sprintf("topic %x, error code %d, and topic %x, error code %d",
			a.Topics[0].TopicID, a.Topics[0].ErrorCode, b.Topics[0].TopicID, b.Topics[0].ErrorCode)
	case !reflect.DeepEqual(partitions(a), partitions(b)):
		return fmt.Sprintf("partitions %+v, and %+v", partitions(a), partitions(b))
	}
	return ""
}

// replicatedTopic creates a topic of one partition with three replicas, and waits until it is whole.
func replicatedTopic(t *testing.T, c *testbroker.Cluster, settings map[string]string) rawkafka.Topic {
	t.Helper()
	topic, err := dialNode(t, c, int(topics.Load())%c.Nodes()).CreateReplicatedTopic(freshName(), 1, 3, settings)
	if err != nil {
		t.Fatal(err)
	}
	awaitWhole(t, c, topic)
	return topic
}

// clusterProducer is an idempotent producer of batches of one record on partition 0, whose batch n has the sequence n.
type clusterProducer struct {
	c     *testbroker.Cluster
	topic rawkafka.Topic
	id    batch.ProducerID
	sent  [][]byte // the batches
	log   [][]byte // their records
}

func newClusterProducer(t *testing.T, c *testbroker.Cluster, topic rawkafka.Topic) *clusterProducer {
	t.Helper()
	return &clusterProducer{c: c, topic: topic, id: newProducerID(t, dialNode(t, c, 0))}
}

// next makes batches.
func (p *clusterProducer) next(n int) (raw [][]byte) {
	for range n {
		sequence := batch.Sequence(len(p.sent))
		payload := fmt.Appendf(nil, "payment %d", sequence)
		p.sent = append(p.sent, rawkafka.Idempotent(p.id, 0, sequence, payload).Bytes())
		p.log = append(p.log, payload)
	}
	return p.sent[len(p.sent)-n:]
}

func (p *clusterProducer) requests(raw [][]byte) []kmsg.Request {
	var reqs []kmsg.Request
	for _, r := range raw {
		reqs = append(reqs, rawkafka.ProduceRequest(rawkafka.ProduceVersion, p.topic, 0, r))
	}
	return reqs
}

// again sends the last batches again, together, to whichever node leads, until all are answered with success: at the
// offsets that are theirs, which are their sequences. Another answer than "not now" is wrong, but for one that is out of
// order behind one that was not stored.
func (p *clusterProducer) again(t *testing.T, n int, away ...int) {
	t.Helper()
	first := len(p.sent) - n
	eventually(t, func() (bool, string) {
		conn, err := rawkafka.Dial(p.c.Addr(leaderOf(t, p.c, p.topic, away...)), rawkafka.Options{Timeout: 5 * time.Second})
		if err != nil {
			return false, err.Error()
		}
		defer conn.Close()
		if err := conn.SendAll(p.requests(p.sent[first:])...); err != nil {
			return false, err.Error()
		}
		behind := false
		for i := range n {
			a, err := conn.ReceiveProduce()
			if err != nil {
				return false, err.Error()
			}
			switch {
			case a.Code == 0 && a.Base != batch.Offset(first+i):
				t.Fatalf("batch %d was answered with offset %d", first+i, a.Base)
			case a.Code == 0:
			case a.Code == codeOutOfOrder && behind, slices.Contains(notNow, a.Code):
				behind = true
			default:
				t.Fatalf("batch %d was answered with code %d (%s)", first+i, a.Code, a.Text)
			}
		}
		return !behind, "the batches are answered with not now"
	})
}

// notNow are the codes that a client may get for a batch that is right, and with which it tries again.
var notNow = []int16{codeNotLeader, codeTimedOut, codeNotEnoughReplicas, codeCutOff}

// store sends a new batch to the leader, which must store it at once.
func (p *clusterProducer) store(t *testing.T, conn *rawkafka.Client) {
	t.Helper()
	raw := p.next(1)[0]
	mustStore(t, conn, p.topic, raw, batch.Offset(len(p.sent)-1))
}

// mustHold demands that the leader serves all that was sent, once each, in order.
func (p *clusterProducer) mustHold(t *testing.T) {
	t.Helper()
	mustHold(t, dialNode(t, p.c, leaderOf(t, p.c, p.topic)), p.topic, p.log)
}

// A topic that was created at one node is soon known at all of them, with the same leader; kcat and franz-go produce and
// consume whichever node they are told of.
func anyNodeServes(t *testing.T, c *testbroker.Cluster) {
	const knownWithin = 5 * time.Second // a second is promised of a machine that has nothing else to do
	for node := range c.Nodes() {
		topic, err := dialNode(t, c, node).CreateReplicatedTopic(freshName(), 4, 3, nil)
		if err != nil {
			t.Fatalf("create a topic at node %d: %v", node+1, err)
		}
		created := time.Now()
		awaitWhole(t, c, topic)
		if took := time.Since(created); took > knownWithin {
			t.Errorf("a topic that was created at node %d was known everywhere after %v, want at most %v", node+1, took, knownWithin)
		}
	}
	var lines strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&lines, "payment %d\n", i)
	}
	topic := replicatedTopic(t, c, nil)
	for node := range c.Nodes() {
		runKcat(t, []byte(lines.String()), "-P", "-b", c.Addr(node), "-t", topic.Name, "-p", "0", "-X", "enable.idempotence=true", "-X", "acks=all")
	}
	for node := range c.Nodes() {
		got := runKcat(t, nil, "-C", "-b", c.Addr(node), "-t", topic.Name, "-p", "0", "-o", "beginning", "-e", "-q")
		if string(got) != strings.Repeat(lines.String(), c.Nodes()) {
			t.Errorf("kcat reads %d bytes at node %d, which are not what was sent", len(got), node+1)
		}
	}
	value := func(i int) []byte { return fmt.Appendf(nil, "order %d", i) }
	for node := range c.Nodes() {
		topic := replicatedTopic(t, c, nil)
		client := newFranz(t, c.Node(node), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		franzProduce(t, client, topic.Name, 1000, value)
		franzConsume(t, c.Node((node+1)%c.Nodes()), topic.Name, 1000, value)
	}
}
