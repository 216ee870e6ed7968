// Package smalldisk gives a campaign a small file system in memory, which nobody else sees, and fills it. It is test
// support; the broker does not import it.
//
// A process that may not mount runs itself again in a user and a mount namespace of its own (Again), and mounts there. What
// it mounted ends with it. Only Linux has such namespaces; Fill works everywhere.
package smalldisk

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Fill writes to a file until its file system is full to the last byte, and goes on taking what becomes free for a while.
func Fill(name string, greedFor time.Duration) (err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open a file to fill the disk: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	end := time.Now().Add(greedFor)
	chunk := make([]byte, 1<<20)
	for size := len(chunk); ; {
		_, err := f.Write(chunk[:size])
		switch {
		case err == nil:
		case !errors.Is(err, syscall.ENOSPC):
			return fmt.Errorf("fill the disk: %w", err)
		case size > 1:
			size /= 16
		case time.Now().After(end):
			return nil
		default:
			size = len(chunk)
		}
	}
}
