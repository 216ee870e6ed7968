package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
)

// resume carries out what an unfinished intent wants before the log can be opened, and notes what it wants afterwards.
func (l *Log) resume() error {
	begun, unfinished := l.cfg.State.unfinished(l.group)
	switch {
	case !unfinished:
		return nil
	case begun.intent == intentGiveUp:
		return carryOutGiveUp(l.cfg, begun.index)
	case begun.intent == intentDelete:
		return fmt.Errorf("the group is being deleted: %w", fs.ErrNotExist)
	}
	l.cut = begun.index
	return nil
}

// Truncate removes the entries from index from on, durable on return. They must not be applied, nor covered by a base
// snapshot. A crash or an error in the middle leaves an intent, which the next OpenGroup carries out; the log is not to be
// used in between. After ErrFull the call may be repeated. It is for a log that no Writer was made for: a durable mark that
// is still on its way would name what is gone.
func (l *Log) Truncate(from seglog.Index) error {
	invariant.Check(from > l.applied, "truncation of group %d at the applied index %d", l.group, from)
	if l.cut == 0 && from > l.segments.LastIndex() {
		return nil
	}
	l.cut = from
	err := l.cfg.State.record(stateRecord{recordType: recordIntent, group: l.group, intent: intentTruncate, index: from})
	if err == nil {
		err = l.finishTruncate()
	}
	if err != nil {
		return fmt.Errorf("truncate group %d at entry %d: %w", l.group, from, asFull(err))
	}
	return nil
}

// finishTruncate does what the intent to remove the entries from cut on wants, if there is one.
func (l *Log) finishTruncate() error {
	if l.cut == 0 {
		return nil
	}
	if l.segments.LastIndex() >= l.cut {
		if err := l.segments.TruncateSuffix(l.cut); err != nil {
			return err
		}
	}
	if left := l.cut - 1 - min(l.applied, l.cut-1); left < seglog.Index(len(l.ring)) {
		clear(l.ring[left:])
		l.ring = l.ring[:left]
	}
	if err := l.cfg.State.finish(l.group); err != nil {
		return err
	}
	l.cut = 0
	return nil
}

// DeleteGroup removes all files of a group, with its directory, and records that its replica is gone, all durable on
// return. The group must not be open. After an error, or a crash, the call is to be repeated (StateFile.Deleting); that
// of a group that is gone, or was never born, does nothing more than what is left to do.
func DeleteGroup(cfg Config) error {
	if err := deleteGroup(cfg); err != nil {
		return fmt.Errorf("delete group %d: %w", cfg.Identity.Group, asFull(err))
	}
	return nil
}

func deleteGroup(cfg Config) error {
	group := cfg.Identity.Group
	known, born := cfg.State.Group(group)
	switch {
	case !born:
		if err := removeUnborn(cfg); err != nil {
			return err
		}
		return removeDirectory(cfg)
	case !known.Live:
		return nil
	}
	if err := cfg.State.record(stateRecord{recordType: recordIntent, group: group, intent: intentDelete}); err != nil {
		return err
	}
	if err := removeDirectory(cfg); err != nil {
		return err
	}
	return cfg.State.record(stateRecord{recordType: recordReplica, group: group, replica: known.Replica, life: replicaGone})
}

// removeDirectory removes the directory of a group with all that is in it.
func removeDirectory(cfg Config) error {
	names, err := cfg.FS.List(cfg.Dir)
	if err == nil {
		for _, name := range names {
			if err := cfg.FS.Remove(filepath.Join(cfg.Dir, name)); err != nil {
				return err
			}
		}
		err = cfg.FS.Remove(cfg.Dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return cfg.FS.SyncDir(filepath.Dir(cfg.Dir))
}
