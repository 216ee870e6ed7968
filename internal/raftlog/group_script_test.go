package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// stage is what a group must be behind an entry.
type stage struct {
	entry      *pb.Entry // nil behind the birth
	body       []byte    // of a base snapshot that stands here: a sum over all that was applied
	nextOffset batch.Offset
	logStart   batch.Offset
	term       uint64
}

// groupScript drives one group at random and remembers what it must hold.
type groupScript struct {
	rng   *rand.Rand // of the script
	luck  *rand.Rand // of the crashes
	fs    vfs.FS
	cfg   Config
	log   *Log
	flush *Flushers
	w     *Writer

	stages   []stage      // [i] is behind entry 1 + i; what may be written, answered or not
	term     uint64       // the newest one
	answered seglog.Index // the last entry that was answered
	first    seglog.Index // FirstIndex is at most this: DropBefore was called with it
	dropped  seglog.Index // and at least this: DropBefore has returned
	applied  seglog.Index // what is dropped was decided with this entry applied
	based    []seglog.Index
	rolled   []seglog.Index // by Carried, since the log was opened
	full     int            // times that a call found no room
	onFull   func()
	failed   error // the error that ended the process
	steady   bool  // write does not roll
}

func newGroupScript(t testing.TB, seed uint64, mem *memfs.FS, fs vfs.FS) *groupScript {
	t.Helper()
	c := &groupScript{
		rng: rand.New(rand.NewPCG(seed, 5)), luck: rand.New(rand.NewPCG(seed, 6)), fs: fs,
		stages: []stage{{body: []byte("birth"), term: 1}}, term: 1, answered: 1, first: 2, dropped: 2,
		onFull: func() {},
	}
	must(t, mem.MkdirAll("groups"))
	must(t, mem.SyncDir("/"))
	c.cfg = logConfig(mem, createState(t, mem), 1)
	c.cfg.SegmentBytes = 2500
	must(t, CreateGroup(c.cfg, c.base(1)))
	must(t, c.cfg.State.Close())
	return c
}

// base is the base snapshot that stands at an index.
func (c *groupScript) base(index seglog.Index) Base {
	s := c.stages[index-1]
	return Base{
		Cluster: c.cfg.Identity.Cluster, Group: 1, Index: index, Term: batch.Term(s.term),
		Members: Members{Voters: []uint64{uint64(logReplica)}}, LogStart: s.logStart, NextOffset: s.nextOffset, Body: s.body,
	}
}

func (c *groupScript) last() seglog.Index { return seglog.Index(len(c.stages)) }

// after returns the stage behind an entry.
func (s stage) after(e *pb.Entry) stage {
	applied := stub(e)
	b := binary.BigEndian.AppendUint64(s.body, e.GetIndex())
	b = binary.BigEndian.AppendUint64(b, e.GetTerm())
	next := stage{entry: e, nextOffset: s.nextOffset, logStart: s.logStart, term: e.GetTerm()}
	next.body = binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(append(b, applied.GetData()...)))
	switch logged := toLog(e); logged.Kind {
	case seglog.KindBatch:
		h, _ := batch.ParseHeader(e.GetData())
		next.nextOffset = h.NextOffset()
	case seglog.KindLogStart:
		next.logStart = max(s.logStart, logStartOf(logged))
	}
	return next
}

// open opens state file and group.
func (c *groupScript) open(boot [16]byte) error {
	state, report, err := OpenState(c.fs, stateDir, boot)
	if err != nil {
		return err
	}
	cfg := c.cfg
	cfg.FS, cfg.State, cfg.SameBoot = c.fs, state, report.SameBoot
	log, _, err := OpenGroup(cfg)
	if err != nil {
		return errors.Join(err, state.Close())
	}
	if err := state.FinishRecovery(); err != nil {
		return errors.Join(err, log.Close(), state.Close())
	}
	c.cfg, c.log, c.rolled = cfg, log, nil
	c.flush = &Flushers{state: state, markers: marker{state: state, ends: map[seglog.GroupID]seglog.Floor{}}}
	c.w = c.flush.NewWriter(log, c)
	return nil
}

func (c *groupScript) Carried(responses []*pb.Message, rolled []seglog.Index) {
	c.rolled = append(c.rolled, rolled...)
	for _, m := range responses {
		c.answered = max(c.answered, seglog.Index(m.GetIndex()))
	}
}

func (c *groupScript) Failed(err error) { c.failed = err }

func (c *groupScript) close() error {
	return errors.Join(c.flush.markers.write(), c.log.Close(), c.cfg.State.Close())
}

// repeat makes a call again as long as it finds no room.
func (c *groupScript) repeat(call func() error) error {
	for {
		err := call()
		if !errors.Is(err, ErrFull) {
			return err
		}
		c.full++
		c.onFull()
	}
}

