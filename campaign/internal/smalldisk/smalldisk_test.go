package smalldisk

import (
	"errors"
	"os"
	"testing"
)

func TestFillSaysWhyItCannot(t *testing.T) {
	if err := Fill(t.TempDir()+"/nowhere/file", 0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}
