package node

import "sync"

// room is how many partitions more this node can have open. A partition that cannot be opened, for want of file
// descriptors, ends the process, and every start after it: so this node creates no topic that has more replicas here than
// there is room for. A topic that another node creates is opened all the same.
//
// Invariant: left is the bound without the replicas of the topics that there are, and without promised.
type room struct {
	mu       sync.Mutex
	left     int
	promised map[[16]byte]int // to topics that are being created, by their ids
}

func (r *room) init(partitionsMax int) {
	r.left, r.promised = partitionsMax, make(map[[16]byte]int)
}

// free is how many partitions more there is room for, not below 0.
func (r *room) free() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.left, 0)
}

func (r *room) has(partitions int) bool { return partitions <= r.free() }

// take takes room for the partitions of a topic that is about to be created, if there is any.
func (r *room) take(topic [16]byte, partitions int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if partitions > max(r.left, 0) {
		return false
	}
	r.promised[topic] = partitions
	r.left -= partitions
	return true
}

// giveBack gives back what was taken for a topic that is not going to be created.
func (r *room) giveBack(topic [16]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left += r.promised[topic]
	delete(r.promised, topic)
}

// fill counts the partitions of a topic that is created, whether room was taken for it here or not.
func (r *room) fill(topic [16]byte, partitions int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left += r.promised[topic] - partitions
	delete(r.promised, topic)
}

// empty gives back the room of partitions that are deleted.
func (r *room) empty(partitions int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left += partitions
}
