package raftlog

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

var stateSeeds = flag.Int("state.seeds", 8, "random scripts of the state file's crash and fault tests")

// groupRecord is all that the state file knows of a group.
type groupRecord struct {
	GroupState
	intent stateRecord
}

// stateScript drives a state file at random and remembers what it must hold.
type stateScript struct {
	rng   *rand.Rand // of the script
	luck  *rand.Rand // of the crashes
	state *StateFile
	// history has the groups as each call would leave them, the one under way included.
	history []map[seglog.GroupID]groupRecord
	// promised is the element of history that was synced last.
	promised int
	// written has, for each element of history, the file's last sequence behind it.
	written []uint64
	// full is called when a call finds no room; the call is repeated then.
	full func(error)
}

func newStateScript(seed uint64) *stateScript {
	return &stateScript{
		rng:     rand.New(rand.NewPCG(seed, 1)),
		luck:    rand.New(rand.NewPCG(seed, 2)),
		history: []map[seglog.GroupID]groupRecord{{}},
		full:    func(error) {},
	}
}

// step makes one random call.
func (c *stateScript) step() error {
	err := c.call()
	c.written = append(c.written, c.state.written)
	return err
}

// call notes the expectation first, so that a crash inside the call can be judged.
func (c *stateScript) call() error {
	now := maps.Clone(c.history[len(c.history)-1])
	g := seglog.GroupID(c.rng.IntN(6))
	state := now[g]
	if !state.Live {
		now[g] = groupRecord{GroupState: GroupState{Replica: state.Replica + 70, Live: true, Term: 1}}
		c.history = append(c.history, now)
		err := c.state.Birth(g, now[g].Replica, 1)
		for errors.Is(err, ErrFull) { // it is going to be completed
			c.full(err)
			err = c.state.record()
		}
		if err == nil {
			c.promised = len(c.history) - 1
		}
		return err
	}
	call := c.choose(g, &state)
	now[g] = state
	c.history = append(c.history, now)
	pos, err := call()
	for errors.Is(err, ErrFull) {
		c.full(err)
		pos, err = call()
	}
	if err == nil && c.rng.IntN(3) == 0 {
		if err = c.state.Sync(pos); err == nil {
			c.promised = len(c.history) - 1
		}
	}
	return err
}

// choose changes state and returns the call that does the same.
func (c *stateScript) choose(g seglog.GroupID, state *groupRecord) func() (StatePosition, error) {
	switch c.rng.IntN(5) {
	default:
		if state.Vote != 0 || c.rng.IntN(2) == 0 {
			state.Term, state.Vote = state.Term+1, 0
		}
		state.Vote = uint64(c.rng.IntN(3))
		term, vote := state.Term, state.Vote
		return func() (StatePosition, error) { return c.state.SetVote(g, term, vote) }
	case 2:
		state.Commit += seglog.Index(c.rng.IntN(3))
		commit := state.Commit
		return func() (StatePosition, error) { return c.state.SetCommit(g, commit) }
	case 3:
		if d := seglog.Index(c.rng.IntN(3)); d > 0 {
			state.Mark = seglog.Floor{Index: state.Mark.Index + d, Segment: 2, Position: c.rng.Uint32()}
		}
		mark := state.Mark
		return func() (StatePosition, error) { return c.state.SetMark(g, mark) }
	case 4:
		record := c.chooseIntent(g, state)
		return func() (StatePosition, error) { return c.state.append(record) }
	}
}

// chooseIntent begins an intent, or ends the one that is begun. Group 0 is never deleted.
func (c *stateScript) chooseIntent(g seglog.GroupID, state *groupRecord) stateRecord {
	begun := state.intent
	if begun.intent == intentDelete {
		*state = groupRecord{GroupState: GroupState{Replica: state.Replica}}
		return stateRecord{recordType: recordReplica, group: g, replica: state.Replica, life: replicaGone}
	}
	state.intent = stateRecord{recordType: recordIntent, group: g, intent: intentDelete}
	if g > 0 && c.rng.IntN(3) == 0 {
		return state.intent
	}
	if begun.intent != 0 {
		state.intent = stateRecord{}
		return stateRecord{recordType: recordDone, group: g}
	}
	state.intent.intent = []intent{intentTruncate, intentGiveUp}[c.rng.IntN(2)]
	state.intent.index = 2 + seglog.Index(c.rng.IntN(int(state.Mark.Index)+3))
	state.Commit = min(state.Commit, state.intent.index-1)
	if state.Mark.Index >= state.intent.index || state.Mark.Segment >= state.intent.index {
		state.Mark = seglog.Floor{}
	}
	return state.intent
}

