package tidy

import (
	"bytes"
	"strings"
)

// banned are words that no text in the repository may hold. They are written in two parts here, so that this file does
// not hold them.
type banned struct {
	words []string
	text  string
}

var bannedWords = []banned{
	{
		[]string{"TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"},
		"a leftover: do it now, or file it where work is kept",
	},
	{
		[]string{"/wo" + "rk/", "sha" + "red/", "DES" + "IGN.md", "FOR" + "MAT.md"},
		"a place on the machine on which this was written: a reader does not have it",
	},
	{
		[]string{"proxy.go" + "lang.org", "sum.go" + "lang.org", "registry.npm" + "js.org", "python" + "hosted.org", "py" + "pi.org",
			"docker" + ".io", "ghcr" + ".io", "quay" + ".io", "deb.deb" + "ian.org"},
		registryHost,
	},
}

const registryHost = "a registry host: which one is used is the machine's affair"

// registryParts are what names of hosts that stand in for a registry have in them.
var registryParts = []string{"artifact", "nexus", "mirror", "proxy"}

// (Regular expressions were tried: they took half of the time of all rules together.)
func checkText(t *tree) []Finding {
	var findings []Finding
	for _, file := range t.texts {
		report := func(at int, word, text string) {
			line := 1 + bytes.Count(file.content[:at], []byte("\n"))
			findings = append(findings, Finding{"text", file.name, file.name, line, word + ": " + text})
		}
		for _, b := range bannedWords {
			for _, word := range b.words {
				for _, at := range wordsAt(file.content, word) {
					report(at, word, b.text)
				}
			}
		}
		for at, host := range hosts(file.content) {
			for _, part := range registryParts {
				if strings.Contains(host, part) {
					report(at, host, registryHost)
				}
			}
		}
	}
	return findings
}

// wordsAt finds where a word stands that is not a part of a longer one.
func wordsAt(content []byte, word string) []int {
	var found []int
	for at := 0; ; {
		i := bytes.Index(content[at:], []byte(word))
		if i < 0 {
			return found
		}
		begin, end := at+i, at+i+len(word)
		longer := begin > 0 && isLetter(content[begin-1]) && isLetter(word[0]) ||
			end < len(content) && isLetter(content[end]) && isLetter(word[len(word)-1])
		if !longer {
			found = append(found, begin)
		}
		at = end
	}
}

func isLetter(b byte) bool {
	return b == '_' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9'
}

// hosts yields the hosts of the web addresses in a text, in lower case, and where each begins.
func hosts(content []byte) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		for at := 0; ; {
			i := bytes.Index(content[at:], []byte("://"))
			if i < 0 {
				return
			}
			at += i + len("://")
			host := content[at:]
			if end := bytes.IndexAny(host, "/ \t\r\n\"'`)>"); end >= 0 {
				host = host[:end]
			}
			if !yield(at, strings.ToLower(string(host))) {
				return
			}
		}
	}
}
