package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
)

// Config says which group a Log belongs to and where it lies.
type Config struct {
	FS       vfs.FS
	Dir      string // the group's own directory
	Identity seglog.Identity
	// State is the node's state file, shared by all groups.
	State *StateFile
	// SameBoot says that the machine has been up since the log was last written: only the process may have crashed.
	SameBoot bool
	// Birth is the base snapshot with which the group was born, nil when the caller does not know it. It is needed when no
	// other is good, and the log still goes back to the birth.
	Birth *Base
	// SegmentBytes and SegmentEntries bound a segment; 0 means the default of seglog.
	SegmentBytes   int64
	SegmentEntries int
}

// Log is the Raft log of one group; it implements raft.Storage. All methods belong to the group's loop, except those
// that say otherwise.
type Log struct {
	cfg      Config
	segments *seglog.Log
	group    seglog.GroupID
	base     Base // see Base
	bases    baseSet
	hard     *pb.HardState // as recorded when the log was opened

	// ring[i] is the stub of index behind+1+i.
	ring    []*pb.Entry
	behind  seglog.Index // applied, or the index of a snapshot that is being installed
	applied seglog.Index
	inReady bool

	cut      seglog.Index // entries from it on are about to be removed; 0: none are
	logStart batch.Offset // while opening: the newest log start that base and entries tell of
}

// Report says what OpenGroup found and did.
type Report struct {
	seglog.Report
	// BadBases says what is wrong with the base snapshots that were passed over, the newest first. WantBases has their
	// segments, and those of which there is none; that of the birth is made anew already.
	BadBases []*BaseDamageError
}

// OpenGroup opens a group's newest good base snapshot and its segments, and reads back those from the base on. The durable
// mark in the state file says what must be whole; seglog.Open documents what becomes of a bad end. What the group's
// unfinished intent wants, and a crash has kept it from, is carried out first; a group that is being deleted cannot be
// opened (fs.ErrNotExist).
//
// Every error leaves the files as they were, but for such an intent, and for ErrFull, after which the call may be repeated:
// what is written again at a start may need room. A *seglog.DamageError, a *BaseDamageError and a lost
// vote mean that the group cannot be used as it is.
func OpenGroup(cfg Config) (*Log, Report, error) {
	l := &Log{cfg: cfg, group: cfg.Identity.Group}
	report, err := l.open()
	if err != nil {
		if l.segments != nil {
			err = errors.Join(err, l.segments.Close())
		}
		return nil, report, fmt.Errorf("open group %d: %w", l.group, asFull(err))
	}
	return l, report, nil
}

func (l *Log) open() (Report, error) {
	recorded, born := l.cfg.State.Group(l.group)
	invariant.Check(born && recorded.Live, "group %d is opened and has no replica here", l.group)
	if err := l.resume(); err != nil {
		return Report{}, err
	}
	found, err := findBases(l.cfg)
	report := Report{BadBases: found.bad}
	if err != nil {
		return report, err
	}
	l.base, l.bases.indexes = found.newest, found.indexes
	l.applied, l.behind, l.logStart = l.base.Index, l.base.Index, l.base.LogStart
	l.segments, report.Report, err = seglog.Open(l.cfg.segments(), seglog.OpenOptions{
		Floor:    recorded.Mark,
		SameBoot: l.cfg.SameBoot,
		From:     l.base.Index + 1,
		Visit:    l.recovered,
	})
	if err != nil {
		if len(found.bad) > 0 {
			err = fmt.Errorf("%w; before that: %w", err, found.bad[0])
		}
		return report, err
	}
	if err := l.finishTruncate(); err != nil {
		return report, err
	}
	if err := l.checkOpened(recorded); err != nil {
		return report, err
	}
	if found.lost {
		if err := WriteBase(l.cfg.FS, l.cfg.Dir, l.base); err != nil {
			return report, err
		}
	}
	first := l.segments.FirstIndex()
	l.bases.remove(func(index seglog.Index) bool { return index < first-1 })
	if err := errors.Join(removeOldBases(l.cfg, first), removeArrived(l.cfg)); err != nil {
		return report, err
	}
	l.hard = &pb.HardState{
		Term:   new(recorded.Term),
		Vote:   new(recorded.Vote),
		Commit: new(uint64(max(l.base.Index, recorded.Commit))),
	}
	return report, nil
}

func (c Config) segments() seglog.Config {
	return seglog.Config{
		FS: c.FS, Dir: c.Dir, Identity: c.Identity, SegmentBytes: c.SegmentBytes, SegmentEntries: c.SegmentEntries,
	}
}

