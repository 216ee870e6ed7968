package replica

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
)

// Metadata is this node's replica of raft0, the group whose commands add up to the cluster's metadata.
type Metadata struct {
	core *metadataCore
	loop *loop[*Proposal]
	view atomic.Pointer[meta.View]

	applied atomic.Uint64 // the last entry that view shows
	mu      sync.Mutex
	moved   chan struct{} // closed when applied moves; nil: nobody waits

	created, deleted func(*meta.Topic)
	agenda           agenda
}

// Proposal is a command on its way.
type Proposal struct {
	command []byte
	done    chan outcome // capacity 1
}

type outcome struct {
	result meta.Result
	err    error
}

// OpenMetadata starts the replica whose log was opened as cfg.Log. created is called from the replica's loop for each
// topic when its command is applied, at a start for all that there are, before a View shows the topic and before its
// proposer hears of it. deleted is called likewise when a topic is deleted, before a View without it is shown; at a start
// for all whose deletion the log still holds. Neither may block.
func OpenMetadata(id seglog.ReplicaID, cfg Config, created, deleted func(*meta.Topic)) (*Metadata, error) {
	core, err := newMetadataCore(id, cfg)
	if err != nil {
		return nil, err
	}
	m := &Metadata{core: core, created: created, deleted: deleted}
	for _, t := range core.state.View().All() {
		created(t)
	}
	m.show()
	m.loop = newLoop(cfg, core.core, m)
	if !m.loop.stepped(cfg) {
		go m.loop.run()
	}
	return m, nil
}

// Opened waits until all that was committed before is applied; it returns why that will not be, or the context's error.
func (m *Metadata) Opened(ctx context.Context) error { return m.loop.wait(ctx) }

// View returns the metadata as last applied.
func (m *Metadata) View() *meta.View { return m.view.Load() }

// show publishes the metadata, and wakes those who wait for it.
func (m *Metadata) show() {
	m.view.Store(m.core.state.View())
	if m.core.applied == seglog.Index(m.applied.Load()) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.applied.Store(uint64(m.core.applied))
	if m.moved != nil {
		close(m.moved)
		m.moved = nil
	}
}

// Applied returns the index of the last entry that View shows, or one before it.
func (m *Metadata) Applied() seglog.Index { return seglog.Index(m.applied.Load()) }

// Await waits until View shows the entry of an index. It fails with ErrStopped when the replica ends before, and with the
// error of a ctx that ends first.
func (m *Metadata) Await(ctx context.Context, index seglog.Index) error {
	for {
		m.mu.Lock()
		if m.moved == nil {
			m.moved = make(chan struct{})
		}
		reached, moved := m.Applied() >= index, m.moved
		m.mu.Unlock()
		if reached {
			return nil
		}
		select {
		case <-moved:
		case <-m.loop.done:
			return ErrStopped
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Propose has a command applied and returns what it did. It is Begin, and then Wait.
func (m *Metadata) Propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	p, err := m.Begin(c)
	if err != nil {
		return meta.Result{}, err
	}
	return p.Wait(ctx)
}

// Begin hands a command over: it is applied before all that are handed over later. It fails with ErrStopped when the replica
// is closed; the command was never accepted then.
func (m *Metadata) Begin(c meta.Command) (*Proposal, error) {
	p := &Proposal{command: raftlog.EncodeCommand(seglog.KindCommand, meta.Encode(c)), done: make(chan outcome, 1)}
	if !m.loop.box.put(p, len(p.command)) {
		return nil, ErrStopped
	}
	return p, nil
}

// Wait returns what the command did when it was applied. An error, ErrCutOff for one, means that the outcome is not known,
// unless it is ErrNotLeader or ErrOffline: then the command was never accepted. After the error of a ctx that ended first it can be
// called again.
func (p *Proposal) Wait(ctx context.Context) (meta.Result, error) {
	select {
	case o := <-p.done:
		return o.result, o.err
	case <-ctx.Done():
		return meta.Result{}, context.Cause(ctx)
	}
}

// Housekeep has RetryBases done soon, in the replica's own goroutine; raft0 knows no other chore. It does not wait.
func (m *Metadata) Housekeep(chores Chore) {
	m.agenda.add(chores, func() bool { return m.loop.box.post(m.housekeep) })
}

func (m *Metadata) housekeep(time.Time) {
	if m.agenda.take()&RetryBases != 0 {
		m.loop.keeper.retry()
	}
}

// Close lets nothing further in, waits until all that was accepted is applied, and closes the log. The flushers must
// still run.
func (m *Metadata) Close() error {
	m.loop.close()
	return m.core.log.Close()
}

// admit implements shell.
func (m *Metadata) admit(_ time.Time, proposals []*Proposal) { m.core.proposeAll(proposals) }

// publish implements shell.
func (m *Metadata) publish() {
	for _, r := range m.core.changes {
		if r.Topic != nil {
			m.created(r.Topic)
		}
		if r.Deleted != nil {
			m.deleted(r.Deleted)
		}
	}
	clear(m.core.changes)
	m.core.changes = m.core.changes[:0]
	m.show()
	released := 0
	for i := range m.core.ended {
		e := &m.core.ended[i]
		released += len(e.proposal.command)
		e.proposal.done <- e.outcome
		*e = ended{}
	}
	m.core.ended = m.core.ended[:0]
	if released > 0 {
		m.loop.box.release(released)
	}
}

// metadataCore is the pure core of raft0.
type metadataCore struct {
	*core
	state  *meta.State
	flight []flying // own proposals that are not applied yet, in log order
	ended  []ended
	// changes are what created or deleted a topic since the last publish, in log order.
	changes []meta.Result
}

type flying struct {
	index    seglog.Index
	term     batch.Term
	proposal *Proposal
}

type ended struct {
	proposal *Proposal
	outcome  outcome
}

func newMetadataCore(id seglog.ReplicaID, cfg Config) (*metadataCore, error) {
	base := cfg.Log.Base()
	state, err := meta.Parse(base.Body)
	if err != nil {
		return nil, fmt.Errorf("read base snapshot of raft0 at index %d: %w", base.Index, err)
	}
	m := &metadataCore{state: state}
	if m.core, err = newCore(id, cfg.Log, cfg.Logger, m); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *metadataCore) proposeAll(proposals []*Proposal) {
	err := m.refusal()
	var first seglog.Index
	if err == nil {
		entries := make([]*pb.Entry, len(proposals))
		for i, p := range proposals {
			entries[i] = &pb.Entry{Data: p.command}
		}
		if first, err = m.propose(entries); err != nil {
			err = fmt.Errorf("%w: %w", ErrNotLeader, err)
		}
	}
	for i, p := range proposals {
		if err != nil {
			m.end(p, outcome{err: err})
			continue
		}
		m.flight = append(m.flight, flying{index: first + seglog.Index(i), term: m.term, proposal: p})
	}
}

func (m *metadataCore) end(p *Proposal, o outcome) {
	m.ended = append(m.ended, ended{proposal: p, outcome: o})
}

// apply implements machine.
func (m *metadataCore) apply(_ time.Time, e *pb.Entry) error {
	c, ok := raftlog.DecodeCommand(e.GetData())
	if !ok || c.Kind != seglog.KindCommand || c.Version != 1 {
		return fmt.Errorf("%w: kind %d version %d in raft0", ErrNewerLog, c.Kind, c.Version)
	}
	result, err := m.state.Apply(c.Payload)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNewerLog, err)
	}
	if result.Topic != nil || result.Deleted != nil {
		m.changes = append(m.changes, result)
	}
	if len(m.flight) > 0 && m.flight[0].index == seglog.Index(e.GetIndex()) {
		own := m.flight[0]
		invariant.Check(uint64(own.term) == e.GetTerm(), "command %d of term %d is applied, of term %d was proposed and not cut off", own.index, e.GetTerm(), own.term)
		m.end(own.proposal, outcome{result: result})
		m.flight[0] = flying{}
		m.flight = m.flight[1:]
	}
	return nil
}

