package cli

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errTooLong = errors.New("too long")

// split collects the lines of blocks.
func split(limit int, blocks ...string) (lines []string, err error) {
	s := &lineSplitter{max: limit, tooLong: func() error { return errTooLong }}
	s.line = func(line []byte) error {
		lines = append(lines, string(line))
		return nil
	}
	for _, b := range blocks {
		if err := s.write([]byte(b)); err != nil {
			return lines, err
		}
	}
	return lines, s.end()
}

func TestLineSplitter(t *testing.T) {
	for _, c := range []struct {
		blocks string // divided by |
		want   string // divided by |; empty: no line
		err    error
	}{
		{"", "", nil},
		{"a", "a", nil},
		{"a\n", "a", nil},
		{"a\n\nb\n", "a||b", nil},
		{"a\r\nb", "a\r|b", nil},
		{"a|b|c\nd|\n|e", "abc|d|e", nil},
		{"12345\n", "12345", nil},
		{"123|45|\n", "12345", nil},
		{"x\n123456\ny\n", "x", errTooLong},
		{"x\n123|456", "x", errTooLong},
		{"123456", "", errTooLong},
	} {
		lines, err := split(5, strings.Split(c.blocks, "|")...)
		if strings.Join(lines, "|") != c.want || !errors.Is(err, c.err) {
			t.Errorf("%q: %q, %v, want %q, %v", c.blocks, lines, err, c.want, c.err)
		}
	}
	if lines, err := split(5, "\n"); err != nil || !slices.Equal(lines, []string{""}) {
		t.Errorf("an empty line: %q, %v", lines, err)
	}
}

