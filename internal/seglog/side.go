package seglog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/oncemq/oncemq/internal/vfs"
)

// A side file holds what was taken out of a log. It is named by the segment, the position and a number, and nothing
// here ever touches it again.
const (
	sideSuffix = ".cut"
	// unfinishedSuffix is what the name of a side file ends with until all of it is on disk.
	unfinishedSuffix = ".tmp"
)

// sideName returns the first name for a side file that is free. Earlier ones of the same place are kept.
func sideName(cfg Config, first Index, position int64) (string, error) {
	names, err := cfg.FS.List(cfg.Dir)
	if err != nil {
		return "", fmt.Errorf("list directory: %w", err)
	}
	for n := 0; ; n++ {
		name := fmt.Sprintf("%0*d-%d-%d%s", nameDigits, first, position, n, sideSuffix)
		if !slices.Contains(names, name) {
			return filepath.Join(cfg.Dir, name), nil
		}
	}
}

// saveEnd copies a part of a segment, up to its end, to a side file, makes that durable and returns its name.
func saveEnd(cfg Config, s *segment, start, size int64) (string, error) {
	name, err := sideName(cfg, s.first, start)
	if err != nil {
		return "", err
	}
	unfinished := name + unfinishedSuffix
	if err := cfg.FS.Remove(unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("remove unfinished side file: %w", err)
	}
	file, err := cfg.FS.Create(unfinished)
	if err != nil {
		return "", fmt.Errorf("create side file: %w", err)
	}
	err = copyRange(s.file, start, size, file, 0)
	if err == nil {
		err = file.SyncData()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = cfg.FS.Rename(unfinished, name)
	}
	if err != nil { // on a full disk its room is needed
		return "", fmt.Errorf("save the end of %s in %s: %w", s.name, name, errors.Join(err, cfg.FS.Remove(unfinished)))
	}
	return name, cfg.syncDir()
}

// copyRange copies bytes from one file to another, or to the same place.
func copyRange(from vfs.File, start, end int64, to vfs.File, at int64) error {
	buf := make([]byte, min(windowBytes, end-start))
	for start < end {
		part := buf[:min(int64(len(buf)), end-start)]
		if err := readFull(from, part, start); err != nil {
			return err
		}
		if _, err := to.WriteAt(part, at); err != nil {
			return err
		}
		start, at = start+int64(len(part)), at+int64(len(part))
	}
	return nil
}
