package raftlog

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
)

const (
	// A durable mark is written when this much time has passed since the first flush that it does not cover, or this
	// many bytes were flushed: it bounds what a restart must check closely and write again.
	markInterval = time.Second
	markBytes    = 64 << 20
)

// ErrFull says that the disk has no room for what was to be written. Nothing is broken: the call may be repeated when there
// is room, and goes on where it stopped.
var ErrFull = errors.New("disk is full")

// asFull wraps ErrFull around an error that says that the disk is full. A sync that finds no room is none of these: what
// it leaves on the disk is unknown.
func asFull(err error) error {
	if vfs.IsFull(err) && !errors.Is(err, seglog.ErrSync) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

// IsDamage says whether an error of a Writer is that the files of its group are not what was written, or cannot be read. They
// were found so before anything was changed, and the other groups have no part in it. Any goroutine may call it.
func IsDamage(err error) bool {
	_, log := errors.AsType[*seglog.DamageError](err)
	_, format := errors.AsType[*seglog.FormatError](err)
	_, base := errors.AsType[*BaseDamageError](err)
	return (log || format || base) && !errors.Is(err, seglog.ErrSync)
}

// Events are what a node hears from its flushers. They are called by several goroutines and must not block.
type Events struct {
	// Fatal: a write or a sync has failed, and nothing of it is ever answered. What is on disk is unknown then, so the
	// process must end. It may be called more than once. Damage of one group's files (IsDamage) is not
	// fatal: only its Sink is told.
	Fatal func(error)
	// Full: a write found no room, and its group is parked (Parked counts it already): nothing of it is answered and
	// nothing is lost, until Retry. It may be called more than once.
	Full func(error)
}

// Flushers is a node's bounded pool of goroutines that write and sync. Different groups are flushed in parallel, one
// group by one goroutine at a time; all that queued for a group meanwhile shares its next sync.
type Flushers struct {
	state  *StateFile
	events Events

	mu      sync.Mutex
	work    sync.Cond // signalled when waiting grows, broadcast when closed
	waiting []*Writer // those in writerQueued that no flusher works for; each at most once
	parked  []*Writer // those in writerParked, in the order in which they met the full disk
	closed  bool
	stepped bool // there is no goroutine; set at the beginning
	done    sync.WaitGroup

	markers marker
}

// NewFlushers starts n flushers over the node's state file. With n = 0 there is no goroutine: whoever made them calls Step
// and WriteMarks.
func NewFlushers(n int, state *StateFile, events Events) *Flushers {
	f := &Flushers{state: state, events: events, stepped: n == 0}
	f.work.L = &f.mu
	f.markers.init(state, events.Fatal)
	if !f.stepped {
		f.markers.done.Go(f.markers.run)
	}
	for range n {
		f.done.Go(f.run)
	}
	return f
}

// Step carries out what is submitted to one writer, the one that waits longest, and says whether there was one. It is for
// flushers without goroutines, and for one caller at a time.
func (f *Flushers) Step() bool {
	invariant.Check(f.stepped, "a step of flushers that run by themselves")
	f.mu.Lock()
	w := f.take()
	f.mu.Unlock()
	if w == nil {
		return false
	}
	f.carry(w)
	return true
}

// WriteMarks writes the durable marks that wait, which otherwise happens once in a while. It is for flushers without
// goroutines, and for one caller at a time.
func (f *Flushers) WriteMarks() {
	invariant.Check(f.stepped, "flushers that run by themselves write their marks")
	if err := f.markers.write(); err != nil {
		f.events.Fatal(err)
	}
}

// Close waits for all that was submitted, or carries it out, writes the outstanding marks and stops the flushers. What
// still finds no room is given up: its Sink is told. No writer may be used afterwards.
func (f *Flushers) Close() {
	f.mu.Lock()
	f.closed = true
	f.unpark(func(*Writer) bool { return true })
	f.work.Broadcast()
	f.mu.Unlock()
	if f.stepped {
		for f.Step() {
		}
		f.WriteMarks()
		return
	}
	f.done.Wait()
	f.markers.stop()
}

// Retry has all parked groups write again. A group that finds no room again is parked again. It may be called at any time
// until Close, and is to be called now and then while Parked is not 0: room that comes while a group is about to be parked
// is not noticed by anybody else.
func (f *Flushers) Retry() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unpark(func(*Writer) bool { return true })
}

// Parked returns how many groups wait for room on the disk.
func (f *Flushers) Parked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.parked)
}

// unpark puts parked writers back in line. The caller holds the lock.
func (f *Flushers) unpark(which func(*Writer) bool) {
	f.parked = slices.DeleteFunc(f.parked, func(w *Writer) bool {
		if !which(w) {
			return false
		}
		f.enqueue(w)
		return true
	})
}

func (f *Flushers) run() {
	for {
		w := f.next()
		if w == nil {
			return
		}
		f.carry(w)
	}
}

// carry carries out what a writer that was taken has to write.
func (f *Flushers) carry(w *Writer) {
	err := w.flush()
	if err != nil {
		err = fmt.Errorf("flush group %d: %w", w.log.group, err)
	}
	f.settle(w, err)
}

// next waits for a writer that has something to write; nil when the flushers are closed and none has.
func (f *Flushers) next() *Writer {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.waiting) == 0 {
		if f.closed {
			return nil
		}
		f.work.Wait()
	}
	return f.take()
}

// take takes the first writer out of the line; nil when there is none. The caller holds the lock.
func (f *Flushers) take() *Writer {
	if len(f.waiting) == 0 {
		return nil
	}
	w := f.waiting[0]
	f.waiting[0] = nil
	f.waiting = f.waiting[1:]
	if len(w.flushing) == 0 { // else it goes on with what it was parked with
		w.flushing, w.pending = w.pending, w.flushing
	}
	return w
}

// settle decides what becomes of a writer after a flush, and tells those who are to know.
func (f *Flushers) settle(w *Writer, err error) {
	f.mu.Lock()
	switch full := errors.Is(err, ErrFull); {
	case err == nil:
		clear(w.flushing)
		w.flushing = w.flushing[:0]
		if len(w.pending) > 0 {
			f.enqueue(w)
		} else {
			w.become(writerIdle)
		}
	case full && !w.closing && !f.closed:
		f.parked = append(f.parked, w)
		w.become(writerParked)
		defer f.events.Full(err) // when it can be found in parked, so that a Retry out of it finds it
	default:
		w.become(writerBroken)
		if !full && !IsDamage(err) {
			defer f.events.Fatal(err)
		}
		defer w.sink.Failed(err)
	}
	f.mu.Unlock()
}

// enqueue puts w at the end of the line. The caller holds the lock.
func (f *Flushers) enqueue(w *Writer) {
	w.become(writerQueued)
	f.waiting = append(f.waiting, w)
	f.work.Signal()
}
