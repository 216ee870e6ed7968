package peer

import (
	"context"
	"fmt"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/seglog"
)

// counter is a Handler that says when a message has come.
type counter struct {
	*recorder
	came chan struct{}
}

func (c *counter) Message(NodeID, seglog.GroupID, *pb.Message) { c.came <- struct{}{} }
func (c *counter) Call(context.Context, NodeID, uint8, []byte) ([]byte, error) {
	return nil, nil
}

// BenchmarkMsgApp sends MsgApp over loopback, 16 of them on their way at a time.
func BenchmarkMsgApp(b *testing.B) {
	for _, size := range []struct{ entries, bytes int }{{64, kib}, {16, 16 * kib}, {1, mib}} {
		b.Run(fmt.Sprintf("%dx%dKiB", size.entries, size.bytes/kib), func(b *testing.B) {
			w := newWire(false)
			x, y := w.newNode(b, 1, "127.0.0.1:0"), w.newNode(b, 2, "127.0.0.1:0")
			x.config.Peers = []Peer{{2, y.address, diskOf(2)}}
			y.config.Peers = []Peer{{1, x.address, diskOf(1)}}
			sink := &counter{y.recorder, make(chan struct{}, 1024)}
			y.config.Handler = sink
			x.join()
			y.join()
			x.await(b, "up")
			var payloads [][]byte
			for range size.entries {
				payloads = append(payloads, randomBytes(size.bytes))
			}
			m := []*pb.Message{appOf(1, 2, 1, payloads...)}
			b.SetBytes(int64(size.entries * size.bytes))
			b.ReportAllocs()
			sent := 0
			for b.Loop() {
				x.transport.Send(1, m)
				if sent++; sent > 16 {
					<-sink.came
				}
			}
			for range min(sent, 16) {
				<-sink.came
			}
		})
	}
}
