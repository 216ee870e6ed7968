package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/testbroker"
)

// endless is input without an end, one line again and again, which tells when enough was taken.
type endless struct {
	line   []byte
	at     int
	left   int64 // until enough is closed
	enough chan struct{}
}

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		copied := copy(p[n:], e.line[e.at:])
		n, e.at = n+copied, (e.at+copied)%len(e.line)
	}
	if e.left > 0 && e.left <= int64(n) {
		close(e.enough)
	}
	e.left -= int64(n)
	return n, nil
}

// Endless input does not fill the memory while the broker does not answer: the command takes as much as it may hold,
// in bytes of long lines or in number of short ones, and stops reading until the time for an answer is over.
func TestProduceMemory(t *testing.T) {
	for _, length := range []int{1, 100, 100_000} {
		t.Run(fmt.Sprintf("lines of %d bytes", length), func(t *testing.T) {
			t.Parallel()
			produceEndless(t, length)
		})
	}
}

func produceEndless(t *testing.T, length int) {
	const (
		bufferMemory  = 32 << 20 // the default of buffer.memory
		bufferedLines = 50_000
		betweenMax    = 1 << 20   // what a pipe and the blocks of input hold
		peakMax       = 128 << 20 // all of that twice over, for what the garbage collector has not found yet, and the rest
	)
	held := min(bufferedLines*length, bufferMemory)
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	topic := createTopic(t, b, 1)
	r := start(t, b, "produce", topic, "-v", "-X", "delivery.timeout.ms=2000", "-X", "request.timeout.ms=500")
	r.write("first\n")
	r.mustPrint(topic + "/0 @ 0")
	resume := pauseBroker(t, b)
	defer resume()
	in := &endless{line: append(bytes.Repeat([]byte{'x'}, length-1), '\n'), left: int64(held), enough: make(chan struct{})}
	taken := make(chan int64, 1)
	go func() {
		n, _ := io.Copy(r.stdin, in)
		taken <- n
	}()
	<-in.enough
	peak := peakMemory(t, r.cmd.Process.Pid)
	if _, text := r.mustEnd(exitFailure); !strings.Contains(text, "the first is line 2: no acknowledgement within delivery.timeout.ms=2000") {
		t.Errorf("it said\n%s", text)
	}
	n := <-taken
	t.Logf("%d bytes were taken, at most %d MiB of memory used", n, peak>>20)
	if n > int64(held+betweenMax) {
		t.Errorf("%d bytes were taken, want at most %d", n, held+betweenMax)
	}
	if peak > peakMax {
		t.Errorf("%d MiB of memory, want at most %d", peak>>20, peakMax>>20)
	}
}

var highWater = regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`)

// peakMemory is the most that a process had of memory since it was started, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	field := highWater.FindSubmatch(status)
	if field == nil {
		t.Fatalf("no VmHWM in\n%s", status)
	}
	kilobytes, err := strconv.ParseInt(string(field[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kilobytes << 10
}
