package testbroker

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory returns the process's resident memory now and at its highest so far, in bytes.
func (b *Broker) Memory() (now, peak int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.PID()))
	if err != nil {
		return 0, 0, fmt.Errorf("read memory use: %w", err)
	}
	for line := range bytes.Lines(status) {
		name, value, _ := strings.Cut(string(line), ":")
		if name != "VmRSS" && name != "VmHWM" {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read memory use: %w", err)
		}
		if name == "VmRSS" {
			now = kib << 10
		} else {
			peak = kib << 10
		}
	}
	return now, peak, nil
}
