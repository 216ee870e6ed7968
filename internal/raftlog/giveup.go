package raftlog

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/seglog"
)

// badSuffix is added to the name of a base snapshot that is of use to a person only.
const badSuffix = ".bad"

// salvage is how a damaged group can go on: with the segments from head on, and of these with the entries before from.
type salvage struct {
	base Base
	// fresh: no base snapshot is good. base is to be made, with the state of a machine that knows nothing.
	fresh bool
	// head is the first index of the segment that the log is to begin with, 0: of the one that it begins with. What is
	// before it is lost, and with it nothing that base does not know.
	head     seglog.Index
	logStart batch.Offset // the log is to start with this offset at least
	// from is the first entry that the log is not to have. 0: it keeps all, and what is known of producers is right.
	from seglog.Index
}

// plan finds out how the group can go on, and what it loses. A truncation or a deletion is to come to its end first.
func (i *Inspection) plan(cfg Config) {
	s := &i.salvage
	switch {
	case i.Unfinished != "" && i.Unfinished != intentNames[intentGiveUp], cfg.Identity.Group == 0, i.State.Term >= math.MaxInt32:
		return
	case !i.chooseBase(cfg), !s.base.Members.single():
		return
	}
	log, found, err := i.read(cfg, s.base)
	if err != nil || uint64(found.term) > i.State.Term || slices.ContainsFunc(i.Log.Findings, isForeign) {
		return
	}
	at := slices.IndexFunc(log.Findings, func(f seglog.Finding) bool { return f.Index > s.base.Index })
	switch known := max(i.State.Commit, i.State.Mark.Index, i.newestGood()); {
	case s.from > 0 && len(i.Log.Segments) > 0 && s.from <= i.Log.Segments[0].First:
		i.lossOfAll(known)
	case at >= 0 && (s.from == 0 || log.Findings[at].Index <= s.from):
		f := log.Findings[at]
		s.from, i.Loss = f.Index, Loss{Offset: f.Offset, Offsets: f.LostOffsets, Entries: f.LostEntries}
	case s.from == 0 && (known > found.last || i.newestGood() > s.base.Index): // what was behind the end is gone
		s.from = found.last + 1
		i.Loss = Loss{Offset: found.segments[len(found.segments)-1].NextOffset, Entries: int64(max(known, found.last) - found.last)}
	case s.from == 0 && s.fresh:
		s.from = found.last + 1
	}
	i.planHead(found.logStart)
	if s.head == 0 {
		s.logStart = i.firstOffset()
	}
	i.Salvageable = i.Problem != nil || s.head > 0
}

// newestGood returns the index of the newest base snapshot that is good, 0 when none is.
func (i *Inspection) newestGood() seglog.Index {
	for _, b := range slices.Backward(i.Bases) {
		if b.Problem == nil {
			return b.Index
		}
	}
	return 0
}

// lossOfAll tells what is lost with a log that goes as a whole.
func (i *Inspection) lossOfAll(known seglog.Index) {
	last, next := max(known, endOf(i.Log.Segments)), i.salvage.base.NextOffset
	for _, g := range i.Log.Segments {
		next = max(next, g.NextOffset)
	}
	for _, f := range i.Log.Findings {
		last = max(last, f.Index+seglog.Index(f.LostEntries)-min(f.Index, 1))
		next = max(next, f.Offset+batch.Offset(f.LostOffsets))
	}
	i.Loss = Loss{
		Offset: i.salvage.base.NextOffset, Offsets: int64(next - i.salvage.base.NextOffset),
		Entries: int64(max(last+1, i.salvage.from) - i.salvage.from),
	}
}

// firstOffset returns the offset with which the log begins when its end has gone: the entry that told of its start may go
// with it.
func (i *Inspection) firstOffset() batch.Offset {
	s, segments := i.salvage, i.Log.Segments
	if len(segments) > 0 && (s.from == 0 || s.from > segments[0].First) {
		return segments[0].FirstOffset
	}
	return s.base.NextOffset
}

