package sim

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

const (
	// livenessMax is how long it may take, once all is healed, until all that was begun has ended and each partition has
	// taken a new batch. A full table of producers that an earlier leader has stored may be made room in only after a minute.
	livenessMax = 100 * time.Second
	// quietTime is how long nothing is begun before the end is judged.
	quietTime = 5 * time.Second
	// faultsMax is how many findings are kept.
	faultsMax = 10
)

// Options say how a seed is run.
type Options struct {
	// Trace receives each event as a line of text; nil: nobody wants it.
	Trace io.Writer
	// Change, if not nil, changes what the seed has drawn.
	Change func(*Swarm)
}

// Result is what became of a seed.
type Result struct {
	Seed  uint64
	Swarm *Swarm
	// Faults are the findings, the first ones; none: the seed is good.
	Faults []string
	// Tail is the end of what happened, as text.
	Tail []string
	// Hash is over all that happened: two runs of a seed have the same.
	Hash uint64
	// Steps counts events, Virtual is the time that they took.
	Steps   int
	Virtual time.Duration
	// Counts say how often what was seen: a swarm in which nothing happens proves nothing.
	Counts map[string]int
}

// world is one run.
type world struct {
	seed   uint64
	rng    *rand.Rand
	swarm  *Swarm
	trace  *trace
	logger *slog.Logger

	now     time.Duration
	seq     uint64
	events  queue
	leapt   time.Duration // what has passed in leaps
	healed  bool
	closing bool // clients begin nothing any more

	nodes      []*node
	net        *network
	partitions []*partition
	raft0      *metadata
	groups     []*partition // raft0's, and the partitions
	clients    []*producer
	calls      *calls
	faults     []string
	counts     map[string]int
}

// partition is one group.
type partition struct {
	group   seglog.GroupID
	nodes   []uint32 // that have a replica, ascending
	history *history.History
	ledger  *ledger
}

func (p *partition) on(node uint32) bool { return slices.Contains(p.nodes, node) }

// Run runs a seed. It belongs into a bubble of testing/synctest, in a test with a deterministic crypto/rand.
func Run(seed uint64, o Options) *Result {
	w := newWorld(seed, o)
	w.guard(w.live)
	r := &Result{
		Seed: seed, Swarm: w.swarm, Faults: w.faults, Tail: w.trace.tail(), Hash: w.trace.sum.Sum64(),
		Steps: w.trace.steps, Virtual: w.now, Counts: w.counts,
	}
	for _, p := range w.partitions {
		w.counts["terms"] += len(p.ledger.leaders)
		w.counts["records"] += int(p.ledger.high)
	}
	for _, n := range w.nodes {
		if n.process != nil {
			n.process.end()
		}
	}
	w.calls.settle()
	return r
}

func newWorld(seed uint64, o Options) *world {
	w := &world{seed: seed, rng: rand.New(rand.NewPCG(seed, 6)), trace: newTrace(o.Trace), counts: map[string]int{}}
	w.logger = newLogger(w)
	w.calls = &calls{world: w}
	w.swarm = draw(w.rng)
	if o.Change != nil {
		o.Change(w.swarm)
	}
	for id := range uint32(w.swarm.Nodes) {
		w.nodes = append(w.nodes, &node{world: w, id: id + 1, disk: memfs.New(), boot: 1, clock: clock{world: w}})
	}
	w.net = newNetwork(w)
	w.raft0 = newMetadata(w)
	w.groups = []*partition{w.raft0.partition}
	for g := range w.swarm.Partitions {
		p := &partition{group: seglog.GroupID(g + 1), history: history.New(), ledger: newLedger(&table{dedupe.New(dedupe.RulesVersion, 0)})}
		for _, at := range w.rng.Perm(len(w.nodes))[:w.swarm.Replicas] {
			p.nodes = append(p.nodes, uint32(at+1))
		}
		slices.Sort(p.nodes)
		w.partitions, w.groups = append(w.partitions, p), append(w.groups, p)
		w.enlist(p)
	}
	return w
}

func (w *world) node(id uint32) *node {
	if id < 1 || int(id) > len(w.nodes) {
		return nil
	}
	return w.nodes[id-1]
}

// fault draws whether a fault of the network happens: none does once all is healed.
func (w *world) fault(perMille int) bool { return !w.healed && w.chance(perMille) }

// fail notes that something is wrong. The run ends with the present event.
func (w *world) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.trace.add(w.now, "WRONG: %s", text)
	if len(w.faults) < faultsMax {
		w.faults = append(w.faults, text)
	}
}

func (w *world) failed() bool { return len(w.faults) > 0 }

// guard turns a panic of the product into a finding.
func (w *world) guard(run func()) {
	defer func() {
		if r := recover(); r != nil {
			w.fail("panic: %v\n%s", r, debug.Stack())
		}
	}()
	run()
}

// live is the whole run.
func (w *world) live() {
	for _, n := range w.nodes {
		n.start()
	}
	w.plan()
	never := func() bool { return false }
	for w.now < w.swarm.Safety+w.leapt && !w.failed() {
		w.runUntil(w.swarm.Safety+w.leapt, never)
	}
	if w.failed() {
		return
	}
	w.heal()
	w.mend()
}

// mend is the phase of liveness, and the judgement.
func (w *world) mend() {
	end := w.now + livenessMax
	w.closing = true
	if !w.runUntil(end, w.idle) {
		w.stuck("what was begun before the end of all faults does not end")
		return
	}
	for _, c := range w.clients {
		c.probe()
	}
	if !w.runUntil(end, w.idle) {
		w.stuck("a new batch is not answered")
		return
	}
	w.runUntil(w.now+quietTime, func() bool { return false })
	w.judge()
}

// stuck says who waits.
func (w *world) stuck(what string) {
	if w.failed() {
		return
	}
	for _, p := range w.partitions {
		for _, id := range p.nodes {
			if process := w.node(id).process; process != nil {
				s := process.replicas[p.group].partition.Status()
				w.trace.note(w.now, "node %d group %d: %+v, %d wait", id, p.group, s, process.waiting)
			}
		}
	}
	w.fail("%s within %v", what, livenessMax)
}

// idle reports whether no client waits for anything.
func (w *world) idle() bool {
	for _, c := range w.clients {
		if len(c.open) > 0 {
			return false
		}
	}
	return len(w.calls.waiting) == 0
}
