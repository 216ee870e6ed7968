package replica

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// failing is an injector that fails what it is switched on for.
type failing struct {
	part string // of the name
	err  atomic.Pointer[error]
}

func (f *failing) Inject(op errfs.Op) error {
	if err := f.err.Load(); err != nil && strings.Contains(op.Path, f.part) {
		return *err
	}
	return nil
}

func (f *failing) String() string { return "failing " + f.part }

func (f *failing) on(err error) { f.err.Store(&err) }
func (f *failing) off()         { f.err.Store(nil) }

// Each segment gets the state at its beginning, whatever stands in the log.
func TestBases(t *testing.T) {
	setSegmentBytes(t, 3000)
	fs := memfs.New()
	s := openStack(t, fs, 1)
	for k := range batch.Sequence(30) {
		s.fill(batch.ProducerID(k%4), k/4, 1)
		if k%9 == 8 {
			s.roll()
		}
	}
	s.settle()
	s.checkFiles(len(s.files(".log")))
	if n := len(s.files(".base")); n < 12 {
		t.Fatalf("%d bases", n)
	}
	s.close()
	checkRebuilt(t, s)

	// A restart begins with the newest, and makes none anew.
	before := read(t, fs, s.files(".base"))
	s = openStack(t, fs, 1)
	if n := len(s.partition.core.stock.bases); s.log.Base().Index+1 != newest(s).First || n != 0 {
		t.Fatalf("begun with base %d, the newest segment is %d, %d are to be written", s.log.Base().Index, newest(s).First, n)
	}
	s.settle()
	s.close()
	if after := read(t, fs, s.files(".base")); !slices.Equal(after, before) {
		t.Fatal("bases differ after a restart")
	}

	// Those that are damaged or missing are made again, as they were, when the replay passes their places.
	names := s.files(".base")
	for i, name := range names[len(names)-5:] {
		path := filepath.Join("data/groups/7", name)
		if i%2 == 0 {
			must(t, fs.Remove(path))
			continue
		}
		file, err := fs.Open(path)
		must(t, err)
		_, err = file.WriteAt([]byte{0xff}, 70)
		must(t, err)
		must(t, file.Close())
	}
	s = openStack(t, fs, 1)
	s.settle()
	s.close()
	if after := read(t, fs, s.files(".base")); !slices.Equal(after, before) {
		t.Fatal("bases differ after they were made again")
	}
	checkRebuilt(t, s)
}

func newest(s *stack) seglog.SegmentInfo {
	segments := s.log.Segments().Segments()
	return segments[len(segments)-1]
}

// read returns the content of files in the group's directory, with their names.
func read(t *testing.T, fs vfs.FS, names []string) []string {
	t.Helper()
	var all []string
	for _, name := range names {
		content := readFile(fs, filepath.Join("data/groups/7", name))
		if content == nil {
			t.Fatalf("%s cannot be read", name)
		}
		all = append(all, fmt.Sprintf("%s %x", name, content))
	}
	return all
}

// A base that cannot be written is written later: when told, or when another is due. The partition does not suffer from it.
func TestBaseThatCannotBeWritten(t *testing.T) {
	inject := &failing{part: ".base"}
	fs := errfs.Wrap(memfs.New(), inject)
	s := openStack(t, fs, 1)
	s.fill(7, 0, 2)
	for _, err := range []error{syscall.ENOSPC, syscall.EIO} {
		have := len(s.files(".base"))
		inject.on(err)
		s.roll()
		s.fill(7, batch.Sequence(s.partition.Status().NextOffset), 2)
		s.roll()
		s.fill(7, batch.Sequence(s.partition.Status().NextOffset), 2)
		if n := len(s.files(".base")); n != have {
			t.Fatalf("bases %v, written while that fails", s.files(".base"))
		}
		s.housekeep(RetryBases)
		inject.off()
		s.housekeep(Retain) // it is not tried again by itself
		if n := len(s.files(".base")); n != have {
			t.Fatalf("bases %v, and nobody has said anything", s.files(".base"))
		}
		if err == syscall.ENOSPC {
			s.housekeep(RetryBases)
		} else {
			s.roll()
		}
		s.checkFiles(len(s.files(".log")))
	}
	s.close()
	checkRebuilt(t, s)
}

