package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/setting"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// A signal that comes before the broker is ready ends it with 0 as well: a service manager that changes its mind sees
// no failure. A failure stays one.
func TestStopBeforeReady(t *testing.T) {
	o := serveOptions{data: filepath.Join(t.TempDir(), "data"), listen: "127.0.0.1:0", http: "127.0.0.1:0", settings: setting.Defaults()}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 { // the cluster is founded, or it is there already
		if err := serve(ctx, o); err != nil {
			t.Error(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(o.data, "groups", "0000000000000000")); err != nil {
		t.Fatal(err)
	}
	if err := serve(ctx, o); err == nil {
		t.Error("a lost group is not reported")
	}
}

// What clients could never be told is a mistake in the flags, found before anything is made.
func TestAdvertisedAddressIsChecked(t *testing.T) {
	for address, ok := range map[string]bool{
		"broker1.example.com:9092": true, "[::1]:9092": true, ":9092": true, "0.0.0.0:0": true, "localhost:0": true,
		"two words:9092": false, "münchen:9092": false, strings.Repeat("n", 256) + ":9092": false, "tab\t:1": false,
	} {
		o := serveOptions{data: "data", listen: "127.0.0.1:0", http: "127.0.0.1:0", advertise: address}
		if err := o.check(); (err == nil) != ok {
			t.Errorf("--advertise %q: %v", address, err)
		}
	}
}

func mustNotExist(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v, want that it does not exist", path, err)
	}
}

// serving runs a broker on a directory while do runs.
func serving(t *testing.T, dir string, do func(c *rawkafka.Client, addr string), assignments ...string) {
	t.Helper()
	settings, err := setting.Parse(append(assignments, "disk.reserve.bytes=4096")) // the directory is compared as a whole
	if err != nil {
		t.Fatal(err)
	}
	addr, err := testbroker.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	o := serveOptions{data: dir, listen: addr, http: "127.0.0.1:0", settings: settings}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, o) }()
	c := dial(t, addr, ended)
	do(c, addr)
	_ = c.Close()
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// dial connects to a broker that is about to be ready.
func dial(t *testing.T, addr string, ended <-chan error) *rawkafka.Client {
	t.Helper()
	for {
		c, err := rawkafka.Dial(addr, rawkafka.Options{})
		if err == nil {
			return c
		}
		select {
		case err := <-ended:
			t.Fatalf("serve ended: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
}
