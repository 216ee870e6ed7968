package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// mustServe demands that the cluster stores a batch.
func mustServe(t *testing.T, c *testbroker.Cluster, topic rawkafka.Topic, away ...int) {
	t.Helper()
	var id batch.ProducerID = -1
	eventually(t, func() (bool, string) {
		conn, err := rawkafka.Dial(c.Addr(leaderOf(t, c, topic, away...)), rawkafka.Options{Timeout: 5 * time.Second})
		if err != nil {
			return false, err.Error()
		}
		defer conn.Close()
		if id == -1 {
			if id, _, err = conn.InitProducerID(); err != nil {
				return false, err.Error()
			}
		}
		a, err := conn.Produce(rawkafka.ProduceVersion, topic, 0, rawkafka.Idempotent(id, 0, 0, []byte("still here")).Bytes())
		return err == nil && a.Code == 0, fmt.Sprintf("code %d (%s), %v", a.Code, a.Text, err)
	})
}

// awaitOutput waits until a process has printed a text.
func awaitOutput(t *testing.T, b *testbroker.Broker, text string) {
	t.Helper()
	eventually(t, func() (bool, string) {
		return strings.Contains(b.Output(), text), fmt.Sprintf("%q is not printed:\n%s", text, lastLines(b.Output(), 20))
	})
}

// mustEnd waits for a process that must not come up: with this exit code, and a text that says why.
func mustEnd(t *testing.T, b *testbroker.Broker, code int, text string) {
	t.Helper()
	got, err := waitExit(t, b)
	if err != nil {
		_ = b.Kill()
		t.Fatal(err)
	}
	if got != code || !strings.Contains(b.Output(), text) {
		t.Errorf("it ended with code %d, want %d and %q:\n%s", got, code, text, b.Output())
	}
}

// A node whose data directory was emptied has forgotten what it voted for and what it has on disk: it must not come back as
// who it was. The others go on, and it comes back with its data.
func emptiedDirectory(t *testing.T, c *testbroker.Cluster) {
	topic := replicatedTopic(t, c, nil)
	for node := range c.Nodes() {
		data := c.Config(node).Data
		if err := c.Node(node).Kill(); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Rename(data, data+".aside"), c.Start(node)); err != nil {
			t.Fatal(err)
		}
		const damage = 5
		mustEnd(t, c.Node(node), damage, "data directory was emptied")
		mustServe(t, c, topic, node)
		if err := errors.Join(os.RemoveAll(data), os.Rename(data+".aside", data), c.Start(node)); err != nil {
			t.Fatal(err)
		}
		awaitWhole(t, c, topic)
	}
}

// Noise at the peer port, a node with another list of founders, and nodes of another cluster are refused with a line that says
// so, on both sides where both can read, and the cluster goes on.
func strangersAtThePeerPort(t *testing.T, c *testbroker.Cluster) {
	topic := replicatedTopic(t, c, nil)
	for _, noise := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n", strings.Repeat("\x00", 100), strings.Repeat("\xff", 100), "\x7f", "\x16\x03\x01\x02\x00",
	} {
		conn := dialPeer(t, c, 0)
		_, _ = io.WriteString(conn, noise) // it may be refused before the end of it
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%.10q: the connection stays open", noise)
		}
	}
	awaitOutput(t, c.Node(0), "refused a connection to the peer port")
	mustServe(t, c, topic)

	addr, err := testbroker.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	other, err := testbroker.Start(testbroker.Config{
		Binary: oncemq(t), Data: filepath.Join(t.TempDir(), "data"), Peer: addr, Founders: []string{addr, c.Config(0).Peer},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Kill()
	awaitOutput(t, other, "the lists of founders differ")
	awaitOutput(t, c.Node(0), "the lists of founders differ")
	mustServe(t, c, topic)
	terminate(t, other)

	foreign, err := testbroker.StartCluster(testbroker.ClusterConfig{Binary: oncemq(t), Dir: t.TempDir(), Nodes: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	awaitNodes(t, foreign)
	theirs := replicatedTopic(t, foreign, nil)
	if err := foreign.Node(2).Kill(); err != nil {
		t.Fatal(err)
	}
	defer forward(t, foreign.Config(2).Peer, c.Config(2).Peer)()
	for node := range 2 {
		awaitOutput(t, foreign.Node(node), "this node and another one refuse each other")
	}
	awaitOutput(t, c.Node(2), "belongs to cluster")
	mustServe(t, c, topic)
	mustServe(t, foreign, theirs, 2)
	awaitWhole(t, c, topic)
}

// dialPeer opens a connection to the peer port of a node, past the links.
func dialPeer(t *testing.T, c *testbroker.Cluster, node int) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", c.Config(node).Peer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// forward brings connections to one address to another one, as a wrong entry in a name service would, until stop is called.
func forward(t *testing.T, from, to string) (stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				target, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer target.Close()
				var back sync.WaitGroup
				back.Go(func() {
					_, _ = io.Copy(conn, target)
					_ = conn.Close()
				})
				_, _ = io.Copy(target, conn)
				_ = target.Close()
				back.Wait()
			})
		}
	})
	return func() {
		_ = l.Close()
	}
}
