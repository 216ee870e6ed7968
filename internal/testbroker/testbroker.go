package testbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// outputBytesMax bounds what is kept of a process's output: its end.
const outputBytesMax = 64 << 10

// pollEvery is how often a condition outside this process is looked at.
const pollEvery = time.Millisecond

// Build compiles the binary of this module into dir and returns its path. The caller's working directory must lie
// inside the module. Tests call it from a test, not from TestMain: see touchSources.
func Build(ctx context.Context, dir string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	if err := touchSources(strings.TrimSpace(string(root))); err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "oncemq")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, "github.com/oncemq/oncemq/cmd/oncemq")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the binary: %w\n%s", err, out)
	}
	return binary, nil
}

// touchSources looks at every directory of the module that may hold the binary's sources. `go test` repeats a
// result from its cache unless a package that the test imports has changed, or a file or directory that the test has
// opened while it ran: without this it would say of a broken broker that it passes, because no test imports the
// broker.
func touchSources(root string) error {
	for _, dir := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil {
			return fmt.Errorf("look at the sources: %w", err)
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			return fmt.Errorf("look at the sources: %w", err)
		}
	}
	return nil
}

// FreeAddr returns a loopback address on which nothing listens now. Its port lies below those that systems take for
// outgoing connections: while a broker is down between two starts, a client that dials in vain must not be given the
// very port that the broker comes back to. Another process may still take it before the caller does; that shows as a
// broker that ends at once with a text that says so.
func FreeAddr() (string, error) {
	const lowest, count, tries = 20_000, 12_000, 100
	var last error
	for range tries {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(lowest+rand.IntN(count)))
		l, err := net.Listen("tcp", addr)
		if err == nil {
			return addr, l.Close()
		}
		last = err
	}
	return "", fmt.Errorf("find a free port: %w", last)
}

// Config says which binary to run and how.
type Config struct {
	Binary    string
	Data      string   // data directory
	Kafka     string   // HOST:PORT for Kafka clients, "" for a free one
	Advertise string   // HOST:PORT that clients are told, "" for that of Kafka
	HTTP      string   // HOST:PORT of /livez and /readyz, "" for a free one
	Set       []string // broker settings, NAME=VALUE
	Peer      string   // HOST:PORT to listen on for the other nodes, "" for a broker alone
	// Founders are the nodes of the cluster, as HOST:PORT, the same list on all of them. PeerAdvertise is which of them
	// this one is, "" for Peer itself.
	Founders      []string
	PeerAdvertise string
	Output        io.Writer // gets a copy of what the process prints, or nil
}

func (cfg Config) arguments() []string {
	args := []string{"serve", "--data", cfg.Data, "--listen", cfg.Kafka, "--advertise", cmp.Or(cfg.Advertise, cfg.Kafka), "--http", cfg.HTTP}
	if cfg.Peer != "" {
		args = append(args, "--peer-listen", cfg.Peer, "--founders", strings.Join(cfg.Founders, ","))
	}
	if cfg.PeerAdvertise != "" {
		args = append(args, "--peer-advertise", cfg.PeerAdvertise)
	}
	for _, assignment := range cfg.Set {
		args = append(args, "--set", assignment)
	}
	return args
}

// Broker is one run of the binary.
type Broker struct {
	cfg     Config
	cmd     *exec.Cmd
	started time.Time
	output  tail
	done    chan struct{}
	waitErr error // of cmd.Wait; to be read after done is closed
}

// Start runs `serve` and does not wait until it is ready.
func Start(cfg Config) (*Broker, error) {
	for _, addr := range []*string{&cfg.Kafka, &cfg.HTTP} {
		if *addr == "" {
			var err error
			if *addr, err = FreeAddr(); err != nil {
				return nil, err
			}
		}
	}
	b := &Broker{cfg: cfg, done: make(chan struct{})}
	b.cmd = exec.Command(cfg.Binary, cfg.arguments()...)
	var out io.Writer = &b.output
	if cfg.Output != nil {
		out = io.MultiWriter(&b.output, cfg.Output)
	}
	b.cmd.Stdout, b.cmd.Stderr = out, out
	b.started = time.Now()
	if err := b.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Binary, err)
	}
	go func() {
		b.waitErr = b.cmd.Wait()
		close(b.done)
	}()
	return b, nil
}

// Config returns what the broker was started with, and the addresses that were taken for it.
func (b *Broker) Config() Config { return b.cfg }

// Addr is the HOST:PORT for Kafka clients.
func (b *Broker) Addr() string { return b.cfg.Kafka }

// PID is the process's id.
func (b *Broker) PID() int { return b.cmd.Process.Pid }

// Done is closed when the process has ended.
func (b *Broker) Done() <-chan struct{} { return b.done }

// Output returns the end of what the process printed so far.
func (b *Broker) Output() string { return b.output.String() }

// Probe asks a path of the HTTP listener and returns the status.
func (b *Broker) Probe(ctx context.Context, path string) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.cfg.HTTP+path, nil)
	if err != nil {
		return 0, fmt.Errorf("ask for %s: %w", path, err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask for %s: %w", path, err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode, nil
}

// AwaitReady waits until /readyz answers 200 and returns how long after its start that was. It fails when the
// process ends before, or ctx does.
func (b *Broker) AwaitReady(ctx context.Context) (time.Duration, error) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		status, err := b.Probe(ctx, "/readyz")
		if err == nil && status == http.StatusOK {
			return time.Since(b.started), nil
		}
		select {
		case <-b.done:
			return 0, fmt.Errorf("wait for readiness: the process ended (%v):\n%s", b.waitErr, b.Output())
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for readiness: %w, last answer %d, %v:\n%s", ctx.Err(), status, err, b.Output())
		case <-ticker.C:
		}
	}
}

// Signal sends a signal to the process.
func (b *Broker) Signal(sig syscall.Signal) error {
	if err := b.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("send %v: %w", sig, err)
	}
	return nil
}

// Pause freezes the process with SIGSTOP, as a machine that swaps or a long collection of garbage would: its connections
// stay open, and nothing answers. It stands still when Pause returns. It can still be killed.
func (b *Broker) Pause() error {
	if err := b.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return awaitStopped(b.PID())
}

// Resume lets a frozen process go on.
func (b *Broker) Resume() error { return b.Signal(syscall.SIGCONT) }

// Ended reports whether the process has ended.
func (b *Broker) Ended() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// Wait waits for the end of the process and returns its exit code, -1 when a signal ended it.
func (b *Broker) Wait(ctx context.Context) (int, error) {
	select {
	case <-b.done:
		return b.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for the end of the process: %w:\n%s", ctx.Err(), b.Output())
	}
}

// CPU is the processor time that the process has used, of all its threads, in user and kernel mode. It is known when the
// process has ended, and 0 before.
func (b *Broker) CPU() time.Duration {
	select {
	case <-b.done:
		return b.cmd.ProcessState.UserTime() + b.cmd.ProcessState.SystemTime()
	default:
		return 0
	}
}

// Terminate sends SIGTERM and waits for the exit code.
func (b *Broker) Terminate(ctx context.Context) (int, error) {
	if err := b.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	return b.Wait(ctx)
}

// Kill ends the process with SIGKILL, unless it has ended, and waits for that.
func (b *Broker) Kill() error {
	if err := b.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill: %w", err)
	}
	<-b.done
	return nil
}

// tail keeps the last bytes written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - outputBytesMax; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
