package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// dropCache throws a file out of the page cache.
func dropCache(f *os.File) error {
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("throw %s out of the page cache: %w", f.Name(), err)
	}
	return nil
}
