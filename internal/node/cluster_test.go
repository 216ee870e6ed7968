package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/founding"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// wires is a network in memory: each node listens at its address, and a node that is cut off reaches nobody.
type wires struct {
	mu        sync.Mutex
	listeners map[string]*socket
	open      map[net.Conn][2]string // both ends, with the addresses of who dialed and who was dialed
	cutOff    map[string]bool
}

func newWires() *wires {
	return &wires{listeners: map[string]*socket{}, open: map[net.Conn][2]string{}, cutOff: map[string]bool{}}
}

// socket is a listener.
type socket struct {
	wires   *wires
	address string
	calls   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func (w *wires) listen(address string) *socket {
	s := &socket{wires: w, address: address, calls: make(chan net.Conn), closed: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listeners[address] = s
	return s
}

func (s *socket) Accept() (net.Conn, error) {
	select {
	case c := <-s.calls:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *socket) Close() error {
	s.once.Do(func() {
		close(s.closed)
		s.wires.mu.Lock()
		defer s.wires.mu.Unlock()
		if s.wires.listeners[s.address] == s {
			delete(s.wires.listeners, s.address)
		}
	})
	return nil
}

func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.address, Net: "memory"} }

// dialer returns what a node dials with.
func (w *wires) dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) {
		w.mu.Lock()
		s, ok := w.listeners[to]
		if !ok || w.cutOff[from] || w.cutOff[to] {
			w.mu.Unlock()
			return nil, errors.New("connection refused")
		}
		near, far := net.Pipe()
		w.open[near], w.open[far] = [2]string{from, to}, [2]string{from, to}
		w.mu.Unlock()
		select {
		case s.calls <- far:
			return near, nil
		case <-s.closed:
		case <-ctx.Done():
		}
		_ = near.Close()
		return nil, errors.New("connection refused")
	}
}

// cut ends all connections of a node, and lets none be made until it is joined.
func (w *wires) cut(address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cutOff[address] = true
	for c, ends := range w.open {
		if ends[0] == address || ends[1] == address {
			_ = c.Close()
			delete(w.open, c)
		}
	}
}

func (w *wires) join(address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.cutOff, address)
}

// crew is a cluster of several nodes, each on a file system of its own. It lives in a bubble of synctest.
type crew struct {
	t        *testing.T
	wires    *wires
	founders []string
	fs       []vfs.FS
	mu       sync.Mutex
	nodes    []*Node // nil: it does not run; changed with mu held
	boots    []byte  // of the machines
	change   func(*Config)
}

// form makes a cluster, and closes what of it runs at the end of the test.
func form(t *testing.T, count int) *crew {
	t.Helper()
	c := &crew{t: t, wires: newWires(), fs: make([]vfs.FS, count), nodes: make([]*Node, count), boots: make([]byte, count)}
	for i := range count {
		c.founders = append(c.founders, fmt.Sprintf("node%d:9192", i+1))
		c.fs[i] = memfs.New()
	}
	c.startAll()
	return c
}

func (c *crew) startAll() {
	c.t.Helper()
	var all sync.WaitGroup
	for i := range c.nodes {
		all.Go(func() {
			if err := c.start(i); err != nil {
				c.t.Errorf("node %d: %v", i+1, err)
			}
		})
	}
	all.Wait()
	if c.t.Failed() {
		c.t.FailNow()
	}
}

