package tidy

import (
	"cmp"
	"fmt"
	"go/token"
	"io/fs"
	"slices"
)

// Finding is one place where a rule is broken.
type Finding struct {
	Rule string
	// Place is what an exception names: a file, "file:function", or a package's directory.
	Place string
	File  string
	Line  int
	Text  string // what is wrong and what to do
}

// String is the finding on one line, the place first.
func (f Finding) String() string { return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Rule, f.Text) }

// reporter takes note of a finding in a file.
type reporter func(f *file, at token.Pos, place, format string, args ...any)

// rule is a rule about Go files. Rules about other text are in text.go and papers.go.
type rule struct {
	name  string
	check func(*tree, reporter)
}

var rules = []rule{
	{"levels", checkLevels},
	{"sources", checkSources},
	{"concurrency", checkConcurrency},
	{"size", checkSize},
	{"names", checkNames},
	{"docs", checkDocs},
	{"errors", checkErrors},
	{"order", checkOrder},
	{"tests", checkTests},
}

// exception allows what a rule finds at a place.
type exception struct{ rule, place, reason string }

// Check holds the repository whose root fsys is against all rules.
func Check(fsys fs.FS) ([]Finding, error) { return check(fsys, exceptions) }

func check(fsys fs.FS, allowed []exception) ([]Finding, error) {
	t, err := load(fsys)
	if err != nil {
		return nil, err
	}
	var findings []Finding
	for _, r := range rules {
		r.check(t, func(f *file, at token.Pos, place, format string, args ...any) {
			findings = append(findings, Finding{r.name, place, f.name, t.line(at), fmt.Sprintf(format, args...)})
		})
	}
	findings = except(slices.Concat(findings, checkText(t), checkPapers(t)), allowed)
	slices.SortFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Text, b.Text))
	})
	return findings, nil
}

// except leaves out what is allowed, and adds what is allowed in vain.
func except(findings []Finding, allowed []exception) []Finding {
	needed := make([]bool, len(allowed))
	findings = slices.DeleteFunc(findings, func(f Finding) bool {
		i := slices.IndexFunc(allowed, func(e exception) bool { return e.rule == f.Rule && e.place == f.Place })
		if i >= 0 {
			needed[i] = true
		}
		return i >= 0
	})
	for i, e := range allowed {
		problem := ""
		switch {
		case !needed[i]:
			problem = "is not needed any more: remove it"
		case e.reason == "":
			problem = "has no reason: write one, or mend the code"
		default:
			continue
		}
		findings = append(findings, Finding{"exceptions", e.place, "internal/tidy/allow.go", 1,
			fmt.Sprintf("the exception to %q for %s %s", e.rule, e.place, problem)})
	}
	return findings
}
