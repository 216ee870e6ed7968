//go:build linux || darwin

package vfs

import (
	"errors"
	"io"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Only the user that runs the broker may read what clients stored.
const (
	filePermissions = 0o600
	dirPermissions  = 0o700
)

// vectorsMax is the kernel's limit on the buffers of one pwritev (IOV_MAX on Linux and macOS).
const vectorsMax = 1024

// IsFull says whether an error means that the disk has no room, or that this user may take no more of it.
func IsFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// isFilesMax says whether an error means that the process, or the system, may open no further file.
func isFilesMax(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}

// OS returns the operating system's file system.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) Create(name string) (File, error) {
	return openFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

func (osFS) Open(name string) (File, error) {
	return openFile(name, os.O_RDWR)
}

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

func (osFS) MkdirAll(name string) error { return os.MkdirAll(name, dirPermissions) }

func (osFS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name()
	}
	return names, nil
}

func (osFS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	// fsync: fdatasync need not write a directory's entries.
	return errors.Join(d.Sync(), d.Close())
}

func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, filePermissions)
	if err != nil {
		return nil, err
	}
	err = control(f, "flock", func(fd int) error {
		return ignoringInterrupts(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	})
	if err == nil {
		return f, nil
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = &fs.PathError{Op: "lock", Path: name, Err: ErrLocked}
	}
	return nil, errors.Join(err, f.Close())
}

func (osFS) Space(dir string) (free, total int64, err error) {
	var stat unix.Statfs_t
	if err := ignoringInterrupts(func() error { return unix.Statfs(dir, &stat) }); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	unit := blockSize(&stat)
	return bytesOf(stat.Bavail, unit), bytesOf(stat.Blocks, unit), nil
}

// bytesOf is the size of a number of blocks, bounded: network file systems are known to say that they have 2^64 of them.
func bytesOf(blocks, unit uint64) int64 {
	high, low := bits.Mul64(blocks, unit)
	if high > 0 || low > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(low)
}

type osFile struct{ *os.File }

func openFile(name string, flags int) (File, error) {
	f, err := os.OpenFile(name, flags, filePermissions)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (f osFile) WriteVAt(bufs [][]byte, off int64) error {
	if off < 0 {
		return &fs.PathError{Op: "pwritev", Path: f.Name(), Err: syscall.EINVAL}
	}
	return control(f.File, "pwritev", func(fd int) error {
		return writeAll(bufs, off, func(bufs [][]byte, off int64) (int, error) {
			return unix.Pwritev(fd, bufs, off)
		})
	})
}

// writeAll writes bufs at off by as many calls of pwritev as its short writes and limits demand.
func writeAll(bufs [][]byte, off int64, pwritev func(bufs [][]byte, off int64) (int, error)) error {
	for {
		for len(bufs) > 0 && len(bufs[0]) == 0 {
			bufs = bufs[1:]
		}
		if len(bufs) == 0 {
			return nil
		}
		n, err := pwritev(bufs[:min(len(bufs), vectorsMax)], off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n <= 0 {
			return io.ErrShortWrite
		}
		off += int64(n)
		for len(bufs) > 0 && n >= len(bufs[0]) {
			n -= len(bufs[0])
			bufs = bufs[1:]
		}
		if n == 0 {
			continue
		}
		// The write ended inside of a buffer. The rest of that one goes first, alone, so that bufs stays as it is.
		rest := bufs[0][n:]
		if err := writeAll([][]byte{rest}, off, pwritev); err != nil {
			return err
		}
		off += int64(len(rest))
		bufs = bufs[1:]
	}
}

func (f osFile) Allocate(size int64) error {
	return control(f.File, "fallocate", func(fd int) error {
		if size == 0 {
			return nil // which the system refuses
		}
		return ignoringInterrupts(func() error { return allocate(fd, size) })
	})
}

func (f osFile) SyncData() error {
	return control(f.File, "fdatasync", func(fd int) error {
		return ignoringInterrupts(func() error { return syncData(fd) })
	})
}

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// control calls op with the descriptor of f. os.File.Fd would do the same without keeping f open meanwhile.
func control(f *os.File, name string, op func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return &fs.PathError{Op: name, Path: f.Name(), Err: err}
	}
	var opErr error
	if err := conn.Control(func(fd uintptr) { opErr = op(int(fd)) }); err != nil {
		return &fs.PathError{Op: name, Path: f.Name(), Err: fs.ErrClosed}
	}
	if opErr != nil {
		return &fs.PathError{Op: name, Path: f.Name(), Err: opErr}
	}
	return nil
}

// ignoringInterrupts repeats op while a signal interrupts it.
func ignoringInterrupts(op func() error) error {
	for {
		if err := op(); err != unix.EINTR {
			return err
		}
	}
}
