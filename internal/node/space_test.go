package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// lines is what a logger has written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// lines says in how many lines a text stands, count how often it does.
func (l *lines) lines(text string) (n int) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// watched is a space that runs, over a disk of 200 MB.
type watched struct {
	*space
	mem             *memfs.FS
	foreign         []string // files that others have made
	log             lines
	waiting         atomic.Int64 // parked writers
	later           atomic.Bool  // those that are tried again in vain leave, and find it out a little later
	tries, fillings atomic.Int64
}

const diskSize = 200 << 20

// watch starts the watch in a bubble of synctest. Whatever is parked leaves when it is tried again while there is room.
func watch(t *testing.T, fs func(*memfs.FS) vfs.FS) *watched {
	w := &watched{mem: memfs.New()}
	w.mem.SetCapacity(diskSize)
	w.space = &space{
		fs: fs(w.mem), dir: "/", clock: clock{}, logger: w.log.logger(), met: make(chan struct{}, 1),
		parked: func() int { return int(w.waiting.Load()) },
		retry: func() {
			w.tries.Add(1)
			switch free, _, _ := w.mem.Space("/"); {
			case free > 0:
				w.waiting.Store(0)
			case w.later.Load():
				n := w.waiting.Swap(0)
				go func() {
					w.waiting.Add(n)
					w.meet(syscall.ENOSPC)
				}()
			}
		},
		filled:  func() { w.fillings.Add(1) },
		emptied: func() {},
	}
	w.mayReserve.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { w.run(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
	synctest.Wait()
	return w
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// fill has somebody else take all space but some bytes.
func (w *watched) fill(t *testing.T, left int64) {
	t.Helper()
	free, _, err := w.mem.Space("/")
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprint("foreign-", len(w.foreign))
	w.foreign = append(w.foreign, name)
	file, err := w.mem.Create(name)
	if err == nil {
		err = errors.Join(file.Allocate(free-left), file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// clear has that somebody remove all.
func (w *watched) clear(t *testing.T) {
	t.Helper()
	for _, name := range w.foreign {
		if err := w.mem.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	w.foreign = nil
}

func (w *watched) reserveSize(t *testing.T) int64 {
	t.Helper()
	file, err := w.mem.Open(reserveName)
	if err != nil {
		return 0
	}
	size, err := file.Size()
	if err != nil || file.Close() != nil {
		t.Fatal(err)
	}
	return size
}

func plain(mem *memfs.FS) vfs.FS { return mem }

// The low-water mark is a 20th of a small disk. Below it batches are refused, a little above it they are accepted again, and
// each change is one line in the log.
func TestLowWater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, plain)
		const low = diskSize / 20
		if got := w.reserveSize(t); got != diskSize/50 {
			t.Fatalf("the reserve has %d bytes", got)
		}
		for range 2 {
			w.fill(t, low)
			pass(time.Second)
			if w.diskFull() {
				t.Fatal("full at the low-water mark")
			}
			w.clear(t)
			w.fill(t, low-4096)
			pass(spaceNear)
			if !w.diskFull() {
				t.Fatal("not full below the low-water mark")
			}
			w.clear(t)
			w.fill(t, low+low/20)
			pass(time.Second)
			if !w.diskFull() {
				t.Fatal("not full any more only just above the low-water mark")
			}
			w.clear(t)
			pass(spaceNear)
			if w.diskFull() {
				t.Fatal("still full")
			}
		}
		for line, want := range map[string]int{"nearly full": 2, "has room again": 2, "level=ERROR": 0} {
			if got := w.log.count(line); got != want {
				t.Errorf("%q stands in %d lines, want %d:\n%s", line, got, want, &w.log)
			}
		}
		if w.fillings.Load() != 2 || w.tries.Load() != 0 || w.reserveSize(t) == 0 {
			t.Errorf("filled %d times, tried again %d times, reserve of %d bytes", w.fillings.Load(), w.tries.Load(), w.reserveSize(t))
		}
	})
}

// A write has met a full disk: the reserve is given back at once and the write is tried again, and then again and again
// until there is room. The reserve is made anew when there is enough for it.
func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, plain)
		w.fill(t, 0)
		w.waiting.Store(3)
		w.meet(syscall.ENOSPC)
		if !w.diskFull() {
			t.Fatal("batches are accepted although a write has met a full disk")
		}
		synctest.Wait()
		if w.reserveSize(t) != 0 || w.waiting.Load() != 0 || w.tries.Load() != 1 {
			t.Fatalf("reserve of %d bytes, %d writers parked, tried again %d times", w.reserveSize(t), w.waiting.Load(), w.tries.Load())
		}
		w.mem.SetCapacity(diskSize - diskSize/50) // what was the reserve is used up
		w.waiting.Store(2)
		w.meet(syscall.ENOSPC)
		pass(time.Minute)
		if w.waiting.Load() != 2 || w.tries.Load() < 100 || !w.diskFull() {
			t.Fatalf("%d writers parked, tried again %d times, full: %v", w.waiting.Load(), w.tries.Load(), w.diskFull())
		}
		w.clear(t)
		pass(spaceFar)
		if w.waiting.Load() != 0 || w.diskFull() {
			t.Fatalf("with room again %d writers are parked, full: %v", w.waiting.Load(), w.diskFull())
		}
		if w.reserveSize(t) == 0 {
			t.Fatal("the reserve was not made again")
		}
		for line, want := range map[string]int{"reserve is given back": 1, "is full: what was accepted waits": 1, "is written": 1} {
			if got := w.log.count(line); got != want {
				t.Errorf("%q stands in %d lines, want %d:\n%s", line, got, want, &w.log)
			}
		}
	})
}

