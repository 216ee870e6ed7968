package seglog

import (
	"bytes"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/vfs/errfs"
)

// The disk cannot read an index file back. It holds nothing that the log does not: it is to be made anew like a wrong
// one.
func TestUnreadableIndex(t *testing.T) {
	for _, name := range []string{"00000000000000000002.idx", "00000000000000000010.idx", "00000000000000000018.idx"} {
		for _, from := range []Index{0, 18} {
			s := newStored(t)
			cfg := s.cfg
			cfg.FS = errfs.Wrap(s.disk, errfs.PathSuffix(name, errfs.On(errfs.OpRead, errfs.Fail(syscall.EIO))))
			l, _, err := Open(cfg, OpenOptions{Floor: s.floor, From: from, SameBoot: true})
			if err != nil {
				t.Errorf("%s, from %d: %v", name, from, err)
				continue
			}
			must(t, l.Close())
		}
	}
}

// One field of one record in an older index is wrong, with the log whole: whatever reads there first has it made right,
// and finds what was stored.
func TestReadsMendIndex(t *testing.T) {
	s := newStored(t)
	right := batchesOf(s.entries)
	ways := map[string]func(l *Log) error{
		"fetch": func(l *Log) error { return fetchAll(l, right) },
		"entry": func(l *Log) error {
			for i := range s.entries {
				e, err := l.Entry(Index(i) + 2)
				if err != nil || !equal(e, s.entries[i]) {
					return fmt.Errorf("entry %d: %+v, %w", i+2, e, err)
				}
			}
			return nil
		},
		"term": func(l *Log) error {
			for i, e := range s.entries {
				if term, err := l.Term(Index(i) + 2); err != nil || term != e.Term {
					return fmt.Errorf("entry %d: term %d, %w", i+2, term, err)
				}
			}
			return nil
		},
	}
	for _, name := range storedNames[:2] {
		name += indexSuffix
		content := s.file(t, name)
		for at := 0; at < len(content); at += step() {
			if at%recordSize >= 21 {
				continue // the timestamp, which no read needs
			}
			for _, flip := range []byte{1, 0x40, content[at]} {
				changed := bytes.Clone(content)
				changed[at] ^= flip
				for way, reads := range ways {
					once := s.with(t, name, changed)
					l, report, err := Open(once.cfg, OpenOptions{Floor: s.floor, From: 18, SameBoot: true})
					must(t, err)
					if err := reads(l); err != nil {
						t.Fatalf("byte %d of %s ^ %x, %s, made anew %v: %v", at, name, flip, way, report.Indexes, err)
					}
					must(t, l.Close())
				}
			}
		}
	}
}

// fetchAll reads the batches at each offset, as consumers do.
func fetchAll(l *Log, right storedBatches) error {
	for offset := l.FirstOffset(); offset < l.NextOffset(); offset++ {
		for _, bytesMax := range []int{1, 300} {
			ranges, err := l.Locate(offset, l.NextOffset(), bytesMax, true, nil)
			var b []byte
			if err == nil {
				b, err = l.Read(nil, ranges)
			}
			if err != nil || !right.answers(offset, b) {
				return fmt.Errorf("offset %d, at most %d bytes: %x, %w", offset, bytesMax, b, err)
			}
		}
	}
	return nil
}

// Many read at once where all records of an index are wrong, each in its own way.
func TestManyMendIndex(t *testing.T) {
	s := newStored(t)
	right := batchesOf(s.entries)
	l, _ := open(t, s.cfg, OpenOptions{Floor: s.floor})
	for _, name := range storedNames[:2] {
		file, err := s.disk.Open(filepath.Join(testDir, name+indexSuffix))
		must(t, err)
		for at := range 8 {
			_, err = file.WriteAt([]byte{0x55}, int64(at*recordSize+at%8+8))
			must(t, err)
		}
		must(t, file.Close())
	}
	errs := make(chan error)
	for range 4 {
		go func() { errs <- fetchAll(l, right) }()
	}
	for range 4 {
		must(t, <-errs)
	}
	must(t, l.Close())
}

// A segment in which the log is bad is read whole once, however often somebody meets the damage.
func TestBadSegmentIsReadOnce(t *testing.T) {
	s := newStored(t)
	name, reads := storedNames[0]+logSuffix, 0
	content := s.file(t, name)
	content[headerSize+200] ^= 1
	s = s.with(t, name, content)
	cfg := s.cfg
	cfg.FS = errfs.Wrap(s.disk, injectorFunc(func(op errfs.Op) error {
		if op.Kind == errfs.OpRead && filepath.Base(op.Path) == name {
			reads++
		}
		return nil
	}))
	l, _, err := Open(cfg, OpenOptions{Floor: s.floor, From: 18, SameBoot: true})
	must(t, err)
	counts := map[int]int{}
	for range 20 {
		failed := 0
		reads = 0
		for i := Index(2); i < 10; i++ {
			if _, err := l.Entry(i); err != nil {
				isDamage(t, err, testDir)
				failed++
			}
		}
		if failed != 1 {
			t.Fatalf("%d entries cannot be read", failed)
		}
		counts[reads]++
	}
	if counts[9] != 19 { // the eight, and the bad one again
		t.Errorf("reads of the segment: %v", counts)
	}
	must(t, l.Close())
}
