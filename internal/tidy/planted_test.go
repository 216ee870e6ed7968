package tidy

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
)

// planted is a small repository that breaks one rule once, in its first file.
type planted struct {
	name string
	rule string
	at   string // file:line of the finding
	says string // a part of its text
	file map[string]string
}

const (
	pureDoc = "// Package dedupe decides.\n//\n//  1. Always.\npackage dedupe\n"
	coreDoc = "// Package wire reads.\n//\n//  1. Always.\npackage wire\n"
)

func one(name, source string) map[string]string { return map[string]string{name: source} }

var plantedInGo = []planted{
	{
		"an unknown package", "levels", "internal/new/new.go:2", "placement.go",
		one("internal/new/new.go", "// Package new is new.\npackage new\n"),
	},
	{
		"an import upwards", "levels", "internal/dedupe/a.go:5", "only lower levels",
		one("internal/dedupe/a.go", pureDoc+`import _ "github.com/oncemq/oncemq/internal/seglog"`+"\n"),
	},
	{
		"an import of the same level", "levels", "internal/dedupe/a.go:5", "level 1",
		one("internal/dedupe/a.go", pureDoc+`import _ "github.com/oncemq/oncemq/internal/meta"`+"\n"),
	},
	{
		"an import upwards in a test", "levels", "internal/dedupe/a_test.go:3", "only lower levels",
		one("internal/dedupe/a_test.go", "package dedupe\n\n"+`import _ "github.com/oncemq/oncemq/internal/node"`+"\n"),
	},
	{
		"test support in the product", "levels", "internal/dedupe/a.go:5", "test support",
		one("internal/dedupe/a.go", pureDoc+`import _ "github.com/oncemq/oncemq/internal/history"`+"\n"),
	},
	{
		"files in a core", "sources", "internal/wire/a.go:5", "vfs.FS",
		one("internal/wire/a.go", coreDoc+`import _ "os"`+"\n"),
	},
	{
		"randomness", "sources", "internal/wire/a.go:5", "constructor",
		one("internal/wire/a.go", coreDoc+`import _ "math/rand/v2"`+"\n"),
	},
	{
		"a global logger", "sources", "internal/wire/a.go:8", "slog.Logger",
		one("internal/wire/a.go", coreDoc+"import \"log/slog\"\n\nfunc f() {\n\tslog.Info(\"x\")\n}\n"),
	},
	{
		"a clock", "sources", "internal/wire/a.go:7", "time.Now",
		one("internal/wire/a.go", coreDoc+"import clock \"time\"\n\nvar now = clock.Now\n"),
	},
	{
		"a timer", "sources", "internal/wire/a.go:7", "time.After",
		one("internal/wire/a.go", coreDoc+"import \"time\"\n\nvar later = time.After(1)\n"),
	},
	{
		"a clock in the console", "sources", "internal/console/a.go:6", "time.Since",
		one("internal/console/a.go", "// Package console shows.\npackage console\n\nimport \"time\"\n\nvar since = time.Since\n"),
	},
	{
		"a lock in a pure package", "sources", "internal/dedupe/a.go:5", "one goroutine",
		one("internal/dedupe/a.go", pureDoc+`import _ "sync"`+"\n"),
	},
	{
		"a time in a pure package", "sources", "internal/dedupe/a.go:5", "values",
		one("internal/dedupe/a.go", pureDoc+`import _ "time"`+"\n"),
	},
	{
		"a lock in a core", "concurrency", "internal/wire/a.go:5", "allow.go",
		one("internal/wire/a.go", coreDoc+`import _ "sync"`+"\n"),
	},
	{
		"a goroutine in a core", "concurrency", "internal/dedupe/a.go:6", "starts a goroutine",
		one("internal/dedupe/a.go", pureDoc+"func f() {\n\tgo f()\n}\n"),
	},
	{
		"a long file", "size", "internal/dedupe/a.go:4", "501 lines",
		one("internal/dedupe/a.go", pureDoc+strings.Repeat("\n", 497)),
	},
	{
		"a long test file", "size", "internal/dedupe/a_test.go:1", "801 lines",
		one("internal/dedupe/a_test.go", "package dedupe\n"+strings.Repeat("\n", 800)),
	},
	{
		"a long function", "size", "internal/dedupe/a.go:5", "71 lines",
		one("internal/dedupe/a.go", pureDoc+"func f() {"+strings.Repeat("\n", 70)+"}\n"),
	},
	{
		"a long function in a test", "size", "internal/dedupe/a_test.go:2", "101 lines",
		one("internal/dedupe/a_test.go", "package dedupe\nfunc f() {"+strings.Repeat("\n", 100)+"}\n"),
	},
	{
		"a large package", "size", "internal/dedupe/a.go:4", "planned were 350",
		map[string]string{
			"internal/dedupe/a.go": pureDoc,
			"internal/dedupe/b.go": "package dedupe\n\n" + strings.Repeat("var _ = 1\n", 490),
			"internal/dedupe/c.go": "package dedupe\n\n" + strings.Repeat("var _ = 1\n", 490),
			"internal/dedupe/d.go": "package dedupe\n\n" + strings.Repeat("var _ = 1\n", 490),
			"internal/dedupe/e.go": "package dedupe\n\n" + strings.Repeat("var _ = 1\n", 28),
		},
	},
	{
		"a bound that is not needed any more", "size", "internal/seglog/a.go:4", "placement.go",
		one("internal/seglog/a.go", "// Package seglog stores.\n//\n//  1. Always.\npackage seglog\n"),
	},
	{
		"a file name that says nothing", "names", "internal/dedupe/byte_utils.go:4", "utils",
		one("internal/dedupe/byte_utils.go", pureDoc),
	},
	{
		"a symbol that says nothing", "names", "internal/dedupe/a.go:7", "HTTPManager",
		one("internal/dedupe/a.go", pureDoc+"\n// HTTPManager manages.\ntype HTTPManager int\n"),
	},
	{
		"a function without a comment", "docs", "internal/dedupe/a.go:5", "F has no comment",
		one("internal/dedupe/a.go", pureDoc+"func F() {}\n"),
	},
	{
		"a method without a comment", "docs", "internal/dedupe/a.go:9", "F has no comment",
		one("internal/dedupe/a.go", pureDoc+"\n// T is a type.\ntype T int\n\nfunc (t *T) F() {}\n"),
	},
	{
		"a constant without a comment", "docs", "internal/dedupe/a.go:6", "C has no comment",
		one("internal/dedupe/a.go", pureDoc+"const (\n\tC = 1\n\td = 2\n)\n"),
	},
	{
		"a package without a comment", "docs", "internal/dedupe/a.go:1", "Package dedupe ",
		one("internal/dedupe/a.go", "package dedupe\n"),
	},
	{
		"a command without a comment", "docs", "cmd/oncemq/a.go:1", "Command oncemq ",
		one("cmd/oncemq/a.go", "package main\n"),
	},
	{
		"no invariants", "docs", "internal/dedupe/a.go:2", "invariants",
		one("internal/dedupe/a.go", "// Package dedupe decides.\npackage dedupe\n"),
	},
	{
		"an error that is not wrapped", "errors", "internal/dedupe/a.go:8", "%w",
		one("internal/dedupe/a.go", pureDoc+"import \"fmt\"\n\nfunc f(cause error) error {\n\treturn fmt.Errorf(\"do: %v\", cause)\n}\n"),
	},
	{
		"an error of this module that is not wrapped", "errors", "internal/dedupe/a.go:11", "wraps 0",
		one("internal/dedupe/a.go", pureDoc+"import \"fmt\"\n\ntype bad int\n\nfunc (bad) Error() string { return \"\" }\n\n"+
			"func f(b bad) error { return fmt.Errorf(\"do: %v\", b) }\n"),
	},
	{
		"an error from elsewhere that is not wrapped", "errors", "internal/dedupe/a.go:12", "2 errors and wraps 1",
		one("internal/dedupe/a.go", pureDoc+"import (\n\t\"fmt\"\n\t\"io\"\n)\n\nfunc f(r io.Reader) error {\n\t_, err := r.Read(nil)\n"+
			"\treturn fmt.Errorf(\"read: %w: %v\", io.ErrNoProgress, err)\n}\n"),
	},
	{
		"a loop over a map", "order", "internal/dedupe/a.go:8", "loop over a map",
		one("internal/dedupe/a.go", pureDoc+"type s struct{ m map[int]int }\n\nfunc f(x *s) {\n\tfor range x.m {\n\t}\n}\n"),
	},
	{
		"keys in no order", "order", "internal/dedupe/a.go:7", "maps.Keys",
		one("internal/dedupe/a.go", pureDoc+"import (\"maps\"; \"slices\")\n\nfunc f(m map[int]int) []int { return slices.Collect(maps.Keys(m)) }\n"),
	},
	{
		"a skipped test", "tests", "internal/dedupe/a_test.go:5", "skipped",
		one("internal/dedupe/a_test.go", "package dedupe\n\nimport \"testing\"\n\nfunc TestF(t *testing.T) { t.Skip(\"later\") }\n"),
	},
	{
		"a test that sleeps", "tests", "internal/dedupe/a_test.go:5", "sleeps",
		one("internal/dedupe/a_test.go", "package dedupe\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n"),
	},
	{
		"support that sleeps", "tests", "internal/history/a.go:6", "sleeps",
		one("internal/history/a.go", "// Package history records.\npackage history\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n"),
	},
}

