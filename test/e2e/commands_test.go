package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/testbroker"
)

// Exit codes of the commands that are clients.
const (
	exitFailure     = 1
	exitInterrupted = 130
)

// ended is a command that has ended.
type ended struct {
	code           int
	stdout, stderr string
}

// client runs a command against a broker until it ends.
func client(t *testing.T, b *testbroker.Broker, stdin io.Reader, args ...string) ended {
	t.Helper()
	var stdout bytes.Buffer
	e := clientTo(t, b, stdin, &stdout, args...)
	e.stdout = stdout.String()
	return e
}

func clientTo(t *testing.T, b *testbroker.Broker, stdin io.Reader, stdout io.Writer, args ...string) ended {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, oncemq(t), append(args, "-b", b.Addr())...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("oncemq %s did not end:\n%s", strings.Join(args, " "), stderr.String())
	}
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return ended{code: cmd.ProcessState.ExitCode(), stderr: stderr.String()}
}

// mustRun is client for a command that must end with 0. It returns what it printed.
func mustRun(t *testing.T, b *testbroker.Broker, stdin string, args ...string) string {
	t.Helper()
	e := client(t, b, strings.NewReader(stdin), args...)
	if e.code != 0 {
		t.Fatalf("oncemq %s: code %d\n%s", strings.Join(args, " "), e.code, e.stderr)
	}
	return e.stdout
}

func createTopic(t *testing.T, b *testbroker.Broker, partitions int) string {
	t.Helper()
	name := freshName()
	mustRun(t, b, "", "topic", "create", name, "-p", fmt.Sprint(partitions))
	return name
}

// running is a command that is talked to while it runs.
type running struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdin          io.WriteCloser
	stdout, stderr *bufio.Reader
}

func start(t *testing.T, b *testbroker.Broker, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	cmd := exec.CommandContext(ctx, oncemq(t), append(args, "-b", b.Addr())...)
	r := &running{t: t, cmd: cmd}
	var err error
	if r.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.stdout, r.stderr = bufio.NewReader(stdout), bufio.NewReader(stderr)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	return r
}

func (r *running) write(text string) {
	r.t.Helper()
	if _, err := io.WriteString(r.stdin, text); err != nil {
		r.t.Fatal(err)
	}
}

// mustPrint waits for the next line of stdout.
func (r *running) mustPrint(want string) {
	r.t.Helper()
	line, err := r.stdout.ReadString('\n')
	if line != want+"\n" {
		r.t.Fatalf("printed %q (%v), want %q", line, err, want)
	}
}

// mustSay waits for a line of stderr that contains a text.
func (r *running) mustSay(text string) {
	r.t.Helper()
	for {
		line, err := r.stderr.ReadString('\n')
		if strings.Contains(line, text) {
			return
		}
		if err != nil {
			r.t.Fatalf("stderr ended without %q", text)
		}
	}
}

func (r *running) interrupt() {
	r.t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil {
		r.t.Fatal(err)
	}
}

// mustEnd waits for the end and returns what was still printed.
func (r *running) mustEnd(code int) (stdout, stderr string) {
	r.t.Helper()
	out, _ := io.ReadAll(r.stdout)
	text, _ := io.ReadAll(r.stderr)
	err := r.cmd.Wait()
	if got := r.cmd.ProcessState.ExitCode(); got != code {
		r.t.Fatalf("code %d (%v), want %d\n%s", got, err, code, text)
	}
	return string(out), string(text)
}

// million writes lines into w, and what it wrote into a hash.
func million(w io.Writer, sum hash.Hash) error {
	buffered := bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<20)
	for i := range 1_000_000 {
		fmt.Fprintf(buffered, "payment %d of customer %d\n", i, i*7919%100_003)
	}
	return buffered.Flush()
}

// lineCounter counts lines, and hashes all that is written to it.
type lineCounter struct {
	hash.Hash
	lines int
}

func (c *lineCounter) Write(p []byte) (int, error) {
	c.lines += bytes.Count(p, []byte{'\n'})
	return c.Hash.Write(p)
}

