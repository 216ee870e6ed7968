package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// SyncUpwards makes the names in a directory durable, and those that lead to it.
func SyncUpwards(fsys FS, dir string) error {
	for ; ; dir = filepath.Dir(dir) {
		// A directory that this process may not even read is not one that was made for this node.
		if err := fsys.SyncDir(dir); err != nil && !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("sync directory: %w", err)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}
