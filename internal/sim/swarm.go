package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/oncemq/oncemq/internal/replica"
)

// Swarm is what one seed has drawn: the cluster, its load, and which faults there are. Of each kind of fault about half of
// the seeds have none, so that no fault hides another.
type Swarm struct {
	Nodes, Partitions, Replicas, MinInSync int
	// Safety is how long faults happen.
	Safety time.Duration

	// Messages and requests take up to Latency. Of messages between replicas so many in a thousand are lost, delivered
	// twice, or overtaken.
	Latency                  time.Duration
	Loss, Duplicate, Reorder int

	// The mean times between two faults of a kind in the whole cluster; 0: there are none.
	Crash, Power, Blackout time.Duration // of a process, of a machine, of all machines at once
	Pause, Cut, Reset      time.Duration // of a process, of a direction between two nodes, of the connections of two nodes
	Full, SyncFailure      time.Duration // of a disk
	ClockJump, Transfer    time.Duration
	Stop                   time.Duration // of a process, in good order
	Leap                   time.Duration // of time, while a machine is down
	Away                   time.Duration // how long a node is down, paused or cut off, at most
	Unsynced               int           // percent of what is not durable that outlives a machine's end

	// Upper bounds of what a turn of a loop, a flush and a background job wait.
	Turn, Flush, Job time.Duration

	SegmentBytes                    int64
	SegmentEntries                  int
	Retain, Expire, Delete          time.Duration // mean times between two of them
	Settings                        replica.Settings
	Producers, Anonymous            int           // of each partition
	Think                           time.Duration // between two actions of a client, on average
	RequestTimeout, DeliveryTimeout time.Duration
}

// draw draws a swarm.
func draw(rng *rand.Rand) *Swarm {
	d := drawer{rng}
	s := &Swarm{
		Nodes: 3, Partitions: 1 + rng.IntN(3), Replicas: 3, MinInSync: 1 + rng.IntN(3),
		Safety:  d.span(6*time.Second, 20*time.Second),
		Latency: d.span(200*time.Microsecond, 10*time.Millisecond),
		Away:    d.span(500*time.Millisecond, 6*time.Second), Unsynced: rng.IntN(101),
		Turn: d.span(20*time.Microsecond, time.Millisecond), Flush: d.span(100*time.Microsecond, 5*time.Millisecond),
		Job:          d.span(time.Millisecond, 50*time.Millisecond),
		SegmentBytes: 1024 + rng.Int64N(16<<10), SegmentEntries: 8 + rng.IntN(200),
		Producers: 1 + rng.IntN(4), Anonymous: rng.IntN(2), Think: d.span(2*time.Millisecond, 60*time.Millisecond),
		RequestTimeout: d.span(300*time.Millisecond, 3*time.Second), DeliveryTimeout: d.span(3*time.Second, 15*time.Second),
	}
	if rng.IntN(4) == 0 {
		s.Nodes = 5
		s.Replicas = 3 + 2*rng.IntN(2)
	}
	d.faults(s)
	d.settings(s)
	return s
}

type drawer struct{ *rand.Rand }

// span draws a time.
func (d drawer) span(low, high time.Duration) time.Duration {
	return low + time.Duration(d.Int64N(int64(high-low)))
}

// maybe is span in about half of the cases, else 0.
func (d drawer) maybe(low, high time.Duration) time.Duration {
	t := d.span(low, high)
	if d.IntN(2) == 0 {
		return 0
	}
	return t
}

// rate draws one in a thousand to most, or 0.
func (d drawer) rate(most int) int {
	r := 1 + d.IntN(most)
	if d.IntN(2) == 0 {
		return 0
	}
	return r
}

