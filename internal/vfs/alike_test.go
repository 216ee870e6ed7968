//go:build linux || darwin

package vfs_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// TestAlike runs one random script on the operating system's file system, on the one in memory and through a wrapper
// that injects nothing, and through one that has hardly a file open: each step must have the same result on all of them.
func TestAlike(t *testing.T) {
	for seed := range uint64(40) {
		mem, wrapped := memfs.New(), memfs.New()
		scripts := []*script{
			newScript(t, vfs.OS(), t.TempDir(), seed),
			newScript(t, mem, "/data", seed),
			newScript(t, errfs.Wrap(wrapped, errfs.PathSuffix("no such name", errfs.EIO)), "/data", seed),
			newScript(t, vfs.Bounded(memfs.New(), 1), "/data", seed),
			newScript(t, vfs.Bounded(errfs.NewScarce(memfs.New(), 4), 1000), "/data", seed),
		}
		for step := range 300 {
			want := scripts[0].step()
			for _, s := range scripts[1:] {
				if got := s.step(); got != want {
					t.Fatalf("seed %d, step %d, %T: got %s, want %s", seed, step, s.fs, got, want)
				}
			}
		}
		for _, s := range scripts {
			s.close()
		}
	}
}

// script is a random sequence of operations that a seed determines. It touches few names so that they meet.
type script struct {
	fs    vfs.FS
	dir   string
	rng   *rand.Rand
	files [3]vfs.File
	locks [2]io.Closer
}

func newScript(t *testing.T, fs vfs.FS, dir string, seed uint64) *script {
	if err := fs.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	return &script{fs: fs, dir: dir, rng: rand.New(rand.NewPCG(seed, 1))}
}

func (s *script) close() {
	for _, f := range s.files {
		if f != nil {
			_ = f.Close()
		}
	}
	for _, l := range s.locks {
		if l != nil {
			_ = l.Close()
		}
	}
}

func (s *script) name() string {
	names := []string{"a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "x/y"}
	return filepath.Join(s.dir, names[s.rng.IntN(len(names))])
}

// step does one thing and says what came of it.
func (s *script) step() string {
	switch op := s.rng.IntN(13); op {
	case 0, 1:
		return s.open(op == 0)
	case 2:
		return "remove " + class(s.fs.Remove(s.name()))
	case 3:
		names := []string{"a", "b", "d/a", "d/e/a", "missing"} // no directories: the contract is about files
		from, to := names[s.rng.IntN(len(names))], names[s.rng.IntN(len(names))]
		return "rename " + class(s.fs.Rename(filepath.Join(s.dir, from), filepath.Join(s.dir, to)))
	case 4:
		dirs := []string{"d", "d/e", "z/z"}
		dir := filepath.Join(s.dir, dirs[s.rng.IntN(len(dirs))])
		return "mkdir " + class(s.fs.MkdirAll(dir))
	case 5:
		names, err := s.fs.List(filepath.Join(s.dir, []string{"", "d", "d/e", "a"}[s.rng.IntN(4)]))
		return fmt.Sprintf("list %q %s", names, class(err))
	case 6:
		return "syncdir " + class(s.fs.SyncDir(filepath.Join(s.dir, []string{"", "d", "d/e"}[s.rng.IntN(3)])))
	case 7:
		return s.lock()
	case 8:
		free, total, err := s.fs.Space(filepath.Join(s.dir, []string{"", "d/e", "missing"}[s.rng.IntN(3)]))
		return fmt.Sprintf("space %v %s", free > 0 && total >= free, class(err))
	default:
		return s.file()
	}
}

func (s *script) open(create bool) string {
	slot, open := s.rng.IntN(len(s.files)), s.fs.Open
	if create {
		open = s.fs.Create
	}
	f, err := open(s.name())
	if err == nil {
		if s.files[slot] != nil {
			_ = s.files[slot].Close()
		}
		s.files[slot] = f
	}
	return fmt.Sprintf("open (create %v) %s", create, class(err))
}

func (s *script) lock() string {
	slot := s.rng.IntN(len(s.locks))
	if s.locks[slot] != nil {
		err := s.locks[slot].Close()
		s.locks[slot] = nil
		return "unlock " + class(err)
	}
	l, err := s.fs.Lock(filepath.Join(s.dir, "LOCK"))
	if err == nil {
		s.locks[slot] = l
	}
	return "lock " + class(err)
}

// file does something with an open file. One in 22 of them is closed.
func (s *script) file() string {
	f := s.files[s.rng.IntN(len(s.files))]
	op, off, n := s.rng.IntN(22), s.rng.Int64N(20000)-10, s.rng.IntN(9000)
	fill := byte(s.rng.Uint32())
	if f == nil {
		return "no file"
	}
	data := make([]byte, n)
	for i := range data {
		data[i] = fill + byte(i/100)
	}
	switch {
	case op < 4:
		written, err := f.WriteAt(data, off)
		return fmt.Sprintf("write %d %s", written, class(err))
	case op < 8:
		return "writev " + class(f.WriteVAt([][]byte{data[:n/3], nil, data[n/3:]}, off))
	case op < 14:
		got, err := f.ReadAt(data, off)
		return fmt.Sprintf("read %d %x %s", got, data[:got], class(err))
	case op < 16:
		return "truncate " + class(f.Truncate(off))
	case op < 17:
		return "sync " + class(f.SyncData())
	case op < 19:
		size, err := f.Size()
		return fmt.Sprintf("size %d %s", size, class(err))
	case op < 21:
		return "allocate " + class(f.Allocate(off))
	default:
		return "close " + class(f.Close())
	}
}

// class says what callers may tell errors apart by.
func class(err error) string {
	for _, target := range []error{io.EOF, fs.ErrClosed, vfs.ErrLocked, fs.ErrExist, fs.ErrNotExist} {
		if errors.Is(err, target) {
			return target.Error()
		}
	}
	if err != nil {
		return "failed"
	}
	return "ok"
}
