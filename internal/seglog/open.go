package seglog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/oncemq/oncemq/internal/batch"
)

// OpenOptions say what is known of the log besides its files.
type OpenOptions struct {
	// Floor is the last durable mark that was kept. Zero, or one below the first entry, means that none is known.
	Floor Floor
	// From is the first index of the segment from which on everything is read, checked and visited; 0: all segments.
	// What is before is known to have been on disk when that segment was begun (L4), and is opened only.
	From Index
	// SameBoot says that the machine has been up since the log was last written to: then all that was written is in
	// the files, and only a last, interrupted write can have left a part of an entry.
	SameBoot bool
	// Visit is called for each entry that is read, in order, of a batch with its header and the first batch.HeaderSize
	// bytes as Data, of a frame with the whole payload. Data is valid during the call only. An error ends Open. When Open
	// finds damage later, the calls so far were for nothing.
	Visit func(Index, Entry, batch.Header) error
}

// Report says what Open found and did.
type Report struct {
	Entries int // that were read: all from OpenOptions.From on
	// CutBytes is the length of the bad end that was cut off, CutFile where it was copied to. There is no copy when it
	// was a part of one entry: after the end of the process alone, when the file ends inside it and the index before it.
	CutBytes int64
	CutFile  string
	// Indexes are the names of the index files that were missing, or did not agree with the log, and were made anew.
	Indexes []string
	// Rewritten is the number of bytes above the floor that were written again. 0: the log was closed with
	// everything on disk, and the floor says so.
	Rewritten int64
}

// Open opens a log and reads all of it from OpenOptions.From on, checksums included. Damage is a *DamageError, a file
// of a newer version a *FormatError, one of somebody else an *IdentityError; all are found before anything is changed
// (L7).
//
//   - Up to the floor, and in all segments but the last, everything must be whole.
//   - The last segment may end badly. When the machine stayed up, an interrupted write is cut off; but an entry that the
//     index names was written whole (L5), and so was what is before it: when such a one is bad, or missing, or a valid
//     one follows a bad one, it was not the end, and is damage. When the machine went down, pages may be missing
//     anywhere above the floor: the log ends at the first entry that is not whole, and what lies behind it is kept in a
//     side file.
//   - The newest segment may have no whole header when nothing follows it: the process ended while making it. It is
//     removed.
//   - Zeros up to the end of a file are an end.
//   - All that is above the floor is written again, where it is, and made durable: after a failed sync reads show
//     what is not on the disk, and syncing alone does not bring it there.
//   - Index files are made to agree with the log.
//   - Of a segment before From the header, the size, the end of the index and the header of the last entry are looked at. When these
//     do not agree, the segment is read and judged like the others, but not visited. Damage elsewhere in it is met by
//     whoever reads it: reads check what they return.
func Open(cfg Config, opt OpenOptions) (*Log, Report, error) {
	cfg, err := cfg.withDefaults()
	r := &recovery{cfg: cfg, opt: opt}
	for _, step := range []func() error{
		r.list, r.readHeaders, r.scan, r.judge, // only reading
		r.removeLeftovers, r.cut, r.repairIndexes, r.rewrite,
	} {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		return nil, r.report, fmt.Errorf("open log %s: %w", cfg.Dir, errors.Join(err, r.close()))
	}
	return &Log{cfg: cfg, segments: r.segments}, r.report, nil
}

// recovery is one run of Open, or of Inspect.
type recovery struct {
	cfg    Config
	opt    OpenOptions
	report Report
	head   window // on a segment of which little is read
	window window
	survey *survey // of Inspect; nil: the first damage ends it all

	segments []*segment
	full     int      // number of the first segment that is read whole
	halfMade *segment // the newest, when its header is not whole
	leftover []string // names of files that nothing belongs to

	headless   map[Index]*DamageError // segments without a good header; Inspect goes on without them
	wrongIndex map[Index]bool         // segments whose index file does not agree with the log
	floorMet   bool                   // the floor is the end of an entry or of a header
	bad        error                  // why the last segment does not end with its last valid entry
}

// found reports damage. The error ends an Open; there is none when Inspect goes on behind it.
func (r *recovery) found(f Finding) error {
	if r.survey == nil {
		return &DamageError{File: f.File, Position: f.Position, Detail: f.Detail}
	}
	r.survey.findings = append(r.survey.findings, f)
	return nil
}

// close closes all files.
func (r *recovery) close() error {
	var errs []error
	for _, s := range r.segments {
		errs = append(errs, s.close())
	}
	if r.halfMade != nil {
		errs = append(errs, r.halfMade.close())
	}
	return errors.Join(errs...)
}

