package testbroker

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// awaitStopped waits until all threads of a child process stand still, or it has ended: SIGSTOP is taken by one thread, and
// the others go on until that one has run.
func awaitStopped(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, &unix.Siginfo{}, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		switch err {
		case nil:
			return nil
		case unix.EINTR:
		default:
			return fmt.Errorf("wait until a process is frozen: %w", err)
		}
	}
}
