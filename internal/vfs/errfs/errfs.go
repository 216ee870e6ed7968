// Package errfs wraps a vfs.FS so that chosen operations fail: the tests of what lies on the disk fail each operation in
// turn and look at what is left.
//
// An Injector decides. The ones here are built from each other and print themselves, so that a failing case is one
// line of text:
//
//	errfs.OnIndex(3, errfs.PathSuffix(".log", errfs.On(errfs.OpWrite, errfs.ShortWrite(100, syscall.ENOSPC))))
//
// Scarce is a wrapper of another kind: it bounds the files that are open.
package errfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/oncemq/oncemq/internal/vfs"
)

// Kind is the kind of an operation.
type Kind string

// The kinds of operation. Both ways of writing are OpWrite.
const (
	OpCreate   Kind = "create"
	OpOpen     Kind = "open"
	OpRemove   Kind = "remove"
	OpRename   Kind = "rename"
	OpMkdirAll Kind = "mkdir"
	OpList     Kind = "list"
	OpSyncDir  Kind = "syncdir"
	OpLock     Kind = "lock"
	OpSpace    Kind = "space"
	OpRead     Kind = "read"
	OpWrite    Kind = "write"
	OpTruncate Kind = "truncate"
	OpAllocate Kind = "allocate"
	OpSyncData Kind = "syncdata"
	OpSize     Kind = "size"
	OpClose    Kind = "close"
)

// Op is one operation about to be carried out.
type Op struct {
	Kind Kind
	Path string // of a renaming: the old name
	Off  int64  // of a read or write, else 0
}

// Injector decides what fails. It may be asked by several goroutines at once.
type Injector interface {
	// Inject returns the error that op is to fail with, nil to let it through. A failed operation has no effect,
	// but see ShortWrite.
	Inject(op Op) error
	String() string
}

// Errors with which real disks fail.
var (
	EIO    = Fail(syscall.EIO)
	ENOSPC = Fail(syscall.ENOSPC)
)

// Fail fails every operation that it is asked about with err.
func Fail(err error) Injector { return failure{err} }

type failure struct{ err error }

func (f failure) Inject(Op) error { return f.err }

func (f failure) String() string {
	var errno syscall.Errno
	switch {
	case !errors.As(f.err, &errno):
		return fmt.Sprintf("fail(%q)", f.err)
	case errno == syscall.EIO:
		return "eio"
	case errno == syscall.ENOSPC:
		return "enospc"
	default:
		return fmt.Sprintf("fail(%d)", int(errno))
	}
}

// ShortWrite fails with err as well, but of a write the first n bytes are written.
func ShortWrite(n int, err error) Injector { return shortWrite{n, err} }

type shortWrite struct {
	n   int
	err error
}

func (s shortWrite) Inject(Op) error { return &shortWriteError{s} }

func (s shortWrite) String() string { return fmt.Sprintf("short(%d, %s)", s.n, failure{s.err}) }

type shortWriteError struct{ shortWrite }

func (e *shortWriteError) Error() string { return e.err.Error() }

func (e *shortWriteError) Unwrap() error { return e.err }

// PathSuffix asks inner about operations on names that end in suffix, and lets all others through.
func PathSuffix(suffix string, inner Injector) Injector { return pathSuffix{suffix, inner} }

type pathSuffix struct {
	suffix string
	inner  Injector
}

func (p pathSuffix) Inject(op Op) error {
	if !strings.HasSuffix(op.Path, p.suffix) {
		return nil
	}
	return p.inner.Inject(op)
}

func (p pathSuffix) String() string { return fmt.Sprintf("path(%q, %s)", p.suffix, p.inner) }

// On asks inner about operations of one kind, and lets all others through.
func On(kind Kind, inner Injector) Injector { return onKind{kind, inner} }

type onKind struct {
	kind  Kind
	inner Injector
}

func (o onKind) Inject(op Op) error {
	if op.Kind != o.kind {
		return nil
	}
	return o.inner.Inject(op)
}

func (o onKind) String() string { return fmt.Sprintf("on(%s, %s)", o.kind, o.inner) }

// Index lets all operations through but one.
type Index struct {
	n     int64
	asked atomic.Int64
	inner Injector
}

// OnIndex asks inner about the operation number n that it is asked about itself, counted from 0, and lets all others
// through.
func OnIndex(n int, inner Injector) *Index { return &Index{n: int64(n), inner: inner} }

// Inject implements Injector.
func (i *Index) Inject(op Op) error {
	if i.asked.Add(1)-1 != i.n {
		return nil
	}
	return i.inner.Inject(op)
}

// Reached says whether operation n has come. A loop over all n ends when it has not.
func (i *Index) Reached() bool { return i.asked.Load() > i.n }

// String is the injector as one would write it.
func (i *Index) String() string { return fmt.Sprintf("index(%d, %s)", i.n, i.inner) }

