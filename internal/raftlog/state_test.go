package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

const stateDir = "/data"

var (
	testNode = NodeIdentity{Cluster: [16]byte{1, 2, 3}, Node: 7}
	boot1    = [16]byte{0xb1}
	boot2    = [16]byte{0xb2}
)

func newStateFS(t testing.TB) *memfs.FS {
	t.Helper()
	mem := memfs.New()
	must(t, mem.MkdirAll(stateDir))
	must(t, mem.SyncDir("/"))
	return mem
}

func createState(t testing.TB, fsys vfs.FS) *StateFile {
	t.Helper()
	s, err := CreateState(fsys, stateDir, testNode, boot1)
	must(t, err)
	return s
}

func openState(t testing.TB, fsys vfs.FS, boot [16]byte) (*StateFile, StateReport) {
	t.Helper()
	s, report, err := OpenState(fsys, stateDir, boot)
	must(t, err)
	return s, report
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func synced(t testing.TB, s *StateFile) func(StatePosition, error) {
	return func(pos StatePosition, err error) {
		t.Helper()
		must(t, err)
		must(t, s.Sync(pos))
	}
}

// bug runs f and demands that it ends in a failed invariant.
func bug(t *testing.T, name string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if text := fmt.Sprint(recover()); !strings.HasPrefix(text, "BUG: ") {
			t.Errorf("%s: expected a BUG panic, got %s", name, text)
		}
	}()
	f()
}

func wantGroup(t testing.TB, s *StateFile, g seglog.GroupID, want GroupState) {
	t.Helper()
	if got, ok := s.Group(g); !ok || got != want {
		t.Fatalf("group %d: got %+v (known: %t), want %+v", g, got, ok, want)
	}
}

func TestStateComesBack(t *testing.T) {
	mem := newStateFS(t)
	if _, _, err := OpenState(mem, stateDir, boot1); !errors.Is(err, ErrNoState) {
		t.Fatalf("empty directory: %v", err)
	}
	if _, _, err := OpenState(mem, "/nowhere", boot1); !errors.Is(err, ErrNoState) {
		t.Fatalf("no directory: %v", err)
	}
	s := createState(t, mem)
	must(t, s.Birth(4, 70, 1))
	must(t, s.Birth(0, 71, 1))
	synced(t, s)(s.SetVote(4, 2, 70))
	synced(t, s)(s.SetCommit(4, 9))
	mark := seglog.Floor{Index: 8, Segment: 2, Position: 1000}
	synced(t, s)(s.SetMark(4, mark))
	must(t, s.Close())
	if err := s.Sync(1); !errors.Is(err, errStateClosed) {
		t.Fatalf("sync of a closed file: %v", err)
	}
	if err := s.Close(); !errors.Is(err, errStateClosed) {
		t.Fatalf("second close: %v", err)
	}

	if _, err := CreateState(mem, stateDir, testNode, boot1); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("second creation: %v", err)
	}
	s, report := openState(t, mem, boot1)
	if want := (StateReport{SameBoot: true}); report != want {
		t.Fatalf("report %+v", report)
	}
	if got := s.Node(); got != testNode {
		t.Fatalf("node %+v", got)
	}
	if got := fmt.Sprint(s.Groups()); got != "[0 4]" {
		t.Fatalf("groups %s", got)
	}
	wantGroup(t, s, 0, GroupState{Replica: 71, Live: true, Term: 1})
	wantGroup(t, s, 4, GroupState{Replica: 70, Live: true, Term: 2, Vote: 70, Commit: 9, Mark: mark})
	if _, ok := s.Group(5); ok {
		t.Fatal("group 5 is known")
	}
}

