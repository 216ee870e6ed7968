package seglog

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// user uses a log in all ways that its contract allows, at random, and knows what must be in it: a slice of entries is
// the model that the log is compared with.
type user struct {
	t   testing.TB
	m   *maker
	cfg Config
	log *Log // nil: not open
	// Of an append: it has fewer entries than most, and their data fewer bytes than size.
	most, size int
	known
}

// known is what must be true of the disk at a moment, whatever operation is under way.
type known struct {
	entries []Entry // all that may be there, from entry 2 on, removed ones included
	synced  Index   // all up to here must be there
	first   Index   // the log begins with a segment between these two
	floor   Index
	firsts  []Index // of segments that are there
	mark    Floor   // a durable mark as it was kept
	// cut is where a TruncateSuffix or an Abandon began that has not come to its end: it has to be repeated. 0: none.
	cut     Index
	abandon bool
}

func (k *known) last() Index { return Index(len(k.entries)) + 1 }

// operation is one use of the log, which can be repeated after an error that allows it.
type operation struct {
	name string
	do   func() error
}

func newUser(t testing.TB, seed uint64, cfg Config) *user {
	u := &user{t: t, m: newMaker(seed), cfg: cfg, most: 9, size: 400}
	if cfg.SegmentEntries > 100 {
		u.most, u.size = 250, 20
	}
	u.log = create(t, cfg)
	u.mark, u.synced, u.first, u.floor, u.firsts = u.log.End(), 1, 2, 2, []Index{2}
	return u
}

// next chooses an operation.
func (u *user) next() operation {
	switch n := u.m.rng.IntN(30); {
	case n < 9:
		return u.append()
	case n < 14:
		return u.sync()
	case n < 17:
		return operation{"roll", func() error {
			err := u.log.Roll()
			if err == nil {
				u.synced = u.last()
			}
			return err
		}}
	case n < 20:
		return u.drop(u.firsts[u.m.rng.IntN(len(u.firsts))])
	case n < 23:
		return u.truncate(u.anywhere(0))
	case n < 25:
		return u.abandonEnd(u.anywhere(1))
	case n < 27:
		return u.reopen()
	default:
		return operation{"check", u.check}
	}
}

// finish ends an operation that succeeded.
func (u *user) finish() {
	if u.log == nil {
		return
	}
	u.firsts = u.firsts[:0:0]
	for _, s := range u.log.Segments() {
		u.firsts = append(u.firsts, s.First)
	}
	u.synced = max(u.synced, u.firsts[len(u.firsts)-1]-1) // a sealed segment is durable
	u.first, u.floor = u.firsts[0], u.firsts[0]
}

func (u *user) append() operation {
	some := u.m.several(u.m.rng.IntN(u.most), 1+u.m.rng.IntN(u.size))
	u.entries = append(u.entries[:len(u.entries):len(u.entries)], some...) // a part may be there whenever it fails
	return operation{fmt.Sprintf("append %d entries", len(some)), func() error {
		return u.log.Append(u.entries[u.log.LastIndex()-1:])
	}}
}

func (u *user) sync() operation {
	keep := u.m.rng.IntN(3) == 0 // marks are written lazily
	return operation{"sync", func() error {
		if err := u.log.Sync(); err != nil {
			return err
		}
		if u.synced = u.last(); keep {
			u.mark = u.log.End()
		}
		return nil
	}}
}

func (u *user) drop(first Index) operation {
	return operation{fmt.Sprintf("drop before %d", first), func() error {
		u.floor = max(u.floor, first)
		u.firsts = slices.DeleteFunc(slices.Clone(u.firsts), func(i Index) bool { return i < first })
		return u.log.DropBefore(first)
	}}
}

// cutFrom notes that the entries from i on are going to be removed. Of the segments that begin before limit some part
// stays.
func (u *user) cutFrom(i, limit Index) {
	u.cut = i
	u.synced = min(u.synced, i-1)
	if u.mark.Index >= i || u.mark.Segment >= limit {
		u.mark = Floor{}
	}
	u.firsts = slices.DeleteFunc(slices.Clone(u.firsts), func(first Index) bool { return first >= limit })
}

// wasCut notes that they are.
func (u *user) wasCut() {
	if u.cut <= u.last() {
		u.entries = u.entries[: u.cut-2 : u.cut-2]
	}
	u.synced, u.cut, u.abandon = u.last(), 0, false
	u.m.replace(u.entries)
}

// anywhere returns an index, least entries behind the first one or more, up to a little beyond the end; often where a
// segment begins.
func (u *user) anywhere(least Index) Index {
	i := u.first + least + Index(u.m.rng.IntN(int(u.last()-u.first)+3))
	if k := u.m.rng.IntN(3 * len(u.firsts)); k < len(u.firsts) {
		i = max(u.firsts[k], u.first+least)
	}
	return i
}

