//go:build linux || darwin

package vfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, f vfs.File, off int64, b string) {
	t.Helper()
	_, err := f.WriteAt([]byte(b), off)
	mustDo(t, err)
}

func read(t *testing.T, f vfs.File, n int) string {
	t.Helper()
	b := make([]byte, n)
	got, err := f.ReadAt(b, 0)
	if err != io.EOF {
		mustDo(t, err)
	}
	return string(b[:got])
}

// TestBounded uses many files from many goroutines: each holds what was written to it, and no more are open than there may
// be, plus those that are in use at the same time.
func TestBounded(t *testing.T) {
	const files, workers, bound = 50, 4, 8
	inner := errfs.NewScarce(memfs.New(), 1<<30)
	f := vfs.Bounded(inner, bound)
	open := make([]vfs.File, files)
	for i := range open {
		var err error
		open[i], err = f.Create(fmt.Sprint(i))
		mustDo(t, err)
	}
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 1))
			for range 2000 {
				i := rng.IntN(files)
				text := fmt.Appendf(nil, "%d/%d", i, worker)
				got := make([]byte, len(text))
				at := int64(100 * worker)
				if _, err := open[i].WriteAt(text, at); err != nil {
					t.Error(err)
				}
				if rng.IntN(10) == 0 {
					if err := open[i].SyncData(); err != nil {
						t.Error(err)
					}
				}
				if _, err := open[i].ReadAt(got, at); err != nil || !bytes.Equal(got, text) {
					t.Errorf("read %q, %v, want %q", got, err, text)
				}
			}
		})
	}
	all.Wait()
	if _, most := inner.Files(); most < bound || most > bound+2*workers {
		t.Errorf("%d files were open at a time", most)
	}
	for _, file := range open {
		mustDo(t, file.Close())
	}
	if left, _ := inner.Files(); left != 0 {
		t.Errorf("%d files are open after all were closed", left)
	}
}

// TestBoundedSyncs: what was written through a handle is on disk when that is closed to make room; an error of this sync is
// the next one's that somebody asks for, and of that one only.
func TestBoundedSyncs(t *testing.T) {
	mem := memfs.New()
	f := vfs.Bounded(mem, 1)
	first, err := f.Create("first")
	mustDo(t, err)
	mustDo(t, f.SyncDir("/"))
	write(t, first, 0, "one")
	other, err := f.Create("other") // which closes the handle of the first
	mustDo(t, err)
	left, err := mem.CrashClone(0, nil).Open("first")
	mustDo(t, err)
	if got := read(t, left, 10); got != "one" {
		t.Fatalf("the disk has %q", got)
	}
	write(t, first, 0, "two")
	mem.FailSync(syscall.EIO)
	write(t, other, 0, "x")
	if err := other.SyncData(); err != nil {
		t.Fatalf("the error of another file: %v", err)
	}
	if err := first.SyncData(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("the error of the sync is lost: %v", err)
	}
	mustDo(t, first.SyncData())
}

// TestBoundedNames: a file that was removed or replaced stays usable through the Files that are open, one that was renamed
// is found again, and when a renaming fails nothing has changed.
func TestBoundedNames(t *testing.T) {
	f := vfs.Bounded(memfs.New(), 1)
	make1 := func(name string) vfs.File {
		file, err := f.Create(name)
		mustDo(t, err)
		write(t, file, 0, name)
		return file
	}
	removed, replaced, renamed, stays := make1("removed"), make1("replaced"), make1("renamed"), make1("stays")
	mustDo(t, f.Remove("removed"))
	mustDo(t, f.Rename("renamed", "replaced"))
	if err := f.Rename("stays", "no directory/x"); err == nil {
		t.Fatal("renamed into a directory that is not there")
	}
	mustDo(t, make1("removed").Close())
	mustDo(t, make1("renamed").Close())
	for want, file := range map[string]vfs.File{"removed": removed, "replaced": replaced, "renamed": renamed, "stays": stays} {
		if got := read(t, file, 10); got != want {
			t.Errorf("%s holds %q", want, got)
		}
		mustDo(t, file.Close())
		if err := file.Close(); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("closed twice: %v", err)
		}
	}
}

// TestBoundedOutOfFiles: when the system opens no further file, others are closed for it. When none can be closed, the error
// is the system's; the wrapper is none the worse for it.
func TestBoundedOutOfFiles(t *testing.T) {
	f := vfs.Bounded(errfs.NewScarce(memfs.New(), 2), 1000)
	var files []vfs.File
	for _, name := range []string{"a", "b", "c"} {
		file, err := f.Create(name)
		mustDo(t, err)
		write(t, file, 0, name)
		files = append(files, file)
	}
	for i, name := range []string{"a", "b", "c"} {
		if got := read(t, files[i], 1); got != name {
			t.Fatalf("%s holds %q", name, got)
		}
	}
	mustDo(t, f.Remove("a"))
	mustDo(t, f.Remove("b"))
	if _, err := f.Create("d"); !errors.Is(err, syscall.EMFILE) {
		t.Fatalf("got %v", err)
	}
	mustDo(t, files[0].Close())
	file, err := f.Create("d")
	mustDo(t, err)
	mustDo(t, errors.Join(files[1].Close(), files[2].Close(), file.Close()))
}
