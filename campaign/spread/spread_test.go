package main

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestFlags(t *testing.T) {
	cfg, err := parseFlags([]string{"--partitions", "20", "--rate", "7"})
	if err != nil || cfg.partitions != 20 || cfg.rate != 7 || cfg.connections != 16 {
		t.Errorf("%+v, %v", cfg, err)
	}
	for _, args := range [][]string{{"--partitions", "15"}, {"--batches", "0"}, {"--in-flight", "1001"}, {"--rate", "-1"}, {"surplus"}} {
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}

// The whole command, with next to nothing to measure, and what it leaves behind.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	cfg, err := parseFlags([]string{"--partitions", "7", "--batches", "40", "--connections", "2", "--in-flight", "3", "--rate", "1000", "--dir", dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out strings.Builder
	if err := run(ctx, cfg, &out); err != nil {
		t.Fatal(err)
	}
	const figures = `(?s)^40 batches .* 7 partitions\nbroker, .* a second, .* each\n.*threads 1: .*the broker: .*\n.*threads 16: .*processor time\n$`
	if !regexp.MustCompile(figures).MatchString(out.String()) {
		t.Errorf("printed:\n%s", out.String())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
