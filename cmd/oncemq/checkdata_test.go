package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/cli"
	"github.com/oncemq/oncemq/internal/node"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

const producerID = 77

// store stores a batch of one record, and returns the answer.
func store(t *testing.T, c *rawkafka.Client, topic rawkafka.Topic, id batch.ProducerID, sequence batch.Sequence, value string) rawkafka.ProduceAnswer {
	t.Helper()
	a, err := c.Produce(rawkafka.ProduceVersion, topic, 0, rawkafka.Idempotent(id, 0, sequence, []byte(value)).Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// dataWith makes a data directory with a topic of two partitions, and four records in the first.
func dataWith(t *testing.T) (dir string, topic rawkafka.Topic) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	serving(t, dir, func(c *rawkafka.Client, _ string) {
		var err error
		if topic, err = c.CreateTopic("payments", 2); err != nil {
			t.Fatal(err)
		}
		for i := range batch.Sequence(4) {
			if a := store(t, c, topic, producerID, i, fmt.Sprintf("the record %d", i)); a.Code != 0 {
				t.Fatalf("error code %d", a.Code)
			}
		}
	})
	return dir, topic
}

// spoil changes a byte of a record that is stored somewhere below dir, and returns the file.
func spoil(t *testing.T, dir, record string) (file string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if at := bytes.Index(content, []byte(record)); at >= 0 {
			content[at] ^= 1
			file = path
			return os.WriteFile(path, content, 0o600)
		}
		return err
	})
	if err != nil || file == "" {
		t.Fatalf("%q was not found: %v", record, err)
	}
	return file
}

// fingerprint is a hash over all files below dir.
func fingerprint(t *testing.T, dir string) [sha256.Size]byte {
	t.Helper()
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		fmt.Fprintf(sum, "%s %d ", path, len(content))
		sum.Write(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return [sha256.Size]byte(sum.Sum(nil))
}

func TestCheckData(t *testing.T) {
	dir, _ := dataWith(t)
	before := fingerprint(t, dir)
	var out bytes.Buffer
	if err := checkData(&out, dir, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"payments/0: sound\n    offsets from 0 to before 4, ", "payments/1: sound\n    offsets from 0 to before 0, "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed is\n%s\nwant in it %q", out.String(), want)
		}
	}
	if fingerprint(t, dir) != before {
		t.Error("the check changed something")
	}

	file := spoil(t, dir, "the record 2")
	before = fingerprint(t, dir)
	out.Reset()
	err := checkData(&out, dir, false)
	if code := exitCode(failed(err)); code != exitDamage || !strings.Contains(fmt.Sprint(err), "1 of 2 partitions") {
		t.Errorf("damage ends with code %d, %v", code, err)
	}
	for _, want := range []string{
		"payments/0: DAMAGED, cannot be opened\n", "    damage: " + file + ", byte ", "payments/1: sound\n",
		"    without what is damaged would be lost: at least 2 records, the first at offset 2\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed is\n%s\nwant in it %q", out.String(), want)
		}
	}
	out.Reset()
	if err := checkData(&out, dir, true); !errors.Is(err, node.ErrDamage) {
		t.Errorf("damage as JSON: %v", err)
	}
	var c checked
	if err := json.Unmarshal(out.Bytes(), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Partitions) != 2 || c.Sound || c.Partitions[0].Sound || !c.Partitions[1].Sound || *c.Partitions[0].Lost != (lost{2, 2}) || c.Partitions[0].Damage[0].File != file {
		t.Errorf("printed is %s", out.String())
	}
	if fingerprint(t, dir) != before {
		t.Error("the check changed something")
	}
}

