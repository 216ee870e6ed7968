//go:build !linux

package smalldisk

import (
	"context"
	"errors"
)

var errNoNamespaces = errors.New("only Linux has mount namespaces")

// Again says that this system has no namespaces.
func Again(context.Context, []string, ...string) (status int, err error) { return 0, errNoNamespaces }

// Mount says that this system has no namespaces.
func Mount(string, int) error { return errNoNamespaces }

// Unmount says that this system has no namespaces.
func Unmount(string) error { return errNoNamespaces }