// step makes one random call.
func (c *groupScript) step(boot [16]byte) error {
	switch c.rng.IntN(12) {
	default:
		return c.write()
	case 6:
		c.w.flushing = []*pb.Message{nil}
		return c.repeat(c.w.flush)
	case 7, 8:
		return c.addBase()
	case 9:
		return c.drop()
	case 10:
		return c.flush.markers.write()
	case 11:
		if err := c.close(); err != nil {
			return err
		}
		if err := c.repeat(func() error { return c.open(boot) }); err != nil {
			return err
		}
		if c.rng.IntN(2) == 0 {
			return c.truncate(boot)
		}
		return nil
	}
}

// write flushes a few messages, among them sometimes a roll.
func (c *groupScript) write() error {
	var messages []*pb.Message
	for range c.rng.IntN(3) + 1 {
		var entries []*pb.Entry
		for range c.rng.IntN(4) {
			e := c.entry()
			c.stages = append(c.stages, c.stages[len(c.stages)-1].after(e))
			entries = append(entries, e)
		}
		c.log.Staged(entries)
		messages = append(messages, storageAppend(c.term, uint64(logReplica), uint64(c.last()), entries...))
		if !c.steady && c.rng.IntN(5) == 0 {
			messages = append(messages, nil)
		}
	}
	c.w.flushing = messages
	return c.repeat(c.w.flush)
}

// put writes one entry; without data it begins a term.
func (c *groupScript) put(t testing.TB, data []byte) {
	t.Helper()
	if len(data) == 0 {
		c.term++
	}
	e := entry(uint64(c.last())+1, c.term, data)
	c.stages = append(c.stages, c.stages[len(c.stages)-1].after(e))
	c.log.Staged([]*pb.Entry{e})
	must(t, c.w.carry([]*pb.Message{storageAppend(c.term, uint64(logReplica), uint64(c.last()), e)}))
}

// roll begins a segment with a base snapshot.
func (c *groupScript) roll(t testing.TB) {
	t.Helper()
	must(t, c.w.carry([]*pb.Message{nil}))
	must(t, c.log.AddBase(c.base(c.last())))
	c.based = append(c.based, c.last()+1)
}

// logStartAt is the command that moves the log start.
func logStartAt(offset batch.Offset) []byte {
	return EncodeCommand(seglog.KindLogStart, binary.BigEndian.AppendUint64(nil, uint64(offset)))
}

// entry is the next one.
func (c *groupScript) entry() *pb.Entry {
	s, index := c.stages[len(c.stages)-1], uint64(c.last())+1
	switch c.rng.IntN(8) {
	case 0:
		c.term++
		return entry(index, c.term, nil)
	case 1:
		return entry(index, s.term, EncodeCommand(seglog.KindClock, make([]byte, 8)))
	case 2:
		start := s.logStart + batch.Offset(c.rng.Int64N(int64(s.nextOffset-s.logStart)+1))
		return entry(index, s.term, logStartAt(start))
	}
	return entry(index, s.term, storedBatch(s.nextOffset, batch.Term(s.term), strings.Repeat("x", c.rng.IntN(400))))
}

// addBase makes the base snapshot of a segment, if one has none.
func (c *groupScript) addBase() error {
	for _, s := range c.log.Segments().Segments() {
		if !c.log.HasBase(s.First) && s.First > c.dropped && c.rng.IntN(2) == 0 {
			err := c.repeat(func() error { return c.log.AddBase(c.base(s.First - 1)) })
			if err == nil {
				c.based = append(c.based, s.First)
			}
			return err
		}
	}
	return nil
}

// drop drops what is below the log start.
func (c *groupScript) drop() error {
	for _, s := range slices.Backward(c.log.Segments().Segments()) {
		if c.log.HasBase(s.First) && s.FirstOffset <= c.stages[c.answered-1].logStart && s.First > c.first {
			c.first, c.applied = s.First, c.answered
			if err := c.log.DropBefore(s.First); err != nil {
				return err
			}
			c.dropped = s.First
			return nil
		}
	}
	return nil
}

// truncate takes entries away that are not applied.
func (c *groupScript) truncate(boot [16]byte) error {
	newest := max(c.applied, c.log.bases.indexes[len(c.log.bases.indexes)-1])
	if newest >= c.last() {
		return nil
	}
	from := newest + 1 + seglog.Index(c.rng.IntN(int(c.last()-newest)))
	c.answered = min(c.answered, from-1)
	if err := c.repeat(func() error { return c.log.Truncate(from) }); err != nil {
		return err
	}
	c.stages = c.stages[:from-1]
	if _, unfinished := c.cfg.State.unfinished(1); unfinished {
		return errors.New("a truncation has ended and is not done")
	}
	return errors.Join(c.close(), c.repeat(func() error { return c.open(boot) }))
}

