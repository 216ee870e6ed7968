package console

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// connectionsMax bounds the open connections of the HTTP side, which health checks and people with a browser use: a
	// further one is closed when it is accepted.
	connectionsMax = 64
	// requestWithin bounds how long a client may take to send a request, and then to read the answer.
	requestWithin = 10 * time.Second
	// idleMax is how long a connection may stay open between two requests.
	idleMax = 30 * time.Second
	// headerBytesMax bounds what a request makes us hold.
	headerBytesMax = 16 << 10
)

// Serve answers HTTP on l, within the bounds above, until the server that it returns is closed. It owns l.
func Serve(l net.Listener, handler http.Handler, log *slog.Logger) *http.Server {
	web := &http.Server{
		Handler: handler, ReadTimeout: requestWithin, WriteTimeout: requestWithin, IdleTimeout: idleMax, MaxHeaderBytes: headerBytesMax,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	go func() {
		if err := web.Serve(&bounded{Listener: l, slots: make(chan struct{}, connectionsMax)}); !errors.Is(err, http.ErrServerClosed) {
			log.Error("HTTP stopped", "error", err)
		}
	}()
	return web
}

// bounded is a listener with a bound on the open connections. It closes what is above it: if it let them wait instead, a
// crowd of them would stand in the system's queue before every health check.
type bounded struct {
	net.Listener
	slots chan struct{} // one element for each open connection
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case b.slots <- struct{}{}:
			return &counted{Conn: conn, release: sync.OnceFunc(func() { <-b.slots })}, nil
		default:
			_ = conn.Close()
		}
	}
}

// counted is a connection that holds a slot until it is closed.
type counted struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.release()
	return c.Conn.Close()
}
