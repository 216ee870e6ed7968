// Command cluster is the campaign on three nodes: it proves on the real binary that nothing acknowledged is lost, nothing is
// stored twice, nothing changes its order and every answered offset is true, whatever happens to one node at a time, or to
// all processes at once; and it measures how long a partition is away while a majority is up.
//
//	go run ./campaign/cluster --duration 90s
//
// It starts the nodes on loopback ports, with a proxy in front of each peer listener, and loads partitions with three
// replicas: by producers of its own, which send a batch with an unknown outcome again byte for byte, to whichever node leads
// then, and after each fault send their last five batches of the partition again, twice, and demand the original offsets; by
// franz-go, and by kcat (librdkafka) when it is installed. A consumer of each partition reads along.
//
// The faults, drawn by the seed, each at least once in every round of them:
//
//	kill      SIGKILL of a node, now and then once more while it comes back
//	kill-most SIGKILL of all nodes but one at once
//	kill-all  SIGKILL of all nodes at once
//	pause     SIGSTOP of a node, and SIGCONT
//	isolate   nothing passes between a node and the others, and then it does again, or the connections are reset
//	one-way   the same in one direction only, to or from the node
//	restart   SIGTERM of a node, which must hand its partitions over and end with 0
//	slow      a delay, or a low rate, on the way to a node
//	transfer  leadership moves to the preferred leader (ElectLeaders)
//
// The node is one that leads a partition that is drawn, or the controller. For its partitions that is a fault of the leader,
// for all others one of a follower.
//
// A probe of each partition sends one record every 20 ms, the same one until it is stored, to the node that took the last
// one, and to all nodes when that does not answer. How long a partition was away is the longest time between two successes of
// its probe that a fault lies in; after SIGKILL of several nodes it counts from their start. At the end there are the median, the
// 99th percentile and the worst of each fault, for its leaders' partitions and for the others.
//
// At the end all nodes must serve and agree about the leaders, everything is read back and judged by the checker of
// internal/history, all nodes are stopped with SIGTERM, each data directory must be sound, and all replicas of a partition
// must hold the same batches, byte for byte. Any violation ends the campaign with status 1, keeps the data directories and
// prints the seed. So does a fault that was asked for and did not happen, and a partition that was away for too long.
//
// The seed fixes what the campaign draws, not how the processes are scheduled: it makes a violation likely to come again, not
// certain. The proxies need Linux.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
)

// config is what the flags say.
type config struct {
	duration   time.Duration
	faults     []kind
	nodes      int
	partitions int
	producers  int
	rate       int
	p99, worst time.Duration
	seed       uint64
	data       string
	binary     string
}

func parseFlags(args []string) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	flags.DurationVar(&cfg.duration, "duration", 90*time.Second, "how long faults happen; each one that was chosen happens once in any case")
	faults := flags.String("faults", "all", "the faults that happen, separated by commas: "+strings.Join(names(kinds), ", ")+"; none; or all")
	flags.IntVar(&cfg.nodes, "nodes", 3, "nodes, 1 to 9; a cluster of one has only some of the faults")
	flags.IntVar(&cfg.partitions, "partitions", 3, "partitions of each of the two topics, 1 to 64")
	flags.IntVar(&cfg.producers, "producers", 6, "producers of our own at the same time, 1 to 64")
	flags.IntVar(&cfg.rate, "rate", 400, "batches a second of all producers of our own together; 0: no limit")
	flags.DurationVar(&cfg.p99, "p99", 3*time.Second, "how long a partition may be away at the 99th percentile while a majority is up, when at least 100 were; 0: not judged")
	flags.DurationVar(&cfg.worst, "worst", 6*time.Second, "how long a partition may be away at most while a majority is up; 0: not judged")
	flags.Uint64Var(&cfg.seed, "seed", 0, "seed of everything that is drawn (default: a random one, printed)")
	flags.StringVar(&cfg.data, "data", "", "directory of the data directories; it must not exist (default: a temporary one, removed after success)")
	flags.StringVar(&cfg.binary, "binary", "", "run this binary (default: build ./cmd/oncemq)")
	if err := frame.Parse(flags, args); err != nil {
		return cfg, err
	}
	for name, n := range map[string]int{"partitions": cfg.partitions, "producers": cfg.producers} {
		if n < 1 || n > 64 {
			return cfg, fmt.Errorf("--%s %d is outside 1 to 64", name, n)
		}
	}
	if cfg.nodes < 1 || cfg.nodes > 9 {
		return cfg, fmt.Errorf("--nodes %d is outside 1 to 9", cfg.nodes)
	}
	if cfg.rate < 0 || cfg.duration < 0 || cfg.p99 < 0 || cfg.worst < 0 {
		return cfg, fmt.Errorf("--rate, --duration, --p99 and --worst must be at least 0")
	}
	var err error
	if cfg.faults, err = parseFaults(*faults, cfg.nodes); err != nil {
		return cfg, err
	}
	if cfg.seed == 0 {
		cfg.seed = uint64(time.Now().UnixNano())
	}
	return cfg, nil
}

// parseFaults reads a list of kinds. All are those that so many nodes can have.
func parseFaults(list string, nodes int) ([]kind, error) {
	possible := kinds
	if nodes == 1 {
		possible = []kind{kill, killAll, pause, restart}
	}
	switch list {
	case "all":
		return possible, nil
	case "none":
		return nil, nil
	}
	var chosen []kind
	for name := range strings.SplitSeq(list, ",") {
		k := kind(name)
		if !slices.Contains(possible, k) {
			return nil, fmt.Errorf("--faults: %q is none of %s", name, strings.Join(names(possible), ", "))
		}
		if !slices.Contains(chosen, k) {
			chosen = append(chosen, k)
		}
	}
	return chosen, nil
}

func main() {
	frame.Main("cluster", parseFlags, func(ctx context.Context, cfg config, out io.Writer) error {
		return frame.Failed(cfg.seed, run(ctx, cfg, out))
	})
}