func (c *stateScript) groups() map[seglog.GroupID]groupRecord { return stateGroups(c.state) }

func stateGroups(s *StateFile) map[seglog.GroupID]groupRecord {
	groups := map[seglog.GroupID]groupRecord{}
	for _, g := range s.Groups() {
		state, _ := s.Group(g)
		intent, _ := s.unfinished(g)
		groups[g] = groupRecord{state, intent}
	}
	for g, state := range s.table.groups {
		if !state.born() && state.Replica > 70 { // a crash has cut short the birth of the one after it
			groups[g] = groupRecord{GroupState: GroupState{Replica: state.Replica - 70}}
		}
	}
	return groups
}

// find returns which element of the history, from one on, the state file holds.
func (c *stateScript) find(s *StateFile, from int) (int, bool) {
	groups := stateGroups(s)
	for i := len(c.history) - 1; i >= from; i-- {
		if maps.Equal(groups, c.history[i]) {
			return i, true
		}
	}
	return 0, false
}

// checkCrash opens what a crash left and demands a prefix of what was written that has all that was promised; that
// opening again finds the same bytes; and that the file can be used.
func (c *stateScript) checkCrash(t *testing.T, mem *memfs.FS, boot [16]byte, from int) {
	t.Helper()
	s, _ := openState(t, mem, boot)
	if _, ok := c.find(s, from); !ok {
		t.Fatalf("held after the crash:\n%v\npromised:\n%v\nwritten:\n%v", stateGroups(s), c.history[from], c.history[len(c.history)-1])
	}
	held := stateGroups(s)
	must(t, s.file.Close())
	before := stateBytes(t, mem)
	s, report := openState(t, mem.CrashClone(c.luck.IntN(101), c.luck), boot)
	if report.CutBytes != 0 || !maps.Equal(stateGroups(s), held) {
		t.Fatalf("opening again: %+v, %v; first: %v", report, stateGroups(s), held)
	}
	if after := stateBytes(t, mem); !bytes.Equal(before, after) {
		t.Fatal("opening again changed the file")
	}
	pos, err := s.SetVote(0, 1_000_000, 5)
	must(t, err)
	must(t, s.Sync(pos))
	must(t, s.Close())
}

// stateBytes returns the newest state file.
func stateBytes(t *testing.T, mem *memfs.FS) []byte {
	t.Helper()
	names, err := mem.List(stateDir)
	must(t, err)
	f, err := mem.Open(stateDir + "/" + names[len(names)-1])
	must(t, err)
	size, err := f.Size()
	must(t, err)
	b := make([]byte, size)
	if n, err := f.ReadAt(b, 0); n < len(b) {
		t.Fatal(err)
	}
	must(t, f.Close())
	return b
}

// hook is an injector that injects nothing and is told of each operation before it happens.
type hook func(errfs.Op)

func (h hook) Inject(op errfs.Op) error { h(op); return nil }
func (h hook) String() string           { return "hook" }

// The machine, or the process, goes down before each operation on the file system of a random script.
func TestStateEveryCrash(t *testing.T) {
	for seed := range uint64(*stateSeeds) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			mem := newStateFS(t)
			c := newStateScript(seed)
			judge := func(errfs.Op) {
				if c.promised == 0 { // the group that checkCrash uses may not be there
					return
				}
				c.checkCrash(t, mem.CrashClone(0, nil), boot2, c.promised)
				c.checkCrash(t, mem.CrashClone(100, nil), boot2, c.promised)
				c.checkCrash(t, mem.CrashClone(c.luck.IntN(101), c.luck), boot2, c.promised)
				c.checkCrash(t, mem.KillClone(), boot1, len(c.history)-2)
			}
			c.state = createState(t, errfs.Wrap(mem, hook(judge)))
			must(t, c.state.Birth(0, 70, 1))
			c.history = append(c.history, c.groups())
			c.promised = 1
			for range 60 {
				must(t, c.step())
			}
			must(t, c.state.Close())
		})
	}
}

