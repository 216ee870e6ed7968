package setting

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDefaults(t *testing.T) {
	want := Values{
		AutoCreateTopics: true, ConnectionIdleMax: 10 * time.Minute, Connections: 10_000, FetchBytes: 55 << 20,
		LeaderBalance: true, LeaderBalanceInterval: 5 * time.Minute, MessageBytes: 1048588, MinInSync: 1, ReplicaLagMax: 30 * time.Second, Replication: -1,
		NumPartitions: 1, ProducerEvictionMinAge: 15 * time.Minute, ProducerExpiration: 24 * time.Hour, ProducerExpiryInterval: 10 * time.Minute,
		ProducersPerNode: 2_000_000, ProducersPerPartition: 100_000, QueuedRequestBytes: 256 << 20, RequestBytes: 100 << 20,
		Retention: 7 * 24 * time.Hour, RetentionBytes: -1, RetentionInterval: 5 * time.Minute, SegmentAge: 7 * 24 * time.Hour,
		SegmentBytes: 1 << 30, SegmentEntries: 1 << 18,
	}
	if got, err := Parse(nil); err != nil || got != want {
		t.Errorf("defaults are %+v, %v,\nwant         %+v", got, err, want)
	}
}

// Each setting fills a field of its own, but for those that say the same in another unit, and changes no other.
func TestEachSettingHasItsField(t *testing.T) {
	filledBy := make(map[string]string)
	for _, s := range table {
		value := fmt.Sprint(max(s.Min, 1))
		if s.isSwitch() {
			value = "false"
		}
		got, err := Parse([]string{s.Name + "=" + value})
		if err != nil {
			t.Fatal(err)
		}
		var changed []string
		is, was := reflect.ValueOf(got), reflect.ValueOf(Defaults())
		for i := range is.NumField() {
			if !is.Field(i).Equal(was.Field(i)) {
				changed = append(changed, is.Type().Field(i).Name)
			}
		}
		if value == s.Default {
			continue // num.partitions
		}
		if len(changed) != 1 {
			t.Fatalf("%s=%s changes %v", s.Name, value, changed)
		}
		begin := s.Name[:strings.LastIndexByte(s.Name, '.')]
		if before, ok := filledBy[changed[0]]; ok && before != begin {
			t.Errorf("%s changes %s, as %s does", s.Name, changed[0], before)
		}
		filledBy[changed[0]] = begin
	}
}

func TestTable(t *testing.T) {
	if all := names(); !slices.IsSorted(all) || len(slices.Compact(all)) != len(table) {
		t.Errorf("the names are not in order, or one is there twice: %v", all)
	}
	for _, s := range table {
		if s.Help == "" || strings.Contains(s.Help, "|") {
			t.Errorf("%s: the help text %q cannot stand in a table", s.Name, s.Help)
		}
		if !s.isSwitch() && (s.Min < -1 || s.Max <= s.Min) {
			t.Errorf("%s: the bounds %d to %d", s.Name, s.Min, s.Max)
		}
		if !strings.Contains(Help(), "  "+s.Name+"="+s.Default+"\n      "+s.Help+"\n") {
			t.Errorf("%s is not in the help text", s.Name)
		}
	}
}

func TestPrecedence(t *testing.T) {
	for _, c := range []struct {
		given           string
		retention, roll time.Duration
	}{
		{"log.retention.hours=2", 2 * time.Hour, 168 * time.Hour},
		{"log.retention.minutes=3 log.retention.hours=2", 3 * time.Minute, 168 * time.Hour},
		{"log.retention.ms=4 log.retention.hours=2 log.retention.minutes=3", 4 * time.Millisecond, 168 * time.Hour},
		{"log.retention.hours=2 log.retention.ms=-1", -1, 168 * time.Hour},
		{"log.retention.hours=-1 log.retention.minutes=5", 5 * time.Minute, 168 * time.Hour},
		{"log.retention.hours=-1", -1, 168 * time.Hour},
		{"log.roll.ms=5 log.roll.hours=6", 168 * time.Hour, 5 * time.Millisecond},
		{"log.roll.hours=6", 168 * time.Hour, 6 * time.Hour},
	} {
		if v, err := Parse(strings.Fields(c.given)); err != nil || v.Retention != c.retention || v.SegmentAge != c.roll {
			t.Errorf("%s: retention %v, roll %v, %v", c.given, v.Retention, v.SegmentAge, err)
		}
	}
}

