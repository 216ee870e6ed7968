package tidy

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"path"
	"strings"
)

// types returns the types of the module, worked out once.
func (t *tree) types() *typed {
	if t.typed == nil {
		t.typed = newTyped(t)
	}
	return t.typed
}

// typed works out types from the sources of this module alone. What comes from other packages has no type, and what
// follows from that is no error here.
type typed struct {
	t    *tree
	done map[string]*types.Package
	info map[*pkg]*types.Info
}

func newTyped(t *tree) *typed {
	c := &typed{t: t, done: map[string]*types.Package{}, info: map[*pkg]*types.Info{}}
	for _, p := range t.packages {
		c.check(p)
	}
	return c
}

// Import implements types.Importer.
func (c *typed) Import(name string) (*types.Package, error) {
	if dir, ours := strings.CutPrefix(name, module+"/"); ours {
		for _, p := range c.t.packages {
			if p.dir == dir {
				return c.check(p), nil
			}
		}
	}
	foreign := types.NewPackage(name, path.Base(name))
	foreign.MarkComplete()
	return foreign, nil
}

// check works out the types of a package, without its tests.
func (c *typed) check(p *pkg) *types.Package {
	if done, ok := c.done[p.dir]; ok {
		return done
	}
	var files []*ast.File
	for _, f := range p.files {
		if !f.test {
			files = append(files, f.syntax)
		}
	}
	c.info[p] = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	c.done[p.dir] = types.NewPackage(module+"/"+p.dir, path.Base(p.dir)) // for a cycle, which does not compile
	config := types.Config{Importer: c, Error: func(error) {}, FakeImportC: true}
	made, _ := config.Check(module+"/"+p.dir, c.t.fset, files, c.info[p])
	c.done[p.dir] = made
	return made
}

func checkOrder(t *tree, report reporter) {
	const advice = "the order is another one each time; range over slices.Sorted(maps.Keys(...)), or say in internal/tidy/allow.go why it does not matter"
	c := t.types()
	for _, p := range t.packages {
		if at := p.placed().level; at > 4 || at == unknown {
			continue
		}
		for _, f := range p.files {
			if f.test {
				continue
			}
			sorted := map[ast.Node]bool{}
			ast.Inspect(f.syntax, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.RangeStmt:
					if isMap(c.info[p].TypeOf(n.X)) {
						report(f, n.Pos(), f.within(n.Pos()), "a loop over a map: %s", advice)
					}
				case *ast.CallExpr:
					switch name := calledName(n); {
					case strings.HasPrefix(name, "slices.Sorted") && len(n.Args) > 0:
						sorted[n.Args[0]] = true
					case (name == "maps.Keys" || name == "maps.Values" || name == "maps.All") && !sorted[n]:
						report(f, n.Pos(), f.within(n.Pos()), "%s without slices.Sorted: %s", name, advice)
					}
				}
				return true
			})
		}
	}
}

func isMap(t types.Type) bool {
	if t == nil {
		return false
	}
	_, ok := t.Underlying().(*types.Map)
	return ok
}

// calledName is "pkg.Func" of a call of that form, else "".
func calledName(call *ast.CallExpr) string {
	if s, ok := call.Fun.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name + "." + s.Sel.Name
		}
	}
	return ""
}

func checkErrors(t *tree, report reporter) {
	c := t.types()
	for _, p := range t.packages {
		for _, f := range p.files {
			if f.test {
				continue
			}
			ast.Inspect(f.syntax, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || calledName(call) != "fmt.Errorf" || len(call.Args) < 2 {
					return true
				}
				errors := 0
				for _, a := range call.Args[1:] {
					if isError(c.info[p], a) {
						errors++
					}
				}
				if wrapped := strings.Count(formatOf(c.info[p], call.Args[0]), "%w"); errors > wrapped {
					report(f, call.Pos(), f.within(call.Pos()),
						"fmt.Errorf is given %d errors and wraps %d: use %%w, so that errors.Is and errors.As find the cause", errors, wrapped)
				}
				return true
			})
		}
	}
}

// formatOf is the text of a format that is a constant.
func formatOf(info *types.Info, e ast.Expr) string {
	if v := info.Types[e].Value; v != nil && v.Kind() == constant.String {
		return constant.StringVal(v)
	}
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		return lit.Value
	}
	return ""
}

var errorInterface = types.Universe.Lookup("error").Type().Underlying().(*types.Interface)

// isError tells errors by their type, and where that is not known by their name.
func isError(info *types.Info, e ast.Expr) bool {
	if t := info.TypeOf(e); t != nil && t != types.Typ[types.Invalid] {
		return types.Implements(t, errorInterface)
	}
	name := ""
	switch e := e.(type) {
	case *ast.Ident:
		name = e.Name
	case *ast.SelectorExpr:
		name = e.Sel.Name
	}
	return name == "err" || strings.HasSuffix(name, "Err") || strings.HasPrefix(name, "Err")
}
