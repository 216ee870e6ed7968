package sim

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

const (
	dataDir  = "data"
	tickTime = 100 * time.Millisecond
	// jobsMax is how many background jobs may wait at a process; what does not fit is dropped, as a node does.
	jobsMax = 64
)

var clusterID = [16]byte{1}

// node is a machine: a disk, a clock, and a process now and then.
type node struct {
	world *world
	id    uint32
	disk  *memfs.FS
	boot  byte
	clock clock
	// process runs; nil: it is down.
	process *process
	full    bool // the disk is full, as far as its process has noticed
}

// process is one run of a node's program.
type process struct {
	node     *node
	state    *raftlog.StateFile
	flushers *raftlog.Flushers
	replicas map[seglog.GroupID]*member
	ended    bool
	frozen   bool                  // it is paused:
	thawed   []late                // and this happens when it goes on,
	heard    map[any]time.Duration // of each connection from this moment on
	// flushing and draining: an event of that kind is on its way.
	flushing, draining bool
	jobs               []func()
	conns              []*conn
	waiting            int // how many batches were handed over and not answered
}

// raftMember is what all kinds of replica are.
type raftMember interface {
	replica.Member
	Housekeep(replica.Chore)
	Close() error
}

// member is a replica of one group in a process.
type member struct {
	process   *process
	spec      *partition
	log       *raftlog.Log
	raft      raftMember
	partition *replica.Partition // nil of raft0
	metadata  *replica.Metadata  // nil of a partition
	step      func() bool
	due       bool // an event that steps it is on its way
	watched   watched
}

// late is something that was due while a process was paused.
type late struct {
	from any
	run  func()
}

// later has something happen in a process when d has passed, if it still runs then; when it is paused, afterwards.
func (p *process) later(d time.Duration, run func()) { p.laterFrom(nil, d, run) }

// laterFrom is later for what comes from a connection, whatever stands for that. When the process goes on after a pause, what
// comes from one is in order, and who is heard first is not said.
func (p *process) laterFrom(from any, d time.Duration, run func()) {
	p.node.world.after(d, func() {
		switch {
		case p.ended:
		case p.frozen:
			p.thawed = append(p.thawed, late{from, run})
		case p.heard[from] > p.node.world.now:
			p.laterFrom(from, p.heard[from]-p.node.world.now, run)
		default:
			run()
		}
	})
}

// ordered returns the replicas in the order of their groups.
func (p *process) ordered() []*member {
	all := make([]*member, 0, len(p.replicas))
	for _, spec := range p.node.world.groups {
		if m := p.replicas[spec.group]; m != nil {
			all = append(all, m)
		}
	}
	return all
}

// start runs the program on what the disk holds. When that is full, or fails as planted, it is tried again.
func (n *node) start() {
	w := n.world
	p := &process{node: n, replicas: map[seglog.GroupID]*member{}}
	err := p.open()
	w.trace.add(w.now, "node %d starts: %v", n.id, err)
	switch {
	case err == nil:
		n.process = p
		p.tick()
		p.marks()
		p.retries()
		p.wake()
	case errors.Is(err, raftlog.ErrFull), errors.Is(err, errSync):
		n.disk = n.disk.KillClone() // the process ends
		w.after(w.between(100*time.Millisecond, time.Second), n.restart)
	default:
		w.fail("node %d does not start: %v", n.id, err)
	}
}

// restart starts the program unless it runs.
func (n *node) restart() {
	if n.process == nil {
		n.start()
	}
}

// open opens all files and starts all replicas.
func (p *process) open() error {
	n := p.node
	if err := errors.Join(n.disk.MkdirAll(dataDir+"/groups"), n.disk.SyncDir(dataDir), n.disk.SyncDir(".")); err != nil {
		return err
	}
	state, report, err := raftlog.OpenState(n.disk, dataDir, [16]byte{n.boot})
	if errors.Is(err, raftlog.ErrNoState) {
		report.SameBoot = true
		state, err = raftlog.CreateState(n.disk, dataDir, raftlog.NodeIdentity{Cluster: clusterID, Node: n.id}, [16]byte{n.boot})
	}
	if err != nil {
		return err
	}
	p.state = state
	for _, spec := range n.world.groups {
		if !spec.on(n.id) {
			continue
		}
		log, err := p.openLog(spec, report.SameBoot)
		if err != nil {
			return fmt.Errorf("open group %d: %w", spec.group, err)
		}
		p.replicas[spec.group] = &member{process: p, spec: spec, log: log}
	}
	if err := state.FinishRecovery(); err != nil {
		return err
	}
	p.flushers = raftlog.NewFlushers(0, state, raftlog.Events{Fatal: p.fatal, Full: p.met})
	for _, m := range p.ordered() {
		if err := m.open(); err != nil {
			return fmt.Errorf("start group %d: %w", m.spec.group, err)
		}
	}
	return nil
}

// openLog opens a group's files, after its birth if need be.
func (p *process) openLog(spec *partition, sameBoot bool) (*raftlog.Log, error) {
	n := p.node
	cfg := raftlog.Config{
		FS: n.disk, Dir: spec.dir(), State: p.state, SameBoot: sameBoot,
		Identity:     spec.identity(n.id),
		SegmentBytes: n.world.swarm.SegmentBytes, SegmentEntries: n.world.swarm.SegmentEntries,
	}
	if _, born := p.state.Group(spec.group); !born {
		base := raftlog.Base{
			Cluster: clusterID, Group: spec.group, Index: 1, Term: 1, Members: raftlog.Members{Voters: spec.voters()},
			Body: spec.ledger.newborn(),
		}
		if err := raftlog.CreateGroup(cfg, base); err != nil {
			return nil, err
		}
	}
	log, _, err := raftlog.OpenGroup(cfg)
	return log, err
}

