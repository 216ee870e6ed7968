package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
)

const fakeNodeID = 7

// fakeNode is a node whose topics come into being at once.
type fakeNode struct {
	mu         sync.Mutex
	state      *meta.State
	partitions map[partitionKey]*fakePartition
	nextID     batch.ProducerID
	idErr      error
	refresh    func() error // when set, Refresh is this, without the lock
	refreshes  int
	createErr  error
	creating   chan struct{} // when set, CreateTopic waits for it, or for its context
	created    []NewTopic
	leaders    map[partitionKey]Leadership // of partitions that are led elsewhere, or not at all
	elect      func(topic string, index int32) error
	elected    []string
	deleteErr  error
	deleting   map[string]chan struct{} // DeleteTopic of a name that is in it waits for the channel, or for its context
}

func newFakeNode() *fakeNode {
	n := &fakeNode{state: meta.New(), partitions: make(map[partitionKey]*fakePartition), nextID: 1 << 32}
	n.apply(&meta.Cluster{ID: meta.ID{1}, FirstStartNumber: 1})
	n.apply(&meta.Start{Node: fakeNodeID, Nonce: meta.ID{1}, Host: "broker.example", Port: 9092})
	return n
}

func (n *fakeNode) apply(c meta.Command) {
	if result, err := n.state.Apply(meta.Encode(c)); err != nil || result.Refused != nil {
		panic(errors.Join(err, result.Refused))
	}
}

// add makes a topic whose partitions append at once.
func (n *fakeNode) add(name string, partitions int) *meta.Topic {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.place(name, slices.Repeat([][]int32{{fakeNodeID}}, partitions))
}

// place makes a topic; the caller holds the lock. The partitions with a replica here are led here.
func (n *fakeNode) place(name string, assignment [][]int32) *meta.Topic {
	id := topicID(name)
	n.apply(&meta.CreateTopic{Name: name, ID: id, Partitions: assignment})
	for i, replicas := range assignment {
		if slices.Contains(replicas, fakeNodeID) {
			n.partitions[partitionKey{id, int32(i)}] = newFakePartition()
		}
	}
	topic, _ := n.state.View().ByName(name)
	return topic
}

func topicID(name string) (id [16]byte) {
	copy(id[:], name)
	id[15] = 'T'
	return id
}

func (n *fakeNode) at(name string, index int32) *fakePartition {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.partitions[partitionKey{topicID(name), index}]
}

func (n *fakeNode) NodeID() int32     { return fakeNodeID }
func (n *fakeNode) ClusterID() string { return "bm9uc2Vuc2Utbm9uc2Vuc2U" }
func (n *fakeNode) Brokers() []meta.Broker {
	return n.Topics().Brokers()
}

// join adds a node to the cluster.
func (n *fakeNode) join(id int32, rack string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.apply(&meta.Start{Node: id, Nonce: meta.ID{byte(id)}, Host: fmt.Sprintf("broker%d.example", id), Port: 9000 + id, Rack: rack})
}

// lead says who leads a partition; -1: nobody.
func (n *fakeNode) lead(name string, index, leader, epoch int32, inSync ...int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leaders == nil {
		n.leaders = make(map[partitionKey]Leadership)
	}
	n.leaders[partitionKey{topicID(name), index}] = Leadership{Leader: leader, Epoch: epoch, InSync: inSync, Ready: leader >= 0}
}

func (n *fakeNode) Leadership(topic *meta.Topic, index int32) Leadership {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := partitionKey{topic.ID, index}
	if known, ok := n.leaders[key]; ok {
		return known
	}
	known := Leadership{Leader: -1, Epoch: 1, InSync: topic.Partitions[index].Replicas}
	if p, ok := n.partitions[key]; ok {
		status := p.Status()
		known.Epoch = max(known.Epoch, int32(status.Term))
		if status.Ready {
			known.Leader, known.Ready = fakeNodeID, true
		}
	}
	return known
}

func (n *fakeNode) ElectLeader(ctx context.Context, topic *meta.Topic, index int32) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.elected = append(n.elected, fmt.Sprintf("%s/%d", topic.Name, index))
	if n.elect == nil {
		return nil
	}
	return n.elect(topic.Name, index)
}

func (n *fakeNode) Refresh(context.Context) error {
	n.mu.Lock()
	n.refreshes++
	refresh := n.refresh
	n.mu.Unlock()
	if refresh == nil {
		return nil
	}
	return refresh()
}