// Writers that are tried again in vain are one line in the log, however often, until there is room.
func TestTriedInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, plain)
		w.later.Store(true)
		w.fill(t, 0)
		w.giveBack()
		w.fill(t, 0)
		w.waiting.Store(1)
		w.meet(syscall.ENOSPC)
		pass(time.Minute)
		if w.log.count("waits for room") != 1 || w.log.count("is written") != 0 || w.tries.Load() < 10 {
			t.Errorf("after %d tries the log is\n%s", w.tries.Load(), &w.log)
		}
		w.clear(t)
		pass(2 * fullLeast)
		if w.log.count("waits for room") != 1 || w.log.count("is written") != 1 || w.diskFull() {
			t.Errorf("full: %v, the log is\n%s", w.diskFull(), &w.log)
		}
	})
}

// With a quota writes fail although space is free. Batches are refused for some seconds after each failure, and accepted
// again after that.
func TestQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, plain)
		w.meet(syscall.EDQUOT)
		pass(fullLeast / 2)
		w.meet(syscall.EDQUOT)
		pass(fullLeast - time.Millisecond)
		if !w.diskFull() {
			t.Fatal("accepted again too early")
		}
		pass(spaceFar)
		if w.diskFull() {
			t.Fatal("full for ever")
		}
	})
}

// Trouble with the watch itself is no trouble for the node, and is told once.
func TestSpaceTrouble(t *testing.T) {
	for _, c := range []struct {
		inject  errfs.Injector
		says    string
		reserve bool
	}{
		{errfs.On(errfs.OpSpace, errfs.EIO), "cannot tell how full", false},
		{errfs.On(errfs.OpAllocate, errfs.Fail(syscall.ENOTSUP)), "cannot allocate space", false},
		{errfs.OnIndex(0, errfs.On(errfs.OpSpace, errfs.EIO)), "cannot tell how full", true},
	} {
		t.Run(c.inject.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watch(t, func(mem *memfs.FS) vfs.FS { return errfs.Wrap(mem, c.inject) })
				pass(time.Minute)
				if w.diskFull() || (w.reserveSize(t) > 0) != c.reserve || w.log.count("\n") != 1 || w.log.count(c.says) != 1 {
					t.Errorf("full: %v, reserve of %d bytes, log:\n%s", w.diskFull(), w.reserveSize(t), &w.log)
				}
			})
		})
	}
}

// A reserve that was left half-made, or has another size than is wanted now, is made whole.
func TestReserveOfAnotherSize(t *testing.T) {
	for _, size := range []int64{0, 4096, 100 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watch(t, func(mem *memfs.FS) vfs.FS {
					file, err := mem.Create(reserveName)
					if err != nil || file.Truncate(size) != nil || file.Close() != nil {
						t.Fatal(err)
					}
					return mem
				})
				if free, _, _ := w.mem.Space("/"); w.reserveSize(t) != diskSize/50 || free != diskSize-diskSize/50 {
					t.Errorf("the reserve has %d bytes, and %d are free", w.reserveSize(t), free)
				}
			})
		})
	}
}
