package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/oncemq/oncemq/internal/batch"
)

// checkedData is as much of what `oncemq check-data --json` prints as is needed.
type checkedData struct {
	Sound      bool     `json:"sound"`
	Damage     []string `json:"damage"`
	Partitions []struct {
		Topic     string `json:"topic"`
		Partition int32  `json:"partition"`
		Directory string `json:"directory"`
		Sound     bool   `json:"sound"`
		WhyNot    string `json:"why_not"`
	} `json:"partitions"`
}

// compareReplicas demands that each data directory is sound, and that all replicas of a partition hold the same batches. The
// nodes must have ended. It returns how many batches each replica holds, of all partitions together.
func (c *campaign) compareReplicas(ctx context.Context) (batches int, err error) {
	type held struct {
		node int
		log  []storedBatch
	}
	replicas := make(map[string][]held)
	for node := range c.nodes.Nodes() {
		dir := c.nodes.Config(node).Data
		found, err := checkData(ctx, c.Binary, dir)
		if err != nil {
			return 0, err
		}
		if !found.Sound {
			c.Violate("node %d: the data directory is damaged: %+v", node+1, found)
			continue
		}
		for _, p := range found.Partitions {
			log, err := readReplica(filepath.Join(dir, p.Directory))
			if err != nil {
				return 0, fmt.Errorf("node %d: %w", node+1, err)
			}
			name := fmt.Sprintf("%s/%d", p.Topic, p.Partition)
			replicas[name] = append(replicas[name], held{node, log})
		}
	}
	for _, p := range c.Partitions {
		all := replicas[p.String()]
		if want := min(3, c.cfg.nodes); len(all) != want {
			c.Violate("%v has %d replicas on disk, want %d", p, len(all), want)
		}
		for _, other := range all {
			if wrong := difference(all[0].log, other.log); wrong != "" {
				c.Violate("%v: the replicas of nodes %d and %d differ: %s", p, all[0].node+1, other.node+1, wrong)
			}
		}
		if len(all) > 0 {
			batches += len(all[0].log)
		}
	}
	return batches, nil
}

// checkData runs the broker's own check of a data directory. That it finds damage is no error here.
func checkData(ctx context.Context, binary, dir string) (checkedData, error) {
	var found checkedData
	out, err := exec.CommandContext(ctx, binary, "check-data", "--json", dir).Output()
	if bad := json.Unmarshal(out, &found); bad != nil {
		return found, fmt.Errorf("check %s: %w", dir, errors.Join(err, bad))
	}
	return found, nil
}

// storedBatch is one batch of a replica's log.
type storedBatch struct {
	base batch.Offset
	size int
	sum  uint32 // over all of its bytes
}

// difference says where two logs differ, "" when they do not.
func difference(a, b []storedBatch) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("batch %d of the log is %+v here and %+v there", i, a[i], b[i])
		}
	}
	if len(a) != len(b) {
		return fmt.Sprintf("%d batches here and %d there", len(a), len(b))
	}
	return ""
}

// Where the fields of an entry lie, be it a batch or a frame.
const (
	entryLength = 8  // 4 bytes: how many follow
	entryBody   = 12 // where what follows begins
	entryHead   = 61 // of a batch
)

// readReplica reads the batches of all segments of a group's directory with this package's own code, not with the broker's.
func readReplica(dir string) ([]storedBatch, error) {
	names, err := fs.Glob(os.DirFS(dir), "*.log")
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	slices.Sort(names) // by their first Raft index
	var log []storedBatch
	for _, name := range names {
		segment, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("read a segment: %w", err)
		}
		batches, err := readSegment(segment)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, name), err)
		}
		log = append(log, batches...)
	}
	return log, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func readSegment(segment []byte) ([]storedBatch, error) {
	var log []storedBatch
	for at := 0; at+entryBody <= len(segment); {
		rest := segment[at:]
		size := entryBody + int(binary.BigEndian.Uint32(rest[entryLength:]))
		if size == entryBody && len(bytes.Trim(rest, "\x00")) == 0 {
			return log, nil
		}
		if size > len(rest) || size < 40 {
			return nil, fmt.Errorf("byte %d: an entry of %d bytes, and %d are left", at, size, len(rest))
		}
		if base := int64(binary.BigEndian.Uint64(rest)); base >= 0 { // a frame begins with a negative number
			if size < entryHead {
				return nil, fmt.Errorf("byte %d: a batch of %d bytes", at, size)
			}
			log = append(log, storedBatch{base: batch.Offset(base), size: size, sum: crc32.Checksum(rest[:size], castagnoli)})
		}
		at += size
	}
	return log, nil
}