var plantedInText = []planted{
	{"a leftover", "text", "README.md:2", "leftover", one("README.md", "one\ntwo TO"+"DO three\n")},
	{"a leftover in Go", "text", "internal/dedupe/a.go:5", "leftover", one("internal/dedupe/a.go", pureDoc+"// FIX"+"ME: later\n")},
	{"a path of a machine", "text", "a.sh:1", "machine", one("a.sh", "cd /wo"+"rk/main\n")},
	{"a path of a machine without its root", "text", "a.sh:1", "machine", one("a.sh", "cat sha"+"red/notes\n")},
	{"a registry", "text", "a.yml:1", "registry", one("a.yml", "image: docker"+".io/library/golang\n")},
	{"a file that is gone", "papers", "README.md:2", "b.go does not exist", map[string]string{
		"README.md": "`a.go`, `internal/dedupe/a.go` and\n`dedupe/b.go`\n", "internal/dedupe/a.go": pureDoc,
	}},
	{"a mirror", "text", "a.yml:1", "registry", one("a.yml", "url: https://go.mirr"+"or.example.com/\n")},
}

// TestPlanted plants each violation in a repository of its own: it is found, at its place, and nothing else is.
func TestPlanted(t *testing.T) {
	broken := map[string]bool{"text": false, "papers": false}
	for _, r := range rules {
		broken[r.name] = false
	}
	for _, p := range append(plantedInGo, plantedInText...) {
		broken[p.rule] = true
		t.Run(p.name, func(t *testing.T) {
			findings := checkSmall(t, p.file, nil)
			if len(findings) != 1 {
				t.Fatalf("%d findings, 1 is planted:\n%v", len(findings), findings)
			}
			f := findings[0]
			if at := fmt.Sprintf("%s:%d", f.File, f.Line); f.Rule != p.rule || at != p.at || !strings.Contains(f.Text, p.says) {
				t.Errorf("found %q\nplanted was %s at %s, saying %q", f, p.rule, p.at, p.says)
			}
		})
	}
	for name, planted := range broken {
		if !planted {
			t.Errorf("no violation of rule %q is planted: nobody knows whether it can fail", name)
		}
	}
}