// What waits to be written is bounded, and the newest is in it.
func TestStockIsBounded(t *testing.T) {
	s := &stock{}
	add := func(index seglog.Index, size int) { s.add(index, 1, state{size: size}) }
	check := func(want ...seglog.Index) {
		t.Helper()
		var have []seglog.Index
		sum := 0
		for _, b := range s.bases {
			have, sum = append(have, b.index), sum+b.state.size
		}
		if !slices.Equal(have, want) || sum != s.bytes {
			t.Fatalf("stock of %v with %d bytes in %d, want %v", have, sum, s.bytes, want)
		}
	}
	for i := range seglog.Index(2 * stockMax) {
		add(i+1, 10)
	}
	if len(s.bases) != stockMax || s.newest() != 2*stockMax {
		t.Fatalf("%d in stock, the newest %d", len(s.bases), s.newest())
	}
	failed := s.take()
	s.giveBack(failed)
	if len(s.bases) != stockMax || s.take().index != failed.index {
		t.Fatal("what was given back is not the oldest")
	}
	add(100, 0)
	s.giveBack(failed) // there are as many newer ones
	if len(s.bases) != stockMax || s.bases[0].index == failed.index {
		t.Fatal("given back to a full stock")
	}
	add(101, stockBytesMax+1)
	check(101)
	large := s.take()
	check()
	if s.newest() != 0 {
		t.Fatalf("newest %d of none", s.newest())
	}
	s.giveBack(large)
	check(101)
	add(102, stockBytesMax/2)
	add(103, stockBytesMax/2)
	check(102, 103)
	s.giveBack(large)
	check(102, 103)
	add(104, 1)
	check(103, 104)
}

// While a base is being written the partition goes on, and Close waits for it.
func TestBaseIsWrittenBeside(t *testing.T) {
	gate := newGateFS()
	gate.part = ".base"
	s := openStack(t, gate, 1)
	s.fill(7, 0, 3)
	open := gate.shut()
	s.do(func(time.Time) { s.partition.core.rollWanted = true })
	<-gate.held
	s.fill(7, 3, 3)
	ended := background(func() { must(t, s.partition.Close()) })
	<-s.partition.loop.done
	select {
	case <-ended:
		t.Fatal("closed while a base is being written")
	default:
	}
	open()
	wait(t, "the end of Close", ended)
	s.flushers.Close()
	must(t, s.state.Close())
	s.checkFiles(2)
	checkRebuilt(t, s)
}

// unsynced fails the sync of the directory that follows the renaming of a base snapshot, once it is armed.
type unsynced struct{ armed, renamed atomic.Bool }

func (u *unsynced) Inject(op errfs.Op) error {
	switch {
	case op.Kind == errfs.OpRename && strings.Contains(op.Path, ".base"):
		u.renamed.Store(u.armed.Load())
	case op.Kind == errfs.OpSyncDir && u.renamed.Swap(false):
		return syscall.EIO
	}
	return nil
}

func (u *unsynced) String() string { return "unsynced" }

// A directory that cannot be synced behind a base snapshot is the end of the process, and nothing has to be produced for
// that: the next sync of it, by a new segment, would succeed without what was lost.
func TestFailedSyncOfDirectoryIsFatal(t *testing.T) {
	inject := &unsynced{}
	s := openFiles(t, errfs.Wrap(memfs.New(), inject), 1)
	fatal := make(chan error, 1)
	s.start(func(err error) {
		select {
		case fatal <- err:
		default: // it has been told
		}
	})
	must(t, s.partition.Opened(t.Context()))
	s.fill(7, 0, 2)
	s.settle()
	inject.armed.Store(true)
	s.do(func(time.Time) { s.partition.core.rollWanted = true })
	select {
	case err := <-fatal:
		if !errors.Is(err, seglog.ErrSync) || !errors.Is(err, syscall.EIO) {
			t.Errorf("fatal: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("nobody is told")
	}
	_ = s.partition.Close() // the process would end instead
	s.flushers.Close()
	must(t, s.state.Close())
}
