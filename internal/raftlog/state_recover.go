package raftlog

import (
	"bytes"
	"errors"
	"fmt"
)

// StateDamageError says that a state file cannot be believed: a vote may have been lost, so the node must not start.
type StateDamageError struct {
	File string
	// Position is the byte at which reading ended.
	Position int64
	Detail   string
}

func (e *StateDamageError) Error() string {
	return fmt.Sprintf("state file %s is damaged at byte %d: %s", e.File, e.Position, e.Detail)
}

// NewerFormatError says that a state file or a base snapshot holds something that only a later version of OnceMQ
// understands.
type NewerFormatError struct {
	File     string
	Position int64
	Detail   string
}

func (e *NewerFormatError) Error() string {
	return fmt.Sprintf("%s needs a newer version of oncemq, at byte %d: %s", e.File, e.Position, e.Detail)
}

// recovery is what reading a state file found.
type recovery struct {
	table *stateTable
	last  link   // of the last valid record; durable is the highest that any record names
	sum   uint32 // CRC of the last valid record
	end   int64  // where the next record goes
	// suspect is where the records begin of which the file does not prove that they were on disk: they may be in
	// the page cache only, in spite of a sync that failed.
	suspect int64
	cut     int64 // bytes of the torn tail behind end, zeros at the file's end not counted
}

// recoverState reads the content b of a state file, whose length is a multiple of 8. sameBoot decides from the table
// whether the machine has been up since the file was written.
//
// The valid records from the beginning on, chained by sequence and CRC, are the state. The question is what a bad
// record behind them means. A process that dies leaves at most its last write unfinished, so valid records behind a
// bad one are damage. A machine that dies loses pages of what was not synced in any order: of two writes the later one
// may be left alone, and that is no damage, for nobody was promised either of them. But a sync divides what it
// promised from what comes later, and each record says what was durable when it was written. So after a machine
// crash it is damage when any record, before or behind the bad one, says that the missing one was durable.
func recoverState(file string, b []byte, sameBoot func(*stateTable) bool) (recovery, error) {
	r := recovery{table: newStateTable()}
	starts, err := r.readChain(file, b)
	if err != nil {
		return r, err
	}
	missing := r.last.sequence + 1
	behind, durable := searchRecords(b[r.end:], missing)
	r.last.durable = max(r.last.durable, durable)
	if r.last.durable >= missing {
		detail := fmt.Sprintf("record %d was on disk and is not valid", missing)
		return r, &StateDamageError{File: file, Position: r.end, Detail: detail}
	}
	if behind && sameBoot(r.table) {
		detail := fmt.Sprintf("record %d is not valid, but one behind it is, and the machine was not down", missing)
		return r, &StateDamageError{File: file, Position: r.end, Detail: detail}
	}
	r.suspect = r.end
	if unproven := r.last.sequence - r.last.durable; unproven <= uint64(len(starts)) && unproven > 0 {
		r.suspect = starts[len(starts)-int(unproven)]
	}
	r.cut = int64(len(bytes.TrimRight(b[r.end:], "\x00")))
	return r, nil
}

// readChain applies the valid records from the beginning of b on and returns where each begins.
func (r *recovery) readChain(file string, b []byte) (starts []int64, err error) {
	for r.end < int64(len(b)) {
		at, payload, sum, size, ok := readRecord(b[r.end:])
		first := r.end == 0
		if !ok || first && at.previous != 0 || !first && (at.sequence != r.last.sequence+1 || at.previous != r.sum) {
			break
		}
		record, err := parsePayload(payload)
		if err == nil && first != (record.recordType == recordNode) {
			err = errors.New("the first record, and only that, must be a node record")
		}
		if err == nil && at.durable < r.last.durable {
			err = fmt.Errorf("the durable sequence falls from %d to %d", r.last.durable, at.durable)
		}
		if err == nil {
			err = r.table.apply(record, at.sequence)
		}
		if newer, ok := errors.AsType[*newerError](err); ok {
			return nil, &NewerFormatError{File: file, Position: r.end, Detail: newer.detail}
		}
		if err != nil {
			return nil, &StateDamageError{File: file, Position: r.end, Detail: err.Error()}
		}
		starts = append(starts, r.end)
		r.last, r.sum, r.end = at, sum, r.end+int64(size)
	}
	if len(starts) == 0 {
		return nil, &StateDamageError{File: file, Detail: "the first record is not valid"}
	}
	return starts, nil
}

// searchRecords looks at each multiple of 8 in b for valid records with a sequence from the given one on. durable is
// the highest that they say was durable.
func searchRecords(b []byte, from uint64) (found bool, durable uint64) {
	for pos := 0; pos < len(b); {
		at, _, _, size, ok := readRecord(b[pos:])
		if !ok {
			pos += stateAlign
			continue
		}
		if at.sequence >= from {
			found, durable = true, max(durable, at.durable)
		}
		pos += size
	}
	return found, durable
}
