package node

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// tight is for a disk of some MiB: segments of 64 batches of text16.
func tight() Config {
	cfg := config
	cfg.SegmentEntries = 64
	cfg.DiskLowWater, cfg.DiskReserve = 256<<10, 256<<10
	return cfg
}

// smallDisk is a disk of 8 MiB.
func smallDisk() *memfs.FS {
	mem := memfs.New()
	mem.SetCapacity(8 << 20)
	return mem
}

// openTight opens a node and waits until it has its reserve.
func openTight(t testing.TB, mem *memfs.FS, cfg Config) *Node {
	t.Helper()
	n := openWith(t, mem, cfg)
	pass(time.Second)
	return n
}

var text16 = strings.Repeat("0123456789abcdef", 1<<10)

// send submits a batch of 16 KiB. Its answer comes through the channel.
func send(t testing.TB, n *Node, topic *meta.Topic, id batch.ProducerID, sequence batch.Sequence) done {
	t.Helper()
	d := make(done, 1)
	submit(t, n, topic, submissionOf(t, id, sequence, d, text16))
	return d
}

// await waits for an answer, for a minute at most.
func await(t testing.TB, d done) replica.Ack {
	t.Helper()
	select {
	case a := <-d:
		return a
	case <-time.After(time.Minute):
		t.Error("no answer")
		return replica.Ack{Err: replica.ErrStopped}
	}
}

// sendUntil sends batches from a sequence on, one every 10 ms, until one ends with want, and returns its sequence.
func sendUntil(t testing.TB, n *Node, topic *meta.Topic, id batch.ProducerID, from batch.Sequence, want error) batch.Sequence {
	t.Helper()
	for i := from; i < from+10_000; i++ {
		a := await(t, send(t, n, topic, id, i))
		if errors.Is(a.Err, want) {
			return i
		}
		if a.Err != nil || a.Base != batch.Offset(i) {
			t.Fatalf("batch %d: %+v", i, a)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no batch ends with %v", want)
	return 0
}

func checkSpace(t testing.TB, mem *memfs.FS, least int64) {
	t.Helper()
	if free, _, err := mem.Space("/"); err != nil || free < least {
		t.Fatalf("%d bytes are free, %v, want %d", free, err, least)
	}
}

// The disk fills up by what is produced. Batches are refused before anything is written and before the disk is really full;
// retries of stored ones, reads, DeleteRecords and the deletion of topics go on; and what they free lets the refused
// batch in, once, without a restart.
func TestDiskFillsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := smallDisk()
		n := openTight(t, mem, tight())
		defer closeNode(t, n)
		id := producerID(t, n)
		other, topic := create(t, n, "other", 1), create(t, n, "payments", 1)
		if a := await(t, send(t, n, other, id, 0)); a.Err != nil {
			t.Fatal(a.Err)
		}
		next := sendUntil(t, n, topic, id, 0, replica.ErrDiskFull)
		for round := range 3 {
			checkSpace(t, mem, 100<<10)
			for i := range batch.Sequence(5) {
				if a := await(t, send(t, n, topic, id, next-1-i)); a.Err != nil || a.Base != batch.Offset(next-1-i) || a.Decision.Verdict != dedupe.Duplicate {
					t.Fatalf("round %d: retry of batch %d: %+v", round, next-1-i, a)
				}
			}
			if a := await(t, send(t, n, other, id, 1)); !errors.Is(a.Err, replica.ErrDiskFull) {
				t.Fatalf("round %d: the other partition answers %+v", round, a)
			}
			if _, err := n.CreateTopic(t.Context(), NewTopic{Name: "more", Partitions: 1, Replication: -1}, false); !errors.Is(err, replica.ErrDiskFull) {
				t.Fatalf("round %d: a topic is created: %v", round, err)
			}
			readAll(t, n, topic)
			if round == 2 {
				break
			}
			p, _ := n.Partition(topic.ID, 0)
			if start, err := p.DeleteRecords(t.Context(), -1); err != nil || start != batch.Offset(next) {
				t.Fatalf("round %d: delete records: %d, %v, want %d", round, start, err, next)
			}
			pass(10 * time.Second)
			next = sendUntil(t, n, topic, id, next, replica.ErrDiskFull)
		}
		deleteTopic(t, n, "payments")
		pass(10 * time.Second)
		if a := await(t, send(t, n, other, id, 1)); a.Err != nil || a.Base != 1 {
			t.Fatalf("after the other topic was deleted: %+v", a)
		}
		if all, _ := readAll(t, n, other); len(all) < 2*len(text16) {
			t.Fatalf("%d bytes are read", len(all))
		}
	})
}

