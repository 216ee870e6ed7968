package sim

import (
	"testing"
	"time"
)

// Package time keeps its representation to itself: this fails when it has changed.
func TestMoment(t *testing.T) {
	start, later := moment(0, 0), moment(90*time.Millisecond, -time.Hour)
	if start.Year() != 2026 {
		t.Errorf("a run begins at %v", start)
	}
	if got := later.Sub(start); got != 90*time.Millisecond {
		t.Errorf("monotonic time went on by %v, want 90ms", got)
	}
	if got := later.UnixMilli() - start.UnixMilli(); got != 90-time.Hour.Milliseconds() {
		t.Errorf("wall time went on by %d ms, want an hour less than 90", got)
	}
}
