package server

import (
	"fmt"
	"time"
)

// Config holds the broker settings that the server carries out. The zero value of a field is its default.
type Config struct {
	// MaxConnections is max.connections: a connection above it is closed when it is accepted. Default 10,000. (Kafka
	// has no bound here; an idle connection costs about 14 KiB, measured.)
	MaxConnections int
	// ConnectionIdleMax is connections.max.idle.ms: a connection on which nothing happens for so long, no produce is
	// unanswered and no fetch waits, is closed without a word. Default 10 min; negative: never.
	ConnectionIdleMax time.Duration
	// RequestBytesMax is socket.request.max.bytes: the largest produce request, and the most that the outstanding
	// produces of one connection have together. Other requests have lower bounds of their own. Default 100 MiB.
	RequestBytesMax int
	// QueuedRequestBytesMax is queued.max.request.bytes: the most that the produces of all connections have together,
	// from the moment when a request begins to come in until its partitions have answered: one half of it is for those
	// of up to 1 MiB, the other for larger ones. At the bound a further request is left in the socket until there is
	// room; one alone always passes. Default 256 MiB; negative: no bound.
	QueuedRequestBytesMax int64
	// FetchBytesMax is fetch.max.bytes: the most that one fetch returns, but for a single batch that is larger.
	// Default 55 MiB.
	FetchBytesMax int
	// NumPartitions is num.partitions: the partitions of a topic when the client names no number. Default 1.
	NumPartitions int32
	// NoAutoCreateTopics is the opposite of auto.create.topics.enable, which is on by default.
	NoAutoCreateTopics bool
	// TopicDefaults are the settings that each topic has. The zero value stands for Kafka's defaults.
	TopicDefaults TopicDefaults
	// AutoCreateTimeout bounds how long one Metadata request waits for the topics that it creates, and a request that
	// creates or deletes something and names no time. Default 10 s.
	AutoCreateTimeout time.Duration
	// StopTimeout bounds how long a stop waits for requests in flight. Default 10 s.
	StopTimeout time.Duration
}

// TopicDefaults are the topic settings that follow from the broker's. They are what CreateTopics says a topic has; the
// server does nothing else with them.
type TopicDefaults struct {
	Retention      time.Duration // retention.ms, from log.retention.ms; negative: for ever
	RetentionBytes int64         // retention.bytes, from log.retention.bytes; negative: no bound
	SegmentAge     time.Duration // segment.ms, from log.roll.ms
	SegmentBytes   int64         // segment.bytes, from log.segment.bytes
	MessageBytes   int           // max.message.bytes, from message.max.bytes
	MinInSync      int           // min.insync.replicas; 0: 1
}

// kafkaTopicDefaults are those of a broker that is told nothing.
var kafkaTopicDefaults = TopicDefaults{
	Retention: 7 * 24 * time.Hour, RetentionBytes: -1, SegmentAge: 7 * 24 * time.Hour, SegmentBytes: 1 << 30, MessageBytes: 1048588,
}

// bytesNoBound stands for no bound: more than any machine has.
const bytesNoBound = 1 << 60

func (c Config) withDefaults() (Config, error) {
	for _, field := range []struct {
		name  string
		value *int
		is    int
	}{
		{"max.connections", &c.MaxConnections, 10_000},
		{"socket.request.max.bytes", &c.RequestBytesMax, 100 << 20},
		{"fetch.max.bytes", &c.FetchBytesMax, 55 << 20},
	} {
		if *field.value == 0 {
			*field.value = field.is
		}
		if *field.value < 0 || *field.value > 1<<30 {
			return c, fmt.Errorf("check setting %s: %d is not within 1 to %d", field.name, *field.value, 1<<30)
		}
	}
	switch {
	case c.QueuedRequestBytesMax == 0:
		c.QueuedRequestBytesMax = 256 << 20
	case c.QueuedRequestBytesMax < 0:
		c.QueuedRequestBytesMax = bytesNoBound
	}
	if c.NumPartitions == 0 {
		c.NumPartitions = 1
	}
	if c.NumPartitions < 0 {
		return c, fmt.Errorf("check setting num.partitions: %d is below 1", c.NumPartitions)
	}
	if c.ConnectionIdleMax == 0 {
		c.ConnectionIdleMax = 10 * time.Minute
	}
	if c.AutoCreateTimeout <= 0 {
		c.AutoCreateTimeout = 10 * time.Second
	}
	if c.StopTimeout <= 0 {
		c.StopTimeout = 10 * time.Second
	}
	if c.TopicDefaults == (TopicDefaults{}) {
		c.TopicDefaults = kafkaTopicDefaults
	}
	return c, nil
}
