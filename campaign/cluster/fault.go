package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// kind is what happens to a node, as --faults calls it.
type kind string

const (
	kill     kind = "kill"
	killMost kind = "kill-most"
	killAll  kind = "kill-all"
	pause    kind = "pause"
	isolate  kind = "isolate"
	oneWay   kind = "one-way"
	restart  kind = "restart"
	slow     kind = "slow"
	transfer kind = "transfer"
)

var kinds = []kind{kill, killMost, killAll, pause, isolate, oneWay, restart, slow, transfer}

func names(of []kind) []string {
	var all []string
	for _, k := range of {
		all = append(all, string(k))
	}
	return all
}

const (
	// downMax is how long a killed node stays down at most, trouble between the bounds of how long a node is frozen, cut off
	// or slow.
	downMax                = 4 * time.Second
	troubleMin, troubleMax = time.Second, 8 * time.Second
	// againIn: one killed node in so many is killed once more while it comes back, within againMax after its start.
	againIn, againMax = 4, 300 * time.Millisecond
	// controllerIn: one fault in so many is one of the controller's node.
	controllerIn = 4
	// endWithin bounds the end after SIGTERM.
	endWithin = 30 * time.Second
)

// fault is one that is drawn.
type fault struct {
	kind   kind
	node   int // -1: all of them
	hold   time.Duration
	again  time.Duration        // kill: how long after the start it is killed once more; 0: it is not
	reset  bool                 // isolate, one-way: the connections do not outlive it
	deaf   bool                 // one-way: what is sent to the node is lost; else what it sends
	slowed testbroker.Condition // slow
	// partition is the one whose leader it happens to alone, -1: all that the node leads.
	partition int
}

func (f fault) String() string {
	switch f.kind {
	case killAll:
		return "kill all nodes"
	case killMost:
		return fmt.Sprintf("kill all nodes but %d for %v", f.node+1, rounded(f.hold))
	case oneWay:
		if f.deaf {
			return fmt.Sprintf("nothing reaches node %d for %v", f.node+1, rounded(f.hold))
		}
		return fmt.Sprintf("nothing leaves node %d for %v", f.node+1, rounded(f.hold))
	case transfer:
		return "transfer leadership to the preferred leader"
	case slow:
		return fmt.Sprintf("slow link to node %d (delay %v, %d bytes/s) for %v", f.node+1, f.slowed.Delay, f.slowed.BytesPerSecond, rounded(f.hold))
	case restart:
		return fmt.Sprintf("restart node %d", f.node+1)
	case kill:
		if f.again > 0 {
			return fmt.Sprintf("kill node %d for %v, and again %v after its start", f.node+1, rounded(f.hold), rounded(f.again))
		}
	}
	return fmt.Sprintf("%s node %d for %v", f.kind, f.node+1, rounded(f.hold))
}

// schedule draws the faults: all kinds once, in any order, and then again.
type schedule struct {
	rng   *rand.Rand
	kinds []kind
	bag   []kind
}

func newSchedule(seed uint64, kinds []kind) *schedule {
	return &schedule{rng: rand.New(rand.NewPCG(seed, 0)), kinds: kinds}
}

// next draws a fault. leader draws the node that it is to happen to.
func (s *schedule) next(leader func(*rand.Rand) int) fault {
	if len(s.bag) == 0 {
		for _, i := range s.rng.Perm(len(s.kinds)) {
			s.bag = append(s.bag, s.kinds[i])
		}
	}
	f := fault{kind: s.bag[0], node: -1, partition: -1}
	s.bag = s.bag[1:]
	if f.kind != killAll && f.kind != transfer {
		f.node = leader(s.rng)
	}
	switch f.kind {
	case kill:
		f.hold = s.between(0, downMax)
		if s.rng.IntN(againIn) == 0 {
			f.again = s.between(0, againMax)
		}
	case killMost, killAll:
		f.hold = s.between(0, time.Second)
	case pause:
		f.hold = s.between(troubleMin, troubleMax)
	case isolate, oneWay:
		f.hold = s.between(troubleMin, troubleMax)
		f.reset, f.deaf = s.rng.IntN(2) == 0, s.rng.IntN(2) == 0
	case slow:
		f.hold = s.between(troubleMin, troubleMax)
		if s.rng.IntN(2) == 0 {
			f.slowed.Delay = s.between(5*time.Millisecond, 100*time.Millisecond)
		} else {
			f.slowed.BytesPerSecond = 100_000 + s.rng.IntN(1_000_000)
		}
	}
	return f
}

func (s *schedule) between(least, most time.Duration) time.Duration {
	return least + time.Duration(s.rng.Int64N(int64(most-least)))
}

