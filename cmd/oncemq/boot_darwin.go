package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func bootText() (string, error) {
	text, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return text, nil
}
