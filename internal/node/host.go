package node

import (
	"log/slog"
	"sync/atomic"

	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/seglog"
)

// host is the node as one replica sees it.
type host struct {
	node   *Node
	group  seglog.GroupID
	logger *slog.Logger           // names the partition
	said   atomic.Pointer[string] // the last damage that was logged
}

var _ replica.Host = (*host)(nil)

// DiskFull implements replica.Host.
func (h *host) DiskFull() bool { return h.node.space.diskFull() }

// Background implements replica.Host.
func (h *host) Background(job func()) { h.node.jobs.add(job) }

// ReserveProducer implements replica.Host.
func (h *host) ReserveProducer() bool {
	for {
		have := h.node.producers.Load()
		if have >= int64(h.node.cfg.ProducersMax) {
			return false
		}
		if h.node.producers.CompareAndSwap(have, have+1) {
			return true
		}
	}
}

// CountProducers implements replica.Host.
func (h *host) CountProducers(n int) { h.node.producers.Add(int64(n)) }

// Damaged implements replica.Host. A client that asks for damaged records once a second makes one line, not one a second.
func (h *host) Damaged(err error) {
	text := err.Error()
	if said := h.said.Swap(&text); said == nil || *said != text {
		h.logger.Error("stored data is damaged", "error", err)
	}
}

// Led implements replica.Host.
func (h *host) Led(l replica.Leadership) { h.node.leaders.led(h.group, l) }
