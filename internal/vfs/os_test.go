//go:build linux || darwin

package vfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWriteAllSurvivesShortWrites lets a pwritev write any number of bytes, be interrupted and obey the limit on
// buffers: all bytes arrive in order and the caller's buffers are as they were.
func TestWriteAllSurvivesShortWrites(t *testing.T) {
	var bufs [][]byte
	var want []byte
	for i := range 3000 {
		b := bytes.Repeat([]byte{byte(i)}, i%7) // empty ones among them
		bufs, want = append(bufs, b), append(want, b...)
	}
	for _, step := range []int{1, 2, 3, 5, 1000, 1 << 20} {
		got := make([]byte, len(want))
		calls := 0
		err := writeAll(bufs, 0, func(bufs [][]byte, off int64) (int, error) {
			if calls++; calls%3 == 0 {
				return -1, unix.EINTR
			}
			if len(bufs) > vectorsMax {
				return -1, unix.EINVAL
			}
			n := 0
			for _, b := range bufs {
				n += copy(got[int(off)+n:], b[:min(len(b), step-n)])
			}
			return n, nil
		})
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("step %d: %v, equal %v", step, err, bytes.Equal(got, want))
		}
		for i, b := range bufs {
			if len(b) != i%7 {
				t.Fatalf("step %d: buffer %d has changed", step, i)
			}
		}
	}
}

func TestWriteAllReportsFailures(t *testing.T) {
	for _, tt := range []struct {
		name string
		n    int
		err  error
		want error
	}{
		{"error", -1, unix.ENOSPC, unix.ENOSPC},
		{"nothing written", 0, nil, io.ErrShortWrite},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := writeAll([][]byte{{1}}, 0, func([][]byte, int64) (int, error) { return tt.n, tt.err })
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// TestOSWriteVAt writes more buffers than one pwritev takes into a real file.
func TestOSWriteVAt(t *testing.T) {
	f, err := OS().Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var bufs [][]byte
	var want []byte
	for i := range 2*vectorsMax + 100 {
		b := bytes.Repeat([]byte{byte(i)}, 11)
		bufs, want = append(bufs, b), append(want, b...)
	}
	if err := f.WriteVAt(bufs, 5); err != nil {
		t.Fatal(err)
	}
	if err := f.SyncData(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5+len(want))
	if _, err := f.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[5:], want) || !bytes.Equal(got[:5], make([]byte, 5)) {
		t.Fatal("the file does not hold what was written")
	}
}

func TestOSErrorsCarryTheName(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := OS().Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{f.SyncData(), f.WriteVAt([][]byte{{1}}, 0), f.WriteVAt([][]byte{{1}}, -1)} {
		var pathErr *fs.PathError
		if !errors.As(err, &pathErr) || pathErr.Path != name {
			t.Errorf("%v does not carry the name", err)
		}
	}
}