func (m *member) open() error {
	n := m.process.node
	m.watched = watched{bases: map[seglog.Index]bool{}}
	cfg := replica.Config{
		Log: m.log, Flushers: m.process.flushers, Clock: &n.clock, Logger: n.world.logger.With("node", n.id, "group", m.spec.group),
		Settings: &n.world.swarm.Settings, Host: &host{m}, Peers: &peers{m.process}, MinInSync: n.world.swarm.MinInSync,
		Stepped: func(step func() bool) { m.step = step },
	}
	return m.openWith(cfg)
}

func (m *member) openWith(cfg replica.Config) (err error) {
	id := replicaOn(m.process.node.id)
	if m.spec.group == 0 {
		ignore := func(*meta.Topic) {}
		m.metadata, err = replica.OpenMetadata(id, cfg, ignore, ignore)
		m.raft = m.metadata
		return err
	}
	m.partition, err = replica.OpenPartition(id, cfg)
	m.raft = m.partition
	return err
}

// identity is that of the group's replica on a node.
func (p *partition) identity(node uint32) seglog.Identity {
	id := seglog.Identity{Cluster: clusterID, Group: p.group, Replica: replicaOn(node), Partition: -1}
	if p.group > 0 {
		id.Topic, id.Partition = [16]byte{2}, int32(p.group)
	}
	return id
}

func replicaOn(node uint32) seglog.ReplicaID { return seglog.ReplicaID(node)<<32 | 1 }

// tick ticks all replicas now and then. A process that was paused ticks once for all that it has missed.
func (p *process) tick() {
	p.later(tickTime+p.node.world.between(0, 2*time.Millisecond), func() {
		for _, m := range p.ordered() {
			m.raft.Tick()
		}
		p.wake()
		p.tick()
	})
}

// marks writes the durable marks now and then.
func (p *process) marks() {
	p.later(p.node.world.between(200*time.Millisecond, 1500*time.Millisecond), func() {
		p.flushers.WriteMarks()
		p.marks()
	})
}

// retries has parked groups write again, as a node does that looks for room.
func (p *process) retries() {
	p.later(500*time.Millisecond, func() {
		if p.flushers.Parked() > 0 {
			p.flushers.Retry()
			p.wake()
		}
		for _, m := range p.ordered() {
			m.raft.Housekeep(replica.RetryBases)
		}
		p.retries()
	})
}

// wake has all of the process that may have something to do look for it soon.
func (p *process) wake() {
	for _, m := range p.ordered() {
		m.wake()
	}
	p.flush()
	p.drain()
}

// wake has the replica make a turn soon, and go on while there is something to do.
func (m *member) wake() {
	p, w := m.process, m.process.node.world
	if m.due {
		return
	}
	m.due = true
	p.later(w.pace(w.swarm.Turn), func() {
		m.due = false
		worked := m.step()
		m.watch()
		if worked {
			m.wake()
			p.flush()
			p.drain()
		}
	})
}

// flush has one group's work carried out.
func (p *process) flush() {
	if p.flushing {
		return
	}
	p.flushing = true
	w := p.node.world
	p.later(w.pace(w.swarm.Flush), func() {
		p.flushing = false
		if p.flushers.Step() && !p.ended {
			p.wake()
		}
	})
}

// drain runs a background job.
func (p *process) drain() {
	if p.draining || len(p.jobs) == 0 {
		return
	}
	p.draining = true
	w := p.node.world
	p.later(w.pace(w.swarm.Job), func() {
		p.draining = false
		at := w.rng.IntN(len(p.jobs))
		job := p.jobs[at]
		p.jobs = slices.Delete(p.jobs, at, at+1)
		for _, m := range p.ordered() {
			m.watch() // a job may remove what was not looked at yet
		}
		job()
		for _, m := range p.ordered() {
			m.watchBases()
		}
		p.wake()
	})
}

// fatal implements raftlog.Events: the process ends, as it must, and its machine stays up.
func (p *process) fatal(err error) {
	w := p.node.world
	w.trace.add(w.now, "node %d: fatal: %v", p.node.id, err)
	w.counts["failed syncs"]++
	if !errors.Is(err, errSync) {
		w.fail("node %d: %v", p.node.id, err)
	}
	w.after(0, func() { p.node.crash(p) })
}

// met implements raftlog.Events: the disk is full.
func (p *process) met(err error) {
	p.node.world.trace.add(p.node.world.now, "node %d: full: %v", p.node.id, err)
	p.node.full = true
}

// end ends the process. Those who wait for it never hear of it.
func (p *process) end() {
	p.ended = true
	p.node.process = nil
	p.node.world.calls.cancel(p)
	for _, c := range p.conns {
		p.node.world.after(p.node.world.between(0, p.node.world.swarm.Latency), c.broken)
	}
}

// host implements replica.Host.
type host struct{ member *member }

// DiskFull implements replica.Host.
func (h *host) DiskFull() bool { return h.member.process.node.full }

// Background implements replica.Host.
func (h *host) Background(job func()) {
	p := h.member.process
	if len(p.jobs) < jobsMax {
		p.jobs = append(p.jobs, job)
	}
}

// ReserveProducer implements replica.Host.
func (h *host) ReserveProducer() bool { return true }

// CountProducers implements replica.Host.
func (h *host) CountProducers(int) {}

// Damaged implements replica.Host.
func (h *host) Damaged(err error) {
	m := h.member
	m.process.node.world.fail("node %d group %d: damaged: %v", m.process.node.id, m.spec.group, err)
}

// Led implements replica.Host.
func (h *host) Led(l replica.Leadership) { h.member.led(l) }

func newLogger(w *world) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{
		Level: slog.LevelInfo,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}
