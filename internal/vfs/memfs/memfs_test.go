package memfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"reflect"
	"sync"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

const page = 4096

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, f vfs.FS, name string) vfs.File {
	t.Helper()
	file, err := f.Create(name)
	must(t, err)
	return file
}

func write(t *testing.T, f vfs.File, off int64, b []byte) {
	t.Helper()
	_, err := f.WriteAt(b, off)
	must(t, err)
}

// read returns the whole content of a file, nil when there is none.
func read(t *testing.T, f vfs.FS, name string) []byte {
	t.Helper()
	file, err := f.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	must(t, err)
	defer file.Close()
	size, err := file.Size()
	must(t, err)
	b := make([]byte, size)
	if _, err := file.ReadAt(b, 0); err != io.EOF {
		must(t, err)
	}
	return b
}

func fill(c byte, n int) []byte { return bytes.Repeat([]byte{c}, n) }

// model knows, of the files in one directory, what is written and what is durable.
type model struct {
	names, durable map[string]*modelFile
}

type modelFile struct{ written, durable []byte }

func (m *model) dump(written bool) map[string]string {
	names := m.durable
	if written {
		names = m.names
	}
	out := map[string]string{}
	for name, f := range names {
		out[name] = string(f.durable)
		if written {
			out[name] = string(f.written)
		}
	}
	return out
}

func dump(t *testing.T, f vfs.FS) map[string]string {
	t.Helper()
	out := map[string]string{}
	names, err := f.List("/")
	must(t, err)
	for _, name := range names {
		out[name] = string(read(t, f, name))
	}
	return out
}

// TestModel runs random scripts and asks, after each step, for the clones: a crash without luck leaves what is durable,
// one with all luck what is written, the end of the process both.
func TestModel(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 2))
		f := memfs.New()
		m := &model{names: map[string]*modelFile{}, durable: map[string]*modelFile{}}
		for step := range 60 {
			m.step(t, f, rng)
			if rng.IntN(20) == 0 {
				f = f.KillClone()
			}
			where := fmt.Sprintf("seed %d, step %d", seed, step)
			random := f.CrashClone(50, rng)
			scribble(t, random)
			for _, c := range []struct {
				name string
				fs   *memfs.FS
				want map[string]string
			}{
				{"original", f, m.dump(true)},
				{"kill", f.KillClone(), m.dump(true)},
				{"crash 0", f.CrashClone(0, nil), m.dump(false)},
				{"kill, crash 0", f.KillClone().CrashClone(0, nil), m.dump(false)},
				{"crash 100", f.CrashClone(100, nil), m.dump(true)},
				{"crash 100, crash 0", f.CrashClone(100, nil).CrashClone(0, nil), m.dump(true)},
			} {
				if got := dump(t, c.fs); !reflect.DeepEqual(got, c.want) {
					t.Fatalf("%s, %s: got %d files, want %d, or their content differs", where, c.name, len(got), len(c.want))
				}
			}
		}
	}
}

// scribble writes over all that a file system holds, so that a clone that is not independent is noticed.
func scribble(t *testing.T, f vfs.FS) {
	names, err := f.List("/")
	must(t, err)
	for _, name := range names {
		file, err := f.Open(name)
		must(t, err)
		write(t, file, 0, fill(0xEE, 30000))
		must(t, file.SyncData())
		must(t, f.Remove(name))
	}
	must(t, f.SyncDir("/"))
}

func (m *model) step(t *testing.T, f vfs.FS, rng *rand.Rand) {
	t.Helper()
	name := string('a' + rune(rng.IntN(4)))
	file := m.names[name]
	if file == nil {
		must(t, create(t, f, name).Close())
		m.names[name] = &modelFile{}
		return
	}
	handle, err := f.Open(name)
	must(t, err)
	defer handle.Close()
	switch rng.IntN(8) {
	case 0:
		must(t, f.Remove(name))
		delete(m.names, name)
	case 1:
		other := string('a' + rune(rng.IntN(4)))
		must(t, f.Rename(name, other))
		delete(m.names, name)
		m.names[other] = file
	case 2:
		must(t, f.SyncDir("/"))
		m.durable = map[string]*modelFile{}
		for name, file := range m.names {
			m.durable[name] = file
		}
	case 3:
		must(t, handle.SyncData())
		file.durable = bytes.Clone(file.written)
	case 4:
		size := rng.IntN(20000)
		must(t, handle.Truncate(int64(size)))
		file.written = append(bytes.Clone(file.written), make([]byte, max(0, size-len(file.written)))...)[:size]
	default:
		off, b := rng.IntN(16000), fill(byte(rng.Uint32()), rng.IntN(9000))
		write(t, handle, int64(off), b)
		if len(b) == 0 {
			break
		}
		file.written = append(bytes.Clone(file.written), make([]byte, max(0, off+len(b)-len(file.written)))...)
		copy(file.written[off:], b)
	}
}

