package testbroker

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// echo listens and sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return l.Addr().String()
}

// linked returns links between three nodes, and a connection to node 1 that comes from node 0.
func linked(t *testing.T) (*Links, net.Conn) {
	t.Helper()
	l, err := newLinks([]string{echo(t), echo(t), echo(t)}, func(net.Conn) (int, error) { return 0, nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	conn, err := net.Dial("tcp", l.Addr(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return l, conn
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v, want %q", got, err, text)
	}
}

// silent demands that nothing is heard for a moment.
func silent(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Fatalf("read %d bytes, %v, over a link that is cut", n, err)
	}
}

func TestLinksCutEitherWay(t *testing.T) {
	l, conn := linked(t)
	say(t, conn, "one")
	hear(t, conn, "one")
	for name, cut := range map[string]func(){
		"there":           func() { l.Set(0, 1, Condition{Cut: true}) },
		"back":            func() { l.Set(1, 0, Condition{Cut: true}) },
		"the sender":      func() { l.Isolate(0) },
		"the other":       func() { l.Isolate(1) },
		"both, and again": func() { l.Isolate(0); l.Isolate(1) },
	} {
		cut()
		say(t, conn, name)
		silent(t, conn)
		l.Heal(0)
		l.Heal(1)
		hear(t, conn, name)
	}
	l.Isolate(2)
	say(t, conn, "two")
	hear(t, conn, "two") // it is between others
}

// A connection that is opened, and one that ends, over a link that is cut: both happen when it is whole again.
func TestLinksCutAtTheEnds(t *testing.T) {
	l, conn := linked(t)
	say(t, conn, "one")
	hear(t, conn, "one")
	l.Isolate(1)
	late, err := net.Dial("tcp", l.Addr(1))
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	say(t, late, "late")
	silent(t, late)
	l.Heal(1)
	hear(t, late, "late")
	l.Reset(0)
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that was reset goes on")
	}
}

func TestLinksSlow(t *testing.T) {
	l, conn := linked(t)
	for _, c := range []Condition{{Delay: 40 * time.Millisecond}, {BytesPerSecond: 50}} {
		l.Slow(1, c)
		begun := time.Now()
		say(t, conn, "x")
		hear(t, conn, "x")
		say(t, conn, "y")
		hear(t, conn, "y")
		if took := time.Since(begun); took < 20*time.Millisecond {
			t.Errorf("%+v: two bytes took %v", c, took)
		}
	}
}

func TestOwner(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	mine, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other := start(t, `exec sleep 60`)
	if i, err := owner(conn, []int{-1, other.PID(), os.Getpid()}); i != 2 || err != nil {
		t.Errorf("opened by process %d, %v, want 2", i, err)
	}
	if i, err := owner(conn, []int{other.PID()}); err == nil {
		t.Errorf("opened by process %d, which has not", i)
	}
}

func TestClusterArguments(t *testing.T) {
	c, err := StartCluster(ClusterConfig{Binary: script(t, `echo "$*"`), Dir: t.TempDir(), Nodes: 3, Links: true, Set: []string{"a=1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	founders := strings.Join([]string{c.Links.Addr(0), c.Links.Addr(1), c.Links.Addr(2)}, ",")
	for i := range c.Nodes() {
		if _, err := c.Node(i).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		cfg := c.Config(i)
		want := " --peer-listen " + cfg.Peer + " --founders " + founders + " --peer-advertise " + c.Links.Addr(i) + " --set a=1\n"
		if out := c.Node(i).Output(); !strings.Contains(out, "--listen "+c.Addr(i)) || !strings.Contains(out, want) {
			t.Errorf("node %d was started with %q, want %q in it", i, out, want)
		}
	}
}

func TestPause(t *testing.T) {
	r, w := io.Pipe()
	b := startTo(t, `while :; do echo alive; done`, w)
	line := make([]byte, len("alive\n"))
	if _, err := io.ReadFull(r, line); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	if err := b.Pause(); err != nil {
		t.Fatal(err)
	}
	if b.Ended() {
		t.Error("a process that is frozen has ended")
	}
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", b.PID())); err == nil && !strings.Contains(string(stat), ") T ") {
		t.Errorf("it goes on: %s", stat)
	}
	if err := b.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := b.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := b.Kill(); err != nil || !b.Ended() {
		t.Errorf("a frozen process cannot be killed: %v", err)
	}
}
