package testbroker

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// script writes a shell script that stands in for the binary.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "binary")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func start(t *testing.T, text string) *Broker {
	t.Helper()
	return startTo(t, text, nil)
}

func startTo(t *testing.T, text string, output io.Writer) *Broker {
	t.Helper()
	b, err := Start(Config{Binary: script(t, text), Data: "some-dir", Kafka: "127.0.0.1:1",
		Set: []string{"a.b=1", "c=2"}, Output: output})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Kill() })
	return b
}

func TestProcessThatEndsBeforeItIsReady(t *testing.T) {
	b := start(t, `echo "started with $*"; echo trouble >&2; exit 3`)
	_, err := b.AwaitReady(t.Context())
	args := "started with serve --data some-dir --listen 127.0.0.1:1 --advertise 127.0.0.1:1 --http " + b.Config().HTTP + " --set a.b=1 --set c=2\n"
	if err == nil || !strings.Contains(err.Error(), args) || !strings.Contains(err.Error(), "trouble") {
		t.Errorf("error %v, want one with what the process printed", err)
	}
	if code, err := b.Wait(t.Context()); code != 3 || err != nil {
		t.Errorf("code %d, %v, want 3", code, err)
	}
}

func TestReadiness(t *testing.T) {
	b := start(t, `exec sleep 60`)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := b.AwaitReady(short); err == nil {
		t.Error("a process that answers nothing counted as ready")
	}
	l, err := net.Listen("tcp", b.Config().HTTP)
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	defer func() { _ = srv.Close() }()
	go func() { _ = srv.Serve(l) }()
	if took, err := b.AwaitReady(t.Context()); err != nil || took <= 0 {
		t.Errorf("ready after %v, %v", took, err)
	}
}

func TestEnds(t *testing.T) {
	r, w := io.Pipe()
	b := startTo(t, `trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done`, w)
	if _, err := io.ReadFull(r, make([]byte, len("up\n"))); err != nil { // the trap is set before anything is printed
		t.Fatal(err)
	}
	if code, err := b.Terminate(t.Context()); code != 7 || err != nil {
		t.Errorf("SIGTERM: code %d, %v, want 7", code, err)
	}
	if cpu := b.CPU(); cpu <= 0 || cpu > time.Minute {
		t.Errorf("it used %v of processor time", cpu)
	}
	b = start(t, `exec sleep 60`)
	if cpu := b.CPU(); cpu != 0 {
		t.Errorf("a process that runs has used %v of processor time", cpu)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := b.Wait(short); err == nil {
		t.Error("a process that runs counted as ended")
	}
	if err := b.Kill(); err != nil {
		t.Error(err)
	}
	if code, err := b.Wait(t.Context()); code != -1 || err != nil {
		t.Errorf("SIGKILL: code %d, %v, want -1", code, err)
	}
	if err := b.Kill(); err != nil {
		t.Errorf("kill a second time: %v", err)
	}
	if err := b.Signal(syscall.SIGTERM); err == nil {
		t.Error("a signal reached a process that has ended")
	}
}

func TestOutputIsBounded(t *testing.T) {
	var w tail
	for i := range 10_000 {
		fmt.Fprintf(&w, "line %d of the output\n", i)
	}
	if got := w.String(); len(got) != outputBytesMax || !strings.HasSuffix(got, "line 9999 of the output\n") {
		t.Errorf("%d bytes kept, which end with %.40q", len(got), got[len(got)-40:])
	}
}
