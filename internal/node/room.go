package node

import (
	"sync/atomic"

	"github.com/oncemq/oncemq/internal/meta"
)

// room is how many partitions more this node can have open. A partition that cannot be opened, for want of file
// descriptors, ends the process, and every start after it: so it must not be created.
type room struct {
	left atomic.Int64
}

// measure says what is left beside the topics that there are.
func (r *room) measure(partitionsMax int, topics *meta.View) {
	left := partitionsMax
	for _, t := range topics.All() {
		left -= len(t.Partitions)
	}
	r.left.Store(int64(left))
}

func (r *room) has(partitions int32) bool { return int64(partitions) <= r.left.Load() }

// take takes room for new partitions, if there is any.
func (r *room) take(partitions int32) bool {
	for {
		left := r.left.Load()
		if int64(partitions) > left {
			return false
		}
		if r.left.CompareAndSwap(left, left-int64(partitions)) {
			return true
		}
	}
}

// giveBack gives back what a topic took that was not created, or is deleted.
func (r *room) giveBack(partitions int32) { r.left.Add(int64(partitions)) }
