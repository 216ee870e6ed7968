package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/vfs"
)

const (
	statePrefix     = "state-"
	temporarySuffix = ".tmp"
	// stateBytesMax bounds what opening reads into memory: four times the live size of a million groups.
	stateBytesMax = 1 << 30
)

// StateReport says what OpenState found.
type StateReport struct {
	// SameBoot: the machine has been up since FinishRecovery was last called (or the file was created), so at most
	// the process has crashed since.
	SameBoot bool
	// CutBytes is the length of the torn tail that was cut off: records that a crash left unfinished and nobody was
	// promised.
	CutBytes int64
}

func stateName(generation uint64) string {
	return fmt.Sprintf("%s%016x", statePrefix, generation)
}

// CreateState makes the state file of a node that has none, durable on return. dir exists; boot is the id of the
// machine's present run.
func CreateState(fsys vfs.FS, dir string, id NodeIdentity, boot [16]byte) (*StateFile, error) {
	invariant.Check(id.Node > 0, "node id 0")
	found, err := listState(fsys, dir)
	if err != nil {
		return nil, err
	}
	if len(found.generations) > 0 {
		return nil, fmt.Errorf("create state file in %s: %w", dir, fs.ErrExist)
	}
	if err := removeAll(fsys, dir, found.temporary); err != nil {
		return nil, err
	}
	s := &StateFile{fs: fsys, dir: dir, boot: boot, table: newStateTable()}
	s.turn = sync.NewCond(&s.mu)
	node := stateRecord{recordType: recordNode, format: stateFormat, oldestReader: stateFormat, identity: id}
	if err := s.table.apply(node, 0); err != nil {
		invariant.Bug("new state file: %v", err)
	}
	s.table.boot = boot
	if err := s.writeGeneration(1); err != nil {
		return nil, err
	}
	return s, nil
}

// OpenState opens the newest generation of the state file. What it returns is durable. A torn tail is cut off; older
// generations and unfinished new ones are removed. boot is the id of the machine's present run; FinishRecovery
// records it.
//
// Errors: ErrNoState; *StateDamageError, after which a vote may be lost and the node must not start;
// *NewerFormatError. After these nothing was touched. After ErrFull the call may be repeated.
func OpenState(fsys vfs.FS, dir string, boot [16]byte) (*StateFile, StateReport, error) {
	found, err := listState(fsys, dir)
	if err != nil {
		return nil, StateReport{}, err
	}
	s, read, err := readNewest(fsys, dir, boot, found)
	if err != nil {
		return nil, StateReport{}, err
	}
	err = s.settle(read)
	if err == nil {
		// Before the older ones go: the newest may have got its name just before a crash.
		err = fsys.SyncDir(dir)
	}
	for _, generation := range found.generations[:len(found.generations)-1] {
		found.temporary = append(found.temporary, stateName(generation))
	}
	if err == nil {
		err = removeAll(fsys, dir, found.temporary)
	}
	if err != nil {
		return nil, StateReport{}, errors.Join(err, s.file.Close())
	}
	return s, read.report, nil
}

// ReadState reads what OpenState would open and changes nothing: what it returns answers questions, and every call that
// writes fails. Its Close does nothing. Errors are those of OpenState.
func ReadState(fsys vfs.FS, dir string, boot [16]byte) (*StateFile, StateReport, error) {
	found, err := listState(fsys, dir)
	if err != nil {
		return nil, StateReport{}, err
	}
	s, read, err := readNewest(fsys, dir, boot, found)
	if err != nil {
		return nil, StateReport{}, err
	}
	s.err = errStateReadOnly
	if err := s.file.Close(); err != nil {
		return nil, StateReport{}, fmt.Errorf("close state file: %w", err)
	}
	return s, read.report, nil
}

// stateContent is the content of a state file, as it was found.
type stateContent struct {
	recovery
	report StateReport
	bytes  []byte // with zeros up to a multiple of 8
	size   int64  // of the file
}