// lead and follow implement machine: there is nothing that only a leader knows. A proposal that Raft has accepted stays in
// flight when its leader steps down.
func (m *metadataCore) lead() {
	invariant.Check(len(m.flight) == 0, "proposals of an earlier term are in flight when a leader begins to serve")
}

func (m *metadataCore) follow() {}

// replicated implements machine: a command waits for its commit alone.
func (m *metadataCore) replicated() {}

// cutOff implements machine.
func (m *metadataCore) cutOff(from seglog.Index) {
	at := len(m.flight)
	for at > 0 && m.flight[at-1].index >= from {
		at--
	}
	m.drop(at, ErrCutOff)
}

// drop ends the proposals from at on.
func (m *metadataCore) drop(at int, reason error) {
	for _, f := range m.flight[at:] {
		m.end(f.proposal, outcome{err: reason})
	}
	m.flight = m.flight[:at:at]
}

// parse implements machine.
func (m *metadataCore) parse(body []byte) (any, error) { return meta.Parse(body) }

// install implements machine. What the entries would have told of topics, the difference between the two states tells.
func (m *metadataCore) install(_ time.Time, _ raftlog.Base, parsed any) {
	before := m.state.View()
	m.state = parsed.(*meta.State)
	now := m.state.View()
	for _, t := range before.All() {
		if _, kept := now.ByID(t.ID); !kept {
			m.changes = append(m.changes, meta.Result{Deleted: t})
		}
	}
	for _, t := range now.All() {
		if _, known := before.ByID(t.ID); !known {
			m.changes = append(m.changes, meta.Result{Topic: t})
		}
	}
}

// cut implements machine. The metadata is small: it is encoded at once.
func (m *metadataCore) cut() state {
	body := encoded(m.state.AppendTo(nil))
	return state{body: body, size: len(body)}
}

// encoded is the body of a base snapshot that is encoded already.
type encoded []byte

// AppendTo appends the body.
func (e encoded) AppendTo(dst []byte) []byte { return append(dst, e...) }

// start implements machine: raft0 has no offsets, and all that it was told stands in its newest base snapshot.
func (m *metadataCore) start() batch.Offset { return 0 }

// fail implements machine.
func (m *metadataCore) fail(err error) { m.drop(0, fmt.Errorf("%w: %w", ErrStopped, err)) }
