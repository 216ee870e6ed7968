package tidy

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// The bounds on size, in lines. A package is counted in lines of code: comments cost nothing there.
const (
	fileLinesMax         = 500
	testFileLinesMax     = 800
	functionLinesMax     = 70
	testFunctionLinesMax = 100
	packageCodeMax       = 1500
)

func checkSize(t *tree, report reporter) {
	for _, p := range t.packages {
		code := 0
		for _, f := range p.files {
			fileMax, functionMax := fileLinesMax, functionLinesMax
			if f.test {
				fileMax, functionMax = testFileLinesMax, testFunctionLinesMax
			} else {
				code += f.code
			}
			if f.lines > fileMax {
				report(f, f.syntax.Name.Pos(), f.name, "the file has %d lines, at most %d are allowed: split it by what it is about", f.lines, fileMax)
			}
			for _, d := range f.syntax.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				if n := t.line(fn.End()) - t.line(fn.Pos()) + 1; n > functionMax {
					report(f, fn.Pos(), f.within(fn.Pos()),
						"function %s has %d lines, at most %d are allowed: branch in the parent, compute in leaves", functionName(fn), n, functionMax)
				}
			}
		}
		here := p.placed()
		codeMax := max(packageCodeMax, here.codeMax)
		switch first := p.files[0]; {
		case here.level == support:
		case code > codeMax:
			report(first, first.syntax.Name.Pos(), p.dir,
				"package %s has %d lines of code outside tests, at most %d are allowed (planned were %d): take out what has a meaning of its own",
				p.dir, code, codeMax, here.budget)
		case code <= packageCodeMax && here.codeMax > 0:
			report(first, first.syntax.Name.Pos(), p.dir,
				"package %s has %d lines of code outside tests and needs no bound of its own any more: remove it from internal/tidy/placement.go", p.dir, code)
		}
	}
}

// empty are the words that could mean anything.
var empty = map[string]bool{
	"util": true, "utils": true, "utility": true, "utilities": true, "common": true, "helper": true, "helpers": true,
	"manager": true, "managers": true, "misc": true,
}

func checkNames(t *tree, report reporter) {
	const advice = "name it after what it is or does"
	for _, p := range t.packages {
		for _, f := range p.files {
			for _, name := range []string{f.syntax.Name.Name, path.Base(p.dir), strings.TrimSuffix(path.Base(f.name), ".go")} {
				if word := emptyWord(name); word != "" {
					report(f, f.syntax.Name.Pos(), f.name, "%q in the name %q says nothing: %s", word, name, advice)
				}
			}
			f.declared(func(id *ast.Ident, _ bool) {
				if word := emptyWord(id.Name); word != "" {
					report(f, id.Pos(), f.name, "%q in the name %s says nothing: %s", word, id.Name, advice)
				}
			})
		}
	}
}

// emptyWord returns the first word of a name that says nothing.
func emptyWord(name string) string {
	var word []rune
	runes := []rune(name)
	for i, r := range runes {
		begins := unicode.IsUpper(r) && (i > 0 && unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if begins || !unicode.IsLetter(r) {
			if empty[string(word)] {
				return string(word)
			}
			word = word[:0]
		}
		if unicode.IsLetter(r) {
			word = append(word, unicode.ToLower(r))
		}
	}
	if empty[string(word)] {
		return string(word)
	}
	return ""
}

// fixedMethods need no comment: the language or its library says what they do.
var fixedMethods = map[string]bool{"Error": true, "Unwrap": true, "Is": true, "As": true}

// declared calls visit for each exported symbol of the file's package that the file declares.
func (f *file) declared(visit func(id *ast.Ident, documented bool)) {
	symbol := func(id *ast.Ident, docs ...*ast.CommentGroup) {
		if !id.IsExported() {
			return
		}
		documented := false
		for _, d := range docs {
			documented = documented || strings.TrimSpace(d.Text()) != ""
		}
		visit(id, documented)
	}
	for _, d := range f.syntax.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || !fixedMethods[d.Name.Name] && ast.IsExported(receiver(d.Recv)) {
				symbol(d.Name, d.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					symbol(spec.Name, d.Doc, spec.Doc, spec.Comment)
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						symbol(id, d.Doc, spec.Doc, spec.Comment)
					}
				}
			}
		}
	}
}

// numbered is a numbered invariant in a package comment: "1." or "(L1)".
var numbered = regexp.MustCompile(`(?m)^\s*(1\.|\([A-Z]1\))\s`)

func checkDocs(t *tree, report reporter) {
	for _, p := range t.packages {
		doc, first, name := "", (*file)(nil), ""
		for _, f := range p.files {
			if f.syntax.Doc != nil && !strings.HasSuffix(f.syntax.Name.Name, "_test") {
				doc += f.syntax.Doc.Text()
			}
			if f.test {
				continue
			}
			if first == nil {
				first, name = f, f.syntax.Name.Name
			}
			f.declared(func(id *ast.Ident, documented bool) {
				if !documented {
					report(f, id.Pos(), f.name, "%s has no comment: say what it means, its units, bounds, errors and who owns its bytes", id.Name)
				}
			})
		}
		if first == nil {
			continue // tests alone
		}
		begins := "Package " + name + " "
		if name == "main" {
			begins = "Command " + path.Base(p.dir) + " "
		}
		if !strings.HasPrefix(doc, begins) {
			report(first, first.syntax.Name.Pos(), p.dir, "the package has no comment that begins with %q: say what it is for, its invariants and the path of the data", begins)
			continue
		}
		if at := p.placed().level; at >= 1 && at <= 5 && !numbered.MatchString(doc) {
			report(first, first.syntax.Name.Pos(), p.dir, "the package comment numbers no invariants: a package of %s states what always holds", at)
		}
	}
}

func checkTests(t *tree, report reporter) {
	for _, p := range t.packages {
		for _, f := range p.files {
			if f.test {
				ast.Inspect(f.syntax, func(n ast.Node) bool {
					s, ok := n.(*ast.SelectorExpr)
					if ok && (s.Sel.Name == "Skip" || s.Sel.Name == "Skipf" || s.Sel.Name == "SkipNow") {
						report(f, s.Pos(), f.within(s.Pos()), "a test is skipped: a test that cannot run fails, and says what is missing")
					}
					return true
				})
			}
			if !f.test && p.placed().level != support {
				continue
			}
			bubbles := f.bubbles()
			f.uses(func(at token.Pos, name string) {
				if name == "time.Sleep" && !inside(at, bubbles) {
					report(f, at, f.within(at), "a test sleeps: wait for the condition, or use testing/synctest and its virtual time")
				}
			})
		}
	}
}

// bubbles are the calls of synctest.Test: the time in them is virtual.
func (f *file) bubbles() []ast.Node {
	var calls []ast.Node
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && calledName(call) == "synctest.Test" {
			calls = append(calls, call)
		}
		return true
	})
	return calls
}

func inside(at token.Pos, nodes []ast.Node) bool {
	return slices.ContainsFunc(nodes, func(n ast.Node) bool { return n.Pos() <= at && at < n.End() })
}
