package raftlog

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
)

const damagedSegment = "groups/b/00000000000000000002.log"

// A leader overwrites the end of a log, and the entries before it are damaged, or cannot be read: the group is given up, by
// itself. Nothing of it is answered, nothing is removed, the other groups go on, and the next start finds it damaged.
func TestDamageEndsOneGroup(t *testing.T) {
	for _, unreadable := range []bool{false, true} {
		mem := newStateFS(t)
		failing := false
		fs := errfs.Wrap(mem, injectEachIf(func(op errfs.Op) error {
			if failing && op.Kind == errfs.OpRead && op.Path == damagedSegment {
				return syscall.EIO
			}
			return nil
		}))
		state := createState(t, fs)
		must(t, newLog(t, mem, state, 1).Close())
		damaged, _, err := OpenGroup(logConfig(fs, state, 1))
		must(t, err)
		healthy := newLog(t, mem, state, 2)
		f := NewFlushers(0, state, fatalIn(t))
		told, other := &collector{}, &collector{}
		w, beside := f.NewWriter(damaged, told), f.NewWriter(healthy, other)
		carry := func(w *Writer, messages ...*pb.Message) {
			for _, m := range messages {
				if m == nil {
					w.Roll()
					continue
				}
				w.log.Staged(m.GetEntries())
				w.Submit(m)
			}
			for f.Step() {
			}
		}
		first := entry(2, 2, nil)
		carry(beside, storageAppend(2, uint64(logReplica), 2, first))
		carry(w, storageAppend(2, uint64(logReplica), 2, first), storageAppend(0, 0, 3, entry(3, 2, storedBatch(0, 2, "a"))), nil,
			storageAppend(0, 0, 4, entry(4, 2, storedBatch(1, 2, "b"))))
		if failing = unreadable; !unreadable {
			file, err := mem.Open(damagedSegment)
			must(t, err)
			must(t, file.WriteVAt([][]byte{{0xff, 0xff}}, seglog.HeaderBytes+20))
			must(t, file.Close())
		}
		carry(w, storageAppend(3, 0, 33, entry(3, 3, nil)))
		_, damage := errors.AsType[*seglog.DamageError](told.failed)
		if !damage || !IsDamage(told.failed) || !slices.Equal(told.answered, []uint64{2, 3, 4}) {
			t.Fatalf("unreadable %t: %v, %v", unreadable, told, told.failed)
		}
		carry(w, storageAppend(4, 0, 34))
		carry(beside, storageAppend(0, 0, 3, entry(3, 2, storedBatch(0, 2, "c"))))
		if !slices.Equal(other.answered, []uint64{2, 3}) || other.failed != nil || len(told.answered) != 3 {
			t.Fatalf("the other group: %v; this one: %v", other, told)
		}
		w.Close()
		f.Close()
		must(t, damaged.Close())
		must(t, healthy.Close())
		failing = false
		l, _, err := OpenGroup(logConfig(mem, state, 1))
		if unreadable { // the disk gives it back: the end is removed
			if must(t, err); l.Segments().LastIndex() != 2 {
				t.Fatalf("the log ends at %d", l.Segments().LastIndex())
			}
			must(t, l.Close())
		} else if _, damage := errors.AsType[*seglog.DamageError](err); !damage {
			t.Fatalf("opened again: %v", err)
		}
	}
}

// A sync or a write that fails is fatal, whatever else is wrong; so is what nobody knows.
func TestIsDamage(t *testing.T) {
	damage := &seglog.DamageError{File: "f"}
	for err, want := range map[error]bool{
		damage: true, &seglog.FormatError{}: true, &BaseDamageError{}: true, errors.Join(errors.New("flush"), damage): true,
		errors.Join(seglog.ErrSync, damage): false, seglog.ErrSync: false, syscall.EIO: false, &StateDamageError{}: false,
	} {
		if IsDamage(err) != want {
			t.Errorf("%v: %t", err, !want)
		}
	}
}