// TestCrashPages crashes with some luck. Each page of what was not synced is the old or the new one, or has sectors of
// both; the one in which the write ended may be torn at any byte. Each of these things happens.
func TestCrashPages(t *testing.T) {
	before, after := fill('o', 4*page), fill('n', 3*page+2000)
	seen := map[string]bool{}
	for seed := range uint64(200) {
		f := memfs.New()
		file := create(t, f, "f")
		write(t, file, 0, before)
		must(t, file.SyncData())
		must(t, f.SyncDir("/"))
		write(t, file, 0, after)
		got := read(t, f.CrashClone(50, rand.New(rand.NewPCG(seed, 3))), "f")
		if len(got) != len(before) {
			t.Fatalf("seed %d: %d bytes", seed, len(got))
		}
		for i := range 4 {
			p, o, n := got[i*page:(i+1)*page], before[i*page:(i+1)*page], append(bytes.Clone(after), fill('o', page)...)[i*page:(i+1)*page]
			switch {
			case bytes.Equal(p, o):
				seen["old"] = true
			case bytes.Equal(p, n):
				seen["new"] = true
			case i == 3 && bytes.Equal(p, append(fill('n', bytes.Count(p, []byte("n"))), fill('o', bytes.Count(p, []byte("o")))...)):
				seen["torn"] = true
			case sectorsOf(p, o, n):
				seen["sectors"] = true
			default:
				t.Fatalf("seed %d: page %d is neither old nor new", seed, i)
			}
		}
	}
	if len(seen) != 4 {
		t.Fatalf("seen only %v", seen)
	}
}

// sectorsOf says whether each sector of a page is that of one of two others.
func sectorsOf(p, one, other []byte) bool {
	for at := 0; at < len(p); at += 512 {
		if s := p[at : at+512]; !bytes.Equal(s, one[at:at+512]) && !bytes.Equal(s, other[at:at+512]) {
			return false
		}
	}
	return true
}

// TestWriteBack: what the kernel wrote of its own accord is what a crash leaves, also when it was overwritten or cut off
// since, until the next sync.
func TestWriteBack(t *testing.T) {
	f := memfs.New()
	file := create(t, f, "f")
	must(t, f.SyncDir("/"))
	write(t, file, 0, fill('a', 2*page+10))
	f.WriteBack(100, nil)
	write(t, file, 0, fill('b', page))
	must(t, file.Truncate(page+1))
	left := fill('a', 2*page+10)
	for _, clone := range []*memfs.FS{f.CrashClone(0, nil), f.KillClone().CrashClone(0, nil)} {
		if got := read(t, clone, "f"); !bytes.Equal(got, left) {
			t.Fatalf("%d bytes, or other ones, are left", len(got))
		}
	}
	now := append(fill('b', page), 'a')
	if got := read(t, f.CrashClone(100, nil), "f"); !bytes.Equal(got, now) {
		t.Fatalf("%d bytes, or other ones, are left of all that was written", len(got))
	}
	must(t, file.SyncData())
	if got := read(t, f.CrashClone(0, nil), "f"); !bytes.Equal(got, now) {
		t.Fatalf("%d bytes, or other ones, are left after a sync", len(got))
	}
	// Grown again, what was cut off is zeros.
	must(t, file.Truncate(2*page))
	f.WriteBack(100, nil)
	if got := read(t, f.CrashClone(0, nil), "f"); !bytes.Equal(got, append(now, make([]byte, page-1)...)) {
		t.Fatal("what was cut off is there again")
	}
}

// TestCrashSizes crashes while a file grows: the size is the old, the new or one between, and what is missing
// below it is zeros.
func TestCrashSizes(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(200) {
		f := memfs.New()
		file := create(t, f, "f")
		write(t, file, 0, fill('o', 100))
		must(t, file.SyncData())
		must(t, f.SyncDir("/"))
		write(t, file, 100, fill('n', 2*page))
		got := read(t, f.CrashClone(50, rand.New(rand.NewPCG(seed, 4))), "f")
		switch len(got) {
		case 100:
			seen["old"] = true
		case 100 + 2*page:
			seen["new"] = true
		default:
			seen["between"] = true
		}
		if len(got) < 100 || len(got) > 100+2*page || !bytes.Equal(got[:100], fill('o', 100)) {
			t.Fatalf("seed %d: %d bytes, or lost what was synced", seed, len(got))
		}
		for _, c := range got[100:] {
			if c == 0 {
				seen["zeros"] = true
			} else if c != 'n' {
				t.Fatalf("seed %d: a byte is %q", seed, c)
			}
		}
	}
	if len(seen) != 4 {
		t.Fatalf("seen only %v", seen)
	}
}

