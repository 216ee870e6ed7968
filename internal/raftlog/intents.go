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
	case begun.intent == intentInstall:
		return carryOutInstall(l.cfg, begun.index)
	case begun.intent == intentDelete:
		return fmt.Errorf("the group is being deleted: %w", fs.ErrNotExist)
	}
	l.cut = begun.index
	return nil
}

// Truncate removes the entries from index from on, durable on return. They must not be applied, nor covered by a base
// snapshot. A crash or an error in the middle leaves an intent, which the next OpenGroup carries out; the log is not to be
// used in between. After ErrFull the call may be repeated. It is for a log that no Writer was made for.
func (l *Log) Truncate(from seglog.Index) error {
	invariant.Check(from > l.applied, "truncation of group %d at the applied index %d", l.group, from)
	if l.cut == 0 && from > l.segments.LastIndex() {
		return nil
	}
	l.cut = from
	err := l.cutFrom(from)
	if err == nil {
		err = l.finishTruncate()
	}
	if err != nil {
		return fmt.Errorf("truncate group %d at entry %d: %w", l.group, from, asFull(err))
	}
	return nil
}

// cutFrom removes the entries from index from on, durable on return, for whoever writes the log: by then no mark of what goes
// is on its way. A crash in the middle leaves an intent. After ErrFull the call is to be repeated before anything else is
// written. The mark then names what is left, all of which is on disk.
func (l *Log) cutFrom(from seglog.Index) error {
	state, _ := l.cfg.State.Group(l.group)
	newest := l.bases.newest()
	invariant.Check(from > newest && from > state.Commit,
		"group %d is to lose the entries from %d on, and has a base snapshot at %d and %d recorded as committed", l.group, from, newest, state.Commit)
	err := l.cfg.State.record(stateRecord{recordType: recordIntent, group: l.group, intent: intentTruncate, index: from})
	if err != nil {
		return err
	}
	return l.carryOutTruncate(from)
}

// carryOutTruncate does what the intent to remove the entries from index from on wants.
func (l *Log) carryOutTruncate(from seglog.Index) error {
	if l.segments.LastIndex() >= from {
		if err := l.segments.TruncateSuffix(from); err != nil {
			return err
		}
	} // else it was done before, or the entries were not on disk: what is left is
	return l.cfg.State.finish(l.group, l.segments.End())
}

// finishTruncate does what the intent to remove the entries from cut on wants, if there is one, and takes them out of the
// ring.
func (l *Log) finishTruncate() error {
	if l.cut == 0 {
		return nil
	}
	if err := l.carryOutTruncate(l.cut); err != nil {
		return err
	}
	l.cutRing(max(l.cut, l.behind+1))
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
