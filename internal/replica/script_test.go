package replica

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/vfs"
)

// line is one batch that a client has sent.
type line struct {
	stamp batch.Stamp
	n     int32
	key   string // its records: no other batch has them
	at    time.Time
	base  batch.Offset // -1: not answered, or without success
}

func (l line) bytes() []byte {
	return stamped(batchOf(l.stamp.ID, l.stamp.Epoch, l.stamp.First, l.n, []byte(l.key)), l.at)
}

// producerBook is what a client knows of one producer.
type producerBook struct {
	lines []line
	// sure: the partition must remember lines[sure:], as far as its window goes. Before, it may have forgotten.
	sure int
	used time.Time
}

// book is what the clients of a partition know.
type book struct {
	producers map[batch.ProducerID]*producerBook
	anonymous []line
	refused   []string // keys of batches that are not stored, as an answer has said
	// started is the highest log start that an answer has told of, asked for was at most startMax.
	started, startMax batch.Offset
}

func (b *book) clone() book {
	c := *b
	c.producers = make(map[batch.ProducerID]*producerBook)
	for id, p := range b.producers {
		own := *p
		own.lines = slices.Clone(p.lines)
		c.producers[id] = &own
	}
	c.anonymous, c.refused = slices.Clone(b.anonymous), slices.Clone(b.refused)
	return c
}

// script is a long random life of a partition.
type script struct {
	t     *testing.T
	rng   *rand.Rand
	fs    vfs.FS
	boot  byte
	clock *testClock
	s     *stack
	// faults: operations fail, so a partition may not open, nor close without an error.
	faults bool

	ids  batch.ProducerID
	keys int

	mu   sync.Mutex
	book book
	// ended: a write has failed, and the process is to end.
	ended error
}

func newScript(t *testing.T, fs vfs.FS, seed uint64) *script {
	return &script{
		t: t, rng: rand.New(rand.NewPCG(seed, 5)), fs: fs, boot: 1, clock: newTestClock(),
		book: book{producers: map[batch.ProducerID]*producerBook{}},
	}
}

// scriptSettings are small, so that all that a setting limits happens soon.
func scriptSettings() *Settings {
	s := testSettings()
	s.ProducersMax, s.ProducerEvictionMinAge, s.ProducerExpiration = 6, 40*time.Second, 2*time.Minute
	s.Retention, s.RetentionBytes, s.SegmentAge = 3*time.Minute, 15_000, 2*time.Minute
	return s
}

// open opens the partition. It gives up with the error of whatever fails.
func (c *script) open() error {
	state, log, err := openLog(c.fs, c.boot, newborn())
	if err != nil {
		return err
	}
	c.s = newStack(c.t, c.fs, state, log)
	c.s.clock, c.s.settings = c.clock, scriptSettings()
	made := make(chan struct{})
	flushers := raftlog.NewFlushers(2, state, raftlog.Events{
		Fatal: c.end,
		Full: func(error) {
			<-made
			c.s.flushers.Retry()
		},
	})
	c.s.flushers = flushers
	close(made)
	if c.s.partition, err = OpenPartition(testReplica, c.s.config()); err != nil {
		flushers.Close()
		return errors.Join(err, log.Close(), state.Close())
	}
	if err := c.s.partition.Opened(c.t.Context()); err != nil {
		c.close()
		return err
	}
	return nil
}

func (c *script) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		c.ended = err
	}
}

func (c *script) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

func (c *script) close() {
	err := c.s.partition.Close()
	c.s.flushers.Close()
	if err = errors.Join(err, c.s.state.Close()); err != nil && !c.faults {
		c.t.Error(err)
	}
}

// turn does something. It returns false when the process is to end; the partition is closed then.
func (c *script) turn() bool {
	c.clock.advance(time.Duration(c.rng.IntN(12_000)) * time.Millisecond)
	switch k := c.rng.IntN(100); {
	case k < 60:
		c.produce()
	case k < 66:
		c.mayForget()
		c.s.partition.Housekeep(Expire)
		c.s.do(func(time.Time) {}) // before the clock goes on
	case k < 72:
		c.mayForget()
		c.s.partition.EvictIdle(time.Duration(c.rng.IntN(60))*time.Second, c.rng.IntN(3)+1)
		c.s.do(func(time.Time) {})
	case k < 78:
		c.s.partition.loop.box.post(func(time.Time) { c.s.partition.core.rollWanted = true })
	case k < 84:
		c.startMayMove(c.s.partition.Status().HighWatermark)
		c.s.partition.Housekeep(Retain | RetryBases)
	case k < 92:
		c.deleteRecords()
	default:
		c.close()
		if c.failure() != nil {
			return false
		}
		if err := c.open(); err != nil {
			if !c.faults {
				c.t.Fatalf("open again: %v", err)
			}
			return false
		}
	}
	if c.failure() != nil {
		c.close()
		return false
	}
	return true
}

// mayForget notes who may be forgotten from now on: who was silent for the shorter of the times.
func (c *script) mayForget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.book.producers {
		if c.clock.Now().Sub(p.used) >= c.s.settings.ProducerEvictionMinAge {
			p.sure = len(p.lines)
		}
	}
}

func (c *script) startMayMove(to batch.Offset) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.book.startMax = max(c.book.startMax, to)
}