func (d drawer) faults(s *Swarm) {
	s.Loss, s.Duplicate, s.Reorder = d.rate(60), d.rate(60), d.rate(100)
	s.Crash, s.Power = d.maybe(time.Second, 6*time.Second), d.maybe(time.Second, 6*time.Second)
	s.Pause, s.Cut, s.Reset = d.maybe(time.Second, 6*time.Second), d.maybe(700*time.Millisecond, 4*time.Second), d.maybe(time.Second, 6*time.Second)
	s.Full, s.SyncFailure = d.maybe(2*time.Second, 8*time.Second), d.maybe(3*time.Second, 10*time.Second)
	s.ClockJump, s.Transfer = d.maybe(time.Second, 5*time.Second), d.maybe(300*time.Millisecond, 4*time.Second)
	s.Blackout = d.maybe(5*time.Second, 15*time.Second)
	s.Stop = d.maybe(time.Second, 6*time.Second)
	s.Leap = d.maybe(4*time.Second, 12*time.Second)
	if d.IntN(4) == 0 {
		s.Flush *= 20
	}
	if d.IntN(4) == 0 {
		s.Job *= 40
	}
}

func (d drawer) settings(s *Swarm) {
	s.Retain, s.Expire, s.Delete = d.maybe(200*time.Millisecond, 2*time.Second), d.maybe(200*time.Millisecond, 2*time.Second),
		d.maybe(500*time.Millisecond, 4*time.Second)
	s.Settings = replica.Settings{
		MaxMessageBytes: 1 << 20, ProducerExpiration: 24 * time.Hour, ProducerEvictionMinAge: 15 * time.Minute, ProducersMax: 1000,
		Retention: -1, RetentionBytes: -1, SegmentAge: 24 * time.Hour,
		LagMax: d.span(500*time.Millisecond, 10*time.Second),
	}
	if s.Expire > 0 {
		s.Leap = 0
		// A client gives up, and begins anew, before it can be forgotten.
		s.DeliveryTimeout, s.Away = d.span(time.Second, 3*time.Second), d.span(300*time.Millisecond, 1500*time.Millisecond)
		s.Settings.ProducerExpiration, s.Settings.ProducerEvictionMinAge = 8*time.Second, 5*time.Second
		s.Settings.ProducersMax = s.Producers + 3 + d.IntN(10)
	}
	if s.Retain > 0 {
		s.Settings.RetentionBytes = 1024 + d.Int64N(24<<10)
		s.Settings.SegmentAge = d.span(500*time.Millisecond, 5*time.Second)
	}
}

// String names what was drawn, without what is not there.
func (s *Swarm) String() string {
	text := fmt.Sprintf("%d nodes, %d partitions of %d replicas, min.insync %d, %v of faults, latency %v, loss %d, duplicate %d, reorder %d",
		s.Nodes, s.Partitions, s.Replicas, s.MinInSync, s.Safety, s.Latency, s.Loss, s.Duplicate, s.Reorder)
	for _, k := range s.kinds() {
		if *k.mean > 0 {
			text += fmt.Sprintf(", %s every %v", k.name, k.mean.Round(time.Millisecond))
		}
	}
	return text + fmt.Sprintf(", away up to %v, turn %v, flush %v, job %v, segments of %d bytes or %d entries",
		s.Away, s.Turn, s.Flush, s.Job, s.SegmentBytes, s.SegmentEntries)
}

// kind is a kind of fault, or of chore, that happens at intervals.
type kind struct {
	name string
	mean *time.Duration
}

func (s *Swarm) kinds() []kind {
	return []kind{
		{"crash", &s.Crash}, {"power", &s.Power}, {"blackout", &s.Blackout}, {"stop", &s.Stop}, {"pause", &s.Pause}, {"cut", &s.Cut},
		{"reset", &s.Reset}, {"full", &s.Full}, {"sync", &s.SyncFailure}, {"clock", &s.ClockJump}, {"transfer", &s.Transfer},
		{"leap", &s.Leap}, {"retain", &s.Retain}, {"expire", &s.Expire}, {"delete", &s.Delete},
	}
}

// Keep leaves only the named kinds of faults and chores; those of messages stay. It shrinks a finding, or aims at something: a
// kind that the seed does not have is given to it.
func (s *Swarm) Keep(names []string) {
	for _, k := range s.kinds() {
		switch {
		case !slices.Contains(names, k.name):
			*k.mean = 0
		case *k.mean == 0:
			*k.mean = 2 * time.Second
		}
	}
}
