package memfs

import (
	"io"
	"io/fs"
	"slices"
	"syscall"

	"github.com/oncemq/oncemq/internal/vfs"
)

// pageSize is the unit in which written bytes survive a crash or are lost, and sectorSize the one in which a page is torn
// apart that was on its way to the disk.
const (
	pageSize   = 4096
	sectorSize = 512
)

type page [pageSize]byte

// content is a file's bytes in both images. A page that is nil, or beyond the slice, is zeros. Bytes beyond
// size in the last page are zeros.
type content struct {
	size  int64
	pages []*page
	// allocated is how many pages from the first on are taken from the disk, written or not.
	allocated int

	durableSize  int64
	durablePages []*page

	// dirty holds the pages that the next SyncData makes durable. Only pages of its own are written to: one that is not
	// dirty may be shared, by the two images and by clones, and is copied first.
	dirty     map[int]dirt
	sizeDirty bool
}

// dirt is what is known of a dirty page.
type dirt struct {
	tail bool // a write ended inside of it: a crash may leave it up to any byte
}

// writable returns page i as one that may be written to.
func (c *content) writable(i int) *page {
	if n := i + 1 - len(c.pages); n > 0 {
		c.pages = slices.Grow(c.pages, n)[:i+1]
	}
	if _, ok := c.dirty[i]; ok && c.pages[i] != nil {
		return c.pages[i]
	}
	p := new(page)
	if c.pages[i] != nil {
		*p = *c.pages[i]
	}
	c.pages[i] = p
	c.mark(i, dirt{})
	return p
}

func (c *content) writeAt(b []byte, off int64) {
	if len(b) == 0 {
		return // not even a size changes
	}
	for len(b) > 0 {
		i, at := int(off/pageSize), int(off%pageSize)
		n := copy(c.writable(i)[at:], b)
		b, off = b[n:], off+int64(n)
		if off%pageSize != 0 {
			c.mark(i, dirt{tail: true})
		}
	}
	c.size = max(c.size, off)
	if off > c.durableSize {
		c.sizeDirty = true // also when it is not new: an earlier sync may have failed
	}
}

func (c *content) readAt(b []byte, off int64) int {
	b = b[:max(0, min(int64(len(b)), c.size-off))]
	total := len(b)
	for len(b) > 0 {
		i, at := int(off/pageSize), int(off%pageSize)
		n := min(len(b), pageSize-at)
		if p := pageAt(c.pages, i); p != nil {
			copy(b[:n], p[at:])
		} else {
			clear(b[:n])
		}
		b, off = b[n:], off+int64(n)
	}
	return total
}

func (c *content) truncate(size int64) {
	if size == c.size {
		return
	}
	if keep := pagesOf(size); size < c.size {
		// A page that is cut off reads as zeros from now on, should the file grow again: it is dirty as well.
		for i := keep; i < max(len(c.pages), len(c.durablePages)); i++ {
			c.mark(i, dirt{})
		}
		c.pages = slices.Delete(c.pages, min(keep, len(c.pages)), len(c.pages))
		if at := size % pageSize; at != 0 && keep <= len(c.pages) {
			clear(c.writable(keep - 1)[at:])
		}
	}
	c.allocated = min(c.allocated, pagesOf(size))
	c.size, c.sizeDirty = size, true
}

// pagesOf returns how many pages a file of a size has.
func pagesOf(size int64) int { return int((size + pageSize - 1) / pageSize) }

func (c *content) mark(i int, d dirt) {
	if c.dirty == nil {
		c.dirty = map[int]dirt{}
	}
	c.dirty[i] = d
}

func (c *content) sync() {
	if c.sizeDirty {
		c.durableSize = c.size
		c.durablePages = slices.Clip(c.durablePages[:min(pagesOf(c.size), len(c.durablePages))])
	}
	for i := range c.dirty {
		if i >= pagesOf(c.durableSize) {
			continue
		}
		if n := i + 1 - len(c.durablePages); n > 0 {
			c.durablePages = append(c.durablePages, make([]*page, n)...)
		}
		c.durablePages[i] = pageAt(c.pages, i)
	}
	c.forgetDirt()
}

