package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
)

const segmentSuffix = ".log"

// baseSet knows the base snapshots of a group: those that were found good or made since the group was opened, and those
// older than the one from which its state was rebuilt, which nobody has read yet.
type baseSet struct {
	// changing is held while files are made or removed. Raft's loop never waits for it.
	changing sync.Mutex
	closed   bool // under changing: nothing is made or removed any more

	mu      sync.Mutex // guards indexes; nobody waits for a disk under it
	indexes []seglog.Index
}

func (s *baseSet) oldest() seglog.Index {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.indexes[0]
}

func (s *baseSet) newest() seglog.Index {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.indexes[len(s.indexes)-1]
}

// reset forgets all bases but one.
func (s *baseSet) reset(index seglog.Index) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.indexes = []seglog.Index{index}
}

func (s *baseSet) has(index seglog.Index) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.indexes, index)
}

func (s *baseSet) add(index seglog.Index) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, known := slices.BinarySearch(s.indexes, index); !known {
		s.indexes = slices.Insert(s.indexes, at, index)
	}
}

// remove forgets the bases that which chooses, and says whether one is left; when none would be, it forgets none.
func (s *baseSet) remove(which func(seglog.Index) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(s.indexes), which)
	if len(left) > 0 {
		s.indexes = left
	}
	return len(left) > 0
}

// begin keeps the files for the caller, until it calls s.changing.Unlock. It fails when the log is closed.
func (s *baseSet) begin() error {
	s.changing.Lock()
	if s.closed {
		s.changing.Unlock()
		return fs.ErrClosed
	}
	return nil
}

// close waits for whoever keeps the files, and is the last to do so.
func (s *baseSet) close() {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.closed = true
}

// WantBases returns the first indexes of those segments behind Base that have no base snapshot, ascending. The replay passes
// each of these places.
func (l *Log) WantBases() []seglog.Index {
	var want []seglog.Index
	for _, s := range l.segments.Segments() {
		if s.First > l.base.Index && !l.bases.has(s.First-1) {
			want = append(want, s.First)
		}
	}
	return want
}

// HasBase says whether the segment that begins with first has a base snapshot. Any goroutine may call it.
func (l *Log) HasBase(first seglog.Index) bool { return l.bases.has(first - 1) }

// AddBase makes b the base snapshot of the segment that begins behind b.Index, durable on return. It is a bug if b is not
// the state there. After an error the log is as it was, and the call may be repeated; but seglog.ErrSync, of the
// directory, is final, and the log's Writer meets it, too. A segment that is gone needs none any more: it was dropped, cut off
// with its entries, or a snapshot took the place of the log. Any goroutine may call it.
func (l *Log) AddBase(b Base) error {
	if err := l.bases.begin(); err != nil {
		return fmt.Errorf("add base snapshot at index %d of group %d: %w", b.Index, l.group, err)
	}
	defer l.bases.changing.Unlock()
	segments := l.segments.Segments()
	at := slices.IndexFunc(segments, func(s seglog.SegmentInfo) bool { return s.First == b.Index+1 })
	if at < 0 {
		return nil
	}
	invariant.Check(b.fits(segments[at]), "base snapshot of group %d at index %d, term %d, next offset %d: the segment there begins with %+v",
		l.group, b.Index, b.Term, b.NextOffset, segments[at])
	if err := WriteBase(l.cfg.FS, l.cfg.Dir, b); err != nil {
		if errors.Is(err, seglog.ErrSync) {
			l.segments.Fail(err)
		}
		return err
	}
	l.bases.add(b.Index)
	return nil
}

// DropBefore removes what lies before the segment that begins with first: the segments and their base snapshots. The
// segment must have its own (HasBase). Nothing happens when the log begins behind it already: a snapshot has taken the place
// of all. After an error the call is to be repeated; what is left then is removed at the next start at the latest. Any
// goroutine may call it.
func (l *Log) DropBefore(first seglog.Index) error {
	if err := l.dropBefore(first); err != nil {
		return fmt.Errorf("drop what is before entry %d of group %d: %w", first, l.group, err)
	}
	return nil
}

// dropBefore removes in the order in which they are missed: first nobody is told of the entries any more, then they go, then
// the bases, which without their segments are recognised as left over.
func (l *Log) dropBefore(first seglog.Index) error {
	if err := l.bases.begin(); err != nil {
		return err
	}
	defer l.bases.changing.Unlock()
	if first < l.segments.FirstIndex() {
		return nil
	}
	if !l.HasBase(first) {
		return errors.New("the segment that begins there has no base snapshot")
	}
	l.bases.remove(func(index seglog.Index) bool { return index < first-1 })
	if err := l.segments.DropBefore(first); err != nil {
		return err
	}
	return removeOldBases(l.cfg, first)
}

// removeOldBases removes the base snapshots of segments before the one that begins with first, and what writing one has left
// half-made. It need not be durable: what comes back is removed again.
func removeOldBases(cfg Config, first seglog.Index) error {
	return removeBases(cfg, func(name string) bool {
		index, ok := parseBaseName(name)
		return ok && index < first-1 || strings.HasSuffix(name, baseSuffix+temporarySuffix)
	})
}

