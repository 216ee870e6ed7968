package tidy

import (
	"fmt"
	"go/ast"
	"strings"
)

// level is how high a package stands.
type level int

const (
	unknown level = -1
	// support is test support: it may import what it needs, and nothing but tests and other support imports it.
	support level = 100
)

// placement is where a package belongs.
type placement struct {
	dir    string // ends with a slash: all that lie below it
	level  level
	budget int // of lines of code outside tests that it was planned with; 0: none
	// codeMax is the bound of a package that is larger than packageCodeMax, for the reason beside it.
	codeMax int
}

// placements is the table of levels. A package imports lower levels only.
var placements = []placement{
	{"internal/invariant", 0, 80, 0},
	{"internal/batch", 0, 350, 0},

	{"internal/dedupe", 1, 350, 0},
	{"internal/meta", 1, 900, 0},
	{"internal/setting", 1, 150, 0},
	{"internal/wire", 1, 450, 0},
	{"internal/vfs", 1, 250, 0},

	{"internal/founding", 2, 500, 0},
	{"internal/seglog", 2, 1300, 2800},  // one format: writing, recovery, inspection and giving up know each other's bytes
	{"internal/raftlog", 3, 800, 3300},  // the state file, base snapshots, and work that a crash interrupts: one order over all of them
	{"internal/peer", 3, 800, 2100},     // one protocol: both ends of a handshake, of a connection and of a call know each other's bytes
	{"internal/replica", 4, 1100, 3300}, // two kinds of replica on one core, what each forgets, and what replicas of a group owe each other
	{"internal/node", 5, 900, 3000},     // everything that all partitions share: the disk, files, the background, the other nodes, who leads, the check of a directory

	{"internal/server", 6, 2600, 3100}, // one small file for each API
	{"internal/console", 6, 900, 0},
	{"internal/cli", 6, 1500, 2000}, // three commands, and Kafka's property names and rules

	{"cmd/oncemq", 7, 800, 0},

	{"internal/vfs/memfs", support, 650, 0},
	{"internal/vfs/errfs", support, 650, 0},
	{"internal/history", support, 450, 0},
	{"internal/rawkafka", support, 0, 0},
	{"internal/testbroker", support, 0, 0},
	{"internal/lossy", support, 0, 0},
	{"internal/sim", support, 1200, 0},
	{"internal/tidy", support, 350, 0},
	{"campaign/", support, 0, 0},
	{"conformance/", support, 0, 0},
	{"test/", support, 0, 0},
}

// pure are the packages that are functions of what they are given and nothing else.
var pure = map[string]bool{"internal/invariant": true, "internal/batch": true, "internal/dedupe": true, "internal/meta": true}

// everywhere is imported by packages of its own level too.
const everywhere = "internal/invariant"

func checkLevels(t *tree, report reporter) {
	for _, p := range t.packages {
		here := p.placed()
		if here.level == unknown {
			report(p.files[0], p.files[0].syntax.Name.Pos(), p.dir,
				"package %s has no level: enter it in the table of internal/tidy/placement.go", p.dir)
			continue
		}
		for _, f := range p.files {
			f.imports(func(spec *ast.ImportSpec, path, _ string) {
				dir, ours := strings.CutPrefix(path, module+"/")
				if !ours || dir == p.dir || dir == everywhere {
					return
				}
				if wrong := here.mayNotImport((&pkg{dir: dir}).placed(), f.test); wrong != "" {
					report(f, spec.Pos(), f.name, "%s (%s) imports %s: %s", p.dir, here.level, dir, wrong)
				}
			})
		}
	}
}

// mayNotImport says why a package that is placed here may not import another one; "" when it may.
func (here placement) mayNotImport(other placement, inTest bool) string {
	switch {
	case other.level == unknown:
		return "it has no level"
	case here.level == support || other.level == support && inTest || other.level < here.level:
		return ""
	case other.level == support:
		return "that is test support; move what the product needs into a package with a level"
	}
	return fmt.Sprintf("that is %s, and only lower levels may be imported: declare an interface here, or move the code down", other.level)
}

func (l level) String() string {
	if l == support {
		return "test support"
	}
	return fmt.Sprintf("level %d", int(l))
}