// start starts a node; i counts from 0.
func (c *crew) start(i int) error {
	address := c.founders[i]
	c.wires.join(address)
	cfg := config
	cfg.Founders, cfg.PeerAddress, cfg.PeerListener = c.founders, address, c.wires.listen(address)
	cfg.Host, cfg.Port = fmt.Sprintf("kafka%d", i+1), 9092
	if c.change != nil {
		c.change(&cfg)
	}
	e := env(c.t, c.fs[i], c.boots[i])
	e.Dial = c.wires.dialer(address)
	if out, ok := os.LookupEnv("NODE_TEST_LOG"); ok && out != "" {
		e.Logger = slog.New(slog.NewTextHandler(io.Writer(os.Stderr), nil)).With("on", i+1)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	n, err := Open(ctx, e, cfg)
	c.set(i, n)
	return err
}

// set puts a node, or none, in a place, and returns the one before.
func (c *crew) set(i int, n *Node) (before *Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.nodes[i] = c.nodes[i], n
	return before
}

func (c *crew) stop(i int) {
	c.t.Helper()
	closeNode(c.t, c.set(i, nil))
}

func (c *crew) stopAll() {
	c.t.Helper()
	var all sync.WaitGroup
	for i, n := range slices.Clone(c.nodes) {
		if n != nil {
			all.Go(func() { c.stop(i) })
		}
	}
	all.Wait()
}

// kill ends a node as the end of its process would: nobody hears of it again, and its files are as they were at that
// moment.
func (c *crew) kill(i int) {
	c.t.Helper()
	c.wires.cut(c.founders[i])
	n := c.set(i, nil)
	c.fs[i] = c.fs[i].(*memfs.FS).KillClone()
	if err := n.Close(); err != nil {
		c.t.Logf("close of the killed node %d: %v", i+1, err)
	}
}

// powerOff ends a node and its machine: of what was not synced, only a part is on the disk.
func (c *crew) powerOff(i int, rng *rand.Rand) {
	c.t.Helper()
	c.wires.cut(c.founders[i])
	n := c.set(i, nil)
	c.fs[i] = c.fs[i].(*memfs.FS).CrashClone(50, rng)
	c.boots[i]++
	if err := n.Close(); err != nil {
		c.t.Logf("close of node %d, whose machine is off: %v", i+1, err)
	}
}

// becomes waits until a condition holds, for at most a minute of the bubble's time. It returns how long that took.
func becomes(t testing.TB, what string, holds func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for ; !holds(); <-look.C {
		if time.Since(start) > time.Minute {
			t.Fatalf("in vain: %s", what)
		}
	}
	return time.Since(start)
}

// sees waits until a node has a topic.
func (c *crew) sees(i int, name string) *meta.Topic {
	c.t.Helper()
	var topic *meta.Topic
	becomes(c.t, fmt.Sprintf("node %d sees %s", i+1, name), func() (ok bool) {
		topic, ok = c.nodes[i].Topics().ByName(name)
		return ok
	})
	return topic
}

// leader waits until all running nodes agree on who leads a partition, and returns its place among the nodes.
func (c *crew) leader(topic *meta.Topic, partition int32) int {
	c.t.Helper()
	var leader int32
	becomes(c.t, fmt.Sprintf("one leader of %s/%d", topic.Name, partition), func() bool {
		leader = -1
		for _, n := range c.nodes {
			if n == nil {
				continue
			}
			l := n.Leadership(topic, partition)
			if !l.Ready || leader != -1 && leader != l.Leader {
				return false
			}
			leader = l.Leader
		}
		return c.nodes[leader-1] != nil
	})
	return int(leader) - 1
}

func newTopic(name string, partitions int32, replication int16) NewTopic {
	return NewTopic{Name: name, Partitions: partitions, Replication: replication}
}

func (c *crew) create(i int, topic NewTopic) *meta.Topic {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	made, err := c.nodes[i].CreateTopic(ctx, topic, false)
	if err != nil {
		c.t.Fatalf("create %s on node %d: %v", topic.Name, i+1, err)
	}
	return made
}

// Nodes found a cluster, and are themselves again after a restart.
func TestNodesFoundACluster(t *testing.T) {
	for _, count := range []int{1, 2, 3, 5} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testFounding(t, count) })
		})
	}
}

func testFounding(t *testing.T, count int) {
	c := form(t, count)
	id := c.nodes[0].ClusterID()
	var starts []batch.ProducerID
	for restart := range 3 {
		for i, n := range c.nodes {
			if n.ClusterID() != id || n.NodeID() != int32(i)+1 {
				t.Errorf("restart %d: node %d is node %d of cluster %s", restart, i+1, n.NodeID(), n.ClusterID())
			}
			starts = append(starts, producerID(t, n)>>32)
			becomes(t, "all brokers", func() bool { return len(n.Brokers()) == count })
		}
		c.stopAll()
		c.startAll()
	}
	c.stopAll()
	slices.Sort(starts)
	if different := len(slices.Compact(slices.Clone(starts))); different != len(starts) {
		t.Errorf("start numbers %v", starts)
	}
}

