package seglog

import (
	"errors"
	"fmt"
)

var (
	// ErrOutOfRange: the log holds no such index or offset.
	ErrOutOfRange = errors.New("outside of the log")
	// ErrSync: a sync has failed. What was written since the last one may be lost although it can be read, and no later
	// sync can tell (L8): the process must end and open the log anew. A TruncateSuffix that did not come to its end is
	// the same. Errors that are not ErrSync left the log as it was, and the call may be repeated.
	ErrSync = errors.New("written data may not be on disk")
)

// errLate: a segment that a read was shown is not in the log any more.
var errLate = fmt.Errorf("removed meanwhile: %w", ErrOutOfRange)

// DamageError says that stored data is not what was stored there. No segment was changed.
type DamageError struct {
	File     string
	Position int64 // in bytes, where the damage begins
	Detail   string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("%s is damaged at byte %d: %s", e.File, e.Position, e.Detail)
}

// FormatError says that a file was written by a newer version, and that this one cannot read it. Nothing was changed.
type FormatError struct {
	File     string
	Position int64
	Detail   string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s has a newer format at byte %d: %s; use the version that wrote it", e.File, e.Position, e.Detail)
}

// IdentityError says that a segment belongs to another cluster, group or replica than the one that it lies
// with. Nothing was changed.
type IdentityError struct {
	File      string
	Want, Got Identity
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("%s belongs to %v, not to %v", e.File, e.Got, e.Want)
}

// String names all parts, as they stand in the header frame.
func (i Identity) String() string {
	return fmt.Sprintf("cluster %x group %d replica %d/%d topic %x partition %d",
		i.Cluster, i.Group, i.Replica>>32, uint32(i.Replica), i.Topic, i.Partition)
}

// badEntry is why bytes are no valid entry.
type badEntry string

func (b badEntry) Error() string { return string(b) }
