package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strconv"
	"strings"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
)

// A base snapshot, big-endian:
//
//	 0+8   "OMQBASE1"
//	 8+4   total length - 12
//	12+4   CRC-32C of everything else
//	16+2   format
//	18+1   1 partition, 2 raft0
//	19+1   auto_leave
//	20+16  cluster
//	36+8   group
//	44+8   index
//	52+4   term
//	56     voters, learners, outgoing, learners_next: each u16 count, u64 replica ids ascending
//	then   log start i64, next offset i64, body
const (
	baseMagic      = "OMQBASE1"
	baseFormat     = 1
	baseHeaderSize = 56
	baseSuffix     = ".base"
	// baseBytesMax is the longest base snapshot, in bytes: far above the state of the 100,000 producers that a
	// partition may remember, or of the largest cluster.
	baseBytesMax  = 1 << 30
	basePartition = 1
	baseRaft0     = 2
)

// Members is a group's membership. Ids are replica ids, strictly ascending; outside of a membership change only Voters
// has any, and it always has.
type Members struct {
	Voters, Learners, Outgoing, LearnersNext []uint64
	// AutoLeave: the leader is to end the joint state by itself.
	AutoLeave bool
}

func (m Members) lists() [4][]uint64 {
	return [4][]uint64{m.Voters, m.Learners, m.Outgoing, m.LearnersNext}
}

// confState returns the membership in Raft's form. It shares the lists.
func (m Members) confState() *pb.ConfState {
	return &pb.ConfState{
		Voters:         m.Voters,
		Learners:       m.Learners,
		VotersOutgoing: m.Outgoing,
		LearnersNext:   m.LearnersNext,
		AutoLeave:      new(m.AutoLeave),
	}
}

// Base is a base snapshot: the state of a group just behind the entry Index, which need not be in the log any more.
type Base struct {
	Cluster [16]byte
	Group   seglog.GroupID
	Index   seglog.Index // from 1 upwards
	Term    batch.Term   // of the entry Index
	Members Members
	// LogStart is the first offset that may be read, NextOffset the one of the first record behind Index. Both are
	// 0 for raft0.
	LogStart, NextOffset batch.Offset
	// Body is the canonical bytes of the state machine: the producers of a partition, or raft0's metadata.
	Body []byte
}

// BaseDamageError says that a base snapshot cannot be read, and with it the group cannot be opened.
type BaseDamageError struct {
	Path   string
	Detail string
}

func (e *BaseDamageError) Error() string {
	return fmt.Sprintf("base snapshot %s is damaged: %s", e.Path, e.Detail)
}

// check returns what is wrong with the values of a base.
func (b Base) check() error {
	if b.Index == 0 || b.Index+1 == 0 || b.LogStart < 0 || b.NextOffset < b.LogStart {
		return fmt.Errorf("index %d, log start %d, next offset %d", b.Index, b.LogStart, b.NextOffset)
	}
	if len(b.Members.Voters) == 0 {
		return errors.New("no voters")
	}
	for _, ids := range b.Members.lists() {
		previous := uint64(0)
		for _, id := range ids {
			if id <= previous {
				return fmt.Errorf("replica ids are not ascending: %d behind %d", id, previous)
			}
			previous = id
		}
		if len(ids) > 1<<16-1 {
			return fmt.Errorf("%d replica ids in one list", len(ids))
		}
	}
	return nil
}

func (b Base) kind() byte {
	if b.Group == 0 {
		return baseRaft0
	}
	return basePartition
}

// AppendTo appends the bytes of the base snapshot. It is a bug if they would be refused by DecodeBase.
func (b Base) AppendTo(dst []byte) []byte {
	if err := b.check(); err != nil {
		invariant.Bug("base snapshot of group %d: %v", b.Group, err)
	}
	be := binary.BigEndian
	start := len(dst)
	dst = append(dst, baseMagic...)
	dst = be.AppendUint64(dst, 0) // length and CRC, set below
	dst = be.AppendUint16(dst, baseFormat)
	dst = append(dst, b.kind(), 0)
	if b.Members.AutoLeave {
		dst[len(dst)-1] = 1
	}
	dst = append(dst, b.Cluster[:]...)
	dst = be.AppendUint64(dst, uint64(b.Group))
	dst = be.AppendUint64(dst, uint64(b.Index))
	dst = be.AppendUint32(dst, uint32(b.Term))
	for _, ids := range b.Members.lists() {
		dst = be.AppendUint16(dst, uint16(len(ids)))
		for _, id := range ids {
			dst = be.AppendUint64(dst, id)
		}
	}
	dst = be.AppendUint64(dst, uint64(b.LogStart))
	dst = be.AppendUint64(dst, uint64(b.NextOffset))
	dst = append(dst, b.Body...)
	made := dst[start:]
	invariant.Check(len(made) <= baseBytesMax, "base snapshot of group %d has %d bytes", b.Group, len(made))
	be.PutUint32(made[8:], uint32(len(made)-12))
	be.PutUint32(made[12:], baseCRC(made))
	return dst
}

func baseCRC(b []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, b[:12]), castagnoli, b[16:])
}

