// Command fuzz runs every fuzz target of the repository for a while.
//
//	go run ./campaign/fuzz --time 60s
//
// It finds the targets by parsing the test files, and runs some at a time through go test -fuzz. Each gets one line:
// how many inputs were executed, how many of them reached code that none before had reached, and the time. When a
// target fails, its output follows, with the command that runs the failing input again: go test writes the input
// into testdata/fuzz, from where it is a test case for ever. The status is 1 when one failed, 2 when they could not
// be run.
//
// Inputs that reached something new are kept in Go's build cache, so that a later run goes on from there.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"sync"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
)

var errFailed = errors.New("a fuzz target failed")

// config is what the command line says.
type config struct {
	time     time.Duration
	only     *regexp.Regexp // nil: all
	parallel int
	list     bool
}

func parseFlags(args []string) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("fuzz", flag.ContinueOnError)
	flags.DurationVar(&cfg.time, "time", time.Minute, "how long each target runs, at least 1s")
	only := flags.String("only", "", "run only the targets that match this expression, as --list prints them")
	flags.IntVar(&cfg.parallel, "parallel", min(2, runtime.NumCPU()), "targets at the same time, at least 1; they share the processors")
	flags.BoolVar(&cfg.list, "list", false, "print the targets and run none")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	switch {
	case flags.NArg() != 0:
		return cfg, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case cfg.parallel < 1 || cfg.time < time.Second:
		return cfg, errors.New("--parallel must be at least 1, and --time at least 1s")
	}
	if *only != "" {
		var err error
		if cfg.only, err = regexp.Compile(*only); err != nil {
			return cfg, fmt.Errorf("read --only: %w", err)
		}
	}
	return cfg, nil
}

func main() {
	frame.Main("fuzz", parseFlags, func(ctx context.Context, cfg config, out io.Writer) error {
		err := run(ctx, cfg, out)
		switch {
		case errors.Is(err, errFailed):
			return fmt.Errorf("FAILED: %w", err)
		case err != nil:
			return frame.Exit(2, err)
		}
		return nil
	})
}

func run(ctx context.Context, cfg config, out io.Writer) error {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	targets, err := find(root)
	if err != nil {
		return err
	}
	if targets = filter(targets, cfg.only); len(targets) == 0 {
		return errors.New("no fuzz target is left to run")
	}
	if cfg.list {
		for _, t := range targets {
			fmt.Fprintln(out, t)
		}
		return nil
	}
	queue := make(chan target)
	var mu sync.Mutex // out, failed
	failed := 0
	var workers sync.WaitGroup
	for range cfg.parallel {
		workers.Go(func() {
			for t := range queue {
				r := t.run(ctx, root, cfg.time, max(1, runtime.NumCPU()/cfg.parallel))
				mu.Lock()
				if r.err != nil {
					failed++
				}
				fmt.Fprintln(out, r)
				mu.Unlock()
			}
		})
	}
	for _, t := range targets {
		queue <- t
	}
	close(queue)
	workers.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%w: %d of %d", errFailed, failed, len(targets))
	}
	fmt.Fprintf(out, "%d fuzz targets, %v each: all clean\n", len(targets), cfg.time)
	return nil
}

func filter(targets []target, only *regexp.Regexp) []target {
	if only == nil {
		return targets
	}
	var kept []target
	for _, t := range targets {
		if only.MatchString(t.String()) {
			kept = append(kept, t)
		}
	}
	return kept
}
