package replica

import (
	"errors"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/raftlog"
)

// storage is the log as Raft sees it. Raft panics when its storage fails; storage remembers why, so that the panic of a
// file that cannot be read can be told from a bug.
type storage struct {
	*raftlog.Log
	failed error
}

// Entries implements raft.Storage.
func (s *storage) Entries(lo, hi, maxSize uint64) ([]*pb.Entry, error) {
	entries, err := s.Log.Entries(lo, hi, maxSize)
	return entries, s.note(err)
}

// Term implements raft.Storage.
func (s *storage) Term(i uint64) (uint64, error) {
	term, err := s.Log.Term(i)
	return term, s.note(err)
}

// Snapshot implements raft.Storage.
func (s *storage) Snapshot() (*pb.Snapshot, error) {
	snapshot, err := s.Log.Snapshot()
	return snapshot, s.note(err)
}

// note remembers an error that Raft does not expect.
func (s *storage) note(err error) error {
	if err != nil && s.failed == nil && !errors.Is(err, raft.ErrCompacted) && !errors.Is(err, raft.ErrUnavailable) {
		s.failed = err
	}
	return err
}

// guard makes a call of Raft and returns its error, or that of the storage. After one of the storage Raft's state is good
// for nothing, and no further call is made.
func (s *storage) guard(call func() error) (err error) {
	if s.failed != nil {
		return s.failed
	}
	defer func() {
		if s.failed == nil {
			return // a panic goes on
		}
		recover()
		err = s.failed
	}()
	return call()
}
