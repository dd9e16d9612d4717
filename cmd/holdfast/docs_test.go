package main_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestDocsPackageSentence wants one package comment per package, in one file, beginning as godoc expects.
func TestDocsPackageSentence(t *testing.T) {
	comments := map[string][]string{} // folder -> files with a package comment
	folders := map[string]bool{}
	walkGo(t, func(path, file string) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		folder := filepath.ToSlash(filepath.Dir(path))
		folders[folder] = true
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if f.Doc == nil {
			return
		}
		comments[folder] = append(comments[folder], path)
		text, want := f.Doc.Text(), "Package "+f.Name.Name+" "
		if f.Name.Name == "main" {
			want = "Command "
		}
		if !strings.HasPrefix(text, want) {
			t.Errorf("%s: package comment begins %.30q, want %q", path, text, want)
		}
	})
	for folder := range folders {
		if n := len(comments[folder]); n != 1 {
			t.Errorf("package %s has %d package comments %v, want 1", folder, n, comments[folder])
		}
	}
}

// call is a call x.Sel() or a function declaration that the rules below look at.
type call struct {
	path string // of the file, from the repository's root
	test bool   // the file is a test
	fake bool   // the file uses the fake clock of testing/synctest
	in   string // enclosing function, "" for none
}

// forbidden says why a call of package.name stands where it must not, or "" where it may stand.
func forbidden(pkg, name string, c call) string {
	switch pkg + "." + name {
	case "log.Fatal", "log.Fatalf", "log.Fatalln", "log.Panic", "log.Panicf", "log.Panicln":
		return "a library returns errors, and main decides"
	case "os.Exit":
		if c.path == "cmd/holdfast/main.go" || c.path == "image/sbom/main.go" || c.test && c.in == "TestMain" {
			return ""
		}
		return "only main.go ends the process (and the TestMain of a test)"
	case "time.Sleep":
		if c.test && !c.fake {
			return "a test polls a condition with a deadline, it does not sleep"
		}
	case "os.Rename":
		if c.path == "storage/durable.go" || c.test {
			return ""
		}
		return "files of our own are replaced by the one durable write in storage/durable.go"
	case "slog.Default", "slog.Info", "slog.Warn", "slog.Error", "slog.Debug":
		return "a logger is passed in"
	}
	return ""
}

// TestDocsForbidden greps for what CONTRIBUTING.md refuses.
func TestDocsForbidden(t *testing.T) {
	walkGo(t, func(path, file string) {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		fake := slices.ContainsFunc(f.Imports, func(s *ast.ImportSpec) bool { return s.Path.Value == `"testing/synctest"` })
		for _, d := range f.Decls {
			c := call{path: path, test: strings.HasSuffix(path, "_test.go"), fake: fake}
			if fn, ok := d.(*ast.FuncDecl); ok {
				c.in = fn.Name.Name
				if fn.Recv == nil && c.in == "init" {
					t.Errorf("%s:%d: func init: what runs is built in run.go", path, fset.Position(fn.Pos()).Line)
				}
			}
			ast.Inspect(d, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if pkg, ok := sel.X.(*ast.Ident); ok {
					if why := forbidden(pkg.Name, sel.Sel.Name, c); why != "" {
						t.Errorf("%s:%d: %s.%s: %s", path, fset.Position(sel.Pos()).Line, pkg.Name, sel.Sel.Name, why)
					}
				}
				return true
			})
		}
	})
}

// TestDocsForbiddenCatches makes sure that the rules above can fail.
func TestDocsForbiddenCatches(t *testing.T) {
	for _, tt := range []struct {
		name, pkg, call, path, in string
		refused                   bool
	}{
		{"exit in main", "os", "Exit", "cmd/holdfast/main.go", "run", false},
		{"exit in a test's main", "os", "Exit", "rig/hub/main_test.go", "TestMain", false},
		{"exit elsewhere in a test", "os", "Exit", "rig/hub/main_test.go", "TestKill", true},
		{"exit in a library", "os", "Exit", "storage/store.go", "run", true},
		{"fatal log", "log", "Fatalf", "cmd/holdfast/main.go", "run", true},
		{"sleep in a test", "time", "Sleep", "leaf/server_test.go", "run", true},
		{"sleep in a rig", "time", "Sleep", "rig/wire/wire.go", "run", false},
		{"rename in storage's one place", "os", "Rename", "storage/durable.go", "run", false},
		{"rename elsewhere", "os", "Rename", "ingest/mqtt/session.go", "run", true},
	} {
		c := call{path: tt.path, test: strings.HasSuffix(tt.path, "_test.go"), in: tt.in}
		if why := forbidden(tt.pkg, tt.call, c); (why != "") != tt.refused {
			t.Errorf("%s: forbidden(%s.%s in %s) = %q, want refused %v", tt.name, tt.pkg, tt.call, tt.path, why, tt.refused)
		}
	}
}

// TestDocsPages wants every page that the others point to.
func TestDocsPages(t *testing.T) {
	for _, page := range []string{
		"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE",
		"docs/ARCHITECTURE.md", "docs/WIRE.md", "docs/DURABILITY.md", "docs/OPERATIONS.md", "docs/JETSTREAM.md",
	} {
		if text := readRepo(t, page); len(text) < 200 {
			t.Errorf("%s has %d bytes: not written yet", page, len(text))
		}
	}
	decisions, err := filepath.Glob(filepath.Join(repoRoot, "docs/decisions/[0-9]*.md"))
	if err != nil || len(decisions) == 0 {
		t.Fatalf("decisions = %v, %v, want some", decisions, err)
	}
	for _, file := range decisions {
		page, err := filepath.Rel(repoRoot, file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(readRepo(t, page), "\nCost:") {
			t.Errorf("%s has no line that begins with %q", page, "Cost:")
		}
	}
}
