// Command kill is the kill -9 campaign: it proves on the real binary that nothing acknowledged is lost, nothing is
// stored twice, nothing changes its order and every answered offset is true, whenever the process is killed.
//
//	go run ./campaign/kill --kills 20
//
// It builds and starts a broker, loads it with idempotent producers of its own (up to five batches in flight, a
// batch with an unknown outcome is sent again byte for byte) and with a consumer that reads along, and kills the
// broker with SIGKILL at random points: under load, right after an answer, while producers are sending their last
// batches again, while it starts and while it ends in good order. Segments are short, so that there are many base
// snapshots to start from. Records are deleted meanwhile, topics are created and deleted, and on one partition nearly
// each batch has a producer of its own, so that there are producers to forget.
//
// After each restart every producer sends its last five batches of each partition again, twice, and demands the
// original offsets, as long as the partition must remember them, and asks for a producer id, which must never have
// been given before. What was deleted must not come back, nor more be gone than was asked for. At the end the
// broker is stopped with SIGTERM, started once more, and all of the log is read back and judged by the checker of
// internal/history. The last lines have the figures. Any violation ends the campaign with status 1, keeps the data
// directory and prints the seed.
//
// With --disk the data lies on a small disk of its own, in memory, which is filled up to the last byte from time to time,
// for a moment: nothing may be lost, nothing may end, and it goes on by itself. That needs Linux, and root or leave to
// make user namespaces.
//
// The seed fixes what the campaign draws (batches, pauses, when to kill), not how the processes are scheduled: it
// makes a violation likely to come again, not certain.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
)

// config is what the flags say.
type config struct {
	kills      int
	duration   time.Duration
	producers  int
	topics     int
	partitions int
	churn      int
	rate       int
	disk       int // MiB
	seed       uint64
	data       string
	binary     string
}

func parseFlags(args []string) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("kill", flag.ContinueOnError)
	flags.IntVar(&cfg.kills, "kills", 20, "how often the broker is killed, at least 1")
	flags.DurationVar(&cfg.duration, "duration", 0, "spread the kills over this time (default: one after the other)")
	flags.IntVar(&cfg.producers, "producers", 4, "producers at the same time, 1 to 64")
	flags.IntVar(&cfg.topics, "topics", 2, "topics, 1 to 64")
	flags.IntVar(&cfg.partitions, "partitions", 3, "partitions of each topic, 1 to 64")
	flags.IntVar(&cfg.churn, "churn", 2, "further topics that are created, written and deleted all the time, 0 to 64")
	flags.IntVar(&cfg.rate, "rate", 4000, "batches a second of all producers together, in bursts; 0: no limit")
	flags.IntVar(&cfg.disk, "disk", 0, "put the data on a disk of so many MiB, at least 32, that fills up again and again (default: whichever it lies on)")
	flags.Uint64Var(&cfg.seed, "seed", 0, "seed of everything that is drawn (default: a random one, printed)")
	flags.StringVar(&cfg.data, "data", "", "data directory; it must not exist (default: a temporary one, removed after success)")
	flags.StringVar(&cfg.binary, "binary", "", "run this binary (default: build ./cmd/oncemq)")
	if err := frame.Parse(flags, args); err != nil {
		return cfg, err
	}
	for name, n := range map[string]int{"producers": cfg.producers, "topics": cfg.topics, "partitions": cfg.partitions} {
		if n < 1 || n > 64 {
			return cfg, fmt.Errorf("--%s %d is outside 1 to 64", name, n)
		}
	}
	if cfg.churn < 0 || cfg.churn > 64 {
		return cfg, fmt.Errorf("--churn %d is outside 0 to 64", cfg.churn)
	}
	if cfg.disk != 0 && (cfg.disk < 32 || cfg.data != "") {
		return cfg, errors.New("--disk is at least 32, and goes without --data")
	}
	if cfg.kills < 1 || cfg.rate < 0 || cfg.duration < 0 {
		return cfg, fmt.Errorf("--kills must be at least 1, --rate and --duration at least 0")
	}
	if cfg.seed == 0 {
		cfg.seed = uint64(time.Now().UnixNano())
	}
	return cfg, nil
}

func main() {
	frame.Main("kill", parseFlags, func(ctx context.Context, cfg config, out io.Writer) error {
		if cfg.disk > 0 {
			if inner, err := ownDisk(ctx, cfg); !inner {
				return err
			}
		}
		return frame.Failed(cfg.seed, run(ctx, cfg, out))
	})
}
