package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestFlags(t *testing.T) {
	cfg, err := parseFlags([]string{"--producers", "7", "--log-mib", "0", "--cold"})
	if err != nil || cfg.producers != 7 || cfg.logMiB != 0 || !cfg.cold || cfg.batches != 5 {
		t.Errorf("%+v, %v", cfg, err)
	}
	for _, args := range [][]string{{"--producers", "-1"}, {"--batches", "6"}, {"--log-partitions", "0"}, {"--repeat", "0"}, {"surplus"}} {
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}

func TestToBeRead(t *testing.T) {
	data := t.TempDir()
	var want []string
	for name, read := range map[string]bool{
		"groups/0/02.base": true, "groups/0/02.log": true, "groups/0/02.idx": false,
		"groups/1/02.base": false, "groups/1/02.log": false, "groups/1/10.base": true, "groups/1/10.log": true, "groups/1/20.log": true,
		"state-1": false,
	} {
		path := filepath.Join(data, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
			t.Fatal(err)
		}
		if read {
			want = append(want, path)
		}
	}
	got, err := toBeRead(data)
	slices.Sort(got)
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if size, err := readBare(got); err != nil || size != 25 {
		t.Errorf("read %d bytes, %v, want 25", size, err)
	}
	if err := os.Remove(filepath.Join(data, "groups/0/02.base")); err != nil {
		t.Fatal(err)
	}
	if _, err := toBeRead(data); err == nil {
		t.Error("a group without a base snapshot was taken")
	}
}

// The whole command, with next to nothing to measure, and what it leaves behind.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	cfg, err := parseFlags([]string{"--producers", "500", "--producer-partitions", "3", "--log-mib", "8", "--log-partitions", "2", "--repeat", "1", "--dir", dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out strings.Builder
	if err := run(ctx, cfg, &out); err != nil {
		t.Fatal(err)
	}
	const figures = `(?s)^500 producers with 5 batches each on 3 partitions.*\n  after a clean stop: ready after .* the target of 3 s; .*ratio [0-9.]+\n` +
		`8 MiB of log on 2 .*\n  after a clean stop: .* target of 1 s; .*\n  after SIGKILL under load: .* target of 2 s; .*\n$`
	if !regexp.MustCompile(figures).MatchString(out.String()) {
		t.Errorf("printed:\n%s", out.String())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
