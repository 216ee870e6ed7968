package replica

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// cluster is three replicas of one partition over memory, stepped by the test: everything that happens is the test's doing,
// and follows from its seed.
type cluster struct {
	t         *testing.T
	rng       *rand.Rand
	clock     *testClock
	minInSync int
	lagMax    time.Duration
	nodes     []*clusterNode
	net       []packet
	cut       map[[2]int]bool // what one node sends to another is lost
	loss      int             // in a hundred; so many are also sent twice
	late      time.Duration   // the longest that a message is under way
	events    []event         // what is to happen at a time
	open      []*pending
}

type packet struct {
	from, to int
	at       time.Time
	m        *pb.Message
}

type event struct {
	at time.Time
	do func()
}

// clusterNode is one of them. It is the host of its replica.
type clusterNode struct {
	*testHost
	c        *cluster
	n        int // from 1 upwards
	fs       *memfs.FS
	state    *raftlog.StateFile
	flushers *raftlog.Flushers
	log      *raftlog.Log
	p        *Partition
	step     func() bool
	jobs     []func()
	// frozen: nothing is written there. stopped: nothing runs there.
	frozen, stopped bool
	led             []Leadership
}

func replicaOf(n int) seglog.ReplicaID { return seglog.ReplicaID(n)<<32 | 1 }

func newCluster(t *testing.T, seed uint64, change func(*cluster)) *cluster {
	t.Helper()
	c := &cluster{t: t, rng: rand.New(rand.NewPCG(seed, 6)), clock: newTestClock(), cut: map[[2]int]bool{}}
	if change != nil {
		change(c)
	}
	for n := 1; n <= 3; n++ {
		node := &clusterNode{testHost: &testHost{}, c: c, n: n, fs: memfs.New()}
		c.nodes = append(c.nodes, node)
		node.start()
	}
	t.Cleanup(func() {
		if !t.Failed() {
			c.settle()
			c.close()
		}
	})
	return c
}

// start opens the node's files, which are made first if there are none, and its replica.
func (n *clusterNode) start() {
	t := n.c.t
	t.Helper()
	must(t, n.fs.MkdirAll("data/groups"))
	state, _, err := raftlog.OpenState(n.fs, "data", [16]byte{1})
	if errors.Is(err, raftlog.ErrNoState) {
		state, err = raftlog.CreateState(n.fs, "data", raftlog.NodeIdentity{Cluster: testIdentity.Cluster, Node: uint32(n.n)}, [16]byte{1})
	}
	must(t, err)
	identity := testIdentity
	identity.Replica = replicaOf(n.n)
	cfg := raftlog.Config{FS: n.fs, Dir: "data/groups/7", Identity: identity, State: state, SameBoot: true, SegmentBytes: segmentBytes}
	if _, born := state.Group(testGroup); !born {
		base := newborn()
		base.Cluster, base.Group, base.Index, base.Term = identity.Cluster, testGroup, 1, 1
		for v := 1; v <= 3; v++ {
			base.Members.Voters = append(base.Members.Voters, uint64(replicaOf(v)))
		}
		must(t, raftlog.CreateGroup(cfg, base))
	}
	n.state = state
	n.log, _, err = raftlog.OpenGroup(cfg)
	must(t, err)
	must(t, state.FinishRecovery())
	n.flushers = raftlog.NewFlushers(0, state, raftlog.Events{Fatal: func(err error) { t.Errorf("node %d: fatal: %v", n.n, err) }, Full: func(error) {}})
	settings := testSettings()
	settings.LagMax = n.c.lagMax
	n.p, err = OpenPartition(replicaOf(n.n), Config{
		Log: n.log, Flushers: n.flushers, Clock: n.c.clock, Logger: quiet(), Settings: settings, Host: n, Peers: n,
		MinInSync: n.c.minInSync, Preferred: n.n == 1, After: n.c.after, Stepped: func(step func() bool) { n.step = step },
	})
	must(t, err)
	n.stopped = false
}

func (c *cluster) after(d time.Duration, f func()) {
	c.events = append(c.events, event{c.clock.Now().Add(d), f})
}