func TestMistakes(t *testing.T) {
	for given, want := range map[string]string{
		"num.partitions":                       `"num.partitions" is not NAME=VALUE`,
		"":                                     `"" is not NAME=VALUE`,
		"=1":                                   "did you mean",
		"num.partition=1":                      "num.partition is not a setting: did you mean num.partitions?",
		"retention.ms=1":                       "did you mean log.retention.ms?",
		"num.partitions=0":                     "num.partitions=0: a whole number from 1 to 10000 is wanted",
		"num.partitions=10001":                 "from 1 to 10000 is wanted",
		"num.partitions=":                      "num.partitions=: a whole number",
		"num.partitions=one":                   "num.partitions=one: a whole number",
		"num.partitions=1.0":                   "a whole number",
		"num.partitions=99999999999999999999":  "a whole number",
		"log.retention.ms=0":                   "log.retention.ms=0: a whole number from 1 to 3153600000000 is wanted, or -1",
		"log.retention.ms=-2":                  "to 3153600000000 is wanted, or -1",
		"log.retention.ms=9223372036854775807": "to 3153600000000 is wanted, or -1",
		"log.retention.bytes=0":                "or -1",
		"auto.create.topics.enable=yes":        "auto.create.topics.enable=yes: true or false is wanted",
		"unclean.leader.election.enable=true":  "only false is possible: a replica that lacks",
		"unclean.leader.election.enable=x":     "true or false is wanted",
		"default.replication.factor=0":         "or -1",
		"default.replication.factor=32768":     "from 1 to 32767 is wanted, or -1",
		"min.insync.replicas=0":                "from 1 to 32767 is wanted",
		"max.connections=1 max.connections=1":  "max.connections is set twice",
	} {
		list := strings.Fields(given)
		if given == "" {
			list = []string{""}
		}
		if v, err := Parse(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v, want an error with %q", given, v, err, want)
		}
	}
	if v, err := Parse([]string{" num.partitions = 7 ", "auto.create.topics.enable=FALSE", "unclean.leader.election.enable=false"}); err != nil || v.NumPartitions != 7 || v.AutoCreateTopics {
		t.Errorf("blanks and capitals: %+v, %v", v, err)
	}
}

// Whatever an operator writes, what is taken is within the bounds, and no duration can overflow in nanoseconds.
func TestParseKeepsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(table).Draw(t, "setting")
		n := rapid.OneOf(rapid.Int64(), rapid.Int64Range(-3, 3), rapid.Int64Range(s.Max-2, s.Max)).Draw(t, "value")
		v, err := Parse([]string{fmt.Sprintf("%s=%d", s.Name, n)})
		within := !s.isSwitch() && n >= s.Min && n <= s.Max && (s.Min >= 0 || n != 0)
		if (err == nil) != within {
			t.Fatalf("%s=%d, allowed %s: %v", s.Name, n, s.Allowed(), err)
		}
		if err != nil {
			return
		}
		fields := reflect.ValueOf(v)
		for i := range fields.NumField() {
			name, field := fields.Type().Field(i).Name, fields.Field(i)
			if d, ok := field.Interface().(time.Duration); ok && (d < -1 || d > longest*time.Millisecond) {
				t.Fatalf("%s=%d makes %s %v", s.Name, n, name, d)
			}
		}
	})
}

func TestDistance(t *testing.T) {
	for _, d := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"", "ab", 2}, {"kitten", "sitting", 3}, {"acks", "acks", 0}, {"ab", "ba", 2}} {
		if got := distance(d.a, d.b); got != d.want {
			t.Errorf("distance of %q and %q: %d, want %d", d.a, d.b, got, d.want)
		}
	}
}
