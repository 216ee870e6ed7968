package replica

import (
	"sync"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
)

// heldMax bounds the bytes that a replica has accepted and not yet answered. At the bound put waits, so the connection
// that submits stops reading and back-pressure reaches the client. One submission larger than the bound passes alone.
const heldMax = 32 << 20

// mailbox is the only way into a replica's loop: submissions from connections, in the order in which they were put,
// what the flushers have to say (it is their raftlog.Sink), messages of other replicas, ticks, and tasks.
type mailbox[S any] struct {
	mu     sync.Mutex
	filled sync.Cond // there is something to take, or it is closed

	waiting mail[S]
	held    int          // bytes put and not yet released
	door    []*sync.Cond // of those that wait for room, in the order in which they came
	closed  bool
}

// mail is what take finds.
type mail[S any] struct {
	submissions []S
	// responses are those of storage messages that were carried out; what there can be is bounded by submissions.
	responses []*pb.Message
	// received are Raft's messages of other replicas, of receivedBytes. ticked: time has passed; woken: a time that the core
	// has named may have come.
	received      []*pb.Message
	receivedBytes int
	ticked, woken bool
	// rolled are the first indexes of the segments that were begun in the flushes that responses come from.
	rolled []seglog.Index
	// tasks run in the loop, in order. Whoever posts them bounds how many there are.
	tasks []task
	// failure: the flushers could not write, and will deliver nothing any more.
	failure error
}

// task is a piece of work for the loop.
type task func(now time.Time)

func (m *mail[S]) empty() bool {
	return len(m.submissions) == 0 && len(m.responses) == 0 && len(m.rolled) == 0 && len(m.tasks) == 0 && m.failure == nil &&
		len(m.received) == 0 && !m.ticked && !m.woken
}

func newMailbox[S any]() *mailbox[S] {
	m := &mailbox[S]{}
	m.filled.L = &m.mu
	return m
}

// put adds a submission of size bytes; it waits while heldMax bytes are held, behind all who came before. It reports
// false, and adds nothing, when the mailbox is closed.
func (m *mailbox[S]) put(s S, size int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.door) > 0 || !m.fits(size) {
		m.wait(size)
	}
	if m.closed {
		return false
	}
	m.held += size
	m.waiting.submissions = append(m.waiting.submissions, s)
	m.filled.Signal()
	m.callNext() // one release may give back enough for several
	return true
}

func (m *mailbox[S]) fits(size int) bool { return m.held == 0 || m.held+size <= heldMax }

// wait waits for room. Were it not in order, small submissions could pass a large one for ever, which gets in only when
// little is held.
func (m *mailbox[S]) wait(size int) {
	turn := sync.NewCond(&m.mu)
	m.door = append(m.door, turn)
	for !m.closed && (m.door[0] != turn || !m.fits(size)) {
		turn.Wait()
	}
	if !m.closed {
		m.door[0] = nil
		m.door = m.door[1:]
	}
}

func (m *mailbox[S]) callNext() {
	if len(m.door) > 0 {
		m.door[0].Signal()
	}
}

// release gives back the bytes of submissions that were answered.
func (m *mailbox[S]) release(size int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held -= size
	invariant.Check(m.held >= 0, "more bytes are given back than are held")
	m.callNext()
}

// Carried implements raftlog.Sink. The slices are the caller's again on return.
func (m *mailbox[S]) Carried(responses []*pb.Message, rolled []seglog.Index) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting.responses = append(m.waiting.responses, responses...)
	m.waiting.rolled = append(m.waiting.rolled, rolled...)
	m.filled.Signal()
}

// Failed implements raftlog.Sink: the flushers have given up.
func (m *mailbox[S]) Failed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting.failure = err
	m.filled.Signal()
}

// post adds a task. It reports false, and adds nothing, when the mailbox is closed.
func (m *mailbox[S]) post(t task) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.waiting.tasks = append(m.waiting.tasks, t)
	m.filled.Signal()
	return true
}

// receive adds a message of another replica, unless the mailbox is closed or full: Raft sends again what it misses. The bound
// lies above what Raft has under way to one replica, so that what it sends again fits; a message larger than the bound
// gets in alone.
func (m *mailbox[S]) receive(message *pb.Message) {
	size := messageBytes(message)
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.waiting.received)
	if m.closed || n == receivedMax || n > 0 && m.waiting.receivedBytes+size > receivedBytesMax {
		return
	}
	m.waiting.received = append(m.waiting.received, message)
	m.waiting.receivedBytes += size
	m.filled.Signal()
}

// The bounds on the messages that wait in one mailbox.
const (
	receivedMax      = 4096
	receivedBytesMax = 16 << 20
)

// messageBytes is about what a message takes.
func messageBytes(m *pb.Message) int {
	size := 256 + len(m.GetSnapshot().GetData())
	for _, e := range m.GetEntries() {
		size += 96 + len(e.GetData())
	}
	return size
}

// tick says that time has passed, wake that a time that the core has named may have come. Several that wait count once.
func (m *mailbox[S]) tick() { m.nudge(&m.waiting.ticked) }

func (m *mailbox[S]) wake() { m.nudge(&m.waiting.woken) }

func (m *mailbox[S]) nudge(flag *bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		*flag = true
		m.filled.Signal()
	}
}

// take waits until there is mail and takes all of it. used is the mail of the call before: its slices are used again.
// more is false when the mailbox is closed, empty, and settled says that no response is outstanding.
func (m *mailbox[S]) take(used mail[S], settled bool) (_ mail[S], more bool) {
	used.reuse()
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.waiting.empty() {
		if m.closed && settled {
			return mail[S]{}, false
		}
		m.filled.Wait()
	}
	return m.exchange(used), true
}

// takeNow is take for who does not wait: some is false when there is no mail, and more as of take.
func (m *mailbox[S]) takeNow(used mail[S], settled bool) (_ mail[S], some, more bool) {
	used.reuse()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting.empty() {
		return used, false, !m.closed || !settled
	}
	return m.exchange(used), true, true
}

func (m *mailbox[S]) exchange(used mail[S]) mail[S] {
	taken := m.waiting
	m.waiting = used
	return taken
}

// reuse empties the mail, and keeps its slices.
func (m *mail[S]) reuse() {
	clear(m.submissions)
	clear(m.responses)
	clear(m.received)
	clear(m.tasks)
	*m = mail[S]{
		submissions: m.submissions[:0], responses: m.responses[:0], received: m.received[:0], rolled: m.rolled[:0], tasks: m.tasks[:0],
	}
}

// close lets no further submission in and wakes all that wait.
func (m *mailbox[S]) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.filled.Signal()
	for _, turn := range m.door {
		turn.Signal()
	}
}
