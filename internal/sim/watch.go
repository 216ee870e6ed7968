package sim

import (
	"errors"
	"fmt"
	"path/filepath"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/seglog"
)

// watched is what was seen of one replica in one run of its process.
type watched struct {
	status replica.Status
	last   seglog.Index // of the log
	seen   seglog.Index // committed entries up to here were compared
	bases  map[seglog.Index]bool
}

// led takes what a replica says of its group's leader.
func (m *member) led(l replica.Leadership) {
	w := m.process.node.world
	w.trace.add(w.now, "node %d g%d: leader %x term %d ready %t in sync %d", m.process.node.id, m.spec.group, l.Leader, l.Term, l.Ready, len(l.InSync))
	if l.Leader == 0 {
		return
	}
	known, ok := m.spec.ledger.leaders[l.Term]
	if ok && known != l.Leader {
		w.fail("group %d: node %d says that %x leads term %d, another one has said %x", m.spec.group, m.process.node.id, l.Leader, l.Term, known)
	}
	m.spec.ledger.leaders[l.Term] = l.Leader
}

// watch looks at a replica after a turn.
func (m *member) watch() {
	if m.metadata != nil {
		m.watchMetadata()
		return
	}
	w, n := m.process.node.world, m.process.node.id
	before, now := m.watched.status, m.partition.Status()
	m.watched.status = now
	switch {
	case now.Offline != nil:
		if !errors.Is(now.Offline, errSync) {
			w.fail("node %d group %d is offline: %v", n, m.spec.group, now.Offline)
		}
	case now.Term < before.Term || now.HighWatermark < before.HighWatermark || now.LogStart < before.LogStart:
		w.fail("node %d group %d goes back from %+v to %+v", n, m.spec.group, before, now)
	case now.LogStart > now.HighWatermark || now.HighWatermark > now.NextOffset:
		w.fail("node %d group %d: offsets in disorder: %+v", n, m.spec.group, now)
	}
	last := m.log.Segments().LastIndex()
	switch {
	case last < m.watched.last:
		w.counts["truncations"]++
	case m.log.Segments().FirstIndex() > m.watched.last+1 && m.watched.last > 0:
		w.counts["installs"]++
	}
	m.watched.last = last
	if now.HighWatermark > before.HighWatermark || m.watched.seen == 0 {
		m.compare(m.committed(now.HighWatermark))
	}
}

// committed returns the last index that is surely committed: that of the last batch below the high watermark.
func (m *member) committed(high batch.Offset) seglog.Index {
	log := m.log.Segments()
	last := m.watched.seen
	for i := max(last+1, log.FirstIndex()); i <= log.LastIndex(); i++ {
		e, err := log.Entry(i)
		if err != nil {
			m.unreadable(i, err)
			return last
		}
		if e.Kind != seglog.KindBatch {
			continue
		}
		if h, _ := batch.ParseHeader(e.Data); h.NextOffset() > high {
			break
		}
		last = i
	}
	return last
}

// compare compares the committed entries up to an index with those of the other replicas.
func (m *member) compare(last seglog.Index) {
	w, log := m.process.node.world, m.log.Segments()
	for i := max(m.watched.seen+1, log.FirstIndex()); i <= last && i <= log.LastIndex(); i++ {
		e, err := log.Entry(i)
		if err != nil {
			m.unreadable(i, err)
			return
		}
		if err := m.spec.ledger.committed(i, e); err != nil {
			w.fail("node %d group %d: %v", m.process.node.id, m.spec.group, err)
			return
		}
	}
	m.watched.seen = max(m.watched.seen, last)
}

// unreadable judges a failed read: what a disk says from which a planted failure is due is nobody's fault.
func (m *member) unreadable(i seglog.Index, err error) {
	if !errors.Is(err, seglog.ErrOutOfRange) {
		m.process.node.world.fail("node %d group %d: read entry %d: %v", m.process.node.id, m.spec.group, i, err)
	}
}

// watchBases compares the base snapshots on the disk that were not looked at yet. What a base covers is committed.
func (m *member) watchBases() {
	w, n := m.process.node.world, m.process.node
	names, err := raftlog.ListBases(n.disk, m.spec.dir())
	if err != nil {
		w.fail("node %d group %d: %v", n.id, m.spec.group, err)
		return
	}
	for _, i := range names {
		if m.watched.bases[i] {
			continue
		}
		m.compare(i)
		base, err := raftlog.ReadBase(n.disk, baseFile(m.spec.dir(), i))
		if err != nil {
			w.fail("node %d group %d: %v", n.id, m.spec.group, err)
			return
		}
		known, err := m.spec.ledger.based(base)
		if err != nil {
			w.fail("node %d group %d: %v", n.id, m.spec.group, err)
			return
		}
		m.watched.bases[i] = known
	}
}

// baseFile is the file of a base snapshot: it is named by the entry behind it.
func baseFile(dir string, i seglog.Index) string {
	return filepath.Join(dir, fmt.Sprintf("%020d.base", uint64(i)+1))
}

// checkSent judges a message as it leaves: what it carries must be whole.
func (w *world) checkSent(m *pb.Message) {
	if m.GetType() != pb.MsgApp {
		return
	}
	for _, e := range m.GetEntries() {
		h, ok := batch.ParseHeader(e.GetData())
		if _, command := raftlog.DecodeCommand(e.GetData()); command || len(e.GetData()) == 0 || e.GetType() != pb.EntryNormal {
			continue
		}
		if !ok || h.Size != len(e.GetData()) || uint64(h.Term) != e.GetTerm() {
			w.fail("%s of term %d carries entry %d of term %d: a batch of %d bytes, %d of them there, stamped with term %d",
				m.GetType(), m.GetTerm(), e.GetIndex(), e.GetTerm(), h.Size, len(e.GetData()), h.Term)
		}
	}
}
