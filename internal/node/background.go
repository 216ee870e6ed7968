package node

import "sync"

// backgroundWorkers is how many jobs run at the same time. They read and write whole files, beside the flushers.
const backgroundWorkers = 4

// background runs the jobs that nobody waits for: base snapshots, files of deleted topics. It keeps them in a list, which
// those who give jobs bound: a replica has one or two at a time, and deletion has one.
type background struct {
	mu     sync.Mutex
	filled sync.Cond // jobs grew, or it is closed
	jobs   []func()
	closed bool
	done   sync.WaitGroup
}

func (b *background) start() {
	b.filled.L = &b.mu
	for range backgroundWorkers {
		b.done.Go(b.run)
	}
}

// add has job run later, after those that were added before have begun. It does not block. After close it does nothing.
func (b *background) add(job func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.jobs = append(b.jobs, job)
	b.filled.Signal()
}

func (b *background) run() {
	for {
		b.mu.Lock()
		for len(b.jobs) == 0 && !b.closed {
			b.filled.Wait()
		}
		if b.closed {
			b.mu.Unlock()
			return
		}
		job := b.jobs[0]
		b.jobs[0] = nil
		b.jobs = b.jobs[1:]
		b.mu.Unlock()
		job()
	}
}

// close waits for the jobs that run and drops the others. What a job would have done is found again at the next start.
func (b *background) close() {
	b.mu.Lock()
	b.closed, b.jobs = true, nil
	b.filled.Broadcast()
	b.mu.Unlock()
	b.done.Wait()
}
