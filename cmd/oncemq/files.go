package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// filesPerPartition is what a partition has open at least: its active segment and the index of that.
const filesPerPartition = 2

// fileShares is how the files that the process may have open are divided.
type fileShares struct {
	connections int // of Kafka clients
	data        int // files of the data directory
	partitions  int // whose active segments stay open: part of data
}

// divideFiles makes the shares, so that neither a crowd of connections nor of topics can use up what the other needs:
// without a free descriptor a new partition or segment ends the process. A quarter is for connections, five eighths for the
// data directory (four of them for what partitions have open at least), and the rest for everything else.
func divideFiles() (fileShares, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fileShares{}, fmt.Errorf("ask how many files may be open: %w", err)
	}
	files := int(min(limit.Cur, 1<<30)) // the runtime has raised it as far as it may
	return fileShares{connections: files / 4, data: files / 8 * 5, partitions: files / 2 / filesPerPartition}, nil
}
