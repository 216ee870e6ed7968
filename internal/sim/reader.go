package sim

import (
	"context"
	"errors"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/replica"
)

// read has a consumer read a part of the partition from a node that serves it.
func (w *world) read(spec *partition) {
	m := w.leader(spec)
	if m == nil || m.process.frozen {
		return
	}
	s := m.partition.Status()
	from := s.LogStart + batch.Offset(w.rng.Int64N(int64(s.HighWatermark-s.LogStart)+1))
	w.consume(m, from, 4096)
}

// consume reads batches from an offset on and hands them to the history. It returns the offset behind them.
func (w *world) consume(m *member, from batch.Offset, most int) batch.Offset {
	data, err := m.partition.Read(nil, from, most, true)
	if err != nil {
		if !errors.Is(err, replica.ErrNotLeader) && !errors.Is(err, replica.ErrOutOfRange) {
			w.fail("node %d group %d: read from offset %d: %v", m.process.node.id, m.spec.group, from, err)
		}
		return from
	}
	read := history.Read{Start: from, End: from}
	for len(data) > 0 {
		h, err := batch.CheckStored(data)
		if err != nil {
			w.fail("node %d group %d: read from offset %d: %v", m.process.node.id, m.spec.group, from, err)
			return from
		}
		first, err := history.ParsePayload(data[batch.HeaderSize:h.Size])
		if err != nil {
			w.fail("node %d group %d: batch at offset %d: %v", m.process.node.id, m.spec.group, h.BaseOffset, err)
			return from
		}
		for i := range h.Count {
			if at := h.BaseOffset + batch.Offset(i); at >= from {
				value := history.Value{Producer: first.Producer, Number: first.Number + int64(i)}
				read.Records = append(read.Records, history.Record{Offset: at, Value: value})
			}
		}
		read.End = h.NextOffset()
		data = data[h.Size:]
	}
	m.spec.history.Read(read)
	return read.End
}

// confirm asks for a linearizable read: what was answered before it was sent must be visible.
func (w *world) confirm(spec *partition) {
	p := w.node(spec.nodes[w.rng.IntN(len(spec.nodes))]).process
	if m := w.leader(spec); m != nil && w.chance(400) {
		p = m.process
	}
	if w.closing || p == nil {
		return
	}
	m, floor := p.replicas[spec.group], spec.ledger.acked
	var err error
	var high batch.Offset
	ask := func(ctx context.Context) {
		err = m.partition.Confirm(ctx)
		high = m.partition.Status().HighWatermark
	}
	heard := func() {
		w.trace.add(w.now, "g%d: confirmed at %d: %d, %v", spec.group, p.node.id, high, err)
		if err == nil && high < floor {
			w.fail("node %d group %d: a confirmed read sees offsets below %d, and %d was answered before", p.node.id, spec.group, high, floor)
		}
	}
	p.laterFrom(&high, w.between(20*time.Microsecond, w.swarm.Latency), func() { w.calls.begin(p, 2*time.Second, ask, heard) })
}

// deleteRecords has a client move the log start.
func (w *world) deleteRecords(spec *partition) {
	m := w.leader(spec)
	if w.closing || m == nil || m.process.frozen {
		return
	}
	s := m.partition.Status()
	before := s.LogStart + batch.Offset(w.rng.Int64N(int64(s.HighWatermark-s.LogStart)+1))
	if w.chance(200) {
		before = -1
	}
	w.trim(m, before)
}

func (w *world) trim(m *member, before batch.Offset) {
	var start batch.Offset
	var err error
	w.calls.begin(m.process, 2*time.Second, func(ctx context.Context) {
		start, err = m.partition.DeleteRecords(ctx, before)
	}, func() {
		w.trace.add(w.now, "g%d: deleted before %d at %d: %d, %v", m.spec.group, before, m.process.node.id, start, err)
		if err == nil && start < before {
			w.fail("group %d: records before %d are deleted, and the log starts at %d", m.spec.group, before, start)
		}
	})
}
