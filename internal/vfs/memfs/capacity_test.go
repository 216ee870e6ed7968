package memfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

func free(t *testing.T, f *memfs.FS) int64 {
	t.Helper()
	free, total, err := f.Space("/")
	must(t, err)
	if free < 0 || free > total {
		t.Fatalf("%d of %d bytes are free", free, total)
	}
	return free
}

func full(t *testing.T, err error) {
	t.Helper()
	var pathErr *fs.PathError
	if !vfs.IsFull(err) || !errors.As(err, &pathErr) {
		t.Fatalf("got %v, want ENOSPC with a name", err)
	}
}

// TestCapacity fills a disk: a write stores what fits and fails, what has its pages already can be written again, and
// what is removed, replaced or cut off gives its pages back.
func TestCapacity(t *testing.T) {
	f := memfs.New()
	f.SetCapacity(4*page + 100) // of which the 100 are no page
	a := create(t, f, "a")
	write(t, a, 3*page-1, []byte("xy")) // pages 2 and 3; 0 and 1 are holes
	if got := free(t, f); got != 2*page {
		t.Fatalf("%d bytes are free", got)
	}
	b := create(t, f, "b")
	full(t, b.WriteVAt([][]byte{fill('b', page), fill('c', 2*page)}, 0))
	if got := read(t, f, "b"); !bytes.Equal(got, append(fill('b', page), fill('c', page)...)) {
		t.Fatalf("%d bytes, or other ones, were written", len(got))
	}
	if _, err := a.WriteAt([]byte("z"), 0); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filled a hole of a full disk: %v", err)
	}
	write(t, a, 3*page-1, []byte("zz"))
	must(t, a.Truncate(100*page)) // a hole
	must(t, a.SyncData())
	must(t, a.Truncate(3*page))
	if got := free(t, f); got != page {
		t.Fatalf("%d bytes are free after a page was cut off", got)
	}
	must(t, f.Remove("b"))
	if got := free(t, f); got != page {
		t.Fatalf("%d bytes are free while a removed file is open", got)
	}
	must(t, b.Close())
	if got := free(t, f); got != 3*page {
		t.Fatalf("%d bytes are free", got)
	}
	must(t, f.Rename("a", "replaced"))
	write(t, create(t, f, "a"), 0, []byte("x"))
	must(t, f.Rename("a", "replaced"))
	must(t, a.Close())
	if got := free(t, f); got != 3*page {
		t.Fatalf("%d bytes are free after a file was replaced", got)
	}
	f.SetCapacity(page / 2)
	if got := free(t, f); got != 0 {
		t.Fatalf("%d bytes are free of a disk that became smaller", got)
	}
}

// TestAllocate: allocated pages are taken, are zeros, and are written to without taking any more.
func TestAllocate(t *testing.T) {
	f := memfs.New()
	f.SetCapacity(4 * page)
	file := create(t, f, "f")
	write(t, file, 0, []byte("x"))
	must(t, file.Allocate(2*page+1))
	if got := free(t, f); got != page {
		t.Fatalf("%d bytes are free", got)
	}
	if got := read(t, f, "f"); !bytes.Equal(got, append([]byte("x"), make([]byte, 2*page)...)) {
		t.Fatalf("the file has %d bytes, or others than zeros", len(got))
	}
	must(t, file.Allocate(page))
	full(t, file.Allocate(5*page))
	write(t, create(t, f, "g"), 0, fill('g', page))
	write(t, file, page, fill('y', page+1))
	full(t, file.Allocate(4*page))
	must(t, file.SyncData())
	must(t, f.SyncDir("/"))
	for _, clone := range []*memfs.FS{f.KillClone(), f.CrashClone(100, nil)} {
		if got := free(t, clone); got != 0 {
			t.Fatalf("%d bytes are free in a clone", got)
		}
	}
	must(t, file.Truncate(page))
	if got := free(t, f); got != 2*page {
		t.Fatalf("%d bytes are free after a cut", got)
	}
}

// TestUsedIsExact runs random scripts. What is used is always what a clone, which counts anew, uses.
func TestUsedIsExact(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 6))
		f := memfs.New()
		f.SetCapacity(20 * page)
		refused := 0
		for step := range 300 {
			name, other := fmt.Sprint(rng.IntN(4)), fmt.Sprint(rng.IntN(4))
			if made, err := f.Create(name); err == nil {
				must(t, made.Close())
			}
			file, err := f.Open(name)
			must(t, err)
			off := rng.Int64N(8 * page)
			switch rng.IntN(7) {
			case 0:
				err = file.Truncate(off)
			case 1:
				err = file.Allocate(off)
			case 2:
				err = f.Remove(name)
			case 3:
				err = f.Rename(name, other)
			default:
				err = file.WriteVAt([][]byte{fill('x', rng.IntN(3*page)), fill('y', rng.IntN(page))}, off)
			}
			if err != nil {
				full(t, err)
				refused++
			}
			must(t, file.Close())
			if got, want := free(t, f), free(t, f.KillClone()); got != want {
				t.Fatalf("seed %d, step %d: %d bytes are free, counted anew %d", seed, step, got, want)
			}
		}
		if refused == 0 {
			t.Fatalf("seed %d: the disk was never full", seed)
		}
	}
}