// A million records go in through produce and come out of consume: count, order and content.
func TestMillionRecords(t *testing.T) {
	b := sharedBroker(t)
	topic := createTopic(t, b, 1)
	begun := time.Now()
	r, w := io.Pipe()
	sent := sha256.New()
	go func() { _ = w.CloseWithError(million(w, sent)) }()
	if e := client(t, b, r, "produce", topic); e.code != 0 || !strings.Contains(e.stderr, "1,000,000 records acknowledged") {
		t.Fatalf("produce: code %d\n%s", e.code, e.stderr)
	}
	produced := time.Now()
	got := &lineCounter{Hash: sha256.New()}
	if e := clientTo(t, b, nil, got, "consume", topic, "-e"); e.code != 0 || e.stderr != "" {
		t.Fatalf("consume: code %d\n%s", e.code, e.stderr)
	}
	if got.lines != 1_000_000 || !bytes.Equal(got.Sum(nil), sent.Sum(nil)) {
		t.Errorf("%d lines came back, with hash %x, want 1000000 with %x", got.lines, got.Sum(nil), sent.Sum(nil))
	}
	t.Logf("produced in %v, consumed in %v", produced.Sub(begun), time.Since(produced))
}

func TestTopicCommands(t *testing.T) {
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	if out := mustRun(t, b, "", "topic", "list"); out != "" {
		t.Errorf("a new broker lists %q", out)
	}
	if out := mustRun(t, b, "", "topic", "list", "-v", "--json"); out != "[]\n" {
		t.Errorf("a new broker lists %q", out)
	}
	for _, step := range []struct{ args, want string }{
		{"create orders --dry-run", "topic orders can be created, with 1 partition\n"},
		{"create orders -p 2 --dry-run --json", `{"topic":"orders","partition_count":2,"created":false,"dry_run":true}` + "\n"},
		{"list", ""},
		{"create payments -p 3", "created topic payments with 3 partitions\n"},
		{"create orders --json", `{"topic":"orders","partition_count":1,"created":true,"dry_run":false}` + "\n"},
		{"create payments --if-not-exists", "topic payments exists already, with 3 partitions\n"},
		{"create payments --if-not-exists --json", `{"topic":"payments","partition_count":3,"created":false,"dry_run":false}` + "\n"},
		{"list", "orders\npayments\n"},
		{"list --json", `[{"topic":"orders","partition_count":1},{"topic":"payments","partition_count":3}]` + "\n"},
	} {
		if out := mustRun(t, b, "", append([]string{"topic"}, strings.Fields(step.args)...)...); out != step.want {
			t.Errorf("topic %s prints %q, want %q", step.args, out, step.want)
		}
	}
	if e := client(t, b, nil, "topic", "create", "payments", "--if-not-exists", "-p", "4"); e.code != 0 || !strings.Contains(e.stderr, "not the 4 asked for") {
		t.Errorf("another number of partitions: code %d, %q", e.code, e.stderr)
	}
	mustRun(t, b, "a\nb\n", "produce", "payments", "-p", "1")
	want := `TOPIC     PARTITION  LEADER  BEGIN  END
orders    0          1       0      0
payments  0          1       0      0
payments  1          1       0      2
payments  2          1       0      0
`
	if out := mustRun(t, b, "", "topic", "list", "-v"); out != want {
		t.Errorf("list -v prints\n%s\nwant\n%s", out, want)
	}
	want = `{"partition":1,"leader":1,"begin_offset":0,"end_offset":2}`
	if out := mustRun(t, b, "", "topic", "list", "-v", "--json"); !strings.Contains(out, want) {
		t.Errorf("list -v --json prints %s, want in it %s", out, want)
	}
}

func TestConsumeRanges(t *testing.T) {
	b := sharedBroker(t)
	topic := createTopic(t, b, 2)
	mustRun(t, b, "a0\na1\na2\na3\na4\n", "produce", topic, "-p", "0")
	mustRun(t, b, "b0\nb1\n", "produce", topic, "-p", "1")
	for args, want := range map[string]string{
		"-e":                       "a0 a1 a2 a3 a4 b0 b1",
		"-e -p 0":                  "a0 a1 a2 a3 a4",
		"-e -p 1 -o beginning":     "b0 b1",
		"-e -o 1":                  "a1 a2 a3 a4 b1",
		"-e -o 4":                  "a4",
		"-e -o 5":                  "",
		"-e -o 1000":               "",
		"-e -o end":                "",
		"-e -o -1":                 "a4 b1",
		"-e -o -4":                 "a1 a2 a3 a4 b0 b1",
		"-c 3 -p 0":                "a0 a1 a2",
		"-c 1 -o 3 -p 0":           "a3",
		"-e -c 100 -o -2 -p 0":     "a3 a4",
		"-e -c 1 -o latest":        "",
		"-c 7":                     "a0 a1 a2 a3 a4 b0 b1",
		"-e -o earliest -c 2 -p 0": "a0 a1",
	} {
		lines := strings.Fields(mustRun(t, b, "", append([]string{"consume", topic}, strings.Fields(args)...)...))
		slices.Sort(lines)
		if got := strings.Join(lines, " "); got != want {
			t.Errorf("consume %s prints %q, want %q", args, got, want)
		}
	}
}

