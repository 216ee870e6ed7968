package sim

import (
	"errors"
	"time"

	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/seglog"
)

// errSync is what a disk says whose write has failed.
var errSync = errors.New("planted failure of a sync")

// plan begins all kinds of faults and chores that the swarm has.
func (w *world) plan() {
	s := w.swarm
	onOne := func(mean time.Duration, act func(*node)) {
		w.every(mean, func() { act(w.victim()) })
	}
	onOne(s.Crash, func(n *node) { n.crash(n.process) })
	onOne(s.Power, (*node).powerOff)
	onOne(s.Stop, (*node).stop)
	w.every(s.Blackout, func() {
		for _, n := range w.nodes {
			n.powerOff()
		}
	})
	onOne(s.Pause, (*node).pause)
	onOne(s.Cut, (*node).cutOff)
	w.every(s.Reset, func() {
		a, b := w.twoNodes()
		w.trace.add(w.now, "connections of %d and %d are reset", a, b)
		w.net.reset(a, b)
	})
	onOne(s.Full, (*node).fill)
	onOne(s.SyncFailure, func(n *node) {
		w.trace.add(w.now, "node %d: the next sync fails", n.id)
		n.disk.FailSync(errSync)
	})
	onOne(s.ClockJump, func(n *node) {
		n.clock.wall = time.Duration(w.rng.Int64N(7200)-3600) * time.Second
		w.trace.add(w.now, "node %d: clock set by %v", n.id, n.clock.wall)
	})
	w.every(300*time.Millisecond, func() { w.nodes[w.rng.IntN(len(w.nodes))].disk.WriteBack(s.Unsynced, w.rng) })
	w.every(s.Transfer, w.transfer)
	w.every(s.Leap, func() { w.leap(w.victim()) })
	w.every(s.Retain, func() { w.housekeep(replica.Retain) })
	w.every(s.Expire, func() { w.housekeep(replica.Expire) })
}

// victim draws a node: half of the time one that leads.
func (w *world) victim() *node {
	if m := w.leader(w.groups[w.rng.IntN(len(w.groups))]); m != nil && w.chance(500) {
		return m.process.node
	}
	return w.nodes[w.rng.IntN(len(w.nodes))]
}

// leap ends a machine, and soon afterwards lets a long time pass in which nothing runs: what is kept for a follower that is
// away is not kept for ever.
func (w *world) leap(n *node) {
	n.powerOff()
	w.after(w.between(0, 2*time.Second), func() {
		if w.healed {
			return
		}
		by := w.between(5*time.Minute, 12*time.Minute)
		w.trace.add(w.now, "nothing runs for %v", by)
		w.now += by
		w.leapt += by
	})
}

// away is how long a fault lasts.
func (w *world) away() time.Duration { return w.between(10*time.Millisecond, w.swarm.Away) }

// crash ends a process of the node, and has another one start after a time. What was written is there.
func (n *node) crash(p *process) {
	if p == nil || p.ended {
		return
	}
	w := n.world
	w.trace.add(w.now, "node %d crashes", n.id)
	w.counts["crashes"]++
	p.end()
	n.disk = n.disk.KillClone()
	n.gone()
}

// stop ends a process in good order: everybody who waits hears something, and the files are closed.
func (n *node) stop() {
	p := n.process
	if p == nil || p.frozen {
		return
	}
	w := n.world
	w.trace.add(w.now, "node %d is stopped", n.id)
	w.counts["stops"]++
	for worked := true; worked; {
		worked = p.flushers.Step()
		for _, m := range p.ordered() {
			worked = m.step() || worked
			m.watch()
		}
	}
	var errs []error
	for _, m := range p.ordered() {
		errs = append(errs, m.raft.Close())
	}
	p.flushers.Close()
	errs = append(errs, p.state.Close())
	if err := errors.Join(errs...); err != nil && !errors.Is(err, errSync) && !errors.Is(err, raftlog.ErrFull) {
		w.fail("node %d: close: %v", n.id, err)
	}
	if p.waiting > 0 {
		w.fail("node %d is stopped, and %d batches were not answered", n.id, p.waiting)
	}
	p.end()
	n.disk = n.disk.KillClone()
	n.gone()
}

// powerOff ends the machine: of what was not durable, parts are there.
func (n *node) powerOff() {
	if n.process == nil {
		return
	}
	w := n.world
	w.trace.add(w.now, "machine %d goes down", n.id)
	w.counts["power failures"]++
	n.process.end()
	n.disk = n.disk.CrashClone(w.swarm.Unsynced, w.rng)
	n.boot++
	n.gone()
}

func (n *node) gone() {
	w := n.world
	n.disk.FailSync(nil)
	for _, other := range w.nodes {
		if other != n {
			w.net.hearLost(other.id, n.id)
		}
	}
	w.after(w.away(), n.restart)
}

