package errfs

import (
	"io/fs"
	"sync"
	"syscall"

	"github.com/oncemq/oncemq/internal/vfs"
)

// Scarce is a file system on which only so many files can be open at a time, as in a process with a low limit: one more
// fails with EMFILE.
type Scarce struct {
	vfs.FS
	max int

	mu         sync.Mutex
	open, most int
}

// NewScarce returns a file system on inner with at most max open files.
func NewScarce(inner vfs.FS, max int) *Scarce { return &Scarce{FS: inner, max: max} }

// Open implements vfs.FS.
func (s *Scarce) Open(name string) (vfs.File, error) { return s.file(name, s.FS.Open) }

// Create implements vfs.FS.
func (s *Scarce) Create(name string) (vfs.File, error) { return s.file(name, s.FS.Create) }

// Files returns how many files are open, and how many were at the same time at most.
func (s *Scarce) Files() (now, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open, s.most
}

func (s *Scarce) file(name string, open func(string) (vfs.File, error)) (vfs.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == s.max {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EMFILE}
	}
	f, err := open(name)
	if err != nil {
		return nil, err
	}
	s.open++
	s.most = max(s.most, s.open)
	return &scarceFile{f, s}, nil
}

type scarceFile struct {
	vfs.File
	fs *Scarce
}

func (f *scarceFile) Close() error {
	f.fs.mu.Lock()
	f.fs.open--
	f.fs.mu.Unlock()
	return f.File.Close()
}
