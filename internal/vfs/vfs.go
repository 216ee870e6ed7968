// Package vfs is the small file system that everything on disk goes through.
//
// OS is the real one. vfs/memfs is a memory twin that can be crashed, vfs/errfs a wrapper that fails on purpose: the
// packages above are tested against the losses that the contract below allows, not only against those that one
// kernel happens to show.
//
// # What is durable
//
//  1. A write, a new size, a new name, a removal and a renaming are seen at once by every later call of every process,
//     and outlive the end of the process. They do not outlive the machine until one of the calls of 2 and 3 returns nil.
//  2. File.SyncData makes the file's content and size durable, as they were when it was called. It says nothing of the
//     file's name. When it fails, any part of what was written since the last successful call may be lost, although
//     reads still show it, and another call may succeed without having written it: writing the same bytes again
//     is the only cure.
//  3. FS.SyncDir makes the names in one directory durable: the files and directories created in it, renamed into or
//     out of it and removed from it before the call. It says nothing of the content of the files and nothing of the
//     directory's own name, which is an entry of its parent.
//  4. When the machine goes down, every change that is not durable survives or not, on its own: of two writes the later
//     one may survive alone, each 4 KiB page of one write by itself, a page partly, a size without the bytes below it
//     (they are zeros, then), content without the name and the name without content. Only a renaming is whole: after
//     it, new names either the old or the new file, and old is there exactly if the renaming was lost.
//
// # Files and concurrency
//
// All methods of an FS may be called at the same time. Reads of a File may run at the same time as each other and as one
// writer; a read that overlaps a write may see part of it. A File must not be closed while its WriteVAt or SyncData runs.
// Errors are *fs.PathError, *os.LinkError or wrap one of the errors named here; they carry the name.
//
// # A full disk
//
// A call that needs room and finds none fails with ENOSPC, or EDQUOT where quotas are: see IsFull. A write
// may have written a part before.
package vfs

import (
	"errors"
	"io"
)

// ErrLocked says that somebody else holds the lock that Lock was asked for.
var ErrLocked = errors.New("locked by another process")

// FS is a hierarchical file system. Names are paths in the notation of path/filepath.
type FS interface {
	// Create makes a file for reading and writing. It must not exist (fs.ErrExist).
	Create(name string) (File, error)
	// Open opens a file for reading and writing. It must exist (fs.ErrNotExist).
	Open(name string) (File, error)
	// Remove removes a file or an empty directory. A removed file stays usable through the Files that are open.
	Remove(name string) error
	// Rename gives the file old the name new, replacing a file of that name in one step.
	Rename(oldName, newName string) error
	// MkdirAll makes a directory and the parents that are missing. Each is durable once the directory that it lies
	// in is synced.
	MkdirAll(name string) error
	// List returns the names, without the directory, of all that dir contains, in ascending order.
	List(dir string) ([]string, error)
	// SyncDir makes creations, renamings and removals in dir durable.
	SyncDir(dir string) error
	// Lock takes the lock of the file name, which it makes when it is missing, exclusively between processes and between
	// calls. Close, or the end of the process, releases it. ErrLocked: it is held.
	Lock(name string) (io.Closer, error)
	// Space returns how many bytes this user may still write on the disk that dir lies on, and how many the disk has
	// in all.
	Space(dir string) (free, total int64, err error)
}

// File is an open file. There is no position: each call names the offset.
type File interface {
	// ReadAt reads as io.ReaderAt demands: fewer bytes than asked for come with an error, io.EOF at the file's end.
	io.ReaderAt
	// WriteAt writes all of p or returns an error; then any part of p may have been written.
	io.WriterAt
	// WriteVAt writes the bytes of all bufs one after the other, beginning at off, or returns an error; then any part
	// of them may have been written. It neither keeps nor changes bufs.
	WriteVAt(bufs [][]byte, off int64) error
	// Truncate sets the size. What is cut off is gone, what is added reads as zeros.
	Truncate(size int64) error
	// Allocate takes the disk space for the first size bytes, so that nobody else can have it, and lets the file
	// grow to that size if it is shorter; what is added reads as zeros. After an error any part may have been taken.
	// A file system that cannot do it fails with errors.ErrUnsupported.
	Allocate(size int64) error
	// SyncData makes content and size durable (fdatasync).
	SyncData() error
	// Size returns the size in bytes.
	Size() (int64, error)
	// Close releases the file. It makes nothing durable. A later call of any method fails with fs.ErrClosed.
	Close() error
}
