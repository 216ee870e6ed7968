package server

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/setting"
)

// Where a setting comes from, in Kafka's numbers: the topic's own, a broker setting given at the start, or Kafka's default,
// which nobody changed.
const (
	configSourceTopic   = 1
	configSourceBroker  = 4
	configSourceDefault = 5
)

// configKind tells how two values of a setting are compared.
type configKind uint8

const (
	configText   configKind = iota
	configNumber            // a 64-bit integer
	configRatio             // a floating-point number
	configSwitch            // true or false, in any case
)

// topicConfig is a topic setting and the value that every topic has.
type topicConfig struct {
	name   string
	value  string
	kind   configKind
	broker string // the broker setting that it follows; "": none
}

// minInSyncConfig is the setting that a topic can have of its own.
const minInSyncConfig = "min.insync.replicas"

// checkMinInSync reads a topic's own min.insync.replicas.
func checkMinInSync(value *string) (int32, error) {
	if value == nil {
		return 0, fmt.Errorf("topic setting %s has no value", minInSyncConfig)
	}
	n, err := setting.Integer(strings.TrimSpace(*value), 1, meta.MinInSyncMax)
	if err != nil {
		return 0, fmt.Errorf("topic setting %s=%.100q: %w", minInSyncConfig, *value, err)
	}
	return int32(n), nil
}

// withMinInSync returns the settings of a topic that has a min.insync.replicas of its own.
func withMinInSync(rows []kmsg.CreateTopicsResponseTopicConfig, n int32) []kmsg.CreateTopicsResponseTopicConfig {
	rows = slices.Clone(rows)
	for i := range rows {
		if rows[i].Name == minInSyncConfig {
			value := strconv.Itoa(int(n))
			rows[i].Value, rows[i].Source = &value, configSourceTopic
		}
	}
	return rows
}

// topicConfigs are topic settings, in order of their names. A topic can be created with each of them at the value that
// it has anyway: any other is refused, and never merely stored. Only min.insync.replicas a topic may have of its own.
type topicConfigs []topicConfig

// kafkaTopicConfigs are the topic settings of Kafka 4 with their defaults.
var kafkaTopicConfigs = topicConfigs{
	{"cleanup.policy", "delete", configText, ""},
	{"compression.gzip.level", "-1", configNumber, ""},
	{"compression.lz4.level", "9", configNumber, ""},
	{"compression.type", "producer", configText, ""},
	{"compression.zstd.level", "3", configNumber, ""},
	{"delete.retention.ms", "86400000", configNumber, ""},
	{"file.delete.delay.ms", "60000", configNumber, ""},
	{"flush.messages", "9223372036854775807", configNumber, ""},
	{"flush.ms", "9223372036854775807", configNumber, ""},
	{"follower.replication.throttled.replicas", "", configText, ""},
	{"index.interval.bytes", "4096", configNumber, ""},
	{"leader.replication.throttled.replicas", "", configText, ""},
	{"local.retention.bytes", "-2", configNumber, ""},
	{"local.retention.ms", "-2", configNumber, ""},
	{"max.compaction.lag.ms", "9223372036854775807", configNumber, ""},
	{"max.message.bytes", "1048588", configNumber, ""},
	{"message.timestamp.after.max.ms", "3600000", configNumber, ""},
	{"message.timestamp.before.max.ms", "9223372036854775807", configNumber, ""},
	{"message.timestamp.type", "CreateTime", configText, ""},
	{"min.cleanable.dirty.ratio", "0.5", configRatio, ""},
	{"min.compaction.lag.ms", "0", configNumber, ""},
	{minInSyncConfig, "1", configNumber, ""},
	{"preallocate", "false", configSwitch, ""},
	{"remote.log.copy.disable", "false", configSwitch, ""},
	{"remote.log.delete.on.disable", "false", configSwitch, ""},
	{"remote.storage.enable", "false", configSwitch, ""},
	{"retention.bytes", "-1", configNumber, ""},
	{"retention.ms", "604800000", configNumber, ""},
	{"segment.bytes", "1073741824", configNumber, ""},
	{"segment.index.bytes", "10485760", configNumber, ""},
	{"segment.jitter.ms", "0", configNumber, ""},
	{"segment.ms", "604800000", configNumber, ""},
	{"unclean.leader.election.enable", "false", configSwitch, ""},
}

// newTopicConfigs returns Kafka's settings, with the values that follow from the settings of this broker.
func newTopicConfigs(d TopicDefaults) topicConfigs {
	configs := slices.Clone(kafkaTopicConfigs)
	for i := range configs {
		switch c := &configs[i]; c.name {
		case "max.message.bytes":
			c.follow("message.max.bytes", int64(d.MessageBytes))
		case minInSyncConfig:
			c.follow(minInSyncConfig, int64(max(d.MinInSync, 1)))
		case "retention.bytes":
			c.follow("log.retention.bytes", max(d.RetentionBytes, -1))
		case "retention.ms":
			c.follow("log.retention.ms", milliseconds(d.Retention))
		case "segment.bytes":
			c.follow("log.segment.bytes", d.SegmentBytes)
		case "segment.ms":
			c.follow("log.roll.ms", milliseconds(d.SegmentAge))
		}
	}
	return configs
}

// milliseconds is a duration as Kafka writes it: -1 is without end.
func milliseconds(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}

// follow gives the setting the value of a broker setting.
func (c *topicConfig) follow(broker string, value int64) {
	c.broker, c.value = broker, strconv.FormatInt(value, 10)
}

// rows are the settings as CreateTopics reports them.
func (configs topicConfigs) rows() []kmsg.CreateTopicsResponseTopicConfig {
	rows := make([]kmsg.CreateTopicsResponseTopicConfig, len(configs))
	for i := range rows {
		rows[i] = kmsg.NewCreateTopicsResponseTopicConfig()
		rows[i].Name, rows[i].Value, rows[i].Source = configs[i].name, &configs[i].value, configSourceDefault
		if configs[i].value != kafkaTopicConfigs[i].value {
			rows[i].Source = configSourceBroker
		}
	}
	return rows
}

// check refuses a setting that is not known, or not set to what every topic has, with a text for a person.
func (configs topicConfigs) check(name string, value *string) error {
	for _, c := range configs {
		switch {
		case c.name != name:
		case value == nil:
			return fmt.Errorf("topic setting %s has no value", name)
		case !c.equals(*value):
			return fmt.Errorf("topic setting %s=%.100q is not supported yet: every topic has %s", name, *value, c.origin())
		default:
			return nil
		}
	}
	return fmt.Errorf("unknown topic setting %.100q", name)
}

// origin is the value and where it comes from, for a person.
func (c topicConfig) origin() string {
	if c.broker == "" {
		return strconv.Quote(c.value)
	}
	return fmt.Sprintf("%q, the broker's %s", c.value, c.broker)
}

// equals tells whether a value means the one that every topic has.
func (c topicConfig) equals(value string) bool {
	value = strings.TrimSpace(value)
	switch c.kind {
	case configNumber:
		n, err := strconv.ParseInt(value, 10, 64)
		return err == nil && strconv.FormatInt(n, 10) == c.value
	case configRatio:
		x, err := strconv.ParseFloat(value, 64)
		return err == nil && strconv.FormatFloat(x, 'g', -1, 64) == c.value
	case configSwitch:
		return strings.EqualFold(value, c.value)
	default:
		return value == c.value
	}
}
