package meta

import (
	"cmp"
	"fmt"
	"slices"
)

// Load is how much one node carries already.
type Load struct {
	Replicas int
	Leaders  int // replicas that are the preferred leaders of their partitions
}

// Assign chooses the nodes of the replicas of a new topic's partitions, the preferred leader first: of each partition on
// different nodes, and on as many racks as possible; and, as far as that allows, so that all nodes carry equally many
// replicas, and are the preferred leader of equally many. A node of which nobody said the rack is a rack of its own. Brokers
// have different ids; load is that of theirs, missing is none. Equal arguments give equal results. Errors:
// ErrInvalidReplication, ErrInvalidPartitions.
func Assign(brokers []Broker, load map[int32]Load, partitions int32, replication int16) ([][]int32, error) {
	switch {
	case replication < 1:
		return nil, fmt.Errorf("%w: replication factor: %d, must be larger than 0", ErrInvalidReplication, replication)
	case int(replication) > len(brokers):
		return nil, fmt.Errorf("%w: replication factor: %d larger than available brokers: %d", ErrInvalidReplication, replication, len(brokers))
	case partitions < 1 || partitions > PartitionsPerTopicMax:
		return nil, fmt.Errorf("%w: %d, allowed are 1 to %d", ErrInvalidPartitions, partitions, PartitionsPerTopicMax)
	}
	p := newPlacement(brokers, load)
	chosen := make([][]*candidate, partitions)
	for i := range chosen {
		chosen[i] = p.choose(int(replication))
		p.turn++
	}
	p.levelLeaders(chosen)
	assignment := make([][]int32, partitions)
	for i, replicas := range chosen {
		for _, c := range replicas {
			assignment[i] = append(assignment[i], c.id)
		}
	}
	return assignment, nil
}

// placement is the work of one Assign.
type placement struct {
	nodes []*candidate
	racks []int // how many replicas of the partition at hand are on each rack
	// turn is which node goes first among equals: topics of one partition must not all go to the first node, though the
	// load does not tell of them yet.
	turn int
}

type candidate struct {
	Load
	id    int32
	place int // among the nodes
	rack  int
	taken bool // has a replica of the partition at hand
}

func newPlacement(brokers []Broker, load map[int32]Load) *placement {
	p := &placement{}
	racks := map[string]int{}
	for _, b := range slices.SortedFunc(slices.Values(brokers), func(a, b Broker) int { return cmp.Compare(a.ID, b.ID) }) {
		rack, known := racks[b.Rack]
		if !known || b.Rack == "" {
			rack = len(p.racks)
			racks[b.Rack] = rack
			p.racks = append(p.racks, 0)
		}
		p.nodes = append(p.nodes, &candidate{Load: load[b.ID], id: b.ID, place: len(p.nodes), rack: rack})
		p.turn += load[b.ID].Replicas
	}
	return p
}

// choose takes the nodes of one partition.
func (p *placement) choose(replication int) []*candidate {
	clear(p.racks)
	for _, c := range p.nodes {
		c.taken = false
	}
	replicas := make([]*candidate, replication)
	for i := range replicas {
		best := p.least(p.nodes, func(c *candidate) (int, int) {
			if c.taken {
				return replication, 0 // no rack has as many
			}
			return p.racks[c.rack], c.Replicas
		})
		best.taken = true
		best.Replicas++
		p.racks[best.rack]++
		replicas[i] = best
	}
	leader := p.least(replicas, func(c *candidate) (int, int) { return c.Leaders, c.Replicas })
	leader.Leaders++
	lead(replicas, leader)
	return replicas
}

// least returns the one with the least key; among equals, whose turn it is.
func (p *placement) least(of []*candidate, key func(*candidate) (int, int)) *candidate {
	n := len(p.nodes)
	return slices.MinFunc(of, func(a, b *candidate) int {
		a1, a2 := key(a)
		b1, b2 := key(b)
		return cmp.Or(cmp.Compare(a1, b1), cmp.Compare(a2, b2),
			cmp.Compare((a.place+n-p.turn%n)%n, (b.place+n-p.turn%n)%n))
	})
}

// lead makes one of the replicas the first.
func lead(replicas []*candidate, leader *candidate) {
	at := slices.Index(replicas, leader)
	replicas[0], replicas[at] = replicas[at], replicas[0]
}

// levelLeaders hands the preferred leadership of partitions on, along chains of nodes that have replicas in common, until
// no chain leads from a node to another one that has it of two partitions less.
func (p *placement) levelLeaders(chosen [][]*candidate) {
	for p.handOn(chosen) {
	}
}

// handOn hands leadership on along one chain, if there is one that makes it more even.
func (p *placement) handOn(chosen [][]*candidate) bool {
	led := map[*candidate][][]*candidate{}
	for _, replicas := range chosen {
		led[replicas[0]] = append(led[replicas[0]], replicas)
	}
	for _, from := range p.nodes {
		// by is the partition by which the search came to a node.
		by := map[*candidate][]*candidate{from: nil}
		for queue := []*candidate{from}; len(queue) > 0; queue = queue[1:] {
			if to := queue[0]; to.Leaders < from.Leaders-1 {
				to.Leaders++
				from.Leaders--
				for to != from {
					replicas := by[to]
					previous := replicas[0]
					lead(replicas, to)
					to = previous
				}
				return true
			}
			for _, replicas := range led[queue[0]] {
				for _, next := range replicas[1:] {
					if _, seen := by[next]; !seen {
						by[next] = replicas
						queue = append(queue, next)
					}
				}
			}
		}
	}
	return false
}

// CheckAssignment says what is wrong with the replicas of a new topic's partitions, by number, as an operator has chosen
// them: each partition must have some, all equally many, on different nodes that are there. Errors: ErrInvalidAssignment,
// ErrInvalidPartitions.
func CheckAssignment(partitions [][]int32, brokers []Broker) error {
	if n := len(partitions); n < 1 || n > PartitionsPerTopicMax {
		return fmt.Errorf("%w: %d, allowed are 1 to %d", ErrInvalidPartitions, n, PartitionsPerTopicMax)
	}
	for i, replicas := range partitions {
		if len(replicas) == 0 {
			return fmt.Errorf("%w: no replicas are given for partition %d of %d", ErrInvalidAssignment, i, len(partitions))
		}
		for at, id := range replicas {
			if slices.Contains(replicas[:at], id) {
				return fmt.Errorf("%w: partition %d has broker %d more than once", ErrInvalidAssignment, i, id)
			}
			if !slices.ContainsFunc(brokers, func(b Broker) bool { return b.ID == id }) {
				return fmt.Errorf("%w: partition %d has broker %d, but no such broker is registered", ErrInvalidAssignment, i, id)
			}
		}
		if len(replicas) != len(partitions[0]) {
			return fmt.Errorf("%w: partition %d has %d replicas, but partition 0 has %d",
				ErrInvalidAssignment, i, len(replicas), len(partitions[0]))
		}
	}
	return nil
}
