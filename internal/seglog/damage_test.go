package seglog

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestDamage changes each byte of each file of a log that is closed, and opens it whole and in part: Open finds it, or
// all that is read is what was stored, or is refused. What a durable mark covers is never missing.
func TestDamage(t *testing.T) {
	s := newStored(t)
	total, found, refused := 0, 0, 0
	for name := range files(t, s.disk, testDir) {
		content := s.file(t, name)
		for at := 0; at < len(content); at += step() {
			changed := bytes.Clone(content)
			changed[at] ^= []byte{1, 0x80, 0x55}[at%3]
			damaged := s.with(t, name, changed)
			for _, opt := range []OpenOptions{
				{Floor: s.floor, SameBoot: true}, {Floor: s.floor, From: 18}, {SameBoot: true}, {From: 10}, {From: 18, SameBoot: true},
			} {
				where := fmt.Sprintf("byte %d of %s, %+v", at, name, opt)
				once := damaged.clone()
				l, _, err := Open(once.cfg, opt)
				total++
				if err != nil {
					found++
					isDamage(t, err, testDir)
					continue
				}
				if l.LastIndex() != 24 && opt.Floor != (Floor{}) || l.LastIndex() < 17 {
					t.Fatalf("%s: the log ends with entry %d", where, l.LastIndex())
				}
				if s.readsRight(t, l, where) {
					refused++
					if opt.From == 0 {
						t.Fatalf("%s: all was read by Open, and a read fails", where)
					}
				}
				must(t, l.Close())
			}
		}
	}
	t.Logf("%d opened: %d times Open found the damage, %d times a read", total, found, refused)
	if found == 0 || refused == 0 {
		t.Error("that tests nothing")
	}
}

// readsRight reads all of the log by all ways: each read returns what was stored, or *DamageError. It says whether one
// did.
func (s *stored) readsRight(t *testing.T, l *Log, where string) (noticed bool) {
	t.Helper()
	saw := func(err error) bool {
		isDamage(t, err, testDir)
		noticed = noticed || err != nil
		return err == nil
	}
	for i := l.FirstIndex(); i <= l.LastIndex(); i++ {
		want := s.entries[i-2]
		if e, err := l.Entry(i); saw(err) && !equal(e, want) {
			t.Fatalf("%s: entry %d is another one", where, i)
		}
		if term, err := l.Term(i); saw(err) && term != want.Term {
			t.Fatalf("%s: term of entry %d is %d", where, i, term)
		}
	}
	for from := range l.NextOffset() {
		for _, bytesMax := range []int{1, 300, 1 << 20} {
			ranges, err := l.Locate(from, l.NextOffset(), bytesMax, true, nil)
			if !saw(err) {
				continue
			}
			if b, err := l.Read(nil, ranges); saw(err) && (len(b) == 0 || !holds(b, s.entries, int64(from))) {
				t.Fatalf("%s: the read of offset %d returns something else", where, from)
			}
		}
	}
	checkSegments(t, l, l.FirstIndex(), s.entries)
	return noticed
}

// TestReadsCheck: what changes below a log that is open is noticed by each read that meets it, or made right when it is
// in the index.
func TestReadsCheck(t *testing.T) {
	s := newStored(t)
	for _, name := range []string{storedNames[0] + logSuffix, storedNames[0] + indexSuffix, s.last + logSuffix} {
		content := s.file(t, name)
		for at := 0; at < len(content); at += step() {
			where := fmt.Sprintf("byte %d of %s", at, name)
			once := s.clone()
			l, _ := open(t, once.cfg, OpenOptions{Floor: s.floor})
			file, err := once.disk.Open(filepath.Join(testDir, name))
			must(t, err)
			_, err = file.WriteAt([]byte{content[at] ^ 0x55}, int64(at))
			must(t, err)
			noticed, isIndex := s.readsRight(t, l, where), strings.HasSuffix(name, indexSuffix)
			switch {
			case isIndex && noticed:
				t.Fatalf("%s: the log is whole, and a read fails", where)
			case isIndex && at%recordSize < 21 && !bytes.Equal(once.file(t, name), content), // behind that is the timestamp
				!isIndex && !noticed && at >= headerSize:
				t.Fatalf("%s: nobody noticed", where)
			}
			must(t, l.Close())
		}
	}
}

// holds says whether b is batches from the one of an offset on, as they are among the entries.
func holds(b []byte, entries []Entry, offset int64) bool {
	for _, e := range entries {
		if e.Kind != KindBatch || int64(follow(place{}, e).offset) <= offset {
			continue
		}
		if len(b) == 0 {
			return true
		}
		if !bytes.HasPrefix(b, e.Data) {
			return false
		}
		b = b[len(e.Data):]
	}
	return len(b) == 0
}

func isDamage(t *testing.T, err error, dir string) {
	t.Helper()
	damage, ok := errors.AsType[*DamageError](err)
	if err != nil && (!ok || filepath.Dir(damage.File) != dir) {
		t.Fatalf("got %v", err)
	}
}
