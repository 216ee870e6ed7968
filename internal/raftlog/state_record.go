package raftlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/oncemq/oncemq/internal/seglog"
)

// A record of the state file, big-endian, padded with zeros to a multiple of 8 bytes:
//
//	 0+4  "OMS1"
//	 4+4  payload length
//	 8+8  sequence: one more than the record before it, over all generations
//	16+8  durable: when a record stands in a file that has its final name, every record up to this sequence was on disk
//	24+4  CRC of the record before it, 0 for the first of a file
//	28+4  CRC-32C of 0-27 and the payload
//	32+n  payload: type u8, version u8, group u64, body
const (
	stateMagic      = "OMS1"
	stateHeaderSize = 32
	stateAlign      = 8
	statePrefixSize = 10   // type, version and group
	statePayloadMax = 1024 // far above every type, so that a lying length costs nothing
	stateVersion    = 1    // of every type's body
	stateFormat     = 1    // of the file
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// recordType tells what the body of a state record is.
type recordType uint8

const (
	recordNode    recordType = 1 // always the first of a file, and only there
	recordBoot    recordType = 2
	recordReplica recordType = 3
	recordVote    recordType = 4
	recordCommit  recordType = 5
	recordMark    recordType = 6
	recordIntent  recordType = 7
	recordDone    recordType = 8
)

// intent is what a recordIntent is about to do with a group's files.
type intent uint8

const (
	intentTruncate intent = 1 // remove the entries from index on
	intentInstall  intent = 2 // begin the log anew behind the entry index of a term, with the base snapshot that stands there
	intentDelete   intent = 3 // remove all files; the record of the replica that is gone ends it
	intentGiveUp   intent = 4 // go on without the entries from index on, which are damaged
)

// The states in the body of a recordReplica.
const (
	replicaLive uint8 = 1
	replicaGone uint8 = 2
)

// stateRecord is one record. Which fields mean something depends on the type.
type stateRecord struct {
	recordType recordType
	group      seglog.GroupID

	format, oldestReader uint16       // node
	identity             NodeIdentity // node
	boot                 [16]byte     // boot
	replica              seglog.ReplicaID
	life                 uint8        // replica: replicaLive or replicaGone
	term, vote           uint64       // vote; intent has a term
	index                seglog.Index // commit, mark, intent
	segment              seglog.Index // mark
	position             uint32       // mark
	intent               intent       // intent
	intentSequence       uint64       // done
}

// link is what a record says of its place in the file.
type link struct {
	sequence uint64
	durable  uint64
	previous uint32 // CRC of the record before it
}

// appendRecord appends r in its final form and returns the CRC that the next record carries.
func appendRecord(dst []byte, at link, r stateRecord) ([]byte, uint32) {
	start := len(dst)
	dst = append(dst, stateMagic...)
	dst = binary.BigEndian.AppendUint32(dst, 0) // length, set below
	dst = binary.BigEndian.AppendUint64(dst, at.sequence)
	dst = binary.BigEndian.AppendUint64(dst, at.durable)
	dst = binary.BigEndian.AppendUint32(dst, at.previous)
	dst = binary.BigEndian.AppendUint32(dst, 0) // CRC, set below
	dst = appendPayload(dst, r)
	record := dst[start:]
	binary.BigEndian.PutUint32(record[4:], uint32(len(record)-stateHeaderSize))
	sum := recordCRC(record)
	binary.BigEndian.PutUint32(record[28:], sum)
	for len(dst)%stateAlign != start%stateAlign {
		dst = append(dst, 0)
	}
	return dst, sum
}

func recordCRC(record []byte) uint32 {
	sum := crc32.Update(0, castagnoli, record[:28])
	return crc32.Update(sum, castagnoli, record[stateHeaderSize:])
}

func appendPayload(dst []byte, r stateRecord) []byte {
	be := binary.BigEndian
	dst = append(dst, byte(r.recordType), stateVersion)
	dst = be.AppendUint64(dst, uint64(r.group))
	switch r.recordType {
	case recordNode:
		dst = be.AppendUint16(dst, r.format)
		dst = be.AppendUint16(dst, r.oldestReader)
		dst = append(dst, r.identity.Cluster[:]...)
		dst = be.AppendUint32(dst, r.identity.Node)
	case recordBoot:
		dst = append(dst, r.boot[:]...)
	case recordReplica:
		dst = be.AppendUint64(dst, uint64(r.replica))
		dst = append(dst, r.life)
	case recordVote:
		dst = be.AppendUint64(dst, r.term)
		dst = be.AppendUint64(dst, r.vote)
	case recordCommit:
		dst = be.AppendUint64(dst, uint64(r.index))
	case recordMark:
		dst = be.AppendUint64(dst, uint64(r.index))
		dst = be.AppendUint64(dst, uint64(r.segment))
		dst = be.AppendUint32(dst, r.position)
	case recordIntent:
		dst = append(dst, byte(r.intent))
		dst = be.AppendUint64(dst, uint64(r.index))
		dst = be.AppendUint64(dst, r.term)
	case recordDone:
		dst = be.AppendUint64(dst, r.intentSequence)
	}
	return dst
}

// aligned rounds a size up to where the next record begins.
func aligned(size int) int { return (size + stateAlign - 1) / stateAlign * stateAlign }

// recordSize returns the bytes that a record of a known type takes up.
func recordSize(t recordType) int64 {
	return int64(aligned(stateHeaderSize + statePrefixSize + bodySizes[t]))
}

// readRecord returns the record at the beginning of b, if one with a right CRC stands there: its place, its payload
// (aliasing b), its CRC and the bytes that it takes up with its padding. The padding is not looked at. b ends at a
// multiple of 8.
func readRecord(b []byte) (at link, payload []byte, sum uint32, size int, ok bool) {
	if len(b) < stateHeaderSize+statePrefixSize || string(b[:4]) != stateMagic {
		return link{}, nil, 0, 0, false
	}
	length := binary.BigEndian.Uint32(b[4:])
	if length < statePrefixSize || length > statePayloadMax || int(length) > len(b)-stateHeaderSize {
		return link{}, nil, 0, 0, false
	}
	end := stateHeaderSize + int(length)
	sum = binary.BigEndian.Uint32(b[28:])
	if recordCRC(b[:end]) != sum {
		return link{}, nil, 0, 0, false
	}
	at = link{
		sequence: binary.BigEndian.Uint64(b[8:]),
		durable:  binary.BigEndian.Uint64(b[16:]),
		previous: binary.BigEndian.Uint32(b[24:]),
	}
	return at, b[stateHeaderSize:end], sum, aligned(end), true
}

// newerError says what makes a record unreadable for this version. Its coordinate is added by the caller.
type newerError struct{ detail string }

func (e *newerError) Error() string { return e.detail }

// parsePayload reads what appendPayload wrote. A *newerError means that a later version wrote it; any other error
// that it is wrong, although its CRC is right.
func parsePayload(p []byte) (stateRecord, error) {
	be := binary.BigEndian
	r := stateRecord{recordType: recordType(p[0]), group: seglog.GroupID(be.Uint64(p[2:]))}
	size, known := bodySizes[r.recordType]
	if !known {
		return r, &newerError{fmt.Sprintf("unknown record type %d", r.recordType)}
	}
	if p[1] != stateVersion {
		return r, &newerError{fmt.Sprintf("record type %d has version %d, known is %d", r.recordType, p[1], stateVersion)}
	}
	b := p[statePrefixSize:]
	if len(b) != size {
		return r, fmt.Errorf("record type %d has a body of %d bytes, expected %d", r.recordType, len(b), size)
	}
	switch r.recordType {
	case recordNode:
		r.format, r.oldestReader = be.Uint16(b), be.Uint16(b[2:])
		copy(r.identity.Cluster[:], b[4:])
		r.identity.Node = be.Uint32(b[20:])
	case recordBoot:
		copy(r.boot[:], b)
	case recordReplica:
		r.replica, r.life = seglog.ReplicaID(be.Uint64(b)), b[8]
	case recordVote:
		r.term, r.vote = be.Uint64(b), be.Uint64(b[8:])
	case recordCommit:
		r.index = seglog.Index(be.Uint64(b))
	case recordMark:
		r.index, r.segment = seglog.Index(be.Uint64(b)), seglog.Index(be.Uint64(b[8:]))
		r.position = be.Uint32(b[16:])
	case recordIntent:
		r.intent, r.index, r.term = intent(b[0]), seglog.Index(be.Uint64(b[1:])), be.Uint64(b[9:])
	case recordDone:
		r.intentSequence = be.Uint64(b)
	}
	return r, nil
}

// bodySizes has the length of each type's body in bytes.
var bodySizes = map[recordType]int{
	recordNode:    24,
	recordBoot:    16,
	recordReplica: 9,
	recordVote:    16,
	recordCommit:  8,
	recordMark:    20,
	recordIntent:  17,
	recordDone:    8,
}