// What cannot be checked is not touched.
func TestCheckDataRefuses(t *testing.T) {
	nothing := t.TempDir()
	for _, dir := range []string{nothing, filepath.Join(nothing, "missing")} {
		if err := checkData(&bytes.Buffer{}, dir, false); err == nil || exitCode(failed(err)) != exitFailure {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if list, err := os.ReadDir(nothing); err != nil || len(list) != 0 {
		t.Errorf("the check left %v, %v", list, err)
	}
	dir := filepath.Join(t.TempDir(), "data")
	serving(t, dir, func(c *rawkafka.Client, _ string) {
		if _, err := c.CreateTopic("payments", 1); err != nil { // the broker is ready then
			t.Fatal(err)
		}
		if err := checkData(&bytes.Buffer{}, dir, false); exitCode(failed(err)) != exitInUse {
			t.Errorf("in use: %v", err)
		}
		if err := acceptLoss(cli.Env{}, dir, "payments/0", "lose"); exitCode(failed(err)) != exitInUse {
			t.Errorf("in use: %v", err)
		}
	})
}

// Damage of what the whole node needs is told as such, and nothing else can be done about it.
func TestCheckDataOfDamagedNode(t *testing.T) {
	dir, _ := dataWith(t)
	file := spoil(t, filepath.Join(dir, "groups", "0000000000000000"), "payments")
	var out bytes.Buffer
	if err := checkData(&out, dir, false); exitCode(failed(err)) != exitDamage {
		t.Errorf("%v", err)
	}
	if !strings.Contains(out.String(), "DAMAGED, no broker can start: ") || !strings.Contains(out.String(), file) {
		t.Errorf("printed is\n%s", out.String())
	}
	if err := acceptLoss(cli.Env{Out: &out}, dir, "payments/0", "lose payments/0 from 0"); exitCode(failed(err)) != exitDamage {
		t.Errorf("accept-loss: %v", err)
	}
}

func TestAcceptLoss(t *testing.T) {
	dir, topic := dataWith(t)
	spoil(t, dir, "the record 2")
	before := fingerprint(t, dir)
	const words = "lose payments/0 from 2"
	for _, c := range []struct {
		what, name, confirm, typed string
		terminal                   bool
		want                       string
	}{
		{"a script without words", "payments/0", "", words + "\n", false, "--confirm '" + words + "'"},
		{"wrong words", "payments/0", "lose payments/0 from 1", "", false, "the words are: " + words},
		{"wrong words typed", "payments/0", "", "yes\n", true, "the words are: " + words},
		{"nothing typed", "payments/0", "", "", true, "not confirmed"},
		{"a sound partition", "payments/1", "lose payments/1 from 0", "", false, "payments/1 is sound"},
		{"no such partition", "payments/2", "lose payments/2 from 0", "", false, "there is no partition payments/2"},
		{"no such topic", "orders/0", "lose orders/0 from 0", "", false, "there is no partition orders/0"},
	} {
		var out bytes.Buffer
		err := acceptLoss(cli.Env{In: strings.NewReader(c.typed), InTerminal: c.terminal, Out: &out}, dir, c.name, c.confirm)
		if code := exitCode(failed(err)); code != exitFailure || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: code %d, %v, want %q", c.what, code, err, c.want)
		}
		if fingerprint(t, dir) != before {
			t.Fatalf("%s: something was changed", c.what)
		}
	}
	var out bytes.Buffer
	if err := acceptLoss(cli.Env{In: strings.NewReader(words + "\n"), InTerminal: true, Out: &out}, dir, "payments/0", ""); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "would be lost: at least 2 records, the first at offset 2\n") ||
		!strings.HasSuffix(out.String(), "payments/0 goes on; lost are at least 2 records, the first at offset 2\n") {
		t.Errorf("printed is\n%s", out.String())
	}
	if err := checkData(&bytes.Buffer{}, dir, false); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	serving(t, dir, func(c *rawkafka.Client, _ string) {
		const stranger = 78
		for _, step := range []struct {
			what     string
			id       batch.ProducerID
			sequence batch.Sequence
			code     int16
			base     batch.Offset
		}{
			{"a batch that is left, again", producerID, 1, 0, 1},
			{"a batch behind the lost ones", producerID, 4, 45, -1},
			{"a producer of which nothing is known, anywhere", stranger, 100, 0, 2},
			{"a batch that is lost, again", producerID, 2, 0, 3},
		} {
			if a := store(t, c, topic, step.id, step.sequence, fmt.Sprintf("the record %d", step.sequence)); a.Code != step.code || a.Base != step.base {
				t.Errorf("%s: code %d, offset %d, want %d, %d", step.what, a.Code, a.Base, step.code, step.base)
			}
		}
		var stored []string
		log, _, err := c.ReadLog(rawkafka.FetchVersion, topic, 0)
		for _, b := range log {
			stored = append(stored, string(b.Records[0]))
		}
		if want := []string{"the record 0", "the record 1", "the record 100", "the record 2"}; err != nil || !slices.Equal(stored, want) {
			t.Errorf("the log is %q, %v, want %q", stored, err, want)
		}
	})
}

