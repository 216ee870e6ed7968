package raftlog

import (
	"bytes"
	"errors"
	"fmt"
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

// branch is a log as Raft may have it at one moment: stages[i] is behind entry first+i, and the first one is a base snapshot.
type branch struct {
	first  seglog.Index
	stages []stage
}

func (b branch) last() seglog.Index              { return b.first + seglog.Index(len(b.stages)) - 1 }
func (b branch) at(index seglog.Index) stage     { return b.stages[index-b.first] }
func (b branch) before(from seglog.Index) branch { return branch{b.first, b.stages[:from-b.first]} }

// with returns the branch with one entry more. It shares nothing that changes.
func (b branch) with(e *pb.Entry) branch {
	stages := slices.Clip(b.stages)
	return branch{b.first, append(stages, b.at(b.last()).after(e))}
}

// possible is a log that a crash may leave: a branch, or its beginning up to low at least.
type possible struct {
	branch
	low seglog.Index
}

// followerScript drives a replica of a group of three at random, as one that follows changing leaders, and remembers what it
// may and must hold.
type followerScript struct {
	rng, luck *rand.Rand
	fs        vfs.FS
	cfg       Config
	log       *Log
	flush     *Flushers
	w         *Writer

	now      branch     // with all that was submitted
	possible []possible // what a crash may leave now
	term     uint64
	applied  seglog.Index
	cutOff   branch // what the last overwriting took away, with all before
	dropped  seglog.Index
	begun    []seglog.Index // by Carried: they want a base
	answers  []*pb.Message
	expected []uint64 // the indexes that the answers must have, in order
	// answering: the newest message that was submitted, and is not carried out, changes nothing.
	answering bool
	installs  int
	cuts      int
	repeats   int // of what an earlier overwriting had taken away
	full      int
	onFull    func()
	failed    error
	writing   bool // a flush is under way
}

func newFollowerScript(t testing.TB, seed uint64, mem *memfs.FS, fsys vfs.FS) *followerScript {
	t.Helper()
	c := &followerScript{
		rng: rand.New(rand.NewPCG(seed, 15)), luck: rand.New(rand.NewPCG(seed, 16)), fs: fsys,
		now: branch{1, []stage{{body: []byte("birth"), term: 1}}}, term: 1, applied: 1, onFull: func() {},
	}
	must(t, mem.MkdirAll("groups"))
	must(t, mem.SyncDir("/"))
	c.cfg = logConfig(mem, createState(t, mem), 1)
	c.cfg.SegmentBytes = 2000
	must(t, CreateGroup(c.cfg, c.base(c.now, 1)))
	must(t, c.cfg.State.Close())
	c.possible = []possible{{c.now, 1}}
	return c
}

func (c *followerScript) base(b branch, index seglog.Index) Base {
	s := b.at(index)
	return Base{
		Cluster: c.cfg.Identity.Cluster, Group: 1, Index: index, Term: batch.Term(s.term),
		Members:  Members{Voters: []uint64{uint64(logReplica), uint64(logReplica) + 1<<32, uint64(logReplica) + 2<<32}},
		LogStart: s.logStart, NextOffset: s.nextOffset, Body: s.body,
	}
}

func (c *followerScript) open(boot [16]byte) error {
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
	c.cfg, c.log, c.begun = cfg, log, log.WantBases()
	c.flush = NewFlushers(0, state, Events{
		Fatal: func(err error) { c.failed = err },
		Full: func(error) {
			c.full++
			c.onFull()
			c.flush.Retry()
		},
	})
	c.w = c.flush.NewWriter(log, c)
	log.Applied(c.applied)
	return nil
}

func (c *followerScript) close() error {
	c.w.Close()
	c.flush.Close()
	return errors.Join(c.failed, c.log.Close(), c.cfg.State.Close())
}

func (c *followerScript) Carried(responses []*pb.Message, rolled []seglog.Index) {
	c.begun = append(c.begun, rolled...)
	c.answers = append(c.answers, responses...)
}

func (c *followerScript) Failed(err error) { c.failed = err }

// step makes one random call.
func (c *followerScript) step(boot [16]byte) error {
	switch c.rng.IntN(10) {
	default:
		return c.write()
	case 5, 6:
		return c.apply()
	case 7:
		return c.drop()
	case 8:
		c.flush.WriteMarks()
		return c.failed
	case 9:
		if err := c.close(); err != nil {
			return err
		}
		for {
			if err := c.open(boot); !errors.Is(err, ErrFull) {
				return err
			}
			c.onFull()
		}
	}
}

// write submits a few messages, and has them carried out.
func (c *followerScript) write() error {
	low, applied := c.now.last(), c.applied
	var restored []Base
	c.answers, c.expected, c.answering = nil, nil, false
	for range c.rng.IntN(3) + 1 {
		if c.rng.IntN(5) == 0 {
			c.w.Roll()
		}
		var snapshot *pb.Snapshot
		from := c.now.last() + 1
		switch kind := c.rng.IntN(12); {
		case kind == 0:
			base := c.snapshot(max(applied, c.applied))
			snapshot, restored = base.snapshot(), append(restored, base)
			applied, low, from = base.Index, base.Index, base.Index+1
			c.possible = append(c.possible, possible{c.now, low})
		case kind < 5 && c.now.last() > applied:
			from = applied + 1 + seglog.Index(c.rng.IntN(int(c.now.last()-applied)))
		}
		entries := c.entries(from)
		if low = min(low, from-1); len(entries) > 0 {
			c.possible = append(c.possible, possible{c.now, low})
		}
		c.log.Staged(entries)
		c.submit(snapshot, entries)
	}
	c.writing = true
	for c.flush.Step() {
	}
	c.writing = false
	if c.failed != nil {
		return c.failed
	}
	for _, b := range restored {
		c.log.Restored(b)
		c.applied = b.Index
		first, err := c.log.FirstIndex()
		if got := c.log.Base(); err != nil || seglog.Index(first) <= b.Index || got.Index != b.Index || c.log.Segments().FirstIndex() <= b.Index {
			return fmt.Errorf("restored at %d: the log begins with %d, %v", b.Index, first, err)
		}
	}
	c.possible = []possible{{c.now, c.now.last()}}
	return c.checkAnswers()
}

// submit submits a message with two answers, one of them for another replica.
func (c *followerScript) submit(snapshot *pb.Snapshot, entries []*pb.Entry) {
	index := uint64(c.now.last())
	m := storageAppend(c.term, uint64(logReplica), index, entries...)
	m.Snapshot = snapshot
	m.Responses = append([]*pb.Message{{
		Type: pb.MsgAppResp.Enum(), To: new(uint64(logReplica) + 1<<32), From: new(uint64(logReplica)), Index: new(index),
	}}, m.GetResponses()...)
	if joined := !brings(m) && c.answering; joined { // it takes the place of the one before
		c.expected = c.expected[:len(c.expected)-2]
	}
	c.answering = !brings(m)
	c.expected = append(c.expected, index, index)
	c.w.Submit(m)
}

func (c *followerScript) checkAnswers() error {
	var got []uint64
	for _, m := range c.answers {
		got = append(got, m.GetIndex())
	}
	if !slices.Equal(got, c.expected) {
		return fmt.Errorf("answered %v, submitted %v", got, c.expected)
	}
	return nil
}

// snapshot returns a snapshot behind all that is applied, of a log that this replica does not know, and makes it the log.
func (c *followerScript) snapshot(applied seglog.Index) Base {
	c.installs++
	leader := c.now.before(applied + 1)
	for range c.rng.IntN(8) + 1 {
		c.term += uint64(c.rng.IntN(2))
		leader = leader.with(c.entry(leader))
	}
	s := leader.at(leader.last())
	s.logStart, s.entry = s.nextOffset, nil
	c.now = branch{leader.last(), []stage{s}}
	c.cutOff = branch{}
	return c.base(c.now, c.now.first)
}

// entries returns the entries of one message that begins with from, and makes them the end of the log.
func (c *followerScript) entries(from seglog.Index) []*pb.Entry {
	kept := c.now.before(from)
	var entries []*pb.Entry
	if from <= c.now.last() {
		c.cuts++
		old := c.cutOff
		c.cutOff = c.now
		// Sometimes a leader comes who has what an earlier one had, and an entry of its own term behind it (t1, t2, t1).
		if again := len(old.stages) > 0 && old.first == c.now.first && old.last() >= from &&
			bytes.Equal(old.at(from-1).body, c.now.at(from-1).body) && c.rng.IntN(2) == 0; again {
			c.repeats++
			for i := from; i <= old.last(); i++ {
				entries = append(entries, old.at(i).entry)
				kept = kept.with(old.at(i).entry)
			}
		}
		c.term++
	}
	n := c.rng.IntN(5)
	if from <= c.now.last() {
		n = max(n, 1)
	}
	for range n {
		e := c.entry(kept)
		entries, kept = append(entries, e), kept.with(e)
	}
	c.now = kept
	return entries
}

// entry is one that may follow.
func (c *followerScript) entry(b branch) *pb.Entry {
	s, index := b.at(b.last()), uint64(b.last())+1
	switch kind := c.rng.IntN(8); {
	case s.term < c.term:
		return entry(index, c.term, nil)
	case kind == 0:
		return entry(index, s.term, EncodeCommand(seglog.KindClock, make([]byte, 8)))
	case kind == 1:
		return entry(index, s.term, logStartAt(s.logStart+batch.Offset(c.rng.Int64N(int64(s.nextOffset-s.logStart)+1))))
	}
	return entry(index, s.term, storedBatch(s.nextOffset, batch.Term(s.term), strings.Repeat("x", c.rng.IntN(500))))
}

// apply applies some more, and makes the base snapshots of the segments that are passed.
func (c *followerScript) apply() error {
	to := c.applied + seglog.Index(c.rng.IntN(int(c.now.last()-c.applied)+1))
	c.applied = to
	c.log.Applied(to)
	for _, first := range slices.Clone(c.begun) {
		if first-1 > to || first <= c.now.first {
			continue
		}
		for {
			err := c.log.AddBase(c.base(c.now, first-1))
			if err == nil {
				break
			}
			if !errors.Is(err, ErrFull) {
				return err
			}
			c.onFull()
		}
	}
	c.begun = slices.DeleteFunc(c.begun, func(first seglog.Index) bool { return first-1 <= to })
	return nil
}

// drop drops what is below the log start.
func (c *followerScript) drop() error {
	for _, s := range slices.Backward(c.log.Segments().Segments()) {
		if c.log.HasBase(s.First) && s.First-1 <= c.applied && s.FirstOffset <= c.now.at(c.applied).logStart {
			c.dropped = s.First
			return c.log.DropBefore(s.First)
		}
	}
	return nil
}

// checkDisk opens what a crash or a kill has left, and demands that it is one of the logs that are possible, and can be used.
func (c *followerScript) checkDisk(t testing.TB, disk *memfs.FS, boot [16]byte) {
	t.Helper()
	state, report := openState(t, disk, boot)
	cfg := c.cfg
	cfg.FS, cfg.State, cfg.SameBoot = disk, state, report.SameBoot
	l, found, err := OpenGroup(cfg)
	must(t, err)
	if len(found.BadBases) > 0 {
		t.Fatalf("bad bases: %v", found.BadBases)
	}
	if _, unfinished := state.unfinished(1); unfinished {
		t.Fatal("an intent was not carried out")
	}
	is := c.whichLog(t, l)
	for _, first := range l.WantBases() {
		must(t, l.AddBase(c.base(is, first-1)))
	}
	hard, _, err := l.InitialState()
	must(t, err)
	f := NewFlushers(0, state, Events{Fatal: func(err error) { t.Fatal(err) }, Full: func(err error) { t.Fatal(err) }})
	w := f.NewWriter(l, sink{func([]*pb.Message) {}, nil})
	term, last := hard.GetTerm()+1, uint64(l.Segments().LastIndex())+1
	next := []*pb.Entry{entry(last, term, nil)}
	l.Staged(next)
	w.Submit(storageAppend(term, uint64(logReplica), last, next...))
	f.Close()
	must(t, l.Close())
	l, _, err = OpenGroup(cfg)
	must(t, err)
	if got := uint64(l.Segments().LastIndex()); got != last {
		t.Fatalf("opened again it ends at %d, not at %d", got, last)
	}
	must(t, l.Close())
	must(t, state.Close())
}

// whichLog returns the one of the possible logs that an open log is.
func (c *followerScript) whichLog(t testing.TB, l *Log) branch {
	t.Helper()
	var why []string
	for _, p := range slices.Backward(c.possible) {
		wrong := c.differs(l, p)
		if wrong == "" {
			return p.branch
		}
		why = append(why, wrong)
	}
	t.Fatalf("%d to %d is none of the %d logs that are possible: %v", l.Segments().FirstIndex(), l.Segments().LastIndex(), len(why), why)
	return branch{}
}

// differs says how an open log is not what is possible, "" when it is.
func (c *followerScript) differs(l *Log, p possible) string {
	first, last := l.Segments().FirstIndex(), l.Segments().LastIndex()
	base := l.Base()
	switch {
	case last < p.low || last > p.last() || first <= p.first:
		return fmt.Sprintf("from %d to %d, at least %d", p.first, p.last(), p.low)
	case base.Index > last || base.Index < p.first || !bytes.Equal(base.Body, p.at(base.Index).body):
		return fmt.Sprintf("another base at %d", base.Index)
	}
	s := p.at(first - 1)
	for i := first; i <= last; i++ {
		want := p.at(i)
		entries, err := l.readEntries(uint64(i), uint64(i)+1, 1)
		if err != nil {
			return err.Error()
		}
		term, err := l.segments.Term(i)
		if e := entries[0]; err != nil || uint64(term) != want.term || e.GetTerm() != want.term || !bytes.Equal(e.GetData(), want.entry.GetData()) {
			return fmt.Sprintf("entry %d of term %d, not of %d: %v", i, term, want.term, err)
		}
		s = s.after(entries[0])
	}
	run, err := l.readEntries(uint64(first), uint64(last)+1, 1<<62)
	if err != nil || len(run) != int(last+1-first) || s.nextOffset != l.Segments().NextOffset() || !bytes.Equal(s.body, p.at(last).body) {
		return fmt.Sprintf("%d entries in runs, next offset %d, %v", len(run), l.Segments().NextOffset(), err)
	}
	if want := int(last - base.Index); len(l.ring) != want || want > 0 && l.ring[want-1].GetTerm() != p.at(last).term {
		return fmt.Sprintf("%d entries in the ring", len(l.ring))
	}
	return ""
}