func (c *script) deleteRecords() {
	st := c.s.partition.Status()
	before := st.HighWatermark - batch.Offset(c.rng.IntN(20))
	if before < 0 {
		before = -1
	}
	c.startMayMove(max(before, st.HighWatermark))
	start, err := c.s.partition.DeleteRecords(c.t.Context(), before)
	if err != nil {
		c.mustHaveEnded(err)
		return
	}
	if start < before {
		c.t.Errorf("deleted before %d, the log starts at %d", before, start)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.book.started = max(c.book.started, start)
}

// mustHaveEnded: the error is one that the end of the process explains.
func (c *script) mustHaveEnded(err error) {
	c.t.Helper()
	if !errors.Is(err, ErrStopped) && !errors.Is(err, ErrOffline) {
		c.t.Errorf("unexpected %v", err)
		return
	}
	waitFor(c.t, func() bool { return c.failure() != nil })
}

// scriptDone is the answer to a line.
type scriptDone struct {
	c         *script
	id        batch.ProducerID
	key       string
	duplicate batch.Offset // of a retry: what its answer must be; -1
	ended     chan struct{}
}

func (d *scriptDone) Taken() {}

// Done writes the answer down at once: a crash that comes later must not change it.
func (d *scriptDone) Done(a Ack) {
	defer close(d.ended)
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	if d.duplicate >= 0 {
		if a.Err == nil && (a.Base != d.duplicate || a.Decision.Verdict != dedupe.Duplicate) {
			d.c.t.Errorf("retry of %q, stored at %d: %+v", d.key, d.duplicate, a)
		}
		return
	}
	lines := &d.c.book.anonymous
	if d.id >= 0 {
		lines = &d.c.book.producers[d.id].lines
	}
	at := slices.IndexFunc(*lines, func(l line) bool { return l.key == d.key })
	switch {
	case a.Err == nil:
		(*lines)[at].base = a.Base
	case errors.Is(a.Err, ErrTooManyProducers) || errors.Is(a.Err, ErrOffline):
		*lines = slices.Delete(*lines, at, at+1)
		d.c.book.refused = append(d.c.book.refused, d.key)
	case !errors.Is(a.Err, ErrStopped):
		d.c.t.Errorf("answer to %q: %+v", d.key, a)
	}
}

// produce sends a few batches at once and waits for the answers.
func (c *script) produce() {
	c.mayForget()
	var waiting []*scriptDone
	fresh := map[batch.ProducerID]bool{}
	for range c.rng.IntN(5) + 1 { // as many as a client has in flight
		d := &scriptDone{c: c, duplicate: -1, ended: make(chan struct{})}
		b, ok := c.draw(d, fresh)
		if !ok {
			continue
		}
		h, fault := batch.CheckProduce(b)
		if fault != batch.FaultNone {
			c.t.Fatalf("bad test batch: %v", fault)
		}
		must(c.t, c.s.partition.Submit(&Submission{Batch: b, Header: h, Done: d}))
		waiting = append(waiting, d)
	}
	for _, d := range waiting {
		wait(c.t, "the answer to "+d.key, d.ended)
	}
}

// draw makes a batch: the next of a producer, or the first of a new one or of a new epoch, or a retry, or one without a
// producer. fresh are producers of this turn that may be refused: nothing may follow them in it.
func (c *script) draw(d *scriptDone, fresh map[batch.ProducerID]bool) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys++
	d.key = fmt.Sprintf("<%d>%s", c.keys, bytes.Repeat([]byte("."), c.rng.IntN(900)))
	l := line{stamp: batch.Stamp{ID: -1, Epoch: -1, First: -1, Last: -1}, n: int32(c.rng.IntN(4) + 1), key: d.key, at: c.clock.Now(), base: -1}
	ids := slices.Sorted(maps.Keys(c.book.producers))
	k := c.rng.IntN(100)
	switch {
	case k < 8:
		d.id = -1
		c.book.anonymous = append(c.book.anonymous, l)
		return l.bytes(), true
	case k < 20 || len(ids) == 0:
		c.ids += batch.ProducerID(c.rng.IntN(2)+1) | batch.ProducerID(c.rng.IntN(10)/9)<<32
		d.id = c.ids
		c.book.producers[d.id] = &producerBook{}
		l.stamp = batch.Stamp{ID: d.id}
		fresh[d.id] = true
	default:
		d.id = ids[max(len(ids)-1-c.rng.IntN(8), 0)]
		if fresh[d.id] {
			return nil, false
		}
		p := c.book.producers[d.id]
		if len(p.lines) == 0 { // it was refused
			l.stamp = batch.Stamp{ID: d.id}
		} else if newest := p.lines[len(p.lines)-1]; k < 35 && c.retry(d, p) {
			return d.bytesOf(p), true
		} else if l.stamp = newest.stamp; k < 40 && newest.base >= 0 { // with nothing in doubt
			l.stamp.Epoch++
			l.stamp.First = 0
		} else {
			l.stamp.First = batch.AddSequence(newest.stamp.Last, 1)
		}
		fresh[d.id] = p.sure == len(p.lines)
	}
	l.stamp.Last = batch.AddSequence(l.stamp.First, l.n-1)
	p := c.book.producers[d.id]
	p.lines, p.used = append(p.lines, l), c.clock.Now()
	return l.bytes(), true
}

// retry picks an answered line that must be remembered.
func (c *script) retry(d *scriptDone, p *producerBook) bool {
	at := max(len(p.lines)-1-c.rng.IntN(5), 0)
	l := p.lines[at]
	if at < p.sure || l.base < 0 || l.stamp.Epoch != p.lines[len(p.lines)-1].stamp.Epoch {
		return false
	}
	d.key, d.duplicate = l.key, l.base
	return true
}

func (d *scriptDone) bytesOf(p *producerBook) []byte {
	return p.lines[slices.IndexFunc(p.lines, func(l line) bool { return l.key == d.key })].bytes()
}