// removeArrived removes the base snapshots that arrived for an install that was not begun. It is for a start, when no intent
// is unfinished: later on one that has arrived may be all that there will be.
func removeArrived(cfg Config) error {
	return removeBases(cfg, func(name string) bool {
		return strings.HasSuffix(name, arrivedSuffix) || strings.HasSuffix(name, arrivedSuffix+temporarySuffix)
	})
}

// removeBases removes the files in the directory of a group whose names which chooses.
func removeBases(cfg Config, which func(name string) bool) error {
	names, err := cfg.FS.List(cfg.Dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if which(name) {
			if err := cfg.FS.Remove(filepath.Join(cfg.Dir, name)); err != nil {
				return fmt.Errorf("remove base snapshot: %w", err)
			}
		}
	}
	return nil
}

// Snapshot implements raft.Storage: the oldest base snapshot, from its file, as a whole (Base.AppendTo), so that who receives
// it can verify it (DecodeBase). The log of that one begins where this one does. One that turns out to be damaged is
// forgotten, and the next one is the oldest.
func (l *Log) Snapshot() (*pb.Snapshot, error) {
	for {
		oldest := l.bases.oldest()
		base, err := checkedBase(l.cfg, oldest)
		if err == nil {
			return base.first().snapshot(), nil
		}
		if l.bases.oldest() != oldest {
			continue // DropBefore has removed it meanwhile
		}
		if _, damaged := errors.AsType[*BaseDamageError](err); !damaged ||
			!l.bases.remove(func(index seglog.Index) bool { return index == oldest }) {
			return nil, fmt.Errorf("read the oldest base snapshot of group %d: %w", l.group, err)
		}
	}
}

// first returns the base as that of the first segment of a log: nothing that is before it can be read.
func (b Base) first() Base {
	b.LogStart = b.NextOffset
	return b
}

func (b Base) snapshot() *pb.Snapshot {
	return &pb.Snapshot{
		Data: b.AppendTo(nil),
		Metadata: &pb.SnapshotMetadata{
			Index:     new(uint64(b.Index)),
			Term:      new(uint64(b.Term)),
			ConfState: b.Members.confState(),
		},
	}
}

// compacted makes the error of reading entry i: Raft has a name of its own for what DropBefore removed meanwhile.
func (l *Log) compacted(verb string, i uint64, err error) error {
	if errors.Is(err, seglog.ErrOutOfRange) {
		return raft.ErrCompacted
	}
	return fmt.Errorf("%s %d of group %d: %w", verb, i, l.group, err)
}

// checkedBase reads the base snapshot at an index and checks that it is the group's.
func checkedBase(cfg Config, index seglog.Index) (Base, error) {
	path := basePath(cfg.Dir, index)
	base, err := ReadBase(cfg.FS, path)
	if err == nil && (base.Cluster != cfg.Identity.Cluster || base.Group != cfg.Identity.Group) {
		err = &BaseDamageError{Path: path, Detail: fmt.Sprintf("it belongs to cluster %x group %d", base.Cluster, base.Group)}
	}
	return base, err
}

// foundBases is what the directory of a group has.
type foundBases struct {
	newest  Base               // good
	indexes []seglog.Index     // up to the newest, ascending
	bad     []*BaseDamageError // what is wrong with those above it, the newest first
	lost    bool               // newest is not in the directory: it is that of the birth
}

// findBases looks for the newest base snapshot that is good. When none is, that of the birth does, if it is known and the log
// has all that came behind it.
func findBases(cfg Config) (foundBases, error) {
	var found foundBases
	indexes, err := ListBases(cfg.FS, cfg.Dir)
	if err != nil {
		return found, err
	}
	for n := len(indexes); n > 0; n-- {
		found.newest, err = checkedBase(cfg, indexes[n-1])
		if err == nil {
			found.indexes = indexes[:n]
			return found, nil
		}
		damage, damaged := errors.AsType[*BaseDamageError](err)
		if !damaged {
			return found, err
		}
		found.bad = append(found.bad, damage)
	}
	if len(indexes) == 0 {
		found.bad = append(found.bad, &BaseDamageError{Path: cfg.Dir, Detail: "the group has no base snapshot"})
	}
	if cfg.Birth != nil {
		segments, err := segmentNames(cfg)
		if err != nil {
			return found, err
		}
		if len(segments) == 0 || segments[0] == cfg.Birth.Index+1 {
			found.newest, found.indexes, found.lost = *cfg.Birth, []seglog.Index{cfg.Birth.Index}, true
			return found, nil
		}
	}
	return found, fmt.Errorf("no base snapshot is good: %w", found.bad[0])
}

// segmentNames returns the first indexes by which the segments in the directory of a group are named, ascending.
func segmentNames(cfg Config) ([]seglog.Index, error) {
	names, err := cfg.FS.List(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("list segments: %w", err)
	}
	var firsts []seglog.Index
	for _, name := range names {
		if first, ok := parseSegmentName(name); ok {
			firsts = append(firsts, first)
		}
	}
	return firsts, nil
}

func parseSegmentName(name string) (seglog.Index, bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	first, err := strconv.ParseUint(digits, 10, 64)
	return seglog.Index(first), ok && err == nil && len(digits) == 20
}
