package sim

import (
	"container/heap"
	"time"
)

// event is something that happens at a moment of virtual time.
type event struct {
	at  time.Duration
	seq uint64 // of the events of one moment, in the order in which they were made
	run func()
}

// queue holds the events to come, the next one first.
type queue []event

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}

func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(e any) { *q = append(*q, e.(event)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return last
}

// after has run happen when d has passed.
func (w *world) after(d time.Duration, run func()) {
	w.seq++
	heap.Push(&w.events, event{at: w.now + max(d, 0), seq: w.seq, run: run})
}

// runUntil lets events happen up to a moment, or until done says so; it reports whether done did.
func (w *world) runUntil(end time.Duration, done func() bool) bool {
	for len(w.events) > 0 && w.events[0].at <= end && !w.failed() {
		e := heap.Pop(&w.events).(event)
		w.now = max(w.now, e.at) // after a leap it is late
		w.trace.steps++
		e.run()
		w.calls.settle()
		if done() {
			return true
		}
	}
	w.now = max(w.now, end)
	return false
}

// every has act happen again and again, at intervals of mean on average, while the phase of safety lasts. 0: never.
func (w *world) every(mean time.Duration, act func()) {
	if mean <= 0 {
		return
	}
	w.after(w.wait(mean), func() {
		if w.healed {
			return
		}
		act()
		w.every(mean, act)
	})
}

// wait draws an exponential time.
func (w *world) wait(mean time.Duration) time.Duration {
	return min(time.Duration(w.rng.ExpFloat64()*float64(mean)), 20*mean)
}

// between draws a time from low to high.
func (w *world) between(low, high time.Duration) time.Duration {
	if high <= low {
		return low
	}
	return low + time.Duration(w.rng.Int64N(int64(high-low)))
}

// pace draws how long work of a process waits, most at most: once all is healed nothing is slow.
func (w *world) pace(most time.Duration) time.Duration {
	if w.healed {
		most = min(most, time.Millisecond)
	}
	return w.between(0, most)
}

// chance draws whether something happens that does so perMille times in a thousand.
func (w *world) chance(perMille int) bool { return perMille > 0 && w.rng.IntN(1000) < perMille }
