package errfs_test

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// everything does each kind of operation once and returns their errors by kind. It uses f itself only for what it does
// not test at the moment.
func everything(f vfs.FS, plain vfs.FS) map[errfs.Kind]error {
	got := map[errfs.Kind]error{}
	_, got[errfs.OpCreate] = f.Create("new")
	got[errfs.OpRename] = f.Rename("renamed", "r")
	got[errfs.OpRemove] = f.Remove("removed")
	got[errfs.OpMkdirAll] = f.MkdirAll("dir")
	_, got[errfs.OpList] = f.List("/")
	got[errfs.OpSyncDir] = f.SyncDir("/")
	_, got[errfs.OpLock] = f.Lock("LOCK")
	_, _, got[errfs.OpSpace] = f.Space("/")
	file, err := f.Open("file")
	if got[errfs.OpOpen] = err; err != nil {
		file, _ = plain.Open("file")
	}
	_, writeErr := file.WriteAt([]byte("x"), 0)
	got[errfs.OpWrite] = errors.Join(writeErr, file.WriteVAt([][]byte{{'x'}}, 0))
	_, got[errfs.OpRead] = file.ReadAt(make([]byte, 1), 0)
	got[errfs.OpTruncate] = file.Truncate(1)
	got[errfs.OpAllocate] = file.Allocate(10)
	got[errfs.OpSyncData] = file.SyncData()
	_, got[errfs.OpSize] = file.Size()
	got[errfs.OpClose] = file.Close()
	return got
}

func disk(t *testing.T) vfs.FS {
	f := memfs.New()
	for _, name := range []string{"file", "renamed", "removed"} {
		if _, err := f.Create(name); err != nil {
			t.Fatal(err)
		}
	}
	file, _ := f.Open("file")
	_, _ = file.WriteAt([]byte("12345"), 0)
	return f
}

// TestEachKind fails one kind of operation at a time: it, and no other, fails, with the name in the error.
func TestEachKind(t *testing.T) {
	plain := disk(t)
	kinds := everything(errfs.Wrap(plain, errfs.PathSuffix("no such name", errfs.EIO)), plain)
	for kind, err := range kinds {
		if err != nil {
			t.Fatalf("%s fails without a failure injected: %v", kind, err)
		}
	}
	for kind := range kinds {
		plain := disk(t)
		for other, err := range everything(errfs.Wrap(plain, errfs.On(kind, errfs.EIO)), plain) {
			if fails := errors.Is(err, syscall.EIO); fails != (kind == other) {
				t.Errorf("failing %s: %s fails: %v (%v)", kind, other, fails, err)
			}
			if pathErr := (*fs.PathError)(nil); err != nil && (!errors.As(err, &pathErr) || pathErr.Path == "") {
				t.Errorf("%v does not carry a name", err)
			}
		}
	}
}

func TestOnIndex(t *testing.T) {
	index := errfs.OnIndex(2, errfs.ENOSPC)
	f := errfs.Wrap(disk(t), errfs.On(errfs.OpSyncDir, index))
	for i := range 5 {
		if index.Reached() != (i > 2) {
			t.Fatalf("step %d: reached %v", i, index.Reached())
		}
		if _, err := f.List("/"); err != nil {
			t.Fatal(err)
		}
		if err := f.SyncDir("/"); errors.Is(err, syscall.ENOSPC) != (i == 2) {
			t.Fatalf("step %d: %v", i, err)
		}
	}
}

// TestShortWrite writes a part and fails, by either way of writing.
func TestShortWrite(t *testing.T) {
	for n := range 6 {
		plain := disk(t)
		file, err := errfs.Wrap(plain, errfs.On(errfs.OpWrite, errfs.ShortWrite(n, syscall.ENOSPC))).Open("file")
		if err != nil {
			t.Fatal(err)
		}
		if err := file.WriteVAt([][]byte{[]byte("a"), nil, []byte("bcd")}, 0); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("got %v", err)
		}
		if got, want := content(t, plain), "abcd"[:min(n, 4)]+"12345"[min(n, 4):]; got != want {
			t.Fatalf("%d of a vector written: %q, want %q", n, got, want)
		}
		written, err := file.WriteAt([]byte("ABCD"), 0)
		if !errors.Is(err, syscall.ENOSPC) || written != min(n, 4) {
			t.Fatalf("got %d, %v", written, err)
		}
		if got, want := content(t, plain), "ABCD"[:min(n, 4)]+"12345"[min(n, 4):]; got != want {
			t.Fatalf("%d written: %q, want %q", n, got, want)
		}
	}
}

func content(t *testing.T, f vfs.FS) string {
	file, err := f.Open("file")
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := file.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestString(t *testing.T) {
	for want, injector := range map[string]errfs.Injector{
		`index(3, path(".log", on(write, short(100, enospc))))`: errfs.OnIndex(3, errfs.PathSuffix(".log", errfs.On(errfs.OpWrite, errfs.ShortWrite(100, syscall.ENOSPC)))),
		`on(syncdata, eio)`:      errfs.On(errfs.OpSyncData, errfs.EIO),
		`fail("file is in use")`: errfs.Fail(errors.New("file is in use")),
		`fail(13)`:               errfs.Fail(syscall.EACCES),
	} {
		if got := injector.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestScarce(t *testing.T) {
	f := errfs.NewScarce(memfs.New(), 2)
	a, err := f.Create("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Create("a"); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("created twice: %v", err)
	}
	b, err := f.Open("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Create("c"); !errors.Is(err, syscall.EMFILE) {
		t.Fatalf("opened a third: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Create("c"); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if now, most := f.Files(); now != 1 || most != 2 {
		t.Fatalf("%d files are open, %d were at most", now, most)
	}
}
