package node

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// small has segments of a few entries, so that a short script has several of them, with their base snapshots.
func small() Config {
	cfg := config
	cfg.SegmentEntries = 8
	return cfg
}

// change gives a file another content, on the disk itself.
func change(t testing.TB, fs vfs.FS, name string, f func([]byte) []byte) {
	t.Helper()
	b := f(bytes.Clone(content(t, fs, name)))
	file, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteAt(b, 0)
	if err = errors.Join(err, file.Truncate(int64(len(b))), file.SyncData(), file.Close()); err != nil {
		t.Fatal(err)
	}
}

// readAll returns all records of partition 0 of a topic, and the base offsets of the batches.
func readAll(t testing.TB, n *Node, topic *meta.Topic) (all []byte, offsets []batch.Offset) {
	t.Helper()
	p, ok := n.Partition(topic.ID, 0)
	if !ok {
		t.Fatalf("topic %s has no partition 0 here", topic.Name)
	}
	all, err := p.Read(nil, p.Status().LogStart, 1<<30, true)
	if err != nil {
		t.Fatalf("read %s: %v", topic.Name, err)
	}
	for left := all; len(left) > 0; left = left[12+binary.BigEndian.Uint32(left[8:]):] {
		offsets = append(offsets, batch.Offset(binary.BigEndian.Uint64(left)))
	}
	return all, offsets
}

