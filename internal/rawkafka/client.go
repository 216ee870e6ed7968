package rawkafka

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const apiVersionsKey = 18

// Options are the bounds of a Client. Zero values mean the defaults.
type Options struct {
	// Timeout bounds the wait for the connection and for each single write and read. Default 10 s.
	Timeout time.Duration
	// FrameBytesMax is the largest answer that is read, in bytes after the length field. Default 128 MiB.
	FrameBytesMax int
}

func (o Options) withDefaults() Options {
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.FrameBytesMax == 0 {
		o.FrameBytesMax = 128 << 20
	}
	return o
}

// Client is one connection. Send and its relatives may be used by one goroutine, Receive by another; each of the
// two sides by one goroutine at a time. The answers come in the order of the requests.
type Client struct {
	conn        net.Conn
	reader      *bufio.Reader
	opt         Options
	formatter   *kmsg.RequestFormatter
	correlation int32
	pending     chan pending
}

// pendingMax is how many requests may be sent before the first answer is received.
const pendingMax = 1024

type pending struct {
	correlation int32
	answer      kmsg.Response
}

// ErrTooManyPending is returned by Send when too many requests wait for an answer.
var ErrTooManyPending = errors.New("too many requests are waiting for an answer")

// Dial connects to a broker at HOST:PORT.
func Dial(addr string, opt Options) (*Client, error) {
	opt = opt.withDefaults()
	conn, err := net.DialTimeout("tcp", addr, opt.Timeout)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	return New(conn, opt), nil
}

// New makes a Client of a connection, which it owns from then on.
func New(conn net.Conn, opt Options) *Client {
	return &Client{
		conn:      conn,
		reader:    bufio.NewReaderSize(conn, 64<<10),
		opt:       opt.withDefaults(),
		formatter: kmsg.NewRequestFormatter(kmsg.FormatterClientID("rawkafka")),
		pending:   make(chan pending, pendingMax),
	}
}

// Close closes the connection at once; what is on its way is lost.
func (c *Client) Close() error { return c.conn.Close() }

// Send writes one request at the version that is set in it, and does not wait for the answer.
func (c *Client) Send(req kmsg.Request) error { return c.SendAll(req) }

// SendAll writes several requests with one write, so that the broker may find all of them in one read.
func (c *Client) SendAll(reqs ...kmsg.Request) error {
	var frames []byte
	for _, req := range reqs {
		frame, correlation := c.Frame(req)
		frames = append(frames, frame...)
		answer := req.ResponseKind()
		answer.SetVersion(req.GetVersion())
		select {
		case c.pending <- pending{correlation: correlation, answer: answer}:
		default:
			return ErrTooManyPending
		}
	}
	return c.SendRaw(frames)
}

// SendUnanswered writes one request to which no answer will come (produce with acks=0).
func (c *Client) SendUnanswered(req kmsg.Request) error {
	frame, _ := c.Frame(req)
	return c.SendRaw(frame)
}

// Frame returns the bytes of one request, length field included, with the next correlation id.
func (c *Client) Frame(req kmsg.Request) (frame []byte, correlation int32) {
	c.correlation++
	return c.formatter.AppendRequest(nil, req, c.correlation), c.correlation
}

// SendRaw writes bytes as they are.
func (c *Client) SendRaw(b []byte) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.opt.Timeout)); err != nil {
		return fmt.Errorf("set write deadline: %w", err)
	}
	if _, err := c.conn.Write(b); err != nil {
		return fmt.Errorf("send %d bytes: %w", len(b), err)
	}
	return nil
}

// Receive reads the answer to the oldest request that was sent and not answered yet.
func (c *Client) Receive() (kmsg.Response, error) {
	var p pending
	select {
	case p = <-c.pending:
	default:
		return nil, errors.New("receive: no request is waiting for an answer")
	}
	frame, err := c.ReceiveFrame()
	if err != nil {
		return nil, fmt.Errorf("receive answer to api key %d version %d: %w", p.answer.Key(), p.answer.GetVersion(), err)
	}
	body, err := c.body(frame, p)
	if err != nil {
		return nil, err
	}
	if err := p.answer.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("read answer to api key %d version %d (%d bytes): %w",
			p.answer.Key(), p.answer.GetVersion(), len(frame), err)
	}
	return p.answer, nil
}

// body takes the response header off. Flexible answers have tagged fields in it, except ApiVersions (KIP-511).
func (c *Client) body(frame []byte, p pending) ([]byte, error) {
	if len(frame) < 4 {
		return nil, fmt.Errorf("read answer to api key %d: %d bytes hold no correlation id", p.answer.Key(), len(frame))
	}
	if got := int32(binary.BigEndian.Uint32(frame)); got != p.correlation {
		return nil, fmt.Errorf("read answer to api key %d: correlation id %d, want %d", p.answer.Key(), got, p.correlation)
	}
	body := frame[4:]
	if !p.answer.IsFlexible() || p.answer.Key() == apiVersionsKey {
		return body, nil
	}
	if len(body) < 1 || body[0] != 0 {
		return nil, fmt.Errorf("read answer to api key %d: the header has tagged fields that nobody defined", p.answer.Key())
	}
	return body[1:], nil
}

// ReceiveFrame reads one frame and returns what follows its length field. It is for answers to raw bytes; it does
// not touch the list of requests that wait for an answer.
func (c *Client) ReceiveFrame() ([]byte, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(c.opt.Timeout)); err != nil {
		return nil, fmt.Errorf("set read deadline: %w", err)
	}
	var head [4]byte
	if _, err := io.ReadFull(c.reader, head[:]); err != nil {
		return nil, fmt.Errorf("read frame length: %w", err)
	}
	size := int32(binary.BigEndian.Uint32(head[:]))
	if size < 0 || int(size) > c.opt.FrameBytesMax {
		return nil, fmt.Errorf("read frame: length %d is outside 0 to %d", size, c.opt.FrameBytesMax)
	}
	frame := make([]byte, size)
	if _, err := io.ReadFull(c.reader, frame); err != nil {
		return nil, fmt.Errorf("read frame of %d bytes: %w", size, err)
	}
	return frame, nil
}

// AwaitClose waits until the broker closes the connection. It returns an error when that does not happen in time,
// or when bytes arrive instead.
func (c *Client) AwaitClose() error {
	if err := c.conn.SetReadDeadline(time.Now().Add(c.opt.Timeout)); err != nil {
		return fmt.Errorf("set read deadline: %w", err)
	}
	b, err := c.reader.ReadByte()
	var timeout net.Error
	switch {
	case err == nil:
		return fmt.Errorf("wait for the broker to close: it sent an answer that begins with %#02x and %d more bytes",
			b, c.reader.Buffered())
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("wait for the broker to close: still open after %v", c.opt.Timeout)
	}
	return nil // end of stream, or reset
}

// Roundtrip sends a request at the version that is set in it and waits for its answer, which must be the next one.
func Roundtrip[A kmsg.Response](c *Client, req kmsg.Request) (A, error) {
	var none A
	if err := c.Send(req); err != nil {
		return none, err
	}
	answer, err := c.Receive()
	if err != nil {
		return none, err
	}
	return answer.(A), nil
}
