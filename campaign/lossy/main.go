// Command lossy is the campaign on a bad network: it proves on the real binary, with client libraries as they are,
// that every record is stored once, in order and at the acknowledged offset, however many answers are lost.
//
//	go run ./campaign/lossy
//
// It builds and starts a broker behind the proxy of internal/lossy, which swallows answers, cuts connections in the
// middle of requests and answers, delays, and delivers in pieces. Through it franz-go, sarama (conformance/sarama)
// and kcat (librdkafka) produce to the same three partitions, idempotent and with acks=all, in small batches. Then the
// log is read from the broker itself and judged twice: by the checker of internal/history, which knows what each client
// was told, and by a tap in the proxy, which knows every answer of the broker, those included that no client got. With
// --duration this is repeated, on a new topic each time.
//
// It ends with status 1 on any violation, keeps the data directory then, and prints the seed; a record that a client
// gives up is a violation as well, because all of them are told to try for ever. So is a run that proves nothing: one
// in which a kind of fault never happened, or a client never had to send again what was stored. `--faults 0` shows it.
//
// The seed fixes what the campaign draws (records, partitions, the faults of the n-th connection), not how processes
// are scheduled: it makes a violation likely to come again, not certain.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
)

// config is what the flags say.
type config struct {
	seed     uint64
	records  int64
	duration time.Duration
	clients  []string
	faults   float64
	binary   string
}

// faultsMax keeps the sum of the rates well below 1.
const faultsMax = 5

func parseFlags(args []string) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("lossy", flag.ContinueOnError)
	flags.Uint64Var(&cfg.seed, "seed", 0, "seed of everything that is drawn (default: a random one, printed)")
	flags.Int64Var(&cfg.records, "records", 20_000, "records of each client in a round")
	flags.DurationVar(&cfg.duration, "duration", 0, "begin new rounds for this long (default: one round)")
	names := flags.String("clients", "franz-go,sarama,kcat", "who produces; a name that comes twice is two producers")
	flags.Float64Var(&cfg.faults, "faults", 1, "multiple of the usual rates of faults, 0 to 5")
	flags.StringVar(&cfg.binary, "binary", "", "run this binary (default: build ./cmd/oncemq)")
	if err := frame.Parse(flags, args); err != nil {
		return cfg, err
	}
	cfg.clients = strings.Split(*names, ",")
	for _, name := range cfg.clients {
		if clients[name] == nil {
			return cfg, fmt.Errorf("--clients: unknown client %q", name)
		}
	}
	if cfg.records < 1 || cfg.duration < 0 {
		return cfg, fmt.Errorf("--records must be at least 1, --duration at least 0")
	}
	if !(cfg.faults >= 0 && cfg.faults <= faultsMax) {
		return cfg, fmt.Errorf("--faults %v is outside 0 to %d", cfg.faults, faultsMax)
	}
	if cfg.seed == 0 {
		cfg.seed = uint64(time.Now().UnixNano())
	}
	return cfg, nil
}

func main() {
	frame.Main("lossy", parseFlags, func(ctx context.Context, cfg config, out io.Writer) error {
		return frame.Failed(cfg.seed, run(ctx, cfg, out))
	})
}
