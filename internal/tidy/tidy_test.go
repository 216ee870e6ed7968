package tidy

import (
	"os"
	"testing"
)

// TestRepository holds the whole repository against the rules.
func TestRepository(t *testing.T) {
	findings, err := Check(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		t.Error(f)
	}
}
