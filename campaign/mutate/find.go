package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one change to one file.
type mutant struct {
	path string // of the file, absolute
	file string // the same from the root of the module
	line int
	key  string // names the change without saying where in the file it is (equivalent.go)

	source      []byte // of the file, as it was read once: it may be edited while mutants are tried
	start, end  int    // the bytes that are replaced
	replacement string

	reason string // why it is equivalent; empty: it is not
}

// String is the mutant as it is printed.
func (m *mutant) String() string { return fmt.Sprintf("%s:%d: %s", m.file, m.line, m.key) }

// apply returns the mutated file.
func (m *mutant) apply() []byte {
	return slices.Concat(m.source[:m.start], []byte(m.replacement), m.source[m.end:])
}

// mutants returns every mutant of the package, in the order of the source.
func (p *goPackage) mutants() ([]*mutant, error) {
	var all []*mutant
	for _, name := range p.files {
		path := filepath.Join(p.dir, name)
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		found, err := mutantsOf(p.name, path, source)
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			m.path, m.file = path, p.name+"/"+name
		}
		all = append(all, found...)
	}
	return all, nil
}

// mutantsOf returns the mutants of one file of a package.
func mutantsOf(packageName, path string, source []byte) ([]*mutant, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var all []*mutant
	for _, decl := range file.Decls {
		f := finder{source: source, file: files.File(file.Pos()), prefix: packageName + " " + nameOf(decl) + ": "}
		f.walk(decl)
		slices.SortStableFunc(f.mutants, func(a, b *mutant) int { return cmp.Compare(a.start, b.start) })
		number(f.mutants)
		all = append(all, f.mutants...)
	}
	return all, nil
}

// number tells mutants apart whose keys are the same: the second one of a declaration ends in #2, and so on.
func number(mutants []*mutant) {
	seen := map[string]int{}
	for _, m := range mutants {
		seen[m.key]++
		if n := seen[m.key]; n > 1 {
			m.key = fmt.Sprintf("%s #%d", m.key, n)
		}
	}
}

// nameOf names a declaration as a person would: a function, a method with its receiver, or the first of its variables.
func nameOf(decl ast.Decl) string {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return d.Name.Name
		}
		receiver := types.ExprString(d.Recv.List[0].Type)
		if strings.HasPrefix(receiver, "*") {
			receiver = "(" + receiver + ")"
		}
		return receiver + "." + d.Name.Name
	case *ast.GenDecl:
		if len(d.Specs) > 0 {
			if v, ok := d.Specs[0].(*ast.ValueSpec); ok {
				return v.Names[0].Name
			}
		}
		return d.Tok.String()
	}
	return "?"
}

// finder gathers the mutants of one declaration.
type finder struct {
	source  []byte
	file    *token.File
	prefix  string
	mutants []*mutant
}

// others are the operators that each comparison is changed to.
var others = map[token.Token][]string{
	token.EQL: {"!="}, token.NEQ: {"=="},
	token.LSS: {"<=", ">="}, token.LEQ: {"<", ">"},
	token.GTR: {">=", "<="}, token.GEQ: {">", "<"},
}

func (f *finder) walk(decl ast.Decl) {
	steps := map[ast.Stmt]bool{} // the steps of loops: i++
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			f.binary(n)
		case *ast.UnaryExpr:
			if n.Op == token.NOT {
				f.replace(n, f.text(n.X))
			}
		case *ast.CallExpr:
			f.minmax(n)
		case *ast.IfStmt:
			f.negate(n.Cond)
		case *ast.ForStmt:
			steps[n.Post] = true
			f.negate(n.Cond)
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, s := range n.Body.List {
					for _, condition := range s.(*ast.CaseClause).List {
						f.negate(condition)
					}
				}
			}
		case *ast.IncDecStmt:
			if !steps[n] {
				f.replace(n, f.text(n.X)+map[token.Token]string{token.INC: "--", token.DEC: "++"}[n.Tok])
			}
		}
		return true
	})
}

func (f *finder) binary(n *ast.BinaryExpr) {
	switch n.Op {
	case token.LAND, token.LOR:
		f.negate(n.X)
		f.negate(n.Y)
		other := map[token.Token]string{token.LAND: "||", token.LOR: "&&"}[n.Op]
		// In parentheses, all three: && binds tighter than ||.
		f.replace(n, "(("+f.text(n.X)+") "+other+" ("+f.text(n.Y)+"))")
	case token.ADD, token.SUB:
		other := map[token.Token]string{token.ADD: "-", token.SUB: "+"}[n.Op]
		if isOne(n.Y) {
			f.replace(n, f.text(n.X)+" "+n.Op.String()+" 0")
			f.replace(n, f.text(n.X)+" "+other+" 1")
		} else if isOne(n.X) && n.Op == token.ADD {
			f.replace(n, "0 + "+f.text(n.Y))
			f.replace(n, f.text(n.Y)+" - 1")
		}
	default:
		for _, other := range others[n.Op] {
			f.replace(n, f.text(n.X)+" "+other+" "+f.text(n.Y))
		}
	}
}

func isOne(e ast.Expr) bool {
	literal, ok := e.(*ast.BasicLit)
	return ok && literal.Value == "1"
}

func (f *finder) minmax(n *ast.CallExpr) {
	name, ok := n.Fun.(*ast.Ident)
	if !ok || name.Name != "min" && name.Name != "max" {
		return
	}
	other := map[string]string{"min": "max", "max": "min"}[name.Name]
	f.replace(n, other+string(f.source[f.at(name.End()):f.at(n.End())]))
}

// negate negates a condition. Comparisons, && and || have mutants of their own, and so has a condition that is negated
// already.
func (f *finder) negate(condition ast.Expr) {
	switch e := condition.(type) {
	case nil, *ast.BinaryExpr, *ast.ParenExpr:
		return
	case *ast.UnaryExpr:
		if e.Op == token.NOT {
			return
		}
	}
	f.replace(condition, "!"+f.text(condition))
}

func (f *finder) at(p token.Pos) int { return f.file.Offset(p) }

func (f *finder) text(n ast.Node) string { return string(f.source[f.at(n.Pos()):f.at(n.End())]) }

func (f *finder) replace(n ast.Node, replacement string) {
	oneLine := func(s string) string { return string(bytes.Join(bytes.Fields([]byte(s)), []byte(" "))) }
	f.mutants = append(f.mutants, &mutant{
		line: f.file.Line(n.Pos()), key: f.prefix + oneLine(f.text(n)) + " => " + oneLine(replacement),
		source: f.source, start: f.at(n.Pos()), end: f.at(n.End()), replacement: replacement,
	})
}
