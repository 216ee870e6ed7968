package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

func deleteTopic(t testing.TB, n *Node, name string) *meta.Topic {
	t.Helper()
	topic, ok := n.Topics().ByName(name)
	if !ok {
		t.Fatalf("there is no topic %s", name)
	}
	if err := n.DeleteTopic(t.Context(), topic); err != nil {
		t.Fatalf("delete %s: %v", name, err)
	}
	return topic
}

// groupDirs returns the directories of groups but raft0's.
func groupDirs(t testing.TB, fs vfs.FS) []string {
	t.Helper()
	names, err := fs.List(filepath.Join(config.Dir, "groups"))
	if err != nil {
		t.Fatal(err)
	}
	return names[1:]
}

// awaitRemoval waits until no work in the background is left.
func awaitRemoval(t testing.TB, n *Node) {
	t.Helper()
	for {
		n.removal.mu.Lock()
		running := n.removal.running
		n.removal.mu.Unlock()
		if !running {
			return
		}
		done := make(chan struct{})
		n.jobs.add(func() { close(done) })
		<-done
	}
}

func producerID(t testing.TB, n *Node) batch.ProducerID {
	t.Helper()
	id, err := n.NextProducerID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A deleted topic is gone when DeleteTopic returns, whoever still holds its partitions, and its files soon after. Other
// topics do not notice, and there is room for as many partitions as before.
func TestDeleteTopic(t *testing.T) {
	fs := memfs.New()
	bounded := config
	bounded.PartitionsMax = 4
	n := openWith(t, fs, bounded)
	id := producerID(t, n)
	stays := create(t, n, "stays", 1)
	for range 3 { // more than there is room for, were it not given back
		gone := create(t, n, "gone", 3)
		for _, topic := range []*meta.Topic{stays, gone} {
			if a := produce(t, n, topic, id, 0); a.Err != nil {
				t.Fatal(a.Err)
			}
		}
		held, _ := n.Partition(gone.ID, 0)
		deleteTopic(t, n, "gone")
		if _, ok := n.Topics().ByName("gone"); ok {
			t.Fatal("the topic is there")
		}
		if _, ok := n.Partition(gone.ID, 0); ok {
			t.Fatal("its partition is there")
		}
		if err := held.Submit(&replica.Submission{Done: make(done, 1)}); !errors.Is(err, replica.ErrStopped) {
			t.Fatalf("its partition takes batches: %v", err)
		}
		if err := n.DeleteTopic(t.Context(), gone); !errors.Is(err, meta.ErrUnknownTopic) {
			t.Fatalf("deleted twice: %v", err)
		}
		awaitRemoval(t, n)
		if left := groupDirs(t, fs); len(left) != 1 {
			t.Fatalf("groups %v are left", left)
		}
	}
	closeNode(t, n)
	n = openWith(t, fs, bounded)
	defer closeNode(t, n)
	if _, err := n.CreateTopic(t.Context(), NewTopic{Name: "more", Partitions: 4, Replication: -1}, false); !errors.Is(err, meta.ErrInvalidPartitions) {
		t.Fatalf("there is room for more partitions than there may be: %v", err)
	}
	if a := produce(t, n, stays, id, 0); a.Err != nil || a.Base != 0 || a.Decision.Verdict != dedupe.Duplicate {
		t.Fatalf("retry on the topic that stays: %+v", a)
	}
	if all := n.Topics().All(); len(all) != 1 || len(groupDirs(t, fs)) != 1 {
		t.Fatalf("topics %v, groups %v", all, groupDirs(t, fs))
	}
}

// A topic of the same name is a new one, with offsets from 0. Made soon after the deletion it does not stop the producers
// that lived through it; made later it demands of everybody to begin at 0, as every new topic does.
func TestTopicIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := memfs.New()
		const expiration = 3 * time.Minute
		short := config
		short.Settings.ProducerExpiration, short.Settings.ProducerEvictionMinAge = expiration, expiration
		n := openWith(t, fs, short)
		for round, wait := range []time.Duration{0, expiration - time.Second, expiration} {
			id := producerID(t, n)
			old := create(t, n, "payments", 1)
			for i := range batch.Sequence(3) {
				if a := produce(t, n, old, id, i); a.Err != nil || a.Base != batch.Offset(i) {
					t.Fatalf("round %d: %+v", round, a)
				}
			}
			deleteTopic(t, n, "payments")
			time.Sleep(wait)
			if round == 1 { // what was deleted when is known after a restart too
				closeNode(t, n)
				n = openWith(t, fs, short)
			}
			made := create(t, n, "payments", 1)
			if made.ID == old.ID {
				t.Fatal("the new topic has the id of the old one")
			}
			a := produce(t, n, made, id, 3)
			if lived := wait < expiration; lived != (a.Err == nil) || lived && a.Base != 0 {
				t.Fatalf("after %v: the producer goes on with %+v", wait, a)
			}
			if a := produce(t, n, made, producerID(t, n)+1<<32, 1); !errors.Is(a.Err, replica.ErrRefused) {
				t.Fatalf("after %v: a producer of a later start begins in the middle: %+v", wait, a)
			}
			deleteTopic(t, n, "payments")
			time.Sleep(2 * expiration)
		}
		closeNode(t, n)
	})
}