func TestStateNeverGoesBack(t *testing.T) {
	s := createState(t, newStateFS(t))
	must(t, s.Birth(1, 70, 1))
	synced(t, s)(s.SetVote(1, 5, 70))
	synced(t, s)(s.SetMark(1, seglog.Floor{Index: 10, Segment: 2, Position: 3}))
	synced(t, s)(s.SetCommit(1, 10))

	// Lower bounds that are no news write nothing.
	end := s.end
	synced(t, s)(s.SetMark(1, seglog.Floor{Index: 10, Segment: 11, Position: 100}))
	synced(t, s)(s.SetMark(1, seglog.Floor{Index: 9, Segment: 2, Position: 2}))
	synced(t, s)(s.SetCommit(1, 3))
	synced(t, s)(s.SetVote(1, 5, 70))
	if s.end != end {
		t.Fatalf("%d bytes written for no news", s.end-end)
	}

	bug(t, "older term", func() { _, _ = s.SetVote(1, 4, 0) })
	s = createState(t, newStateFS(t))
	must(t, s.Birth(1, 70, 1))
	synced(t, s)(s.SetVote(1, 5, 70))
	bug(t, "other vote", func() { _, _ = s.SetVote(1, 5, 71) })
	bug(t, "vote of nobody", func() { _, _ = createState(t, newStateFS(t)).SetVote(1, 5, 71) })
	bug(t, "mark of nobody", func() { _, _ = createState(t, newStateFS(t)).SetMark(1, seglog.Floor{Index: 2}) })
	bug(t, "second birth", func() {
		s := createState(t, newStateFS(t))
		must(t, s.Birth(1, 70, 1))
		_ = s.Birth(1, 71, 1)
	})
	bug(t, "sync of what is not written", func() { _ = createState(t, newStateFS(t)).Sync(1000) })
}

// The machine comes up, and the process is killed while it still reads its logs back: the next one must know that the
// rest of the logs were written before the machine went down.
func TestSameBootOnlyAfterRecovery(t *testing.T) {
	mem := newStateFS(t)
	s := createState(t, mem)
	must(t, s.Birth(1, 70, 1))

	mem = mem.CrashClone(100, nil)
	for range 2 {
		_, report := openState(t, mem, boot2)
		if report.SameBoot {
			t.Fatal("same boot before the recovery was finished")
		}
		mem = mem.KillClone()
	}
	s, _ = openState(t, mem, boot2)
	must(t, s.FinishRecovery())
	must(t, s.FinishRecovery())
	if _, report := openState(t, mem.CrashClone(0, nil), boot2); !report.SameBoot {
		t.Fatal("the recovery was not recorded")
	}
}

// The replica record of a birth survives, the vote behind it does not: nobody was promised anything.
func TestBirthCutShort(t *testing.T) {
	mem := newStateFS(t)
	s := createState(t, mem)
	end := s.end
	must(t, s.Birth(1, 70, 1))
	must(t, s.Close())
	cutFile(t, mem, end+recordSize(recordReplica)+40)

	s, report := openState(t, mem, boot1)
	if report.CutBytes == 0 || report.CutBytes > 40 {
		t.Fatalf("report %+v", report)
	}
	if _, ok := s.Group(1); ok || len(s.Groups()) != 0 {
		t.Fatal("a group without its first vote is known")
	}
	must(t, s.Birth(1, 70, 1))
	must(t, s.Close())
	s, _ = openState(t, mem, boot1)
	wantGroup(t, s, 1, GroupState{Replica: 70, Live: true, Term: 1})
}

func cutFile(t testing.TB, mem *memfs.FS, size int64) {
	t.Helper()
	f, err := mem.Open(stateDir + "/" + stateName(1))
	must(t, err)
	must(t, f.Truncate(size))
	must(t, f.SyncData())
	must(t, f.Close())
}