func checkSmall(t *testing.T, files map[string]string, allowed []exception) []Finding {
	t.Helper()
	fsys := fstest.MapFS{}
	for name, source := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(source)}
	}
	findings, err := check(fsys, allowed)
	if err != nil {
		t.Fatal(err)
	}
	return findings
}

// TestRight: what looks like a violation and is none.
func TestRight(t *testing.T) {
	findings := checkSmall(t, map[string]string{
		"internal/dedupe/a.go": pureDoc + `
import (
	"fmt"
	"maps"
	"slices"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/invariant"
)

type bad int

func (bad) Error() string { return "" }

// Exported names in a group need one comment.
const (
	One = 1
	Two = 2
)

func f(m map[int]error, list []int) error {
	invariant.Check(true, "")
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, k)
	}
	for range list {
	}
	return fmt.Errorf("commonly done at %d by %d, and %d: %w", list[0], batch.HeaderSize, One, m[0])
}
`,
		"internal/dedupe/a_test.go": `package dedupe_test

import (
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/oncemq/oncemq/internal/history"
)

func TestF(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { time.Sleep(time.Hour) })
}
`,
		"internal/batch/a.go": "// Package batch reads.\npackage batch\n\nimport _ \"github.com/oncemq/oncemq/internal/invariant\"\n",
		"README.md":           "Share it. Work, and to do; /network/ is fine, https://example.com/proxying too.\n",
	}, nil)
	for _, f := range findings {
		t.Error(f)
	}
}

func TestExceptions(t *testing.T) {
	source := one("internal/dedupe/a.go", pureDoc+`import _ "sync"`+"\n")
	place := "internal/dedupe/a.go"
	if findings := checkSmall(t, source, []exception{{"sources", place, "because"}}); len(findings) != 0 {
		t.Errorf("an exception does not hold: %v", findings)
	}
	for _, bad := range []struct {
		exception exception
		findings  int
		says      string
	}{
		{exception{"sources", place, ""}, 1, "no reason"},
		{exception{"size", place, "because"}, 2, "not needed"},
		{exception{"sources", "internal/dedupe/b.go", "because"}, 2, "not needed"},
	} {
		findings := checkSmall(t, source, []exception{bad.exception})
		if said := fmt.Sprint(findings); len(findings) != bad.findings || !strings.Contains(said, bad.says) {
			t.Errorf("%v: found %s, want %d with %q", bad.exception, said, bad.findings, bad.says)
		}
	}
}
