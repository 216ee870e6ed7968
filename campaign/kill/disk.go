package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
	"github.com/oncemq/oncemq/campaign/internal/smalldisk"
)

const (
	// diskVariable is the environment variable that tells a campaign where its disk is to be.
	diskVariable = "ONCEMQ_KILL_DISK"
	// fullMax bounds how long the disk is full at a time, roomMax the time between.
	fullMax, roomMax = 300 * time.Millisecond, 700 * time.Millisecond
)

// disk is a small file system that is there for this campaign alone.
type disk struct {
	c      *campaign
	dir    string
	rng    *rand.Rand
	filled int // how often it was full
}

func newDisk(c *campaign) *disk {
	return &disk{c: c, dir: os.Getenv(diskVariable), rng: rand.New(rand.NewPCG(c.cfg.seed, 5))}
}

func (d *disk) data() string { return filepath.Join(d.dir, "data") }

// fillUp takes all room that there is, and gives it back, again and again until stop is closed.
func (d *disk) fillUp(ctx context.Context, stop <-chan struct{}) {
	name := filepath.Join(d.dir, "ballast")
	for pause(ctx, stop, d.rng, roomMax) {
		if err := smalldisk.Fill(name, 0); err != nil {
			d.c.Violate("fill the disk: %v", err)
			return
		}
		d.filled++
		pause(ctx, stop, d.rng, fullMax)
		if err := os.Remove(name); err != nil {
			d.c.Violate("make room on the disk: %v", err)
			return
		}
	}
}

// ownDisk gives the campaign a disk. It runs this program again where it may mount what nobody else sees, and returns how
// that ended; in that inner run it mounts the disk.
func ownDisk(ctx context.Context, cfg config) (inner bool, err error) {
	unable := func(err error) error { return frame.Exit(2, fmt.Errorf("--disk: %w", err)) }
	if dir := os.Getenv(diskVariable); dir != "" {
		if err := smalldisk.Mount(dir, cfg.disk); err != nil {
			return false, unable(err)
		}
		return true, nil
	}
	dir, err := os.MkdirTemp("", "oncemq-disk-")
	if err != nil {
		return false, unable(fmt.Errorf("make a directory: %w", err))
	}
	status, err := smalldisk.Again(ctx, os.Args[1:], diskVariable+"="+dir)
	if err = errors.Join(err, os.Remove(dir)); err != nil {
		return false, unable(err)
	}
	return false, frame.Exit(status, nil)
}