// A page is lost, and the one behind it is not. That is damage if the records in the lost page had been synced; if not,
// nobody was promised them.
func TestHoleInFile(t *testing.T) {
	const pages = 3
	fill := func(t *testing.T, syncEach bool) (*memfs.FS, int64) {
		mem := newStateFS(t)
		s := createState(t, mem)
		must(t, s.Birth(1, 70, 1))
		end := s.end
		for i := seglog.Index(2); s.end < pages*4096; i++ {
			pos, err := s.SetMark(1, seglog.Floor{Index: i, Segment: 2})
			must(t, err)
			if syncEach {
				must(t, s.Sync(pos))
			}
		}
		must(t, s.Close())
		f, err := mem.Open(stateDir + "/" + stateName(1))
		must(t, err)
		must(t, f.WriteVAt([][]byte{make([]byte, 4096)}, 4096))
		must(t, f.Close())
		return mem, end
	}

	mem, _ := fill(t, true)
	for _, boot := range [][16]byte{boot1, boot2} {
		_, _, err := OpenState(mem, stateDir, boot)
		if _, ok := errors.AsType[*StateDamageError](err); !ok {
			t.Fatalf("hole in what was synced: %v", err)
		}
	}
	mem, _ = fill(t, false)
	_, _, err := OpenState(mem, stateDir, boot1)
	if _, ok := errors.AsType[*StateDamageError](err); !ok {
		t.Fatalf("hole without a machine crash: %v", err)
	}
	s, report := openState(t, mem, boot2)
	if report.CutBytes < 4096 {
		t.Fatalf("report %+v", report)
	}
	if state, ok := s.Group(1); !ok || state.Mark.Index == 0 {
		t.Fatalf("group %+v", state)
	}
}

// fdatasync fails and the process ends; the page cache shows the vote to the next process as if it were safe. Once that
// one has opened the file, the vote must outlive the machine.
func TestVoteAfterFailedSync(t *testing.T) {
	mem := newStateFS(t)
	s := createState(t, mem)
	must(t, s.Birth(1, 70, 1))
	pos, err := s.SetVote(1, 2, 70)
	must(t, err)
	mem.FailSync(syscall.EIO)
	if err := s.Sync(pos); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), s.name) {
		t.Fatalf("sync: %v", err)
	}
	if _, err := s.SetVote(1, 3, 70); !errors.Is(err, syscall.EIO) {
		t.Fatalf("write after a failed sync: %v", err)
	}
	if err := s.Sync(1); !errors.Is(err, syscall.EIO) {
		t.Fatalf("sync after a failed sync: %v", err)
	}

	mem = mem.KillClone()
	s, report := openState(t, mem, boot1)
	if !report.SameBoot || report.CutBytes != 0 {
		t.Fatalf("report %+v", report)
	}
	want := GroupState{Replica: 70, Live: true, Term: 2, Vote: 70}
	wantGroup(t, s, 1, want)
	s, _ = openState(t, mem.CrashClone(0, nil), boot2)
	wantGroup(t, s, 1, want)
}

func TestFailedWriteStays(t *testing.T) {
	mem := newStateFS(t)
	s := createState(t, mem)
	must(t, s.Birth(1, 70, 1))
	must(t, s.Close())
	// The first write is that of opening, which writes the last records again.
	second := errfs.OnIndex(1, errfs.ShortWrite(30, syscall.EIO))
	s, _ = openState(t, errfs.Wrap(mem, errfs.On(errfs.OpWrite, second)), boot1)
	if _, err := s.SetVote(1, 2, 70); !errors.Is(err, syscall.EIO) {
		t.Fatalf("write: %v", err)
	}
	for range 2 {
		if _, err := s.SetVote(1, 3, 70); !errors.Is(err, syscall.EIO) {
			t.Fatalf("later write: %v", err)
		}
	}
	if err := s.Close(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("close: %v", err)
	}
	s, report := openState(t, mem, boot1)
	if report.CutBytes == 0 || report.CutBytes > 30 {
		t.Fatalf("report %+v", report)
	}
	wantGroup(t, s, 1, GroupState{Replica: 70, Live: true, Term: 1})
}

