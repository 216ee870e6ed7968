package cli

import (
	"fmt"
	"strconv"
)

// StartOffset says where to begin to read.
type StartOffset struct {
	kind startKind
	n    int64
}

type startKind uint8

const (
	fromBegin  startKind = iota
	fromEnd              // n records before the end
	fromOffset           // at offset n
)

// ParseStartOffset reads beginning, end, N or -N. An error is a mistake in asking.
func ParseStartOffset(text string) (StartOffset, error) {
	switch text {
	case "beginning", "earliest":
		return StartOffset{}, nil
	case "end", "latest":
		return StartOffset{kind: fromEnd}, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || n == -n && n != 0:
		return StartOffset{}, fmt.Errorf("%q is not an offset: beginning, end, N for offset N, or -N for the last N records of each partition", text)
	case n < 0:
		return StartOffset{fromEnd, -n}, nil
	default:
		return StartOffset{fromOffset, n}, nil
	}
}

// wanted returns the lowest offset that is asked for in a partition. The partition may not reach it yet.
func (s StartOffset) wanted(of span) int64 {
	switch s.kind {
	case fromEnd:
		return max(of.end-s.n, of.begin)
	case fromOffset:
		return max(s.n, of.begin)
	default:
		return of.begin
	}
}