// A wall clock that was set back makes a deletion lie in the future: it counts as lately.
func TestDeletedInTheFuture(t *testing.T) {
	fs := memfs.New()
	e := env(t, fs, 1)
	now := time.Now()
	e.Clock = fixedClock(now)
	n, err := Open(t.Context(), e, config)
	if err != nil {
		t.Fatal(err)
	}
	create(t, n, "payments", 1)
	deleteTopic(t, n, "payments")
	closeNode(t, n)
	e.Clock = fixedClock(now.Add(-100 * 24 * time.Hour))
	if n, err = Open(t.Context(), e, config); err != nil {
		t.Fatal(err)
	}
	defer closeNode(t, n)
	if topic := create(t, n, "payments", 1); topic.Floor == 0 {
		t.Error("no start number is marked")
	}
}

// Many create, fill and delete the same few topics at the same time, until the node is closed over it. What is left is what
// raft0 says, and the next start finds nothing to repair.
func TestManyCreateAndDelete(t *testing.T) {
	fs := memfs.New()
	n := open(t, fs, 1)
	id := producerID(t, n)
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 1))
			for range 40 {
				name := fmt.Sprint("topic-", rng.IntN(3))
				topic, err := n.CreateTopic(t.Context(), NewTopic{Name: name, Partitions: 1 + rng.Int32N(4), Replication: -1}, false)
				switch {
				case err == nil:
					if p, ok := n.Partition(topic.ID, 0); ok {
						d := make(done, 1)
						if p.Submit(submission(t, id+batch.ProducerID(rng.IntN(1000)), 0, d)) == nil {
							<-d
						}
					}
				case !errors.Is(err, meta.ErrTopicExists):
					t.Error(err)
				}
				if topic, ok := n.Topics().ByName(name); ok {
					if err := n.DeleteTopic(t.Context(), topic); err != nil && !errors.Is(err, meta.ErrUnknownTopic) {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	create(t, n, "last", 2)
	closeNode(t, n)
	checkAfterDeletion(t, fs)
	n = open(t, fs, 1)
	defer closeNode(t, n)
	awaitRemoval(t, n)
	partitions := 0
	for _, topic := range n.Topics().All() {
		partitions += len(topic.Partitions)
	}
	if left := groupDirs(t, fs); len(left) != partitions {
		t.Errorf("%d groups are left, of %d partitions: %v", len(left), partitions, left)
	}
}

// checkAfterDeletion demands that each topic that was made again begins with the start numbers marked that were given out
// before, and no other one does.
func checkAfterDeletion(t *testing.T, fs vfs.FS) {
	t.Helper()
	n := &Node{env: env(t, fs, 1), cfg: config}
	state, report, err := raftlog.ReadState(fs, config.Dir, [16]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	n.use(state, report.SameBoot)
	deleted := map[string]bool{}
	again, state0 := 0, meta.New()
	_, err = raftlog.ReadGroup(n.metadataConfig(), func(e seglog.Entry) error {
		if e.Kind != seglog.KindCommand {
			return nil
		}
		result, err := state0.Apply(e.Data)
		switch made := result.Topic; {
		case result.Deleted != nil:
			deleted[result.Deleted.Name] = true
		case made != nil:
			if deleted[made.Name] {
				again++
			}
			if deleted[made.Name] != (made.Floor > 0) {
				t.Errorf("%s is created behind its deletion: %v, its floor is %d", made.Name, deleted[made.Name], made.Floor)
			}
		}
		return err
	})
	if err != nil || again == 0 {
		t.Errorf("%d topics were made again, %v", again, err)
	}
}

// A group that no topic has is left alone and reported, whatever state it is in: perhaps it is raft0 that has lost
// something.
func TestUnknownGroupIsLeftAlone(t *testing.T) {
	fs := memfs.New()
	n := open(t, fs, 1)
	create(t, n, "payments", 1)
	cfg := n.groupConfig(77, [16]byte{1}, 0)
	cfg.Birth = birth(cfg.Identity, []uint64{uint64(cfg.Identity.Replica)}, dedupe.New(dedupe.RulesVersion, 0).AppendTo(nil))
	made, err := n.openGroup(cfg, n.env.Logger)
	if err = errors.Join(err, made.Close()); err != nil {
		t.Fatal(err)
	}
	closeNode(t, n)
	if err := fs.MkdirAll(filepath.Join(config.Dir, "groups", fmt.Sprintf("%016x", 78))); err != nil {
		t.Fatal(err)
	}
	var log lines
	e := env(t, fs, 1)
	e.Logger = log.logger()
	if n, err = Open(t.Context(), e, config); err != nil {
		t.Fatal(err)
	}
	defer closeNode(t, n)
	awaitRemoval(t, n)
	if left := groupDirs(t, fs); len(left) != 3 {
		t.Errorf("groups %v are left", left)
	}
	if got := log.count("left as it is"); got != 2 {
		t.Errorf("%d groups are reported:\n%s", got, &log)
	}
}

// The files of a topic that cannot be removed are no trouble for anybody, and are tried again at the next start.
func TestRemovalFails(t *testing.T) {
	mem := memfs.New()
	var log lines
	e := env(t, errfs.Wrap(mem, errfs.PathSuffix(".base", errfs.On(errfs.OpRemove, errfs.EIO))), 1)
	e.Logger = log.logger()
	n, err := Open(t.Context(), e, config)
	if err != nil {
		t.Fatal(err)
	}
	create(t, n, "gone", 2)
	create(t, n, "stays", 1)
	deleteTopic(t, n, "gone")
	awaitRemoval(t, n)
	if got := log.count("cannot remove the files"); got != 2 || len(groupDirs(t, mem)) != 3 {
		t.Errorf("%d groups %v are reported:\n%s", got, groupDirs(t, mem), &log)
	}
	closeNode(t, n)
	n = open(t, mem, 1)
	defer closeNode(t, n)
	awaitRemoval(t, n)
	if left := groupDirs(t, mem); len(left) != 1 {
		t.Errorf("groups %v are left", left)
	}
}

// DeleteTopic does not wait longer than its caller has time.
func TestDeleteWithoutTime(t *testing.T) {
	n := open(t, memfs.New(), 1)
	defer closeNode(t, n)
	topic := create(t, n, "payments", 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.DeleteTopic(ctx, topic); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, ok := n.Topics().ByName("payments"); !ok {
		t.Error("the topic is gone")
	}
}

// The machine goes down before each operation on the disk of a topic's whole life: it is made, filled, deleted, made again
// under the same name, filled again, and has its records deleted, while segments are begun and removed. What was answered
// holds, and nothing is left of what is gone.
func TestCrashOverATopicsLife(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for at := rand.IntN(*stride); ; at += *stride {
		rng := rand.New(rand.NewPCG(seed, uint64(at)))
		if !crashInLife(t, at, []int{0, 50}[rng.IntN(2)], rng) {
			if at < 100 {
				t.Fatalf("the script has only %d operations", at)
			}
			return
		}
	}
}

// life is what was answered: how often the topic was made and deleted, and how many batches are in the last one.
type life struct {
	id                     batch.ProducerID
	made, begun, deletions int // begun: deletions that were asked for
	batches                batch.Sequence
	each                   batch.Sequence // batches of a topic that is full
	logStart               batch.Offset
}

func crashInLife(t *testing.T, at, percent int, rng *rand.Rand) bool {
	mem := memfs.New()
	var mu sync.Mutex
	answered := life{each: 8}
	var atCrash life
	var left *memfs.FS
	count := 0
	fs := errfs.Wrap(mem, onOp(func(op errfs.Op) {
		mu.Lock()
		defer mu.Unlock()
		if op.Kind == errfs.OpSpace {
			return
		}
		if count == at {
			left, atCrash = mem.CrashClone(percent, rng), answered
		}
		count++
	}))
	note := func(f func()) { mu.Lock(); defer mu.Unlock(); f() }

	cfg := config
	cfg.SegmentEntries = 4
	n := openWith(t, fs, cfg)
	id := producerID(t, n)
	note(func() { answered.id = id })
	var topic *meta.Topic
	for round := range batch.Sequence(2) {
		topic = create(t, n, "topic", 2)
		note(func() { answered.made++ })
		for i := range answered.each {
			if a := produce(t, n, topic, id, answered.each*round+i); a.Err != nil {
				t.Fatal(a.Err)
			}
			note(func() { answered.batches++ })
		}
		if round == 0 {
			note(func() { answered.begun++ })
			deleteTopic(t, n, "topic")
			note(func() { answered.deletions++; answered.batches = 0 })
			awaitRemoval(t, n)
		}
	}
	p, _ := n.Partition(topic.ID, 0)
	for _, before := range []batch.Offset{5, -1} {
		start, err := p.DeleteRecords(t.Context(), before)
		if err != nil {
			t.Fatal(err)
		}
		note(func() { answered.logStart = start })
		p.Housekeep(replica.Retain)
	}
	closeNode(t, n)
	if left == nil {
		return false
	}
	atCrash.check(t, left, fmt.Sprintf("crash before operation %d, %d %% of what was not synced is left", at, percent))
	return true
}

func (l life) check(t *testing.T, fs *memfs.FS, when string) {
	t.Helper()
	n, err := Open(t.Context(), env(t, fs, 2), config)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	defer closeNode(t, n)
	topic, there := n.Topics().ByName("topic")
	must := l.made > l.begun
	may := must || l.made == l.deletions || l.begun > l.deletions
	if must && !there || there && !may {
		t.Fatalf("%s: the topic is there: %v, %+v", when, there, l)
	}
	awaitRemoval(t, n)
	want := 0
	if there {
		want = 2
	}
	if left := groupDirs(t, fs); len(left) != want {
		t.Fatalf("%s: groups %v are left, the topic is there: %v", when, left, there)
	}
	if !there {
		topic = create(t, n, "topic", 2)
	}
	if !must {
		return
	}
	// One more may be stored that was not answered, and has pushed the fifth out of the producer's window.
	if p, ok := n.Partition(topic.ID, 0); !ok || p.Status().LogStart < l.logStart || p.Status().NextOffset < batch.Offset(l.batches) {
		t.Fatalf("%s: %+v of %+v", when, p.Status(), l)
	}
	for i := max(0, l.batches-4); i < l.batches; i++ {
		if a := produce(t, n, topic, l.id, l.each*batch.Sequence(l.deletions)+i); a.Err != nil || a.Base != batch.Offset(i) || a.Decision.Verdict != dedupe.Duplicate {
			t.Fatalf("%s: retry of batch %d of %+v: %+v", when, i, l, a)
		}
	}
}

// segments returns the names of a group's files that end in a suffix.
func filesOf(t testing.TB, fs vfs.FS, group seglog.GroupID, suffix string) []string {
	t.Helper()
	dir := filepath.Join(config.Dir, "groups", fmt.Sprintf("%016x", uint64(group)))
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range names {
		if strings.HasSuffix(name, suffix) {
			found = append(found, filepath.Join(dir, name))
		}
	}
	return found
}
