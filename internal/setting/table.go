package setting

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Setting is a row of the table.
type Setting struct {
	Name string
	// Default is the value as an operator would write it; "": there is none, and what Help says counts.
	Default string
	// Min and Max are the bounds of a number. A Min of -1 stands for no bound at all, and is the only number below 1 then.
	// Both are 0 where true or false is wanted.
	Min, Max int64
	// Help is one line that says what the setting does.
	Help string

	// put stores a number within the bounds, or 0 and 1 for false and true. It is nil when nothing but Default is possible,
	// which is false then.
	put func(*Values, int64)
}

// longest is the longest duration in milliseconds: 100 years.
const longest = 100 * 365 * 24 * 3600 * 1000

// lasting makes put of a duration in a unit. Every negative number means for ever, and becomes -1 ns.
func lasting(field func(*Values) *time.Duration, unit time.Duration) func(*Values, int64) {
	return func(v *Values, n int64) { *field(v) = max(time.Duration(n)*unit, -1) }
}

// number makes put of a number.
func number[N int | int16 | int32 | int64](field func(*Values) *N) func(*Values, int64) {
	return func(v *Values, n int64) { *field(v) = N(n) }
}

// table holds every setting, in order of the names. Where several settings fill one field, that order is also the order
// in which they give way: the last one that is given counts.
var table = []Setting{
	{"auto.create.topics.enable", "true", 0, 0, "a topic is created when a client that allows it first asks for it",
		func(v *Values, n int64) { v.AutoCreateTopics = n == 1 }},
	{"auto.leader.rebalance.enable", "true", 0, 0, "the first replica of a partition leads it whenever it can",
		func(v *Values, n int64) { v.LeaderBalance = n == 1 }},
	{"connections.max.idle.ms", "600000", -1, longest, "a connection on which nothing happens for so long is closed; -1: never",
		lasting(func(v *Values) *time.Duration { return &v.ConnectionIdleMax }, time.Millisecond)},
	{"default.replication.factor", "-1", -1, math.MaxInt16, "replicas of a topic's partitions when the client names no number; -1: 3, or as many as there are nodes",
		number(func(v *Values) *int16 { return &v.Replication })},
	{"disk.low.water.bytes", "0", 0, 1 << 50, "below so much free space no new batch is taken (56); 0: 256 MiB, at most a twentieth of the disk",
		number(func(v *Values) *int64 { return &v.DiskLowWaterBytes })},
	{"disk.reserve.bytes", "0", 0, 1 << 50, "space held back for what is accepted when the disk is full; 0: 64 MiB, at most a fiftieth of the disk",
		number(func(v *Values) *int64 { return &v.DiskReserveBytes })},
	{"fetch.max.bytes", "57671680", 1024, 1 << 30, "the most that one fetch returns, but for a single batch that is larger",
		number(func(v *Values) *int { return &v.FetchBytes })},
	{"leader.imbalance.check.interval.seconds", "300", 1, longest / 1000, "how often it is looked whether the first replicas lead",
		lasting(func(v *Values) *time.Duration { return &v.LeaderBalanceInterval }, time.Second)},
	{"log.retention.bytes", "-1", -1, math.MaxInt64, "a partition's oldest segment is deleted when at least this much stays without it; -1: no bound",
		number(func(v *Values) *int64 { return &v.RetentionBytes })},
	{"log.retention.check.interval.ms", "300000", 1, longest, "how often segments are looked for that are to be deleted or rolled",
		lasting(func(v *Values) *time.Duration { return &v.RetentionInterval }, time.Millisecond)},
	{"log.retention.hours", "168", -1, longest / 3_600_000, "a segment is deleted when its newest record is older than this; -1: never",
		lasting(func(v *Values) *time.Duration { return &v.Retention }, time.Hour)},
	{"log.retention.minutes", "", -1, longest / 60_000, "the same in minutes; counts instead of the hours",
		lasting(func(v *Values) *time.Duration { return &v.Retention }, time.Minute)},
	{"log.retention.ms", "", -1, longest, "the same in milliseconds; counts instead of the minutes and the hours",
		lasting(func(v *Values) *time.Duration { return &v.Retention }, time.Millisecond)},
	{"log.roll.hours", "168", 1, longest / 3_600_000, "a segment that is older than this is rolled: the next record begins a new one",
		lasting(func(v *Values) *time.Duration { return &v.SegmentAge }, time.Hour)},
	{"log.roll.ms", "", 1, longest, "the same in milliseconds; counts instead of the hours",
		lasting(func(v *Values) *time.Duration { return &v.SegmentAge }, time.Millisecond)},
	{"log.segment.bytes", "1073741824", 64 << 10, math.MaxInt32, "the size of a segment, which only a single larger batch exceeds",
		number(func(v *Values) *int64 { return &v.SegmentBytes })},
	{"log.segment.entries", "262144", 16, 1 << 20, "the most batches that a segment has: what a restart must read of each partition",
		number(func(v *Values) *int { return &v.SegmentEntries })},
	{"max.connections", "10000", 1, 1 << 30, "a further connection is closed when it is accepted",
		number(func(v *Values) *int { return &v.Connections })},
	{"message.max.bytes", "1048588", 1024, 64 << 20, "the largest batch that is stored, compressed as it comes",
		number(func(v *Values) *int { return &v.MessageBytes })},
	{"min.insync.replicas", "1", 1, math.MaxInt16, "on so many disks a batch must be, and on those of a majority, before acks=all is answered; a topic may have its own",
		number(func(v *Values) *int { return &v.MinInSync })},
	{"num.partitions", "1", 1, 10_000, "partitions of a topic when the client names no number",
		number(func(v *Values) *int32 { return &v.NumPartitions })},
	{"producer.id.eviction.min.age.ms", "900000", 0, longest, "a producer that sent something less long ago is not forgotten for want of room",
		lasting(func(v *Values) *time.Duration { return &v.ProducerEvictionMinAge }, time.Millisecond)},
	{"producer.id.expiration.check.interval.ms", "600000", 1, longest, "how often producers are looked for that are to be forgotten",
		lasting(func(v *Values) *time.Duration { return &v.ProducerExpiryInterval }, time.Millisecond)},
	{"producer.id.expiration.ms", "86400000", 1, longest, "a partition forgets a producer that sent it nothing for so long",
		lasting(func(v *Values) *time.Duration { return &v.ProducerExpiration }, time.Millisecond)},
	{"producer.id.max.per.node", "2000000", 1, 100_000_000, "the most producers that all partitions remember together",
		number(func(v *Values) *int { return &v.ProducersPerNode })},
	{"producer.id.max.per.partition", "100000", 1, 5_000_000, "the most producers that a partition remembers",
		number(func(v *Values) *int { return &v.ProducersPerPartition })},
	{"queued.max.request.bytes", "268435456", -1, 1 << 40, "produces that are not answered yet, of all connections; beyond it connections are not read; -1: no bound",
		number(func(v *Values) *int64 { return &v.QueuedRequestBytes })},
	{"replica.lag.time.max.ms", "30000", 1, longest, "a replica that did not have all of the leader's log for so long is not in sync",
		lasting(func(v *Values) *time.Duration { return &v.ReplicaLagMax }, time.Millisecond)},
	{"socket.request.max.bytes", "104857600", 1024, 1 << 30, "the largest produce request, and the most that one connection has unanswered; other requests have lower bounds",
		number(func(v *Values) *int { return &v.RequestBytes })},
	{"unclean.leader.election.enable", "false", 0, 0, "a replica that lacks what was acknowledged never becomes the leader", nil},
}

