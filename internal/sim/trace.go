package sim

import (
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"time"
)

// traceLines is how many of the last events are kept as text.
const traceLines = 400

// trace is what has happened: a hash over all of it, and its end as text.
type trace struct {
	sum   hash.Hash64
	lines []string // a ring
	next  int
	steps int
	out   io.Writer // nil: none
}

func newTrace(out io.Writer) *trace { return &trace{sum: fnv.New64a(), out: out} }

func (t *trace) add(now time.Duration, format string, args ...any) {
	t.note(now, format, args...)
	last := (t.next + traceLines - 1) % traceLines
	io.WriteString(t.sum, t.lines[last])
}

// note adds a line that is no part of the hash.
func (t *trace) note(now time.Duration, format string, args ...any) {
	line := fmt.Sprintf("%11.6f ", now.Seconds()) + fmt.Sprintf(format, args...)
	if t.next == len(t.lines) && len(t.lines) < traceLines {
		t.lines = append(t.lines, line)
	} else {
		t.lines[t.next] = line
	}
	t.next = (t.next + 1) % traceLines
	if t.out != nil {
		fmt.Fprintln(t.out, line)
	}
}

// tail returns the last events, oldest first.
func (t *trace) tail() []string {
	if len(t.lines) < traceLines {
		return t.lines
	}
	return append(append([]string(nil), t.lines[t.next:]...), t.lines[:t.next]...)
}

// Write takes a line of the product's log.
func (w *world) Write(line []byte) (int, error) {
	w.trace.note(w.now, "log: %s", string(line[:max(len(line)-1, 0)]))
	return len(line), nil
}