// Send implements Peers.
func (n *clusterNode) Send(_ seglog.GroupID, messages []*pb.Message) {
	for _, m := range messages {
		copies := 1
		if n.c.rng.IntN(100) < n.c.loss {
			copies = 2 * n.c.rng.IntN(2)
		}
		to := int(m.GetTo() >> 32)
		if copies == 0 || n.c.cut[[2]int{n.n, to}] {
			copies = 0
			if m.GetType() == pb.MsgSnap {
				n.p.SnapshotSent(seglog.ReplicaID(m.GetTo()), false)
			}
		}
		for range copies {
			at := n.c.clock.Now()
			if n.c.late > 0 {
				at = at.Add(time.Duration(n.c.rng.Int64N(int64(n.c.late))))
			}
			n.c.net = append(n.c.net, packet{n.n, to, at, proto.Clone(m).(*pb.Message)})
		}
	}
}

// Background implements Host.
func (n *clusterNode) Background(job func()) { n.jobs = append(n.jobs, job) }

// Led implements Host.
func (n *clusterNode) Led(l Leadership) { n.led = append(n.led, l) }

// deliver brings the messages that are due.
func (c *cluster) deliver() (some bool) {
	now := c.clock.Now()
	var rest, due []packet
	for _, p := range c.net {
		if p.at.After(now) {
			rest = append(rest, p)
		} else {
			due = append(due, p)
		}
	}
	c.net = rest
	slices.SortStableFunc(due, func(a, b packet) int { return a.at.Compare(b.at) })
	for _, p := range due {
		lost := c.cut[[2]int{p.from, p.to}] || c.nodes[p.to-1].stopped
		if !lost {
			c.nodes[p.to-1].p.Receive(p.m)
		}
		if from := c.nodes[p.from-1]; p.m.GetType() == pb.MsgSnap && !from.stopped {
			from.p.SnapshotSent(seglog.ReplicaID(p.m.GetTo()), !lost)
		}
	}
	return len(due) > 0
}

// run has everything happen that can without time passing.
func (c *cluster) run() {
	for turns := 0; ; turns++ {
		if turns > 2_000 {
			for _, p := range c.net {
				c.t.Logf("%d to %d: %v", p.from, p.to, p.m)
			}
			c.t.Fatal("the cluster does not come to rest")
		}
		some := c.deliver()
		for _, n := range c.nodes {
			if n.stopped {
				continue
			}
			some = n.step() || some
			if !n.frozen {
				some = n.flushers.Step() || some
			}
			jobs := n.jobs
			n.jobs = nil
			for _, job := range jobs {
				job()
				some = true
			}
		}
		if !some {
			return
		}
	}
}

// pass lets time pass, with a tick each 100 ms.
func (c *cluster) pass(d time.Duration) {
	for ; d > 0; d -= 10 * time.Millisecond {
		c.clock.advance(10 * time.Millisecond)
		now := c.clock.Now()
		for i := 0; i < len(c.events); i++ {
			if e := c.events[i]; !e.at.After(now) {
				c.events = slices.Delete(c.events, i, i+1)
				i--
				e.do()
			}
		}
		if d%(100*time.Millisecond) == 0 {
			for _, n := range c.nodes {
				if !n.stopped {
					n.p.Tick()
				}
			}
		}
		c.run()
	}
}

// until lets time pass until something is so.
func (c *cluster) until(what string, so func() bool) {
	c.t.Helper()
	c.run()
	for range 600 {
		if so() {
			return
		}
		c.pass(100 * time.Millisecond)
	}
	for _, n := range c.nodes {
		c.t.Logf("node %d: stopped %v, %+v, %+v", n.n, n.stopped, n.p.Status(), n.p.core.node.BasicStatus())
	}
	c.t.Fatalf("%s: not within a minute", what)
}

// leader waits for a leader that serves, not counting some nodes.
func (c *cluster) leader(without ...int) *clusterNode {
	c.t.Helper()
	var leader *clusterNode
	c.until("a leader", func() bool {
		leader = nil
		for _, n := range c.nodes {
			if !n.stopped && !slices.Contains(without, n.n) && n.p.Status().Ready {
				leader = n
			}
		}
		return leader != nil
	})
	return leader
}

// others are the nodes beside one.
func (c *cluster) others(n *clusterNode) (a, b *clusterNode) {
	rest := slices.DeleteFunc(slices.Clone(c.nodes), func(o *clusterNode) bool { return o == n })
	return rest[0], rest[1]
}

// isolate cuts a node off from the others, or joins it again.
func (c *cluster) isolate(n *clusterNode, off bool) {
	for _, o := range c.nodes {
		c.cut[[2]int{n.n, o.n}], c.cut[[2]int{o.n, n.n}] = off, off
	}
}

