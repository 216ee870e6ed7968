package raftlog

import (
	"errors"
	"fmt"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/seglog"
)

// Inspection is what Inspect found.
type Inspection struct {
	// State is what the state file has of the group.
	State GroupState
	// Unfinished names what a crash has interrupted, and the next start carries out before it opens the group: "truncate",
	// "install", "delete" or "give up". "": nothing.
	Unfinished string
	// Bases are the base snapshots, oldest first.
	Bases []BaseInspection
	// Log is all of the log, read to the last byte. A finding before the newest good base does not always keep the group from
	// being opened: it is met by whoever reads that place.
	Log seglog.Inspection
	// Problem is why OpenGroup would fail, nil when it would not.
	Problem error
	// Salvageable says that there is damage, and that GiveUp removes it; Loss is what that takes away.
	Salvageable bool
	Loss        Loss

	salvage salvage // when it is Salvageable
}

// BaseInspection is one base snapshot.
type BaseInspection struct {
	Index   seglog.Index
	Path    string
	Problem error // nil: it is good

	base Base
}

// Loss is what goes on missing when a group goes on without what is damaged.
type Loss struct {
	// Offset is that of the first record that is lost, -1 when it is not known.
	Offset batch.Offset
	// Offsets and Entries count what is lost, as far as it is known: at least so much.
	Offsets, Entries int64
}

var intentNames = map[intent]string{
	intentTruncate: "truncate", intentInstall: "install", intentDelete: "delete", intentGiveUp: "give up",
}

// Inspect reads a group that is not open and says what OpenGroup would find. It changes nothing; the state file may be
// one of ReadState.
func Inspect(cfg Config) Inspection {
	var i Inspection
	known, born := cfg.State.Group(cfg.Identity.Group)
	i.State, i.Loss.Offset = known, -1
	begun, unfinished := cfg.State.unfinished(cfg.Identity.Group)
	if unfinished {
		i.Unfinished = intentNames[begun.intent]
	}
	if !born || !known.Live {
		i.Problem = errors.New("no replica of the group lives here")
		return i
	}
	if unfinished && begun.intent == intentInstall {
		// What is there of a log goes, whatever it is like; all hangs on the base snapshot that takes its place.
		_, i.Problem = arrived(cfg, begun.index)
		return i
	}
	if i.Problem = i.readAll(cfg); i.Problem != nil {
		return i
	}
	found, err := findBases(cfg)
	if err == nil {
		err = i.judge(cfg, found.newest)
	}
	if i.Problem = err; err != nil || len(i.Log.Findings) > 0 {
		i.plan(cfg)
	}
	return i
}

// readAll reads the base snapshots and the log.
func (i *Inspection) readAll(cfg Config) error {
	indexes, err := ListBases(cfg.FS, cfg.Dir)
	if err != nil {
		return err
	}
	for _, index := range indexes {
		base, err := checkedBase(cfg, index)
		base.Body = nil
		i.Bases = append(i.Bases, BaseInspection{Index: index, Path: basePath(cfg.Dir, index), Problem: err, base: base})
	}
	i.Log, err = seglog.Inspect(cfg.segments(), seglog.OpenOptions{Floor: i.State.Mark, SameBoot: cfg.SameBoot})
	return err
}

// judge finds out what OpenGroup would say if base were the newest that is good.
func (i *Inspection) judge(cfg Config, base Base) error {
	log, found, err := i.read(cfg, base)
	if err != nil {
		return err
	}
	if len(log.Findings) > 0 {
		f := log.Findings[0]
		return &seglog.DamageError{File: f.File, Position: f.Position, Detail: f.Detail}
	}
	return judge(cfg.Dir, base, i.State, found)
}

// read reads the log as OpenGroup would, if base were the newest that is good.
func (i *Inspection) read(cfg Config, base Base) (seglog.Inspection, findings, error) {
	found := findings{term: base.Term, logStart: base.LogStart}
	log, err := inspectFrom(cfg, base, func(e seglog.Entry) error {
		found.term, found.logStart = e.Term, max(found.logStart, logStartOf(e))
		return nil
	})
	found.segments, found.last = log.Segments, endOf(log.Segments)
	return log, found, err
}

// inspectFrom inspects the log as OpenGroup would read it if base were the newest that is good. It visits the entries
// behind base, in order, up to the end or to damage.
func inspectFrom(cfg Config, base Base, visit func(seglog.Entry) error) (seglog.Inspection, error) {
	known, _ := cfg.State.Group(cfg.Identity.Group)
	next := base.Index + 1
	return seglog.Inspect(cfg.segments(), seglog.OpenOptions{
		Floor: known.Mark, SameBoot: cfg.SameBoot, From: next,
		Visit: func(index seglog.Index, e seglog.Entry, _ batch.Header) error {
			if index != next { // it lies behind damage
				return nil
			}
			next++
			return visit(e)
		},
	})
}

// ReadGroup reads a group that is not open and changes nothing: it returns the newest good base snapshot and calls visit
// with the entries behind it, in order, as far as they are whole: of a batch with its header only, of a frame with the whole
// payload. An entry is valid during the call; an error of visit ends the reading. The state file may be one of ReadState.
func ReadGroup(cfg Config, visit func(seglog.Entry) error) (Base, error) {
	found, err := findBases(cfg)
	if err == nil {
		_, err = inspectFrom(cfg, found.newest, visit)
	}
	if err != nil {
		return Base{}, fmt.Errorf("read group %d: %w", cfg.Identity.Group, err)
	}
	return found.newest, nil
}

// endOf returns the index of the last entry in segments.
func endOf(segments []seglog.SegmentInfo) seglog.Index {
	if len(segments) == 0 {
		return 0
	}
	last := segments[len(segments)-1]
	return last.First + seglog.Index(last.Entries) - 1
}
