package main

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// bootID names the machine's present run: it changes when the machine restarts, and with it what a crash may have
// done to the files.
func bootID() (id [16]byte, err error) {
	text, err := bootText()
	if err != nil {
		return id, err
	}
	digits, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(text), "-", ""))
	if err != nil || len(digits) != len(id) {
		return id, fmt.Errorf("read boot id: %q is no UUID", text)
	}
	return [16]byte(digits), nil
}
