package seglog

import (
	"errors"
	"fmt"
	"slices"
)

// lateReadsMax bounds how often one read begins again because segments went away under it.
const lateReadsMax = 8

// attempt reads, and reads again when what was met may have been a wrong index that was made right meanwhile: once for
// each segment that this happens in. It also reads again when a segment was taken away meanwhile, or made shorter: what is
// read may be in what stays, and if not, the repetition finds it out of range.
func (l *Log) attempt(read func() error) error {
	err := read()
	late := 0
	for tried := []*segment(nil); ; err = read() {
		if errors.Is(err, errLate) {
			if late++; late == lateReadsMax {
				return err
			}
			continue
		}
		damage, ok := errors.AsType[*DamageError](err)
		if !ok {
			return err
		}
		s, failed := l.mend(damage)
		if s == nil || slices.Contains(tried, s) {
			return errors.Join(err, failed)
		}
		tried = append(tried, s)
	}
}

// mend finds out whether damage that a read met is in the log or only in the index, which has no checksum: it reads the
// sealed segment, and makes the index right as far as the log is whole. This happens once to a segment while the log is
// open: what is met later is damage. It returns the segment, nil when there is no such one, and why that could not be done.
func (l *Log) mend(damage *DamageError) (*segment, error) {
	l.removal.Lock() // the segment stays, and is mended by one reader; the others wait
	defer l.removal.Unlock()
	v := l.view()
	k := slices.IndexFunc(v.segments, func(s *segment) bool { return s.name == damage.File })
	if k < 0 || k == len(v.segments)-1 || l.failure() != nil { // (L8)
		return nil, nil
	}
	s := v.segments[k]
	if s.reread {
		return s, s.unmended
	}
	s.reread = true
	_, err := s.writeIndex(&window{})
	if _, bad := errors.AsType[*DamageError](err); err != nil && !bad {
		s.unmended = fmt.Errorf("make index of %s right: %w", s.name, err)
	}
	return s, s.unmended
}