// planHead finds out whether segments before that of the base are damaged, or are missing.
func (i *Inspection) planHead(logStart batch.Offset) {
	s, segments := &i.salvage, i.Log.Segments
	keeps := func(g seglog.SegmentInfo) bool { return g.FirstOffset <= logStart }
	for _, f := range i.Log.Findings {
		if 0 < f.Index && f.Index <= s.base.Index {
			keeps = func(g seglog.SegmentInfo) bool { return g.First > f.Index }
		}
	}
	if len(segments) == 0 || segments[0].First > s.base.Index || keeps(segments[0]) {
		return
	}
	first := segments[max(slices.IndexFunc(segments, keeps), 0)]
	s.head, s.logStart = first.First, first.FirstOffset
	if i.Loss.Offset < 0 || i.Loss.Offset > logStart {
		i.Loss.Offset = logStart
	}
	i.Loss.Offsets += max(0, int64(s.logStart-logStart))
	i.Loss.Entries += int64(first.First - segments[0].First)
}

// single says that nobody but one voter has a part in the group.
func (m Members) single() bool {
	return len(m.Voters) == 1 && len(m.Learners)+len(m.Outgoing)+len(m.LearnersNext) == 0
}

// isForeign says that damage is a file that does not belong to any log.
func isForeign(f seglog.Finding) bool {
	_, ok := parseSegmentName(strings.Replace(filepath.Base(f.File), ".idx", segmentSuffix, 1))
	return f.Index == 0 && !ok && filepath.Ext(f.File) != ""
}

// chooseBase chooses the base snapshot to go on from: the newest good one whose segment has a header; when there is none, the
// newest good one if no segment is before it and nothing of the log is left, as its first segment cannot be used; and else
// one that is to be made.
func (i *Inspection) chooseBase(cfg Config) bool {
	segments := i.Log.Segments
	for _, b := range slices.Backward(i.Bases) {
		fits := func(g seglog.SegmentInfo) bool { return b.base.fits(g) }
		if b.Problem == nil && slices.ContainsFunc(segments, fits) {
			i.salvage.base = b.base
			return true
		}
	}
	for _, b := range slices.Backward(i.Bases) {
		// One that lies farther back is left over from a removal; the log goes on without it.
		beside := len(segments) > 0 && segments[0].First > b.Index+1 && segments[0].FirstOffset >= 0
		if b.Problem == nil && !beside && (len(segments) == 0 || segments[0].First > b.Index) {
			i.salvage.base, i.salvage.from = b.base, b.Index+1
			return true
		}
	}
	if birth := cfg.Birth; birth != nil && (len(segments) == 0 || segments[0].First == birth.Index+1) {
		i.salvage.base = *birth
		if len(segments) == 0 || !birth.fits(segments[0]) {
			i.salvage.from = birth.Index + 1
		}
		return true
	}
	if len(segments) == 0 || segments[0].FirstOffset < 0 {
		return false
	}
	first := segments[0]
	i.salvage.fresh = true
	i.salvage.base = Base{
		Cluster: cfg.Identity.Cluster, Group: cfg.Identity.Group,
		Index: first.First - 1, Term: first.PreviousTerm,
		Members:  Members{Voters: []uint64{uint64(cfg.Identity.Replica)}},
		LogStart: first.FirstOffset, NextOffset: first.FirstOffset,
	}
	return true
}

// GiveUp lets a group of one voter that is damaged go on without what is damaged (Inspection.Loss), and removes damage from
// a group that can be opened, but not read in some place. The group must not be open, nor be raft0. What is taken out of the
// log is kept in side files (.cut); base snapshots that are of no use any more are kept as .bad. When the end of the log
// goes, or no base snapshot is good, the log then ends with an entry of KindMarkEverything: that producers are not known
// says nothing any more. empty is the body of a base snapshot that knows nothing, and of which all is marked; it is used
// when no base snapshot is good.
//
// After a crash or an error it may be that OpenGroup carries out the rest; otherwise the call is to be repeated.
func GiveUp(cfg Config, empty []byte) error {
	if err := giveUp(cfg, empty); err != nil {
		return fmt.Errorf("give up what is damaged of group %d: %w", cfg.Identity.Group, asFull(err))
	}
	return nil
}

func giveUp(cfg Config, empty []byte) error {
	if begun, unfinished := cfg.State.unfinished(cfg.Identity.Group); unfinished && begun.intent == intentGiveUp {
		if err := carryOutGiveUp(cfg, begun.index); err != nil {
			return err
		}
		if i := Inspect(cfg); !i.Salvageable {
			return i.Problem
		}
	}
	i := Inspect(cfg)
	switch {
	case i.Problem == nil && !i.Salvageable:
		return errors.New("it is not damaged")
	case !i.Salvageable:
		return i.Problem
	}
	if err := i.carryOut(cfg, empty); err != nil {
		return err
	}
	return Inspect(cfg).Problem
}