// recovered fills the ring with an entry that was read back. The log lends the entry for the call only.
func (l *Log) recovered(index seglog.Index, entry seglog.Entry, _ batch.Header) error {
	if index <= l.applied {
		return nil
	}
	l.logStart = max(l.logStart, logStartOf(entry))
	entry.Data = bytes.Clone(entry.Data)
	l.ring = append(l.ring, fromLog(index, entry))
	return nil
}

// logStartOf returns the log start that an entry tells of, 0 when it tells of none.
func logStartOf(entry seglog.Entry) batch.Offset {
	if entry.Kind != seglog.KindLogStart || len(entry.Data) != 8 {
		return 0
	}
	return batch.Offset(binary.BigEndian.Uint64(entry.Data))
}

// checkOpened proves what raft takes for granted (it panics otherwise), and that no segment is missing.
func (l *Log) checkOpened(recorded GroupState) error {
	last := l.segments.LastIndex()
	term, err := l.segments.Term(last)
	if err != nil {
		return err
	}
	return judge(l.cfg.Dir, l.base, recorded, findings{
		segments: l.segments.Segments(), last: last, term: term, logStart: l.logStart,
	})
}

// findings are what reading a group has found.
type findings struct {
	segments []seglog.SegmentInfo
	last     seglog.Index // of the log
	term     batch.Term   // of the entry last
	logStart batch.Offset
}