// All are the settings in order of their names.
func All() []Setting { return slices.Clone(table) }

// Allowed says in words which values there are.
func (s Setting) Allowed() string {
	switch {
	case s.put == nil:
		return s.Default
	case s.isSwitch():
		return "true, false"
	case s.Min == -1:
		return fmt.Sprintf("-1, 1 to %d", s.Max)
	default:
		return fmt.Sprintf("%d to %d", s.Min, s.Max)
	}
}

func (s Setting) isSwitch() bool { return s.Min == 0 && s.Max == 0 }

func (s Setting) set(v *Values, value string) error {
	if s.isSwitch() {
		on, err := Boolean(value)
		switch {
		case s.put == nil && on:
			return fmt.Errorf("only %s is possible: %s", s.Default, s.Help)
		case s.put == nil || err != nil:
		case on:
			s.put(v, 1)
		default:
			s.put(v, 0)
		}
		return err
	}
	n, err := Integer(value, s.Min, s.Max)
	switch {
	case n == 0 && s.Min == -1: // or err, which would speak of 0 as well
		return fmt.Errorf("a whole number from 1 to %d is wanted, or -1", s.Max)
	case err == nil:
		s.put(v, n)
	}
	return err
}

func find(name string) (Setting, bool) {
	at, found := slices.BinarySearchFunc(table, name, func(s Setting, name string) int { return strings.Compare(s.Name, name) })
	if !found {
		return Setting{}, false
	}
	return table[at], true
}

func names() []string {
	var list []string
	for _, s := range table {
		list = append(list, s.Name)
	}
	return list
}

// Help is the table for a help text.
func Help() string {
	var b strings.Builder
	for _, s := range table {
		fmt.Fprintf(&b, "  %s=%s\n      %s\n", s.Name, s.Default, s.Help)
	}
	return b.String()
}
