package vfs

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
)

// Bounded returns a file system on inner that keeps at most files of its Files really open: for one more it closes one
// that was not used for a while, and opens it again by its name when it is used. So a log of hundreds of segments needs
// no more descriptors than are in use. It goes beyond the bound, and does not wait, when all are in use at once; and when
// inner says that no further file can be opened, it closes some of its own and tries again.
//
// Nothing of the contract is lost by that:
//
//  1. What was written through a handle is synced before the handle is closed: an error of the disk that came up in
//     between would be told to nobody. It is what the next SyncData returns.
//  2. A File whose name leads elsewhere, or nowhere, keeps its handle. Nobody else may rename or remove the files.
func Bounded(inner FS, files int) FS {
	return &bounded{FS: inner, max: files, named: map[string][]*boundedFile{}}
}

// bounded is the file system of Bounded. Locks are taken in this order: naming, boundedFile.use, mu.
type bounded struct {
	FS
	max int

	// naming is held for reading while a name is opened, for writing while it comes to mean something else.
	naming sync.RWMutex

	mu    sync.Mutex
	count int            // handles, those that are about to be opened included
	open  []*boundedFile // those that have a handle, in no order
	hand  int            // goes round in open, as that of a clock
	named map[string][]*boundedFile
}

// boundedFile is a File that has a handle of inner only part of the time.
type boundedFile struct {
	fs *bounded

	// use is held for reading while an operation uses the handle, for writing while the handle changes.
	use    sync.RWMutex
	name   string
	handle File // nil: not open at the moment
	kept   bool // the name does not lead to this file any more
	closed bool

	// Under bounded.mu, by whoever holds use, for reading at least.
	slot   int   // in bounded.open
	failed error // of a sync that nobody asked for; the next SyncData returns it

	unsynced atomic.Bool // written to since the last sync
	recent   atomic.Bool // used since the hand came by
}

func (b *bounded) Create(name string) (File, error) {
	return b.openNew(name, b.FS.Create)
}

func (b *bounded) Open(name string) (File, error) {
	return b.openNew(name, b.FS.Open)
}

func (b *bounded) openNew(name string, open func(string) (File, error)) (File, error) {
	b.naming.RLock()
	defer b.naming.RUnlock()
	f := &boundedFile{fs: b, name: filepath.Clean(name)}
	f.use.Lock()
	defer f.use.Unlock()
	if err := b.openHandle(f, open); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.named[f.name] = append(b.named[f.name], f)
	return f, nil
}

// openHandle gives f, whose use is held for writing, a handle.
func (b *bounded) openHandle(f *boundedFile, open func(string) (File, error)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.count >= b.max && b.closeOne() {
	}
	b.count++
	b.mu.Unlock()
	handle, err := open(f.name)
	b.mu.Lock()
	for isFilesMax(err) && b.closeOne() {
		b.mu.Unlock()
		handle, err = open(f.name)
		b.mu.Lock()
	}
	if err != nil {
		b.count--
		return err
	}
	f.handle, f.slot = handle, len(b.open)
	f.recent.Store(true)
	b.open = append(b.open, f)
	return nil
}

// closeOne closes a handle that was not used since the hand came by last, if there is one that can be closed. It is
// called with mu held, which it gives up meanwhile.
func (b *bounded) closeOne() bool {
	f := b.idle()
	if f == nil {
		return false
	}
	b.forget(f)
	b.mu.Unlock()
	var err error
	if f.unsynced.Swap(false) {
		err = f.handle.SyncData()
	}
	err = errors.Join(err, f.handle.Close())
	b.mu.Lock()
	f.handle, f.failed = nil, errors.Join(f.failed, err)
	f.use.Unlock()
	return true
}

// idle returns a file whose handle can be closed, with its use held for writing; nil when there is none. It does not wait
// for one that is in use.
func (b *bounded) idle() *boundedFile {
	for range 2 * len(b.open) {
		b.hand = (b.hand + 1) % len(b.open) // which may have become shorter
		f := b.open[b.hand]
		if f.recent.Swap(false) || !f.use.TryLock() {
			continue
		}
		if !f.kept {
			return f
		}
		f.use.Unlock()
	}
	return nil
}

// forget takes a file out of those that have a handle. mu is held.
func (b *bounded) forget(f *boundedFile) {
	last := len(b.open) - 1
	b.open[f.slot] = b.open[last]
	b.open[f.slot].slot = f.slot
	b.open[last] = nil
	b.open = b.open[:last]
	b.count--
}

