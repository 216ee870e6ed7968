package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
)

// placers is how many replicas are opened or closed at the same time.
const placers = 16

// placer knows the replicas of this node, and those that are still to be opened or closed.
type placer struct {
	node   int32 // this node
	room   *room
	mu     sync.Mutex
	filled sync.Cond // jobs grew, or the placer is closed
	topics map[[16]byte]*placed
	// deleted are topics some of whose replicas are still to be closed.
	deleted   map[*placed]struct{}
	jobs      []job // at most two a partition
	postponed []job // to open those that cannot be opened at the moment
	resumed   int   // jobs of the kind openAgain that have not ended
	started   bool
	closed    bool
	// early are the topics that are deleted while tracking: between start and resumeDeletions.
	early    []*meta.Topic
	tracking bool
}

// placed is a topic whose replicas are open, or about to be.
type placed struct {
	topic      *meta.Topic
	here       []int32       // the partitions that have a replica on this node, ascending
	partitions []slot        // by number; of those that are not here empty
	remaining  atomic.Int32  // of here, to be opened
	done       chan struct{} // closed when remaining is 0
	failure    atomic.Pointer[error]

	deleted   atomic.Bool
	unclosed  atomic.Int32  // of here, of a deleted topic
	allClosed chan struct{} // closed when unclosed is 0
}

// slot is where a partition's replica is.
type slot struct {
	replica atomic.Pointer[replica.Partition]
	// busy is held by the one worker that opens or closes the replica. A topic may be deleted while its creation is
	// still being carried out: who closes waits for who opens.
	busy sync.Mutex
}

// job is to open a partition's replica, or to close it because the topic is deleted.
type job struct {
	topic     *placed
	partition int32
	kind      jobKind
}

type jobKind uint8

const (
	openFirst jobKind = iota
	openAgain         // it was postponed before
	closeForGood
)

func (p *placer) init(node int32, room *room) {
	p.node, p.room = node, room
	p.filled.L = &p.mu
	p.topics = make(map[[16]byte]*placed)
	p.deleted = make(map[*placed]struct{})
}

// add queues a topic. It is called from raft0's loop, before anybody hears of the topic, and does not block.
func (p *placer) add(t *meta.Topic) {
	topic := &placed{
		topic: t, partitions: make([]slot, len(t.Partitions)),
		done: make(chan struct{}), allClosed: make(chan struct{}),
	}
	for i := range t.Partitions {
		if slices.Contains(t.Partitions[i].Replicas, p.node) {
			topic.here = append(topic.here, int32(i))
		}
	}
	topic.remaining.Store(int32(len(topic.here)))
	topic.unclosed.Store(int32(len(topic.here)))
	if len(topic.here) == 0 {
		close(topic.done)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.topics[t.ID]; known {
		return // a create command that was proposed twice
	}
	p.topics[t.ID] = topic
	p.room.fill(t.ID, len(topic.here))
	p.queue(topic, openFirst)
}

// remove queues the end of a topic. It is called from raft0's loop, as add.
func (p *placer) remove(t *meta.Topic) {
	p.mu.Lock()
	defer p.mu.Unlock()
	topic, known := p.topics[t.ID]
	if !known {
		return
	}
	delete(p.topics, t.ID)
	topic.deleted.Store(true)
	if !p.started {
		p.room.empty(len(topic.here))
		return // it was deleted by an earlier run of the node; see resumeDeletions
	}
	if p.tracking {
		p.early = append(p.early, t)
	}
	if len(topic.here) == 0 {
		close(topic.allClosed)
		return
	}
	p.deleted[topic] = struct{}{}
	p.queue(topic, closeForGood)
}

func (p *placer) queue(topic *placed, kind jobKind) {
	for _, i := range topic.here {
		p.jobs = append(p.jobs, job{topic, i, kind})
	}
	p.filled.Broadcast()
}

// start says that topics that are deleted from now on may have open replicas. In a cluster of one all of raft0's log is
// applied then; in one of several nobody knows when that is so, and replicas are opened from the beginning.
func (p *placer) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started, p.tracking = true, true
}

// takeEarly returns the topics that were deleted since start, and are closed and removed because of that.
func (p *placer) takeEarly() []*meta.Topic {
	p.mu.Lock()
	defer p.mu.Unlock()
	early := p.early
	p.early, p.tracking = nil, false
	return early
}

func (p *placer) next() (job, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.jobs) == 0 && !p.closed {
		p.filled.Wait()
	}
	if p.closed {
		return job{}, false
	}
	j := p.jobs[0]
	p.jobs[0] = job{}
	p.jobs = p.jobs[1:]
	return j, true
}

// postpone keeps a job to open a replica for later.
func (p *placer) postpone(j job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.postponed = append(p.postponed, job{j.topic, j.partition, openAgain})
}

// resume has all that was postponed tried again.
func (p *placer) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.jobs = append(p.jobs, p.postponed...)
	p.resumed += len(p.postponed)
	p.postponed = nil
	p.filled.Broadcast()
}

// tried notes that a job that was postponed has ended, or was postponed once more.
func (p *placer) tried() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resumed--
}

// waiting says whether a replica could not be opened yet.
func (p *placer) waiting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.postponed)+p.resumed > 0
}

func (p *placer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.filled.Broadcast()
}

func (p *placer) find(topic [16]byte) (*placed, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.topics[topic]
	return t, ok
}

// closing returns what is closed once the replicas of a deleted topic are.
func (p *placer) closing(topic [16]byte) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	for t := range p.deleted {
		if t.topic.ID == topic {
			return t.allClosed
		}
	}
	return closedChannel
}

// closedChannel is closed.
var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (p *placer) all() []*placed {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.topics))
}

// replicas returns the replicas that are open.
func (p *placer) replicas() []*replica.Partition {
	var list []*replica.Partition
	for _, t := range p.all() {
		for _, i := range t.here {
			if r := t.partitions[i].replica.Load(); r != nil {
				list = append(list, r)
			}
		}
	}
	return list
}

// settled waits until all topics that are known now are open; it returns the first failure.
func (p *placer) settled(ctx context.Context) error {
	for _, t := range p.all() {
		if err := t.opened(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (t *placed) opened(ctx context.Context) error {
	select {
	case <-t.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := t.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// usable waits as opened does, and returns why one of the partitions is offline that nobody else has, if one is.
func (t *placed) usable(ctx context.Context) error {
	if err := t.opened(ctx); err != nil {
		return err
	}
	for _, i := range t.here {
		if r := t.partitions[i].replica.Load(); r != nil && len(t.topic.Partitions[i].Replicas) == 1 {
			if err := r.Status().Offline; err != nil {
				return fmt.Errorf("%w: %s/%d: %w", replica.ErrOffline, t.topic.Name, i, err)
			}
		}
	}
	return nil
}

// ended notes that a topic has no replica any more.
func (p *placer) ended(t *placed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.deleted, t)
	close(t.allClosed)
}

// closeAll closes all replicas, many at a time: each waits for what it has accepted.
func (p *placer) closeAll() error {
	p.mu.Lock()
	topics := slices.AppendSeq(slices.Collect(maps.Values(p.topics)), maps.Keys(p.deleted))
	p.mu.Unlock()
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, t := range topics {
		for _, i := range t.here {
			all.Go(func() {
				err := t.partitions[i].close()
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

// close closes the replica, if there is one.
func (s *slot) close() error {
	s.busy.Lock()
	defer s.busy.Unlock()
	if r := s.replica.Swap(nil); r != nil {
		return r.Close()
	}
	return nil
}
