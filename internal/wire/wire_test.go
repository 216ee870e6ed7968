package wire

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// served is every API that this package frames, with the versions that a broker serves.
var served = []struct {
	key      Key
	min, max int16
}{
	{KeyProduce, 0, 13}, {KeyFetch, 4, 17}, {KeyListOffsets, 0, 11}, {KeyMetadata, 0, 13}, {KeyFindCoordinator, 0, 6},
	{KeyApiVersions, 0, 4}, {KeyCreateTopics, 0, 7}, {KeyDeleteTopics, 0, 6}, {KeyDeleteRecords, 0, 2}, {KeyInitProducerID, 0, 5},
	{KeyElectLeaders, 0, 2},
}

func request(key Key, version int16) kmsg.Request {
	r := kmsg.RequestForKey(int16(key))
	r.SetVersion(version)
	return r
}

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestFlexibleVersionsAreThoseOfTheProtocol(t *testing.T) {
	for _, s := range served {
		for v := s.min; v <= s.max; v++ {
			if got, want := s.key.Flexible(v), request(s.key, v).IsFlexible(); got != want {
				t.Errorf("%s v%d: flexible %v, want %v", s.key, v, got, want)
			}
		}
		if got, want := s.key.String(), kmsg.NameForKey(int16(s.key)); !strings.EqualFold(got, want) {
			t.Errorf("name of key %d is %s, want %s", int16(s.key), got, want)
		}
	}
	if Key(24).Flexible(9) || Key(24).String() != "API key 24" {
		t.Error("an API that is not served is known")
	}
}