// What a later version may write is refused with the place, and the files stay as they are.
func TestStateOfANewerVersion(t *testing.T) {
	node := stateRecord{recordType: recordNode, format: 1, oldestReader: 1, identity: testNode}
	newer := node
	newer.format, newer.oldestReader = 3, 2
	readable := node
	readable.format = 2
	replica := stateRecord{recordType: recordReplica, group: 1, replica: 70, life: replicaLive}
	vote := stateRecord{recordType: recordVote, group: 1, term: 1}
	intent := stateRecord{recordType: recordIntent, group: 1, intent: intentTruncate, index: 5}
	done := stateRecord{recordType: recordDone, group: 1, intentSequence: 5}
	mark := stateRecord{recordType: recordMark, group: 1, index: 5}
	unknown := stateRecord{recordType: 99}
	for _, test := range []struct {
		name    string
		records []stateRecord
		refused bool
	}{
		{"newer format that may be read", []stateRecord{readable}, false},
		{"newer format", []stateRecord{newer}, true},
		{"unknown record", []stateRecord{node, unknown}, true},
		{"finished intent", []stateRecord{node, replica, vote, mark, intent, done}, false},
		{"unknown intent", []stateRecord{node, replica, vote, {recordType: recordIntent, group: 1, intent: 5, index: 5}}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			mem := newStateFS(t)
			writeRecords(t, mem, test.records)
			s, _, err := OpenState(mem, stateDir, boot1)
			newer, isNewer := errors.AsType[*NewerFormatError](err)
			if isNewer != test.refused || err != nil && !isNewer {
				t.Fatalf("error %v", err)
			}
			if isNewer {
				if newer.File == "" || newer.Detail == "" {
					t.Fatalf("no coordinate: %v", err)
				}
				return
			}
			if state, ok := s.Group(1); ok && state.Mark != (seglog.Floor{}) {
				t.Fatalf("the intent did not take the mark back: %+v", state)
			}
		})
	}
}

// writeRecords makes a state file by hand, with the sequences 1, 2, ….
func writeRecords(t testing.TB, mem *memfs.FS, records []stateRecord) {
	t.Helper()
	var b []byte
	var at link
	for _, r := range records {
		at.sequence++
		b, at.previous = appendRecord(b, at, r)
	}
	writeStateFile(t, mem, b)
}

func writeStateFile(t testing.TB, mem *memfs.FS, b []byte) {
	t.Helper()
	f, err := mem.Create(stateDir + "/" + stateName(1))
	must(t, err)
	must(t, f.WriteVAt([][]byte{b}, 0))
	must(t, f.SyncData())
	must(t, f.Close())
	must(t, mem.SyncDir(stateDir))
}

// Records with a right CRC that no version writes are damage: the table refuses them.
func TestStateThatNobodyWrites(t *testing.T) {
	node := stateRecord{recordType: recordNode, format: 1, oldestReader: 1, identity: testNode}
	replica := stateRecord{recordType: recordReplica, group: 1, replica: 70, life: replicaLive}
	vote := func(term, vote uint64) stateRecord {
		return stateRecord{recordType: recordVote, group: 1, term: term, vote: vote}
	}
	gone := stateRecord{recordType: recordReplica, group: 1, replica: 70, life: replicaGone}
	next := stateRecord{recordType: recordReplica, group: 1, replica: 71, life: replicaLive}
	mark := func(index seglog.Index) stateRecord {
		return stateRecord{recordType: recordMark, group: 1, index: index}
	}
	commit := func(index seglog.Index) stateRecord {
		return stateRecord{recordType: recordCommit, group: 1, index: index}
	}
	for _, test := range []struct {
		name    string
		records []stateRecord
		good    bool
	}{
		{"next replica of a group", []stateRecord{node, replica, vote(4, 1), gone, next, vote(1, 0)}, true},
		{"two nodes", []stateRecord{node, node}, false},
		{"no node", []stateRecord{replica}, false},
		{"node 0", []stateRecord{{recordType: recordNode, format: 1, oldestReader: 1}}, false},
		{"oldest reader above format", []stateRecord{{recordType: recordNode, format: 0, oldestReader: 1, identity: testNode}}, false},
		{"term falls", []stateRecord{node, replica, vote(2, 0), vote(1, 0)}, false},
		{"vote changes", []stateRecord{node, replica, vote(2, 1), vote(2, 2)}, false},
		{"vote is withdrawn", []stateRecord{node, replica, vote(2, 1), vote(2, 0)}, false},
		{"vote without replica", []stateRecord{node, vote(2, 1)}, false},
		{"mark falls", []stateRecord{node, replica, vote(1, 0), mark(5), mark(4)}, false},
		{"commit falls", []stateRecord{node, replica, vote(1, 0), commit(5), commit(4)}, false},
		{"vote of a replica that is gone", []stateRecord{node, replica, vote(1, 0), gone, vote(2, 0)}, false},
		{"replica comes back", []stateRecord{node, replica, vote(1, 0), gone, replica}, false},
		{"second replica", []stateRecord{node, replica, vote(1, 0), next}, false},
		{"unknown life", []stateRecord{node, {recordType: recordReplica, group: 1, replica: 70, life: 3}}, false},
		{"end of no intent", []stateRecord{node, replica, vote(1, 0), {recordType: recordDone, group: 1, intentSequence: 2}}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			mem := newStateFS(t)
			writeRecords(t, mem, test.records)
			_, _, err := OpenState(mem, stateDir, boot1)
			damage, isDamage := errors.AsType[*StateDamageError](err)
			if isDamage == test.good || err != nil && !isDamage {
				t.Fatalf("error %v", err)
			}
			if isDamage && (damage.File == "" || damage.Detail == "") {
				t.Fatalf("no coordinate: %v", err)
			}
		})
	}
}

