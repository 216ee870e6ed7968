package smalldisk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// stopWithin bounds how long the inner run may take to end after ctx.
const stopWithin = 30 * time.Second

// Again runs this program again in a user and a mount namespace of its own, with these arguments and with env (NAME=VALUE)
// on top of the environment, and returns its exit status. When ctx ends it is sent SIGTERM. An error means that it did not
// run.
func Again(ctx context.Context, args []string, env ...string) (status int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopWithin
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	err = cmd.Run()
	if cmd.ProcessState == nil {
		return 0, fmt.Errorf("make namespaces, for which this process may need leave (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces, or root): %w", err)
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil // -1 of one that a signal ended
	}
	if err != nil { // it was told to end, and did
		return 1, nil
	}
	return 0, nil
}

// Mount mounts a file system in memory over dir, in this namespace only.
func Mount(dir string, sizeMiB int) error {
	// Without this the mount would be seen outside where / is shared.
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to this namespace: %w", err)
	}
	if err := syscall.Mount("oncemq", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", sizeMiB)); err != nil {
		return fmt.Errorf("mount a file system of %d MiB in memory over %s: %w", sizeMiB, dir, err)
	}
	return nil
}

// Unmount takes a file system off that Mount mounted, so that its directory can be removed.
func Unmount(dir string) error {
	if err := syscall.Unmount(dir, 0); err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}
