// Command mutate is the mutation check: it changes one comparison of a package at a time and demands that a test of
// that package fails. A change that no test notices is a survivor: either a test is missing, or the code says less
// than it seems to.
//
//	go run ./campaign/mutate [packages]           (default: ./internal/dedupe ./internal/batch)
//	go run ./campaign/mutate --sample 60 --only '/(open|repair|scan)\.go:' ./internal/seglog
//
// The changes, each one alone (find.go):
//
//	==, !=          each to the other
//	<, <=, >, >=    to the one that differs when both sides are equal, and to the opposite direction
//	&&, ||, !x      each && and || to the other, !x to x
//	a condition that is neither: negated
//	min, max        each to the other
//	x + 1, x - 1    to x + 0, and to the other sign; x++ and x--, except as a loop's step, to the other
//
// A mutant is compiled with go test -overlay, so the tree is never touched. The quick tests run first. It is killed when a test fails or panics,
// or when the tests take more than twice their usual processor time, which is how a loop without end shows; it is limited
// in memory too. A mutant that does not compile proves nothing and is only counted.
//
// A mutant that no test can kill, because it behaves as the original does, is named in equivalent.txt with the
// reason (equivalent.go). An entry that fits no mutant, or one that a test kills, is an error.
//
// The two default packages have some 300 mutants, which take 60 processor seconds on each of two processors. A package
// with slower tests takes some seconds for each mutant: --only picks files, functions or kinds of change, and --sample
// so many at random out of what was picked, of all packages together. Tests run with -short. Survivors are printed with
// file and line. The status is 1 when there are any, 2 when the check could not be made.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
)

// errSurvived: the check was made, and not passed.
var errSurvived = errors.New("not every mutant is killed or equivalent")

// equivalentFile is where the equivalent mutants are, from the root of the module.
const equivalentFile = "campaign/mutate/equivalent.txt"

// config is what the command line says.
type config struct {
	packages []string
	run      string         // of go test; empty: every test
	only     *regexp.Regexp // mutants; nil: all
	sample   int            // of the mutants; 0: all
	seed     uint64
	parallel int
	list     bool
}

func parseFlags(args []string) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("mutate", flag.ContinueOnError)
	flags.StringVar(&cfg.run, "run", "", "run only the tests that match this expression, as go test does (default: all)")
	only := flags.String("only", "", "try only the mutants whose line, as --list prints it, matches this expression")
	flags.IntVar(&cfg.sample, "sample", 0, "try only so many of the mutants, drawn at random (default: all)")
	flags.Uint64Var(&cfg.seed, "seed", 0, "seed of the sample (default: a random one, printed)")
	flags.IntVar(&cfg.parallel, "parallel", runtime.NumCPU(), "mutants at the same time, at least 1")
	flags.BoolVar(&cfg.list, "list", false, "print the mutants and try none")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	if cfg.parallel < 1 {
		return cfg, fmt.Errorf("--parallel %d is below 1", cfg.parallel)
	}
	if cfg.sample < 0 {
		return cfg, fmt.Errorf("--sample %d is below 0", cfg.sample)
	}
	if cfg.seed == 0 {
		cfg.seed = uint64(time.Now().UnixNano())
	}
	if *only != "" {
		var err error
		if cfg.only, err = regexp.Compile(*only); err != nil {
			return cfg, fmt.Errorf("read --only: %w", err)
		}
	}
	if cfg.packages = flags.Args(); len(cfg.packages) == 0 {
		cfg.packages = []string{"./internal/dedupe", "./internal/batch"}
	}
	return cfg, nil
}

func main() {
	frame.Main("mutate", parseFlags, func(ctx context.Context, cfg config, out io.Writer) error {
		err := run(ctx, cfg, out)
		switch {
		case errors.Is(err, errSurvived):
			return fmt.Errorf("FAILED: %w", err)
		case err != nil:
			return frame.Exit(2, err)
		}
		return nil
	})
}

func run(ctx context.Context, cfg config, out io.Writer) error {
	root, packages, err := load(ctx, cfg.packages)
	if err != nil {
		return err
	}
	equivalents, err := readEquivalents(root + "/" + equivalentFile)
	if err != nil {
		return err
	}
	passed := true
	byPackage := make([][]*mutant, len(packages))
	for i, p := range packages {
		mutants, err := p.mutants()
		if err != nil {
			return err
		}
		for _, e := range match(equivalents, p.name, mutants) {
			passed = false
			fmt.Fprintf(out, "%s:%d: fits no mutant: %s\n", equivalentFile, e.line, e.key)
		}
		byPackage[i] = filter(mutants, cfg.only)
	}
	total := len(slices.Concat(byPackage...))
	if total == 0 {
		return errors.New("no mutant was picked")
	}
	if cfg.sample > 0 {
		draw(byPackage, cfg.sample, cfg.seed)
		fmt.Fprintf(out, "%d of %d mutants, seed %d\n", min(cfg.sample, total), total, cfg.seed)
	}
	for i, p := range packages {
		if cfg.list {
			for _, m := range byPackage[i] {
				fmt.Fprintln(out, m)
			}
			continue
		}
		if len(byPackage[i]) == 0 {
			continue
		}
		begun := time.Now()
		counts, err := try(ctx, cfg, p, byPackage[i], out)
		if err != nil {
			return err
		}
		passed = passed && counts[survived]+counts[wronglyEquivalent] == 0
		fmt.Fprintf(out, "%s: %d mutants: %d killed by a test, %d by the time limit, %d equivalent, %d do not compile, "+
			"%d survived, %d wrongly called equivalent; %.0f s\n", p.name, len(byPackage[i]), counts[killed], counts[stopped],
			counts[equal], counts[uncompiled], counts[survived], counts[wronglyEquivalent], time.Since(begun).Seconds())
	}
	if !passed {
		return errSurvived
	}
	return nil
}

// filter returns the mutants whose line matches; all when only is nil.
func filter(mutants []*mutant, only *regexp.Regexp) []*mutant {
	return slices.DeleteFunc(mutants, func(m *mutant) bool { return only != nil && !only.MatchString(m.String()) })
}

// draw keeps n mutants of all packages together, in the order in which they were.
func draw(byPackage [][]*mutant, n int, seed uint64) {
	all := slices.Concat(byPackage...)
	rng := rand.New(rand.NewPCG(seed, 0))
	kept := map[*mutant]bool{}
	for _, i := range rng.Perm(len(all))[:min(n, len(all))] {
		kept[all[i]] = true
	}
	for i, mutants := range byPackage {
		byPackage[i] = slices.DeleteFunc(mutants, func(m *mutant) bool { return !kept[m] })
	}
}
