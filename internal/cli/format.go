package cli

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemq/oncemq/internal/invariant"
)

// Format says how a record is printed.
type Format struct {
	json  bool
	parts []part
}

// part is literal bytes, or when verb is not 0 a piece of the record.
type part struct {
	verb    byte
	literal []byte
}

// verbs are the letters that may follow a % besides % itself. They are kcat's.
const verbs = "tpokKsSRTh"

// LineFormat prints the value and a line feed, and before them, unless separator is nil, the key and the separator.
func LineFormat(separator []byte) *Format {
	f := new(Format)
	if separator != nil {
		f.parts = append(f.parts, part{verb: 'k'}, part{literal: separator})
	}
	f.parts = append(f.parts, part{verb: 's'}, part{literal: []byte("\n")})
	return f
}

// ParseFormat reads "json", or a text with verbs and escapes. An error is a mistake in asking.
func ParseFormat(text string) (*Format, error) {
	if text == "json" {
		return &Format{json: true}, nil
	}
	if text == "" {
		return nil, errors.New("an empty format prints nothing")
	}
	f := new(Format)
	var literal []byte
	end := func() {
		if len(literal) > 0 {
			f.parts = append(f.parts, part{literal: literal})
			literal = nil
		}
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			b, length, err := escaped(text[i:])
			if err != nil {
				return nil, err
			}
			literal = append(literal, b)
			i += length - 1
		case c != '%':
			literal = append(literal, c)
		case i+1 == len(text):
			return nil, errors.New("a % at the end stands for nothing: write %%")
		case text[i+1] == '%':
			literal = append(literal, '%')
			i++
		case strings.IndexByte(verbs, text[i+1]) >= 0:
			end()
			f.parts = append(f.parts, part{verb: text[i+1]})
			i++
		default:
			r, _ := utf8.DecodeRuneInString(text[i+1:])
			return nil, fmt.Errorf("%%%c stands for nothing: there are %%t %%p %%o %%k %%s %%T %%h %%K %%S %%R %%%%, and \"json\"", r)
		}
	}
	end()
	return f, nil
}

// Append appends a record as it is printed.
func (f *Format) Append(dst []byte, r *kgo.Record) []byte {
	if f.json {
		return appendJSON(dst, r)
	}
	for i := range f.parts {
		dst = f.parts[i].append(dst, r)
	}
	return dst
}

func (p *part) append(dst []byte, r *kgo.Record) []byte {
	switch p.verb {
	case 0:
		return append(dst, p.literal...)
	case 't':
		return append(dst, r.Topic...)
	case 'p':
		return strconv.AppendInt(dst, int64(r.Partition), 10)
	case 'o':
		return strconv.AppendInt(dst, r.Offset, 10)
	case 'k':
		return append(dst, r.Key...)
	case 'K':
		return strconv.AppendInt(dst, length(r.Key), 10)
	case 's':
		return append(dst, r.Value...)
	case 'S':
		return strconv.AppendInt(dst, length(r.Value), 10)
	case 'R':
		return binary.BigEndian.AppendUint32(dst, uint32(int32(length(r.Value))))
	case 'T':
		return strconv.AppendInt(dst, r.Timestamp.UnixMilli(), 10)
	default: // 'h'
		for i, h := range r.Headers {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(append(append(dst, h.Key...), '='), h.Value...)
		}
		return dst
	}
}

// length is -1 for null, which is not the same as empty.
func length(b []byte) int64 {
	if b == nil {
		return -1
	}
	return int64(len(b))
}

// envelope is a record as JSON, with the field names that kcat -J has.
type envelope struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	// TimestampType is "create" for the producer's time and "logappend" for the broker's.
	TimestampType string   `json:"tstype"`
	Timestamp     int64    `json:"ts"` // milliseconds since 1970
	Headers       []any    `json:"headers,omitempty"`
	Key           jsonData `json:"key"`
	Payload       jsonData `json:"payload"`
}

// jsonData is null, a string, or for bytes that are no UTF-8 text {"base64": "..."}: so nothing is lost.
type jsonData []byte

// MarshalJSON implements json.Marshaler.
func (d jsonData) MarshalJSON() ([]byte, error) {
	switch {
	case d == nil:
		return []byte("null"), nil
	case utf8.Valid(d):
		return jsonText(string(d))
	default:
		return json.Marshal(map[string]string{"base64": base64.StdEncoding.EncodeToString(d)})
	}
}

// jsonText is json.Marshal without the escapes that are for HTML.
func jsonText(v any) ([]byte, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return []byte(b.String()), err
}

func appendJSON(dst []byte, r *kgo.Record) []byte {
	e := envelope{
		Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, TimestampType: "create", Timestamp: r.Timestamp.UnixMilli(),
		Key: r.Key, Payload: r.Value,
	}
	if r.Attrs.TimestampType() == 1 {
		e.TimestampType = "logappend"
	}
	for _, h := range r.Headers {
		e.Headers = append(e.Headers, jsonData(h.Key), jsonData(h.Value))
	}
	text, err := jsonText(e)
	invariant.Check(err == nil, "encode a record, which is text and numbers, as JSON: %v", err)
	return append(dst, text...)
}
