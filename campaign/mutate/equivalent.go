package main

import (
	"fmt"
	"os"
	"strings"
)

// equivalent is one entry of the file of equivalent mutants:
//
//	PACKAGE FUNCTION: EXPRESSION => MUTATION
//		the reason, on lines that begin with a tab
//
// The first line is what --list prints of the mutant after file and line, so that it stays right when code moves.
// A second mutant of the function with the same text has " #2" behind it. Lines that begin with # are comments.
type equivalent struct {
	key    string
	reason string
	line   int
}

func readEquivalents(path string) ([]*equivalent, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	entries, err := parseEquivalents(string(content))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return entries, nil
}

func parseEquivalents(content string) ([]*equivalent, error) {
	var entries []*equivalent
	seen := map[string]bool{}
	number := 0
	for line := range strings.Lines(content) {
		number++
		text := strings.TrimSpace(line)
		switch {
		case text == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "\t") && len(entries) > 0:
			last := entries[len(entries)-1]
			last.reason = strings.TrimSpace(last.reason + " " + text)
		case strings.HasPrefix(line, "\t") || seen[text]:
			return nil, fmt.Errorf("line %d: a reason without a mutant, or a mutant twice", number)
		default:
			seen[text] = true
			entries = append(entries, &equivalent{key: text, line: number})
		}
	}
	for _, e := range entries {
		if e.reason == "" {
			return nil, fmt.Errorf("line %d: no reason is given for %s", e.line, e.key)
		}
	}
	return entries, nil
}

// packageName is the package that the entry is about.
func (e *equivalent) packageName() string {
	name, _, _ := strings.Cut(e.key, " ")
	return name
}

// match gives the mutants of a package the reasons of their entries, and returns the entries that fit none.
func match(entries []*equivalent, packageName string, mutants []*mutant) (unfit []*equivalent) {
	byKey := map[string]*mutant{}
	for _, m := range mutants {
		byKey[m.key] = m
	}
	for _, e := range entries {
		switch m := byKey[e.key]; {
		case m != nil:
			m.reason = e.reason
		case e.packageName() == packageName:
			unfit = append(unfit, e)
		}
	}
	return unfit
}