// DecodeBase reads what AppendTo wrote; the body aliases b. path goes into the errors: *BaseDamageError, or
// *NewerFormatError.
func DecodeBase(path string, b []byte) (Base, error) {
	be := binary.BigEndian
	damaged := func(format string, args ...any) (Base, error) {
		return Base{}, &BaseDamageError{Path: path, Detail: fmt.Sprintf(format, args...)}
	}
	if len(b) < baseHeaderSize || string(b[:8]) != baseMagic {
		return damaged("it does not begin with %q", baseMagic)
	}
	if length := be.Uint32(b[8:]); int64(length) != int64(len(b))-12 {
		return damaged("it has %d bytes and should have %d", len(b), int64(length)+12)
	}
	if have, want := baseCRC(b), be.Uint32(b[12:]); have != want {
		return damaged("its CRC is %08x and should be %08x", have, want)
	}
	if format := be.Uint16(b[16:]); format != baseFormat {
		detail := fmt.Sprintf("base snapshot has format %d, known is %d", format, baseFormat)
		return Base{}, &NewerFormatError{File: path, Position: 16, Detail: detail}
	}
	base := Base{
		Group: seglog.GroupID(be.Uint64(b[36:])),
		Index: seglog.Index(be.Uint64(b[44:])),
		Term:  batch.Term(be.Uint32(b[52:])),
	}
	copy(base.Cluster[:], b[20:])
	if b[18] != base.kind() || b[19] > 1 {
		return damaged("kind %d with auto_leave %d for group %d", b[18], b[19], base.Group)
	}
	base.Members.AutoLeave = b[19] == 1
	rest := b[baseHeaderSize:]
	for _, ids := range []*[]uint64{
		&base.Members.Voters, &base.Members.Learners, &base.Members.Outgoing, &base.Members.LearnersNext,
	} {
		var ok bool
		if *ids, rest, ok = readIDs(rest); !ok {
			return damaged("its membership is cut off")
		}
	}
	if len(rest) < 16 {
		return damaged("its offsets are cut off")
	}
	base.LogStart, base.NextOffset = batch.Offset(be.Uint64(rest)), batch.Offset(be.Uint64(rest[8:]))
	base.Body = rest[16:]
	if err := base.check(); err != nil {
		return damaged("%v", err)
	}
	return base, nil
}

// readIDs reads one list of replica ids from the beginning of b.
func readIDs(b []byte) (ids []uint64, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	n := int(binary.BigEndian.Uint16(b))
	if b = b[2:]; len(b) < 8*n {
		return nil, nil, false
	}
	for i := range n {
		ids = append(ids, binary.BigEndian.Uint64(b[8*i:]))
	}
	return ids, b[8*n:], true
}

// basePath names the base snapshot at an index after the first entry behind it.
func basePath(dir string, index seglog.Index) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", uint64(index)+1, baseSuffix))
}

// WriteBase writes a base snapshot into the directory of its group, durable with its name on return. One that is there
// already is replaced. After a crash it is there whole or not at all.
func WriteBase(fsys vfs.FS, dir string, base Base) error {
	path := basePath(dir, base.Index)
	file, err := writeDurable(fsys, dir, path, base.AppendTo(nil))
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		return fmt.Errorf("write base snapshot %s: %w", path, err)
	}
	return nil
}

// ReadBase reads a base snapshot and checks that it is the one that its name says. Errors: *BaseDamageError,
// *NewerFormatError, and those of the file system.
func ReadBase(fsys vfs.FS, path string) (Base, error) {
	file, err := fsys.Open(path)
	if err != nil {
		return Base{}, fmt.Errorf("read base snapshot: %w", err)
	}
	b, err := readBounded(file, path)
	if err = errors.Join(err, file.Close()); err != nil {
		return Base{}, fmt.Errorf("read base snapshot %s: %w", path, err)
	}
	base, err := DecodeBase(path, b)
	if err != nil {
		return Base{}, err
	}
	if index, ok := parseBaseName(filepath.Base(path)); !ok || index != base.Index {
		return Base{}, &BaseDamageError{Path: path, Detail: fmt.Sprintf("it stands at index %d", base.Index)}
	}
	return base, nil
}

func readBounded(file vfs.File, path string) ([]byte, error) {
	size, err := file.Size()
	if err != nil {
		return nil, err
	}
	if size > baseBytesMax {
		return nil, &BaseDamageError{Path: path, Detail: fmt.Sprintf("it has %d bytes", size)}
	}
	b := make([]byte, size)
	if n, err := file.ReadAt(b, 0); n < len(b) {
		return nil, &BaseDamageError{Path: path, Detail: fmt.Sprintf("it cannot be read: %v", err)}
	}
	return b, nil
}

// ListBases returns the indexes of the base snapshots in a group's directory, ascending. Other files are left out.
func ListBases(fsys vfs.FS, dir string) ([]seglog.Index, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, fmt.Errorf("list base snapshots: %w", err)
	}
	var indexes []seglog.Index
	for _, name := range names { // ascending, and so are the indexes: the names have one length
		if index, ok := parseBaseName(name); ok {
			indexes = append(indexes, index)
		}
	}
	return indexes, nil
}

func parseBaseName(name string) (seglog.Index, bool) {
	digits, ok := strings.CutSuffix(name, baseSuffix)
	first, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil || len(digits) != 20 || first < 2 {
		return 0, false
	}
	return seglog.Index(first - 1), true
}
