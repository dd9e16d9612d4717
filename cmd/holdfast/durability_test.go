package main_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// readRepo returns a text file of the repository.
func readRepo(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repoRoot, filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	testName = regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
)

// TestDurabilityNamesRealTests keeps the table of docs/DURABILITY.md honest: each test it names exists.
func TestDurabilityNamesRealTests(t *testing.T) {
	exists := map[string]bool{}
	walkGo(t, func(path, file string) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, m := range testFunc.FindAllStringSubmatch(readRepo(t, path), -1) {
			exists[m[1]] = true
		}
	})
	for _, m := range testName.FindAllStringSubmatch(readRepo(t, "docs/DURABILITY.md"), -1) {
		if !exists[m[1]] {
			t.Errorf("docs/DURABILITY.md names %s, which no test file has", m[1])
		}
	}
}
