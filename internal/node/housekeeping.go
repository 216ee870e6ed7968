package node

import (
	"slices"
	"time"

	"github.com/oncemq/oncemq/internal/replica"
)

const (
	// retryInterval is how often everything is tried again that has failed.
	retryInterval = time.Minute
	// reliefInterval is how often the number of producers is compared with the node's cap.
	reliefInterval = time.Second
	// reliefPause is the pause after a round that found nobody to evict, as a part of the age at which there can be one.
	reliefPause = 16
)

// keepHouse has all replicas do what is due now and then, until the node is closed.
func (n *Node) keepHouse() {
	expire, retain := time.NewTicker(n.cfg.ExpiryInterval), time.NewTicker(n.cfg.RetentionInterval)
	retry, relief := time.NewTicker(retryInterval), time.NewTicker(reliefInterval)
	for _, t := range []*time.Ticker{expire, retain, retry, relief} {
		defer t.Stop()
	}
	var r reliever
	for {
		select {
		case <-n.running.Done():
			return
		case <-expire.C:
			n.doChores(replica.Expire)
		case <-retain.C:
			n.doChores(replica.Retain)
		case <-retry.C:
			n.doChores(replica.RetryBases)
			n.retireLeaders()
			n.resume()
		case now := <-relief.C:
			r.relieve(n, now)
		}
	}
}

// doChores asks every replica to do chores. It does not wait for any of them.
func (n *Node) doChores(chores replica.Chore) {
	n.metadata.Housekeep(chores)
	for _, p := range n.placer.replicas() {
		p.Housekeep(chores)
	}
}

// reliever keeps the number of producers that all partitions remember below the node's cap: above 95 % of it, the least
// recently used ones of the whole node go, down to 90 %.
//
// A partition only tells how long its least recently used producer has been idle, as of its last look, and it looks when
// it is asked to expire or evict some. So this goes in rounds: in the first all look, in each that follows those go that
// were idle for at least 7/8 of the longest time that any partition tells.
type reliever struct {
	active bool
	looked bool      // all have been asked to look since active
	next   time.Time // no round before
}

func (r *reliever) relieve(n *Node, now time.Time) {
	have, most := n.producers.Load(), int64(n.cfg.ProducersMax)
	surplus := have - most*90/100
	if r.active = surplus > 0 && (r.active || have > most*95/100); !r.active {
		r.looked = false
		return
	}
	if now.Before(r.next) {
		return
	}
	if !r.looked {
		r.looked = true
		n.doChores(replica.Expire)
		return
	}
	minAge := n.cfg.Settings.ProducerEvictionMinAge
	candidates, idle := idlest(n.candidates(), minAge)
	if len(candidates) == 0 {
		r.next = now.Add(minAge / reliefPause)
		return
	}
	var among int64
	for _, c := range candidates {
		among += int64(c.producers)
	}
	for _, c := range candidates {
		// In proportion to what it has, rounded up: how many of them were idle for so long only the partition knows.
		share := (surplus*int64(c.producers) + among - 1) / among
		c.partition.EvictIdle(idle, int(share))
	}
}

// candidate is a partition that has producers to evict, as far as it tells.
type candidate struct {
	partition *replica.Partition
	oldest    time.Duration // idle time of the least recently used one
	producers int
}

// candidates returns what all partitions that can forget somebody tell of their producers. One that is offline cannot, and
// its oldest must not set the age that the others' are measured by.
func (n *Node) candidates() []candidate {
	var all []candidate
	for _, p := range n.placer.replicas() {
		if s := p.Status(); s.Ready {
			all = append(all, candidate{p, s.OldestIdle, s.Producers})
		}
	}
	return all
}

// idlest returns those of all partitions whose least recently used producers are about the least recently used ones of
// them all, and how long these were idle at least: not less than minAge. It reuses all.
func idlest(all []candidate, minAge time.Duration) ([]candidate, time.Duration) {
	idle := minAge
	for _, c := range all {
		idle = max(idle, c.oldest/8*7)
	}
	return slices.DeleteFunc(all, func(c candidate) bool { return c.producers == 0 || c.oldest < idle }), idle
}
