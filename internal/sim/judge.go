package sim

import (
	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/seglog"
)

// judge looks at the end of all: nothing is under way any more.
func (w *world) judge() {
	for _, n := range w.nodes {
		if n.process != nil && n.process.waiting > 0 {
			w.fail("node %d holds %d batches that nobody waits for", n.id, n.process.waiting)
		}
	}
	for _, p := range w.partitions {
		w.judgePartition(p)
	}
	w.raft0.judge()
	if w.failed() {
		return
	}
	w.judgeTables()
}

// judgePartition reads the whole partition, and compares its replicas.
func (w *world) judgePartition(p *partition) {
	m := w.leader(p)
	if m == nil {
		w.fail("group %d has no leader", p.group)
		return
	}
	s := m.partition.Status()
	for _, id := range p.nodes {
		other := w.node(id).process.replicas[p.group].partition.Status()
		if other.HighWatermark != s.HighWatermark || other.LogStart < s.LogStart || other.Term != s.Term || other.Leader != s.Leader {
			w.fail("group %d: node %d is at %+v, the leader at %+v", p.group, id, other, s)
		}
	}
	p.history.Trim(s.LogStart)
	for next := s.LogStart; next < s.HighWatermark; {
		after := w.consume(m, next, 1<<20)
		if after == next {
			w.fail("group %d: nothing is read at offset %d", p.group, next)
			return
		}
		next = after
	}
	if v := p.history.JudgeRealTime(); !v.OK() {
		w.fail("group %d: %v", p.group, v)
	}
}

// judgeTables has each replica end its segment and write the state behind it, and compares these states. Moving the log
// start to the end does that.
func (w *world) judgeTables() {
	ends := map[seglog.GroupID]batch.Offset{}
	for _, p := range w.partitions {
		m := w.leader(p)
		ends[p.group] = m.partition.Status().HighWatermark
		w.trim(m, -1)
	}
	w.runUntil(w.now+quietTime, func() bool { return false })
	for _, p := range w.partitions {
		for _, id := range p.nodes {
			m := w.node(id).process.replicas[p.group]
			m.watchBases()
			compared := false
			for i, known := range m.watched.bases {
				compared = compared || known && p.ledger.at(i) != nil && p.ledger.at(i).high == ends[p.group]
			}
			if !compared && ends[p.group] > 0 {
				w.fail("group %d: node %d has no base snapshot of the end, offset %d: it has %v, status %+v, segments %+v", p.group, id,
					ends[p.group], m.watched.bases, m.partition.Status(), m.log.Segments().Segments())
			}
		}
	}
}
