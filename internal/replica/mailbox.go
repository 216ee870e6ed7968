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
// what the flushers have to say (it is their raftlog.Sink), and tasks.
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
	return len(m.submissions) == 0 && len(m.responses) == 0 && len(m.rolled) == 0 && len(m.tasks) == 0 && m.failure == nil
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

// take waits until there is mail and takes all of it. used is the mail of the call before: its slices are used again.
// more is false when the mailbox is closed, empty, and settled says that no response is outstanding.
func (m *mailbox[S]) take(used mail[S], settled bool) (_ mail[S], more bool) {
	clear(used.submissions)
	clear(used.responses)
	clear(used.tasks)
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.waiting.empty() {
		if m.closed && settled {
			return mail[S]{}, false
		}
		m.filled.Wait()
	}
	taken := m.waiting
	m.waiting = mail[S]{
		submissions: used.submissions[:0], responses: used.responses[:0], rolled: used.rolled[:0], tasks: used.tasks[:0],
	}
	return taken, true
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