// Wrap returns a file system that carries out on inner what injector lets through.
func Wrap(inner vfs.FS, injector Injector) vfs.FS { return &wrapper{inner, injector} }

type wrapper struct {
	fs       vfs.FS
	injector Injector
}

// check returns the error of an operation that is to fail, with the name of the file.
func (w *wrapper) check(kind Kind, name string, off int64) error {
	err := w.injector.Inject(Op{Kind: kind, Path: name, Off: off})
	if err != nil {
		return &fs.PathError{Op: string(kind), Path: name, Err: err}
	}
	return nil
}

func (w *wrapper) Create(name string) (vfs.File, error) {
	if err := w.check(OpCreate, name, 0); err != nil {
		return nil, err
	}
	return w.file(name)(w.fs.Create(name))
}

func (w *wrapper) Open(name string) (vfs.File, error) {
	if err := w.check(OpOpen, name, 0); err != nil {
		return nil, err
	}
	return w.file(name)(w.fs.Open(name))
}

// file wraps what opening name returned.
func (w *wrapper) file(name string) func(vfs.File, error) (vfs.File, error) {
	return func(f vfs.File, err error) (vfs.File, error) {
		if err != nil {
			return nil, err
		}
		return &file{w, name, f}, nil
	}
}

func (w *wrapper) Remove(name string) error {
	if err := w.check(OpRemove, name, 0); err != nil {
		return err
	}
	return w.fs.Remove(name)
}

func (w *wrapper) Rename(oldName, newName string) error {
	if err := w.check(OpRename, oldName, 0); err != nil {
		return err
	}
	return w.fs.Rename(oldName, newName)
}

func (w *wrapper) MkdirAll(name string) error {
	if err := w.check(OpMkdirAll, name, 0); err != nil {
		return err
	}
	return w.fs.MkdirAll(name)
}

func (w *wrapper) List(dir string) ([]string, error) {
	if err := w.check(OpList, dir, 0); err != nil {
		return nil, err
	}
	return w.fs.List(dir)
}

func (w *wrapper) SyncDir(dir string) error {
	if err := w.check(OpSyncDir, dir, 0); err != nil {
		return err
	}
	return w.fs.SyncDir(dir)
}

func (w *wrapper) Lock(name string) (io.Closer, error) {
	if err := w.check(OpLock, name, 0); err != nil {
		return nil, err
	}
	return w.fs.Lock(name)
}

func (w *wrapper) Space(dir string) (free, total int64, err error) {
	if err := w.check(OpSpace, dir, 0); err != nil {
		return 0, 0, err
	}
	return w.fs.Space(dir)
}

type file struct {
	w    *wrapper
	name string
	f    vfs.File
}

func (f *file) ReadAt(b []byte, off int64) (int, error) {
	if err := f.w.check(OpRead, f.name, off); err != nil {
		return 0, err
	}
	return f.f.ReadAt(b, off)
}

func (f *file) WriteAt(b []byte, off int64) (int, error) {
	if err := f.w.check(OpWrite, f.name, off); err != nil {
		n, writeErr := f.f.WriteAt(b[:min(len(b), shortBy(err))], off)
		return n, errors.Join(err, writeErr)
	}
	return f.f.WriteAt(b, off)
}

func (f *file) WriteVAt(bufs [][]byte, off int64) error {
	if err := f.w.check(OpWrite, f.name, off); err != nil {
		for left := shortBy(err); len(bufs) > 0 && left > 0; bufs = bufs[1:] {
			part := bufs[0][:min(len(bufs[0]), left)]
			if _, writeErr := f.f.WriteAt(part, off); writeErr != nil {
				return errors.Join(err, writeErr)
			}
			left, off = left-len(part), off+int64(len(part))
		}
		return err
	}
	return f.f.WriteVAt(bufs, off)
}

// shortBy returns how many bytes a failing write writes.
func shortBy(err error) int {
	var short *shortWriteError
	if errors.As(err, &short) {
		return short.n
	}
	return 0
}

func (f *file) Truncate(size int64) error {
	if err := f.w.check(OpTruncate, f.name, 0); err != nil {
		return err
	}
	return f.f.Truncate(size)
}

func (f *file) Allocate(size int64) error {
	if err := f.w.check(OpAllocate, f.name, 0); err != nil {
		return err
	}
	return f.f.Allocate(size)
}

func (f *file) SyncData() error {
	if err := f.w.check(OpSyncData, f.name, 0); err != nil {
		return err
	}
	return f.f.SyncData()
}

func (f *file) Size() (int64, error) {
	if err := f.w.check(OpSize, f.name, 0); err != nil {
		return 0, err
	}
	return f.f.Size()
}

// Close closes the file in any case: an error says only that something was wrong with it.
func (f *file) Close() error {
	return errors.Join(f.w.check(OpClose, f.name, 0), f.f.Close())
}
