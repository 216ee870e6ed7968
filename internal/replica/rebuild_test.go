package replica

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
)

// rebuilt is what a naive reader makes of the entries of a log, one after the other.
type rebuilt struct {
	table          *dedupe.Table
	logStart, next batch.Offset
	index          seglog.Index
	term           batch.Term
}

// rebuildFrom begins with a base snapshot.
func rebuildFrom(t testing.TB, b raftlog.Base) *rebuilt {
	t.Helper()
	table, err := dedupe.Parse(b.Body)
	must(t, err)
	return &rebuilt{table: table, logStart: b.LogStart, next: b.NextOffset, index: b.Index, term: b.Term}
}

func (r *rebuilt) visit(index seglog.Index, e seglog.Entry, h batch.Header) error {
	if index != r.index+1 {
		return fmt.Errorf("entry %d behind %d", index, r.index)
	}
	r.index, r.term = index, e.Term
	var number uint64
	if len(e.Data) >= 8 {
		number = binary.BigEndian.Uint64(e.Data)
	}
	switch e.Kind {
	case seglog.KindBatch:
		if h.BaseOffset != r.next {
			return fmt.Errorf("batch at offset %d, expected %d", h.BaseOffset, r.next)
		}
		if d := r.table.Decide(h.Stamp()); d.Verdict != dedupe.Append {
			return fmt.Errorf("batch at offset %d: %v, %v", h.BaseOffset, d.Verdict, d.Reason)
		}
		r.table.Record(h.Stamp(), h.BaseOffset)
		r.next = h.NextOffset()
	case seglog.KindClock:
		r.table.SetClock(int64(number))
	case seglog.KindExpire, seglog.KindEvict:
		var list []dedupe.Forgotten
		for at := 4; at < len(e.Data); at += 14 {
			list = append(list, dedupe.Forgotten{
				ID:           batch.ProducerID(binary.BigEndian.Uint64(e.Data[at:])),
				Epoch:        batch.Epoch(binary.BigEndian.Uint16(e.Data[at+8:])),
				NextSequence: batch.Sequence(binary.BigEndian.Uint32(e.Data[at+10:])),
			})
		}
		r.table.Forget(list)
	case seglog.KindLogStart:
		r.logStart = max(r.logStart, batch.Offset(number))
	case seglog.KindEmpty:
	default:
		return fmt.Errorf("entry %d of kind %d", index, e.Kind)
	}
	return r.table.Check()
}

// differs says in what the state differs from a base snapshot at its place, "" in nothing.
func (r *rebuilt) differs(b raftlog.Base) string {
	if r.index != b.Index || r.term != b.Term || r.logStart != b.LogStart || r.next != b.NextOffset {
		return fmt.Sprintf("base is at index %d term %d log start %d next offset %d, rebuilt is %d %d %d %d",
			b.Index, b.Term, b.LogStart, b.NextOffset, r.index, r.term, r.logStart, r.next)
	}
	if want := r.table.AppendTo(nil); !bytes.Equal(want, b.Body) {
		return fmt.Sprintf("base at index %d has the table\n%x, rebuilt is\n%x", b.Index, b.Body, want)
	}
	return ""
}

// rebuild reads the log of a partition that is closed from its oldest base snapshot on, and holds each later base snapshot
// against what it has read up to there.
func rebuild(t testing.TB, fsys vfs.FS) *rebuilt {
	t.Helper()
	cfg := stackConfig(fsys, nil, true)
	bases := map[seglog.Index]raftlog.Base{}
	indexes, err := raftlog.ListBases(fsys, cfg.Dir)
	must(t, err)
	for _, index := range indexes {
		b, err := raftlog.ReadBase(fsys, filepath.Join(cfg.Dir, fmt.Sprintf("%020d.base", index+1)))
		must(t, err)
		bases[index] = b
	}
	r := rebuildFrom(t, bases[indexes[0]])
	compared := 1
	log, _, err := seglog.Open(seglog.Config{FS: fsys, Dir: cfg.Dir, Identity: cfg.Identity}, seglog.OpenOptions{
		SameBoot: true,
		Visit: func(index seglog.Index, e seglog.Entry, h batch.Header) error {
			if b, is := bases[index-1]; is && index-1 != indexes[0] {
				compared++
				if d := r.differs(b); d != "" {
					t.Error(d)
				}
			}
			return r.visit(index, e, h)
		},
	})
	must(t, err)
	must(t, log.Close())
	if last := indexes[len(indexes)-1]; last == r.index && last != indexes[0] {
		compared++
		if d := r.differs(bases[last]); d != "" {
			t.Error(d)
		}
	}
	if compared != len(indexes) {
		t.Errorf("%d of the bases %v stand inside the log, which ends with %d", compared, indexes, r.index)
	}
	return r
}

// base is the state of a partition that is closed, as its base snapshot would be.
func (s *stack) base() raftlog.Base {
	p := s.partition.core
	return raftlog.Base{
		Index: p.applied, Term: p.appliedTerm, LogStart: p.logStart, NextOffset: p.high, Body: p.table.AppendTo(nil),
	}
}

// checkRebuilt demands that a partition that is closed had the state that its log alone adds up to.
func checkRebuilt(t testing.TB, s *stack) {
	t.Helper()
	if d := rebuild(t, s.fs).differs(s.base()); d != "" {
		t.Error(d)
	}
}
