// Command full is the full-disk campaign: it proves on the real binary that a full disk loses nothing, stores nothing
// twice, stops no reader, and that writing goes on without a restart once there is space again.
//
//	go run ./campaign/full
//
// It mounts a small file system in memory (in a user and mount namespace of its own: no privilege is needed, Linux must
// allow it), runs a broker on it, and loads it with idempotent producers: raw ones, which send what was refused or is
// unknown again byte for byte, and franz-go as it is. In each round the file system becomes full in one of three ways,
// and gets space again:
//
//	records   the producers fill it; the records that were read are deleted (DeleteRecords)
//	topic     a second topic takes up to half of it and the producers fill the rest; the second topic is deleted
//	stranger  under load, a file that is not the broker's takes what is left, to the last byte; it is removed
//
// While it is full: a new batch is answered KAFKA_STORAGE_ERROR (56), or 7 if it was accepted just before; what is
// stored is answered with its offset when it is sent again; everything that is stored can be read; in every second round
// the broker is killed with SIGKILL and started again. With space again every producer goes on with the batch that was
// refused. At the end all that a consumer read along, and all that is there after one more restart, is judged by the
// checker of internal/history. A run in which nothing was ever refused fails, as does one on a machine that does not
// allow the small file system.
//
// The file system has no disk: what a lost cache does is not tried here.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
)

// config is what the flags say.
type config struct {
	sizeMiB   int
	dir       string
	rounds    int
	producers int
	hold      time.Duration
	seed      uint64
	binary    string
	mounted   bool
}

func parseFlags(args []string) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("full", flag.ContinueOnError)
	flags.IntVar(&cfg.sizeMiB, "size", 64, "size of the file system in MiB, 32 to 4096")
	flags.StringVar(&cfg.dir, "dir", "", "use this directory, which must lie on a small file system of its own (default: mount one in memory)")
	flags.IntVar(&cfg.rounds, "rounds", 6, "how often it becomes full, at least 1")
	flags.IntVar(&cfg.producers, "producers", 4, "raw producers, 1 to 64; franz-go comes on top")
	flags.DurationVar(&cfg.hold, "hold", 1500*time.Millisecond, "how long it stays full each time")
	flags.Uint64Var(&cfg.seed, "seed", 0, "seed of everything that is drawn (default: a random one, printed)")
	flags.StringVar(&cfg.binary, "binary", "", "run this binary (default: build ./cmd/oncemq)")
	flags.BoolVar(&cfg.mounted, "in-namespace", false, "set by the command itself when it runs itself again")
	if err := frame.Parse(flags, args); err != nil {
		return cfg, err
	}
	if cfg.sizeMiB < 32 || cfg.sizeMiB > 4096 || cfg.producers < 1 || cfg.producers > 64 {
		return cfg, fmt.Errorf("--size must be 32 to 4096, --producers 1 to 64")
	}
	if cfg.rounds < 1 || cfg.hold < 0 {
		return cfg, fmt.Errorf("--rounds must be at least 1, --hold at least 0")
	}
	if cfg.seed == 0 {
		cfg.seed = uint64(time.Now().UnixNano())
	}
	return cfg, nil
}

func main() {
	frame.Main("full", parseFlags, func(ctx context.Context, cfg config, out io.Writer) error {
		if cfg.dir == "" && !cfg.mounted {
			return runMounted(ctx, cfg)
		}
		return frame.Failed(cfg.seed, run(ctx, cfg, out))
	})
}