// TestCrashNames crashes after creating a file and renaming it over another one. The content was synced, the directory
// was not: the target is the old file or the new one, and the changes survive in order.
func TestCrashNames(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(100) {
		f := memfs.New()
		write(t, create(t, f, "state"), 0, []byte("old"))
		file, err := f.Open("state")
		must(t, err)
		must(t, file.SyncData())
		must(t, f.SyncDir("/"))
		next := create(t, f, "tmp")
		write(t, next, 0, []byte("new"))
		must(t, next.SyncData())
		must(t, f.Rename("tmp", "state"))
		got := dump(t, f.CrashClone(50, rand.New(rand.NewPCG(seed, 5))))
		seen[fmt.Sprint(got)] = true
	}
	want := map[string]bool{"map[state:old]": true, "map[state:new]": true, "map[state:old tmp:new]": true}
	if !reflect.DeepEqual(seen, want) {
		t.Fatalf("seen %v, want %v", seen, want)
	}
}

func TestCrashLosesDirectories(t *testing.T) {
	f := memfs.New()
	must(t, f.MkdirAll("/a/b"))
	file := create(t, f, "/a/b/f")
	write(t, file, 0, []byte("x"))
	must(t, file.SyncData())
	must(t, f.SyncDir("/a/b"))
	must(t, f.SyncDir("/"))
	if names, err := f.CrashClone(0, nil).List("/a"); err != nil || len(names) != 0 {
		t.Fatalf("an entry that no SyncDir covers is there: %v, %v", names, err)
	}
	must(t, f.SyncDir("/a"))
	if got := read(t, f.CrashClone(0, nil), "/a/b/f"); string(got) != "x" {
		t.Fatalf("got %q", got)
	}
}

// TestFailSync is a disk that fails a write: the page cache goes on showing what is not on the disk, and only writing
// it again helps.
func TestFailSync(t *testing.T) {
	f := memfs.New()
	file := create(t, f, "f")
	must(t, f.SyncDir("/"))
	write(t, file, 0, []byte("x"))
	f.FailSync(syscall.EIO)
	if err := file.SyncData(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("got %v", err)
	}
	must(t, file.SyncData())
	if got := read(t, f.KillClone(), "f"); string(got) != "x" {
		t.Fatalf("the page cache shows %q", got)
	}
	if got := read(t, f.CrashClone(100, nil), "f"); string(got) != "" {
		t.Fatalf("the disk has %q", got)
	}
	write(t, file, 0, []byte("x"))
	must(t, file.SyncData())
	if got := read(t, f.CrashClone(0, nil), "f"); string(got) != "x" {
		t.Fatalf("after writing again the disk has %q", got)
	}
}

// TestFilesOutliveTheirName: removing and cloning leave open files as they are.
func TestFilesOutliveTheirName(t *testing.T) {
	f := memfs.New()
	file := create(t, f, "f")
	clone := f.CrashClone(100, nil)
	must(t, f.Remove("f"))
	write(t, file, 0, []byte("x"))
	b := make([]byte, 1)
	if _, err := file.ReadAt(b, 0); err != nil || b[0] != 'x' {
		t.Fatalf("read %q, %v", b, err)
	}
	if got := read(t, clone, "f"); got == nil || len(got) != 0 {
		t.Fatalf("the clone has %q", got)
	}
}

func TestLocksEndWithTheProcess(t *testing.T) {
	f := memfs.New()
	l, err := f.Lock("LOCK")
	must(t, err)
	if _, err := f.Lock("/LOCK"); !errors.Is(err, vfs.ErrLocked) {
		t.Fatalf("locked twice: %v", err)
	}
	_, err = f.KillClone().Lock("LOCK")
	must(t, err)
	must(t, l.Close())
	if err := l.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Fatalf("closed twice: %v", err)
	}
	_, err = f.Lock("LOCK")
	must(t, err)
}

// TestConcurrentUse is for the race detector.
func TestConcurrentUse(t *testing.T) {
	f := memfs.New()
	must(t, create(t, f, "shared").Close())
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			name := fmt.Sprint("own", i)
			for range 50 {
				own, err := f.Create(name)
				if err != nil {
					t.Error(err)
					return
				}
				shared, err := f.Open("shared")
				if err != nil {
					t.Error(err)
					return
				}
				_ = shared.WriteVAt([][]byte{fill(byte(i), 5000), {1}}, int64(i)*3000)
				_, _ = shared.ReadAt(make([]byte, 8000), 0)
				_ = shared.SyncData()
				_ = f.CrashClone(50, rand.New(rand.NewPCG(1, uint64(i))))
				_ = f.KillClone()
				_, _ = f.List("/")
				_ = own.Close()
				_ = f.Remove(name)
				_ = f.SyncDir("/")
			}
		})
	}
	wg.Wait()
}