// A directory in which the first state file is being made has none or a whole one.
func TestStateCrashInCreation(t *testing.T) {
	mem := newStateFS(t)
	rng := rand.New(rand.NewPCG(1, 1))
	crashes := 0
	judge := func(errfs.Op) {
		for _, percent := range []int{0, 50, 100} {
			crashes++
			clone := mem.CrashClone(percent, rng)
			s, _, err := OpenState(clone, stateDir, boot2)
			if errors.Is(err, ErrNoState) {
				s, err = CreateState(clone, stateDir, testNode, boot2)
			}
			must(t, err)
			must(t, s.Birth(1, 70, 1))
		}
		// The process is killed; the next one finds the file under its name, although the name is not durable. Once
		// it has opened it, the machine may go down.
		clone := mem.KillClone()
		if _, _, err := OpenState(clone, stateDir, boot1); err == nil {
			openState(t, clone.CrashClone(0, nil), boot2)
		}
	}
	createState(t, errfs.Wrap(mem, hook(judge)))
	judge(errfs.Op{})
	if _, _, err := OpenState(mem.CrashClone(0, nil), stateDir, boot2); err != nil {
		t.Fatalf("the file is not durable when CreateState returns: %v", err)
	}
	if crashes < 20 {
		t.Fatalf("only %d crashes", crashes)
	}
}

// The file reaches the size at which it is rewritten, and the machine goes down before each operation of that.
func TestStateCrashInRewriting(t *testing.T) {
	mem := newStateFS(t)
	c := newStateScript(1)
	armed, judged := false, 0
	judge := func(op errfs.Op) {
		if !armed {
			return
		}
		judged++
		for _, percent := range []int{0, 50, 100} {
			c.checkCrash(t, mem.CrashClone(percent, c.luck), boot2, c.promised)
		}
		c.checkCrash(t, mem.KillClone(), boot1, len(c.history)-2)
	}
	c.state = createState(t, errfs.Wrap(mem, hook(judge)))
	for len(c.history) < 200 {
		must(t, c.step())
	}
	for i := seglog.Index(1000); c.state.end < stateRewriteMin-2*recordSize(recordMark); i++ {
		_, err := c.state.SetMark(1, seglog.Floor{Index: i, Segment: 2})
		must(t, err)
	}
	must(t, c.state.Sync(StatePosition(c.state.written)))
	c.history = append(c.history, c.groups())
	c.promised = len(c.history) - 1
	armed = true
	for c.state.generation == 1 {
		must(t, c.step())
	}
	for range 5 {
		must(t, c.step())
	}
	armed = false
	if size := c.state.end; size > 10_000 {
		t.Fatalf("%d bytes after rewriting", size)
	}
	if judged < 10 {
		t.Fatalf("only %d crashes", judged)
	}
	must(t, c.state.Close())
	names, err := mem.List(stateDir)
	must(t, err)
	if len(names) != 1 {
		t.Fatalf("left: %v", names)
	}
}

// Each operation of a script, of opening and of rewriting fails once, by an error or by a short write. Each call
// succeeds or returns an error with the file's name; the error stays; and the next process finds all that was promised.
func TestStateEveryError(t *testing.T) {
	for _, failure := range []errfs.Injector{errfs.EIO, errfs.ShortWrite(45, syscall.EIO)} {
		for n := 0; ; n++ {
			injector := errfs.OnIndex(n, failure)
			stateUntilError(t, injector)
			if !injector.Reached() {
				if n < 25 {
					t.Fatalf("only %d operations", n)
				}
				break
			}
		}
	}
}

