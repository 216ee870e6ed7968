package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// goPackage is one package whose tests are to be put to the test.
type goPackage struct {
	importPath string
	name       string // the directory, from the root of the module
	dir        string
	files      []string
	rapid      bool // its tests have flags of their own
}

// load finds packages, and the root of the module.
func load(ctx context.Context, patterns []string) (root string, packages []*goPackage, err error) {
	args := append([]string{"list", "-json=ImportPath,Dir,GoFiles,TestImports,XTestImports,Module"}, patterns...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", nil, fmt.Errorf("list packages: %w", err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir                    string
			GoFiles, TestImports, XTestImports []string
			Module                             struct{ Dir string }
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return root, packages, nil
		} else if err != nil {
			return "", nil, fmt.Errorf("list packages: %w", err)
		}
		root = p.Module.Dir
		name, err := filepath.Rel(root, p.Dir)
		if err != nil {
			return "", nil, fmt.Errorf("list packages: %w", err)
		}
		packages = append(packages, &goPackage{
			importPath: p.ImportPath, name: filepath.ToSlash(name), dir: p.Dir, files: p.GoFiles,
			rapid: slices.Contains(slices.Concat(p.TestImports, p.XTestImports), "pgregory.net/rapid"),
		})
	}
}

// fate is what became of a mutant.
type fate int

const (
	killed            fate = iota // a test failed or panicked
	stopped                       // out of processor time
	equal                         // no test failed, as equivalent.txt says
	uncompiled                    // it is no program
	survived                      // no test failed
	wronglyEquivalent             // a test failed, and equivalent.txt says that none can
	fates
)

// limits are what a mutant may use. Processor time is the same on a busy machine, real time is not, and only ends
// tests that wait for what never comes.
type limits struct {
	cpuSeconds int
	real       time.Duration
}

// measure is what is known of the tests of a package on the package as it is.
type measure struct {
	limits
	// stages are the flags of test runs that together are all tests: the quick ones come first, since most mutants are
	// killed by one of them.
	stages [][]string
}

// memoryKiB is the address space that a mutant may use.
const memoryKiB = 4 << 20

// try lets the tests of a package run against each of its mutants, and prints those that end badly.
func try(ctx context.Context, cfg config, p *goPackage, mutants []*mutant, out io.Writer) (counts [fates]int, err error) {
	tmp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return counts, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	bound, err := baseline(ctx, cfg, p, tmp)
	if err != nil {
		return counts, err
	}
	queue := make(chan *mutant)
	var mu sync.Mutex // counts, firstErr, out
	var firstErr error
	var workers sync.WaitGroup
	for i := range cfg.parallel {
		dir := filepath.Join(tmp, fmt.Sprint(i))
		workers.Go(func() {
			for m := range queue {
				f, err := m.try(ctx, p, bound, dir)
				mu.Lock()
				counts[f]++
				if firstErr == nil {
					firstErr = err
				}
				switch f {
				case survived:
					fmt.Fprintf(out, "SURVIVED  %s\n", m)
				case wronglyEquivalent:
					fmt.Fprintf(out, "KILLED, but %s says that it cannot be  %s\n", equivalentFile, m)
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range mutants {
		queue <- m
	}
	close(queue)
	workers.Wait()
	return counts, firstErr
}

// baseline runs the tests on the package as it is. They must pass, and give the measure for the mutants.
func baseline(ctx context.Context, cfg config, p *goPackage, tmp string) (measure, error) {
	binary := filepath.Join(tmp, "baseline.test")
	if text, err := compile(ctx, p, binary); err != nil {
		return measure{}, fmt.Errorf("compile the tests of %s: %w\n%s", p.name, err, text)
	}
	begun := time.Now()
	cmd := tests(ctx, p, binary, limits{cpuSeconds: 600, real: 10 * time.Minute}, "-test.run", cfg.run, "-test.v")
	text, err := cmd.CombinedOutput()
	if err != nil {
		return measure{}, fmt.Errorf("run the tests of %s without a change: %w\n%s", p.name, err, text)
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return measure{
		limits: limits{cpuSeconds: int((2*cpu + 2*time.Second) / time.Second), real: 10*time.Since(begun) + 30*time.Second},
		stages: stages(string(text), cfg.run),
	}, nil
}

// quick is how long a test of the first stage takes at most.
const quick = 100 * time.Millisecond

// stages divides the tests that match run, of which -test.v has told this.
func stages(text, run string) [][]string {
	var first []string
	for _, m := range regexp.MustCompile(`(?m)^--- PASS: (\w+) \(([0-9.]+s)\)$`).FindAllStringSubmatch(text, -1) {
		if took, err := time.ParseDuration(m[2]); err == nil && took <= quick {
			first = append(first, m[1])
		}
	}
	if len(first) == 0 {
		return [][]string{{"-test.run", run}}
	}
	pattern := "^(" + strings.Join(first, "|") + ")$"
	return [][]string{{"-test.run", pattern}, {"-test.run", run, "-test.skip", pattern}}
}

// try compiles a mutant in a directory of its own and runs the tests.
func (m *mutant) try(ctx context.Context, p *goPackage, bound measure, dir string) (fate, error) {
	changed, overlay, binary := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "mutant.test")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{m.path: changed}})
	if err == nil {
		err = errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(changed, m.apply(), 0o644), os.WriteFile(overlay, text, 0o644))
	}
	if err != nil {
		return uncompiled, err
	}
	if _, err := compile(ctx, p, binary, "-overlay", overlay); err != nil {
		return uncompiled, ctx.Err()
	}
	for _, stage := range bound.stages {
		if _, err = tests(ctx, p, binary, bound.limits, stage...).CombinedOutput(); err != nil {
			break
		}
	}
	if err := ctx.Err(); err != nil {
		return uncompiled, err
	}
	died, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil && m.reason != "":
		return equal, nil
	case err == nil:
		return survived, nil
	case !ok:
		return uncompiled, fmt.Errorf("run the tests of %s: %w", m, err)
	case m.reason != "":
		return wronglyEquivalent, nil
	case died.Sys().(syscall.WaitStatus).Signaled():
		return stopped, nil
	}
	return killed, nil
}

func compile(ctx context.Context, p *goPackage, binary string, args ...string) ([]byte, error) {
	args = slices.Concat([]string{"test", "-c", "-vet=off", "-p=1", "-ldflags=-s -w", "-o", binary}, args, []string{p.importPath})
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "GOGC=off", "GOMEMLIMIT=1GiB") // of the compiler: a third of its time is collecting
	return cmd.CombinedOutput()
}

// tests is the command that runs a test binary within limits. It is started by a shell, which sets them for the
// process that it becomes.
func tests(ctx context.Context, p *goPackage, binary string, bound limits, flags ...string) *exec.Cmd {
	script := fmt.Sprintf(`ulimit -t %d; ulimit -v %d 2>/dev/null; exec "$0" "$@"`, bound.cpuSeconds, memoryKiB)
	args := append([]string{"-c", script, binary, "-test.short", "-test.failfast", "-test.timeout", bound.real.String()}, flags...)
	if p.rapid { // the same draws for each mutant, and no time spent on a nice failure
		args = append(args, strings.Fields("-rapid.seed=1 -rapid.nofailfile -rapid.shrinktime=0s")...)
	}
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Dir = p.dir
	return cmd
}