// However the input comes in blocks, the lines are the same.
func TestLineSplitterBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a\n]{0,40}`).Draw(t, "text")
		var blocks []string
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "length")
			blocks, rest = append(blocks, rest[:n]), rest[n:]
		}
		want := strings.Split(text, "\n")
		if want[len(want)-1] == "" {
			want = want[:len(want)-1]
		}
		if lines, err := split(40, blocks...); err != nil || !slices.Equal(lines, want) {
			t.Fatalf("%q: %q, %v, want %q", blocks, lines, err, want)
		}
	})
}

// gather reads a source to its end.
func gather(ctx context.Context, r io.Reader) (string, error) {
	var b strings.Builder
	s := newSource(r)
	defer s.close()
	err := s.each(ctx, func(data []byte) error {
		b.Write(data)
		return nil
	})
	return b.String(), err
}

func TestSource(t *testing.T) {
	text := strings.Repeat("0123456789", 3*blockBytes/10)
	for name, r := range map[string]io.Reader{
		"whole":          strings.NewReader(text),
		"end with data":  iotest.DataErrReader(strings.NewReader(text)),
		"in small parts": iotest.OneByteReader(strings.NewReader(text[:1000])),
	} {
		want := text
		if name == "in small parts" {
			want = text[:1000]
		}
		if got, err := gather(t.Context(), r); got != want || err != nil {
			t.Errorf("%s: %d bytes, %v, want %d", name, len(got), err, len(want))
		}
	}
	if got, err := gather(t.Context(), io.MultiReader(strings.NewReader("begin"), iotest.ErrReader(errTooLong))); got != "begin" || !errors.Is(err, errTooLong) {
		t.Errorf("a read that fails: %q, %v", got, err)
	}
	s := newSource(strings.NewReader(text))
	defer s.close()
	if err := s.each(t.Context(), func([]byte) error { return errDelivery }); !errors.Is(err, errDelivery) {
		t.Errorf("a visit that fails: %v", err)
	}
}

// The end of the context ends a source whose read is stuck; what had been read by then is visited.
func TestSourceStops(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close() // ends the goroutine that reads
	ctx, cancel := context.WithCancel(t.Context())
	s := newSource(r)
	defer s.close()
	var got string
	done := make(chan error, 1)
	visited := make(chan struct{}, 1)
	go func() {
		done <- s.each(ctx, func(data []byte) error {
			got += string(data)
			visited <- struct{}{}
			return nil
		})
	}()
	if _, err := io.WriteString(w, "read"); err != nil {
		t.Fatal(err)
	}
	<-visited
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || got != "read" {
		t.Errorf("%q, %v", got, err)
	}
}

// The size of a record as a batch of its own is that of its encoding by another library.
func TestBatchBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(8000, 8400), rapid.IntRange(1<<20-100, 1<<20+100))
		r := kmsg.NewRecord()
		r.Value = make([]byte, length.Draw(t, "value"))
		if rapid.Bool().Draw(t, "with key") {
			r.Key = make([]byte, length.Draw(t, "key"))
		}
		r.Length = int32(len(r.AppendTo(nil)) - 1) // without the length itself, which is 0 and has one byte yet
		const header, lengthBefore = 61, 4
		if got, want := batchBytes(r.Key, r.Value), lengthBefore+header+len(r.AppendTo(nil)); got != want {
			t.Fatalf("%d bytes, want %d", got, want)
		}
	})
}

// A person who looks on sees how far it is, and at the end nothing is left of that.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		p := &production{notices: &notices{w: &b}, now: time.Now, begun: time.Now(), showProgress: true}
		p.o.Properties = &ProducerProperties{deliveryTimeout: time.Hour}
		end := p.attend()
		p.tally.send(5)
		<-time.After(attendEvery + 1)
		p.tally.ack(5)
		<-time.After(attendEvery)
		end()
		want := overwrite + "0 records, 0 bytes, 0 records/s, 0 bytes/s, 1 waiting" +
			overwrite + "1 record, 5 bytes, 2 records/s, 10 bytes/s, 0 waiting" + overwrite
		if b.String() != want {
			t.Errorf("%q, want %q", b.String(), want)
		}
	})
}

// A run gives up when no answer came for delivery.timeout.ms while one was due, and not before.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &production{notices: &notices{w: io.Discard}, now: time.Now, begun: time.Now()}
		p.o.Properties = &ProducerProperties{deliveryTimeout: 10 * time.Second}
		p.giveUp, p.abandon = context.WithCancelCause(t.Context())
		p.out = new(places)
		defer p.attend()()
		<-time.After(time.Minute) // nothing is due
		for range 5 {
			p.tally.send(1)
			p.tally.send(1)
			<-time.After(9 * time.Second)
			p.tally.ack(1)
		}
		p.out.busy.Store(true)
		<-time.After(time.Minute) // stdout is stuck
		p.out.busy.Store(false)
		<-time.After(9 * time.Second)
		if p.giveUp.Err() != nil {
			t.Fatal("given up though answers came")
		}
		<-time.After(time.Second + 2*attendEvery)
		if !errors.Is(context.Cause(p.giveUp), kgo.ErrRecordTimeout) {
			t.Errorf("not given up: %v", context.Cause(p.giveUp))
		}
	})
}

func TestSplitKey(t *testing.T) {
	for _, c := range []struct{ separator, line, key, value string }{
		{":", "k:v", "k", "v"}, {":", "k:v:w", "k", "v:w"}, {":", ":v", "", "v"}, {":", "k:", "k", ""}, {":", ":", "", ""}, {"=>", "a=>b", "a", "b"},
	} {
		p := &production{o: ProduceOptions{Separator: []byte(c.separator)}}
		key, value, err := p.split([]byte(c.line))
		if err != nil || key == nil || value == nil || string(key) != c.key || string(value) != c.value {
			t.Errorf("%q at %q: %q and %q, %v", c.line, c.separator, key, value, err)
		}
	}
	if _, _, err := (&production{o: ProduceOptions{Separator: []byte(":")}, line: 6}).split([]byte("none")); !errors.Is(err, errLine) || !strings.Contains(err.Error(), "line 7") {
		t.Errorf("no separator: %v", err)
	}
	if key, value, err := new(production).split([]byte{}); err != nil || key != nil || value == nil {
		t.Errorf("an empty line without keys: %q, %q, %v", key, value, err)
	}
}