// readNewest opens the newest generation and recovers the state from it. It changes nothing.
func readNewest(fsys vfs.FS, dir string, boot [16]byte, found stateFiles) (*StateFile, stateContent, error) {
	if len(found.generations) == 0 {
		return nil, stateContent{}, fmt.Errorf("%s: %w", dir, ErrNoState)
	}
	s := &StateFile{fs: fsys, dir: dir, boot: boot, generation: found.generations[len(found.generations)-1]}
	s.turn = sync.NewCond(&s.mu)
	s.name = filepath.Join(dir, stateName(s.generation))
	file, err := fsys.Open(s.name)
	if err != nil {
		return nil, stateContent{}, fmt.Errorf("open state file: %w", err)
	}
	s.file = file
	read, err := s.read()
	if err != nil {
		return nil, stateContent{}, errors.Join(err, file.Close())
	}
	return s, read, nil
}

// read recovers the state from the open file.
func (s *StateFile) read() (read stateContent, err error) {
	if read.size, err = s.file.Size(); err != nil {
		return read, fmt.Errorf("read state file: %w", err)
	}
	if read.size > stateBytesMax {
		return read, &StateDamageError{File: s.name, Position: stateBytesMax, Detail: "the file is too long"}
	}
	read.bytes = make([]byte, aligned(int(read.size)))
	if n, err := s.file.ReadAt(read.bytes[:read.size], 0); n < int(read.size) {
		return read, fmt.Errorf("read state file: %w", err)
	}
	sameBoot := func(t *stateTable) bool { return t.boot == s.boot }
	if read.recovery, err = recoverState(s.name, read.bytes, sameBoot); err != nil {
		return read, err
	}
	s.table, s.end, s.sum = read.table, read.end, read.sum
	s.written, s.durable = read.last.sequence, read.last.sequence
	read.report = StateReport{SameBoot: sameBoot(read.table), CutBytes: read.cut}
	return read, nil
}

// settle cuts the torn tail and writes the records again of which the file does not prove that they are on disk: when
// a sync failed, the page cache shows bytes that the disk never got, as clean, and no later sync would write them.
func (s *StateFile) settle(r stateContent) error {
	if r.end < r.size {
		// On its own before anything else is written, lest a remainder of the tail comes back behind new records.
		if err := errors.Join(s.file.Truncate(r.end), s.file.SyncData()); err != nil {
			return fmt.Errorf("cut state file at %d: %w", r.end, err)
		}
	}
	if r.suspect == r.end {
		return nil
	}
	if err := s.file.WriteVAt([][]byte{r.bytes[r.suspect:r.end]}, r.suspect); err != nil {
		return fmt.Errorf("write state file again from %d: %w", r.suspect, asFull(err))
	}
	if err := s.file.SyncData(); err != nil {
		return fmt.Errorf("sync state file: %w", err)
	}
	return nil
}

// stateFiles are the names in a directory that belong to a state file.
type stateFiles struct {
	generations []uint64 // ascending
	temporary   []string
}

func listState(fsys vfs.FS, dir string) (stateFiles, error) {
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return stateFiles{}, fmt.Errorf("%s: %w", dir, ErrNoState)
	}
	if err != nil {
		return stateFiles{}, fmt.Errorf("look for state file: %w", err)
	}
	var found stateFiles
	for _, name := range names { // ascending, and so are the generations: the names have one length
		hex, ok := strings.CutPrefix(name, statePrefix)
		if !ok {
			continue
		}
		hex, temporary := strings.CutSuffix(hex, temporarySuffix)
		generation, err := strconv.ParseUint(hex, 16, 64)
		if err != nil || generation == 0 || strings.TrimPrefix(stateName(generation), statePrefix) != hex {
			continue
		}
		if temporary {
			found.temporary = append(found.temporary, name)
		} else {
			found.generations = append(found.generations, generation)
		}
	}
	return found, nil
}

func removeAll(fsys vfs.FS, dir string, names []string) error {
	for _, name := range names {
		if err := fsys.Remove(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove old state file: %w", err)
		}
	}
	return nil
}
