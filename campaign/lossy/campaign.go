package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/lossy"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

const (
	readyWithin = 30 * time.Second
	// roundWithin and recordWithin bound a round: a client that takes longer is stuck.
	roundWithin, recordWithin = 2 * time.Minute, 5 * time.Millisecond
	// clientWithin is for limits of clients that are not to be met.
	clientWithin = 24 * time.Hour
	// delayMax bounds a delay by the proxy, pieceMax a piece in bytes.
	delayMax, pieceMax = 20 * time.Millisecond, 16
)

// rates are the faults at --faults 1, for each request and each answer. A held connection costs its client a timeout.
var rates = lossy.Rates{
	lossy.SwallowCut: 0.03, lossy.SwallowHold: 0.008, lossy.CutRequest: 0.02, lossy.CutAnswer: 0.02,
	lossy.DelayRequest: 0.05, lossy.DelayAnswer: 0.05, lossy.PieceRequest: 0.05, lossy.PieceAnswer: 0.05,
}

// campaign is one run.
type campaign struct {
	cfg    config
	out    io.Writer
	dir    string // of all that is written; kept after a violation
	kcat   string // path, when it is wanted
	sarama string
	broker *testbroker.Broker
	proxy  *lossy.Proxy
	tap    *wiretap

	rounds        int
	verdict       history.Verdict
	withoutOffset int64
	traffic       map[string]traffic // by client

	mu         sync.Mutex
	violations []string
	broken     int // violations, also those that are not kept
}

var errViolated = errors.New("a promise was broken, or nothing was proved")

// violate notes that something is not as promised.
func (c *campaign) violate(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken++; c.broken <= problemsMax {
		c.violations = append(c.violations, fmt.Sprintf(format, args...))
	}
}

// violated returns the violations as an error, nil when there are none.
func (c *campaign) violated() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d violations, the first:\n  %s", errViolated, c.broken, strings.Join(c.violations, "\n  "))
}

func run(ctx context.Context, cfg config, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "oncemq-lossy-")
	if err != nil {
		return fmt.Errorf("make a working directory: %w", err)
	}
	c := &campaign{cfg: cfg, out: out, dir: dir, tap: newWiretap(), traffic: make(map[string]traffic)}
	defer func() {
		if c.broker != nil {
			err = errors.Join(err, c.broker.Kill())
		}
		if c.proxy != nil {
			err = errors.Join(err, c.proxy.Close())
		}
		if err != nil {
			fmt.Fprintf(out, "kept: %s\n", dir)
			return
		}
		err = os.RemoveAll(dir)
	}()
	if err := c.prepare(ctx); err != nil {
		return err
	}
	begun := time.Now()
	for {
		if err := c.round(ctx); err != nil {
			return errors.Join(err, c.violated())
		}
		if c.violated() != nil || time.Since(begun) >= cfg.duration {
			break
		}
	}
	c.proved()
	err = c.violated()
	c.report(time.Since(begun), err == nil)
	return err
}

// prepare finds or builds all programs and starts the broker behind the proxy.
func (c *campaign) prepare(ctx context.Context) (err error) {
	fmt.Fprintf(c.out, "lossy campaign: seed %d, %d records each of %s, files in %s\n",
		c.cfg.seed, c.cfg.records, strings.Join(c.cfg.clients, ", "), c.dir)
	if slices.Contains(c.cfg.clients, "kcat") {
		if c.kcat, err = exec.LookPath("kcat"); err != nil {
			return errors.New("kcat is not installed: run `apt-get install kcat` (Debian, Ubuntu) or `brew install kcat` (macOS)")
		}
	}
	if slices.Contains(c.cfg.clients, "sarama") {
		if c.sarama, err = buildSarama(ctx, c.dir); err != nil {
			return err
		}
	}
	binary, err := frame.Binary(ctx, c.cfg.binary, c.dir)
	if err != nil {
		return err
	}
	kafka, err := testbroker.FreeAddr()
	if err != nil {
		return err
	}
	scaled := rates
	for f := range scaled {
		scaled[f] *= c.cfg.faults
	}
	c.proxy, err = lossy.Start(lossy.Options{
		Broker: kafka, Seed: c.cfg.seed, Rates: scaled, DelayMax: delayMax, PieceMax: pieceMax,
		OnRequest: func(conn uint64, frame []byte) { c.tap.request(conn, frame) },
		OnAnswer:  func(conn uint64, frame []byte) { c.tap.answer(conn, frame) },
	})
	if err != nil {
		return err
	}
	c.broker, err = testbroker.Start(testbroker.Config{
		Binary: binary, Data: filepath.Join(c.dir, "data"), Kafka: kafka, Advertise: c.proxy.Addr()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	_, err = c.broker.AwaitReady(ctx)
	return err
}

// buildSarama compiles the program of conformance/sarama.
func buildSarama(ctx context.Context, dir string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	path := filepath.Join(dir, "sarama")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, ".")
	cmd.Dir = filepath.Join(strings.TrimSpace(string(root)), "conformance", "sarama")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build conformance/sarama: %w\n%s", err, out)
	}
	return path, nil
}

