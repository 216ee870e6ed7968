package memfs

import (
	"math"
	"syscall"
)

// boundless is the size of a disk without a capacity.
const boundless = math.MaxInt64 / pageSize

// SetCapacity bounds the disk to a number of bytes, rounded down to whole pages of 4 KiB; 0 takes the bound away. What
// needs a page more than there are fails with ENOSPC, a write after it has written what fits. Names, sizes and holes need
// no page. A capacity below what is used takes nothing away.
func (f *FS) SetCapacity(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacity = bytes / pageSize
	if bytes > 0 {
		f.capacity = max(f.capacity, 1)
	}
}

// Space implements vfs.FS.
func (f *FS) Space(dir string) (free, total int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find("statfs", dir); err != nil {
		return 0, 0, err
	}
	pages := f.pages()
	return max(pages-f.used, 0) * pageSize, pages * pageSize, nil
}

// pages is how many pages the disk has.
func (f *FS) pages() int64 {
	if f.capacity == 0 {
		return boundless
	}
	return f.capacity
}

// take takes pages for a file, if the disk has that many left.
func (f *FS) take(pages int) error {
	if int64(pages) > f.pages()-f.used {
		return syscall.ENOSPC
	}
	f.used += int64(pages)
	return nil
}

// unname notes that a file has lost its name. What it holds is given back when nobody has it open.
func (f *FS) unname(n *node) {
	n.removed = true
	f.release(n)
}

func (f *FS) release(n *node) {
	if n.removed && n.opened == 0 {
		f.used -= int64(n.content.taken())
	}
}

// usedBelow counts the pages of all files below n.
func usedBelow(n *node) int64 {
	used := int64(n.content.taken())
	for _, child := range n.entries {
		used += usedBelow(child)
	}
	return used
}

// taken counts the pages that the content holds.
func (c *content) taken() int {
	taken := c.allocated
	for _, p := range c.pages[min(c.allocated, len(c.pages)):] {
		if p != nil {
			taken++
		}
	}
	return taken
}

// missing counts those of the first n pages that the content does not hold yet.
func (c *content) missing(n int) int {
	missing := 0
	for i := c.allocated; i < n; i++ {
		if pageAt(c.pages, i) == nil {
			missing++
		}
	}
	return missing
}
