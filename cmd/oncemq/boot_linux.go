package main

import (
	"fmt"
	"os"
)

func bootText() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return string(text), nil
}
