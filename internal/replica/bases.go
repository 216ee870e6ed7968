package replica

import (
	"errors"
	"log/slog"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
)

const (
	// stockMax and stockBytesMax bound the snapshots of one replica that are not on disk yet. The newest is kept
	// whatever its size: it is the one that shortens the next restart most.
	stockMax      = 16
	stockBytesMax = 32 << 20
)

// stock holds the states that were taken at the beginnings of segments and are not written yet. It belongs to the loop.
// When it overflows, because segments are begun faster than their base snapshots are written or because the disk is full,
// the oldest leaves it: its segment goes without, and can only be removed together with the one before it.
type stock struct {
	frame raftlog.Base // what all base snapshots of the group have in common
	bases []unwritten  // ascending
	bytes int
}

type unwritten struct {
	index seglog.Index
	term  batch.Term
	state state
}

func newStock(frame raftlog.Base) *stock {
	frame.Body = nil
	return &stock{frame: frame}
}

// restart drops all: the log was replaced by a base snapshot.
func (s *stock) restart(frame raftlog.Base) {
	*s = *newStock(frame)
}

func (s *stock) add(index seglog.Index, term batch.Term, st state) {
	s.bases = append(s.bases, unwritten{index: index, term: term, state: st})
	s.bytes += st.size
	for len(s.bases) > 1 && (len(s.bases) > stockMax || s.bytes > stockBytesMax) {
		s.take()
	}
}

// newest is the index of the newest, 0 when there is none.
func (s *stock) newest() seglog.Index {
	if len(s.bases) == 0 {
		return 0
	}
	return s.bases[len(s.bases)-1].index
}

// take removes the oldest.
func (s *stock) take() unwritten {
	oldest := s.bases[0]
	s.bases[0] = unwritten{}
	s.bases = s.bases[1:]
	s.bytes -= oldest.state.size
	return oldest
}

// giveBack puts back what was taken and could not be written, unless the stock is full of newer ones.
func (s *stock) giveBack(u unwritten) {
	if len(s.bases) < stockMax && s.bytes+u.state.size <= stockBytesMax || len(s.bases) == 0 {
		s.bases = append([]unwritten{u}, s.bases...)
		s.bytes += u.state.size
	}
}

// base is the snapshot as it goes to the disk; b has what all of the group have in common. Encoding takes its time: it is
// called outside of the loop.
func (u unwritten) base(b raftlog.Base) raftlog.Base {
	b.Index, b.Term = u.index, u.term
	b.LogStart, b.NextOffset = u.state.logStart, u.state.nextOffset
	b.Body = u.state.body.AppendTo(make([]byte, 0, u.state.size))
	return b
}

// keeper writes a replica's base snapshots and removes the segments that are not needed any more, outside of the loop, one
// thing at a time. All but the jobs belongs to the loop.
type keeper struct {
	log    *raftlog.Log
	stock  *stock
	host   Host
	logger *slog.Logger
	post   func(task) bool
	// flush has the writer write. After a failed sync of the directory nothing may be written any more, and whoever
	// tries next ends the process: that is to be now, not when the next batch comes.
	flush func()

	busy bool
	// failed is the newest in the stock when a base could not be written: none is tried before there is a newer one, or
	// retry says so.
	failed seglog.Index
	// sweep: there may be segments that can be removed. left is the segment before which files could not be removed: the
	// log does not know them any more. 0: none.
	sweep bool
	left  seglog.Index
}

func newKeeper(cfg Config, s *stock, post func(task) bool, flush func()) *keeper {
	return &keeper{log: cfg.Log, stock: s, host: cfg.Host, logger: cfg.Logger, post: post, flush: flush, sweep: true}
}

// work begins the next job, if there is one and none is under way. Nothing below offset start is needed, and no entry before
// needed.
func (k *keeper) work(start batch.Offset, needed seglog.Index) {
	if k.busy {
		return
	}
	if k.stock.newest() > k.failed {
		k.write(k.stock.take())
		return
	}
	if !k.sweep {
		return
	}
	k.sweep = false
	first, ok := droppable(k.log, start, needed)
	if !ok {
		first = k.left
	}
	if first > 0 {
		k.drop(first)
	}
}

// retry has all be tried again that failed.
func (k *keeper) retry() { k.failed, k.sweep = 0, true }

func (k *keeper) write(u unwritten) {
	frame := k.stock.frame // an install may change it while the job runs
	k.run(func() error { return k.log.AddBase(u.base(frame)) }, func(err error) {
		if err != nil {
			k.logger.Warn("base snapshot was not written; it is tried again later", "index", u.index, "error", err)
			k.stock.giveBack(u)
			k.failed = k.stock.newest()
			return
		}
		k.sweep = true
	})
}

func (k *keeper) drop(first seglog.Index) {
	k.run(func() error { return k.log.DropBefore(first) }, func(err error) {
		if k.left = 0; err != nil {
			k.left = first
			k.logger.Warn("segments below the log start were not removed; it is tried again later", "before", first, "error", err)
		}
	})
}

// run has job run in the background, and ended in the loop afterwards. A job that comes to its turn when the log is closed
// does nothing, and one that is under way is waited for by the log's Close.
func (k *keeper) run(job func() error, ended func(error)) {
	k.busy = true
	k.host.Background(func() {
		err := job()
		k.post(func(time.Time) {
			k.busy = false
			ended(err)
			if errors.Is(err, seglog.ErrSync) {
				k.flush()
			}
		})
	})
}

// droppable returns the first index of the newest segment before which nothing is needed any more: all before it lies
// below start and before needed, and its base snapshot is durable.
func droppable(log *raftlog.Log, start batch.Offset, needed seglog.Index) (seglog.Index, bool) {
	segments := log.Segments().Segments()
	for i := len(segments) - 1; i > 0; i-- {
		if s := segments[i]; s.FirstOffset <= start && s.First <= needed && log.HasBase(s.First) {
			return s.First, true
		}
	}
	return 0, false
}
