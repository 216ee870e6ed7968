package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// A broker had the sequence counted before the record was on disk; the write failed, the retry was called a duplicate, and
// the record was nowhere (nisshi-io/nisshi issue 742, Apache Kafka KAFKA-6683). Right is: what is answered with success
// is there, once, at the offset of the answer; and a batch that was refused has used up no sequence. Here the process is
// killed at each step of a batch's way.
func TestKilledOnTheWayToTheDisk(t *testing.T) {
	t.Parallel()
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	p := newProducerOn(t, b)
	sequence := batch.Sequence(0)
	for _, moment := range []struct {
		name string
		wait func(frame []byte)
	}{
		{"half of the request is sent", func(frame []byte) { mustSend(t, p.c, frame[:len(frame)/2]) }},
		{"the request is sent", func(frame []byte) { mustSend(t, p.c, frame) }},
		{"the request is sent, again", func(frame []byte) { mustSend(t, p.c, frame) }},
		{"it is sent and another one is answered", func(frame []byte) {
			mustSend(t, p.c, frame)
			newProducerID(t, dial(t, b))
		}},
		{"it is stored", func(frame []byte) {
			mustSend(t, p.c, frame)
			awaitHighWatermark(t, dial(t, b), p.topic, p.next(), p.next()+3)
		}},
		{"it is answered", func(frame []byte) {
			mustSend(t, p.c, frame)
			if _, err := p.c.ReceiveFrame(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		frame, _ := p.c.Frame(p.request(p.bytes(0, sequence, 3)))
		moment.wait(frame)
		base := p.next()
		b = restarted(t, b, syscall.SIGKILL)
		p.c = dial(t, b)
		if a := p.send(0, sequence, 3); a.Code != 0 || a.Base != base {
			t.Fatalf("%s: the retry was answered with code %d offset %d (%s), want 0 and %d", moment.name, a.Code, a.Base, a.Text, base)
		}
		p.stored(0, sequence, 3)
		p.again(0, sequence, 3, base)
		p.mustHold(t, p.c, 0)
		sequence += 3
	}
	p.store(0, sequence, 1)
}

func mustSend(t *testing.T, c *rawkafka.Client, raw []byte) {
	t.Helper()
	if err := c.SendRaw(raw); err != nil {
		t.Fatal(err)
	}
}

// The same report, with a write that fails in the middle: the process may not make files larger than so many blocks, so
// at some byte of some batch the kernel writes a part and then no more. The process ends, acknowledging nothing of it.
func TestWriteCutShort(t *testing.T) {
	t.Parallel()
	for i, size := range []int{100, 1000, 3333, 20_000} {
		blocks := 100 + 17*i // of 512 bytes
		limited := filepath.Join(t.TempDir(), "limited")
		script := fmt.Sprintf("#!/bin/sh\nulimit -f %d && exec %s \"$@\"\n", blocks, oncemq(t))
		if err := os.WriteFile(limited, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		b := startBinary(t, limited, t.TempDir()+"/data")
		p := newProducerOn(t, b)
		raw := func(sequence batch.Sequence) []byte {
			payload := fmt.Appendf(nil, "payload %d ", sequence)
			return rawkafka.Idempotent(p.id, 0, sequence, append(payload, bytes.Repeat([]byte("."), size)...)).Bytes()
		}
		sequence := batch.Sequence(0)
		for ; sequence < 10_000; sequence++ {
			a, err := p.c.Produce(rawkafka.ProduceVersion, p.topic, 0, raw(sequence))
			if err != nil {
				break
			}
			if a.Code != 0 || a.Base != batch.Offset(sequence) {
				t.Fatalf("batch %d: code %d offset %d (%s)", sequence, a.Code, a.Base, a.Text)
			}
		}
		if code, err := waitExit(t, b); err != nil || code == 0 {
			t.Fatalf("after batch %d of %d bytes the broker ended with code %d, %v, want a failure:\n%s", sequence, size, code, err, b.Output())
		}
		b = ownBroker(t, testbroker.Config{Data: b.Config().Data})
		p.c = dial(t, b)
		for _, s := range []batch.Sequence{sequence, sequence, sequence + 1, sequence - 1} {
			mustStore(t, p.c, p.topic, raw(s), batch.Offset(s))
		}
		log, end, err := p.c.ReadLog(rawkafka.FetchVersion, p.topic, 0)
		if err != nil || end != batch.Offset(sequence+2) {
			t.Fatalf("the log ends at %d, %v, want %d", end, err, sequence+2)
		}
		for i, b := range log {
			if b.Sequence != batch.Sequence(i) || len(b.Records) != 1 || !bytes.HasPrefix(b.Records[0], fmt.Appendf(nil, "payload %d ", i)) {
				t.Fatalf("offset %d holds sequence %d with %.20q", b.BaseOffset, b.Sequence, b.Records)
			}
		}
	}
}

// And its third part: whatever a batch is refused for before it is appended, its sequence is still free.
func TestRefusedBatchUsesNoSequence(t *testing.T) {
	t.Parallel()
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data", Set: []string{"message.max.bytes=10000"}})
	p := newProducerOn(t, b)
	sequence := batch.Sequence(0)
	for _, bad := range append(badBatches, badBatch{"too large", func(b []byte) []byte {
		return rawkafka.Idempotent(p.id, 0, sequence, bytes.Repeat([]byte("x"), 20_000), nil, nil).Bytes()
	}, codeTooLarge}) {
		raw := bad.edit(p.bytes(0, sequence, 3))
		if a := produce(t, p.c, p.topic, raw); a.Code != bad.code || a.Base != noOffset {
			t.Errorf("%s: answered code %d offset %d (%s), want code %d", bad.name, a.Code, a.Base, a.Text, bad.code)
		}
		p.refused(0, sequence+3, 1, codeOutOfOrder)
		p.store(0, sequence, 3)
		sequence += 3
	}
	p.mustHold(t, p.c, 0)
}

// A file that can be made from the log was damaged by a hard stop, and the broker did not start any more, or needed hands
// (liftbridge-io/liftbridge issue 411, redpanda-data/redpanda issue 10118, apache/iggy pull 3970). Right is: it starts,
// makes the file anew, says so, and remembers of records and producers what it did before.
func TestDerivedFilesAreMadeAnew(t *testing.T) {
	t.Parallel()
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data", Set: []string{"log.segment.entries=16", "disk.reserve.bytes=4096"}})
	p := newProducerOn(t, b)
	for i := range batch.Sequence(56) {
		p.store(0, 2*i, 2)
	}
	if err := b.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := waitExit(t, b); err != nil {
		t.Fatal(err)
	}
	for name, files := range derivedFiles(t, b.Config().Data) {
		for _, harm := range harms {
			t.Run(name+" "+harm.name, func(t *testing.T) {
				data := filepath.Join(t.TempDir(), "data")
				if err := os.CopyFS(data, os.DirFS(b.Config().Data)); err != nil {
					t.Fatal(err)
				}
				for _, file := range files {
					if err := harm.do(filepath.Join(data, file)); err != nil {
						t.Fatal(err)
					}
				}
				b := ownBroker(t, testbroker.Config{Data: data, Set: b.Config().Set})
				p := &producer{t: t, c: dial(t, b), id: p.id, ledger: &ledger{topic: p.topic, records: slices.Clone(p.records)}}
				for i := batch.Sequence(51); i < 56; i++ {
					p.again(0, 2*i, 2, batch.Offset(2*i))
				}
				p.mustHold(t, p.c, 0)
				p.store(0, 2*56, 1)
				p.mustHold(t, p.c, 0)
				if file := files[len(files)-1]; !strings.Contains(b.Output(), filepath.Base(file)) {
					t.Errorf("the broker says nothing of %s:\n%s", file, b.Output())
				}
			})
		}
	}
}

// harms are what becomes of a file.
var harms = []struct {
	name string
	do   func(path string) error
}{
	{"removed", os.Remove},
	{"empty", func(path string) error { return os.Truncate(path, 0) }},
	{"cut in the middle", func(path string) error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		return os.Truncate(path, info.Size()/2)
	}},
	{"with zeros at the end", func(path string) error {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		clear(content[max(0, len(content)-64):])
		return os.WriteFile(path, content, 0o600)
	}},
}

// derivedFiles picks files of the directory that are neither log nor state nor the oldest base snapshot of a group, which
// its log begins with: some that are harmed alone, and all of them. The last one of each pick is one that a start reads.
func derivedFiles(t *testing.T, data string) map[string][]string {
	t.Helper()
	glob := func(pattern string) []string {
		found, err := filepath.Glob(filepath.Join(data, "groups", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for i, path := range found {
			if found[i], err = filepath.Rel(data, path); err != nil {
				t.Fatal(err)
			}
		}
		return found
	}
	metadata, indexes, bases := glob("0000000000000000/*.idx"), glob("0000000000000001/*.idx"), glob("0000000000000001/*.base")
	if len(metadata) == 0 || len(indexes) < 4 || len(bases) < 4 {
		t.Fatalf("there are %d and %d index files, and %d base snapshots; want several segments", len(metadata), len(indexes), len(bases))
	}
	newest := len(bases) - 1
	return map[string][]string{
		"metadata's index":           metadata[len(metadata)-1:],
		"oldest index":               indexes[:1],
		"newest index":               indexes[len(indexes)-1:],
		"newest base":                bases[newest:],
		"an older base and newest":   {bases[newest-1], bases[newest]},
		"all bases, and all indexes": slices.Concat(metadata, bases[1:], indexes),
	}
}

// A full disk ended the process, and the next one, to which the load went; later, writes were refused with a code that
// left clients hanging (redpanda-data/redpanda issues 24492, 2166, 4465 and 13611). Right is: below the low-water mark a new
// batch is refused with KAFKA_STORAGE_ERROR, which clients retry, before anything of it is written; all else goes on,
// retries of stored batches included; and the refused batch is stored once when there is room again. What a disk that is
// really full does is shown by `go run ./campaign/full`, and with kills between by `go run ./campaign/kill --disk 64`.
func TestNoRoomOnTheDisk(t *testing.T) {
	t.Parallel()
	data := t.TempDir() + "/data"
	b := ownBroker(t, testbroker.Config{Data: data})
	p := newProducerOn(t, b)
	p.store(0, 0, 3)
	p.store(0, 3, 2)
	terminate(t, b)

	b = ownBroker(t, testbroker.Config{Data: data, Set: []string{"disk.low.water.bytes=" + fmt.Sprint(1<<50)}})
	p.c = dial(t, b)
	stranger := p.beside()
	for range 2 {
		p.refused(0, 5, 1, codeStorage)
		stranger.refused(0, 0, 1, codeStorage)
		p.again(0, 0, 3, 0)
		p.again(0, 3, 2, 3)
		if a := p.send(0, 6, 1); a.Code == 0 {
			t.Errorf("a batch behind a gap was stored at %d", a.Base)
		}
		p.mustHold(t, p.c, 0)
	}
	if a := p.send(0, 5, 1); !strings.Contains(strings.ToLower(a.Text), "disk") {
		t.Errorf("the text with the refusal is %q, which does not speak of the disk", a.Text)
	}
	if !strings.Contains(b.Output(), "disk") {
		t.Errorf("the log does not speak of the disk:\n%s", b.Output())
	}
	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Version = 9
	metadata.Topics = []kmsg.MetadataRequestTopic{{Topic: &p.topic.Name}}
	if a, err := rawkafka.Roundtrip[*kmsg.MetadataResponse](p.c, metadata); err != nil || a.Topics[0].ErrorCode != 0 || a.Topics[0].Partitions[0].ErrorCode != 0 {
		t.Errorf("metadata: %+v, %v", a, err)
	}
	if start, err := p.c.DeleteRecords(p.topic, 0, 3); err != nil || start != 3 {
		t.Errorf("delete records: the log starts at %d, %v, want 3", start, err)
	}
	p.mustHold(t, p.c, 3)
	terminate(t, b)

	b = ownBroker(t, testbroker.Config{Data: data})
	p.c, stranger.c = dial(t, b), dial(t, b)
	p.store(0, 5, 1)
	p.again(0, 5, 1, 5)
	stranger.store(0, 0, 1)
	p.mustHold(t, p.c, 3)
}
