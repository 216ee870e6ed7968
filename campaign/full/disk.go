package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
	"github.com/oncemq/oncemq/campaign/internal/smalldisk"
	"github.com/oncemq/oncemq/internal/vfs"
)

// disk is the small file system.
type disk struct {
	dir      string
	mounted  bool
	stranger string // a file that is not the broker's
}

// runMounted runs this command again where it may mount a small file system that nobody else sees.
func runMounted(ctx context.Context, cfg config) error {
	status, err := smalldisk.Again(ctx, append(os.Args[1:], "--in-namespace", fmt.Sprintf("--seed=%d", cfg.seed)))
	if err != nil {
		return fmt.Errorf("FAILED: there is no small file system; make one and name a directory on it with --dir: %w", err)
	}
	return frame.Exit(status, nil)
}

func openDisk(cfg config, work string) (disk, error) {
	if cfg.dir != "" {
		return disk{dir: cfg.dir, stranger: filepath.Join(cfg.dir, "stranger")}, checkSmall(cfg.dir)
	}
	dir := filepath.Join(work, "small")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return disk{}, fmt.Errorf("make a place for the file system: %w", err)
	}
	return disk{dir: dir, mounted: true, stranger: filepath.Join(dir, "stranger")}, smalldisk.Mount(dir, cfg.sizeMiB)
}

// checkSmall keeps the campaign from filling a disk that others need.
func checkSmall(dir string) error {
	const most = 4 << 30
	_, total, err := vfs.OS().Space(dir)
	if err == nil && total > most {
		err = fmt.Errorf("the file system of %s has %s: only one of up to %s is filled", dir, mebibytes(total), mebibytes(most))
	}
	return err
}

func (d disk) space() (free, total int64, err error) { return vfs.OS().Space(d.dir) }

func (d disk) close() error {
	if !d.mounted {
		return nil
	}
	return smalldisk.Unmount(d.dir)
}

// take fills the file system with a file of the stranger's, to the last byte, and goes on taking what becomes free for a
// while.
func (d disk) take(greedFor time.Duration) error { return smalldisk.Fill(d.stranger, greedFor) }

// giveBack removes the stranger's file.
func (d disk) giveBack() error {
	if err := os.Remove(d.stranger); err != nil {
		return fmt.Errorf("remove the stranger's file: %w", err)
	}
	return nil
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