// Somebody else fills the disk, so that a write fails in its middle. What was accepted is kept and finished when there
// is room: nothing is failed, nothing is stored twice, nothing ends. The reserve is that room, the first time.
func TestDiskIsFilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := smallDisk()
		cfg := tight()
		cfg.DiskLowWater = 1 // so that batches go on until a write fails
		n := openTight(t, mem, cfg)
		defer closeNode(t, n)
		w := &watched{mem: mem}
		id := producerID(t, n)
		topic := create(t, n, "payments", 1)
		w.fill(t, 40<<10)
		// The disk has room for two batches of 16 KiB, the reserve for some more.
		next := sendUntil(t, n, topic, id, 0, replica.ErrDiskFull)
		if next < 2 || next > 4 {
			t.Fatalf("%d batches found room", next)
		}
		pass(2 * fullLeast)
		for w.fill(t, 0); ; next++ { // the reserve as well
			d := send(t, n, topic, id, next)
			pass(time.Second)
			select {
			case a := <-d:
				if a.Err != nil || a.Base != batch.Offset(next) {
					t.Fatalf("batch %d: %+v", next, a)
				}
				continue
			default:
			}
			testParked(t, n, w, topic, id, next, d)
			return
		}
	})
}

// testParked has a batch wait for the disk for a while, and lets it be written then.
func testParked(t *testing.T, n *Node, w *watched, topic *meta.Topic, id batch.ProducerID, waits batch.Sequence, answer done) {
	retry := send(t, n, topic, id, waits)
	if a := await(t, send(t, n, topic, id, waits+1)); !errors.Is(a.Err, replica.ErrDiskFull) {
		t.Fatalf("a new batch is answered with %+v", a)
	}
	pass(time.Minute)
	if len(answer) > 0 || len(retry) > 0 {
		t.Fatal("a batch that is not on disk was answered")
	}
	readAll(t, n, topic)
	w.clear(t)
	pass(2 * fullLeast)
	for _, d := range []done{answer, retry} {
		if a := <-d; a.Err != nil || a.Base != batch.Offset(waits) {
			t.Fatalf("the batch that waited: %+v", a)
		}
	}
	if a := await(t, send(t, n, topic, id, waits+1)); a.Err != nil || a.Base != batch.Offset(waits)+1 {
		t.Fatalf("the next batch: %+v", a)
	}
	if _, offsets := readAll(t, n, topic); len(offsets) != int(waits)+2 {
		t.Fatalf("batches %v", offsets)
	}
}

// A node is stopped, and started again, while the disk is full and the reserve is used up. The stop does not wait for room.
// The start does, if it needs any, and goes on by itself.
func TestRestartOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := smallDisk()
		cfg := tight()
		cfg.DiskLowWater = 1
		n := openTight(t, mem, cfg)
		w := &watched{mem: mem}
		id := producerID(t, n)
		topic := create(t, n, "payments", 1)
		if a := await(t, send(t, n, topic, id, 0)); a.Err != nil {
			t.Fatal(a.Err)
		}
		if err := mem.Remove(config.Dir + "/" + reserveName); err != nil {
			t.Fatal(err)
		}
		w.fill(t, 0)
		d := send(t, n, topic, id, 1)
		pass(time.Minute)
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if a := <-d; !errors.Is(a.Err, replica.ErrStopped) {
			t.Errorf("the batch that waited is answered with %+v", a)
		}

		opened := make(chan *Node)
		go func() {
			n, err := Open(t.Context(), env(t, mem, 1), cfg)
			if err != nil {
				t.Errorf("start: %v", err)
			}
			opened <- n
		}()
		pass(time.Minute)
		w.clear(t)
		n = <-opened
		pass(2 * fullLeast)
		for i := range batch.Sequence(3) {
			if a := await(t, send(t, n, topic, id, i)); a.Err != nil || a.Base != batch.Offset(i) {
				t.Errorf("batch %d after the restart: %+v", i, a)
			}
		}
		closeNode(t, n)
	})
}

// There is no room to make the partitions of a new topic, in spite of the low-water mark. The topic exists, its partitions
// answer as a full disk does, and come to be when there is room; or go, when the topic is deleted before.
func TestNoRoomForATopic(t *testing.T) {
	for _, removed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			mem := smallDisk()
			cfg := tight()
			cfg.DiskLowWater = 1
			n := openTight(t, mem, cfg)
			w := &watched{mem: mem}
			id := producerID(t, n)
			w.fill(t, 0)
			if err := mem.Remove(config.Dir + "/" + reserveName); err != nil {
				t.Fatal(err)
			}
			w.fill(t, 8192) // enough for raft0, too little for the partitions
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			_, err := n.CreateTopic(ctx, NewTopic{Name: "payments", Partitions: 3, Replication: -1}, false)
			cancel()
			// One that was made in spite of all may wait with its first entry.
			if !errors.Is(err, replica.ErrDiskFull) && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("created: %v", err)
			}
			topic, ok := n.Topics().ByName("payments")
			if !ok {
				t.Fatal("the topic does not exist")
			}
			if removed {
				w.clear(t)
				deleteTopic(t, n, "payments")
				pass(time.Minute)
				if left := groupDirs(t, mem); len(left) > 0 {
					t.Errorf("groups %v are left", left)
				}
			} else {
				pass(time.Minute)
				w.clear(t)
				pass(time.Minute)
				if a := await(t, send(t, n, topic, id, 0)); a.Err != nil || a.Base != 0 {
					t.Errorf("with room again: %+v", a)
				}
			}
			closeNode(t, n)
			closeNode(t, openWith(t, mem, cfg))
		})
	}
}

