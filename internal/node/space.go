package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/vfs"
)

const (
	// How often the free space is looked at: as often as it takes that no disk fills up the low-water mark in between,
	// when there is less than nearMargin above it.
	spaceFar, spaceNear = time.Second, 100 * time.Millisecond
	nearMargin          = 1 << 30
	// fullLeast is how long the disk counts as full after a write has met a full one: with a quota it is full although
	// the free space says otherwise, and whether that has passed only writing can tell.
	fullLeast = 5 * time.Second

	// The defaults of the low-water mark and the reserve, and the parts of the disk that they are at most.
	lowWaterDefault, lowWaterPart = 256 << 20, 20
	reserveDefault, reservePart   = 64 << 20, 50

	reserveName = "reserve"
)

// space watches the disk of the data directory.
//
// There are two lines of defence. Below the low-water mark new batches are refused before anything is written; what was
// accepted, and what is no batch (DeleteRecords, the deletion of a topic), goes on. When the disk fills up all the same, for
// others write to it too, a write fails and waits: then the reserve, a file that only takes space, is removed, so that what
// waits can be written. Nothing fails and nothing ends; when there is room again, all goes on.
type space struct {
	fs                vfs.FS
	dir               string
	clock             replica.Clock
	logger            *slog.Logger
	lowWater, reserve int64 // bytes; 0 until the disk has said how large it is

	parked  func() int // how many writers wait for room
	retry   func()     // has them try again
	filled  func()     // the disk has filled up
	emptied func()     // it has room again

	met  chan struct{} // capacity 1: a write has met a full disk
	full atomic.Bool
	// mayReserve: nothing is made in a directory that this version may not be able to use.
	mayReserve atomic.Bool

	mu       sync.Mutex // a start gives the reserve back as well
	reserved bool       // the reserve is there, whole

	// Of the goroutine that watches, or of Open before it.
	fullUntil time.Time // at least
	noReserve bool      // no reserve can be made here
	said      bool      // what the log says of full
	waiting   bool      // there are parked writers, and the log says so
	tried     bool      // they were tried again just now: whether they are written shows at the next look
	blind     bool      // the free space is not known, and the log says so
}

// diskFull says that no new batch is to be accepted.
func (s *space) diskFull() bool { return s.full.Load() }

// meet notes that a write has met a full disk. It does not block.
func (s *space) meet(error) {
	s.full.Store(true)
	select {
	case s.met <- struct{}{}:
	default:
	}
}

// run watches until ctx ends.
func (s *space) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.met:
			s.fullUntil = s.clock.Now().Add(fullLeast)
			if s.giveBack() {
				s.logger.Warn("the disk is full: the reserve is given back", "dir", s.dir, "bytes", s.reserve)
				s.tried = true
				s.retry()
			}
			// Without a reserve nothing has changed since: those that wait are tried again in their time.
		case <-timer.C:
			if s.parked() > 0 {
				s.tried = true
				s.retry() // also when there seems to be no room: a quota does not show in the free space
			}
		}
		timer.Reset(s.look())
		s.tried = false
	}
}

// look measures the free space, draws the conclusions, and says when to look again.
func (s *space) look() time.Duration {
	free, total, err := s.fs.Space(s.dir)
	if err != nil {
		if !s.blind {
			s.logger.Error("cannot tell how full the disk is", "dir", s.dir, "error", err)
		}
		s.blind = true
		return spaceFar
	}
	s.blind = false
	if s.lowWater == 0 {
		s.lowWater = min(lowWaterDefault, total/lowWaterPart)
	}
	if s.reserve == 0 {
		s.reserve = min(reserveDefault, total/reservePart)
	}
	s.judge(free)
	if s.mayReserve.Load() && !s.full.Load() && !s.noReserve && free-s.reserve >= s.enough() {
		s.allocate()
	}
	if free < s.lowWater+s.reserve+nearMargin {
		return spaceNear
	}
	return spaceFar
}

// enough is how much must be free for batches to be accepted again: somewhat more than when they began to be refused.
func (s *space) enough() int64 { return s.lowWater + s.lowWater/10 }

func (s *space) judge(free int64) {
	parked := s.parked()
	if waiting := parked > 0 || s.waiting && s.tried; waiting != s.waiting {
		if s.waiting = waiting; waiting {
			s.logger.Error("the disk is full: what was accepted waits for room, and nothing is lost; make room", "dir", s.dir, "free", free, "partitions", parked)
		} else {
			s.logger.Info("what waited for room on the disk is written", "dir", s.dir, "free", free)
		}
	}
	was := s.full.Load()
	full := parked > 0 || free < s.lowWater || was && free < s.enough() || s.clock.Now().Before(s.fullUntil)
	s.full.Store(full)
	if full == s.said {
		return
	}
	if s.said = full; full {
		s.logger.Warn("the disk is nearly full: new batches are refused until there is room", "dir", s.dir, "free", free, "low_water", s.lowWater)
		s.filled()
	} else {
		s.logger.Info("the disk has room again: batches are accepted", "dir", s.dir, "free", free, "low_water", s.lowWater)
		s.emptied()
	}
}

func (s *space) path() string { return filepath.Join(s.dir, reserveName) }

// allocate makes the reserve, if it is not there. One that an earlier run of the node has left, whole or not, is made whole.
func (s *space) allocate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reserved {
		return
	}
	err := s.makeReserve()
	if err == nil {
		s.reserved = true
		return
	}
	s.remove() // what there is of it
	if s.noReserve = errors.Is(err, errors.ErrUnsupported); s.noReserve {
		s.logger.Warn("no reserve for a full disk: this file system cannot allocate space", "error", err)
		return
	}
	s.logger.Warn("no reserve for a full disk at the moment", "error", err)
}

func (s *space) makeReserve() error {
	file, err := s.fs.Create(s.path())
	if errors.Is(err, fs.ErrExist) {
		file, err = s.fs.Open(s.path())
	}
	if err != nil {
		return fmt.Errorf("make the reserve: %w", err)
	}
	if err := errors.Join(file.Truncate(s.reserve), file.Allocate(s.reserve), file.Close()); err != nil {
		return fmt.Errorf("allocate %d bytes for the reserve: %w", s.reserve, err)
	}
	return nil
}

// giveBack removes the reserve; it says whether there was one.
func (s *space) giveBack() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remove()
}

func (s *space) remove() bool {
	s.reserved = false
	err := s.fs.Remove(s.path())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.logger.Warn("cannot give the reserve back", "file", s.path(), "error", err)
	}
	return err == nil
}
