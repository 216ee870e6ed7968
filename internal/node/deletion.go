package node

import (
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
)

// endReplica closes the replica of a deleted topic, and has the files of its group removed.
func (n *Node) endReplica(j job) {
	t := j.topic.topic
	if err := j.topic.partitions[j.partition].close(); err != nil {
		n.env.Logger.Warn("closing a partition of a deleted topic", "topic", t.Name, "partition", j.partition, "error", err)
	}
	n.members.leave(seglog.GroupID(t.Partitions[j.partition].Group)) // behind close: who was opening it has made it a member
	n.room.empty(1)
	n.remove(n.partitionConfig(t, j.partition))
	if j.topic.unclosed.Add(-1) == 0 {
		n.placer.ended(j.topic)
	}
}

// removal removes the files of groups of deleted topics, in the background, one group after the other: a topic may have
// thousands of them, and other work waits in the background too.
type removal struct {
	mu        sync.Mutex
	groups    []raftlog.Config
	running   bool             // a job is queued or at work
	postponed []raftlog.Config // until there is room on the disk: to remove files, something has to be written first
}

// remove has a group's files removed.
func (n *Node) remove(groups ...raftlog.Config) {
	r := &n.removal
	r.mu.Lock()
	defer r.mu.Unlock()
	r.groups = append(r.groups, groups...)
	if !r.running && len(r.groups) > 0 {
		r.running = true
		n.jobs.add(n.removeNext)
	}
}

func (n *Node) removeNext() {
	r := &n.removal
	r.mu.Lock()
	cfg := r.groups[0]
	r.groups[0] = raftlog.Config{}
	r.groups = r.groups[1:]
	r.mu.Unlock()

	err := raftlog.DeleteGroup(cfg)
	switch {
	case isFull(err):
		n.space.meet(err)
	case err != nil:
		n.env.Logger.Error("cannot remove the files of a deleted topic; the next start tries again", "dir", cfg.Dir, "error", err)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if isFull(err) {
		r.postponed = append(r.postponed, cfg)
	}
	if r.running = len(r.groups) > 0; r.running {
		n.jobs.add(n.removeNext)
	}
}

// resumeRemoval has the files removed for which there was no room on the disk.
func (n *Node) resumeRemoval() {
	n.removal.mu.Lock()
	postponed := n.removal.postponed
	n.removal.postponed = nil
	n.removal.mu.Unlock()
	n.remove(postponed...)
}

// resumeDeletions goes on, at a start, with the deletions that the run before did not end.
func (n *Node) resumeDeletions() error {
	names, err := n.env.FS.List(n.groupsDir())
	if err != nil {
		return fmt.Errorf("look for groups: %w", err)
	}
	groups := n.state.Groups()
	for _, name := range names {
		if g, err := strconv.ParseUint(name, 16, 64); err == nil {
			groups = append(groups, seglog.GroupID(g))
		}
	}
	slices.Sort(groups)
	view := n.Topics()
	owned := ownedGroups(view)
	for _, t := range n.placer.takeEarly() {
		for _, p := range t.Partitions {
			owned[seglog.GroupID(p.Group)] = true // it is removed when its replica is closed
		}
	}
	for _, g := range slices.Compact(groups) {
		if n.mayRemove(g, view, owned) {
			n.remove(n.groupConfig(g, [16]byte{}, -1))
		}
	}
	return nil
}

// mayRemove decides about a group that has files or a record here. It is removed only if its deletion was begun, or if
// raft0 says that its topic was deleted: one of which raft0 knows nothing is left alone, and reported, since it may be
// raft0 that has lost something.
func (n *Node) mayRemove(g seglog.GroupID, view *meta.View, owned map[seglog.GroupID]bool) bool {
	group, born := n.state.Group(g)
	switch {
	case born && !group.Live || owned[g]:
		return false
	case view.GroupDeleted(uint64(g)) || slices.Contains(n.state.Deleting(), g):
		return true
	}
	n.env.Logger.Error("a group belongs to no topic, and to none that was deleted: it is left as it is", "dir", n.groupConfig(g, [16]byte{}, -1).Dir)
	return false
}

// ownedGroups are the groups of all topics, and raft0.
func ownedGroups(view *meta.View) map[seglog.GroupID]bool {
	owned := map[seglog.GroupID]bool{raft0: true}
	for _, t := range view.All() {
		for _, p := range t.Partitions {
			owned[seglog.GroupID(p.Group)] = true
		}
	}
	return owned
}
