// Package memfs is a vfs.FS in memory that can crash.
//
// It keeps two images apart: what was written, which every call sees, and what is durable, which is all that the
// contract of vfs lets a caller rely on after the machine went down. CrashClone makes the disk as a machine crash
// at this moment might leave it, KillClone as the end of the process leaves it. Both copy: the original, and the files
// open in it, go on.
//
//  1. A page is durable once SyncData of its file, begun after the write, has returned nil; a size as well.
//  2. An entry of a directory is durable once SyncDir of that directory, begun after the change, has returned nil.
//  3. A clone shares no memory that either side changes: pages are copied before the first write to them.
//  4. used is the pages that the files with a name, and those that are open without one, have written to or allocated. It
//     never grows beyond the capacity.
package memfs

import (
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/oncemq/oncemq/internal/vfs"
)

// FS is a file system in memory. It is safe for concurrent use.
type FS struct {
	mu      sync.Mutex // guards all that is reachable from here, open files included
	root    *node
	pending []change // of directories, not durable yet, oldest first
	locked  map[string]bool
	syncErr error // of the next SyncData; see FailSync

	capacity int64 // pages, 0: as many as wanted; see SetCapacity
	used     int64 // pages
}

// node is a file or a directory. A directory has entries, a file has content.
type node struct {
	entries map[string]*node // as written; nil for a file
	durable map[string]*node // as synced
	content content
	opened  int  // how many Files there are; those of a file system that this one is a copy of do not count
	removed bool // it has no name any more
}

// change is one not yet durable call that changed directories. It becomes durable, or is lost, as a whole.
type change []entry

// entry is what a change made of one name.
type entry struct {
	dir  *node
	name string
	to   *node // nil: the name was removed
}

// New returns an empty file system.
func New() *FS {
	return &FS{root: newDir(), locked: map[string]bool{}}
}

func newDir() *node {
	return &node{entries: map[string]*node{}, durable: map[string]*node{}}
}

func (n *node) isDir() bool { return n.entries != nil }

// clean makes one absolute form of each path; a relative one begins at the root.
func clean(name string) string {
	return filepath.Clean(string(filepath.Separator) + name)
}

// find returns the node with a name.
func (f *FS) find(op, name string) (*node, error) {
	n := f.root
	for part := range strings.SplitSeq(clean(name), string(filepath.Separator)) {
		if part == "" {
			continue
		}
		if !n.isDir() {
			return nil, &fs.PathError{Op: op, Path: name, Err: syscall.ENOTDIR}
		}
		child, ok := n.entries[part]
		if !ok {
			return nil, &fs.PathError{Op: op, Path: name, Err: syscall.ENOENT}
		}
		n = child
	}
	return n, nil
}

// parent returns the directory that a name lies in, and the last part of the name.
func (f *FS) parent(op, name string) (*node, string, error) {
	dir, base := filepath.Split(clean(name))
	n, err := f.find(op, dir)
	if err != nil {
		return nil, "", err
	}
	if !n.isDir() {
		return nil, "", &fs.PathError{Op: op, Path: name, Err: syscall.ENOTDIR}
	}
	return n, base, nil
}

// apply carries out a change of directories; it is not durable yet.
func (f *FS) apply(c change) {
	for _, e := range c {
		set(e.dir.entries, e.name, e.to)
	}
	f.pending = append(f.pending, c)
}

func set(entries map[string]*node, name string, to *node) {
	if to == nil {
		delete(entries, name)
	} else {
		entries[name] = to
	}
}

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, base, err := f.parent("open", name)
	if err != nil {
		return nil, err
	}
	if base == "" || dir.entries[base] != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EEXIST}
	}
	n := &node{}
	f.apply(change{{dir, base, n}})
	return f.handle(name, n), nil
}

// Open implements vfs.FS.
func (f *FS) Open(name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find("open", name)
	if err != nil {
		return nil, err
	}
	if n.isDir() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EISDIR}
	}
	return f.handle(name, n), nil
}

func (f *FS) handle(name string, n *node) *file {
	n.opened++
	return &file{fs: f, name: name, node: n, content: &n.content}
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find("remove", name)
	if err != nil {
		return err
	}
	if len(n.entries) > 0 {
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.ENOTEMPTY}
	}
	dir, base, err := f.parent("remove", name)
	if err != nil {
		return err
	}
	if base == "" {
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.EBUSY}
	}
	f.apply(change{{dir, base, nil}})
	f.unname(n)
	return nil
}

// Rename implements vfs.FS. It renames files, not directories.
func (f *FS) Rename(oldName, newName string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	oldDir, oldBase, err := f.parent("rename", oldName)
	if err != nil {
		return err
	}
	newDir, newBase, err := f.parent("rename", newName)
	if err != nil {
		return err
	}
	n, err := f.find("rename", oldName)
	if err != nil {
		return err
	}
	target := newDir.entries[newBase]
	if n.isDir() || newBase == "" || target != nil && target.isDir() {
		return &fs.PathError{Op: "rename", Path: newName, Err: syscall.EEXIST}
	}
	if target == n {
		return nil
	}
	f.apply(change{{oldDir, oldBase, nil}, {newDir, newBase, n}})
	if target != nil {
		f.unname(target)
	}
	return nil
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.root
	for part := range strings.SplitSeq(clean(name), string(filepath.Separator)) {
		if part == "" {
			continue
		}
		child := n.entries[part]
		if child == nil {
			child = newDir()
			f.apply(change{{n, part, child}})
		}
		if !child.isDir() {
			return &fs.PathError{Op: "mkdir", Path: name, Err: syscall.ENOTDIR}
		}
		n = child
	}
	return nil
}

// List implements vfs.FS.
func (f *FS) List(dir string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find("open", dir)
	if err != nil {
		return nil, err
	}
	if !n.isDir() {
		return nil, &fs.PathError{Op: "readdir", Path: dir, Err: syscall.ENOTDIR}
	}
	return sortedNames(n.entries), nil
}

func sortedNames(entries map[string]*node) []string {
	return slices.Sorted(maps.Keys(entries))
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find("open", dir)
	if err != nil {
		return err
	}
	if !n.isDir() {
		return nil
	}
	f.pending = slices.DeleteFunc(f.pending, func(c change) bool {
		if !slices.ContainsFunc(c, func(e entry) bool { return e.dir == n }) {
			return false
		}
		for _, e := range c {
			set(e.dir.durable, e.name, e.to)
		}
		return true
	})
	return nil
}

// Lock implements vfs.FS. The locks of a file system are its own: a clone begins without any.
func (f *FS) Lock(name string) (io.Closer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, base, err := f.parent("open", name)
	if err != nil {
		return nil, err
	}
	if n := dir.entries[base]; base == "" || n != nil && n.isDir() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EISDIR}
	}
	if dir.entries[base] == nil {
		f.apply(change{{dir, base, &node{}}})
	}
	if f.locked[clean(name)] {
		return nil, &fs.PathError{Op: "lock", Path: name, Err: vfs.ErrLocked}
	}
	f.locked[clean(name)] = true
	return &lock{fs: f, name: name}, nil
}

type lock struct {
	fs       *FS
	name     string
	released bool
}

func (l *lock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	if l.released {
		return &fs.PathError{Op: "close", Path: l.name, Err: fs.ErrClosed}
	}
	l.released = true
	delete(l.fs.locked, clean(l.name))
	return nil
}

// FailSync makes the next SyncData of any file fail with err, as a disk does whose write failed: what was
// written to that file remains readable, is not durable, and no later SyncData makes it so. Bytes that are written anew
// are synced as ever.
func (f *FS) FailSync(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.syncErr = err
}
