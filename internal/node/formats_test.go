package node

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"log/slog"
	"math"
	mathrand "math/rand/v2"
	"os"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

var updateFormats = flag.Bool("update", false, "write the dumps in docs/formats.md anew")

const formatsDocument = "../../docs/formats.md"

// fixedClock always tells the same time.
type fixedClock time.Time

func (c fixedClock) Now() time.Time { return time.Time(c) }

// TestFormatsDocument has a node write a small data directory, with nothing drawn at random, and demands that the dumps
// in docs/formats.md are those bytes. Whoever changes a byte on disk finds out here, and reads the document again.
func TestFormatsDocument(t *testing.T) {
	var fsys *memfs.FS
	// In a bubble the durable marks are not due before everything else has been written.
	synctest.Test(t, func(t *testing.T) { fsys = writeExample(t) })
	document, err := os.ReadFile(formatsDocument)
	if err != nil {
		t.Fatal(err)
	}
	want := document
	for _, name := range []string{
		"state-0000000000000001",
		"groups/0000000000000000/00000000000000000002.base",
		"groups/0000000000000000/00000000000000000002.log",
		"groups/0000000000000001/00000000000000000002.base",
		"groups/0000000000000001/00000000000000000002.log",
		"groups/0000000000000001/00000000000000000002.idx",
	} {
		want = replaceDump(t, want, name, hex.Dump(content(t, fsys, path.Join(config.Dir, name))))
	}
	if bytes.Equal(document, want) {
		return
	}
	if !*updateFormats {
		t.Fatalf("the dumps in docs/formats.md are not what is written: if that is intended, see that its text is still true, and run\n" +
			"go test ./internal/node -run TestFormatsDocument -update")
	}
	if err := os.WriteFile(formatsDocument, want, 0o644); err != nil {
		t.Fatal(err)
	}
}

// writeExample founds a cluster, creates the topic "payments" and stores one batch of two records.
func writeExample(t *testing.T) *memfs.FS {
	fsys := memfs.New()
	n, err := Open(t.Context(), Env{
		FS: fsys, Random: mathrand.NewChaCha8([32]byte{1}), Boot: [16]byte{0xb0, 0x07},
		Clock:  fixedClock(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)),
		Logger: slog.New(slog.DiscardHandler),
		Fatal:  func(err error) { t.Errorf("fatal: %v", err) },
	}, config)
	if err != nil {
		t.Fatal(err)
	}
	topic := create(t, n, "payments", 1)
	id, err := n.NextProducerID()
	if err != nil {
		t.Fatal(err)
	}
	sent := rawkafka.Idempotent(id, 0, 0, []byte("invoice-1"), []byte("invoice-2"))
	sent.Timestamp = time.Date(2026, 11, 30, 12, 0, 1, 0, time.UTC).UnixMilli()
	raw := sent.Bytes()
	header, fault := batch.CheckProduce(raw)
	if fault != batch.FaultNone {
		t.Fatal(fault)
	}
	partition, ok := n.Partition(topic.ID, 0)
	if !ok {
		t.Fatal("no partition 0")
	}
	answer := make(done, 1)
	if err := partition.Submit(&replica.Submission{Batch: raw, Header: header, Done: answer}); err != nil {
		t.Fatal(err)
	}
	if ack := <-answer; ack.Err != nil || ack.Base != 0 {
		t.Fatalf("answered %+v", ack)
	}
	closeNode(t, n)
	return fsys
}

func content(t testing.TB, fsys vfs.FS, name string) []byte {
	t.Helper()
	file, err := fsys.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	size, err := file.Size()
	if err != nil || size > math.MaxInt16 {
		t.Fatalf("%s: %d bytes, %v", name, size, err)
	}
	b := make([]byte, size)
	if _, err := file.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return b
}

// replaceDump puts a dump into the block of the document that begins with the file's name.
func replaceDump(t *testing.T, document []byte, name, dump string) []byte {
	t.Helper()
	const fence = "```\n"
	begin := fmt.Sprintf("```text\n%s\n", name)
	before, after, ok := strings.Cut(string(document), begin)
	_, after, closed := strings.Cut(after, fence)
	if !ok || !closed {
		t.Fatalf("docs/formats.md has no block that begins with\n%s", begin)
	}
	return []byte(before + begin + dump + fence + after)
}