// checkDisk opens what a crash or a kill has left, and demands that all is there that was answered, and nothing that was not
// written; that the state can be rebuilt; and that the group can be used.
func (c *groupScript) checkDisk(t testing.TB, disk *memfs.FS, boot [16]byte) {
	t.Helper()
	state, report := openState(t, disk, boot)
	cfg := c.cfg
	cfg.FS, cfg.State, cfg.SameBoot = disk, state, report.SameBoot
	l, found, err := OpenGroup(cfg)
	must(t, err)
	if len(found.BadBases) > 0 {
		t.Fatalf("bad bases: %v", found.BadBases)
	}
	last := c.checkLog(t, l)
	first, _ := l.FirstIndex()
	// A segment without a base, on the way to be dropped, may be the first that is left.
	if oldest := l.Segments().FirstIndex(); first > uint64(c.first) || oldest < c.dropped || seglog.Index(first) < oldest {
		t.Fatalf("first index %d, segments from %d, dropped %d to %d", first, l.Segments().FirstIndex(), c.dropped, c.first)
	}
	for _, s := range l.Segments().Segments() {
		if slices.Contains(c.based, s.First) && !l.HasBase(s.First) {
			t.Fatalf("the base of segment %d is gone", s.First)
		}
	}
	for _, first := range l.WantBases() {
		must(t, l.AddBase(c.base(first-1)))
	}
	f := &Flushers{state: state, markers: marker{state: state, ends: map[seglog.GroupID]seglog.Floor{}}}
	hard, _, err := l.InitialState()
	must(t, err)
	term := hard.GetTerm() + 1
	w := f.NewWriter(l, sink{func([]*pb.Message) {}, nil})
	next := storageAppend(term, uint64(logReplica), uint64(last)+1, entry(uint64(last)+1, term, nil))
	must(t, w.carry([]*pb.Message{next}))
	must(t, l.Close())
	l, _, err = OpenGroup(cfg)
	must(t, err)
	want := slices.DeleteFunc(l.WantBases(), func(first seglog.Index) bool { return first == last+1 }) // the segment of next
	if len(want) > 0 || l.Segments().LastIndex() != last+1 {
		t.Fatalf("opened again: wants %v, ends at %d", want, l.Segments().LastIndex())
	}
	must(t, l.Close())
	must(t, state.Close())
}

// checkLog compares an open log with the model and returns its last index.
func (c *groupScript) checkLog(t testing.TB, l *Log) seglog.Index {
	t.Helper()
	last := l.Segments().LastIndex()
	if last < c.answered || last > c.last() {
		t.Fatalf("the log ends at %d, answered was %d, written %d", last, c.answered, c.last())
	}
	base := l.Base()
	if want := c.base(base.Index); !bytes.Equal(base.Body, want.Body) || base.NextOffset != want.NextOffset || base.LogStart != want.LogStart {
		t.Fatalf("base %+v, want %+v", base, want)
	}
	s := stage{body: base.Body, nextOffset: base.NextOffset, logStart: base.LogStart}
	l.BeginReady()
	entries, err := l.Entries(uint64(base.Index)+1, uint64(last)+1, 1<<40)
	l.EndReady()
	must(t, err)
	for _, e := range entries {
		s = s.after(e)
	}
	if want := c.stages[last-1]; !bytes.Equal(s.body, want.body) || s.nextOffset != want.nextOffset || s.logStart != want.logStart {
		t.Fatalf("rebuilt from base %d up to %d: another state", base.Index, last)
	}
	first, _ := l.FirstIndex()
	entries, err = l.Entries(first, uint64(last)+1, 1<<40)
	must(t, err)
	for i, e := range entries {
		want := c.stages[int(first)+i-1].entry
		if term, err := l.Term(e.GetIndex()); err != nil || term != want.GetTerm() {
			t.Fatalf("term of %d: %d, %v", e.GetIndex(), term, err)
		}
		if e.GetIndex() != want.GetIndex() || e.GetTerm() != want.GetTerm() || !bytes.Equal(e.GetData(), want.GetData()) {
			t.Fatalf("entry %d is another one", want.GetIndex())
		}
	}
	if len(entries) != int(last)+1-int(first) {
		t.Fatalf("%d entries from %d to %d", len(entries), first, last)
	}
	return last
}

func (c *groupScript) String() string {
	return fmt.Sprintf("%d entries, answered %d, first %d to %d, bases %v", c.last(), c.answered, c.dropped, c.first, c.based)
}