func stateUntilError(t *testing.T, injector *errfs.Index) {
	t.Helper()
	mem := newStateFS(t)
	faulty := errfs.Wrap(mem, injector)
	c := newStateScript(3)
	err := func() (err error) {
		if c.state, err = CreateState(faulty, stateDir, testNode, boot1); err != nil {
			return err
		}
		if err := c.step(); err != nil {
			return errors.Join(err, c.state.Close())
		}
		for i := range 20 {
			if err := c.step(); err != nil {
				if later := c.state.FinishRecovery(); later == nil {
					t.Fatalf("%s: a write after %v succeeds", injector, err)
				}
				return errors.Join(err, c.state.Close())
			}
			if i == 10 {
				c.state.mu.Lock()
				c.state.rewrite()
				err := c.state.err
				c.state.mu.Unlock()
				if err != nil {
					return err
				}
			}
		}
		if err := c.state.Close(); err != nil {
			return err
		}
		c.state, _, err = OpenState(faulty, stateDir, boot1)
		return err
	}()
	if err != nil && !strings.Contains(err.Error(), stateDir) {
		t.Fatalf("%s: no file in %q", injector, err)
	}
	for _, clone := range []*memfs.FS{mem.KillClone(), mem.CrashClone(0, nil), mem.CrashClone(100, nil)} {
		s, _, err := OpenState(clone, stateDir, boot2)
		if errors.Is(err, ErrNoState) && c.promised == 0 {
			continue
		}
		must(t, err)
		if _, ok := c.find(s, c.promised); !ok {
			t.Fatalf("%s: held %v, promised %v", injector, stateGroups(s), c.history[c.promised])
		}
	}
}

// Each byte of a small file is changed. Opening reports damage; or takes the last write for torn, or, when the machine
// was down, the writes that no later record says were durable; or takes no notice (padding). It never finds a state
// that was not written.
func TestStateEveryByteFlipped(t *testing.T) {
	mem := newStateFS(t)
	c := newStateScript(5)
	c.state = createState(t, mem)
	for range 25 {
		must(t, c.step())
	}
	must(t, c.state.Close())
	content := stateBytes(t, mem)
	proven := c.provenBy(t, content)
	outcomes := map[string]int{}
	for _, boot := range [][16]byte{boot1, boot2} {
		for i := range content {
			for _, mask := range []byte{0x01, 0x80, 0xff} {
				flipped := slices.Clone(content)
				flipped[i] ^= mask
				clone := newStateFS(t)
				writeStateFile(t, clone, flipped)
				s, report, err := OpenState(clone, stateDir, boot)
				if _, damaged := errors.AsType[*StateDamageError](err); damaged {
					outcomes["damage"]++
					continue
				}
				must(t, err) // a flipped byte is never a newer version: the CRC comes first
				outcome, from := "harmless", len(c.history)-1
				if report.CutBytes > 0 && boot == boot1 {
					outcome, from = "torn tail", len(c.history)-2
				} else if report.CutBytes > 0 {
					outcome, from = "torn tail", proven
				}
				outcomes[outcome]++
				if _, ok := c.find(s, from); !ok {
					t.Fatalf("byte %d of %d ^ %#x: %s, held %v", i, len(content), mask, outcome, stateGroups(s))
				}
			}
		}
	}
	t.Logf("%d bytes: %v", len(content), outcomes)
	if len(outcomes) != 3 {
		t.Errorf("not all outcomes are seen: %v", outcomes)
	}
}

// A file is durable as a whole before it gets its name, and its records say so: with or without a machine crash, no
// changed byte in it is taken for a torn tail.
func TestRewrittenFileIsProven(t *testing.T) {
	mem := newStateFS(t)
	s := createState(t, mem)
	for g := range seglog.GroupID(5) {
		must(t, s.Birth(g, 70, 1))
	}
	s.rewrite()
	must(t, s.Close())
	content := stateBytes(t, mem)
	want := stateGroups(s)
	for i := range content {
		flipped := slices.Clone(content)
		flipped[i] ^= 0x10
		clone := newStateFS(t)
		writeStateFile(t, clone, flipped)
		s, report, err := OpenState(clone, stateDir, boot2)
		if _, damaged := errors.AsType[*StateDamageError](err); damaged {
			continue
		}
		must(t, err)
		if report.CutBytes != 0 || !maps.Equal(stateGroups(s), want) {
			t.Fatalf("byte %d: %+v, %v", i, report, stateGroups(s))
		}
	}
}

