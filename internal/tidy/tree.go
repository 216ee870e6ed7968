package tidy

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// module is the path of the module whose sources a tree has.
const module = "github.com/oncemq/oncemq"

// tree is all that lies in the repository.
type tree struct {
	fset     *token.FileSet
	packages []*pkg // in order of their directories
	texts    []text // of all files, sources included, that are text
	typed    *typed // made when first asked for
}

// pkg is the Go files of one directory.
type pkg struct {
	dir   string // within the module, with slashes
	files []*file
}

// file is one Go file.
type file struct {
	pkg    *pkg
	name   string // path within the module
	syntax *ast.File
	test   bool
	lines  int
	code   int // lines with code: not blank, not only comment
}

// text is the content of a file.
type text struct {
	name    string
	content []byte
}

// load reads the repository whose root fsys is.
func load(fsys fs.FS) (*tree, error) {
	t := &tree{fset: token.NewFileSet()}
	byDir := map[string]*pkg{}
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == ".git" || name == "oncemq-data"):
			return fs.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		content, err := fs.ReadFile(fsys, name)
		if err != nil || bytes.IndexByte(content, 0) >= 0 {
			return err
		}
		t.texts = append(t.texts, text{name, content})
		if path.Ext(name) != ".go" || strings.Contains("/"+name, "/testdata/") {
			return nil
		}
		dir := path.Dir(name)
		if byDir[dir] == nil {
			byDir[dir] = &pkg{dir: dir}
			t.packages = append(t.packages, byDir[dir])
		}
		return t.parse(byDir[dir], name, content)
	})
	if err != nil {
		return nil, fmt.Errorf("read the sources: %w", err)
	}
	return t, nil
}

func (t *tree) parse(p *pkg, name string, content []byte) error {
	syntax, err := parser.ParseFile(t.fset, name, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	f := &file{pkg: p, name: name, syntax: syntax, test: strings.HasSuffix(name, "_test.go")}
	f.lines = bytes.Count(content, []byte("\n"))
	f.code = t.codeLines(f)
	p.files = append(p.files, f)
	return nil
}

// codeLines counts the lines on which something other than a comment stands.
func (t *tree) codeLines(f *file) int {
	lines := map[int]bool{}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		switch n.(type) {
		case nil, *ast.Comment, *ast.CommentGroup:
			return false
		}
		lines[t.line(n.Pos())], lines[t.line(n.End()-1)] = true, true
		return true
	})
	return len(lines)
}

func (t *tree) line(p token.Pos) int { return t.fset.Position(p).Line }

// placed returns the placement of the package. What has none is reported by the rule "levels" and else left alone.
func (p *pkg) placed() placement {
	for _, known := range placements {
		if p.dir == known.dir || strings.HasSuffix(known.dir, "/") && strings.HasPrefix(p.dir, known.dir) {
			return known
		}
	}
	return placement{level: unknown}
}

// imports calls visit for each import of the file with its path, and the name by which the file calls it.
func (f *file) imports(visit func(spec *ast.ImportSpec, path, name string)) {
	for _, spec := range f.syntax.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser has checked it
		}
		name := path.Base(p)
		if strings.HasPrefix(name, "v") && strings.Trim(name[1:], "0123456789") == "" {
			name = path.Base(path.Dir(p))
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		visit(spec, p, name)
	}
}

// uses calls visit for each place where the file names something of another package: "time.Now".
func (f *file) uses(visit func(at token.Pos, name string)) {
	imported := map[string]string{}
	f.imports(func(_ *ast.ImportSpec, p, name string) { imported[name] = p })
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && imported[x.Name] != "" {
				visit(s.Pos(), imported[x.Name]+"."+s.Sel.Name)
			}
		}
		return true
	})
}

// within names the place of a node for the allow list: its file, and the function around it.
func (f *file) within(at token.Pos) string {
	for _, d := range f.syntax.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Pos() <= at && at < fn.End() {
			return f.name + ":" + functionName(fn)
		}
	}
	return f.name
}

// functionName is "Func", or "Type.Method".
func functionName(fn *ast.FuncDecl) string {
	name := fn.Name.Name
	if fn.Recv != nil {
		name = receiver(fn.Recv) + "." + name
	}
	return name
}

// receiver is the name of a receiver's type.
func receiver(recv *ast.FieldList) string {
	name := ""
	ast.Inspect(recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == "" {
			name = id.Name
		}
		return name == ""
	})
	return name
}
