package seglog

import (
	"bytes"
	"testing"
)

// The process was killed; one bit of a synced entry is wrong, and the index file is missing. Valid entries behind the
// bad one prove that it was no torn end, and they are acknowledged. They are refused, or kept in a side file (L10).
func TestHoleWithoutIndexIsKept(t *testing.T) {
	s := newStored(t)
	name := s.last + logSuffix
	changed := s.file(t, name)
	changed[s.marks[2].Position+20] ^= 1
	s = s.with(t, name, changed).with(t, s.last+indexSuffix, nil)
	behind := changed[s.marks[3].Position:] // 4 whole entries
	l, report, err := Open(s.cfg, OpenOptions{Floor: s.marks[2], SameBoot: true})
	if err != nil {
		return // refused: right
	}
	must(t, l.Close())
	for name, content := range files(t, s.disk, testDir) {
		if bytes.Contains([]byte(content), behind) {
			t.Logf("kept in %s", name)
			return
		}
	}
	t.Errorf("%d bytes of whole, synced entries are gone from the disk: %+v", len(behind), report)
}
