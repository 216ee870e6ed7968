package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
)

// unusedBytesMax is the size of a segment without an entry.
const unusedBytesMax = seglog.HeaderBytes

// CreateGroup writes a new group's base snapshot and its first segment and records the replica, in this order, all
// durable on return. What a crash in the middle leaves behind has no record in the state file: it was never used and
// is removed and made anew. A directory that holds entries was used; it is a *seglog.DamageError, and left as it is: it
// is the record that is missing.
//
// After ErrFull the call may be repeated, unless the state file knows the group by now (StateFile.Group): then its birth is
// going to be completed with the next record of any group, and it can be opened.
func CreateGroup(cfg Config, base Base) error {
	if err := createGroup(cfg, base); err != nil {
		return fmt.Errorf("create group %d: %w", cfg.Identity.Group, asFull(err))
	}
	return nil
}

func createGroup(cfg Config, base Base) error {
	known, born := cfg.State.Group(cfg.Identity.Group)
	invariant.Check(!born || !known.Live, "group %d is born twice", cfg.Identity.Group)
	if err := removeUnborn(cfg); err != nil {
		return err
	}
	if err := cfg.FS.MkdirAll(cfg.Dir); err != nil {
		return err
	}
	if err := WriteBase(cfg.FS, cfg.Dir, base); err != nil {
		return err
	}
	segments, err := seglog.Create(cfg.segments(), base.Index+1, base.Term, base.NextOffset)
	if err != nil {
		return err
	}
	if err := segments.Close(); err != nil {
		return err
	}
	if err := cfg.FS.SyncDir(filepath.Dir(cfg.Dir)); err != nil {
		return err
	}
	return cfg.State.Birth(cfg.Identity.Group, cfg.Identity.Replica, uint64(base.Term))
}

// removeUnborn removes what an earlier attempt has left. The directory is synced when the base is in it.
func removeUnborn(cfg Config) error {
	names, err := cfg.FS.List(cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := checkUnused(cfg.FS, filepath.Join(cfg.Dir, name)); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := cfg.FS.Remove(filepath.Join(cfg.Dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// checkUnused refuses a segment that holds more than its header.
func checkUnused(fsys vfs.FS, path string) error {
	if !strings.HasSuffix(path, segmentSuffix) {
		return nil
	}
	file, err := fsys.Open(path)
	if err != nil {
		return err
	}
	size, err := file.Size()
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if size > unusedBytesMax {
		return &seglog.DamageError{File: path, Position: unusedBytesMax, Detail: "it holds entries, and the state file has no record of its replica"}
	}
	return nil
}
