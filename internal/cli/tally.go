package cli

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// tally counts what becomes of the records. The client's goroutine counts answers while another sends.
type tally struct {
	mu       sync.Mutex
	sent     counts
	acked    counts
	failed   int64
	unknown  int64 // of the failed, those that may be stored all the same
	first    int64 // the lowest line that failed
	firstErr error
}

type counts struct{ records, bytes int64 }

func (c *counts) add(bytes int) {
	c.records++
	c.bytes += int64(bytes)
}

func (t *tally) send(bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent.add(bytes)
}

// ack counts an answer and returns whether it was the last one expected.
func (t *tally) ack(bytes int) (last bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.acked.add(bytes)
	return t.waitingLocked() == 0
}

// fail counts a record that will get no acknowledgement.
func (t *tally) fail(line int64, err error, unknown bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed++
	if unknown {
		t.unknown++
	}
	if t.firstErr == nil || line < t.first {
		t.first, t.firstErr = line, err
	}
}

func (t *tally) waitingLocked() int64 { return t.sent.records - t.acked.records - t.failed }

// waiting is how many records are neither acknowledged nor failed.
func (t *tally) waiting() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waitingLocked()
}

// answered is how many records are acknowledged.
func (t *tally) answered() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.acked.records
}

// progress is a line for a person who looks on.
func (t *tally) progress(took time.Duration) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf("%s, %s, %s waiting", records(t.acked.records), rates(t.acked, took), grouped(t.waitingLocked()))
}

// rates describes an amount of data and how fast it went.
func rates(c counts, took time.Duration) string {
	seconds := max(took.Seconds(), 0.001)
	return fmt.Sprintf("%s, %s records/s, %s/s", volume(float64(c.bytes)), grouped(int64(float64(c.records)/seconds)), volume(float64(c.bytes)/seconds))
}

// volume writes an amount of bytes in the largest unit of which there is one.
func volume(bytes float64) string {
	unit := "bytes"
	for _, larger := range []string{"kB", "MB", "GB", "TB"} {
		if bytes < 1000 {
			break
		}
		bytes, unit = bytes/1000, larger
	}
	if unit == "bytes" {
		return fmt.Sprintf("%.0f %s", bytes, unit)
	}
	return fmt.Sprintf("%.1f %s", bytes, unit)
}

func records(n int64) string {
	if n == 1 {
		return "1 record"
	}
	return grouped(n) + " records"
}

// grouped writes a number with a comma before every three digits.
func grouped(n int64) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i := range len(digits) {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteByte(digits[i])
	}
	return b.String()
}