// provenBy returns the newest element of the history that the file itself proves to have been durable.
func (c *stateScript) provenBy(t *testing.T, content []byte) int {
	t.Helper()
	r, err := recoverState("test", content, func(*stateTable) bool { return true })
	must(t, err)
	proven := 0
	for i, written := range c.written {
		if written <= r.last.durable {
			proven = i + 1
		}
	}
	if proven < len(c.history)/2 {
		t.Fatalf("the file proves only %d of %d calls", proven, len(c.history))
	}
	return proven
}

func FuzzOpenState(f *testing.F) {
	mem := newStateFS(f)
	s := createState(f, mem)
	must(f, s.Birth(1, 70, 1))
	_, err := s.SetMark(1, seglog.Floor{Index: 3, Segment: 2})
	must(f, err)
	file := s.file
	b := make([]byte, s.end)
	_, err = file.ReadAt(b, 0)
	must(f, err)
	f.Add(b, true)
	f.Add(b[:len(b)-20], false)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, b []byte, repair bool) {
		if repair {
			b = repairCRCs(b)
		}
		mem := newStateFS(t)
		writeStateFile(t, mem, b)
		for _, boot := range [][16]byte{boot1, boot2} {
			s, _, err := OpenState(mem.KillClone(), stateDir, boot)
			if err != nil {
				_, damage := errors.AsType[*StateDamageError](err)
				_, newer := errors.AsType[*NewerFormatError](err)
				if !damage && !newer {
					t.Fatalf("unexpected error %v", err)
				}
				continue
			}
			groups := stateGroups(s)
			must(t, s.FinishRecovery())
			s.mu.Lock()
			s.rewrite()
			s.mu.Unlock()
			must(t, s.Close())
			if s.table.live != int64(s.end) {
				t.Fatalf("live size %d, rewritten size %d", s.table.live, s.end)
			}
			if !maps.Equal(groups, stateGroups(s)) {
				t.Fatal("rewriting changed the state")
			}
		}
	})
}

// repairCRCs makes the records of b valid where their lengths allow, so that fuzzing reaches what is behind the CRC.
func repairCRCs(b []byte) []byte {
	b = slices.Clone(b)
	var previous uint32
	for pos := 0; len(b)-pos >= stateHeaderSize; {
		record := b[pos:]
		copy(record, stateMagic)
		record[4], record[5], record[6] = 0, 0, 0
		end := stateHeaderSize + int(record[7])
		if end > len(record) {
			break
		}
		copy(record[24:], []byte{byte(previous >> 24), byte(previous >> 16), byte(previous >> 8), byte(previous)})
		previous = recordCRC(record[:end])
		copy(record[28:], []byte{byte(previous >> 24), byte(previous >> 16), byte(previous >> 8), byte(previous)})
		pos += aligned(end)
	}
	return b
}

// slowSyncFS counts the syncs of files and lets each wait until it is released.
type slowSyncFS struct {
	vfs.FS
	started chan struct{}
	release chan struct{}
}

func (f *slowSyncFS) Create(name string) (vfs.File, error) {
	file, err := f.FS.Create(name)
	return &slowSyncFile{file, f}, err
}

type slowSyncFile struct {
	vfs.File
	fs *slowSyncFS
}

func (f *slowSyncFile) SyncData() error {
	f.fs.started <- struct{}{}
	<-f.fs.release
	return f.File.SyncData()
}

// While one flusher's fdatasync runs, thirty others write and wait: one more fdatasync serves them all.
func TestSyncIsShared(t *testing.T) {
	fsys := &slowSyncFS{FS: newStateFS(t), started: make(chan struct{}, 100), release: make(chan struct{}, 100)}
	fsys.release <- struct{}{}
	s := createState(t, fsys)
	<-fsys.started
	const groups = 30
	for g := range seglog.GroupID(groups + 1) {
		fsys.release <- struct{}{}
		must(t, s.Birth(g, 70, 1))
		<-fsys.started
	}

	var flushers, written sync.WaitGroup
	vote := func(g seglog.GroupID) {
		pos, err := s.SetVote(g, 2, 70)
		written.Done()
		if err == nil {
			err = s.Sync(pos)
		}
		if err != nil {
			t.Error(err)
		}
	}
	written.Add(1)
	flushers.Go(func() { vote(groups) })
	<-fsys.started // the first one's fdatasync runs
	for g := range seglog.GroupID(groups) {
		written.Add(1)
		flushers.Go(func() { vote(g) })
	}
	written.Wait() // all have written; none can be covered by the sync that runs
	fsys.release <- struct{}{}
	<-fsys.started // the second one
	fsys.release <- struct{}{}
	flushers.Wait()
	if extra := len(fsys.started); extra != 0 {
		t.Fatalf("%d more syncs than two", extra)
	}
	must(t, s.err)
}