// submit hands a copy of b over.
func (n *clusterNode) submit(b []byte, acks int16) *pending {
	n.c.t.Helper()
	mine := bytes.Clone(b)
	h, fault := batch.CheckProduce(mine)
	if fault != batch.FaultNone {
		n.c.t.Fatalf("test batch is bad: %v", fault)
	}
	p := newPending()
	p.batch, p.size = mine, len(mine)
	must(n.c.t, n.p.Submit(&Submission{Batch: mine, Header: h, Acks: acks, Done: p}))
	n.c.open = append(n.c.open, p)
	return p
}

// ended reports whether there is an answer.
func (p *pending) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// produce submits a batch with acks=all and waits for its answer.
func (n *clusterNode) produce(b []byte) Ack {
	n.c.t.Helper()
	p := n.submit(b, -1)
	n.c.until("an answer", p.ended)
	return p.ack
}

func (n *clusterNode) stored(b []byte) batch.Offset {
	n.c.t.Helper()
	a := n.produce(b)
	if a.Err != nil {
		n.c.t.Fatalf("node %d: %v, decision %+v", n.n, a.Err, a.Decision)
	}
	return a.Base
}

// kill ends the node's process: what was written stays. The others hear of it.
func (n *clusterNode) kill(tell bool) {
	n.stopped = true
	n.fs = n.fs.KillClone()
	n.c.net = slices.DeleteFunc(n.c.net, func(p packet) bool { return p.from == n.n })
	if tell {
		for _, o := range n.c.nodes {
			if !o.stopped {
				o.p.Lost(uint32(n.n))
			}
		}
	}
}

// settle joins all, waits until they are level, and compares them: what they store, and what they remember. Everybody has
// an answer, and nothing is held.
func (c *cluster) settle() {
	c.loss, c.late = 0, 0
	clear(c.cut)
	for _, n := range c.nodes {
		n.frozen = false
		if n.stopped {
			n.start()
		}
	}
	l := c.leader()
	for tries := 0; l.produce(batchOf(999, 0, 0, 1, []byte("the last"))).Err != nil; tries++ {
		if tries > 20 {
			c.t.Fatal("a cluster without trouble stores nothing")
		}
		c.pass(time.Second)
		l = c.leader()
	}
	c.until("level replicas", func() bool {
		for _, n := range c.nodes {
			if n.p.core.applied != l.p.core.applied {
				return false
			}
		}
		return true
	})
	for _, n := range c.nodes {
		if !bytes.Equal(n.p.core.table.AppendTo(nil), l.p.core.table.AppendTo(nil)) || n.p.core.high != l.p.core.high {
			c.t.Errorf("nodes %d and %d remember different things", n.n, l.n)
		}
	}
	c.compareLogs()
	for i, p := range c.open {
		if !p.ended() && !p.dead {
			c.t.Errorf("submission %d has no answer", i)
		}
	}
	for _, n := range c.nodes {
		if n.p.loop.box.held != 0 || !n.p.core.flight.empty() || len(n.p.core.inheritors) > 0 || len(n.p.loop.waiting) > 0 {
			c.t.Errorf("node %d holds %d bytes at the end", n.n, n.p.loop.box.held)
		}
		if len(n.damaged()) > 0 {
			c.t.Errorf("node %d: %v", n.n, n.damaged())
		}
	}
}

func (c *cluster) close() {
	for _, n := range c.nodes {
		for n.flushers.Step() {
		}
		must(c.t, n.p.Close())
		n.flushers.Close()
		must(c.t, n.state.Close())
	}
}

// compareLogs compares the entries that all replicas hold.
func (c *cluster) compareLogs() {
	first, last := seglog.Index(0), seglog.Index(1<<60)
	for _, n := range c.nodes {
		first, last = max(first, n.log.Segments().FirstIndex()), min(last, n.log.Segments().LastIndex())
	}
	for i := first; i <= last; i++ {
		var all []string
		for _, n := range c.nodes {
			e, err := n.log.Segments().Entry(i)
			must(c.t, err)
			all = append(all, fmt.Sprintf("%d %d %x", e.Kind, e.Term, e.Data))
		}
		if all[0] != all[1] || all[0] != all[2] {
			c.t.Fatalf("entry %d differs: %.80q", i, all)
		}
	}
}
