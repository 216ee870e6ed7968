// Command restart measures how long a broker takes from its start until it is ready, with many producers to remember and
// with a long log.
//
//	go run ./campaign/restart
//	go run ./campaign/restart --producers 100000 --log-mib 1024
//
// It fills a directory through a broker, first with producers, then another one with records, and starts a broker on it
// again and again: after a stop with SIGTERM, and after SIGKILL under load. Each figure is the median of the starts, with
// the longest in brackets, and stands beside the target and beside what it takes to read the same bytes bare: to read from
// the first to the last byte, by one goroutine, with their CRC-32C, what a start must read of each group, which is its newest
// base snapshot and the segments from there on. What was just written is in the page cache; --cold has it thrown out
// before each start and each bare reading. With the defaults it takes some minutes and 11 GiB of disk, which it gives back.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// The targets: one million producers; 10 GiB of log after a clean stop, and after SIGKILL.
const (
	producersTarget = 3 * time.Second
	cleanTarget     = time.Second
	killedTarget    = 2 * time.Second
)

// config is what the flags say.
type config struct {
	producers          int
	producerPartitions int
	batches            int
	logMiB             int
	logPartitions      int
	repeat             int
	cold               bool
	dir                string
	binary             string
}

func parseFlags(args []string) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("restart", flag.ContinueOnError)
	flags.IntVar(&cfg.producers, "producers", 1_000_000, "producers that are to be remembered; 0: leave this part out")
	flags.IntVar(&cfg.producerPartitions, "producer-partitions", 16, "partitions over which they are spread, 1 to 1000")
	flags.IntVar(&cfg.batches, "batches", 5, "batches that each producer sends, 1 to 5")
	flags.IntVar(&cfg.logMiB, "log-mib", 10*1024, "MiB of log; 0: leave this part out")
	flags.IntVar(&cfg.logPartitions, "log-partitions", 4, "partitions over which they are spread, 1 to 1000")
	flags.IntVar(&cfg.repeat, "repeat", 5, "starts for each figure, at least 1")
	flags.BoolVar(&cfg.cold, "cold", false, "throw the files out of the page cache before they are read")
	flags.StringVar(&cfg.dir, "dir", "", "write into a new directory in this one (default: that for temporary files)")
	flags.StringVar(&cfg.binary, "binary", "", "run this binary (default: build ./cmd/oncemq)")
	if err := frame.Parse(flags, args); err != nil {
		return cfg, err
	}
	for name, n := range map[string]int{"producer-partitions": cfg.producerPartitions, "log-partitions": cfg.logPartitions} {
		if n < 1 || n > 1000 {
			return cfg, fmt.Errorf("--%s %d is outside 1 to 1000", name, n)
		}
	}
	if cfg.batches < 1 || cfg.batches > 5 {
		return cfg, fmt.Errorf("--batches %d is outside 1 to 5", cfg.batches)
	}
	if cfg.producers < 0 || cfg.logMiB < 0 || cfg.repeat < 1 {
		return cfg, errors.New("--producers and --log-mib must be at least 0, --repeat at least 1")
	}
	return cfg, nil
}

func main() { frame.Main("restart", parseFlags, run) }

func run(ctx context.Context, cfg config, out io.Writer) (err error) {
	dir, err := os.MkdirTemp(cfg.dir, "oncemq-restart-")
	if err != nil {
		return fmt.Errorf("make a working directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if cfg.binary, err = frame.Binary(ctx, cfg.binary, dir); err != nil {
		return err
	}
	if cfg.producers > 0 {
		n := &node{cfg: cfg, out: out, data: filepath.Join(dir, "producers"), set: []string{
			fmt.Sprintf("producer.id.max.per.partition=%d", max(100_000, cfg.producers)),
			fmt.Sprintf("producer.id.max.per.node=%d", max(2_000_000, cfg.producers)),
		}}
		if err := n.producers(ctx); err != nil {
			return err
		}
	}
	if cfg.logMiB > 0 {
		n := &node{cfg: cfg, out: out, data: filepath.Join(dir, "log")}
		if err := n.log(ctx); err != nil {
			return err
		}
	}
	return nil
}

// node is one data directory and the broker on it.
type node struct {
	cfg    config
	out    io.Writer
	data   string
	set    []string
	topic  rawkafka.Topic
	broker *testbroker.Broker
	took   time.Duration // the last start, until it was ready
}

// producers fills the directory with producers and measures.
func (n *node) producers(ctx context.Context) error {
	begun := time.Now()
	if err := n.start(ctx); err != nil {
		return err
	}
	err := n.load(ctx, "producers", n.cfg.producerPartitions, n.cfg.sendProducers)
	if err = errors.Join(err, n.stop(ctx)); err != nil {
		return err
	}
	fmt.Fprintf(n.out, "%d producers with %d batches each on %d partitions, filled in %.0f s\n",
		n.cfg.producers, n.cfg.batches, n.cfg.producerPartitions, time.Since(begun).Seconds())
	return n.measure(ctx, "after a clean stop", producersTarget, n.stop)
}

// log fills the directory with records and measures.
func (n *node) log(ctx context.Context) error {
	begun := time.Now()
	if err := n.start(ctx); err != nil {
		return err
	}
	err := n.load(ctx, "log", n.cfg.logPartitions, n.cfg.sendLog)
	if err = errors.Join(err, n.stop(ctx)); err != nil {
		return err
	}
	fmt.Fprintf(n.out, "%d MiB of log on %d partitions, filled in %.0f s\n", n.cfg.logMiB, n.cfg.logPartitions, time.Since(begun).Seconds())
	if err := n.measure(ctx, "after a clean stop", cleanTarget, n.stop); err != nil {
		return err
	}
	return n.measure(ctx, "after SIGKILL under load", killedTarget, n.killUnderLoad)
}

// measure starts the broker as often as was asked for, ends it in the given way before each start, and prints.
func (n *node) measure(ctx context.Context, name string, target time.Duration, end func(context.Context) error) error {
	var starts, bare []time.Duration
	var bytes int64
	for i := range n.cfg.repeat + 1 {
		if i > 0 { // before the first one it was stopped by whoever filled it
			if err := end(ctx); err != nil {
				return err
			}
		}
		files, err := toBeRead(n.data)
		if err == nil {
			err = n.chill()
		}
		if err != nil {
			return err
		}
		begun := time.Now()
		if bytes, err = readBare(files); err != nil {
			return err
		}
		bare = append(bare, time.Since(begun))
		if err := errors.Join(n.chill(), n.start(ctx)); err != nil {
			return err
		}
		starts = append(starts, n.took)
	}
	if err := n.stop(ctx); err != nil {
		return err
	}
	// The first start follows on another end.
	starts, bare = starts[1:], bare[1:]
	slices.Sort(starts)
	slices.Sort(bare)
	median, raw := starts[len(starts)/2], bare[len(bare)/2]
	verdict := "within"
	if median > target {
		verdict = "ABOVE"
	}
	fmt.Fprintf(n.out, "  %s: ready after %.2f s (%.2f), %s the target of %.0f s; bare reading of %.1f MiB: %.2f s, ratio %.1f\n",
		name, median.Seconds(), starts[len(starts)-1].Seconds(), verdict, target.Seconds(), float64(bytes)/(1<<20), raw.Seconds(),
		median.Seconds()/raw.Seconds())
	return nil
}
