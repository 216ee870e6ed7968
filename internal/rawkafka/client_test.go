package rawkafka

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// peer is the broker's end of a connection, driven by hand.
type peer struct {
	t    *testing.T
	conn net.Conn
}

func connect(t *testing.T, opt Options) (*Client, *peer) {
	ours, theirs := net.Pipe()
	c := New(ours, opt)
	t.Cleanup(func() { _ = c.Close(); _ = theirs.Close() })
	return c, &peer{t, theirs}
}

// request reads one frame and returns its api key, version, correlation id and all that follows.
func (p *peer) request() (key, version int16, correlation int32, rest []byte) {
	var size [4]byte
	if _, err := io.ReadFull(p.conn, size[:]); err != nil {
		p.t.Errorf("peer: read length: %v", err)
		return
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(p.conn, b); err != nil {
		p.t.Errorf("peer: read frame: %v", err)
		return
	}
	return int16(binary.BigEndian.Uint16(b)), int16(binary.BigEndian.Uint16(b[2:])), int32(binary.BigEndian.Uint32(b[4:])), b[8:]
}

func (p *peer) answer(correlation int32, tags bool, body []byte) {
	b := binary.BigEndian.AppendUint32(nil, uint32(correlation))
	if tags {
		b = append(b, 0)
	}
	b = append(b, body...)
	if _, err := p.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)); err != nil {
		p.t.Errorf("peer: write: %v", err)
	}
}

// Each of the three forms of an answer's header is told by key and version.
func TestResponseHeaders(t *testing.T) {
	tests := []struct {
		name    string
		req     kmsg.Request
		version int16
		tags    bool
	}{
		{"not flexible", kmsg.NewPtrInitProducerIDRequest(), 1, false},
		{"flexible", kmsg.NewPtrInitProducerIDRequest(), 4, true},
		{"ApiVersions, flexible with the old header", kmsg.NewPtrApiVersionsRequest(), 3, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, p := connect(t, Options{})
			test.req.SetVersion(test.version)
			done := make(chan struct{})
			go func() {
				defer close(done)
				key, version, correlation, rest := p.request()
				if key != test.req.Key() || version != test.version {
					t.Errorf("the request says key %d version %d", key, version)
				}
				const client = "\x00\x08rawkafka"
				if !strings.HasPrefix(string(rest), client) || test.req.IsFlexible() && rest[len(client)] != 0 {
					t.Errorf("the request header goes on with %q", rest)
				}
				resp := test.req.ResponseKind()
				p.answer(correlation, test.tags, resp.AppendTo(nil))
			}()
			got, err := Roundtrip[kmsg.Response](c, test.req)
			if err != nil || got.GetVersion() != test.version {
				t.Errorf("received %+v, %v", got, err)
			}
			<-done
		})
	}
}

func TestPipelinedAnswersInOrder(t *testing.T) {
	c, p := connect(t, Options{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		var ids []int32
		for range 5 {
			_, _, correlation, _ := p.request()
			ids = append(ids, correlation)
		}
		for i, correlation := range ids {
			resp := kmsg.NewPtrInitProducerIDResponse()
			resp.Version, resp.ProducerID = 4, int64(i)
			p.answer(correlation, true, resp.AppendTo(nil))
		}
	}()
	var reqs []kmsg.Request
	for range 5 {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.Version = 4
		reqs = append(reqs, req)
	}
	if err := c.SendAll(reqs...); err != nil {
		t.Fatal(err)
	}
	for i := range int64(5) {
		got, err := c.Receive()
		if err != nil || got.(*kmsg.InitProducerIDResponse).ProducerID != i {
			t.Fatalf("answer %d: %+v, %v", i, got, err)
		}
	}
	if _, err := c.Receive(); err == nil {
		t.Error("received an answer that nobody waits for")
	}
	<-done
}

func TestReceiveRefuses(t *testing.T) {
	tests := []struct {
		name  string
		bytes string
		text  string
	}{
		{"another correlation id", "\x00\x00\x00\x0a\x00\x00\x00\x63\x00\x00\x00\x00\x00\x00", "correlation id 99, want 1"},
		{"no correlation id", "\x00\x00\x00\x02\x00\x00", "no correlation id"},
		{"tagged fields in the header", "\x00\x00\x00\x05\x00\x00\x00\x01\x01", "tagged fields"},
		{"no header", "\x00\x00\x00\x04\x00\x00\x00\x01", "tagged fields"},
		{"a body cut off", "\x00\x00\x00\x06\x00\x00\x00\x01\x00\x00", "read answer"},
		{"too long", "\x00\x00\x10\x01", "length 4097"},
		{"negative", "\xff\xff\xff\xff", "length -1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, p := connect(t, Options{FrameBytesMax: 4096})
			go func() {
				p.request()
				_, _ = p.conn.Write([]byte(test.bytes))
			}()
			req := kmsg.NewPtrInitProducerIDRequest()
			req.Version = 4
			if _, err := Roundtrip[kmsg.Response](c, req); err == nil || !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %v, want one with %q", err, test.text)
			}
		})
	}
}

func TestAwaitClose(t *testing.T) {
	c, p := connect(t, Options{})
	go func() { _ = p.conn.Close() }()
	if err := c.AwaitClose(); err != nil {
		t.Error(err)
	}
	c, p = connect(t, Options{})
	go func() { _, _ = p.conn.Write([]byte("x")) }()
	if err := c.AwaitClose(); err == nil {
		t.Error("bytes counted as a closed connection")
	}
	c, _ = connect(t, Options{Timeout: time.Millisecond})
	if err := c.AwaitClose(); err == nil || !strings.Contains(err.Error(), "still open") {
		t.Errorf("an open connection counted as closed: %v", err)
	}
}

func TestDeadlines(t *testing.T) {
	c, _ := connect(t, Options{Timeout: time.Millisecond})
	if err := c.SendRaw([]byte("nobody reads")); err == nil {
		t.Error("a write to a peer that does not read came back without an error")
	}
	if _, err := c.ReceiveFrame(); err == nil {
		t.Error("a read from a peer that does not write came back without an error")
	}
}

func TestPendingIsBounded(t *testing.T) {
	c, p := connect(t, Options{})
	go func() { _, _ = io.Copy(io.Discard, p.conn) }()
	for i := range pendingMax + 1 {
		req := kmsg.NewPtrInitProducerIDRequest()
		if err := c.Send(req); (err != nil) != (i == pendingMax) {
			t.Fatalf("send %d: %v", i, err)
		}
	}
}
