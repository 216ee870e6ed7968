package history

import (
	"fmt"
	"slices"
	"sync"

	"github.com/oncemq/oncemq/internal/batch"
)

// SendID names one send of a History, as Invoke returned it.
type SendID int

type outcome uint8

const (
	unknown outcome = iota
	stored
	refused
)

// send is one batch: count values of one producer, numbered from first on.
type send struct {
	producer       int32
	first          int64
	count          int32
	outcome        outcome
	mayRepeat      bool
	base           batch.Offset // of the first value; only when stored
	invoked, ended uint64       // event numbers; ended is 0 while the outcome is unknown
}

func (s send) value(i int32) Value { return Value{Producer: s.producer, Number: s.first + int64(i)} }

// Record is one record as a reader got it.
type Record struct {
	Offset batch.Offset
	Value  Value
}

// Read is one pass of one reader over the log: the records of all offsets from Start to before End, in the order
// in which they arrived.
type Read struct {
	Start, End batch.Offset
	Records    []Record
}

// History is what happened on one partition. Its methods may be called from several goroutines; the order in
// which Invoke and Stored are called is the real-time order that JudgeRealTime checks.
type History struct {
	mu           sync.Mutex
	events       uint64
	sends        []send
	reads        []Read
	trimmed      batch.Offset // everything below may be gone
	contradicted []string     // one text for each answer that contradicts an earlier one
}

// New returns an empty History.
func New() *History { return &History{} }

// Invoke notes that a batch is about to be sent: count values (at least 1) of the producer, numbered from first on
// in the order of the batch's records. It must return before the first byte leaves. The outcome is unknown until
// Stored or Refused is called.
func (h *History) Invoke(producer int32, first int64, count int32) SendID {
	if count < 1 {
		panic(fmt.Sprintf("history: send of %d values", count))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events++
	h.sends = append(h.sends, send{producer: producer, first: first, count: count, base: -1, invoked: h.events})
	return SendID(len(h.sends) - 1)
}

// Stored notes the answer that the send's first record is at base. It is called for the answer to each retry as
// well: a different offset is a fault.
func (h *History) Stored(id SendID, base batch.Offset) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.sends[id]
	switch s.outcome {
	case unknown:
		h.events++
		s.outcome, s.base, s.ended = stored, base, h.events
	case stored:
		if s.base != base {
			h.contradict("%v: answered offset %d, to a retry %d", s.value(0), s.base, base)
		}
	case refused:
		h.contradict("%v: refused for good, later answered offset %d", s.value(0), base)
	}
}

// Refused notes the answer that the send is not stored and never will be. An answer that leaves room for doubt is
// not noted at all.
func (h *History) Refused(id SendID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.sends[id]
	if s.outcome == stored {
		h.contradict("%v: answered offset %d, later refused", s.value(0), s.base)
		return
	}
	if s.outcome == unknown {
		h.events++
		s.outcome, s.ended = refused, h.events
	}
}

// MayRepeat notes that a retry of the send may have come when the partition had forgotten its producer: a second copy is
// no fault then.
func (h *History) MayRepeat(id SendID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sends[id].mayRepeat = true
}

// Trim notes that everything below an offset is about to be deleted: from now on it is no fault that it is gone.
func (h *History) Trim(start batch.Offset) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trimmed = max(h.trimmed, start)
}

func (h *History) contradict(format string, args ...any) {
	h.contradicted = append(h.contradicted, fmt.Sprintf(format, args...))
}

// Read adds what one reader got. A value answered as stored counts as lost when no read has it and it was not trimmed, so
// at least one read must have begun after the last answer and reach from the log start to the end of the log. The records
// belong to the History from then on.
func (h *History) Read(r Read) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads = append(h.reads, r)
}

// Judge compares all that was sent with all that was read. It panics when a value was invoked twice: then the
// caller is wrong, not the log.
func (h *History) Judge() Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newJudge().verdict
}

// JudgeRealTime is Judge, and checks also that what was answered before another send began stands before it.
func (h *History) JudgeRealTime() Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	j := h.newJudge()
	j.realTime()
	return j.verdict
}

func (h *History) newJudge() *judge {
	j := &judge{sends: slices.Clone(h.sends), trimmed: h.trimmed}
	for _, text := range h.contradicted {
		j.verdict.add(&j.verdict.Contradicted, "contradicted", "%s", text)
	}
	for _, r := range h.reads {
		j.readOrder(r)
		j.seen = append(j.seen, r.Records...)
	}
	j.divergence()
	j.places()
	j.reordered()
	return j
}
