// Package setting is the table of the broker's settings: their names, defaults, bounds and meaning, and how NAME=VALUE is
// read. The names and defaults are Kafka's where Kafka has the setting.
//
// Invariants:
//
//  1. There is one table. What is parsed, the help text and the documentation come from it, or are held against it.
//  2. A name that is not in the table, a name that is given twice and a value out of its bounds are errors; nothing is
//     ignored and nothing is corrected.
//  3. No duration is longer than 100 years, so that one can be added to a time in any unit without overflow.
//
// The path of a setting: an operator's NAME=VALUE -> Parse -> a field of Values -> the configuration of the package that
// carries it out, which cmd/oncemq fills.
package setting

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Values are the settings of a broker, all within their bounds.
type Values struct {
	AutoCreateTopics       bool          // auto.create.topics.enable
	ConnectionIdleMax      time.Duration // connections.max.idle.ms; negative: for ever
	Connections            int           // max.connections
	DiskLowWaterBytes      int64         // disk.low.water.bytes; 0: chosen by the size of the disk
	DiskReserveBytes       int64         // disk.reserve.bytes; 0: chosen by the size of the disk
	FetchBytes             int           // fetch.max.bytes
	LeaderBalance          bool          // auto.leader.rebalance.enable
	LeaderBalanceInterval  time.Duration // leader.imbalance.check.interval.seconds
	MessageBytes           int           // message.max.bytes
	MinInSync              int           // min.insync.replicas
	NumPartitions          int32         // num.partitions
	ProducerEvictionMinAge time.Duration // producer.id.eviction.min.age.ms
	ProducerExpiration     time.Duration // producer.id.expiration.ms
	ProducerExpiryInterval time.Duration // producer.id.expiration.check.interval.ms
	ProducersPerNode       int           // producer.id.max.per.node
	ProducersPerPartition  int           // producer.id.max.per.partition
	QueuedRequestBytes     int64         // queued.max.request.bytes; negative: no bound
	ReplicaLagMax          time.Duration // replica.lag.time.max.ms
	Replication            int16         // default.replication.factor; negative: min(3, nodes)
	RequestBytes           int           // socket.request.max.bytes
	Retention              time.Duration // log.retention.ms, .minutes or .hours; negative: for ever
	RetentionBytes         int64         // log.retention.bytes; negative: no bound
	RetentionInterval      time.Duration // log.retention.check.interval.ms
	SegmentAge             time.Duration // log.roll.ms or log.roll.hours
	SegmentBytes           int64         // log.segment.bytes
	SegmentEntries         int           // log.segment.entries
}

// Defaults are the values of a broker that is told nothing.
func Defaults() Values {
	var v Values
	for _, s := range table {
		if s.Default != "" {
			mustSet(s, &v)
		}
	}
	return v
}

func mustSet(s Setting, v *Values) {
	if err := s.set(v, s.Default); err != nil {
		panic(fmt.Sprintf("setting: default of %s: %v", s.Name, err)) // the table itself is wrong
	}
}

// Parse reads assignments of the form NAME=VALUE; what none of them names has its default. An error is a mistake in
// asking, and says what would be right.
func Parse(assignments []string) (Values, error) {
	given := make(map[string]string)
	for _, a := range assignments {
		name, value, err := Cut(a)
		if err != nil {
			return Values{}, err
		}
		if _, known := find(name); !known {
			return Values{}, fmt.Errorf("%s is not a setting: did you mean %s? (`oncemq help serve` lists them)", name, Nearest(name, names()))
		}
		if _, twice := given[name]; twice {
			return Values{}, fmt.Errorf("%s is set twice", name)
		}
		given[name] = value
	}
	v := Defaults()
	// In the order of the table: of log.retention.hours, .minutes and .ms the one with the finest unit comes last, and
	// counts.
	for _, s := range table {
		value, ok := given[s.Name]
		if !ok {
			continue
		}
		if err := s.set(&v, value); err != nil {
			return Values{}, fmt.Errorf("%s=%s: %w", s.Name, value, err)
		}
	}
	return v, nil
}

// Cut divides NAME=VALUE; blanks around the two are dropped.
func Cut(assignment string) (name, value string, err error) {
	name, value, ok := strings.Cut(assignment, "=")
	if !ok {
		return "", "", fmt.Errorf("%q is not NAME=VALUE", assignment)
	}
	return strings.TrimSpace(name), strings.TrimSpace(value), nil
}

// Integer reads a whole number from low to high. The error says that this is wanted.
func Integer(value string, low, high int64) (int64, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("a whole number from %d to %d is wanted", low, high)
	}
	return n, nil
}

// Boolean reads true or false, in letters of any case.
func Boolean(value string) (bool, error) {
	switch {
	case strings.EqualFold(value, "true"):
		return true, nil
	case strings.EqualFold(value, "false"):
		return false, nil
	default:
		return false, errors.New("true or false is wanted")
	}
}

// Nearest is the one of names, of which there must be some, that is most like name.
func Nearest(name string, names []string) string {
	return slices.MinFunc(names, func(a, b string) int { return cmp.Compare(distance(name, a), distance(name, b)) })
}

// distance is the number of letters to insert, remove or replace to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
