package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
)

// loopConn gives the same bytes over and over, as a socket does: with a copy. What is written is forgotten.
type loopConn struct {
	streamConn
	frame []byte
	at    int
}

func (c *loopConn) Read(b []byte) (int, error) {
	n := copy(b, c.frame[c.at:])
	c.at = (c.at + n) % len(c.frame)
	return n, nil
}

// instantPartition answers at once and has one batch at every offset.
type instantPartition struct {
	fakePartition
	data []byte
	next batch.Offset
}

func (p *instantPartition) Submit(s *replica.Submission) error {
	p.next++
	s.Done.Taken()
	s.Done.Done(replica.Ack{Base: p.next})
	return nil
}

func (p *instantPartition) Confirm(context.Context) error { return nil }
func (p *instantPartition) Status() replica.Status {
	return replica.Status{Ready: true, Term: 2, HighWatermark: 10, NextOffset: 10}
}
func (p *instantPartition) Available(batch.Offset, int) (int, error) { return len(p.data), nil }
func (p *instantPartition) Read(dst []byte, _ batch.Offset, _ int, _ bool) ([]byte, error) {
	return append(dst, p.data...), nil
}

// instantNode has such partitions only.
type instantNode struct {
	*fakeNode
	view      *meta.View
	partition Partition
}

func (n *instantNode) Topics() *meta.View                          { return n.view }
func (n *instantNode) Partition([16]byte, int32) (Partition, bool) { return n.partition, true }

func benchmarkRequest(b *testing.B, req kmsg.Request, partition *instantPartition) {
	node := newFakeNode()
	node.add("t", 1000)
	s, err := New(Config{}, &instantNode{node, node.Topics(), partition}, slog.New(slog.DiscardHandler), time.Now)
	if err != nil {
		b.Fatal(err)
	}
	var nc net.Conn = &loopConn{frame: frameOf(req, 1)}
	c := newConnection(s, newConnections(), nc, b.Context(), make(chan struct{}))
	b.ReportAllocs()
	for b.Loop() {
		size, err := c.readHead()
		if err == nil {
			err = c.request(size)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	c.reserveAll()
	if c.queue != nil {
		close(c.queue)
		<-c.written
	}
}

func BenchmarkProduce(b *testing.B) {
	for _, partitions := range []int{1, 100} {
		for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
			if partitions*size > 8<<20 {
				continue
			}
			b.Run(fmt.Sprintf("partitions=%d/bytes=%d", partitions, size), func(b *testing.B) {
				req := one(9, -1, nil)
				req.Topics[0].Partitions = nil
				for i := range partitions {
					p := kmsg.NewProduceRequestTopicPartition()
					p.Partition, p.Records = int32(i), plain(10, string(make([]byte, size-batch.HeaderSize)))
					req.Topics[0].Partitions = append(req.Topics[0].Partitions, p)
				}
				b.SetBytes(int64(partitions * size))
				benchmarkRequest(b, req, &instantPartition{})
			})
		}
	}
}

func BenchmarkFetch(b *testing.B) {
	for _, partitions := range []int{1, 100} {
		for _, size := range []int{1 << 10, 64 << 10} {
			b.Run(fmt.Sprintf("partitions=%d/bytes=%d", partitions, size), func(b *testing.B) {
				data := plain(10, string(make([]byte, size-batch.HeaderSize)))
				req := fetchOf(12, make([]int64, partitions)...)
				req.MaxWaitMillis = 500
				b.SetBytes(int64(partitions * size))
				benchmarkRequest(b, req, &instantPartition{data: data})
			})
		}
	}
}