// Damage in an old segment is met by whoever reads it, not by a start. Giving it up costs the old records only.
func TestOldDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	var topic rawkafka.Topic
	const records, segmentBytes = 20, "log.segment.bytes=65536"
	serving(t, dir, func(c *rawkafka.Client, _ string) {
		var err error
		if topic, err = c.CreateTopic("payments", 1); err != nil {
			t.Fatal(err)
		}
		for i := range batch.Sequence(records) {
			if a := store(t, c, topic, producerID, i, fmt.Sprintf("the record %d. ", i)+strings.Repeat("x", 20_000)); a.Code != 0 {
				t.Fatalf("error code %d", a.Code)
			}
		}
	}, segmentBytes)
	spoil(t, dir, "the record 1. ")
	var out bytes.Buffer
	if err := checkData(&out, dir, false); exitCode(failed(err)) != exitDamage {
		t.Errorf("%v", err)
	}
	c, err := inspect(dir)
	if err != nil {
		t.Fatal(err)
	}
	p := c.Partitions[0]
	if !p.Opens || p.Sound || p.End != records || p.Lost == nil || p.Lost.Records >= records/2 || !strings.Contains(out.String(), "can be opened, but") {
		t.Fatalf("printed is\n%s", out.String())
	}
	if err := acceptLoss(cli.Env{Out: &out}, dir, "payments/0", fmt.Sprintf("lose payments/0 from %d", p.Lost.From)); err != nil {
		t.Fatal(err)
	}
	if err := checkData(&out, dir, false); err != nil {
		t.Errorf("afterwards: %v\n%s", err, out.String())
	}
	serving(t, dir, func(c *rawkafka.Client, _ string) {
		begin, end, err := c.Offsets(topic, 0)
		if err != nil || int64(begin) != p.Lost.From+p.Lost.Records || end != records {
			t.Errorf("the partition has offsets %d to %d, %v; lost are %v", begin, end, err, p.Lost)
		}
		if log, _, err := c.ReadLog(rawkafka.FetchVersion, topic, 0); err != nil || len(log) != int(end-begin) {
			t.Errorf("%d batches can be read, %v", len(log), err)
		}
		if a := store(t, c, topic, producerID, records, "goes on"); a.Code != 0 || a.Base != records {
			t.Errorf("the next batch: code %d, offset %d", a.Code, a.Base)
		}
	}, segmentBytes)
}

func TestParsePartition(t *testing.T) {
	if topic, partition, err := parsePartition("a.b-c/12"); err != nil || topic != "a.b-c" || partition != 12 {
		t.Errorf("%s, %d, %v", topic, partition, err)
	}
	for _, text := range []string{"", "a", "a/", "/0", "a/-1", "a/x", "a/0/0", "a/2147483648"} {
		if topic, partition, err := parsePartition(text); err == nil {
			t.Errorf("%q was taken for %s/%d", text, topic, partition)
		}
	}
}
