package vfs

import "golang.org/x/sys/unix"

// syncData writes content and size of fd to the disk, and waits for the disk to have them.
func syncData(fd int) error { return unix.Fdatasync(fd) }

// allocate takes the disk space of the first size bytes of fd.
func allocate(fd int, size int64) error { return unix.Fallocate(fd, 0, 0, size) }

// blockSize is the unit in which stat counts.
func blockSize(stat *unix.Statfs_t) uint64 {
	if stat.Frsize > 0 {
		return uint64(stat.Frsize)
	}
	return uint64(stat.Bsize) // a file system that does not tell the two apart
}
