// Package tidy is the house rules of this repository as a test. What it finds says which rule is broken, where (file and
// line), and what to do. It is test support; the broker does not import it.
//
// The rules:
//
//  1. levels: every package has a level (placement.go), and imports only packages of lower levels; test support is
//     imported by tests and test support only.
//  2. sources: files, clock, network, randomness and logger come into the levels 0 to 4 through constructors; the pure
//     packages know no lock, no context and no time either.
//  3. concurrency: in the levels 0 to 4 goroutines and locks are in the files that say why.
//  4. size: a file has at most 500 lines (a test 800), a function 70 (in a test 100), a package 1500 lines of code.
//  5. names: nothing is named after what could mean anything.
//  6. docs: packages and exported symbols have comments; the packages of the levels 1 to 5 number their invariants.
//  7. errors: an error that goes into another one is wrapped.
//  8. order: in the levels 0 to 4 nothing depends on the order of a map.
//  9. tests: none is skipped, none sleeps.
//  10. text: no leftovers, and nothing of the machines on which this was written.
//  11. papers: a Go file that README.md or another paper names is there.
//
// An exception stands in allow.go with its reason, and the test fails when it is not needed any more.
//
// The sources are parsed, not built. Types are worked out without the packages of others, so a rule that needs one (7
// and 8) sees what this module declares; where it cannot see an error it goes by the name.
package tidy
