package vfs

import "golang.org/x/sys/unix"

// syncData writes content and size of fd to the disk, and waits for the disk to have them: fsync leaves them in
// the disk's own cache.
func syncData(fd int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_FULLFSYNC, 0)
	return err
}

// allocate takes the disk space of the first size bytes of fd. The system counts from the end of the space that the file
// has already, and leaves the size as it is.
func allocate(fd int, size int64) error {
	if size < 0 {
		return unix.EINVAL
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if have := stat.Blocks * 512; have < size {
		store := unix.Fstore_t{Flags: unix.F_ALLOCATEALL, Posmode: unix.F_PEOFPOSMODE, Length: size - have}
		if err := unix.FcntlFstore(uintptr(fd), unix.F_PREALLOCATE, &store); err != nil {
			return err
		}
	}
	if stat.Size >= size {
		return nil
	}
	return unix.Ftruncate(fd, size)
}

// blockSize is the unit in which stat counts.
func blockSize(stat *unix.Statfs_t) uint64 { return uint64(stat.Bsize) }