// round runs all clients on a topic of their own and judges what is in it.
func (c *campaign) round(ctx context.Context) error {
	conn, err := rawkafka.Dial(c.broker.Addr(), rawkafka.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	r := &round{}
	if r.topic, err = conn.CreateTopic(fmt.Sprintf("lossy-%d", c.rounds), partitions); err != nil {
		return err
	}
	c.tap.name(r.topic)
	for i := range r.histories {
		r.histories[i] = history.New()
	}
	for i, name := range c.cfg.clients {
		r.producers = append(r.producers, &producer{
			c: c, round: r, client: name, name: int32(c.rounds*len(c.cfg.clients) + i), count: c.cfg.records})
	}
	c.rounds++
	begun := time.Now()
	if err := c.load(ctx, r); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "round %d: clients done after %.1f s\n", c.rounds, time.Since(begun).Seconds())
	verdict, err := r.readBack(c, conn)
	if err != nil {
		return err
	}
	c.judge(r, verdict)
	if c.violated() != nil {
		return r.dump(c)
	}
	return nil
}

// load runs the clients until all of them have got their last answer.
func (c *campaign) load(ctx context.Context, r *round) error {
	within := roundWithin + recordWithin*time.Duration(c.cfg.records)
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var running sync.WaitGroup
	for _, p := range r.producers {
		running.Go(func() { p.produce(limited) })
	}
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-c.broker.Done():
		cancel()
		<-done
		return fmt.Errorf("the broker ended by itself:\n%s", c.broker.Output())
	}
	if limited.Err() != nil && ctx.Err() == nil {
		c.violate("the clients were not done after %v", within) // the log may tell why
	}
	return ctx.Err()
}

// judge adds up what a round has shown.
func (c *campaign) judge(r *round, verdict history.Verdict) {
	c.tap.mu.Lock() // connections that end may still have something to say
	defer c.tap.mu.Unlock()
	want := 0
	for _, p := range r.producers {
		want += int(p.count)
		c.withoutOffset += p.withoutOffset
		seen := c.tap.traffic(p.String())
		sum := c.traffic[p.client]
		sum.batches += seen.batches
		sum.again += seen.again
		sum.deduplicated += seen.deduplicated
		sum.early += seen.early
		sum.retriable += seen.retriable
		c.traffic[p.client] = sum
	}
	c.verdict = c.verdict.Plus(verdict)
	if !verdict.OK() {
		c.violate("the log is not what was sent: %v", verdict)
	}
	if verdict.Records != want {
		c.violate("%d records were read, %d sent", verdict.Records, want)
	}
	for _, text := range c.tap.problems {
		c.violate("%s", text)
	}
	if c.tap.broken > len(c.tap.problems) {
		c.violate("%d more of this kind", c.tap.broken-len(c.tap.problems))
	}
	if err := c.proxy.Err(); err != nil {
		c.violate("proxy: %v", err)
	}
}

// proved demands that every kind of fault has happened, and that each client had to send batches again that the
// broker had already stored: otherwise a run without violations says nothing.
func (c *campaign) proved() {
	counts := c.proxy.Counts()
	for _, f := range lossy.Faults() {
		if counts[f] == 0 {
			c.violate("nothing was proved: %v 0 (more --records, or more --faults)", f)
		}
	}
	for _, name := range c.cfg.clients {
		if c.traffic[name].deduplicated == 0 {
			c.violate("nothing was proved: %s sent no batch again that was stored (more --records, or more --faults)", name)
		}
	}
}

// report prints the figures and the verdict.
func (c *campaign) report(took time.Duration, ok bool) {
	fmt.Fprintf(c.out, "faults: %v\n", c.proxy.Counts())
	deduplicated := 0
	for _, name := range slices.Compact(slices.Sorted(slices.Values(c.cfg.clients))) {
		t := c.traffic[name]
		deduplicated += t.deduplicated
		fmt.Fprintf(c.out, "%s: %d batches, sent again %d times, of these answered as duplicates %d, "+
			"sent ahead of a lost one %d, retriable answers %d\n", name, t.batches, t.again, t.deduplicated, t.early, t.retriable)
	}
	fmt.Fprintln(c.out, c.verdict)
	word := "OK, every record once, in order, at the acknowledged offset"
	if !ok {
		word = "FAILED"
	}
	fmt.Fprintf(c.out, "lossy: %s: rounds %d, connections %d, records %d (without an offset %d), "+
		"duplicates recognised %d, %.1f s, seed %d\n",
		word, c.rounds, c.proxy.Connections(), c.verdict.Records, c.withoutOffset, deduplicated, took.Seconds(), c.cfg.seed)
}
