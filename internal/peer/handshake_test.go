package peer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type ticksOfTest = atomic.Int64

var discard = slog.New(slog.DiscardHandler)

// Whoever is wrong hears why, and both sides say so in one line, however often it is tried again.
func TestWrongPeersAreRefused(t *testing.T) {
	cases := []struct {
		name   string
		change func(dialer, acceptor *testNode)
		text   string
	}{
		{"another cluster", func(d, _ *testNode) { d.config.Cluster[0] = 9 }, "belongs to cluster"},
		{"another node at the address", func(d, _ *testNode) { d.config.Peers[0].ID = 3 }, "looks for node 3, this is node 2"},
		{"unknown node", func(d, _ *testNode) { d.config.Self = 7 }, "node 7 is not known to node 2"},
		{"emptied disk of the dialer", func(d, _ *testNode) { d.config.Disk = [16]byte{0xee} }, "the disk of node 1 is ee"},
		{"emptied disk of the acceptor", func(_, a *testNode) { a.config.Disk = [16]byte{0xee} }, "the disk of node 2 is ee"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire(true)
				d, a := w.newNode(t, 1, ""), w.newNode(t, 2, "")
				d.config.Peers = []Peer{{2, a.address, diskOf(2)}}
				a.config.Peers = []Peer{{1, "nowhere", diskOf(1)}}
				c.change(d, a)
				a.join()
				d.join()
				time.Sleep(30 * time.Second)
				if n := d.log.count(c.text); n != 1 {
					t.Errorf("the dialer has said it %d times:\n%s", n, d.log.text())
				}
				if n := a.log.count(c.text); n != 1 {
					t.Errorf("the acceptor has said it %d times:\n%s", n, a.log.text())
				}
				if len(d.events)+len(a.events) > 0 {
					t.Error("a handler was told of a connection")
				}
				closeAll(d, a)
			})
		})
	}
}

func TestVersionsThatDoNotMeet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(true)
		a := w.newNode(t, 2, "")
		a.config.Peers = []Peer{{1, "nowhere", diskOf(1)}}
		a.join()
		right := hello{versionMin, versionMax, control, testCluster, 1, diskOf(1), 2, 77}
		for _, c := range []struct {
			change func(*hello)
			text   string
		}{
			{func(h *hello) { h.versionMin, h.versionMax = 2, 3 }, "node 1 speaks versions 2 to 3 between nodes, node 2 speaks 1 to 1"},
			{func(h *hello) { h.versionMin, h.versionMax = 0, 0 }, "node 1 speaks versions 0 to 0"},
			{func(h *hello) { h.channel = 2 }, "asks for connection 2"},
			{func(h *hello) { h.versionMin, h.versionMax = 0, 9 }, ""},
		} {
			h := right
			c.change(&h)
			nc, err := w.dialer(1)(t.Context(), a.address)
			if err != nil {
				t.Fatal(err)
			}
			nc.Write(appendFrame([]byte(magic), kindHello, h.append(nil), nil))
			in := newFrameReader(nc, kib)
			in.expect = kindSet(kindAccept, kindRefuse)
			f, err := in.next()
			switch {
			case err != nil:
				t.Error(err)
			case c.text == "":
				if got, err := parseAccept(f.head); f.kind != kindAccept || err != nil || got.version != 1 || got.disk != diskOf(2) {
					t.Errorf("a later build was answered %d, %+v, %v", f.kind, got, err)
				}
			case f.kind != kindRefuse || !strings.Contains(parseRefusal(f.head).text, c.text):
				t.Errorf("versions %d to %d were answered %q", h.versionMin, h.versionMax, f.head)
			}
			nc.Close()
			synctest.Wait()
			if c.text != "" && a.log.count(c.text) != 1 {
				t.Errorf("the log:\n%s", a.log.text())
			}
		}
		closeAll(a)
	})
}