// The file reaches its size while a sync runs on it: it is replaced by the next sync, not under the one that runs.
func TestNoRewritingUnderSync(t *testing.T) {
	fsys := &slowSyncFS{FS: newStateFS(t), started: make(chan struct{}, 100), release: make(chan struct{}, 100)}
	for range 2 {
		fsys.release <- struct{}{}
	}
	s := createState(t, fsys)
	<-fsys.started
	must(t, s.Birth(1, 70, 1))
	<-fsys.started

	pos, err := s.SetVote(1, 2, 70)
	must(t, err)
	var flusher sync.WaitGroup
	flusher.Go(func() {
		if err := s.Sync(pos); err != nil {
			t.Error(err)
		}
	})
	<-fsys.started
	for i := seglog.Index(2); s.end < stateRewriteMin+1000; i++ {
		if pos, err = s.SetMark(1, seglog.Floor{Index: i, Segment: 2}); err != nil {
			t.Fatal(err)
		}
	}
	if s.generation != 1 {
		t.Fatal("the file was replaced while a sync ran on it")
	}
	fsys.release <- struct{}{}
	flusher.Wait()
	fsys.release <- struct{}{}
	must(t, s.Sync(pos))
	if s.generation != 2 || s.end > 1000 {
		t.Fatalf("generation %d with %d bytes", s.generation, s.end)
	}
	must(t, s.Close())
}

// Many goroutines vote for their groups, mark and read, over several rewritings. Every vote that was synced survives.
func TestStateConcurrently(t *testing.T) {
	mem := newStateFS(t)
	s := createState(t, mem)
	const workers, rounds = 8, 500
	var done sync.WaitGroup
	for w := range seglog.GroupID(workers) {
		must(t, s.Birth(w, 70, 1))
		done.Go(func() {
			for round := range uint64(rounds) {
				pos, err := s.SetVote(w, 2+round, 70)
				for range 10 {
					if err == nil {
						state, _ := s.Group(w)
						_, err = s.SetMark(w, seglog.Floor{Index: state.Mark.Index + 1, Segment: 2})
					}
				}
				if err == nil && round%10 == 9 {
					err = s.Sync(pos)
				}
				if err != nil {
					t.Error(err)
					return
				}
				_ = s.Groups()
			}
		})
	}
	done.Wait()
	if s.generation < 3 {
		t.Fatalf("only %d generations", s.generation)
	}
	// The last round of each worker was synced.
	s, _ = openState(t, mem.CrashClone(0, nil), boot2)
	for w := range seglog.GroupID(workers) {
		if state, _ := s.Group(w); state.Term != 1+rounds || state.Vote != 70 {
			t.Fatalf("group %d: %+v", w, state)
		}
	}
}

func BenchmarkSetVote(b *testing.B) {
	s := createState(b, newStateFS(b))
	must(b, s.Birth(1, 70, 1))
	b.ReportAllocs()
	for term := uint64(2); b.Loop(); term++ {
		if _, err := s.SetVote(1, term, 70); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpenState(b *testing.B) {
	mem := newStateFS(b)
	s := createState(b, mem)
	for g := range seglog.GroupID(10_000) {
		must(b, s.Birth(g, 70, 1))
		for i := seglog.Index(2); i < 8; i++ {
			_, err := s.SetMark(g, seglog.Floor{Index: i, Segment: 2})
			must(b, err)
		}
	}
	must(b, s.Close())
	b.SetBytes(s.end)
	for b.Loop() {
		s, _ := openState(b, mem, boot1)
		must(b, s.Close())
	}
}
