package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// What -v prints is where consume finds the records, and records with the same key are in the same partition.
func TestProducePlaces(t *testing.T) {
	b := sharedBroker(t)
	topic := createTopic(t, b, 3)
	var input strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&input, "customer-%d\tpayment %d\n", i%17, i)
	}
	printed := slices.Sorted(strings.Lines(mustRun(t, b, input.String(), "produce", topic, "-K", `\t`, "-v")))
	found := slices.Sorted(strings.Lines(mustRun(t, b, "", "consume", topic, "-e", "-f", `%t/%p @ %o\n`)))
	if len(found) != 3000 || !slices.Equal(printed, found) {
		t.Errorf("-v printed %d places, %d are found", len(printed), len(found))
	}
	place := make(map[string]string)
	next := make(map[string]int)
	partitions := make(map[string]bool)
	for line := range strings.Lines(mustRun(t, b, "", "consume", topic, "-e", "-f", `%p\t%k\t%s\n`)) {
		field := strings.Split(strings.TrimSpace(line), "\t")
		partition, key, number := field[0], field[1], 0
		if _, err := fmt.Sscanf(field[2], "payment %d", &number); err != nil {
			t.Fatal(err)
		}
		if before, ok := place[key]; ok && (before != partition || number != next[key]) {
			t.Fatalf("%s: payment %d is in partition %s, want %d in %s", key, number, partition, next[key], before)
		}
		place[key], next[key], partitions[partition] = partition, number+17, true
	}
	if len(partitions) != 3 {
		t.Errorf("17 keys are in %d partitions, want 3", len(partitions))
	}

	file := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(file, []byte("one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := createTopic(t, b, 3)
	want := fmt.Sprintf("%[1]s/2 @ 0\n%[1]s/2 @ 1\n", other)
	if out := mustRun(t, b, "", "produce", other, "-p", "2", "-v", "-f", file); out != want {
		t.Errorf("-p 2 -v printed %q, want %q", out, want)
	}
}

// A line that cannot be a record ends the reading; what came before it is delivered.
func TestProduceBadLines(t *testing.T) {
	b := sharedBroker(t)
	for _, c := range []struct {
		args, input, want string
		stored            int
	}{
		{"-K :", "k:1\nk:2\nno key\nk:4\n", `line 3: no ":" ends its key`, 2},
		{"", "short\n" + strings.Repeat("x", 1048577) + "\nshort\n", "line 2: 1048577 bytes are too many for a record", 1},
		{"", strings.Repeat("x", 1048513) + "\n", "line 1: 1048513 bytes are too many", 0},
		{"", "short\nshort\n" + strings.Repeat("x", 3<<20) + "\n", "line 3: longer than the 1048588 bytes", 2},
		{"-X batch.size=1000", strings.Repeat("x", 1000) + "\n", "may have 1000 (batch.size)", 0},
		{"-X max.request.size=2000", strings.Repeat("x", 1990) + "\n", "may have 2000 (max.request.size)", 0},
		{"-X buffer.memory=200", "x\n" + strings.Repeat("x", 190) + "\n", "may have 200 (buffer.memory)", 1},
		// The client alone knows what it adds to a batch in a request.
		{"-X max.request.size=2000", "x\n" + strings.Repeat("x", 1900) + "\n", "line 2: MESSAGE_TOO_LARGE", 1},
	} {
		topic := createTopic(t, b, 1)
		e := client(t, b, strings.NewReader(c.input), append([]string{"produce", topic}, strings.Fields(c.args)...)...)
		if e.code != exitFailure || !strings.Contains(e.stderr, c.want) {
			t.Errorf("produce %s: code %d and\n%swant %d and %q", c.args, e.code, e.stderr, exitFailure, c.want)
		}
		if stored := strings.Count(mustRun(t, b, "", "consume", topic, "-e"), "\n"); stored != c.stored {
			t.Errorf("produce %s: %d records are stored, want %d", c.args, stored, c.stored)
		}
	}
	topic := createTopic(t, b, 1)
	largest := strings.Repeat("x", 1048512) // with the 61 bytes of a batch, the 11 of a record, and 4 before it
	if out := mustRun(t, b, largest+"\n"+largest+"\n", "produce", topic, "-v"); strings.Count(out, "\n") != 2 {
		t.Errorf("lines of %d bytes: printed %q", len(largest), out)
	}
	mustRun(t, b, "", "produce", topic) // no lines are no mistake
}

// Properties have their effect on what is stored.
func TestProduceProperties(t *testing.T) {
	b := sharedBroker(t)
	c := dial(t, b)
	lines := strings.Repeat(strings.Repeat("x", 100)+"\n", 100)
	stored := func(args ...string) ([]rawkafka.Batch, ended) {
		t.Helper()
		topic := newTopic(t, c, 1)
		e := client(t, b, strings.NewReader(lines), append([]string{"produce", topic.Name}, args...)...)
		if e.code != 0 {
			t.Fatalf("produce %s: code %d\n%s", strings.Join(args, " "), e.code, e.stderr)
		}
		// acks=0 ends when the records are sent: reading them back waits for their storage.
		mustRun(t, b, "", "consume", topic.Name, "-c", "100")
		answer, err := c.Fetch(rawkafka.FetchVersion, topic, 0, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return answer.Batches, e
	}
	batches, e := stored()
	if b := batches[0]; b.ProducerID < 0 || b.Sequence != 0 || strings.Contains(e.stderr, "idempotence") {
		t.Errorf("by default: producer id %d, sequence %d, %q", b.ProducerID, b.Sequence, e.stderr)
	}
	for _, setting := range []string{"acks=1", "acks=0", "retries=0"} {
		batches, e = stored("--property", setting)
		if batches[0].ProducerID != -1 || !strings.Contains(e.stderr, "idempotence is off because of "+setting) {
			t.Errorf("%s: producer id %d, %q", setting, batches[0].ProducerID, e.stderr)
		}
	}
	if batches, e = stored("-X", "enable.idempotence=false", "-X", "max.in.flight.requests.per.connection=1"); batches[0].ProducerID != -1 ||
		strings.Contains(e.stderr, "idempotence") {
		t.Errorf("enable.idempotence=false: producer id %d, %q", batches[0].ProducerID, e.stderr)
	}
	for i, name := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		topic := newTopic(t, c, 1)
		mustRun(t, b, lines, "produce", topic.Name, "-X", "compression.type="+name)
		answer, err := rawkafka.Roundtrip[*kmsg.FetchResponse](c, rawkafka.FetchRequest(rawkafka.FetchVersion, topic, 0, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		if got := answer.Topics[0].Partitions[0].RecordBatches[rawkafka.FieldAttributes+1] & 7; got != byte(i) {
			t.Errorf("compression.type=%s: codec %d, want %d", name, got, i)
		}
		if out := mustRun(t, b, "", "consume", topic.Name, "-e"); out != lines {
			t.Errorf("compression.type=%s: other lines came back", name)
		}
	}
	batches, _ = stored("-X", "batch.size=1000")
	for _, b := range batches {
		if len(b.Raw) > 1000 {
			t.Errorf("batch.size=1000: a batch has %d bytes", len(b.Raw))
		}
	}
	if out := mustRun(t, b, "x\n", "produce", newTopic(t, c, 1).Name, "-v", "-X", "acks=0"); !strings.HasSuffix(out, "/0 @ ?\n") {
		t.Errorf("acks=0 with -v prints %q", out)
	}
}

// Ctrl-C ends the reading. What was read is stored, and told.
func TestProduceInterrupted(t *testing.T) {
	b := sharedBroker(t)
	topic := createTopic(t, b, 1)
	r := start(t, b, "produce", topic, "-v")
	r.write("one\ntwo\n")
	r.mustPrint(topic + "/0 @ 0")
	r.mustPrint(topic + "/0 @ 1")
	r.write("three\nunfinished")
	r.mustPrint(topic + "/0 @ 2")
	r.interrupt()
	if _, text := r.mustEnd(exitInterrupted); !strings.Contains(text, "3 records acknowledged") || !strings.Contains(text, "interrupted after line 3") {
		t.Errorf("it said\n%s", text)
	}
	if out := mustRun(t, b, "", "consume", topic, "-e"); out != "one\ntwo\nthree\n" {
		t.Errorf("%q is stored", out)
	}
}

// pauseBroker stops the broker's process until the function that it returns is called.
func pauseBroker(t *testing.T, b *testbroker.Broker) (resume func()) {
	t.Helper()
	if err := b.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := b.Signal(syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	}
}

// Ctrl-C while the broker does not answer: the command waits for the answers. When they come all is well; a second
// Ctrl-C gives them up.
func TestProduceInterruptedWhileWaiting(t *testing.T) {
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	for _, giveUp := range []bool{false, true} {
		topic := createTopic(t, b, 1)
		r := start(t, b, "produce", topic, "-v")
		r.write("first\n")
		r.mustPrint(topic + "/0 @ 0")
		resume := pauseBroker(t, b)
		// More than a pipe and two blocks of input hold, so that some of it is on its way when the last byte is written.
		r.write(strings.Repeat(strings.Repeat("x", 999)+"\n", 1000))
		r.interrupt()
		r.mustSay("waiting for the answers to")
		if giveUp {
			r.interrupt()
			_, text := r.mustEnd(exitFailure)
			resume()
			if !strings.Contains(text, "not acknowledged; the first is line 2: given up") || !strings.Contains(text, "another run is another producer") {
				t.Errorf("it said\n%s", text)
			}
			continue
		}
		resume()
		places, text := r.mustEnd(exitInterrupted)
		sent := 0
		if at := strings.Index(text, "interrupted after line "); at < 0 {
			t.Fatalf("it said\n%s", text)
		} else if _, err := fmt.Sscanf(text[at:], "interrupted after line %d", &sent); err != nil {
			t.Fatal(err)
		}
		stored := strings.Count(mustRun(t, b, "", "consume", topic, "-e"), "\n")
		if stored != sent || strings.Count(places, "\n") != sent-1 || sent < 500 {
			t.Errorf("%d lines were sent, %d are stored, -v printed %d more places", sent, stored, strings.Count(places, "\n"))
		}
	}
}

// The broker is killed and comes back while lines stream through: each is stored once, in order.
func TestProduceOverRestart(t *testing.T) {
	cfg := testbroker.Config{Data: t.TempDir() + "/data"}
	b := ownBroker(t, cfg)
	topic := createTopic(t, b, 1)
	r := start(t, b, "produce", topic, "-v")
	var want bytes.Buffer
	line := func(i int) string { return fmt.Sprintf("payment %d\n", i) }
	for i := range 300_000 {
		want.WriteString(line(i))
	}
	fed := make(chan error, 1)
	go func() {
		_, err := r.stdin.Write(want.Bytes())
		if err == nil {
			err = r.stdin.Close()
		}
		fed <- err
	}()
	r.mustPrint(topic + "/0 @ 0") // from here on requests are on their way; nobody reads on: stdout fills, and holds the rest back
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	drained := make(chan string, 1)
	go func() {
		rest, _ := io.ReadAll(r.stdout)
		drained <- string(rest)
	}()
	r.mustSay("cannot be reached")
	again := b.Config()
	b = ownBroker(t, again)
	r.mustSay("is back")
	places := <-drained
	if err := <-fed; err != nil {
		t.Fatal(err)
	}
	r.mustEnd(0)
	if n := strings.Count(places, "\n"); n != 300_000-1 || !strings.HasSuffix(places, topic+"/0 @ 299999\n") {
		t.Errorf("-v printed %d places, the end is %q", n, places[max(0, len(places)-40):])
	}
	if got := mustRun(t, b, "", "consume", topic, "-e"); got != want.String() {
		t.Errorf("%d bytes came back, want %d, or they differ", len(got), want.Len())
	}
}

// The broker goes and does not come back: delivery.timeout.ms ends the wait, and the text says what is not known.
func TestProduceWithoutBroker(t *testing.T) {
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	topic := createTopic(t, b, 1)
	r := start(t, b, "produce", topic, "-v", "-X", "delivery.timeout.ms=1000", "-X", "request.timeout.ms=500")
	r.write("first\n")
	r.mustPrint(topic + "/0 @ 0")
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	r.write("second\nthird\n")
	r.mustSay("cannot be reached (connection refused)")
	_, text := r.mustEnd(exitFailure)
	for _, want := range []string{"1 record acknowledged", "2 of 3 records not acknowledged", "the first is line 2: ", "another run is another producer"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// When nobody reads the places any more, what was sent is still delivered.
func TestProducePlacesUnread(t *testing.T) {
	b := sharedBroker(t)
	topic := createTopic(t, b, 1)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := read.Close(); err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	e := clientTo(t, b, strings.NewReader("one\ntwo\n"), write, "produce", topic, "-v")
	if e.code != exitFailure || !strings.Contains(e.stderr, "print where the records went") || !strings.Contains(e.stderr, "2 records acknowledged") {
		t.Errorf("code %d\n%s", e.code, e.stderr)
	}
	if out := mustRun(t, b, "", "consume", topic, "-e"); out != "one\ntwo\n" {
		t.Errorf("%q is stored", out)
	}
}

// A second Ctrl-C ends the command also when it is stuck because nobody reads the places.
func TestProducePlacesStuck(t *testing.T) {
	b := sharedBroker(t)
	topic := createTopic(t, b, 1)
	r := start(t, b, "produce", topic, "-v")
	const lines = 20_000 // their places are more than a pipe holds
	r.write(strings.Repeat("x\n", lines))
	mustRun(t, b, "", "consume", topic, "-c", fmt.Sprint(lines))
	r.interrupt()
	r.mustSay("waiting for the answers to")
	r.interrupt()
	r.mustSay("not acknowledged")
	r.mustSay("nobody reads them")
	r.mustEnd(exitFailure)
}