func (n *fakeNode) Topics() *meta.View {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state.View()
}

func (n *fakeNode) Partition(topic [16]byte, index int32) (Partition, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p, ok := n.partitions[partitionKey{topic, index}]; ok {
		return p, true
	}
	return nil, false
}

func (n *fakeNode) NextProducerID() (batch.ProducerID, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nextID++
	return n.nextID - 1, n.idErr
}

func (n *fakeNode) CreateTopic(ctx context.Context, wanted NewTopic, validateOnly bool) (*meta.Topic, error) {
	n.mu.Lock()
	err, creating := n.createErr, n.creating
	invalid := n.state.View().CheckNewTopic(wanted.Name)
	brokers := n.state.View().Brokers()
	n.mu.Unlock()
	if creating != nil {
		select {
		case <-creating:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	switch {
	case err != nil:
		return nil, err
	case invalid != nil:
		return nil, invalid
	case wanted.Partitions < 1 || wanted.Partitions > 1000:
		return nil, meta.ErrInvalidPartitions
	case wanted.Replication != -1 && (wanted.Replication < 1 || int(wanted.Replication) > len(brokers)):
		return nil, meta.ErrInvalidReplication
	}
	assignment := wanted.Assignment
	if assignment != nil {
		if err := meta.CheckAssignment(assignment, brokers); err != nil {
			return nil, err
		}
	} else {
		var replicas []int32
		replication := int(wanted.Replication)
		if replication == -1 {
			replication = min(len(brokers), 3)
		}
		for _, b := range brokers[:replication] {
			replicas = append(replicas, b.ID)
		}
		assignment = slices.Repeat([][]int32{replicas}, int(wanted.Partitions))
	}
	if validateOnly {
		topic := &meta.Topic{Name: wanted.Name}
		for _, replicas := range assignment {
			topic.Partitions = append(topic.Partitions, meta.Partition{Replicas: replicas})
		}
		return topic, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.created = append(n.created, wanted)
	return n.place(wanted.Name, assignment), nil
}

func (n *fakeNode) DeleteTopic(ctx context.Context, topic *meta.Topic) error {
	n.mu.Lock()
	err, deleting := n.deleteErr, n.deleting[topic.Name]
	n.mu.Unlock()
	if deleting != nil {
		select {
		case <-deleting:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	result, err := n.state.Apply(meta.Encode(&meta.DeleteTopic{Name: topic.Name, ID: topic.ID}))
	for i := range topic.Partitions {
		delete(n.partitions, partitionKey{topic.ID, int32(i)})
	}
	return errors.Join(err, result.Refused)
}

// fakePartition is a partition in memory. It answers at once, from a goroutine of its own, unless it is held.
type fakePartition struct {
	mu       sync.Mutex
	status   replica.Status
	log      []byte
	batches  []placed
	watchers map[chan<- struct{}]struct{}
	readErr  error
	stopped  bool
	verdict  func(batch.Header) replica.Ack // of the next batches, when set
	held     bool
	holding  []*replica.Submission
	arrived  chan *replica.Submission // when set, receives what arrives
	full     chan struct{}            // when set, Submit waits for it
	trimErr  error
	trimming chan struct{}               // when set, DeleteRecords waits for it, or for its context
	confirm  func(context.Context) error // when set, Confirm is this
}

type placed struct {
	header batch.Header
	at     int
}

func newFakePartition() *fakePartition {
	return &fakePartition{
		status:   replica.Status{Ready: true, Term: 3},
		watchers: make(map[chan<- struct{}]struct{}),
	}
}

func (p *fakePartition) Submit(s *replica.Submission) error {
	p.mu.Lock()
	full := p.full
	p.mu.Unlock()
	if full != nil {
		<-full
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return replica.ErrStopped
	}
	if p.arrived != nil {
		p.arrived <- s
	}
	p.holding = append(p.holding, s)
	if !p.held {
		go p.finish(1)
	}
	return nil
}

func (p *fakePartition) Confirm(ctx context.Context) error {
	p.mu.Lock()
	confirm := p.confirm
	p.mu.Unlock()
	if confirm == nil {
		return nil
	}
	return confirm(ctx)
}

func (p *fakePartition) DeleteRecords(ctx context.Context, before batch.Offset) (batch.Offset, error) {
	p.mu.Lock()
	err, trimming := p.trimErr, p.trimming
	p.mu.Unlock()
	if trimming != nil {
		select {
		case <-trimming:
		case <-ctx.Done():
			return -1, ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if before == -1 {
		before = p.status.HighWatermark
	}
	switch {
	case err != nil:
		return -1, err
	case before < 0 || before > p.status.HighWatermark:
		return -1, replica.ErrOutOfRange
	}
	p.status.LogStart = max(p.status.LogStart, before)
	p.announce()
	return p.status.LogStart, nil
}

// hold keeps submissions until finish.
func (p *fakePartition) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = true
}

// finish answers the first n submissions that wait, in order.
func (p *fakePartition) finish(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.holding[:n] {
		ack := replica.Ack{Base: p.status.NextOffset, LogStart: p.status.LogStart}
		if p.verdict != nil {
			ack = p.verdict(s.Header)
		}
		if ack.Err == nil && ack.Decision.Verdict != dedupe.Duplicate {
			p.place(s.Batch)
		}
		// What the frame holds from here on is not this batch any more.
		for i := range s.Batch {
			s.Batch[i] = 0xdd
		}
		s.Done.Taken()
		s.Done.Done(ack)
	}
	p.holding = slices.Delete(p.holding, 0, n)
}

// place appends a batch; the caller holds the lock.
func (p *fakePartition) place(b []byte) {
	b = slices.Clone(b)
	batch.SetPlace(b, p.status.NextOffset, p.status.Term)
	h, err := batch.CheckStored(b)
	if err != nil {
		panic(err)
	}
	p.batches = append(p.batches, placed{h, len(p.log)})
	p.log = append(p.log, b...)
	p.status.NextOffset = h.NextOffset()
	p.status.HighWatermark = h.NextOffset()
	p.announce()
}

func (p *fakePartition) announce() {
	for w := range p.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// set changes the status.
func (p *fakePartition) set(change func(*replica.Status)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.status)
	p.announce()
}

// append places a batch as if some client had produced it.
func (p *fakePartition) append(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.place(b)
}

func (p *fakePartition) Status() replica.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

func (p *fakePartition) Watch(wake chan<- struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watchers[wake] = struct{}{}
}

func (p *fakePartition) Unwatch(wake chan<- struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.watchers, wake)
}

func (p *fakePartition) watched() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.watchers)
}

func (p *fakePartition) Available(from batch.Offset, maxBytes int) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, err := p.find(from, maxBytes, true)
	return len(b), err
}

func (p *fakePartition) Read(dst []byte, from batch.Offset, maxBytes int, minOne bool) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, err := p.find(from, maxBytes, minOne)
	return append(dst, b...), err
}

var errDisk = errors.New("disk on fire")

func (p *fakePartition) find(from batch.Offset, maxBytes int, minOne bool) ([]byte, error) {
	if p.readErr != nil {
		return nil, p.readErr
	}
	start, end := -1, -1
	for _, b := range p.batches {
		if b.header.NextOffset() <= from || b.header.NextOffset() > p.status.HighWatermark {
			continue
		}
		if start < 0 {
			start, end = b.at, b.at
		}
		if next := b.at + b.header.Size; next-start <= maxBytes || minOne && end == start {
			end = next
			continue
		}
		break
	}
	if start < 0 {
		return nil, nil
	}
	return p.log[start:end], nil
}

// records makes a batch of n records for a producer; what is inside the records means nothing here.
func records(id batch.ProducerID, epoch batch.Epoch, sequence batch.Sequence, n int32, payload string) []byte {
	b := make([]byte, batch.HeaderSize, batch.HeaderSize+len(payload))
	b = append(b, payload...)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[12:], 0xffffffff)
	b[16] = 2
	binary.BigEndian.PutUint32(b[23:], uint32(n-1))
	binary.BigEndian.PutUint64(b[43:], uint64(id))
	binary.BigEndian.PutUint16(b[51:], uint16(epoch))
	binary.BigEndian.PutUint32(b[53:], uint32(sequence))
	binary.BigEndian.PutUint32(b[57:], uint32(n))
	return seal(b)
}

// plain makes a batch without a producer.
func plain(n int32, payload string) []byte {
	return records(-1, -1, -1, n, payload)
}

// seal writes the checksum.
func seal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}