// What is no peer costs a line a minute, and 5 s at most.
func TestGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(true)
		a := w.newNode(t, 2, "")
		a.join()
		badSum := appendFrame([]byte(magic), kindHello, hello{}.append(nil), nil)
		badSum[len(badSum)-1] ^= 1
		huge := appendFrame([]byte(magic), kindHello, hello{}.append(nil), nil)
		huge[len(magic)] = 0x7f
		for _, garbage := range [][]byte{
			[]byte("GET / HTTP/1.1\r\n\r\n"), []byte("OnceMQ"), {}, make([]byte, 100), badSum, huge,
			appendFrame([]byte(magic), kindPing, nil, nil), []byte(magic),
		} {
			for range 3 {
				nc, err := w.dialer(1)(t.Context(), a.address)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				go nc.Write(garbage)
				if n, err := io.Copy(io.Discard, nc); n > 0 {
					t.Errorf("%q was answered with %d bytes, %v", garbage, n, err)
				}
				if took := time.Since(began); took > handshakeMax {
					t.Errorf("%q took %s", garbage, took)
				}
				nc.Close()
			}
		}
		for text, want := range map[string]int{"this is no peer": 1, "checksum": 1, "announces": 1, "kind 7 is not expected": 1} {
			if n := a.log.count(text); n != want {
				t.Errorf("%q stands %d times in the log:\n%s", text, n, a.log.text())
			}
		}
		if len(a.events) > 0 {
			t.Error("a handler was told of it")
		}
		closeAll(a)
	})
}

func TestTooManyStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(true)
		a := w.newNode(t, 2, "")
		var all []net.Conn
		for range strangersMax + 5 {
			nc, err := w.dialer(1)(t.Context(), a.address)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, nc)
		}
		if _, err := all[strangersMax].Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("one too many: %v", err)
		}
		time.Sleep(handshakeMax + time.Second)
		if got, err := Ask(t.Context(), w.dialer(1), a.address, []byte("room?")); err != nil || string(got) != "answer to room?" {
			t.Errorf("afterwards: %q, %v", got, err)
		}
		closeAll(a)
	})
}

// Founders are answered before and after the cluster is there, and peers come in after it, without a word in the log.
func TestFounding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(true)
		a, b := w.newNode(t, 1, ""), w.newNode(t, 2, "")
		a.config.Peers = []Peer{{2, b.address, diskOf(2)}}
		b.config.Peers = []Peer{{1, a.address, diskOf(1)}}
		ask := func(question string) {
			t.Helper()
			if got, err := Ask(t.Context(), w.dialer(1), b.address, []byte(question)); err != nil || string(got) != "answer to "+question {
				t.Errorf("%q was answered %q, %v", question, got, err)
			}
		}
		ask("who are you?")
		a.join()
		time.Sleep(10 * time.Second)
		if a.log.text() != "" || b.log.text() != "" {
			t.Errorf("in the logs:\n%s\n%s", a.log.text(), b.log.text())
		}
		b.join()
		began := time.Now()
		a.await(t, "up")
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("the first peer was let in after %s", took)
		}
		ask("and now?")
		ask(strings.Repeat("?", questionMax-len("answer to ")))
		if _, err := Ask(t.Context(), w.dialer(1), b.address, make([]byte, questionMax+1)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a question that is too large: %v", err)
		}
		if _, err := Ask(t.Context(), w.dialer(1), b.address, make([]byte, questionMax)); err == nil {
			t.Error("an answer that is too large has come")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w.mu.Lock()
		w.listeners["mute"] = &pipeListener{conns: make(chan net.Conn, 1), done: make(chan struct{})}
		w.mu.Unlock()
		if _, err := Ask(ctx, w.dialer(1), "mute", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("nobody answers: %v", err)
		}
		closeAll(a, b)
	})
}

func TestCloseAtAnyTime(t *testing.T) {
	a, b := newWire(false).pair(t)
	for range 2 {
		a.transport.Close()
		a.transport.Send(1, nil)
		a.listener.Close()
	}
	if _, err := a.transport.Call(t.Context(), 2, 1, nil); !errors.Is(err, ErrNotConnected) {
		t.Errorf("a call after the end: %v", err)
	}
	b.await(t, "down")
	c := newWire(false).newNode(t, 3, "127.0.0.1:0")
	c.listener.Close()
	c.join()
	if c.transport.Tell(1, 1, nil) {
		t.Error("a listener that is closed has joined")
	}
}
