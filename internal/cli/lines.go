package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
)

// blockBytes is how much of the input is read at once.
const blockBytes = 64 << 10

// source reads input in blocks while the one before is worked on, and can be left while a read is stuck: a read of a
// terminal or a pipe cannot be called back.
type source struct {
	ask    chan []byte // buffers to fill; at most one is out
	answer chan block
}

type block struct {
	data []byte
	err  error
}

// newSource begins to read. Its goroutine ends after close, when the read that it may be in does.
func newSource(r io.Reader) *source {
	s := &source{ask: make(chan []byte, 1), answer: make(chan block, 1)}
	go func() {
		for buffer := range s.ask {
			n, err := r.Read(buffer)
			s.answer <- block{buffer[:n], err}
		}
	}()
	return s
}

func (s *source) close() { close(s.ask) }

// each calls visit with every block of the input until its end, an error of either, or the end of ctx, when it returns
// the cause of that. A block is lent for the call. What had been read when ctx ended is still visited.
func (s *source) each(ctx context.Context, visit func([]byte) error) error {
	s.ask <- make([]byte, blockBytes)
	next := make([]byte, blockBytes)
	for {
		var b block
		select {
		case b = <-s.answer:
		case <-ctx.Done():
			select {
			case b = <-s.answer:
			default:
			}
			if b.err == nil {
				b.err = context.Cause(ctx)
			}
		}
		if b.err == nil {
			s.ask <- next // read on meanwhile
		}
		if err := visit(b.data); err != nil {
			return err
		}
		if b.err != nil {
			if errors.Is(b.err, io.EOF) {
				return nil
			}
			return b.err
		}
		next = b.data[:cap(b.data)]
	}
}

// lineSplitter finds the lines in blocks.
type lineSplitter struct {
	line    func(line []byte) error // called with each, without its line feed; lent for the call
	tooLong func() error            // called when a line is longer than max
	max     int
	begun   []byte // the part of a line that came with earlier blocks
}

// write takes a block.
func (s *lineSplitter) write(data []byte) error {
	for {
		head, tail, ended := bytes.Cut(data, []byte{'\n'})
		if len(s.begun)+len(head) > s.max {
			return s.tooLong()
		}
		if !ended {
			s.begun = append(s.begun, head...)
			return nil
		}
		if len(s.begun) > 0 {
			s.begun = append(s.begun, head...)
			head = s.begun
		}
		if err := s.line(head); err != nil {
			return err
		}
		s.begun, data = s.begun[:0], tail
	}
}

// end takes the last line, when no line feed ended it.
func (s *lineSplitter) end() error {
	if len(s.begun) == 0 {
		return nil
	}
	return s.line(s.begun)
}