// switched is an injector that can be switched on.
type switched struct {
	errfs.Injector
	on atomic.Bool
}

func (s *switched) Inject(op errfs.Op) error {
	if s.on.Load() {
		return s.Injector.Inject(op)
	}
	return nil
}

// To remove the files of a topic something has to be written first. When there is no room even for that, they are removed
// when there is.
func TestNoRoomToRemoveFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memfs.New()
		full := &switched{Injector: errfs.PathSuffix("state-0000000000000001.tmp", errfs.On(errfs.OpWrite, errfs.ENOSPC))}
		n := openWith(t, errfs.Wrap(mem, full), tight())
		defer closeNode(t, n)
		create(t, n, "payments", 3)
		full.on.Store(true)
		deleteTopic(t, n, "payments")
		pass(time.Minute)
		if left := groupDirs(t, mem); len(left) != 3 {
			t.Errorf("groups %v are left", left)
		}
		full.on.Store(false)
		pass(2 * fullLeast)
		if left := groupDirs(t, mem); len(left) != 0 {
			t.Errorf("groups %v are left with room again", left)
		}
	})
}

// A partition that cannot be made, for any reason but the loss of what was written, does not end the node: it is offline, and
// made later.
func TestPartitionIsMadeLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := &switched{Injector: errfs.On(errfs.OpCreate, errfs.Fail(syscall.EMFILE))}
		n := openWith(t, errfs.Wrap(memfs.New(), bad), tight())
		defer closeNode(t, n)
		id := producerID(t, n)
		bad.on.Store(true)
		if _, err := n.CreateTopic(t.Context(), NewTopic{Name: "payments", Partitions: 2, Replication: -1}, false); !errors.Is(err, replica.ErrOffline) || !errors.Is(err, syscall.EMFILE) {
			t.Fatalf("created: %v", err)
		}
		topic, _ := n.Topics().ByName("payments")
		if a := produce(t, n, topic, id, 0); !errors.Is(a.Err, replica.ErrOffline) {
			t.Errorf("answers %+v", a)
		}
		pass(2 * retryInterval)
		bad.on.Store(false)
		pass(retryInterval)
		if a := produce(t, n, topic, id, 0); a.Err != nil || a.Base != 0 {
			t.Errorf("later: %+v", a)
		}
	})
}

// When the disk fills up, retention does not wait for its time: what has expired makes room at once.
func TestRetentionMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := smallDisk()
		cfg := tight()
		cfg.RetentionInterval, cfg.Settings.Retention = 1000*time.Hour, time.Hour
		n := openTight(t, mem, cfg)
		defer closeNode(t, n)
		id, topic := producerID(t, n), create(t, n, "payments", 1)
		for i := range batch.Sequence(200) {
			if a := await(t, send(t, n, topic, id, i)); a.Err != nil {
				t.Fatal(a.Err)
			}
		}
		pass(2 * time.Hour)
		w := &watched{mem: mem}
		w.fill(t, cfg.DiskLowWater-4096)
		pass(10 * time.Second)
		checkSpace(t, mem, 3<<20)
		if a := await(t, send(t, n, topic, id, 200)); a.Err != nil || a.Base != 200 {
			t.Errorf("with the room that retention made: %+v", a)
		}
	})
}

// A start that meets a full disk, in the state file or in raft0, uses the reserve.
func TestReserveIsForTheStart(t *testing.T) {
	for _, suffix := range []string{"state-0000000000000001", groupName(raft0) + "/00000000000000000002.log"} {
		mem := memfs.New()
		n := open(t, mem, 1)
		topic, id := create(t, n, "payments", 1), producerID(t, n)
		if a := produce(t, n, topic, id, 0); a.Err != nil {
			t.Fatal(a.Err)
		}
		n.space.allocate()
		left := mem.KillClone()
		closeNode(t, n)
		full := errfs.OnIndex(0, errfs.ENOSPC)
		given := false
		n = open(t, errfs.Wrap(left, both{
			errfs.PathSuffix(suffix, errfs.On(errfs.OpWrite, full)),
			errfs.PathSuffix(reserveName, errfs.On(errfs.OpRemove, onOp(func(errfs.Op) { given = true }))),
		}), 1)
		if a := produce(t, n, topic, id, 0); a.Err != nil || a.Base != 0 || !full.Reached() || !given {
			t.Errorf("%s: %+v, met a full disk: %v, reserve given back: %v", suffix, a, full.Reached(), given)
		}
		closeNode(t, n)
	}
}

// both asks two injectors.
type both [2]errfs.Injector

func (b both) Inject(op errfs.Op) error { return errors.Join(b[0].Inject(op), b[1].Inject(op)) }
func (b both) String() string           { return b[0].String() + ", " + b[1].String() }