// Bytes come back as they went in, whatever they are, and every format says of a record what is true.
func TestConsumeFormats(t *testing.T) {
	b := sharedBroker(t)
	topic := createTopic(t, b, 1)
	begun := time.Now().UnixMilli()
	mustRun(t, b, "k=v\n=empty key\nempty value=\nbinary=\x00\xff\r\nlast==é", "produce", topic, "-K", "=")
	mustRun(t, b, "no key\n\n", "produce", topic)
	for _, c := range []struct{ args, want string }{
		{"", "v\nempty key\n\n\x00\xff\r\n=é\nno key\n\n"},
		{"--print-key", "k\tv\n\tempty key\nempty value\t\nbinary\t\x00\xff\r\nlast\t=é\n\tno key\n\t\n"},
		{`-K \x00:`, "k\x00:v\n\x00:empty key\nempty value\x00:\nbinary\x00:\x00\xff\r\nlast\x00:=é\n\x00:no key\n\x00:\n"},
		{`-f %t/%p@%o\t%K,%S|%h%%\n -c 2`, topic + "/0@0\t1,1|%\n" + topic + "/0@1\t0,9|%\n"},
		{`-f %o:%K,%S; -o -2`, "5:-1,6;6:-1,0;"},
		{`-f %R%s -o 3 -c 2`, "\x00\x00\x00\x03\x00\xff\r\x00\x00\x00\x03=é"},
	} {
		if got := mustRun(t, b, "", append([]string{"consume", topic, "-e"}, strings.Fields(c.args)...)...); got != c.want {
			t.Errorf("consume %s prints %q, want %q", c.args, got, c.want)
		}
	}
	var payloads []string
	for line := range strings.Lines(mustRun(t, b, "", "consume", topic, "-e", "-f", "json")) {
		var record struct {
			Topic             string
			Partition, Offset int64
			TS                int64
			TSType            string
			Key, Payload      json.RawMessage
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if record.Topic != topic || record.Partition != 0 || record.Offset != int64(len(payloads)) || record.TSType != "create" ||
			record.TS < begun || record.TS > time.Now().UnixMilli() {
			t.Errorf("record %d is %s", len(payloads), line)
		}
		payloads = append(payloads, string(record.Key)+" "+string(record.Payload))
	}
	want := []string{`"k" "v"`, `"" "empty key"`, `"empty value" ""`, `"binary" {"base64":"AP8N"}`, `"last" "=é"`, `null "no key"`, `null ""`}
	if !slices.Equal(payloads, want) {
		t.Errorf("keys and payloads as JSON are %q, want %q", payloads, want)
	}
}

// Without an end, consume prints records as they come, and Ctrl-C ends it well. With an end that it did not reach,
// Ctrl-C is an interruption.
func TestConsumeFollows(t *testing.T) {
	b := sharedBroker(t)
	topic := createTopic(t, b, 2)
	mustRun(t, b, "before\n", "produce", topic, "-p", "0")
	all, some := start(t, b, "consume", topic), start(t, b, "consume", topic, "-c", "3")
	ahead := start(t, b, "consume", topic, "-o", "1", "-p", "0")
	for _, r := range []*running{all, some} {
		r.mustPrint("before")
	}
	mustRun(t, b, "after\n", "produce", topic, "-p", "0")
	for _, r := range []*running{all, some, ahead} {
		r.mustPrint("after")
		r.interrupt()
	}
	for _, r := range []*running{all, ahead} {
		if out, text := r.mustEnd(0); out != "" || text != "" {
			t.Errorf("at the end %q and %q came", out, text)
		}
	}
	if _, text := some.mustEnd(exitInterrupted); !strings.Contains(text, "interrupted after 2 records") {
		t.Errorf("interrupted, it said %q", text)
	}
}

// A broker that is killed and comes back does not end a consumer, nor make it print a record twice.
func TestConsumeOverRestart(t *testing.T) {
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	topic := createTopic(t, b, 1)
	mustRun(t, b, "before\n", "produce", topic)
	r := start(t, b, "consume", topic)
	r.mustPrint("before")
	for _, line := range []string{"between", "after"} {
		if err := b.Kill(); err != nil {
			t.Fatal(err)
		}
		r.mustSay("cannot be reached")
		b = ownBroker(t, b.Config())
		mustRun(t, b, line+"\n", "produce", topic)
		r.mustPrint(line)
	}
	r.interrupt()
	if out, _ := r.mustEnd(0); out != "" {
		t.Errorf("at the end %q came", out)
	}
}

// Each mistake is told with what would be right, and by its exit code.
func TestCommandErrors(t *testing.T) {
	b := sharedBroker(t)
	topic := createTopic(t, b, 3)
	single := createTopic(t, b, 1)
	nobody, err := testbroker.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(t.TempDir(), "missing")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"topic"}, 0, "create"},
		{[]string{"topic", "lost"}, exitUsage, `unknown command "lost"`},
		{[]string{"topic", "create"}, exitUsage, "oncemq topic create NAME"},
		{[]string{"topic", "create", "x", "-p", "0"}, exitUsage, "--partitions: 0 is below 1"},
		{[]string{"topic", "create", "x", "-b", "host:port"}, exitUsage, `--bootstrap: "host:port" is not HOST:PORT`},
		{[]string{"topic", "create", "a b", "-b", b.Addr()}, exitFailure, "invalid topic name"},
		{[]string{"topic", "create", topic, "-b", b.Addr()}, exitFailure, "--if-not-exists"},
		{[]string{"topic", "list", "-b", nobody}, exitFailure, "oncemq serve"},

		{[]string{"produce"}, exitUsage, "oncemq produce TOPIC"},
		{[]string{"produce", topic, "-b", nobody}, exitFailure, nobody},
		{[]string{"produce", "missing", "-b", b.Addr()}, exitFailure, "oncemq topic create missing"},
		{[]string{"produce", "a b", "-b", b.Addr()}, exitFailure, "INVALID_TOPIC_EXCEPTION"},
		{[]string{"produce", topic, "-p", "3", "-b", b.Addr()}, exitFailure, "its partitions are 0 to 2"},
		{[]string{"produce", single, "-p", "3", "-b", b.Addr()}, exitFailure, "its only one is 0"},
		{[]string{"produce", topic, "-p", "-1"}, exitUsage, "--partition: -1 is below 0"},
		{[]string{"produce", topic, "-K", ""}, exitUsage, "--key-separator"},
		{[]string{"produce", topic, "-f", missing, "-b", b.Addr()}, exitFailure, missing},
		{[]string{"produce", topic, "--property", "linger"}, exitUsage, "NAME=VALUE"},
		{[]string{"produce", topic, "--property", "linger=5"}, exitUsage, "did you mean linger.ms?"},
		{[]string{"produce", topic, "-X", "transactional.id=t"}, exitUsage, "no transactions"},
		{[]string{"produce", topic, "-X", "enable.idempotence=true", "-X", "acks=1"}, exitUsage, "does not go with acks=1"},

		{[]string{"consume"}, exitUsage, "oncemq consume TOPIC"},
		{[]string{"consume", "missing", "-b", b.Addr()}, exitFailure, "oncemq topic create missing"},
		{[]string{"consume", topic, "-p", "9", "-b", b.Addr()}, exitFailure, "its partitions are 0 to 2"},
		{[]string{"consume", topic, "-b", nobody}, exitFailure, "oncemq serve"},
		{[]string{"consume", topic, "-o", "middle"}, exitUsage, "beginning, end, N"},
		{[]string{"consume", topic, "-c", "0"}, exitUsage, "--count: 0 is below 1"},
		{[]string{"consume", topic, "-f", "%q"}, exitUsage, "%q stands for nothing"},
		{[]string{"consume", topic, "-f", "%s", "-K", ":"}, exitUsage, "%k"},
		{[]string{"consume", topic, "-f", "%s", "--print-key"}, exitUsage, "%k"},
	} {
		code, out := runToEnd(t, c.args...)
		if code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("oncemq %s: code %d and\n%swant %d and %q", strings.Join(c.args, " "), code, out, c.code, c.want)
		}
	}
	if out := mustRun(t, b, "", "topic", "list"); strings.Contains(out, "missing") {
		t.Error("a topic that was only asked for came into being")
	}
	if _, err := os.Stat("oncemq-data"); err == nil {
		t.Error("a client command made a data directory")
	}
}

func TestCommandHelp(t *testing.T) {
	for command, want := range map[string]string{
		"topic": "oncemq topic [command]", "topic create": "--if-not-exists", "topic list": "END",
		"produce": "What idempotence gives here, and what not", "consume": "%T time in milliseconds",
	} {
		code, out := runToEnd(t, append([]string{"help"}, strings.Fields(command)...)...)
		if code != 0 || !strings.Contains(out, want) || command != "topic" && !strings.Contains(out, "Examples:\n  ") {
			t.Errorf("help %s: code %d, and not %q or no examples in\n%s", command, code, want, out)
		}
	}
}
