package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// role is whose partitions an outage is of.
type role string

const (
	ofLeader role = "its leader's partitions"
	ofOthers role = "other partitions"
	ofAll    role = "all partitions, from the start on"
)

// row is one line of the table.
type row struct {
	kind kind
	role role
}

// outages are how long partitions were away, by what had happened to whom.
type outages struct {
	of map[row][]time.Duration
}

func newOutages() *outages { return &outages{of: make(map[row][]time.Duration)} }

// add notes one.
func (o *outages) add(k kind, r role, away time.Duration) {
	o.of[row{k, r}] = append(o.of[row{k, r}], away)
}

// judged reports whether a majority was up all the time.
func (r row) judged() bool { return r.kind.majority() }

// majority reports whether most nodes work through a fault of a kind.
func (k kind) majority() bool { return k != killAll && k != killMost }

// percentile returns the smallest duration that is not shorter than so many of a hundred. There is at least one.
func percentile(sorted []time.Duration, of int) time.Duration {
	return sorted[max((len(sorted)*of+99)/100, 1)-1]
}

// String is the table.
func (o *outages) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-10s %-36s %6s %9s %9s %9s\n", "fault", "away", "count", "p50", "p99", "worst")
	for _, k := range kinds {
		for _, r := range []role{ofLeader, ofOthers, ofAll} {
			if all := o.of[row{k, r}]; len(all) > 0 {
				o.line(&b, string(k), string(r), all)
			}
		}
	}
	if all := o.judged(ofLeader); len(all) > 0 {
		o.line(&b, "all", "partitions whose leader it was", all)
	}
	return b.String()
}

func (o *outages) line(b *strings.Builder, fault, role string, all []time.Duration) {
	sorted := slices.Sorted(slices.Values(all))
	fmt.Fprintf(b, "%-10s %-36s %6d %9v %9v %9v\n", fault, role, len(sorted), rounded(percentile(sorted, 50)),
		rounded(percentile(sorted, 99)), rounded(sorted[len(sorted)-1]))
}

// judged are the outages of these roles while a majority was up.
func (o *outages) judged(roles ...role) []time.Duration {
	var all []time.Duration
	for r, away := range o.of {
		if r.judged() && slices.Contains(roles, r.role) {
			all = append(all, away...)
		}
	}
	return all
}

// percentileOf is how many outages there must be for a percentile: of fewer, the 99th is the worst.
const percentileOf = 100

// judge holds the outages against bounds; 0 is none. The percentile is that of the partitions whose leader it happened to,
// if those are percentileOf at least, the worst that of all.
func (o *outages) judge(p99, worst time.Duration) error {
	var errs []error
	if led := slices.Sorted(slices.Values(o.judged(ofLeader))); p99 > 0 && len(led) >= percentileOf && percentile(led, 99) > p99 {
		errs = append(errs, fmt.Errorf("partitions were away for %v at the 99th percentile, at most %v is promised", rounded(percentile(led, 99)), p99))
	}
	if all := o.judged(ofLeader, ofOthers); worst > 0 && len(all) > 0 && slices.Max(all) > worst {
		errs = append(errs, fmt.Errorf("a partition was away for %v, at most %v is promised", rounded(slices.Max(all)), worst))
	}
	return errors.Join(errs...)
}

// measure notes how long each partition was away by a fault that began and was over at these times, and says which was away
// for the longest time, and since when. leaders are those before it. Everything up to now counts: what comes late of a fault
// is its doing as well.
func (c *campaign) measure(f fault, leaders []int, begun, over time.Time) string {
	now := time.Now()
	longest, which := time.Duration(0), "none"
	for i, p := range c.probes {
		r, floor := ofOthers, time.Time{}
		switch {
		case !f.kind.majority():
			r, floor = ofAll, over
		case i == f.partition, f.node != nobody && leaders[i] == f.node:
			r = ofLeader
		}
		away, since := p.away(floor, begun, now)
		c.outages.add(f.kind, r, away)
		if away > longest {
			longest, which = away, fmt.Sprintf("%v (%s) for %v from %v on", p.at, r, rounded(away), rounded(since.Sub(begun)))
		}
	}
	return which
}

func rounded(d time.Duration) time.Duration {
	if d < 100*time.Millisecond {
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}

// phases measure how many records are stored in a second: all of the time, and while one node is down, frozen or cut off.
type phases struct {
	last        time.Time
	written     int64
	inFault     bool
	whole, hurt throughput
}

// throughput is how many records were stored in how much time.
type throughput struct {
	records int64
	took    time.Duration
}

func (t throughput) String() string {
	if t.took == 0 {
		return "none"
	}
	return fmt.Sprintf("%.0f/s", float64(t.records)/t.took.Seconds())
}

func (p *phases) begin(written int64) { p.last, p.written = time.Now(), written }

// fault ends a time in which all was whole.
func (p *phases) fault(f fault, written int64) {
	p.enter(&p.whole, written)
	p.inFault = f.kind == kill || f.kind == pause || f.kind == isolate
}

// over ends the time of a fault.
func (p *phases) over(written int64) {
	if p.inFault {
		p.enter(&p.hurt, written)
	}
	p.inFault = false
	p.begin(written)
}

func (p *phases) enter(t *throughput, written int64) {
	t.records += written - p.written
	t.took += time.Since(p.last)
	p.begin(written)
}