// pause stops a process as SIGSTOP does, and has it go on after a time.
func (n *node) pause() {
	p := n.process
	if p == nil || p.frozen {
		return
	}
	w := n.world
	w.trace.add(w.now, "node %d is paused", n.id)
	w.counts["pauses"]++
	p.frozen = true
	w.after(w.away(), p.thaw)
}

func (p *process) thaw() {
	w := p.node.world
	if p.ended || !p.frozen {
		return
	}
	w.trace.add(w.now, "node %d goes on, %d events late", p.node.id, len(p.thawed))
	p.frozen = false
	late := p.thawed
	p.thawed = nil
	p.heard = map[any]time.Duration{nil: w.now}
	for _, l := range late {
		if _, drawn := p.heard[l.from]; !drawn {
			p.heard[l.from] = w.now + w.between(0, 30*time.Millisecond)
		}
		p.laterFrom(l.from, p.heard[l.from]-w.now, l.run)
	}
}

// cutOff cuts directions between the node and others: one, or all of one kind, or all.
func (n *node) cutOff() {
	w := n.world
	mode := w.rng.IntN(4)
	one := w.nodes[w.rng.IntN(len(w.nodes))]
	var cut []*link
	for _, other := range w.nodes {
		if other == n || mode == 0 && other != one {
			continue
		}
		if mode != 1 {
			cut = append(cut, w.net.link(n.id, other.id))
		}
		if mode != 2 {
			cut = append(cut, w.net.link(other.id, n.id))
		}
	}
	w.trace.add(w.now, "node %d is cut off, mode %d, from %d", n.id, mode, one.id)
	for _, l := range cut {
		l.cut = true
	}
	w.after(w.away(), func() {
		w.trace.add(w.now, "node %d is not cut off any more", n.id)
		for _, l := range cut {
			l.cut = false
		}
	})
}

// fill leaves the disk little room, for a time. The process notices a little before or after.
func (n *node) fill() {
	w := n.world
	free, total, err := n.disk.Space(dataDir)
	if err != nil {
		return
	}
	used := total - free
	room := w.rng.Int64N(64 << 10)
	w.trace.add(w.now, "disk of %d has room for %d bytes", n.id, room)
	n.disk.SetCapacity(used + room)
	n.full = n.full || w.chance(500)
	w.after(w.away(), n.empty)
}

// empty gives the disk its room back.
func (n *node) empty() {
	n.world.trace.add(n.world.now, "disk of %d has room", n.id)
	n.disk.SetCapacity(0)
	n.full = false
}

func (w *world) twoNodes() (a, b uint32) {
	i := w.rng.IntN(len(w.nodes))
	j := (i + 1 + w.rng.IntN(len(w.nodes)-1)) % len(w.nodes)
	return w.nodes[i].id, w.nodes[j].id
}

// transfer has a partition's leader hand over to another replica.
func (w *world) transfer() {
	spec := w.groups[w.rng.IntN(len(w.groups))]
	to := spec.nodes[w.rng.IntN(len(spec.nodes))]
	if m := w.leader(spec); m != nil && !m.process.frozen {
		w.trace.add(w.now, "g%d: leader %d hands over to %d", spec.group, m.process.node.id, to)
		m.raft.Transfer(replicaOn(to))
		m.process.wake()
	}
}

func (w *world) housekeep(chores replica.Chore) {
	for _, n := range w.nodes {
		if p := n.process; p != nil && !p.frozen {
			for _, m := range p.ordered() {
				m.raft.Housekeep(chores)
			}
			p.wake()
		}
	}
}

// leader returns the member that serves the group in the newest term, nil when there is none.
func (w *world) leader(spec *partition) *member {
	var newest *member
	for _, id := range spec.nodes {
		p := w.node(id).process
		if p == nil {
			continue
		}
		m := p.replicas[spec.group]
		if l := m.raft.Leadership(); l.Ready && (newest == nil || l.Term > newest.raft.Leadership().Term) {
			newest = m
		}
	}
	return newest
}

// heal ends all faults.
func (w *world) heal() {
	w.healed = true
	w.trace.add(w.now, "healed")
	for _, l := range w.net.links {
		l.cut = false
	}
	for _, n := range w.nodes {
		n.disk.FailSync(nil)
		n.empty()
		if n.process != nil {
			n.process.thaw()
		}
		n.restart()
	}
}

func (p *partition) voters() []uint64 {
	var ids []uint64
	for _, n := range p.nodes {
		ids = append(ids, uint64(replicaOn(n)))
	}
	return ids
}

// dir is where a group's files lie.
func (p *partition) dir() string { return groupDir(p.group) }

func groupDir(g seglog.GroupID) string { return dataDir + "/groups/" + string(rune('0'+g)) }
