package server

import (
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
)

// floodEach is what a connection may cost beside what the budgets count: two goroutines and small buffers, the end of the
// client included, and what it may hold of answers and of decoded requests without asking.
const floodEach = 20<<10 + 2*ownBytes

// live is how much of the heap is in use.
func live() int64 {
	var m runtime.MemStats
	for range 3 { // pooled buffers survive two
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// flood opens connections that all send the same and read nothing.
func (h *harness) flood(clients int, bytes []byte) (close func()) {
	var conns []net.Conn
	for range clients {
		nc := h.listener.dial()
		conns = append(conns, nc)
		go nc.Write(bytes)
	}
	synctest.Wait()
	return func() {
		for _, nc := range conns {
			nc.Close()
		}
	}
}

// floodCase is a crowd of clients that all send the same, and one that behaves.
type floodCase struct {
	name    string
	clients int
	budget  int64 // of each kind
	kinds   int64 // of which the crowd uses
	hostile []byte
	good    kmsg.Request
	within  time.Duration // the good one is answered
}

func (x floodCase) run(t *testing.T) {
	node := newFakeNode()
	node.add("t", 1)
	node.at("t", 0).append(plain(1, strings.Repeat("x", 1<<20-batch.HeaderSize)))
	node.add("wide", 5000)
	h := start(t, Config{QueuedRequestBytesMax: x.budget, ConnectionIdleMax: -1}, node)
	defer h.stop()
	kinds := &h.server.budgets
	for _, b := range []*budget{&kinds.producing, &kinds.requests, &kinds.working, &kinds.answers} {
		b.bound(x.budget)
	}
	before := live()
	defer h.flood(x.clients/5, x.hostile)()
	good := h.client()
	defer good.close()
	began := time.Now()
	good.send(x.good)
	synctest.Wait()
	defer h.flood(x.clients-x.clients/5, x.hostile)()
	held := live() - before
	good.receive()
	took := time.Since(began)
	bound := x.kinds*x.budget + int64(x.clients)*floodEach
	t.Logf("%s: %d clients hold %d KiB, at most %d; the good one was answered after %v", x.name, x.clients, held>>10, bound>>10, took)
	if held > bound {
		t.Errorf("%s: %d bytes are held, want at most %d", x.name, held, bound)
	}
	if took > x.within {
		t.Errorf("%s: the good client was answered after %v", x.name, took)
	}
}

// Whatever a crowd of clients does that sends half a request or does not take its answers, the memory that it holds is
// bounded, and clients that do neither get through while the crowd is there.
func TestFloods(t *testing.T) {
	const large, rounds = 1 << 20, 30 * time.Second
	produce := one(9, -1, plain(1, strings.Repeat("x", large-batch.HeaderSize)))
	larger := one(9, -1, plain(1, strings.Repeat("x", 5*large)))
	fetch := fetchOf(12, 0)
	fetch.MaxBytes, fetch.Topics[0].Partitions[0].PartitionMaxBytes = large, large
	wide := metadataOf(9, "wide")
	creations := createOf(7, nil)
	creations.ValidateOnly = true
	for i := range 300 {
		topic := creations.Topics[0]
		topic.Topic = fmt.Sprintf("creation-%d", i)
		creations.Topics = append(creations.Topics, topic)
	}
	refused := one(9, -1, nil)
	refused.Topics[0].Partitions = make([]kmsg.ProduceRequestTopicPartition, 500)
	idle := fetchOf(4, slices.Repeat([]int64{1}, 4000)...) // the end of the log, 4000 times
	for i := range idle.Topics[0].Partitions {
		idle.Topics[0].Partitions[i].Partition = 0
	}
	waiting := *idle
	waiting.MaxWaitMillis = 300_000
	largest := fetchOf(4, make([]int64, 32_000)...)
	for _, x := range []floodCase{
		{"half a produce", 500, 48 << 20, 1, frameOf(produce, 1)[:large/2], produce, rounds},
		{"the head of a produce", 500, 48 << 20, 1, frameOf(produce, 1)[:12], produce, rounds},
		{"much announced, little sent", 100, 48 << 20, 1, append([]byte{5}, frameOf(produce, 1)[1:large/4]...), larger, rounds},
		{"much announced, little sent, to ordinary ones", 200, 48 << 20, 1, append([]byte{5}, frameOf(produce, 1)[1:large/4]...), produce, 0},
		{"half a large produce", 40, 48 << 20, 1, frameOf(larger, 1)[:3*large], larger, rounds},
		{"fetches whose answer is not read", 500, 24 << 20, 1, frameOf(fetch, 1), fetch, rounds},
		{"half a fetch", 150, 8 << 20, 1, frameOf(largest, 1)[:400_000], idle, rounds},
		{"metadata", 150, 8 << 20, 1, frameOf(wide, 1), wide, rounds},
		{"creations", 150, 8 << 20, 1, frameOf(creations, 1), creations, rounds},
		{"refusals", 150, 8 << 20, 1, slices.Repeat(frameOf(refused, 1), 3), refused, rounds},
		{"fetches that wait", 150, 8 << 20, 3, frameOf(&waiting, 1), idle, rounds},
	} {
		synctest.Test(t, x.run)
	}
}
