package main

import (
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// toBeRead returns the files that a start cannot do without: of each group the newest base snapshot, and the segments that
// begin there or later. Both are named by the first index.
func toBeRead(data string) (files []string, err error) {
	groups, err := filepath.Glob(filepath.Join(data, "groups", "*"))
	if err != nil {
		return nil, err
	}
	for _, group := range groups {
		bases, err := filepath.Glob(filepath.Join(group, "*.base"))
		if err != nil || len(bases) == 0 {
			return nil, fmt.Errorf("find the base snapshots of %s: there are %d, %w", group, len(bases), err)
		}
		newest := bases[len(bases)-1] // Glob sorts
		files = append(files, newest)
		segments, err := filepath.Glob(filepath.Join(group, "*.log"))
		if err != nil {
			return nil, err
		}
		first := newest[:len(newest)-len(".base")]
		for _, s := range segments {
			if s[:len(s)-len(".log")] >= first {
				files = append(files, s)
			}
		}
	}
	return files, nil
}

// readBare reads files from beginning to end, with the checksum of what is in them, and returns how much that was.
func readBare(files []string) (size int64, err error) {
	buf := make([]byte, 1<<20)
	for _, name := range files {
		n, err := checksum(name, buf)
		if err != nil {
			return 0, err
		}
		size += n
	}
	return size, nil
}

func checksum(name string, buf []byte) (size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	sum := uint32(0)
	for {
		n, err := f.Read(buf)
		sum = crc32.Update(sum, castagnoli, buf[:n])
		size += int64(n)
		if err == io.EOF {
			return size, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// chill throws the directory's files out of the page cache, if that is wanted.
func (n *node) chill() error {
	if !n.cfg.cold {
		return nil
	}
	return filepath.WalkDir(n.data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if err := f.Sync(); err != nil { // what is not written back stays
			return err
		}
		return dropCache(f)
	})
}
