package peer

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
)

// childOf names the variable in which TestKilledProcess gives its child the address of its parent.
const childOf = "ONCEMQ_PEER_TEST_PARENT"

// childNode is node 2 in a process of its own: it says where it listens, and sends until it is killed.
func childNode(parent string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	up := make(chan struct{}, 1)
	here := Listen(l, slog.New(slog.DiscardHandler), func([]byte) []byte { return nil })
	transport := here.Join(Config{Cluster: testCluster, Self: 2, Disk: diskOf(2), Peers: []Peer{{1, parent, diskOf(1)}},
		Logger: slog.New(slog.DiscardHandler), Handler: &upOnly{up: up}})
	json.NewEncoder(os.Stdout).Encode(l.Addr().String())
	<-up
	for i := uint64(0); ; i++ {
		transport.Send(1, []*pb.Message{appOf(2, 1, i, make([]byte, 4000)), testMessage(pb.MsgHeartbeat, 2, 1, 0)})
		if i%64 == 0 {
			transport.Call(context.Background(), 1, 1, nil) // as fast as the parent takes it in
		}
	}
}

// upOnly is a Handler that waits for its peer.
type upOnly struct {
	nobody
	up chan struct{}
}

func (u *upOnly) Up(NodeID)          { u.up <- struct{}{} }
func (u *upOnly) Down(NodeID)        { os.Exit(1) }
func (u *upOnly) Unreachable(NodeID) {}

// kill -9 in the middle of a stream is told at once, and nothing comes after it.
func TestKilledProcess(t *testing.T) {
	a := newWire(false).newNode(t, 1, "127.0.0.1:0")
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childOf+"="+a.address)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	defer func() {
		if !killed {
			child.Process.Kill()
		}
		child.Wait()
	}()
	var address string
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &address)
	}
	if err != nil {
		t.Fatal(err)
	}
	a.config.Peers = []Peer{{2, address, diskOf(2)}}
	a.join()
	a.await(t, "up")
	for range 1000 {
		a.await(t, "message")
	}
	began := time.Now()
	child.Process.Kill()
	killed = true
	a.await(t, "down")
	took := time.Since(began)
	if took > time.Second { // milliseconds, but for a machine that is busy
		t.Errorf("told after %s", took)
	}
	t.Logf("told after %s", took)
	a.listener.Close()
	for len(a.events) > 0 {
		if e := <-a.events; e.what == "message" || e.what == "down" {
			t.Fatalf("after that has come %+v", e)
		}
	}
}
