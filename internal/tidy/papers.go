package tidy

import (
	"bytes"
	"path"
	"regexp"
	"strings"
)

// namedFile is a Go file that a paper names, by as much of its path as the paper takes.
var namedFile = regexp.MustCompile("`([A-Za-z0-9_/]+\\.go)`")

// checkPapers finds the files that papers name and that are not there any more.
func checkPapers(t *tree) []Finding {
	var findings []Finding
	for _, paper := range t.texts {
		if path.Ext(paper.name) != ".md" {
			continue
		}
		for _, at := range namedFile.FindAllSubmatchIndex(paper.content, -1) {
			if name := string(paper.content[at[2]:at[3]]); !t.has(name) {
				line := 1 + bytes.Count(paper.content[:at[0]], []byte("\n"))
				findings = append(findings, Finding{"papers", paper.name, paper.name, line, name + " does not exist: say where it is now"})
			}
		}
	}
	return findings
}

// has says whether there is a Go file of which the path ends so.
func (t *tree) has(end string) bool {
	for _, p := range t.packages {
		for _, f := range p.files {
			if strings.HasSuffix("/"+f.name, "/"+end) {
				return true
			}
		}
	}
	return false
}