func (b *bounded) Remove(name string) error {
	b.naming.Lock()
	defer b.naming.Unlock()
	return b.rename(filepath.Clean(name), "", func() error { return b.FS.Remove(name) })
}

func (b *bounded) Rename(oldName, newName string) error {
	b.naming.Lock()
	defer b.naming.Unlock()
	from, to := filepath.Clean(oldName), filepath.Clean(newName)
	if from == to {
		return b.FS.Rename(oldName, newName)
	}
	return b.rename(from, to, func() error { return b.FS.Rename(oldName, newName) })
}

// rename has do give the files named from the name to, "" for none. Those named to before keep their handles, for they
// have no name then. naming is held, so there are no others.
func (b *bounded) rename(from, to string, do func() error) error {
	b.mu.Lock()
	moved, lost := slices.Clone(b.named[from]), slices.Clone(b.named[to])
	b.mu.Unlock()
	if to == "" {
		moved, lost = nil, moved
	}
	for _, f := range slices.Concat(moved, lost) {
		f.use.Lock()
		defer f.use.Unlock()
	}
	for _, f := range lost {
		if f.handle != nil || f.closed {
			continue
		}
		if err := b.openHandle(f, b.FS.Open); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	for _, f := range lost {
		f.kept = true
	}
	for _, f := range moved {
		f.name = to
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	still := b.named[from] // some of moved may have been closed before their use was taken
	delete(b.named, from)
	delete(b.named, to)
	if to != "" && len(still) > 0 {
		b.named[to] = still
	}
	return nil
}

// with calls do with the handle, which stays open meanwhile.
func (f *boundedFile) with(op string, do func(File) error) error {
	f.use.RLock()
	if f.handle != nil && !f.closed {
		defer f.use.RUnlock()
		if !f.recent.Load() {
			f.recent.Store(true)
		}
		return do(f.handle)
	}
	f.use.RUnlock()
	// Held for writing until do has returned: else the handle could be closed again in between, time after time.
	f.use.Lock()
	defer f.use.Unlock()
	if f.closed {
		return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	if f.handle == nil {
		if err := f.fs.openHandle(f, f.fs.FS.Open); err != nil {
			return err
		}
	}
	return do(f.handle)
}

// write is with for what changes the file.
func (f *boundedFile) write(op string, do func(File) error) error {
	return f.with(op, func(handle File) error {
		// After the change, and before the handle can be closed: set before it, a sync that began in between would take
		// the note away without having seen the bytes.
		defer f.unsynced.Store(true)
		return do(handle)
	})
}

func (f *boundedFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.with("read", func(handle File) (err error) {
		n, err = handle.ReadAt(p, off)
		return err
	})
	return n, err
}

func (f *boundedFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.write("write", func(handle File) (err error) {
		n, err = handle.WriteAt(p, off)
		return err
	})
	return n, err
}

func (f *boundedFile) WriteVAt(bufs [][]byte, off int64) error {
	return f.write("write", func(handle File) error { return handle.WriteVAt(bufs, off) })
}

func (f *boundedFile) Truncate(size int64) error {
	return f.write("truncate", func(handle File) error { return handle.Truncate(size) })
}

func (f *boundedFile) Allocate(size int64) error {
	return f.write("fallocate", func(handle File) error { return handle.Allocate(size) })
}

func (f *boundedFile) SyncData() error {
	return f.with("fdatasync", func(handle File) error {
		f.unsynced.Store(false)
		err := handle.SyncData()
		if err != nil {
			f.unsynced.Store(true)
		}
		return errors.Join(err, f.takeFailed())
	})
}

// takeFailed returns, once, the error of a sync that nobody asked for.
func (f *boundedFile) takeFailed() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	err := f.failed
	f.failed = nil
	return err
}

func (f *boundedFile) Size() (size int64, err error) {
	err = f.with("stat", func(handle File) (err error) {
		size, err = handle.Size()
		return err
	})
	return size, err
}

func (f *boundedFile) Close() error {
	f.use.Lock()
	defer f.use.Unlock()
	if f.closed {
		return &fs.PathError{Op: "close", Path: f.name, Err: fs.ErrClosed}
	}
	f.closed = true
	err := f.takeFailed()
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.handle != nil {
		f.fs.forget(f)
		err = errors.Join(err, f.handle.Close())
	}
	if f.kept {
		return err
	}
	others := slices.DeleteFunc(f.fs.named[f.name], func(other *boundedFile) bool { return other == f })
	if f.fs.named[f.name] = others; len(others) == 0 {
		delete(f.fs.named, f.name)
	}
	return err
}