func pageAt(pages []*page, i int) *page {
	if i < len(pages) {
		return pages[i]
	}
	return nil
}

// forgetDirt is what a failed fsync does: nothing is dirty, durable or not.
func (c *content) forgetDirt() {
	c.dirty, c.sizeDirty = nil, false
}

// file is an open file.
type file struct {
	fs      *FS
	name    string
	node    *node
	content *content // of node
	closed  bool
}

var _ vfs.File = (*file)(nil)

// begin takes the lock and says whether op may run at off. The caller unlocks in either case.
func (f *file) begin(op string, off int64) error {
	f.fs.mu.Lock()
	if off < 0 {
		return f.invalid(op)
	}
	if f.closed {
		return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	return nil
}

func (f *file) invalid(op string) error {
	return &fs.PathError{Op: op, Path: f.name, Err: syscall.EINVAL}
}

func (f *file) ReadAt(b []byte, off int64) (int, error) {
	err := f.begin("read", off)
	defer f.fs.mu.Unlock()
	if err != nil {
		return 0, err
	}
	n := f.content.readAt(b, off)
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(b []byte, off int64) (int, error) {
	if err := f.WriteVAt([][]byte{b}, off); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (f *file) WriteVAt(bufs [][]byte, off int64) error {
	err := f.begin("write", off)
	defer f.fs.mu.Unlock()
	if err != nil {
		return err
	}
	for _, b := range bufs {
		if err := f.write(b, off); err != nil {
			return &fs.PathError{Op: "write", Path: f.name, Err: err}
		}
		off += int64(len(b))
	}
	return nil
}

// write writes page by page, until the disk is full.
func (f *file) write(b []byte, off int64) error {
	for len(b) > 0 {
		i, at := int(off/pageSize), int(off%pageSize)
		if i >= f.content.allocated && pageAt(f.content.pages, i) == nil {
			if err := f.fs.take(1); err != nil {
				return err
			}
		}
		n := min(len(b), pageSize-at)
		f.content.writeAt(b[:n], off)
		b, off = b[n:], off+int64(n)
	}
	return nil
}

func (f *file) Truncate(size int64) error {
	err := f.begin("truncate", 0)
	defer f.fs.mu.Unlock()
	if err != nil {
		return err
	}
	if size < 0 {
		return f.invalid("truncate")
	}
	before := f.content.taken()
	f.content.truncate(size)
	f.fs.used -= int64(before - f.content.taken())
	return nil
}

func (f *file) Allocate(size int64) error {
	err := f.begin("fallocate", 0)
	defer f.fs.mu.Unlock()
	if err != nil {
		return err
	}
	if size < 0 {
		return f.invalid("fallocate")
	}
	pages := pagesOf(size)
	if err := f.fs.take(f.content.missing(pages)); err != nil {
		return &fs.PathError{Op: "fallocate", Path: f.name, Err: err}
	}
	f.content.truncate(max(size, f.content.size))
	f.content.allocated = max(f.content.allocated, pages)
	return nil
}

func (f *file) SyncData() error {
	err := f.begin("fdatasync", 0)
	defer f.fs.mu.Unlock()
	if err != nil {
		return err
	}
	if err := f.fs.syncErr; err != nil {
		f.fs.syncErr = nil
		f.content.forgetDirt()
		return &fs.PathError{Op: "fdatasync", Path: f.name, Err: err}
	}
	f.content.sync()
	return nil
}

func (f *file) Size() (int64, error) {
	err := f.begin("stat", 0)
	defer f.fs.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return f.content.size, nil
}

func (f *file) Close() error {
	err := f.begin("close", 0)
	defer f.fs.mu.Unlock()
	if err != nil {
		return err
	}
	f.closed = true
	f.node.opened--
	f.fs.release(f.node)
	return nil
}
