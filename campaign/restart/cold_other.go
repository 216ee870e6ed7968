//go:build !linux

package main

import (
	"errors"
	"os"
)

// dropCache says that this system has no way to do it.
func dropCache(*os.File) error { return errors.New("--cold needs Linux") }
