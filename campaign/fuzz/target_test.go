package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"p_test.go": `package p

func FuzzOne(f *testing.F) {}
func (s suite) FuzzMethod(f *testing.F) {}
func FuzzHelper(f *testing.F, n int) {}
func FuzzNot(t *testing.T) {}
func FuzzNone() {}
func TestFuzz(f *testing.F) {}
`,
		"b/c/c_test.go":            "package c\n\nfunc FuzzTwo(f *testing.F) {}\nfunc FuzzThree(seeds *testing.F) {}\n",
		"b/c/c.go":                 "package c\n\nfunc FuzzNoTest(f *testing.F) {}\n",
		"b/c/c_plan9_test.go":      "package c\n\nfunc FuzzElsewhere(f *testing.F) {}\n",
		"b/testdata/x/x_test.go":   "package x\n\nfunc FuzzData(f *testing.F) {}\n",
		".hidden/hidden_test.go":   "package hidden\n\nfunc FuzzHidden(f *testing.F) {}\n",
		"_skipped/skipped_test.go": "package skipped\n\nfunc FuzzSkipped(f *testing.F) {}\n",
	})
	got, err := find(dir)
	if want := []target{{"b/c", "FuzzTwo"}, {"b/c", "FuzzThree"}, {".", "FuzzOne"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	write(t, dir, map[string]string{"bad_test.go": "package p\n\nfunc {"})
	if _, err := find(dir); err == nil || !strings.Contains(err.Error(), "bad_test.go") {
		t.Errorf("got %v", err)
	}
}

// TestRun fuzzes a target that is right and one that is not.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"go.mod": "module m\n\ngo 1.26\n",
		"p_test.go": `package m

import "testing"

func FuzzRight(f *testing.F) {
	f.Add(1)
	f.Fuzz(func(t *testing.T, n int) {})
}

func FuzzWrong(f *testing.F) {
	f.Add(1)
	f.Fuzz(func(t *testing.T, n int) {
		if n != 1 {
			t.Error("not one")
		}
	})
}
`,
	})
	right := target{".", "FuzzRight"}.run(t.Context(), dir, time.Second, 1)
	if right.err != nil || right.executions == 0 || strings.Contains(right.String(), "\n") {
		t.Errorf("got %v", right)
	}
	wrong := target{".", "FuzzWrong"}.run(t.Context(), dir, time.Second, 1)
	if wrong.err == nil || !strings.Contains(wrong.String(), "not one") || !strings.Contains(wrong.String(), "testdata/fuzz/FuzzWrong") {
		t.Errorf("got %v", wrong)
	}
	none := target{".", "FuzzNone"}.run(t.Context(), dir, time.Second, 1)
	if none.err == nil {
		t.Errorf("got %v", none)
	}
}

func TestProgress(t *testing.T) {
	got := progressOf([]byte(`fuzz: elapsed: 0s, gathering baseline coverage: 3/3 completed, now fuzzing with 2 workers
fuzz: elapsed: 57s, execs: 325 (108/sec), new interesting: 1 (total: 202)
fuzz: elapsed: 1m0s, execs: 680 (118/sec), new interesting: 7 (total: 208)
fuzz: elapsed: 1m3s, execs: 680 (0/sec), new interesting: 7 (total: 208)
fuzz: elapsed: 1m4s, execs: 680 (0/sec), new interesting: 7 (total: 208)
PASS
`))
	if want := (progress{executions: 680, interesting: 7, idle: 4 * time.Second}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestEndedLate(t *testing.T) {
	const begin = "fuzz: elapsed: 20s, execs: 164904 (4622/sec), new interesting: 51 (total: 156)\n--- FAIL: FuzzParse (20.09s)\n"
	for output, want := range map[string]bool{
		begin + "    context deadline exceeded\nFAIL\nexit status 1\n":                             true,
		begin + "    context deadline exceeded\n    Failing input written to testdata\nFAIL\n":     false,
		begin + "    fuzzing process hung or terminated unexpectedly: exit status 2\nFAIL\n":       false,
		"--- FAIL: TestOther (0.00s)\n    context deadline exceeded\nFAIL\n":                       false,
		"fuzz: elapsed: 20s, execs: 1 (1/sec), new interesting: 1 (total: 1)\nPASS\nok  \tm\t1s\n": false,
	} {
		if endedLate([]byte(output)) != want {
			t.Errorf("got %v for\n%s", !want, output)
		}
	}
}
