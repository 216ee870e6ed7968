package memfs

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// KillClone returns the file system as the next process finds it when this one ends here: all that was written is
// there, and what was not durable is not durable in it either. Locks are free.
func (f *FS) KillClone() *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := cloner{copies: map[*node]*node{}, content: (*content).clone}
	clone := &FS{root: c.copy(f.root), locked: map[string]bool{}, syncErr: f.syncErr, capacity: f.capacity}
	clone.used = usedBelow(clone.root)
	for _, ch := range f.pending {
		made := make(change, len(ch))
		for i, e := range ch {
			made[i] = entry{dir: c.copy(e.dir), name: e.name, to: c.copy(e.to)}
		}
		clone.pending = append(clone.pending, made)
	}
	return clone
}

// WriteBack writes a part of what is not durable to the disk, as a kernel does at any time it likes: of each file each
// page, and the size, with a chance of percent. A crash that comes after later writes may then leave these versions, which
// were neither durable nor the last ones. Nothing becomes durable in the sense of SyncData. 100 needs no rng.
func (f *FS) WriteBack(percent int, rng *rand.Rand) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.root.writeBack(&chance{percent: percent, rng: rng})
}

func (n *node) writeBack(luck *chance) {
	for _, name := range sortedNames(n.entries) {
		if child := n.entries[name]; child.isDir() {
			child.writeBack(luck)
		} else {
			child.content.writeBack(luck)
		}
	}
}

// writeBack leaves all dirty: the next sync has to see to it in any case.
func (c *content) writeBack(luck *chance) {
	if c.sizeDirty && luck.survives() {
		c.durableSize = c.size
		c.durablePages = slices.Clip(c.durablePages[:min(pagesOf(c.size), len(c.durablePages))])
	}
	for _, i := range slices.Sorted(maps.Keys(c.dirty)) {
		if i >= pagesOf(c.durableSize) || !luck.survives() {
			continue
		}
		if n := i + 1 - len(c.durablePages); n > 0 {
			c.durablePages = append(c.durablePages, make([]*page, n)...)
		}
		c.durablePages[i] = nil
		if p := pageAt(c.pages, i); p != nil {
			own := *p // this one goes on being written to
			c.durablePages[i] = &own
		}
	}
}

// CrashClone returns the file system as it might be found when the machine went down here. Of what was not durable, each
// page, each size and each change of a directory is there with a chance of unsyncedPercent; of a page that is not,
// some sectors may be there, and of one in which a write ended, all up to some byte; a size may be any between the old
// and the new one. Changes of the same name survive in order: none does without those before it. 0 leaves what is
// durable, 100 all that was written; rng may be nil then. All that is left is durable. Locks are free.
func (f *FS) CrashClone(unsyncedPercent int, rng *rand.Rand) *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	luck := chance{percent: unsyncedPercent, rng: rng}
	left := f.survivors(&luck)
	c := cloner{copies: map[*node]*node{}, content: func(old *content) content { return old.crash(&luck) }, view: left}
	clone := &FS{root: c.copy(f.root), locked: map[string]bool{}, capacity: f.capacity}
	clone.used = usedBelow(clone.root)
	return clone
}

// survivors returns the entries that the directories with pending changes have after a crash.
func (f *FS) survivors(luck *chance) map[*node]map[string]*node {
	type name struct {
		dir  *node
		name string
	}
	view := map[*node]map[string]*node{}
	lost := map[name]bool{}
	for _, ch := range f.pending {
		survives := luck.survives()
		for _, e := range ch {
			survives = survives && !lost[name{e.dir, e.name}]
		}
		for _, e := range ch {
			if !survives {
				lost[name{e.dir, e.name}] = true
				continue
			}
			if view[e.dir] == nil {
				view[e.dir] = maps.Clone(e.dir.durable)
			}
			set(view[e.dir], e.name, e.to)
		}
	}
	for _, ch := range f.pending {
		for _, e := range ch {
			if view[e.dir] == nil {
				view[e.dir] = e.dir.durable
			}
		}
	}
	return view
}

