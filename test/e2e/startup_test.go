package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// Exit codes of the binary.
const (
	exitUsage       = 2
	exitInUse       = 3
	exitNewerFormat = 4
)

// runToEnd runs the binary, which must end by itself, and returns its exit code and what it printed.
func runToEnd(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, oncemq(t), args...)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("oncemq %s did not end within %v:\n%s", strings.Join(args, " "), patience, out)
	}
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func serveArgs(t *testing.T, data string) []string {
	t.Helper()
	args := []string{"serve", "--data", data}
	for _, flag := range []string{"--listen", "--http"} {
		addr, err := testbroker.FreeAddr()
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, flag, addr)
	}
	return args
}

// listing describes every file under a directory: path, mode, size, time of change and content.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v", path, info.Mode())
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %d %v %x", info.Size(), info.ModTime(), sha256.Sum256(content))
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestUsageErrors(t *testing.T) {
	data := t.TempDir() + "/data"
	for _, args := range [][]string{
		{"serve", "--no-such-flag"},
		{"serve", "surplus"},
		{"no-such-command"},
		{"serve", "--data", data, "--listen", "no port"},
		{"serve", "--data", data, "--listen", "127.0.0.1:99999"},
		{"serve", "--data", data, "--listen", "127.0.0.1:0", "--http", "nonsense"},
		{"serve", "--data", data, "--listen", "127.0.0.1:0", "--advertise", "nonsense"},
	} {
		code, out := runToEnd(t, args...)
		if code != exitUsage || strings.TrimSpace(out) == "" {
			t.Errorf("oncemq %s: code %d and text %q, want %d and a text", strings.Join(args, " "), code, out, exitUsage)
		}
	}
	if _, err := os.Lstat(data); !os.IsNotExist(err) {
		t.Errorf("a usage error left a data directory behind (%v)", err)
	}
}

func TestVersionCommand(t *testing.T) {
	if code, out := runToEnd(t, "version"); code != 0 || !strings.Contains(out, "oncemq") {
		t.Errorf("version: code %d, %q", code, out)
	}
}

func TestProbes(t *testing.T) {
	b := sharedBroker(t)
	for path, want := range map[string]int{"/livez": http.StatusOK, "/readyz": http.StatusOK, "/nowhere": http.StatusNotFound} {
		if got, err := b.Probe(t.Context(), path); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", path, got, err, want)
		}
	}
}

// A second process on the same directory ends at once and touches nothing. The first one stands still meanwhile, so
// that whatever changes is the second one's doing.
func TestDirectoryInUse(t *testing.T) {
	data := t.TempDir() + "/data"
	b := ownBroker(t, testbroker.Config{Data: data})
	topic := newTopic(t, dial(t, b), 1)
	mustStore(t, dial(t, b), topic, rawkafka.Plain([]byte("x")).Bytes(), 0)
	if err := b.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Signal(syscall.SIGCONT); err != nil {
			t.Error(err)
		}
		mustHold(t, dial(t, b), topic, [][]byte{[]byte("x")})
	}()
	before := listing(t, data)
	code, out := runToEnd(t, serveArgs(t, data)...)
	if code != exitInUse || !strings.Contains(out, data) {
		t.Errorf("code %d, %q, want %d and a text that names the directory", code, out, exitInUse)
	}
	if after := listing(t, data); after != before {
		t.Errorf("the second process changed the directory from\n%s to\n%s", before, after)
	}
}

// A data directory of a newer format is refused, and nothing in it is touched.
func TestNewerFormat(t *testing.T) {
	data := t.TempDir() + "/data"
	b := ownBroker(t, testbroker.Config{Data: data})
	topic := newTopic(t, dial(t, b), 1)
	mustStore(t, dial(t, b), topic, rawkafka.Plain([]byte("x")).Bytes(), 0)
	terminate(t, b)
	states, err := filepath.Glob(filepath.Join(data, "state-*"))
	if err != nil || len(states) != 1 {
		t.Fatalf("state files %v, %v, want one", states, err)
	}
	state, err := os.ReadFile(states[0])
	if err != nil {
		t.Fatal(err)
	}
	original := append([]byte(nil), state...)
	setFormat(t, state, 2, 2)
	if err := os.WriteFile(states[0], state, 0o600); err != nil {
		t.Fatal(err)
	}
	before := listing(t, data)
	code, out := runToEnd(t, serveArgs(t, data)...)
	if code != exitNewerFormat || !strings.Contains(out, "format 2") {
		t.Errorf("code %d, %q, want %d and a text that names the format", code, out, exitNewerFormat)
	}
	if after := listing(t, data); after != before {
		t.Errorf("the process changed the directory from\n%s to\n%s", before, after)
	}

	// With the bytes as they were, the same directory serves again: the refusal was about the format alone.
	if err := os.WriteFile(states[0], original, 0o600); err != nil {
		t.Fatal(err)
	}
	mustHold(t, dial(t, ownBroker(t, testbroker.Config{Data: data})), topic, [][]byte{[]byte("x")})
}

// setFormat writes another format, and the oldest one whose readers understand it, into the first record of a state
// file, and makes the checksums of the whole chain right again.
func setFormat(t *testing.T, state []byte, format, oldestReader uint16) {
	t.Helper()
	// A record: "OMS1", payload length u32, sequence u64, durable sequence u64, CRC u32 of the record before it, CRC u32
	// of all before it and the payload; then the payload (type u8, version u8, group u64, body), padded to 8 bytes. The
	// body of the first record begins with the format and the oldest reader.
	const previousCRC, crc, head, body = 24, 28, 32, 32 + 10
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	previous, records := uint32(0), 0
	for at := 0; at+head <= len(state) && string(state[at:at+4]) == "OMS1"; records++ {
		r := state[at:]
		length := int(binary.BigEndian.Uint32(r[4:]))
		if records == 0 {
			if r[head] != 1 || binary.BigEndian.Uint16(r[body:]) != 1 {
				t.Fatalf("the first state record is of type %d with format %d, want 1 and 1", r[head], binary.BigEndian.Uint16(r[body:]))
			}
			binary.BigEndian.PutUint16(r[body:], format)
			binary.BigEndian.PutUint16(r[body+2:], oldestReader)
		}
		binary.BigEndian.PutUint32(r[previousCRC:], previous)
		previous = crc32.Update(crc32.Checksum(r[:crc], castagnoli), castagnoli, r[head:head+length])
		binary.BigEndian.PutUint32(r[crc:], previous)
		at += (head + length + 7) &^ 7
	}
	if records == 0 {
		t.Fatal("the state file has no records")
	}
}
