package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const sample = `package p

type list[T any] []T

var wide = 1 + 2

func (l *list[T]) holds(n int, whole bool) bool {
	for i := 0; i < len(*l); i++ {
		n--
	}
	if n == 0 || whole && !l.empty() {
		return true
	}
	switch {
	case l.empty():
		return n+1 >= max(3, n)
	case n > 1:
	}
	if l.empty() {
		return n-1 != 0
	}
	return n == 0
}

func (l list[T]) empty() bool { return len(l) <= 0 }
`

func TestMutantsOf(t *testing.T) {
	mutants, err := mutantsOf("p", "p.go", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range mutants {
		got = append(got, m.key)
	}
	want := strings.Split(strings.TrimSpace(`
p wide: 1 + 2 => 0 + 2
p wide: 1 + 2 => 2 - 1
p (*list[T]).holds: i < len(*l) => i <= len(*l)
p (*list[T]).holds: i < len(*l) => i >= len(*l)
p (*list[T]).holds: n-- => n++
p (*list[T]).holds: n == 0 || whole && !l.empty() => ((n == 0) && (whole && !l.empty()))
p (*list[T]).holds: n == 0 => n != 0
p (*list[T]).holds: whole => !whole
p (*list[T]).holds: whole && !l.empty() => ((whole) || (!l.empty()))
p (*list[T]).holds: !l.empty() => l.empty()
p (*list[T]).holds: l.empty() => !l.empty()
p (*list[T]).holds: n+1 >= max(3, n) => n+1 > max(3, n)
p (*list[T]).holds: n+1 >= max(3, n) => n+1 < max(3, n)
p (*list[T]).holds: n+1 => n + 0
p (*list[T]).holds: n+1 => n - 1
p (*list[T]).holds: max(3, n) => min(3, n)
p (*list[T]).holds: n > 1 => n >= 1
p (*list[T]).holds: n > 1 => n <= 1
p (*list[T]).holds: l.empty() => !l.empty() #2
p (*list[T]).holds: n-1 != 0 => n-1 == 0
p (*list[T]).holds: n-1 => n - 0
p (*list[T]).holds: n-1 => n + 1
p (*list[T]).holds: n == 0 => n != 0 #2
p list[T].empty: len(l) <= 0 => len(l) < 0
p list[T].empty: len(l) <= 0 => len(l) > 0
`), "\n")
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	changed := string(mutants[8].apply())
	if want := strings.Replace(sample, "whole && !l.empty()", "((whole) || (!l.empty()))", 1); changed != want {
		t.Errorf("got\n%s", changed)
	}
}

// A sample has so many mutants, in their order, of any package; the seed decides which.
func TestDraw(t *testing.T) {
	sampled := func(n int, seed uint64) (keys string) {
		byPackage := [][]*mutant{{{key: "a"}, {key: "b"}, {key: "c"}}, nil, {{key: "d"}, {key: "e"}}}
		draw(byPackage, n, seed)
		for _, m := range slices.Concat(byPackage...) {
			keys += m.key
		}
		return keys
	}
	seen := map[string]bool{}
	for seed := range uint64(200) {
		got := sampled(2, seed)
		if len(got) != 2 || got[0] >= got[1] || got != sampled(2, seed) {
			t.Fatalf("seed %d draws %q and then %q", seed, got, sampled(2, seed))
		}
		seen[got] = true
	}
	if len(seen) != 10 {
		t.Errorf("of five mutants %d pairs are drawn, want all 10", len(seen))
	}
	if got := sampled(0, 1) + sampled(5, 1) + sampled(9, 1); got != "abcdeabcde" {
		t.Errorf("got %q", got)
	}
}

func TestParseEquivalents(t *testing.T) {
	entries, err := parseEquivalents("# a comment\n\np f: a < b => a <= b\n\tThey are never\n\tequal.\np f: x\n\tWhy.\n")
	if err != nil || len(entries) != 2 || *entries[0] != (equivalent{"p f: a < b => a <= b", "They are never equal.", 3}) {
		t.Fatalf("got %v, %v", entries, err)
	}
	mutants := []*mutant{{key: "p f: a < b => a <= b"}, {key: "p f: y"}}
	unfit := match(entries, "p", mutants)
	if len(unfit) != 1 || unfit[0].line != 6 || mutants[0].reason == "" || mutants[1].reason != "" {
		t.Errorf("unfit %v, mutants %v", unfit, mutants)
	}
	if unfit := match(entries, "q", nil); len(unfit) != 0 {
		t.Errorf("entries of another package do not fit: %v", unfit)
	}
	for _, wrong := range []string{"\treason\n", "p f: x\n", "p f: x\n\ty\np f: x\n\ty\n", "p f: x\n\t\n"} {
		if _, err := parseEquivalents(wrong); err == nil {
			t.Errorf("%q was taken", wrong)
		}
	}
}

func TestStages(t *testing.T) {
	got := stages("=== RUN   TestA\n--- PASS: TestA (0.10s)\n    --- PASS: TestA/sub (0.00s)\nnoise\n--- PASS: FuzzB (2.50s)\n--- PASS: TestC (0.00s)\nPASS\n", "x")
	if want := [][]string{{"-test.run", "^(TestA|TestC)$"}, {"-test.run", "x", "-test.skip", "^(TestA|TestC)$"}}; !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := stages("--- PASS: TestA (0.11s)\n", ""); len(got) != 1 || !slices.Equal(got[0], []string{"-test.run", ""}) {
		t.Errorf("got %q, want one stage", got)
	}
}

// TestEquivalentsFit: each entry of the file fits a mutant. Whether it is equivalent the command finds out.
func TestEquivalentsFit(t *testing.T) {
	entries, err := readEquivalents(filepath.Base(equivalentFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		_, packages, err := load(t.Context(), []string{"../../" + e.packageName()})
		if err != nil {
			t.Fatal(err)
		}
		mutants, err := packages[0].mutants()
		if err != nil {
			t.Fatal(err)
		}
		if unfit := match([]*equivalent{e}, packages[0].name, mutants); len(unfit) > 0 {
			t.Errorf("line %d fits no mutant: %s", e.line, e.key)
		}
	}
}

// TestRun lets the command loose on a module with mutants of every fate.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod": "module m\n\ngo 1.26\n",
		"p.go": `package m

func untested(n int) bool { return n == 7 }

func endless(n int) int {
	for n > 0 {
		n--
	}
	return n
}

func same(a, b int) int {
	if a < b {
		return a
	}
	return b
}

const fixed = uint8(256 - 1)
`,
		"p_test.go": `package m

import "testing"

func Test(t *testing.T) {
	if untested(7); endless(3) != 0 || same(1, 2) != 1 || same(2, 1) != 1 {
		t.Error("wrong")
	}
}
`,
		equivalentFile: `. same: a < b => a <= b
	Both are returned when they are equal.
. same: a < b => a >= b
	A lie.
. same: a != b => a == b
	There is none.
`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	var out strings.Builder
	err := run(t.Context(), config{packages: []string{"."}, parallel: 2}, &out)
	if err != errSurvived {
		t.Errorf("got %v", err)
	}
	if err := run(t.Context(), config{packages: []string{"."}, only: regexp.MustCompile("nowhere"), parallel: 1}, &out); err == nil || err == errSurvived {
		t.Errorf("with no mutant: %v", err)
	}
	for _, want := range []string{
		`fits no mutant: \. same: a != b`,
		`SURVIVED  \./p.go:3: \. untested: n == 7 => n != 7`,
		`KILLED, but .*: \. same: a < b => a >= b`,
		`\.: 8 mutants: 2 killed by a test, 1 by the time limit, 1 equivalent, 2 do not compile, 1 survived, 1 wrongly called equivalent`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("%s is not in\n%s", want, &out)
		}
	}
}
