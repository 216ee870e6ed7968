package sim

import (
	"time"
	"unsafe"
)

// clock is the clock of a node's process: its monotonic part follows virtual time, its wall part can be set.
type clock struct {
	world *world
	wall  time.Duration // how far the wall clock was moved
}

// Now implements replica.Clock.
func (c *clock) Now() time.Time { return moment(c.world.now, c.wall) }

const (
	// monotonicFlag, and above secondShift bits of nanoseconds the seconds since 1885, are how package time represents a
	// time with a monotonic reading.
	monotonicFlag = 1 << 63
	secondShift   = 30
	// startSeconds is when a run begins: some day of 2026.
	startSeconds = 4450000000
)

// moment returns the time after so much virtual time, with the wall clock moved by whole seconds, as setting the clock of a
// machine does, and the monotonic one not. Package time has no call for that, so it is done in its representation.
func moment(virtual, wall time.Duration) time.Time {
	var start time.Time
	raw := (*struct {
		wall uint64
		ext  int64
	})(unsafe.Pointer(&start))
	raw.wall = monotonicFlag | uint64(startSeconds+int64(wall/time.Second))<<secondShift
	raw.ext = int64(time.Hour)
	return start.Add(virtual)
}
