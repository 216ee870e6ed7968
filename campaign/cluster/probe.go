package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/stage"
	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

const (
	// probeEvery is the pace of a probe.
	probeEvery = 20 * time.Millisecond
	// probeWithin bounds the wait for one answer: a node that is frozen costs the probe so much each time.
	probeWithin = 200 * time.Millisecond
)

// probe stores one record after the other in a partition and notes when each was stored: how long the partition is away is
// how long nothing was. A record is sent again, to all nodes at once, until it is stored: as the same batch of one producer,
// so that it is there once.
type probe struct {
	c     *campaign
	at    *stage.Partition
	name  int32
	id    batch.ProducerID
	next  int64
	home  int                // the node that stored the last one, or nobody
	conns []*rawkafka.Client // one to each node, or nil

	mu        sync.Mutex
	successes []time.Time // in their order
}

func newProbe(c *campaign, partition int) *probe {
	return &probe{
		c: c, at: c.Partitions[partition], name: int32(probeName + partition), id: -1,
		home: nobody, conns: make([]*rawkafka.Client, c.nodes.Nodes()),
	}
}

// run probes until stop is closed or ctx ends. What was sent last is stored before that, unless ctx ends.
func (p *probe) run(ctx context.Context, stop <-chan struct{}) {
	defer p.hangUp()
	for p.id == -1 && ctx.Err() == nil {
		for node := range p.conns {
			if p.id == -1 {
				p.id, _, _ = p.c.askForID(ctx, node)
			}
		}
		p.c.Pause(ctx)
	}
	ticker := time.NewTicker(probeEvery)
	defer ticker.Stop()
	for {
		p.storeOne(ctx)
		select {
		case <-ticker.C:
		case <-stop:
			return
		case <-ctx.Done():
			return
		}
	}
}

// storeOne sends one record until it is stored.
func (p *probe) storeOne(ctx context.Context) {
	value := history.AppendPayload(nil, history.Value{Producer: p.name, Number: p.next}, history.PayloadSizeMin)
	raw := rawkafka.Idempotent(p.id, 0, batch.Sequence(p.next), value).Bytes()
	id := p.at.History.Invoke(p.name, p.next, 1)
	p.next++
	for ctx.Err() == nil {
		if p.home != nobody && p.attempt(p.home, raw, id) {
			return
		}
		if p.home = p.everywhere(raw, id); p.home != nobody {
			return
		}
		select {
		case <-p.c.Violated():
			return
		default:
			p.c.Pause(ctx)
		}
	}
}

// everywhere sends a batch to all nodes at once and returns one that has stored it, or nobody.
func (p *probe) everywhere(raw []byte, id history.SendID) int {
	stored := make([]bool, len(p.conns))
	var attempts sync.WaitGroup
	for node := range p.conns {
		attempts.Go(func() { stored[node] = p.attempt(node, raw, id) })
	}
	attempts.Wait()
	return slices.Index(stored, true)
}

// attempt sends a batch to one node and reports whether it is stored.
func (p *probe) attempt(node int, raw []byte, id history.SendID) bool {
	conn := p.conns[node]
	if conn == nil {
		var err error
		if conn, err = rawkafka.Dial(p.c.nodes.Addr(node), rawkafka.Options{Timeout: probeWithin}); err != nil {
			return false
		}
		p.conns[node] = conn
	}
	a, err := conn.Produce(produceVersion, p.at.Topic, p.at.Index, raw)
	if err != nil {
		_ = conn.Close()
		p.conns[node] = nil
		return false
	}
	switch a.Code {
	case 0:
		p.at.History.Stored(id, a.Base)
		p.success(time.Now())
		return true
	case stage.CodeNotLeader, stage.CodeTimedOut, stage.CodeNotEnoughReplicas, stage.CodeCutOff:
	default:
		p.c.Violate("probe, node %d, %v: error code %d %s to a batch that is right", node+1, p.at, a.Code, a.Text)
	}
	return false
}

func (p *probe) hangUp() {
	for _, conn := range p.conns {
		if conn != nil {
			_ = conn.Close()
		}
	}
}

func (p *probe) success(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.successes = append(p.successes, at)
}

// away returns the longest time between two successes, of which the first is before to and the second after from. What is
// before from counts only when the partition could have been there then: away counts from floor on, when that is later. It
// forgets the successes that no later call needs. begun is when it was stored last before.
func (p *probe) away(floor, from, to time.Time) (longest time.Duration, begun time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first, _ := slices.BinarySearchFunc(p.successes, from, time.Time.Compare)
	for i := max(first, 1); i < len(p.successes) && p.successes[i-1].Before(to); i++ {
		last := p.successes[i-1]
		if last.Before(floor) {
			last = floor
		}
		if d := p.successes[i].Sub(last); d > longest {
			longest, begun = d, last
		}
	}
	p.successes = slices.Delete(p.successes, 0, max(first-1, 0))
	return longest, begun
}