// cloner copies nodes, each once.
type cloner struct {
	copies  map[*node]*node
	content func(*content) content
	// view is nil to copy both images of directories. Otherwise the copies have one, and view has it for each
	// directory in which the two differ.
	view map[*node]map[string]*node
}

// copy copies n and all below it, in the order of the names so that a seed always means the same.
func (c *cloner) copy(n *node) *node {
	if n == nil {
		return nil
	}
	if made := c.copies[n]; made != nil {
		return made
	}
	made := &node{}
	c.copies[n] = made
	if !n.isDir() {
		made.content = c.content(&n.content)
		return made
	}
	if c.view == nil {
		made.entries, made.durable = c.entries(n.entries), c.entries(n.durable)
		return made
	}
	entries, differs := c.view[n]
	if !differs {
		entries = n.entries
	}
	made.entries = c.entries(entries)
	made.durable = maps.Clone(made.entries)
	return made
}

func (c *cloner) entries(old map[string]*node) map[string]*node {
	made := make(map[string]*node, len(old))
	for _, name := range sortedNames(old) {
		made[name] = c.copy(old[name])
	}
	return made
}

// clone copies both images. Pages that either side may write to in place are copied.
func (c *content) clone() content {
	made := *c
	made.pages = slices.Clone(c.pages)
	made.durablePages = slices.Clone(c.durablePages)
	made.dirty = maps.Clone(c.dirty)
	for i := range made.dirty {
		if p := pageAt(made.pages, i); p != nil {
			own := *p
			made.pages[i] = &own
		}
	}
	return made
}

// crash returns the content that is left on the disk.
func (c *content) crash(luck *chance) content {
	size := c.durableSize
	if c.sizeDirty {
		size = luck.between(c.durableSize, c.size)
	}
	pages := make([]*page, pagesOf(size))
	copy(pages, c.durablePages)
	for _, i := range slices.Sorted(maps.Keys(c.dirty)) {
		if i >= len(pages) {
			continue
		}
		left := new(page)
		if pages[i] != nil {
			*left = *pages[i]
		}
		written := new(page) // a page that was cut off is zeros
		if p := pageAt(c.pages, i); p != nil {
			written = p
		}
		luck.overwrite(left, written, c.dirty[i].tail)
		pages[i] = left
	}
	if at := size % pageSize; at != 0 && pages[len(pages)-1] != nil {
		last := *pages[len(pages)-1]
		clear(last[at:])
		pages[len(pages)-1] = &last
	}
	return content{
		size: size, pages: pages, allocated: min(c.allocated, len(pages)),
		durableSize: size, durablePages: slices.Clone(pages),
	}
}

// chance decides what survives.
type chance struct {
	percent int
	rng     *rand.Rand
}

func (c *chance) certain() bool { return c.percent <= 0 || c.percent >= 100 }

func (c *chance) survives() bool {
	if c.certain() {
		return c.percent >= 100
	}
	return c.rng.IntN(100) < c.percent
}

// overwrite makes of the old content of a page what a crash leaves of it and the new one.
func (c *chance) overwrite(old, written *page, tail bool) {
	switch {
	case c.survives():
		*old = *written
	case c.certain() || c.rng.IntN(2) == 0: // nothing of the new one
	case tail && c.rng.IntN(2) == 0:
		keep := c.rng.IntN(pageSize)
		copy(old[:keep], written[:keep])
	default:
		for at := 0; at < pageSize; at += sectorSize {
			if c.rng.IntN(2) == 0 {
				copy(old[at:at+sectorSize], written[at:])
			}
		}
	}
}

// between returns the size that a file has which was to go from the durable size to the written one.
func (c *chance) between(durable, written int64) int64 {
	switch {
	case c.survives():
		return written
	case c.certain() || c.rng.IntN(2) == 0:
		return durable
	default:
		return min(durable, written) + c.rng.Int64N(max(durable, written)-min(durable, written)+1)
	}
}
