package server

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestCompatibilityDocument: the table of APIs in docs/compatibility.md is the dispatch table.
func TestCompatibilityDocument(t *testing.T) {
	document, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	var written, served []string
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) \| (\w+) \| (\d+-\d+) \|`).FindAllSubmatch(document, -1) {
		written = append(written, fmt.Sprintf("%s %s %s", row[1], row[2], row[3]))
	}
	for _, a := range apis {
		served = append(served, fmt.Sprintf("%d %s %d-%d", a.key, a.key, a.min, a.max))
	}
	if !slices.Equal(written, served) {
		t.Errorf("docs/compatibility.md has\n%q, and served is\n%q", written, served)
	}
}