// inject lets a fault happen and repairs what it has broken, as far as that is not the cluster's own task. It reports
// whether it happened.
func (c *campaign) inject(ctx context.Context, f *fault) (happened bool, err error) {
	switch f.kind {
	case kill:
		return true, c.killOne(ctx, *f)
	case killMost, killAll:
		return true, c.killSeveral(ctx, *f)
	case pause:
		if err := c.nodes.Node(f.node).Pause(); err != nil {
			return false, err
		}
		return true, errors.Join(c.hold(ctx, f.hold), c.nodes.Node(f.node).Resume())
	case isolate, oneWay:
		c.cut(*f)
		err := c.hold(ctx, f.hold)
		c.nodes.Links.Heal(f.node)
		if f.reset {
			c.nodes.Links.Reset(f.node)
		}
		return true, err
	case slow:
		c.nodes.Links.Slow(f.node, f.slowed)
		err := c.hold(ctx, f.hold)
		c.nodes.Links.Heal(f.node)
		return true, err
	case restart:
		return true, c.restartOne(ctx, f.node)
	case transfer:
		return c.transferOne(ctx, f)
	}
	panic("unknown kind of fault: " + f.kind)
}

func (c *campaign) killOne(ctx context.Context, f fault) error {
	if err := c.nodes.Node(f.node).Kill(); err != nil {
		return err
	}
	if err := errors.Join(c.hold(ctx, f.hold), c.nodes.Start(f.node)); err != nil || f.again == 0 {
		return err
	}
	if err := c.hold(ctx, f.again); err != nil {
		return err
	}
	return errors.Join(c.nodes.Node(f.node).Kill(), c.nodes.Start(f.node))
}

// cut cuts a node off, in one direction or in both.
func (c *campaign) cut(f fault) {
	if f.kind == isolate {
		c.nodes.Links.Isolate(f.node)
		return
	}
	for other := range c.nodes.Nodes() {
		switch {
		case other == f.node:
		case f.deaf:
			c.nodes.Links.Set(other, f.node, testbroker.Condition{Cut: true})
		default:
			c.nodes.Links.Set(f.node, other, testbroker.Condition{Cut: true})
		}
	}
}

// killSeveral kills all processes, or all but one, as nearly at once as one process can.
func (c *campaign) killSeveral(ctx context.Context, f fault) error {
	var victims []int
	for i := range c.nodes.Nodes() {
		if f.kind == killAll || i != f.node {
			victims = append(victims, i)
		}
	}
	for _, i := range victims {
		if err := c.nodes.Node(i).Signal(syscall.SIGKILL); err != nil {
			return err
		}
	}
	for _, i := range victims {
		if err := c.nodes.Node(i).Kill(); err != nil {
			return err
		}
	}
	if err := c.hold(ctx, f.hold); err != nil {
		return err
	}
	for _, i := range victims {
		if err := c.nodes.Start(i); err != nil {
			return err
		}
	}
	return nil
}

// restartOne stops a node in good order and starts it again. Another status than 0 is a violation.
func (c *campaign) restartOne(ctx context.Context, node int) error {
	within, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	begun := time.Now()
	code, err := c.nodes.Node(node).Terminate(within)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		c.Violate("node %d has not ended %v after SIGTERM: %v", node+1, endWithin, err)
		return errors.Join(c.nodes.Node(node).Kill(), c.nodes.Start(node))
	case code != 0:
		c.Violate("SIGTERM ended node %d with status %d:\n%s", node+1, code, c.nodes.Node(node).Output())
	}
	c.drains = append(c.drains, time.Since(begun))
	return c.nodes.Start(node)
}

// codeElectionNotNeeded says that the preferred leader leads.
const codeElectionNotNeeded = 84

// transferOne asks for the preferred leader of a partition that another replica leads, at a node that is drawn. Without
// such a partition nothing happens.
func (c *campaign) transferOne(ctx context.Context, f *fault) (happened bool, err error) {
	f.partition = c.routes.notPreferred()
	if f.partition == nobody {
		return false, nil
	}
	p := c.Partitions[f.partition]
	conn, hangUp, err := c.dial(ctx, c.draw.IntN(c.nodes.Nodes()))
	if err != nil {
		return false, err
	}
	defer hangUp()
	err = conn.ElectPreferredLeader(p.Topic, p.Index)
	if code := (*rawkafka.CodeError)(nil); errors.As(err, &code) {
		if code.Code != codeElectionNotNeeded {
			c.Violate("%v", err)
		}
		return false, nil
	}
	return err == nil, err
}
