// Command sim runs seeds of the cluster simulation (internal/sim) and prints what happened in them.
//
//	go run ./campaign/sim --seeds 5000 --from 1
//	go run ./campaign/sim --time 8m                  # as many seeds as there is time for, 200 at least
//	go run ./campaign/sim --planted                  # bugs that are planted, each to be found within its number of seeds
//
// A seed is a function of nothing but itself and the source: what is printed of one that has found something says how to
// look at it again. Seeds run in several processes at a time, ten in each. The status is 1 when a seed has found something,
// or a planted bug was not found, 2 when the check could not be made.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
)

// chunk is how many seeds one process runs.
const chunk = 10

// errFound: the check was made, and not passed.
var errFound = errors.New("the simulation has found something")

// config is what the command line says.
type config struct {
	seeds, from uint64
	time        time.Duration
	parallel    int
	planted     bool
	only        string
}

func parseFlags(args []string) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("sim", flag.ContinueOnError)
	flags.Uint64Var(&cfg.seeds, "seeds", 200, "how many seeds to run at least")
	flags.Uint64Var(&cfg.from, "from", 1, "the first seed")
	flags.DurationVar(&cfg.time, "time", 0, "go on with more seeds until so much time has passed")
	flags.IntVar(&cfg.parallel, "parallel", runtime.NumCPU(), "processes at the same time, at least 1")
	flags.BoolVar(&cfg.planted, "planted", false, "plant bugs, one at a time, and demand that each is found")
	flags.StringVar(&cfg.only, "only", "", "with --planted: only bugs whose name contains this")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	if cfg.parallel < 1 || flags.NArg() > 0 {
		return cfg, fmt.Errorf("--parallel %d, arguments %q: at least 1, and none", cfg.parallel, flags.Args())
	}
	return cfg, nil
}

func main() {
	frame.Main("sim", parseFlags, func(ctx context.Context, cfg config, out io.Writer) error {
		if cfg.planted {
			return plantAll(ctx, cfg, out)
		}
		return runSeeds(ctx, cfg, out)
	})
}

// runSeeds builds the simulation and runs all seeds.
func runSeeds(ctx context.Context, cfg config, out io.Writer) (err error) {
	tmp, err := os.MkdirTemp("", "sim")
	if err != nil {
		return frame.Exit(2, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	binary := filepath.Join(tmp, "sim.test")
	if err := build(ctx, binary); err != nil {
		return frame.Exit(2, err)
	}
	began := time.Now()
	f := &field{binary: binary, dir: tmp, next: cfg.from, counts: map[string]int{}}
	f.more = func(done uint64) bool { return done < cfg.seeds || time.Since(began) < cfg.time }
	f.run(ctx, cfg.parallel)
	if f.found != "" {
		fmt.Fprintln(out, f.found)
		return errFound
	}
	for _, what := range slices.Sorted(maps.Keys(f.counts)) {
		fmt.Fprintf(out, "%12d %s\n", f.counts[what], what)
	}
	fmt.Fprintf(out, "%d seeds from %d on have found nothing, in %v\n", f.counts["seeds"], cfg.from, time.Since(began).Round(time.Second))
	return ctx.Err()
}

// build compiles the simulation.
func build(ctx context.Context, binary string, flags ...string) error {
	args := slices.Concat([]string{"test", "-c", "-o", binary}, flags, []string{"github.com/oncemq/oncemq/internal/sim"})
	if text, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("build the simulation: %w\n%s", err, text)
	}
	return nil
}

// field is a range of seeds that several processes run, until one finds something.
type field struct {
	binary, dir string
	more        func(done uint64) bool // whether more seeds are wanted after so many

	mu     sync.Mutex
	first  uint64
	next   uint64 // seed
	counts map[string]int
	found  string // what the first process that found something has printed
}

func (f *field) run(ctx context.Context, parallel int) {
	f.first = f.next
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for {
				from, ok := f.take()
				if !ok || ctx.Err() != nil {
					return
				}
				f.runChunk(ctx, from)
			}
		})
	}
	workers.Wait()
}

// take returns the next seeds to run, unless there are enough.
func (f *field) take() (from uint64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.found != "" || !f.more(f.next-f.first) {
		return 0, false
	}
	from = f.next
	f.next += chunk
	return from, true
}

func (f *field) runChunk(ctx context.Context, from uint64) {
	figures := filepath.Join(f.dir, fmt.Sprint(from))
	cmd := exec.CommandContext(ctx, f.binary, "-test.run", "^TestSeeds$", "-test.timeout", "20m",
		"-sim.seeds", fmt.Sprint(chunk), "-sim.from", fmt.Sprint(from), "-sim.figures", figures)
	text, err := cmd.CombinedOutput()
	counts := map[string]int{}
	if err == nil {
		var content []byte
		if content, err = os.ReadFile(figures); err == nil {
			err = errors.Join(json.Unmarshal(content, &counts), os.Remove(figures))
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		for what, n := range counts {
			f.counts[what] += n
		}
	case ctx.Err() == nil && f.found == "":
		f.found = fmt.Sprintf("%s%v", text, err)
	}
}
