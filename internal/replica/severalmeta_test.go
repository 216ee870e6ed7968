package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// metadataCluster is three replicas of raft0, stepped by the test.
type metadataCluster struct {
	t     *testing.T
	clock *testClock
	nodes []*metadataNode
	off   int // this node is cut off; 0: none
}

type metadataNode struct {
	*testHost
	c        *metadataCluster
	n        int
	m        *Metadata
	log      *raftlog.Log
	state    *raftlog.StateFile
	flushers *raftlog.Flushers
	step     func() bool
	jobs     []func()
	told     []string
}

func newMetadataCluster(t *testing.T) *metadataCluster {
	c := &metadataCluster{t: t, clock: newTestClock()}
	for n := 1; n <= 3; n++ {
		node := &metadataNode{testHost: &testHost{}, c: c, n: n}
		fs := memfs.New()
		must(t, fs.MkdirAll("data/groups"))
		var err error
		node.state, err = raftlog.CreateState(fs, "data", raftlog.NodeIdentity{Cluster: testIdentity.Cluster, Node: uint32(n)}, [16]byte{1})
		must(t, err)
		cfg := raftlog.Config{
			FS: fs, Dir: "data/groups/0", State: node.state, SameBoot: true, SegmentBytes: segmentBytes,
			Identity: seglog.Identity{Cluster: testIdentity.Cluster, Replica: replicaOf(n), Partition: -1},
		}
		voters := []uint64{uint64(replicaOf(1)), uint64(replicaOf(2)), uint64(replicaOf(3))}
		must(t, raftlog.CreateGroup(cfg, raftlog.Base{
			Cluster: testIdentity.Cluster, Index: 1, Term: 1, Members: raftlog.Members{Voters: voters}, Body: meta.New().AppendTo(nil),
		}))
		node.log, _, err = raftlog.OpenGroup(cfg)
		must(t, err)
		node.flushers = raftlog.NewFlushers(0, node.state, raftlog.Events{Fatal: func(err error) { t.Error(err) }, Full: func(error) {}})
		node.m, err = OpenMetadata(replicaOf(n), Config{
			Log: node.log, Flushers: node.flushers, Clock: c.clock, Logger: quiet(), Settings: testSettings(), Host: node, Peers: node,
			Preferred: n == 1, Stepped: func(step func() bool) { node.step = step },
		}, func(topic *meta.Topic) { node.told = append(node.told, topic.Name) },
			func(topic *meta.Topic) { node.told = append(node.told, "-"+topic.Name) })
		must(t, err)
		c.nodes = append(c.nodes, node)
	}
	return c
}

// Send implements Peers.
func (n *metadataNode) Send(_ seglog.GroupID, messages []*pb.Message) {
	for _, m := range messages {
		to := int(m.GetTo() >> 32)
		arrives := n.c.off != to && n.c.off != n.n
		if arrives {
			n.c.nodes[to-1].m.Receive(proto.Clone(m).(*pb.Message))
		}
		if m.GetType() == pb.MsgSnap {
			n.m.SnapshotSent(seglog.ReplicaID(m.GetTo()), arrives)
		}
	}
}

// Background implements Host.
func (n *metadataNode) Background(job func()) { n.jobs = append(n.jobs, job) }

func (c *metadataCluster) until(what string, so func() bool) {
	c.t.Helper()
	for range 8000 {
		for some := true; some; {
			some = false
			for _, n := range c.nodes {
				some = n.step() || some
				some = n.flushers.Step() || some
				for _, job := range n.jobs {
					job()
				}
				some = some || len(n.jobs) > 0
				n.jobs = nil
			}
		}
		if so() {
			return
		}
		c.clock.advance(100 * time.Millisecond)
		for _, n := range c.nodes {
			n.m.Tick()
		}
	}
	c.t.Fatalf("%s does not come", what)
}

func (c *metadataCluster) leader() (leader *metadataNode) {
	c.t.Helper()
	c.until("a leader", func() bool {
		for _, n := range c.nodes {
			if n.n != c.off && n.m.Leadership().Ready {
				leader = n
			}
		}
		return leader != nil
	})
	return leader
}

// apply has a command applied by the leader.
func (c *metadataCluster) apply(command meta.Command) {
	c.t.Helper()
	p, err := c.leader().m.Begin(command)
	must(c.t, err)
	c.until("the outcome", func() bool { return len(p.done) > 0 })
	if o := <-p.done; o.err != nil || o.result.Refused != nil {
		c.t.Fatalf("%+v: %+v", command, o)
	}
}

// Three replicas of raft0: what a deposed leader had accepted and what was cut off ends with ErrCutOff; one that was away
// for too long gets a base snapshot, and tells its node of the topics that came and went meanwhile.
func TestMetadataOfThree(t *testing.T) {
	c := newMetadataCluster(t)
	c.apply(&meta.Cluster{ID: testIdentity.Cluster, FirstStartNumber: 100})
	c.apply(startCommand(0))
	c.apply(topicCommand(0))
	old := c.leader()
	c.off = old.n
	lost, err := old.m.Begin(topicCommand(1))
	must(t, err)
	next := c.leader()
	c.apply(&meta.DeleteTopic{Name: "topic-0", ID: topicCommand(0).ID})
	for i := range 5 {
		c.apply(topicCommand(i + 2))
	}
	c.until("the gone follower to be given up", func() bool { return c.clock.Now().After(next.m.core.followers.peers[old.n-1].active.Add(feedMax)) })
	for range 2 {
		next.m.loop.box.post(func(time.Time) { next.m.core.rollWanted = true })
		c.apply(startCommand(uint32(next.m.Applied())))
	}
	next.m.Housekeep(RetryBases)
	c.until("the log to be cut", func() bool { return next.log.Segments().FirstIndex() > old.m.core.last })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := old.m.Await(ctx, next.m.Applied()); !errors.Is(err, context.Canceled) {
		t.Fatalf("await: %v", err)
	}
	c.off = 0
	c.until("the replica is level", func() bool { return old.m.Applied() == next.m.Applied() })
	must(t, old.m.Await(t.Context(), next.m.Applied()))
	if o := <-lost.done; !errors.Is(o.err, ErrCutOff) {
		t.Fatalf("what was cut off: %+v", o)
	}
	want := []string{"topic-0", "-topic-0"}
	for i := range 5 {
		want = append(want, fmt.Sprint("topic-", i+2))
	}
	for _, n := range c.nodes {
		if !slices.Equal(n.told, want) || !bytes.Equal(n.m.core.state.AppendTo(nil), next.m.core.state.AppendTo(nil)) {
			t.Errorf("node %d was told of %v", n.n, n.told)
		}
	}
	for _, n := range c.nodes {
		for n.flushers.Step() {
		}
		must(t, n.m.Close())
		n.flushers.Close()
		must(t, n.state.Close())
	}
}
