package tidy

import (
	"go/ast"
	"go/token"
)

// The packages that are sources of nondeterminism, with what takes their place.
var (
	// outsideBelow5 are forbidden in the levels 0 to 4.
	outsideBelow5 = map[string]string{
		"os": "files come in as a vfs.FS", "os/exec": "only main starts processes", "os/signal": "only main hears signals",
		"syscall": "the system is reached through vfs", "golang.org/x/sys/unix": "the system is reached through vfs",
		"io/ioutil": "files come in as a vfs.FS",
		"net":       "connections are the server's", "net/http": "HTTP is the console's",
	}
	// outsideBelow7 are forbidden in the levels 0 to 6.
	outsideBelow7 = map[string]string{
		"math/rand": "randomness comes in through the constructor", "math/rand/v2": "randomness comes in through the constructor",
		"crypto/rand": "randomness comes in through the constructor",
		"log":         "a *slog.Logger comes in through the constructor",
	}
	// outsidePure are forbidden in the pure packages.
	outsidePure = map[string]string{
		"sync": "a pure package belongs to one goroutine", "sync/atomic": "a pure package belongs to one goroutine",
		"time": "times come in as values", "context": "nothing waits in a pure package", "io/fs": "a pure package has no files",
		"bufio": "a pure package has no files", "path/filepath": "a pure package has no files",
		"log/slog": "a pure package returns what is to be said",
	}
)

// What reads the clock, or uses a global, with what takes its place.
var (
	usesBelow7 = map[string]string{
		"time.Now": clockComesIn, "time.Since": clockComesIn, "time.Until": clockComesIn,
		"time.Sleep":   "wait for a condition, a timer or a context",
		"slog.Default": loggerComesIn, "log/slog.Default": loggerComesIn, "log/slog.Debug": loggerComesIn, "log/slog.Info": loggerComesIn,
		"log/slog.Warn": loggerComesIn, "log/slog.Error": loggerComesIn, "log/slog.Log": loggerComesIn,
	}
	usesBelow5 = map[string]string{
		"time.After": timersAreOutside, "time.AfterFunc": timersAreOutside, "time.NewTimer": timersAreOutside,
		"time.NewTicker": timersAreOutside, "time.Tick": timersAreOutside,
		"context.WithTimeout": timersAreOutside, "context.WithDeadline": timersAreOutside,
	}
)

const (
	clockComesIn     = "the clock comes in through the constructor, or the time as a value"
	loggerComesIn    = "a *slog.Logger comes in through the constructor"
	timersAreOutside = "below level 5 nothing waits for time"
)

func checkSources(t *tree, report reporter) {
	for _, p := range t.packages {
		at := p.placed().level
		if at > 6 || at == unknown {
			continue
		}
		for _, f := range p.files {
			if f.test {
				continue
			}
			f.imports(func(spec *ast.ImportSpec, path, _ string) {
				instead := outsideBelow7[path]
				if instead == "" && at < 5 {
					instead = outsideBelow5[path]
				}
				if instead == "" && pure[p.dir] {
					instead = outsidePure[path]
				}
				if instead != "" {
					report(f, spec.Pos(), f.name, "%s (%s) imports %q: %s", p.dir, at, path, instead)
				}
			})
			f.uses(func(pos token.Pos, name string) {
				instead := usesBelow7[name]
				if instead == "" && at < 5 {
					instead = usesBelow5[name]
				}
				if instead != "" {
					report(f, pos, f.within(pos), "%s (%s) uses %s: %s", p.dir, at, name, instead)
				}
			})
		}
	}
}

// checkConcurrency finds goroutines and locks where one goroutine is to own everything. In the pure packages checkSources
// finds the locks.
func checkConcurrency(t *tree, report reporter) {
	for _, p := range t.packages {
		if at := p.placed().level; at > 4 || at == unknown {
			continue
		}
		for _, f := range p.files {
			if f.test {
				continue
			}
			f.imports(func(spec *ast.ImportSpec, path, _ string) {
				if (path == "sync" || path == "sync/atomic") && !pure[p.dir] {
					report(f, spec.Pos(), f.name, "%s imports %q: one goroutine owns a core; a shell that needs it says why in internal/tidy/allow.go", f.name, path)
				}
			})
			ast.Inspect(f.syntax, func(n ast.Node) bool {
				if g, ok := n.(*ast.GoStmt); ok {
					report(f, g.Pos(), f.name, "%s starts a goroutine: one goroutine owns a core; a shell that needs it says why in internal/tidy/allow.go", f.name)
				}
				return true
			})
		}
	}
}
