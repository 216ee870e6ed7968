package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/oncemq/oncemq/internal/seglog"
)

// arrivedSuffix ends the name of a base snapshot that came from another replica, until the log begins with it: no start takes
// it for one of the log that is still there.
const arrivedSuffix = ".arrived"

func arrivedPath(dir string, index seglog.Index) string { return basePath(dir, index) + arrivedSuffix }

// install lets the log begin anew behind b, durable on return, for whoever writes the log: by then no mark of what goes is on
// its way. First b is on disk, under a name that means nothing yet, and all that was there is whole. From the intent on b is
// what counts: a crash leaves the rest to the next OpenGroup. After ErrFull the call is to be repeated before anything else is
// written: it goes on with the b that is on disk, and writes it again when it is not there any more, or not good.
func (l *Log) install(b Base) error {
	if err := l.bases.begin(); err != nil { // AddBase and DropBefore wait, and then find nothing that they could change
		return err
	}
	defer l.bases.changing.Unlock()
	begin := stateRecord{
		recordType: recordIntent, group: l.group, intent: intentInstall, index: b.Index, term: uint64(b.Term),
	}
	begun, unfinished := l.cfg.State.unfinished(l.group)
	goesOn := unfinished && begun == begin
	if goesOn {
		_, err := arrived(l.cfg, b.Index)
		goesOn = err == nil
	}
	if !goesOn {
		file, err := writeDurable(l.cfg.FS, l.cfg.Dir, arrivedPath(l.cfg.Dir, b.Index), b.AppendTo(nil))
		if err == nil {
			err = file.Close()
		}
		if err != nil {
			return fmt.Errorf("write arrived base snapshot: %w", err)
		}
	}
	if err := l.cfg.State.record(begin); err != nil {
		return err
	}
	l.bases.reset(b.Index)
	if err := takePlace(l.cfg, b.Index); err != nil {
		return err
	}
	if err := l.segments.Reset(b.Index+1, b.Term, b.NextOffset); err != nil {
		return err
	}
	return l.cfg.State.finish(l.group, seglog.Floor{})
}

// carryOutInstall does what the intent to begin the log anew behind an entry wants, as a whole, however much of it was done
// before. Nothing is removed unless the base snapshot is good.
func carryOutInstall(cfg Config, index seglog.Index) error {
	base, err := arrived(cfg, index)
	if err != nil {
		return err
	}
	if err := takePlace(cfg, index); err != nil {
		return err
	}
	if err := seglog.Erase(cfg.segments()); err != nil {
		return err
	}
	segments, err := seglog.Create(cfg.segments(), base.Index+1, base.Term, base.NextOffset)
	if err != nil {
		return err
	}
	if err := segments.Close(); err != nil {
		return err
	}
	return cfg.State.finish(cfg.Identity.Group, seglog.Floor{})
}

// arrived reads the base snapshot of an install that was begun: it has its final name already, or not yet.
func arrived(cfg Config, index seglog.Index) (Base, error) {
	base, err := decodeArrived(cfg, index)
	if errors.Is(err, fs.ErrNotExist) {
		base, err = checkedBase(cfg, index)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = &BaseDamageError{Path: basePath(cfg.Dir, index), Detail: "it is missing, and the log was about to begin with it"}
	}
	return base, err
}

func decodeArrived(cfg Config, index seglog.Index) (Base, error) {
	path := arrivedPath(cfg.Dir, index)
	file, err := cfg.FS.Open(path)
	if err != nil {
		return Base{}, fmt.Errorf("read arrived base snapshot: %w", err)
	}
	b, err := readBounded(file, path)
	if err = errors.Join(err, file.Close()); err != nil {
		return Base{}, fmt.Errorf("read base snapshot %s: %w", path, err)
	}
	base, err := DecodeBase(path, b)
	if err == nil && (base.Cluster != cfg.Identity.Cluster || base.Group != cfg.Identity.Group || base.Index != index) {
		err = &BaseDamageError{Path: path, Detail: fmt.Sprintf(
			"it belongs to cluster %x group %d and stands at index %d", base.Cluster, base.Group, base.Index)}
	}
	return base, err
}

// takePlace gives the base snapshot that has arrived its name, and removes all others, newest first, durable on return. None
// is removed when it is not there, under either name.
func takePlace(cfg Config, index seglog.Index) error {
	err := cfg.FS.Rename(arrivedPath(cfg.Dir, index), basePath(cfg.Dir, index))
	if errors.Is(err, fs.ErrNotExist) { // it should have its name already
		_, err = checkedBase(cfg, index)
	}
	if err != nil {
		return fmt.Errorf("name arrived base snapshot: %w", err)
	}
	if err := syncDir(cfg); err != nil {
		return err
	}
	others, err := ListBases(cfg.FS, cfg.Dir)
	if err != nil {
		return err
	}
	for _, other := range slices.Backward(others) {
		if other == index {
			continue
		}
		if err := cfg.FS.Remove(basePath(cfg.Dir, other)); err != nil {
			return fmt.Errorf("remove base snapshot: %w", err)
		}
	}
	return syncDir(cfg)
}

// syncDir makes the names in the directory of a group durable.
func syncDir(cfg Config) error {
	if err := cfg.FS.SyncDir(cfg.Dir); err != nil {
		return fmt.Errorf("sync directory %s: %w: %w", filepath.Base(cfg.Dir), seglog.ErrSync, err)
	}
	return nil
}
