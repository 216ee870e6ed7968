package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
)

// mustRewrite says whether so little of the file is live that it is to be written anew. Called with mu held.
func (s *StateFile) mustRewrite() bool {
	return s.end >= max(stateRewriteMin, 4*s.table.live, s.postponed)
}

// rewrite replaces the file by one that holds only the live records, and everything is durable then. Called with mu
// held, which it keeps: a record appended meanwhile would be lost with the old file. The others wait for the time of two
// syncs, once per three live sizes written. On an error, which stays, the old file has all that was written. When there is
// no room, the old file goes on, and the next attempt is made when it has grown.
func (s *StateFile) rewrite() {
	old, oldName := s.file, s.name
	err := s.writeGeneration(s.generation + 1)
	if errors.Is(err, ErrFull) {
		s.postponed = s.end + stateRewriteMin
		return
	}
	if err != nil {
		s.fail("rewrite", err)
		return
	}
	if err := errors.Join(old.Close(), s.fs.Remove(oldName)); err != nil {
		s.fail("rewrite", fmt.Errorf("remove %s: %w", oldName, err))
	}
}

// writeGeneration writes the table into a new file, durable with its name on return, and makes it the current one. The
// records go on with the sequence; those that were not written yet are among them. As the file has its final name only
// when it is whole, each of them may say that all of them are durable.
func (s *StateFile) writeGeneration(generation uint64) error {
	records := s.table.records()
	next := link{sequence: s.written, durable: s.written + uint64(len(records))}
	table := newStateTable() // anew, as unfinished intents have other sequences
	var buf []byte
	for _, r := range records {
		next.sequence++
		if err := table.apply(r, next.sequence); err != nil {
			invariant.Bug("rewriting state file %s: %v", s.name, err)
		}
		buf, next.previous = appendRecord(buf, next, r)
	}
	name := filepath.Join(s.dir, stateName(generation))
	file, err := writeDurable(s.fs, s.dir, name, buf)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	s.file, s.name, s.generation = file, name, generation
	s.table, s.end, s.sum = table, int64(len(buf)), next.previous
	s.written, s.durable = next.sequence, next.sequence
	s.buf, s.postponed = s.buf[:0], 0
	return nil
}

// writeDurable makes a file with a content in one step: after a crash it is there whole or not at all, and after a
// return without error it is there. It replaces a file of that name, and what an earlier attempt has left. dir is the
// directory that name lies in. After ErrFull nothing has changed. seglog.ErrSync: the directory could not be synced, and no
// later sync tells what of it is on disk.
func writeDurable(fsys vfs.FS, dir, name string, content []byte) (vfs.File, error) {
	temporary := name + temporarySuffix
	if err := fsys.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	file, err := fsys.Create(temporary)
	if err != nil {
		return nil, asFull(err)
	}
	err = file.WriteVAt([][]byte{content}, 0)
	if err == nil {
		err = file.SyncData()
	}
	if err == nil {
		err = fsys.Rename(temporary, name)
	}
	if err != nil {
		// Nothing uses the file yet, so a sync that found no room is no worse than a write. What a file system that
		// is full still holds of the attempt is room that others need; else it goes with the next attempt.
		err = errors.Join(asFull(err), file.Close())
		if errors.Is(err, ErrFull) {
			err = errors.Join(err, fsys.Remove(temporary))
		}
		return nil, err
	}
	if err := fsys.SyncDir(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", seglog.ErrSync, err), file.Close())
	}
	return file, nil
}
