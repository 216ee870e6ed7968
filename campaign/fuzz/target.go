package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// target is one fuzz function.
type target struct {
	dir  string // of the package, from the root of the module
	name string
}

func (t target) String() string { return t.dir + " " + t.name }

func moduleRoot(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return string(bytes.TrimSpace(out)), nil
}

// find returns every fuzz target below a directory, in the order of the files.
func find(root string) ([]target, error) {
	var targets []target
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (name == "testdata" || name == "vendor" || name[0] == '.' || name[0] == '_'):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		dir := filepath.Dir(path)
		if built, err := build.Default.MatchFile(dir, name); err != nil || !built {
			return err
		}
		names, err := fuzzFunctions(path)
		if err != nil {
			return err
		}
		if dir, err = filepath.Rel(root, dir); err != nil {
			return err
		}
		for _, name := range names {
			targets = append(targets, target{dir: filepath.ToSlash(dir), name: name})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for fuzz targets: %w", err)
	}
	return targets, nil
}

// fuzzFunctions returns the names of the functions in a file that go test takes for fuzz targets.
func fuzzFunctions(path string) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz") && len(f.Type.Params.List) == 1 &&
			types.ExprString(f.Type.Params.List[0].Type) == "*testing.F" {
			names = append(names, f.Name.Name)
		}
	}
	return names, nil
}

// result is what became of a target.
type result struct {
	target
	executions, interesting int
	took                    time.Duration
	err                     error
	output                  []byte
}

// String is the line about the target, and behind it, when the target failed, all that go test has printed.
func (r result) String() string {
	line := fmt.Sprintf("%-45s %10d executions  %5d new interesting  %3.0f s", r.target, r.executions, r.interesting, r.took.Seconds())
	if r.err != nil {
		line += fmt.Sprintf("  FAILED: %v\n%s", r.err, r.output)
	}
	return line
}

// run lets go test fuzz the target, with some inputs at the same time. Making each new input small, for which go test
// takes a minute by default, would leave no time for finding any.
func (t target) run(ctx context.Context, root string, d time.Duration, processes int) result {
	// Beside the fuzzing: compiling, the seeds, and making a failing input small.
	ctx, cancel := context.WithTimeout(ctx, d+5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-run=^$", "-fuzz=^"+t.name+"$", "-fuzztime="+d.String(),
		"-fuzzminimizetime=1s", "-parallel="+strconv.Itoa(processes), "./"+t.dir)
	cmd.Dir = root
	begun := time.Now()
	output, err := cmd.CombinedOutput()
	r := result{target: t, took: time.Since(begun), output: output}
	p := progressOf(output)
	r.executions, r.interesting = p.executions, p.interesting
	switch {
	case err != nil && !endedLate(output):
		r.err = err
	case p.executions == 0:
		r.err = errors.New("nothing was executed")
	case p.idle > idleMax:
		r.err = fmt.Errorf("one input took the last %v, or does not end", p.idle)
	}
	return r
}

// idleMax is how long a target may go without finishing an input. go test has no bound of its own for it.
const idleMax = 20 * time.Second

// endedLate says that a run ended with its time and without a finding. Before Go 1.27 go test may fail then, when the end
// meets it at the wrong moment (https://go.dev/issue/75804): the message has nothing but a deadline.
func endedLate(output []byte) bool {
	_, message, found := bytes.Cut(output, []byte("--- FAIL: Fuzz"))
	lines := bytes.Split(message, []byte("\n"))
	return found && len(lines) > 2 && string(bytes.TrimSpace(lines[1])) == "context deadline exceeded" && string(lines[2]) == "FAIL"
}

// progress is what the lines of a run add up to.
type progress struct {
	executions, interesting int
	idle                    time.Duration // since an input was finished
}

var progressLine = regexp.MustCompile(`elapsed: (\S+), execs: (\d+) \(\d+/sec\), new interesting: (\d+)`)

func progressOf(output []byte) (p progress) {
	var finished time.Duration // when the number of executions was first seen
	for _, m := range progressLine.FindAllSubmatch(output, -1) {
		elapsed, _ := time.ParseDuration(string(m[1])) // as time.Duration prints it
		executions, _ := strconv.Atoi(string(m[2]))    // digits, as the expression says
		if executions != p.executions {
			finished = elapsed
		}
		p.executions, p.idle = executions, elapsed-finished
		p.interesting, _ = strconv.Atoi(string(m[3]))
	}
	return p
}