// carryOut does what was planned.
func (i *Inspection) carryOut(cfg Config, empty []byte) error {
	s := i.salvage
	if err := setBasesAside(cfg, s); err != nil {
		return err
	}
	if s.fresh {
		s.base.Body = empty
		if err := WriteBase(cfg.FS, cfg.Dir, s.base); err != nil {
			return err
		}
	}
	if err := i.raiseLogStart(cfg); err != nil {
		return err
	}
	if s.head > 0 {
		if err := seglog.AbandonBefore(cfg.segments(), s.head); err != nil {
			return err
		}
	}
	if s.from == 0 {
		return nil
	}
	begin := stateRecord{recordType: recordIntent, group: cfg.Identity.Group, intent: intentGiveUp, index: s.from}
	if err := cfg.State.record(begin); err != nil {
		return err
	}
	return carryOutGiveUp(cfg, s.from)
}

// setBasesAside renames the base snapshots that are newer than the one to go on from: they are damaged, or do not fit to
// the log.
func setBasesAside(cfg Config, s salvage) error {
	indexes, err := ListBases(cfg.FS, cfg.Dir)
	if err != nil {
		return err
	}
	for _, index := range indexes {
		if index < s.base.Index || index == s.base.Index && !s.fresh {
			continue
		}
		path := basePath(cfg.Dir, index)
		if err := cfg.FS.Rename(path, path+badSuffix); err != nil {
			return fmt.Errorf("set base snapshot aside: %w", err)
		}
	}
	return cfg.FS.SyncDir(cfg.Dir)
}

// raiseLogStart writes the base snapshots anew whose log starts before the segment that it is to begin with: else that
// segment would look like one with others missing before it.
func (i *Inspection) raiseLogStart(cfg Config) error {
	s := i.salvage
	for _, b := range i.Bases {
		stays := b.Problem == nil && s.head <= b.Index+1 && b.Index <= s.base.Index
		if !stays || b.base.LogStart >= s.logStart || b.base.NextOffset < s.logStart {
			continue
		}
		base, err := checkedBase(cfg, b.Index)
		if err == nil {
			base.LogStart = s.logStart
			err = WriteBase(cfg.FS, cfg.Dir, base)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// carryOutGiveUp does what the intent to give up the entries from index from on wants, as a whole, however much of it was
// done before.
func carryOutGiveUp(cfg Config, from seglog.Index) error {
	if err := seglog.Abandon(cfg.segments(), from); err != nil {
		return err
	}
	segments, err := openRest(cfg)
	if err != nil {
		return err
	}
	term, err := segments.Term(segments.LastIndex())
	if err == nil {
		err = rollToBase(cfg, segments)
	}
	if err == nil {
		err = segments.Append([]seglog.Entry{{Kind: seglog.KindMarkEverything, Version: payloadVersion, Term: term}})
	}
	if err == nil {
		err = segments.Sync()
	}
	if err = errors.Join(err, segments.Close()); err != nil {
		return err
	}
	return cfg.State.finish(cfg.Identity.Group, seglog.Floor{})
}

// rollToBase gives the base snapshot that stands at the end of the log a segment behind it: its own may be what was given up.
func rollToBase(cfg Config, segments *seglog.Log) error {
	indexes, err := ListBases(cfg.FS, cfg.Dir)
	if err == nil && slices.Contains(indexes, segments.LastIndex()) {
		err = segments.Roll()
	}
	return err
}

// openRest opens the end of what is left of a log. When nothing is left, it makes a log that begins behind the newest base.
func openRest(cfg Config) (*seglog.Log, error) {
	left, err := segmentNames(cfg)
	if err != nil {
		return nil, err
	}
	if len(left) > 0 {
		known, _ := cfg.State.Group(cfg.Identity.Group)
		options := seglog.OpenOptions{Floor: known.Mark, SameBoot: cfg.SameBoot, From: left[len(left)-1]}
		segments, _, err := seglog.Open(cfg.segments(), options)
		return segments, err
	}
	found, err := findBases(cfg)
	if err != nil {
		return nil, err
	}
	return seglog.Create(cfg.segments(), found.newest.Index+1, found.newest.Term, found.newest.NextOffset)
}