func TestHeaderRoundTrip(t *testing.T) {
	for _, s := range served {
		for v := s.min; v <= s.max; v++ {
			for _, id := range []string{"", "a client", "\x00null"} {
				formatter := kmsg.NewRequestFormatter(kmsg.FormatterClientID(id))
				if id == "\x00null" {
					formatter = kmsg.NewRequestFormatter()
				}
				req := request(s.key, v)
				frame := formatter.AppendRequest(nil, req, 77)
				n, err := ParseLength([4]byte(frame), 1<<20)
				if err != nil || n != len(frame)-4 {
					t.Fatalf("%s v%d: length %d, %v", s.key, v, n, err)
				}
				p := ParsePrefix([8]byte(frame[4:]))
				if p != (Prefix{s.key, v, 77}) || p.CheckFrame(n) != nil {
					t.Fatalf("%s v%d: prefix %+v, %v", s.key, v, p, p.CheckFrame(n))
				}
				client, body, err := p.ParseHeader(frame[12:])
				if err != nil || !bytes.Equal(body, req.AppendTo(nil)) {
					t.Fatalf("%s v%d: header: body %x, %v", s.key, v, body, err)
				}
				if wantNil := id == "\x00null"; wantNil != (client == nil) || !wantNil && string(client) != id {
					t.Fatalf("%s v%d: client id %q, want %q", s.key, v, client, id)
				}
				if err := p.Decode(kmsg.RequestForKey(int16(s.key)), body); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func TestHeaderSkipsTags(t *testing.T) {
	p := Prefix{KeyMetadata, 9, 1}
	rest := []byte{0, 1, 'c', 2, 0, 3, 'a', 'b', 'c', 200, 1, 0, 'B'}
	client, body, err := p.ParseHeader(rest)
	if err != nil || string(client) != "c" || string(body) != "B" {
		t.Fatalf("client %q, body %q, %v", client, body, err)
	}
	for n := range len(rest) - 1 {
		if _, _, err := p.ParseHeader(rest[:n]); err == nil {
			t.Errorf("a header cut to %d bytes is accepted", n)
		}
	}
	for _, bad := range [][]byte{{0xff, 0xfe, 0}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, {0xff, 0xff, 1, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0}} {
		if _, _, err := p.ParseHeader(bad); err == nil {
			t.Errorf("header %x is accepted", bad)
		}
	}
}

func TestFrameBounds(t *testing.T) {
	for _, n := range []int32{-1, -1 << 31, 0, 4, 9, 1001, 1<<31 - 1} {
		b := [4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
		if _, err := ParseLength(b, 1000); err == nil {
			t.Errorf("length %d is accepted", n)
		}
	}
	for _, n := range []int{10, 1000} {
		if got, err := ParseLength([4]byte{0, 0, byte(n >> 8), byte(n)}, 1000); err != nil || got != n {
			t.Errorf("length %d: %d, %v", n, got, err)
		}
	}
	for _, s := range served {
		p := Prefix{Key: s.key}
		a, _ := s.key.api()
		if s.key == KeyProduce {
			if err := p.CheckFrame(100 << 20); err != nil {
				t.Error(err)
			}
			continue
		}
		if err := p.CheckFrame(a.bytesMax); err != nil {
			t.Error(err)
		}
		if err := p.CheckFrame(a.bytesMax + 1); err == nil {
			t.Errorf("%s: a frame of %d bytes is accepted", s.key, a.bytesMax+1)
		}
	}
	if err := (Prefix{Key: 24}).CheckFrame(10); err == nil || !strings.Contains(err.Error(), "unknown API key 24") {
		t.Errorf("unknown key: %v", err)
	}
}

func TestResponseHeader(t *testing.T) {
	for _, c := range []struct {
		p    Prefix
		want string
	}{
		{Prefix{KeyApiVersions, 4, 5}, "00000006000000054242"},
		{Prefix{KeyMetadata, 8, 5}, "00000006000000054242"},
		{Prefix{KeyMetadata, 9, -2}, "00000007fffffffe004242"},
	} {
		b := c.p.BeginResponse([]byte("xx"))
		b = append(b, "BB"...)
		EndResponse(b, 2)
		if got := fmt.Sprintf("%x", b[2:]); got != c.want {
			t.Errorf("%+v: %s, want %s", c.p, got, c.want)
		}
	}
}

// worst builds, for an API, the frame of about the size n whose decoding allocates most: the smallest structs, each
// with one unknown tagged field where the version has them.
func worst(key Key, version int16, n int) []byte {
	flexible := key.Flexible(version)
	var element, before, after []byte
	tag := []byte{1, 99, 0}
	switch key {
	case KeyMetadata:
		element = []byte{0, 0}
		if version >= 10 {
			element = make([]byte, 17)
		} else if flexible {
			element = []byte{1}
		}
		after = make([]byte, 8)
	case KeyFetch:
		before = make([]byte, 4+4+4+4+1)
		if version >= 7 {
			before = append(before, make([]byte, 8)...)
		}
		if version >= 15 {
			before = before[4:]
		}
		element = []byte{0, 0, 0, 0, 0, 0}
		if version >= 13 {
			element = append(make([]byte, 16), 1)
		} else if flexible {
			element = []byte{1, 1}
		}
		after = make([]byte, 16)
	case KeyListOffsets:
		before = make([]byte, 5)
		element = []byte{0, 0, 0, 0, 0, 0}
		if flexible {
			element = []byte{1, 1}
		}
		after = make([]byte, 16)
	case KeyCreateTopics:
		// One topic with many configs: the smallest of its structs.
		before = []byte{0, 0, 0, 1, 0, 1, 't', 0, 0, 0, 1, 0, 1, 0, 0, 0, 0}
		element = []byte{0, 0, 0, 0}
		if flexible {
			before = []byte{2, 2, 't', 0, 0, 0, 1, 0, 1, 1}
			element = []byte{1, 1}
		}
		after = make([]byte, 16)
	case KeyDeleteTopics:
		element = []byte{0, 0}
		if version >= 6 {
			element = make([]byte, 17)
		} else if flexible {
			element, tag = []byte{1}, nil // names, which have no tags
		}
		after = make([]byte, 8)
	case KeyDeleteRecords:
		element = []byte{0, 0, 0, 0, 0, 0}
		if flexible {
			element = []byte{1, 1}
		}
		after = make([]byte, 8)
	case KeyElectLeaders:
		if version >= 1 {
			before = []byte{0}
		}
		element = []byte{0, 0, 0, 0, 0, 0}
		if flexible {
			element = []byte{1, 1}
		}
		after = make([]byte, 8)
	case KeyFindCoordinator:
		before, element, tag = []byte{0}, []byte{2, 'k'}, nil
		after = make([]byte, 16)
	default:
		return scalars(key, version, n)
	}
	if flexible {
		element = append(element, tag...)
	}
	count := n / len(element)
	b := appendArrayLength(before, count, flexible)
	b = append(b, bytes.Repeat(element, count)...)
	return append(b, after...)
}

// scalars is worst for an API without arrays: its fields, and distinct tags.
func scalars(key Key, version int16, n int) []byte {
	b := request(key, version).AppendTo(nil)
	if !key.Flexible(version) {
		return b
	}
	b = b[:len(b)-1]
	count := n / 5
	b = appendUvarint(b, uint32(count))
	for i := range count {
		b = append(appendUvarint(b, uint32(1<<14+i)), 0)
	}
	return b
}

// The bounds in key.go hold the promise of invariant 3, with the kmsg in use.
func TestDecodingStaysBelow64MiB(t *testing.T) {
	for _, s := range served {
		if s.key == KeyProduce {
			continue
		}
		a, _ := s.key.api()
		for _, v := range []int16{s.min, a.flexible, s.max} {
			body := worst(s.key, v, a.bytesMax-64)
			var err error
			n := allocated(func() { err = Prefix{s.key, v, 0}.Decode(kmsg.RequestForKey(int16(s.key)), body) })
			t.Logf("%s v%d: %d bytes allocated for %d on the wire (x %.1f), %v", s.key, v, n, len(body), float64(n)/float64(len(body)), err)
			if n > 64<<20 {
				t.Errorf("%s v%d: %d bytes allocated for a frame of %d", s.key, v, n, len(body))
			}
		}
	}
}
