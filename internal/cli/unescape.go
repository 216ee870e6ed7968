package cli

import (
	"errors"
	"fmt"
	"strconv"
)

// Unescape replaces \n, \r, \t, \\ and \xHH by the bytes they stand for, as kcat does for separators and formats. An
// error is a mistake in asking.
func Unescape(text string) ([]byte, error) {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			out = append(out, text[i])
			continue
		}
		b, length, err := escaped(text[i:])
		if err != nil {
			return nil, err
		}
		out = append(out, b)
		i += length - 1
	}
	return out, nil
}

// escaped reads the escape that text begins with, and returns its byte and its length.
func escaped(text string) (b byte, length int, err error) {
	if len(text) < 2 {
		return 0, 0, errors.New(`a \ at the end stands for nothing: write \\`)
	}
	switch text[1] {
	case 'n':
		return '\n', 2, nil
	case 'r':
		return '\r', 2, nil
	case 't':
		return '\t', 2, nil
	case '\\':
		return '\\', 2, nil
	case 'x':
		if len(text) >= 4 {
			if n, err := strconv.ParseUint(text[2:4], 16, 8); err == nil {
				return byte(n), 4, nil
			}
		}
		return 0, 0, errors.New(`\x needs two hexadecimal digits`)
	default:
		return 0, 0, fmt.Errorf(`\%c stands for nothing: there are \n \r \t \\ and \xHH`, text[1])
	}
}

// ParseSeparator reads what stands between key and value. An error is a mistake in asking.
func ParseSeparator(text string) ([]byte, error) {
	separator, err := Unescape(text)
	if err != nil {
		return nil, err
	}
	if len(separator) == 0 {
		return nil, errors.New("a separator has at least one byte")
	}
	return separator, nil
}
