package console

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections are made in memory, so that they live in virtual time.
type pipes struct {
	arrived chan net.Conn
	closed  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.arrived:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	ours, theirs := net.Pipe()
	p.arrived <- theirs
	return ours
}

func serving(t *testing.T, check func(p *pipes)) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{arrived: make(chan net.Conn), closed: make(chan struct{})}
		server := Serve(p, Handler(func() bool { return true }), slog.New(slog.DiscardHandler))
		check(p)
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
}

// ask sends a request on a connection that stays open, and returns the status.
func ask(t *testing.T, c net.Conn) int {
	t.Helper()
	if _, err := io.WriteString(c, "GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode
}

// mustEnd waits until the server closes a connection, and checks how long that takes.
func mustEnd(t *testing.T, c net.Conn, within time.Duration) {
	t.Helper()
	begun := time.Now()
	_, _ = io.Copy(io.Discard, c)
	if took := time.Since(begun); took > within {
		t.Errorf("closed after %v, want %v at most", took, within)
	}
}

func TestConnectionBound(t *testing.T) {
	serving(t, func(p *pipes) {
		var open []net.Conn
		for range connectionsMax {
			c := p.dial()
			if status := ask(t, c); status != http.StatusOK {
				t.Fatalf("status %d", status)
			}
			open = append(open, c)
		}
		mustEnd(t, p.dial(), 0)
		_ = open[0].Close()
		synctest.Wait()
		c := p.dial()
		if status := ask(t, c); status != http.StatusOK {
			t.Errorf("after one was closed: status %d", status)
		}
		mustEnd(t, p.dial(), 0)
		for _, c := range append(open, c) {
			_ = c.Close()
		}
	})
}

func TestTimeBounds(t *testing.T) {
	serving(t, func(p *pipes) {
		idle := p.dial()
		ask(t, idle)
		mustEnd(t, idle, idleMax)
		mustEnd(t, p.dial(), requestWithin)
		slow := p.dial()
		for range 3 { // a byte now and then is no excuse
			<-time.After(requestWithin / 4)
			if _, err := io.WriteString(slow, "G"); err != nil {
				t.Fatal(err)
			}
		}
		mustEnd(t, slow, requestWithin/4)
	})
}

func TestHeaderBound(t *testing.T) {
	serving(t, func(p *pipes) {
		c := p.dial()
		go func() {
			// The server stops reading somewhere, and closes.
			_, _ = io.WriteString(c, "GET /readyz HTTP/1.1\r\nHost: h\r\nX: "+strings.Repeat("x", 2*headerBytesMax)+"\r\n\r\n")
		}()
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%v, %v", answer, err)
		}
		mustEnd(t, c, time.Second)
	})
}
