package peer

import (
	"sync"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/seglog"
)

const (
	controlQueueMax = 8 * mib
	dataQueueMax    = 64 * mib
	// repliesMax lets every call that may run at a time have the largest reply.
	repliesMax = callsMax*callMax + mib

	// itemBytes and entryCost are what a message and an entry are taken to cost beside their bytes.
	itemBytes = 128
	entryCost = 32

	// batchBytes is how much is taken off a queue for one write, at least one message.
	batchBytes = mib

	// snapshotsOpen is how many snapshots are on their way to a peer at once.
	snapshotsOpen = 4
	// snapshotsWaiting is how many bytes of snapshots may be kept when there are more than may be on their way at once.
	snapshotsWaiting = 64 * mib
)

// item is one thing to be sent.
type item struct {
	group   seglog.GroupID
	message *pb.Message // or nil, and a frame of another kind:
	kind    kind
	head    []byte
	body    []byte
	size    int
	slot    bool // of calls: it is free again when the reply is written or dropped
}

// sending is a snapshot on its way.
type sending struct {
	group   seglog.GroupID
	message *pb.Message
	number  uint64
	begun   bool
	sent    int
}

func (s *sending) bytes() []byte { return s.message.GetSnapshot().GetData() }

// queue holds what waits for one connection's writer. Any goroutine pushes, the writer takes.
type queue struct {
	max  int
	wake chan struct{} // holds a token when there may be something to take

	mu            sync.Mutex
	items         []item
	bytes         int
	beat          kind // kindPing or kindPong when one is due
	snapshots     []*sending
	snapshotBytes int
	numbers       uint64
	closed        bool
}

func newQueue(max int) *queue { return &queue{max: max, wake: make(chan struct{}, 1)} }

func (q *queue) rouse() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// verdict is what became of something that was pushed.
type verdict uint8

const (
	taken verdict = iota
	full
	gone // the connection has ended
)

// push appends something, unless the queue is full. What is larger than half of the queue is taken while half of it is
// free, so that small things do not keep it out for ever: there are at most half of the queue and one large thing then.
func (q *queue) push(i item) verdict {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return gone
	case q.bytes+i.size > q.max && (i.size <= q.max/2 || q.bytes > q.max/2):
		return full
	}
	q.items = append(q.items, i)
	q.bytes += i.size
	q.rouse()
	return taken
}

// pushSnapshot appends a MsgSnap. At most snapshotsOpen are kept, or more while they are small.
func (q *queue) pushSnapshot(group seglog.GroupID, m *pb.Message) verdict {
	q.mu.Lock()
	defer q.mu.Unlock()
	size := len(m.GetSnapshot().GetData())
	switch {
	case q.closed:
		return gone
	case len(q.snapshots) >= snapshotsOpen && q.snapshotBytes+size+itemBytes > snapshotsWaiting:
		return full
	}
	q.numbers++
	q.snapshots = append(q.snapshots, &sending{group: group, message: m, number: q.numbers})
	q.snapshotBytes += size + itemBytes
	q.rouse()
	return taken
}

// due asks for a ping or a pong.
func (q *queue) due(k kind) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.beat = k
	q.rouse()
}

// take moves what waits, up to batchBytes, to the end of batch, and returns the snapshot whose turn it is, if there is
// one, and the beat that is due, or 0.
func (q *queue) take(batch []item, turn int) ([]item, *sending, kind) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, bytes := 0, 0
	for n < len(q.items) && (n == 0 || bytes+q.items[n].size <= batchBytes) {
		bytes += q.items[n].size
		n++
	}
	batch = append(batch, q.items[:n]...)
	clear(q.items[:n])
	q.bytes -= bytes
	if q.items = q.items[n:]; len(q.items) == 0 {
		q.items = nil
	}
	beat := q.beat
	q.beat = 0
	if open := min(len(q.snapshots), snapshotsOpen); open > 0 {
		return batch, q.snapshots[turn%open], beat
	}
	return batch, nil, beat
}

// finish takes a snapshot off the queue.
func (q *queue) finish(s *sending) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, other := range q.snapshots {
		if other == s {
			q.snapshots = append(q.snapshots[:i], q.snapshots[i+1:]...)
			q.snapshotBytes -= len(s.bytes()) + itemBytes
			return
		}
	}
}

// close empties the queue for good and returns what was in it.
func (q *queue) close() ([]item, []*sending) {
	q.mu.Lock()
	defer q.mu.Unlock()
	items, snapshots := q.items, q.snapshots
	q.items, q.snapshots, q.bytes, q.snapshotBytes, q.closed = nil, nil, 0, 0, true
	return items, snapshots
}
