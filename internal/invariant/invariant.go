// Package invariant holds the checks that stay on in production.
//
// A failed check is a bug in OnceMQ, never bad input and never a broken disk: those are errors. The text of
// the panic starts with "BUG:" so that a report can be told from every other end of the process.
package invariant

import "fmt"

// Check panics with a text that starts with "BUG:" unless ok holds. The arguments are formatted only on failure,
// so a call on a hot path should pass no argument that must be boxed.
func Check(ok bool, format string, args ...any) {
	if !ok {
		Bug(format, args...)
	}
}

// Bug panics: the caller has reached a state that its own invariants exclude.
func Bug(format string, args ...any) {
	panic("BUG: " + fmt.Sprintf(format, args...))
}