// list finds the files of the log.
func (r *recovery) list() error {
	names, err := r.cfg.FS.List(r.cfg.Dir)
	if err != nil {
		return fmt.Errorf("list directory: %w", err)
	}
	r.wrongIndex, r.headless = map[Index]bool{}, map[Index]*DamageError{}
	exists := map[Index]bool{}
	for _, name := range names {
		isLog := strings.HasSuffix(name, logSuffix)
		if !isLog && !strings.HasSuffix(name, indexSuffix) {
			continue
		}
		first, ok := parseName(name, name[len(name)-len(logSuffix):])
		switch {
		case !ok:
			f := Finding{File: filepath.Join(r.cfg.Dir, name), Offset: -1, Detail: "no file of a log has this name"}
			if err := r.found(f); err != nil {
				return err
			}
		case isLog:
			exists[first] = true
			// Names have equal length, so that they came in the order of the indexes.
			r.segments = append(r.segments, newSegment(r.cfg.Dir, place{index: first}))
		}
	}
	for _, name := range names {
		first, ok := parseName(name, indexSuffix)
		if ok && !exists[first] || strings.HasSuffix(name, sideSuffix+unfinishedSuffix) {
			r.leftover = append(r.leftover, name)
		}
	}
	return r.findFirst()
}

// findFirst finds the segment that is the first to be read whole.
func (r *recovery) findFirst() error {
	if len(r.segments) == 0 {
		return r.found(Finding{File: r.cfg.Dir, Offset: -1, Detail: "the log has no segment"})
	}
	if r.opt.From == 0 {
		return nil
	}
	k := slices.IndexFunc(r.segments, func(s *segment) bool { return s.first == r.opt.From })
	r.full = max(k, 0)
	if k < 0 {
		return r.found(Finding{
			File: segmentName(r.cfg.Dir, r.opt.From, logSuffix), Offset: -1,
			Detail: "the segment is missing, from which on the log is to be read",
		})
	}
	return nil
}

// readHeaders opens the segments and their index files, and reads the header frames.
func (r *recovery) readHeaders() error {
	for k, s := range r.segments {
		if err := r.openFiles(s); err != nil {
			return err
		}
		err := r.readHeader(s)
		if isBad(err) && k > r.full && k == len(r.segments)-1 {
			if err = r.checkHalfMade(s, err); err == nil {
				r.segments, r.halfMade = r.segments[:k], s
			}
		}
		err = s.located(0, err)
		if damage, ok := errors.AsType[*DamageError](err); ok && r.survey != nil {
			r.headless[s.first], err = damage, nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// openFiles opens the files of a segment, its index only when there is one, and looks at it through r.head.
func (r *recovery) openFiles(s *segment) error {
	file, err := r.cfg.FS.Open(s.name)
	if err != nil {
		return fmt.Errorf("open segment: %w", err)
	}
	s.file = file
	idx, err := r.cfg.FS.Open(segmentName(r.cfg.Dir, s.first, indexSuffix))
	switch {
	case err == nil:
		s.idx = idx
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("open index: %w", err)
	}
	if err := r.head.open(file, headBytes); err != nil {
		return fmt.Errorf("find size of segment: %w", err)
	}
	return nil
}

func isBad(err error) bool {
	_, ok := err.(badEntry)
	return ok
}

// readHeader reads the header frame of the segment in r.head.
func (r *recovery) readHeader(s *segment) error {
	b, err := candidate(&r.head, 0)
	if err != nil {
		return err
	}
	id, at, err := parseHeader(b)
	switch {
	case err != nil:
		return err
	case id != r.cfg.Identity:
		return &IdentityError{File: s.name, Want: r.cfg.Identity, Got: id}
	case at.index != s.first:
		return s.damage(0, fmt.Sprintf("the header names index %d as the first one", at.index))
	}
	s.begin(at)
	return nil
}

// checkHalfMade returns nil when the newest segment, in r.head, has nothing but zeros behind the place of its header,
// and its index nothing at all. A header is durable before the first entry is written (L3): one that is not whole,
// before anything, is damaged.
func (r *recovery) checkHalfMade(s *segment, bad error) error {
	zeros, err := r.head.zerosFrom(headerSize)
	indexed := int64(0)
	if err == nil && s.idx != nil {
		indexed, err = s.idx.Size()
	}
	if err == nil && (!zeros || indexed > 0) {
		err = s.damage(0, fmt.Sprintf("%v, but it was whole when what follows it, or its index, was written", bad))
	}
	return err
}
