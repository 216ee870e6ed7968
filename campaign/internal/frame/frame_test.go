package frame

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		err    error
		status int
		text   string
	}{
		{nil, 0, ""},
		{broken, 1, "name: broken\n"},
		{Failed(7, broken), 1, "name: FAILED, seed 7: broken\n"},
		{Failed(7, nil), 0, ""},
		{Exit(2, broken), 2, "name: broken\n"},
		{fmt.Errorf("run: %w", Exit(2, broken)), 2, "name: run: broken\n"},
		{Exit(3, nil), 3, ""},
		{Exit(0, nil), 0, ""},
	} {
		var out strings.Builder
		if status := report(&out, "name", c.err); status != c.status || out.String() != c.text {
			t.Errorf("%v: status %d, printed %q, want %d and %q", c.err, status, out.String(), c.status, c.text)
		}
	}
}

func TestParse(t *testing.T) {
	for args, ok := range map[string]bool{"": true, "-n 1": true, "-n x": false, "-n 1 y": false} {
		flags := flag.NewFlagSet("name", flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		flags.Int("n", 0, "")
		if err := Parse(flags, strings.Fields(args)); (err == nil) != ok {
			t.Errorf("%q: %v", args, err)
		}
	}
}