func (u *user) truncate(i Index) operation {
	return operation{fmt.Sprintf("truncate from %d", i), func() error {
		u.cutFrom(i, i+1)
		err := u.log.TruncateSuffix(i)
		if err == nil && i <= u.last() {
			u.wasCut()
		}
		if err == nil {
			u.cut = 0
		}
		return err
	}}
}

// abandonEnd closes the log, with all of it on disk, abandons a part, and opens it.
func (u *user) abandonEnd(i Index) operation {
	i = min(i, u.last()+1)
	boot := u.m.rng.IntN(2) == 0
	return operation{fmt.Sprintf("abandon from %d", i), func() error {
		if u.log != nil {
			if err := u.log.Sync(); err != nil {
				return err
			}
			u.synced = u.last()
			if err := u.close(); err != nil {
				return err
			}
		}
		if i > u.first {
			u.abandon = true
			u.cutFrom(i, i)
			if err := Abandon(u.cfg, i); err != nil {
				return err
			}
			u.wasCut()
		}
		return u.open(OpenOptions{Floor: u.mark, SameBoot: boot})
	}}
}

func (u *user) reopen() operation {
	boot, keep, from := u.m.rng.IntN(2) == 0, u.m.rng.IntN(2) == 0, u.anyFrom()
	return operation{fmt.Sprintf("open from %d", from), func() error {
		if u.log != nil {
			end := u.log.End()
			if err := u.close(); err != nil {
				return err
			}
			if keep && u.synced == u.last() {
				u.mark = end
			}
		}
		return u.open(OpenOptions{Floor: u.mark, SameBoot: boot, From: from})
	}}
}

// anyFrom returns the first index of a segment, or 0.
func (u *user) anyFrom() Index {
	if k := u.m.rng.IntN(len(u.firsts) + 1); k < len(u.firsts) {
		return u.firsts[k]
	}
	return 0
}

func (u *user) close() error {
	l := u.log
	u.log = nil
	return l.Close()
}

// open opens the log. What it finds is durable.
func (u *user) open(opt OpenOptions) error {
	l, _, err := Open(u.cfg, opt)
	if err != nil {
		return err
	}
	u.log = l
	if last := l.LastIndex(); last < u.synced || last > u.last() {
		return fmt.Errorf("the log ends with entry %d, synced were all up to %d, appended up to %d", last, u.synced, u.last())
	}
	u.entries = u.entries[: l.LastIndex()-1 : l.LastIndex()-1]
	u.synced = u.last()
	u.m.replace(u.entries)
	return nil
}

// check reads everything.
func (u *user) check() error {
	for i := u.log.FirstIndex(); i <= u.log.LastIndex(); i++ {
		e, err := u.log.Entry(i)
		if err != nil {
			return err
		}
		if !equal(e, u.entries[i-2]) {
			u.t.Fatalf("entry %d is not the one that was appended", i)
		}
		if term, err := u.log.Term(i); err != nil || term != e.Term {
			return errors.Join(err, errorUnless(term == e.Term, "term of entry %d: %d", i, term))
		}
	}
	from := u.log.FirstOffset()
	ranges, err := u.log.Locate(from, u.log.NextOffset(), 1<<30, true, nil)
	if err != nil {
		return err
	}
	b, err := u.log.Read(nil, ranges)
	if err != nil {
		return err
	}
	return errorUnless(holds(b, u.entries, int64(from)), "a read from offset %d returns other batches", from)
}

func errorUnless(right bool, format string, args ...any) error {
	if right {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// holdsIn checks that a log is one that may be found where this is known.
func (k *known) holdsIn(l *Log) error {
	first, last := l.FirstIndex(), l.LastIndex()
	if first < k.first || first > k.floor || last < k.synced || last > k.last() {
		return fmt.Errorf("the log has entries %d to %d, it must begin with %d to %d and end with %d to %d",
			first, last, k.first, k.floor, k.synced, k.last())
	}
	for i := first; i <= last; i++ {
		e, err := l.Entry(i)
		if err != nil {
			return err
		}
		if !equal(e, k.entries[i-2]) {
			return fmt.Errorf("entry %d is not the one that was appended", i)
		}
	}
	return nil
}

// recover opens what a crash has left, as the packages above do: what was under way is done again.
func (k *known) recover(cfg Config, opt OpenOptions) (*Log, error) {
	if k.cut > 0 && k.abandon {
		if err := Abandon(cfg, k.cut); err != nil {
			return nil, err
		}
	}
	l, _, err := Open(cfg, opt)
	if err == nil && k.cut > 0 && !k.abandon {
		err = l.TruncateSuffix(k.cut)
	}
	if err == nil {
		err = k.holdsIn(l)
	}
	if err == nil && k.cut > 0 && l.LastIndex() >= k.cut {
		err = fmt.Errorf("the log ends with entry %d, it was cut off from entry %d on", l.LastIndex(), k.cut)
	}
	return l, err
}
