package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/seglog"
)

// metadata is raft0 and those who change it: nodes that want start numbers, and topics that come and go.
type metadata struct {
	world *world
	*partition
	ids     uint64
	numbers map[uint32]meta.ID // start numbers that were answered, with the nonce that got them
	topics  []*topic
}

// topic is what its proposer knows.
type topic struct {
	create   *meta.CreateTopic
	created  bool // the answer said so
	possible bool // a proposal may have been accepted
	deleting bool // its deletion was proposed
	deleted  bool // and answered
}

// catalogue is the second state of raft0.
type catalogue struct{ *meta.State }

// command implements machine.
func (c *catalogue) command(e seglog.Entry) error {
	if e.Kind != seglog.KindCommand {
		return fmt.Errorf("kind %d in raft0", e.Kind)
	}
	_, err := c.Apply(e.Data)
	return err
}

func newMetadata(w *world) *metadata {
	spec := &partition{history: history.New(), ledger: newLedger(&catalogue{meta.New()})}
	for _, n := range w.nodes {
		spec.nodes = append(spec.nodes, n.id)
	}
	m := &metadata{world: w, partition: spec, numbers: map[uint32]meta.ID{}}
	w.every(50*time.Millisecond, m.act)
	return m
}

// mint returns an id that was not used before.
func (m *metadata) mint() (id meta.ID) {
	m.ids++
	binary.BigEndian.PutUint64(id[8:], m.ids)
	return id
}

// act proposes something to a node that leads, or to another one.
func (m *metadata) act() {
	w := m.world
	p := w.node(m.nodes[w.rng.IntN(len(m.nodes))]).process
	if l := w.leader(m.partition); l != nil && !w.chance(200) {
		p = l.process
	}
	if w.closing || p == nil || p.frozen {
		return
	}
	to := p.replicas[0]
	switch _, born := to.metadata.View().Cluster(); {
	case !born:
		m.propose(to, &meta.Cluster{ID: clusterID, FirstStartNumber: 7}, func(meta.Result, error) {})
	case len(to.metadata.View().Brokers()) < len(m.nodes) || w.chance(300):
		m.start(to)
	case len(m.topics) > 0 && w.chance(300):
		m.change(to, m.topics[w.rng.IntN(len(m.topics))])
	default:
		made := &topic{create: &meta.CreateTopic{
			Name: fmt.Sprintf("topic-%d", len(m.topics)), ID: m.mint(), Rules: 1, Partitions: [][]int32{{int32(m.nodes[0])}},
		}}
		m.topics = append(m.topics, made)
		m.create(to, made)
	}
}

// propose hands a command to a replica. ended hears the outcome, ErrNotLeader when it was surely never accepted.
func (m *metadata) propose(to *member, c meta.Command, ended func(meta.Result, error)) {
	w := m.world
	var result meta.Result
	var err error
	w.calls.begin(to.process, 2*time.Second, func(ctx context.Context) {
		result, err = to.metadata.Propose(ctx, c)
	}, func() {
		w.trace.add(w.now, "raft0: %T at %d: %v, %v", c, to.process.node.id, result.Refused, err)
		ended(result, err)
	})
}

// start asks for a start number for a node, as one that was just started does.
func (m *metadata) start(to *member) {
	nonce := m.mint()
	c := &meta.Start{Node: int32(m.nodes[m.world.rng.IntN(len(m.nodes))]), Nonce: nonce, Host: "localhost", Port: 9092}
	m.propose(to, c, func(r meta.Result, err error) {
		if err != nil {
			return
		}
		if owner, given := m.numbers[r.StartNumber]; r.Refused != nil || given && owner != nonce {
			m.world.fail("start number %d is given to %x and to %x, %v", r.StartNumber, owner, nonce, r.Refused)
		}
		m.numbers[r.StartNumber] = nonce
		m.world.counts["start numbers"]++
	})
}

// change proposes to create a topic that is not known to be there, or else to delete it.
func (m *metadata) change(to *member, t *topic) {
	if !t.created {
		m.create(to, t)
		return
	}
	t.deleting = true
	m.propose(to, &meta.DeleteTopic{Name: t.create.Name, ID: t.create.ID}, func(r meta.Result, err error) {
		t.deleted = t.deleted || err == nil
	})
}

func (m *metadata) create(to *member, t *topic) {
	m.propose(to, t.create, func(r meta.Result, err error) {
		t.possible = t.possible || !errors.Is(err, replica.ErrNotLeader) && !errors.Is(err, replica.ErrOffline)
		if err != nil {
			return
		}
		if r.Refused != nil && !t.deleting {
			m.world.fail("topic %s is refused: %v", t.create.Name, r.Refused)
			return
		}
		t.created = t.created || r.Refused == nil
		m.world.counts["topics"]++
		m.shown(to.metadata.View(), t, "the node that answered for it")
	})
}

// shown checks that a view has what it must have of a topic.
func (m *metadata) shown(v *meta.View, t *topic, whose string) {
	_, there := v.ByID(t.create.ID)
	switch {
	case there && (!t.possible || t.deleted):
		m.world.fail("%s has topic %s, which was never accepted, or is deleted", whose, t.create.Name)
	case !there && t.created && !t.deleting:
		m.world.fail("%s does not have topic %s", whose, t.create.Name)
	}
}

// watchMetadata looks at a replica of raft0 after a turn.
func (m *member) watchMetadata() {
	if segments := m.log.Segments(); segments.FirstIndex() > m.watched.last+1 && m.watched.last > 0 {
		m.process.node.world.counts["installs"]++
	}
	m.watched.last = m.log.Segments().LastIndex()
	if applied := m.metadata.Applied(); applied > m.watched.seen {
		m.compare(applied)
	}
}

// judge looks at raft0 at the end: all replicas have applied all, and show what was answered.
func (m *metadata) judge() {
	w := m.world
	leader := w.leader(m.partition)
	if leader == nil {
		w.fail("raft0 has no leader")
		return
	}
	for _, id := range m.nodes {
		other := w.node(id).process.replicas[0]
		if other.metadata.Applied() != leader.metadata.Applied() {
			w.fail("raft0: node %d has applied %d, the leader %d", id, other.metadata.Applied(), leader.metadata.Applied())
		}
		for _, t := range m.topics {
			m.shown(other.metadata.View(), t, fmt.Sprintf("node %d", id))
		}
	}
}