// judge decides whether a group can be used whose segments and whose base are whole.
func judge(dir string, base Base, recorded GroupState, f findings) error {
	damage := func(format string, args ...any) error {
		return &seglog.DamageError{File: dir, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case !slices.ContainsFunc(f.segments, base.fits):
		return &BaseDamageError{Path: basePath(dir, base.Index), Detail: fmt.Sprintf(
			"no segment begins behind entry %d of term %d with offset %d", base.Index, base.Term, base.NextOffset)}
	case f.segments[0].FirstOffset > f.logStart:
		return damage("the first segment begins with offset %d, but the log starts at %d: segments are missing",
			f.segments[0].FirstOffset, f.logStart)
	case recorded.Commit > f.last:
		return damage("log ends at index %d, but %d is recorded as committed", f.last, recorded.Commit)
	case recorded.Term >= math.MaxInt32:
		return damage("the state file records term %d, and no election can follow: a term has 31 bits", recorded.Term)
	case uint64(f.term) > recorded.Term:
		return damage("log ends in term %d, but the state file records term %d: a vote was lost", f.term, recorded.Term)
	}
	return nil
}

// fits says whether a segment begins where the base snapshot stands.
func (b Base) fits(s seglog.SegmentInfo) bool {
	return s.First == b.Index+1 && s.FirstOffset == b.NextOffset && s.PreviousTerm == b.Term
}

// Base returns the base snapshot that the group's state is to be rebuilt from: the newest one that was good when the log was
// opened, or the last one that Restored was called with. Its Body belongs to the log, until ReleaseBase.
func (l *Log) Base() Base { return l.base }

// ReleaseBase gives the memory of the base snapshot's Body back. Base has none from then on.
func (l *Log) ReleaseBase() { l.base.Body = nil }

// Segments returns the segment log, for readers; it is safe for concurrent use with one appender.
func (l *Log) Segments() *seglog.Log { return l.segments }

// InitialState implements raft.Storage: what was recorded when the log was opened.
func (l *Log) InitialState() (*pb.HardState, *pb.ConfState, error) {
	return l.hard, l.base.Members.confState(), nil
}

// BeginReady and EndReady bracket a call of RawNode.Ready. In between, Entries gives stubs (invariant 4).
func (l *Log) BeginReady() { l.inReady = true }

// EndReady ends what BeginReady began.
func (l *Log) EndReady() { l.inReady = false }

// Entries implements raft.Storage. Between BeginReady and EndReady it answers from the ring; else it reads whole
// entries from the segments.
func (l *Log) Entries(lo, hi, maxSize uint64) ([]*pb.Entry, error) {
	if lo <= uint64(l.bases.oldest()) {
		return nil, raft.ErrCompacted
	}
	if hi > uint64(l.segments.LastIndex())+1 {
		return nil, raft.ErrUnavailable
	}
	if l.inReady {
		return l.stubs(lo, hi, maxSize), nil
	}
	return l.readEntries(lo, hi, maxSize)
}

// readEntries reads runs of entries, from lo on and before hi, as long as they have no more than maxSize, but always one.
func (l *Log) readEntries(lo, hi, maxSize uint64) ([]*pb.Entry, error) {
	var entries []*pb.Entry
	for size := uint64(0); lo < hi && (len(entries) == 0 || size < maxSize); {
		budget := int64(min(maxSize-size, math.MaxInt64))
		run, err := l.segments.Entries(seglog.Index(lo), seglog.Index(hi), budget)
		if err != nil {
			return nil, l.compacted("read entry", lo, err)
		}
		for _, entry := range run {
			e := fromLog(seglog.Index(lo), entry)
			if size += uint64(proto.Size(e)); len(entries) > 0 && size > maxSize {
				return entries, nil
			}
			entries = append(entries, e)
			lo++
		}
	}
	return entries, nil
}

func (l *Log) stubs(lo, hi, maxSize uint64) []*pb.Entry {
	first := uint64(l.behind) + 1
	invariant.Check(lo >= first && hi-first <= uint64(len(l.ring)), "entries outside the ring are wanted inside Ready")
	in := l.ring[lo-first : hi-first]
	var size uint64
	for n, e := range in {
		size += uint64(proto.Size(e))
		if n > 0 && size > maxSize {
			in = in[:n]
			break
		}
	}
	return slices.Clone(in)
}

// Term implements raft.Storage.
func (l *Log) Term(i uint64) (uint64, error) {
	switch index := seglog.Index(i); {
	case index < l.bases.oldest():
		return 0, raft.ErrCompacted
	case index > l.segments.LastIndex():
		return 0, raft.ErrUnavailable
	default:
		term, err := l.segments.Term(index)
		if err != nil {
			return 0, l.compacted("read term of entry", i, err)
		}
		return uint64(term), nil
	}
}

// LastIndex implements raft.Storage.
func (l *Log) LastIndex() (uint64, error) { return uint64(l.segments.LastIndex()), nil }

// FirstIndex implements raft.Storage: what lies before it is not served to followers, who get the oldest base snapshot
// instead.
func (l *Log) FirstIndex() (uint64, error) { return uint64(l.bases.oldest()) + 1, nil }

// Staged takes note of the entries of a MsgStorageAppend before it goes to the writer: they will be applied from the
// ring. Those that begin within the ring cut it off there; none of them may be applied. Those that begin behind its end follow
// the snapshot of their message (Writer.Submit). A batch's stub keeps Raft's own copy of the payload alive until it is applied;
// the partition's bound on accepted bytes covers it.
func (l *Log) Staged(entries []*pb.Entry) {
	if len(entries) == 0 {
		return
	}
	switch first, next := seglog.Index(entries[0].GetIndex()), l.behind+seglog.Index(len(l.ring))+1; {
	case first < next:
		invariant.Check(first > l.behind, "group %d is to overwrite entry %d, and %d is applied", l.group, first, l.behind)
		l.cutRing(first)
	case first > next:
		l.ring, l.behind = nil, first-1
	}
	for _, e := range entries {
		next := l.behind + seglog.Index(len(l.ring)) + 1
		invariant.Check(seglog.Index(e.GetIndex()) == next, "group %d stages entry %d, and %d is next", l.group, e.GetIndex(), next)
		l.ring = append(l.ring, stub(e))
	}
}

// cutRing takes the entries from index from on, which is above behind, out of the ring.
func (l *Log) cutRing(from seglog.Index) {
	if left := from - 1 - l.behind; left < seglog.Index(len(l.ring)) {
		clear(l.ring[left:])
		l.ring = l.ring[:left]
	}
}

// restoring empties the ring: a snapshot is going to take the place of what it had. entries are those of the same message,
// behind the snapshot.
func (l *Log) restoring(index seglog.Index, entries []*pb.Entry) {
	invariant.Check(index > l.applied, "group %d gets a snapshot of entry %d, and %d is applied", l.group, index, l.applied)
	l.ring, l.behind = nil, index
	l.Staged(entries)
}

// Restored says that a response with the snapshot b came back from the writer: it is on disk, and the state of the group is
// b's. Base is b from then on. Entries that were staged behind it stay in the ring.
func (l *Log) Restored(b Base) {
	invariant.Check(b.Index > l.applied && b.Index <= l.behind, "group %d is restored at entry %d, applied is %d, %d is being installed",
		l.group, b.Index, l.applied, l.behind)
	l.base, l.applied = b, b.Index
}

// Applied drops from the ring what has been applied, up to and including index.
func (l *Log) Applied(index seglog.Index) {
	invariant.Check(index >= l.applied && index <= l.behind+seglog.Index(len(l.ring)), "applied index is outside the ring")
	l.applied = index
	if index <= l.behind { // a snapshot of what follows is being installed
		return
	}
	n := int(index - l.behind)
	clear(l.ring[:n])
	if l.ring = l.ring[n:]; len(l.ring) == 0 {
		l.ring = nil
	}
	l.behind = index
}

// Close waits for an AddBase or DropBefore that is under way, lets no other begin, and closes the segments. The group's
// Writer must be closed before.
func (l *Log) Close() error {
	l.bases.close()
	return l.segments.Close()
}