// The directory of a stopped node is whole, and a replica whose group has others is not to be cut.
func TestInspectANodeOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := form(t, 3)
		c.create(0, newTopic("payments", 2, 3))
		c.stopAll()
		for i, fs := range c.fs {
			found, err := Inspect(env(t, fs, 0), config.Dir)
			if err != nil || len(found.Problems)+len(found.Warnings) > 0 || len(found.Groups) != 3 || found.Node != int32(i)+1 {
				t.Errorf("node %d: %+v, %v", i+1, found, err)
			}
			for _, g := range found.Groups {
				if !g.Opens || len(g.Findings)+len(g.Warnings) > 0 {
					t.Errorf("node %d: %+v", i+1, g)
				}
			}
		}
		log := filesOf(t, c.fs[0], 1, ".log")[0]
		change(t, c.fs[0], log, func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
		if lost, err := GiveUp(env(t, c.fs[0], 0), config.Dir, "payments", 0); err == nil {
			t.Errorf("a replica of several is cut: %+v", lost)
		}
	})
}

// A topic that is created, or deleted, on any node is so on all.
func TestTopicsOfAllNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := form(t, 3)
		for i := range c.nodes {
			topic := c.create(i, newTopic(fmt.Sprintf("topic%d", i), 3, -1))
			for j, n := range c.nodes {
				seen := c.sees(j, topic.Name)
				for p := range int32(3) {
					if l := seen.Partitions[p].Replicas; len(l) != 3 {
						t.Errorf("replicas %v", l)
					}
					if took := becomes(t, "a leader", func() bool { return n.Leadership(seen, p).Ready }); took > time.Second {
						t.Errorf("node %d knows the leader of %s/%d after %v", j+1, seen.Name, p, took)
					}
				}
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for i, n := range c.nodes {
			topic := c.sees((i+1)%3, fmt.Sprintf("topic%d", i))
			if err := n.DeleteTopic(ctx, topic); err != nil {
				t.Error(err)
			}
			for _, other := range c.nodes {
				becomes(t, "deletion", func() bool { _, there := other.Topics().ByName(topic.Name); return !there })
			}
		}
		c.stopAll()
	})
}

// What was stored by a leader that is killed then has its old offset when it is sent again to the next one.
func TestRetryAtTheNextLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := form(t, 3)
		topic := c.create(0, newTopic("payments", 1, 3))
		id := producerID(t, c.nodes[0])
		first := c.leader(topic, 0)
		for i := range int32(5) {
			if a := produceAt(t, c.nodes[first], topic, 0, id, i); a.Err != nil || int32(a.Base) != i {
				t.Fatalf("batch %d: %+v", i, a)
			}
		}
		c.kill(first)
		next := c.leader(topic, 0)
		for i := range int32(5) {
			if a := produceAt(t, c.nodes[next], topic, 0, id, i); a.Err != nil || int32(a.Base) != i {
				t.Errorf("retry of batch %d: %+v", i, a)
			}
		}
		if err := c.start(first); err != nil {
			t.Fatal(err)
		}
		c.stopAll()
	})
}

// produceAt stores one batch of one record for acks=all, and returns its answer.
func produceAt(t testing.TB, n *Node, topic *meta.Topic, partition int32, id batch.ProducerID, sequence int32) replica.Ack {
	t.Helper()
	p, ok := n.Partition(topic.ID, partition)
	if !ok {
		t.Fatalf("node %d has no replica of %s/%d", n.NodeID(), topic.Name, partition)
	}
	d := make(done, 1)
	s := submission(t, id, batch.Sequence(sequence), d)
	s.Acks = -1
	if err := p.Submit(s); err != nil {
		t.Fatal(err)
	}
	return <-d
}

// A node whose disk was emptied does not come back under its old identity, and a directory of a founder is opened with the
// same founders only.
func TestIdentityIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := form(t, 3)
		c.stop(2)
		whole := c.fs[2]
		if _, err := Open(t.Context(), env(t, whole, 1), config); !errors.Is(err, founding.ErrFounders) {
			t.Errorf("a founder that is started alone: %v", err)
		}
		c.fs[2] = memfs.New()
		if err := c.start(2); !errors.Is(err, founding.ErrEmptied) {
			t.Errorf("an emptied disk: %v", err)
		}
		c.fs[2] = whole
		if err := c.start(2); err != nil {
			t.Error(err)
		}
		c.stopAll()
	})
}

// A node waits for a majority, and stops when it is told to while it waits.
func TestStartWithoutAMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := form(t, 3)
		c.stopAll()
		if err := c.start(0); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a node alone is ready: %v", err)
		}
		c.startAll()
		c.stopAll()
	})
}