// openSaying opens a node that logs into said.
func openSaying(t testing.TB, fs vfs.FS, cfg Config, said *lines) *Node {
	t.Helper()
	e := env(t, fs, 1)
	e.Logger = said.logger()
	n, err := Open(t.Context(), e, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// lastBatch is the position of the last batch in a segment that holds some of those of produce.
func lastBatch(b []byte) int { return bytes.LastIndex(b, []byte("record")) - batch.HeaderSize }

// filled is a closed node with the topics "damaged" and "whole", five batches of one producer in each. It returns the ids.
func filled(t testing.TB, fs vfs.FS, cfg Config) (id batch.ProducerID) {
	t.Helper()
	n := openWith(t, fs, cfg)
	id = producerID(t, n)
	for _, name := range []string{"damaged", "whole"} {
		topic := create(t, n, name, 1)
		for i := range batch.Sequence(5) {
			if a := produce(t, n, topic, id, i); a.Err != nil {
				t.Fatal(a.Err)
			}
		}
	}
	closeNode(t, n)
	return id
}

// Damage in one partition keeps that one offline, and says where. The node is up, the other partition serves, and the
// damaged one goes on when its operator gives up what is damaged: then any producer may begin anywhere in it.
func TestDamagedPartition(t *testing.T) {
	fs := memfs.New()
	id := filled(t, fs, config)
	log := filesOf(t, fs, 1, ".log")[0]
	var position int
	change(t, fs, log, func(b []byte) []byte {
		position = lastBatch(b)
		b[len(b)-1] ^= 1
		return b
	})
	where := fmt.Sprintf("%s is damaged at byte %d", filepath.Base(log), position)

	var said lines
	n := openSaying(t, fs, config, &said)
	if got := said.count("level=ERROR"); got != 1 || said.count(where) != 1 || said.count("topic=damaged partition=0") != 1 {
		t.Errorf("%d errors are logged, want one with %q:\n%s", got, where, &said)
	}
	offline := func(err error) {
		t.Helper()
		if !errors.Is(err, replica.ErrOffline) || !strings.Contains(err.Error(), where) {
			t.Errorf("answers %v, want ErrOffline with %q", err, where)
		}
	}
	damaged, _ := n.Topics().ByName("damaged")
	whole, _ := n.Topics().ByName("whole")
	offline(produce(t, n, damaged, id, 4).Err)
	offline(produce(t, n, damaged, id, 5).Err)
	p, _ := n.Partition(damaged.ID, 0)
	_, err := p.Read(nil, 0, 1000, true)
	offline(err)
	if st := p.Status(); st.Ready || st.Offline == nil || st.Term != 2 { // that in which it was filled
		t.Errorf("status %+v", st)
	}
	if a := produce(t, n, whole, id, 4); a.Err != nil || a.Base != 4 {
		t.Errorf("retry on the other partition: %+v", a)
	}
	if _, err := Inspect(env(t, fs, 1), config.Dir); !errors.Is(err, ErrInUse) {
		t.Errorf("inspected while a node runs: %v", err)
	}
	closeNode(t, n)

	testGiveUp(t, fs, filepath.Base(log), position)

	n = open(t, fs, 1)
	defer closeNode(t, n)
	if _, offsets := readAll(t, n, damaged); len(offsets) != 4 || offsets[3] != 3 {
		t.Errorf("after giving up there are the batches %v", offsets)
	}
	if a := produce(t, n, damaged, id+1<<32, 17); a.Err != nil || a.Base != 4 {
		t.Errorf("after giving up a new producer begins in the middle: %+v", a)
	}
	if a := produce(t, n, damaged, id, 3); a.Err != nil || a.Base != 3 || a.Decision.Verdict != dedupe.Duplicate {
		t.Errorf("retry of a batch that is there: %+v", a)
	}
	if len(filesOf(t, fs, 1, ".cut")) == 0 {
		t.Error("what was given up is not kept")
	}
}

// testGiveUp has the partition "damaged" be inspected and given up: the others are not to be.
func testGiveUp(t *testing.T, fs vfs.FS, file string, position int) {
	t.Helper()
	e := env(t, fs, 1)
	found, err := Inspect(e, config.Dir)
	if err != nil || len(found.Problems) > 0 || len(found.Groups) != 3 {
		t.Fatalf("inspection: %+v, %v", found, err)
	}
	for _, g := range found.Groups {
		if g.Topic != "damaged" {
			if !g.Opens || len(g.Findings) > 0 {
				t.Errorf("%+v", g)
			}
			continue
		}
		if g.Opens || !g.Salvageable || g.LostFrom != 4 || g.LostOffsets != 1 || len(g.Findings) != 1 ||
			filepath.Base(g.Findings[0].File) != file || g.Findings[0].Position != int64(position) {
			t.Errorf("the damaged partition: %+v", g)
		}
	}
	for _, c := range []struct {
		topic     string
		partition int32
	}{{"whole", 0}, {"damaged", 1}, {"damaged", -1}, {"none", 0}} {
		if _, err := GiveUp(e, config.Dir, c.topic, c.partition); err == nil || (c.topic != "whole") != errors.Is(err, meta.ErrUnknownTopic) {
			t.Errorf("give up %s/%d: %v", c.topic, c.partition, err)
		}
	}
	lost, err := GiveUp(e, config.Dir, "damaged", 0)
	if err != nil || lost.LostFrom != 4 || lost.LostOffsets != 1 {
		t.Fatalf("given up: %+v, %v", lost, err)
	}
	if found, err = Inspect(e, config.Dir); err != nil || !found.Groups[1].Opens || len(found.Groups[1].Findings) > 0 {
		t.Errorf("inspection after giving up: %+v, %v", found.Groups[1], err)
	}
}

// Whatever is missing or unreadable of a partition, only that one is offline.
func TestQuarantine(t *testing.T) {
	const damaged = 1 // its group
	dir := filepath.Join(config.Dir, groupsName, groupName(damaged))
	removeAll := func(t *testing.T, fs *memfs.FS, suffix string) {
		for _, name := range filesOf(t, fs, damaged, suffix) {
			if err := fs.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name string
		do   func(t *testing.T, fs *memfs.FS) vfs.FS
	}{
		{"no files", func(t *testing.T, fs *memfs.FS) vfs.FS { removeAll(t, fs, ""); return fs }},
		{"no directory", func(t *testing.T, fs *memfs.FS) vfs.FS {
			removeAll(t, fs, "")
			if err := fs.Remove(dir); err != nil {
				t.Fatal(err)
			}
			return fs
		}},
		{"no segments", func(t *testing.T, fs *memfs.FS) vfs.FS { removeAll(t, fs, ".log"); return fs }},
		{"files of another group", func(t *testing.T, fs *memfs.FS) vfs.FS {
			foreign := content(t, fs, filesOf(t, fs, 2, ".log")[0])
			change(t, fs, filesOf(t, fs, damaged, ".log")[0], func([]byte) []byte { return foreign })
			return fs
		}},
		{"cut below the mark", func(t *testing.T, fs *memfs.FS) vfs.FS {
			change(t, fs, filesOf(t, fs, damaged, ".log")[0], func(b []byte) []byte { return b[:lastBatch(b)] })
			return fs
		}},
		{"the disk cannot read it", func(t *testing.T, fs *memfs.FS) vfs.FS {
			return errfs.Wrap(fs, errfs.PathSuffix(filesOf(t, fs, damaged, ".log")[0], errfs.On(errfs.OpRead, errfs.EIO)))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := memfs.New()
			id := filled(t, mem, config)
			fs := c.do(t, mem)
			var said lines
			n := openSaying(t, fs, config, &said)
			for name, want := range map[string]error{"damaged": replica.ErrOffline, "whole": nil} {
				topic, _ := n.Topics().ByName(name)
				if a := produce(t, n, topic, id, 4); !errors.Is(a.Err, want) {
					t.Errorf("%s answers %+v", name, a)
				}
			}
			if got := said.count("level=ERROR"); got != 1 || said.count("is damaged and stays offline") != 1 || said.count(groupName(damaged)) == 0 {
				t.Errorf("%d errors are logged:\n%s", got, &said)
			}
			deleteTopic(t, n, "damaged") // a way out, when there is nothing to save
			awaitRemoval(t, n)
			create(t, n, "damaged", 1)
			closeNode(t, n)
			closeNode(t, open(t, mem, 1))
		})
	}
}

// Damage of what all partitions depend on ends the start, and nothing is changed. Never are a partition's files taken for
// those of a deleted topic because raft0 has forgotten it.
func TestDamagedMetadata(t *testing.T) {
	raft0Files := func(t *testing.T, fs *memfs.FS) []string { return filesOf(t, fs, raft0, "") }
	for _, c := range []struct {
		name string
		do   func(t *testing.T, fs *memfs.FS)
	}{
		{"raft0 is gone", func(t *testing.T, fs *memfs.FS) {
			for _, name := range raft0Files(t, fs) {
				if err := fs.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"raft0 is empty", func(t *testing.T, fs *memfs.FS) {
			for _, name := range raft0Files(t, fs) {
				change(t, fs, name, func([]byte) []byte { return nil })
			}
		}},
		{"raft0's log has a bad byte", func(t *testing.T, fs *memfs.FS) {
			change(t, fs, filesOf(t, fs, raft0, ".log")[0], func(b []byte) []byte { b[200] ^= 1; return b })
		}},
		{"raft0's log is as of birth", func(t *testing.T, fs *memfs.FS) {
			change(t, fs, filesOf(t, fs, raft0, ".log")[0], func(b []byte) []byte { return b[:96] })
		}},
		{"the state file has a bad byte", func(t *testing.T, fs *memfs.FS) {
			change(t, fs, filepath.Join(config.Dir, "state-0000000000000001"), func(b []byte) []byte { b[100] ^= 1; return b })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := memfs.New()
			filled(t, fs, config)
			c.do(t, fs)
			before := listing(t, fs, config.Dir)
			if _, err := Open(t.Context(), env(t, fs, 1), config); !errors.Is(err, ErrDamage) {
				t.Errorf("opened with %v, want ErrDamage", err)
			}
			found, err := Inspect(env(t, fs, 1), config.Dir)
			if err != nil || len(found.Problems) != 1 {
				t.Errorf("inspection: %+v, %v", found.Problems, err)
			}
			if after := listing(t, fs, config.Dir); after != before {
				t.Errorf("the directory was\n%s\nand is\n%s", before, after)
			}
		})
	}
}

// listing has the name and size of each file below dir, and its bytes as a checksum.
func listing(t testing.TB, fs vfs.FS, dir string) string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, name := range names {
		path := filepath.Join(dir, name)
		if _, err := fs.List(path); err == nil {
			all.WriteString(listing(t, fs, path))
		} else if name != reserveName {
			b := content(t, fs, path)
			fmt.Fprintf(&all, "%s %d %x\n", path, len(b), crc32.ChecksumIEEE(b))
		}
	}
	return all.String()
}

// TestDerivedFiles damages each file that is neither log nor state, after the process was killed: the node starts, says so
// in a line, and serves the same records; retries of the last five batches get their offsets.
func TestDerivedFiles(t *testing.T) {
	var killed *memfs.FS
	var topic *meta.Topic
	var id batch.ProducerID
	var want []byte
	synctest.Test(t, func(t *testing.T) {
		mem := memfs.New()
		n := openWith(t, mem, small())
		id, topic = producerID(t, n), create(t, n, "payments", 1)
		for i := range batch.Sequence(30) {
			if a := produce(t, n, topic, id, i); a.Err != nil {
				t.Fatal(a.Err)
			}
			synctest.Wait() // until the base snapshot is written, when there is one to be
		}
		var offsets []batch.Offset
		if want, offsets = readAll(t, n, topic); len(offsets) != 30 {
			t.Fatalf("batches %v", offsets)
		}
		killed = mem.KillClone()
		closeNode(t, n)
	})
	files := 0
	for _, g := range []seglog.GroupID{raft0, 1} {
		for _, suffix := range []string{".idx", ".base"} {
			names := filesOf(t, killed, g, suffix)
			for i, name := range names {
				files++
				lines := 1
				if suffix == ".base" && i < len(names)-1 {
					lines = 0 // nobody reads an older one before it is needed
				}
				for kind, damage := range derivedDamage(t) {
					t.Run(fmt.Sprintf("%s of group %d %s", filepath.Base(name), g, kind), func(t *testing.T) {
						fs := killed.KillClone()
						damage(fs, name)
						synctest.Test(t, func(t *testing.T) { testDerived(t, fs, name, lines, topic, id, want) })
					})
				}
			}
		}
	}
	if files < 10 {
		t.Errorf("only %d files were damaged", files)
	}
}

func derivedDamage(t *testing.T) map[string]func(fs *memfs.FS, name string) {
	changed := func(f func([]byte) []byte) func(*memfs.FS, string) {
		return func(fs *memfs.FS, name string) { change(t, fs, name, f) }
	}
	return map[string]func(fs *memfs.FS, name string){
		"removed": func(fs *memfs.FS, name string) {
			if err := fs.Remove(name); err != nil {
				t.Fatal(err)
			}
		},
		"cut to nothing":    changed(func([]byte) []byte { return nil }),
		"cut in the middle": changed(func(b []byte) []byte { return b[:len(b)/2] }),
		"with a zeroed end": changed(func(b []byte) []byte { clear(b[max(0, len(b)-64):]); return b }),
	}
}

func testDerived(t *testing.T, fs *memfs.FS, name string, wantLines int, topic *meta.Topic, id batch.ProducerID, want []byte) {
	var said lines
	for start := range 2 {
		n := openSaying(t, fs, small(), &said)
		if got, _ := readAll(t, n, topic); !bytes.Equal(got, want) {
			t.Errorf("start %d: %d bytes of records, or others, want %d", start, len(got), len(want))
		}
		for i := batch.Sequence(25); i < 30; i++ {
			if a := produce(t, n, topic, id, i); a.Err != nil || a.Base != batch.Offset(i) {
				t.Errorf("start %d: retry of batch %d: %+v", start, i, a)
			}
		}
		synctest.Wait()
		closeNode(t, n)
	}
	if got := said.lines(filepath.Base(name)); got != wantLines || said.count("\n") != got {
		t.Errorf("%d lines name the file, want %d:\n%s", got, wantLines, &said)
	}
}

// Whether all logs were read back since the machine came up decides how the next start judges a bad end. One that the disk
// could not read was not; one that is damaged was.
func TestRecoveryIsFinished(t *testing.T) {
	mem := memfs.New()
	filled(t, mem, config)
	log := filesOf(t, mem, 1, ".log")[0]
	unreadable := errfs.Wrap(mem, errfs.PathSuffix(log, errfs.On(errfs.OpRead, errfs.EIO)))
	for i, start := range []struct {
		fs   vfs.FS
		boot byte
		same bool
	}{
		{mem, 1, true}, {unreadable, 2, false}, {mem, 2, false}, {mem, 2, true}, {mem, 3, false}, {mem, 3, true},
	} {
		if i == 4 {
			change(t, mem, log, func(b []byte) []byte { b[lastBatch(b)+70] ^= 1; return b })
		}
		n := open(t, start.fs, start.boot)
		if n.sameBoot != start.same {
			t.Errorf("start %d: the machine was up since: %v", i, n.sameBoot)
		}
		closeNode(t, n)
	}
}

// A copy of a directory, which has no LOCK, is inspected and left as it is. Where no node was, nothing is said.
func TestInspectCopy(t *testing.T) {
	fs := memfs.New()
	filled(t, fs, config)
	if err := fs.Remove(filepath.Join(config.Dir, lockName)); err != nil {
		t.Fatal(err)
	}
	before := listing(t, fs, config.Dir)
	found, err := Inspect(env(t, fs, 9), config.Dir)
	if err != nil || len(found.Groups) != 3 || len(found.Problems)+len(found.Warnings) > 0 || found.Groups[2].Next != 5 {
		t.Errorf("inspection %+v, %v", found, err)
	}
	if after := listing(t, fs, config.Dir); after != before {
		t.Errorf("the directory was\n%s\nand is\n%s", before, after)
	}
	if err := fs.MkdirAll("var/empty"); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"var/empty", "var/none"} {
		if _, err := Inspect(env(t, fs, 1), dir); err == nil {
			t.Errorf("%s is inspected", dir)
		}
		if _, err := GiveUp(env(t, fs, 1), dir, "damaged", 0); err == nil {
			t.Errorf("%s is given up", dir)
		}
	}
	if names, err := fs.List("var/empty"); err != nil || len(names) > 0 {
		t.Errorf("%v was made, %v", names, err)
	}
}
