package seglog

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	must(t, err)
	return b
}

// TestBytes pins the format: what is on disk stays readable. The checksums were computed by another implementation of
// CRC-32C.
func TestBytes(t *testing.T) {
	header := appendHeader(nil, testIdentity, place{index: 100, offset: 5000, term: 7})
	if want := unhex(t, "ff4f4e43454d510a 00000054 00000007 81 f0cb52cf 7f 0001 0000000000000064 0000000000001388"+
		"0001 0001 01020300000000000000000000000000 0000000000000007 0000000300000005 09080700000000000000000000000000 00000004"); !bytes.Equal(header, want) {
		t.Errorf("header frame:\n%x, want\n%x", header, want)
	}
	f := frame{kind: KindClock, version: 1, term: 8, index: 101, offset: 5000, payload: []byte{0, 0, 1, 2, 3, 4, 5, 6}}
	var b [frameHeaderSize]byte
	f.putHeader(b[:])
	if want := unhex(t, "ff4f4e43454d510a 00000024 00000008 81 5ed0714d 11 0001 0000000000000065 0000000000001388"); !bytes.Equal(b[:], want) {
		t.Errorf("frame:\n%x, want\n%x", b, want)
	}
	r := record{offset: 5000, maxTimestamp: -1, position: 96, length: 48, term: 8, kind: KindClock}
	encoded := r.appendTo(nil)
	if want := unhex(t, "0000000000001388 00000060 00000030 00000008 11 000000 ffffffffffffffff"); !bytes.Equal(encoded, want) {
		t.Errorf("index record:\n%x, want\n%x", encoded, want)
	}
	if parseRecord(encoded) != r {
		t.Errorf("index record: got %+v, want %+v", parseRecord(encoded), r)
	}
}

// TestNames: only names that this package makes are segments.
func TestNames(t *testing.T) {
	if got := segmentName("/d", 42, logSuffix); got != "/d/00000000000000000042.log" {
		t.Error(got)
	}
	if first, ok := parseName("18446744073709551615.log", logSuffix); !ok || first != 18446744073709551615 {
		t.Error(first, ok)
	}
	for _, name := range []string{
		"42.log", "00000000000000000000.log", "99999999999999999999.log", "+0000000000000000042.log", "000000000000000000042.log",
		"0000000000000000004x.log", ".log", "00000000000000000042.idx", "00000000000000000042.log.old",
	} {
		if _, ok := parseName(name, logSuffix); ok {
			t.Errorf("%s is taken for a segment", name)
		}
	}
}

// TestEveryFlippedBit: an entry in which any bit was changed is not valid at its place.
func TestEveryFlippedBit(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	at := place{index: 100, offset: 5000, term: 7}
	f := frame{kind: KindEmpty, version: 1, term: 9, index: 100, offset: 5000, payload: []byte("payload")}
	b := make([]byte, frameHeaderSize)
	f.putHeader(b)
	b = append(b, f.payload...)
	for name, entry := range map[string][]byte{"frame": b, "batch": makeBatch(5000, 7, 3, 50, 0, rng)} {
		if _, _, err := parseEntry(entry, at); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for bit := range len(entry) * 8 {
			entry[bit/8] ^= 1 << (bit % 8)
			if _, _, err := parseEntry(entry, at); !isBad(err) {
				t.Errorf("%s, bit %d of byte %d: %v", name, bit%8, bit/8, err)
			}
			entry[bit/8] ^= 1 << (bit % 8)
		}
	}
}

// TestEntryAtAnotherPlace: a valid entry is not valid where another one must follow.
func TestEntryAtAnotherPlace(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	makeFrame := func(kind Kind, term batch.Term) []byte {
		b := make([]byte, frameHeaderSize)
		frame{kind: kind, version: 1, term: term, index: 100, offset: 5000}.putHeader(b)
		return b
	}
	b := makeBatch(5000, 7, 1, 10, 0, rng)
	for _, tt := range []struct {
		name  string
		entry []byte
		at    place
		ok    bool
	}{
		{"batch", b, place{100, 5000, 7}, true},
		{"batch, other index", b, place{99, 5000, 7}, true}, // a batch does not say its index
		{"batch, offset", b, place{100, 5001, 7}, false},
		{"batch, term falls", b, place{100, 5000, 8}, false},
		{"batch, term rises", b, place{100, 5000, 6}, false},
		{"empty, new term", makeFrame(KindEmpty, 9), place{100, 5000, 7}, true},
		{"empty, same term", makeFrame(KindEmpty, 7), place{100, 5000, 7}, true},
		{"empty, term falls", makeFrame(KindEmpty, 6), place{100, 5000, 7}, false},
		{"clock, same term", makeFrame(KindClock, 7), place{100, 5000, 7}, true},
		{"clock, new term", makeFrame(KindClock, 8), place{100, 5000, 7}, false},
		{"frame, index", makeFrame(KindClock, 7), place{101, 5000, 7}, false},
		{"frame, offset", makeFrame(KindClock, 7), place{100, 4999, 7}, false},
		{"header", makeFrame(kindHeader, 7), place{100, 5000, 7}, false},
		{"kind of a batch", makeFrame(KindBatch, 7), place{100, 5000, 7}, false},
		{"too long", append(bytes.Clone(b), 0), place{100, 5000, 7}, false},
		{"huge term", makeFrame(KindEmpty, 1<<31), place{100, 5000, 7}, false},
	} {
		_, _, err := parseEntry(tt.entry, tt.at)
		if tt.ok && err != nil || !tt.ok && !isBad(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	var format *FormatError
	if _, _, err := parseEntry(makeFrame(99, 7), place{100, 5000, 7}); !errors.As(err, &format) {
		t.Errorf("a kind that only a newer version can have written: %v", err)
	}
}

// FuzzParseFrame: whatever the bytes, and what is parsed is what is written.
func FuzzParseFrame(f *testing.F) {
	b := make([]byte, frameHeaderSize)
	frame{kind: KindClock, version: 1, term: 3, index: 9, offset: 4}.putHeader(b)
	f.Add(b)
	f.Add(appendHeader(nil, testIdentity, place{index: 9, offset: 4, term: 3}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= frameHeaderSize {
			// Let some get past the checksum.
			c := bytes.Clone(b)
			if fixed := frameCRC(c, c[frameHeaderSize:]); fixed%2 == 0 {
				b = c
				b[atCRC], b[atCRC+1], b[atCRC+2], b[atCRC+3] = byte(fixed>>24), byte(fixed>>16), byte(fixed>>8), byte(fixed)
			}
		}
		_, _, _ = parseHeader(b)
		_, _, _ = parseEntry(b, place{index: 9, offset: 4, term: 3})
		parsed, err := parseFrame(b)
		if err != nil {
			return
		}
		again := make([]byte, frameHeaderSize)
		parsed.putHeader(again)
		if again = append(again, parsed.payload...); !bytes.Equal(again, b) {
			t.Fatalf("parsed from\n%x, written as\n%x", b, again)
		}
	})
}