// A record that is whole but does not continue the one before it, by its sequence or by the CRC that it names, is what
// an older torn tail may leave behind a cut. It is no part of the state.
func TestBrokenChain(t *testing.T) {
	node := stateRecord{recordType: recordNode, format: 1, oldestReader: 1, identity: testNode}
	replica := stateRecord{recordType: recordReplica, group: 1, replica: 70, life: replicaLive}
	vote := stateRecord{recordType: recordVote, group: 1, term: 1}
	for _, test := range []struct {
		name                string
		sequence, corrupted uint64
	}{
		{"as it should be", 4, 0},
		{"a record is missing", 5, 0},
		{"a record comes again", 3, 0},
		{"another one stood before it", 4, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			var b []byte
			at := link{sequence: 1}
			for _, r := range []stateRecord{node, replica, vote} {
				b, at.previous = appendRecord(b, at, r)
				at.sequence++
			}
			at = link{sequence: test.sequence, previous: at.previous + uint32(test.corrupted)}
			b, _ = appendRecord(b, at, stateRecord{recordType: recordVote, group: 1, term: 2})
			mem := newStateFS(t)
			writeStateFile(t, mem, b)
			s, report := openState(t, mem, boot2)
			want := GroupState{Replica: 70, Live: true, Term: 1}
			if test.name == "as it should be" {
				want.Term = 2
			} else if report.CutBytes == 0 {
				t.Fatal("nothing was cut")
			}
			wantGroup(t, s, 1, want)
		})
	}
}

// Left-overs of a crash in the middle of rewriting go, and strange files stay.
func TestLeftOversAreRemoved(t *testing.T) {
	mem := newStateFS(t)
	s := createState(t, mem)
	must(t, s.Birth(1, 70, 1))
	s.rewrite()
	must(t, s.err)
	must(t, s.Close())
	for _, name := range []string{stateName(1), stateName(3) + temporarySuffix, "state-1", "state-000000000000000A"} {
		f, err := mem.Create(stateDir + "/" + name)
		must(t, err)
		must(t, f.Close())
	}
	s, _ = openState(t, mem, boot1)
	wantGroup(t, s, 1, GroupState{Replica: 70, Live: true, Term: 1})
	names, err := mem.List(stateDir)
	must(t, err)
	if got := fmt.Sprint(names); got != fmt.Sprintf("[%s state-000000000000000A state-1]", stateName(2)) {
		t.Fatalf("left: %s", got)
	}
}
