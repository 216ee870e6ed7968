package cli

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemq/oncemq/internal/setting"
)

// maxMessageBytes is the largest record batch that a topic with the default max.message.bytes takes.
const maxMessageBytes = 1048588

// inFlightMax is how many requests an idempotent producer may have in flight: a broker remembers as many batches.
const inFlightMax = 5

// The acks property as it stands in a request.
const (
	acksNone   = 0
	acksLeader = 1
	acksAll    = -1
)

// ProducerProperties is a producer's configuration under Kafka's names and rules.
type ProducerProperties struct {
	acks            int16
	batchBytes      int32 // of the largest batch, and so of the largest record
	bufferBytes     int
	clientID        string
	codec           kgo.CompressionCodec
	connectionIdle  time.Duration
	connectionSetup time.Duration
	deliveryTimeout time.Duration
	idempotence     bool
	inFlight        int
	linger          time.Duration
	metadataAge     time.Duration
	requestBytes    int32
	requestTimeout  time.Duration
	retries         int
	retryBackoff    time.Duration
	retryBackoffMax time.Duration

	// Notes is what a person should know: what was changed because of what was set.
	Notes []string
}

// property is one that can be set.
type property struct {
	name  string
	value string // the default
	help  string
	// set reads a value without blanks around it. The error says what would be right.
	set func(p *ProducerProperties, value string) error
}

// milliseconds makes a property of a duration. The bounds are the client's where they are narrower than Kafka's.
func milliseconds(field func(*ProducerProperties) *time.Duration, low, high int64) func(*ProducerProperties, string) error {
	return func(p *ProducerProperties, value string) error {
		n, err := setting.Integer(value, low, high)
		*field(p) = time.Duration(n) * time.Millisecond
		return err
	}
}

// properties are those that can be set, in order of their names.
var properties = []property{
	{"acks", "all", "all: answered when it is safe; 1: when the leader has it; 0: not answered", setAcks},
	{"batch.size", "1048588", "bytes of the largest batch; unlike in Kafka also of the largest record", func(p *ProducerProperties, value string) error {
		n, err := setting.Integer(value, 512, 1<<30)
		p.batchBytes = int32(n)
		return err
	}},
	{"buffer.memory", "33554432", "bytes of records that wait for an answer; then reading waits", func(p *ProducerProperties, value string) error {
		n, err := setting.Integer(value, 1, math.MaxInt)
		p.bufferBytes = int(n)
		return err
	}},
	{"client.id", "oncemq", "a name for the broker's logs", func(p *ProducerProperties, value string) error {
		if len(value) > 256 {
			return errors.New("at most 256 bytes are wanted")
		}
		p.clientID = value
		return nil
	}},
	{"compression.type", "none", "none, gzip, snappy, lz4 or zstd", setCompression},
	{"connections.max.idle.ms", "540000", "an idle connection is closed after this", milliseconds(
		func(p *ProducerProperties) *time.Duration { return &p.connectionIdle }, 100, 900_000)},
	{"delivery.timeout.ms", "120000", "a record without an answer has failed after this", milliseconds(
		func(p *ProducerProperties) *time.Duration { return &p.deliveryTimeout }, 1000, math.MaxInt32)},
	{"enable.idempotence", "true", "what the client sends again is not stored again", func(p *ProducerProperties, value string) (err error) {
		p.idempotence, err = setting.Boolean(value)
		return err
	}},
	{"linger.ms", "5", "how long a batch waits for more records", milliseconds(
		func(p *ProducerProperties) *time.Duration { return &p.linger }, 0, 60_000)},
	{"max.in.flight.requests.per.connection", "5", "requests without an answer; always 5 with idempotence", func(p *ProducerProperties, value string) error {
		n, err := setting.Integer(value, 1, math.MaxInt32)
		p.inFlight = int(n)
		return err
	}},
	{"max.request.size", "104857600", "bytes of the largest request", func(p *ProducerProperties, value string) error {
		n, err := setting.Integer(value, 1024, 1<<30)
		p.requestBytes = int32(n)
		return err
	}},
	{"metadata.max.age.ms", "300000", "new partitions are found after this at the latest", milliseconds(
		func(p *ProducerProperties) *time.Duration { return &p.metadataAge }, 10, 3_600_000)},
	{"request.timeout.ms", "30000", "how long the broker may take to answer", milliseconds(
		func(p *ProducerProperties) *time.Duration { return &p.requestTimeout }, 100, math.MaxInt32)},
	{"retries", "2147483647", "how often a record is sent again", func(p *ProducerProperties, value string) error {
		n, err := setting.Integer(value, 0, math.MaxInt32)
		p.retries = int(n)
		return err
	}},
	{"retry.backoff.max.ms", "1000", "the longest wait before sending again", milliseconds(
		func(p *ProducerProperties) *time.Duration { return &p.retryBackoffMax }, 0, math.MaxInt32)},
	{"retry.backoff.ms", "100", "the first wait before sending again; it doubles each time", milliseconds(
		func(p *ProducerProperties) *time.Duration { return &p.retryBackoff }, 0, math.MaxInt32)},
	{"socket.connection.setup.timeout.ms", "10000", "how long connecting may take", milliseconds(
		func(p *ProducerProperties) *time.Duration { return &p.connectionSetup }, 1, math.MaxInt32)},
}

// refused are properties that a person may well try, each with the reason and, where there is one, the way that works.
// A name that ends in a dot stands for all that begin with it.
var refused = map[string]string{
	"bootstrap.servers":                      "say it with -b HOST:PORT",
	"client.dns.lookup":                      "this client tries one address after the other",
	"compression.":                           "only compression.type can be set; the codecs work at their default levels",
	"enable.metrics.push":                    "this client pushes no metrics",
	"interceptor.classes":                    "there is no JVM here",
	"key.separator":                          "say it with -K SEPARATOR",
	"key.serializer":                         "a key is sent as the bytes that it is",
	"max.block.ms":                           "reading waits as long as records wait for their answer: see delivery.timeout.ms",
	"metadata.":                              "of these only metadata.max.age.ms can be set",
	"metric.reporters":                       "there is no JVM here",
	"metrics.":                               "this client keeps no samples",
	"parse.key":                              "say it with -K SEPARATOR",
	"partitioner.":                           "records with a key go where Kafka's own client puts them; -p names one partition",
	"receive.buffer.bytes":                   "the system sizes its buffers itself",
	"reconnect.backoff.max.ms":               "retry.backoff.max.ms covers connecting as well",
	"reconnect.backoff.ms":                   "retry.backoff.ms covers connecting as well",
	"sasl.":                                  "authentication is not supported yet",
	"security.protocol":                      "TLS and authentication are not supported yet: connections are PLAINTEXT",
	"send.buffer.bytes":                      "the system sizes its buffers itself",
	"socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms holds for every try",
	"ssl.":                                   "TLS is not supported yet",
	"transaction.timeout.ms":                 "OnceMQ has no transactions",
	"transaction.two.phase.commit.enable":    "OnceMQ has no transactions",
	"transactional.id":                       "OnceMQ has no transactions: what it has instead is the idempotent producer, which is on by default",
	"value.serializer":                       "a value is sent as the bytes that it is",
}

func setAcks(p *ProducerProperties, value string) error {
	switch value {
	case "all", "-1":
		p.acks = acksAll
	case "1":
		p.acks = acksLeader
	case "0":
		p.acks = acksNone
	default:
		return errors.New("all, 1 or 0 is wanted")
	}
	return nil
}

func setCompression(p *ProducerProperties, value string) error {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	codec, ok := codecs[value]
	if !ok {
		return errors.New("none, gzip, snappy, lz4 or zstd is wanted")
	}
	p.codec = codec
	return nil
}

// ParseProducerProperties reads properties of the form NAME=VALUE. An error is a mistake in asking, and says what would
// be right.
func ParseProducerProperties(assignments []string) (*ProducerProperties, error) {
	p := new(ProducerProperties)
	for _, known := range properties {
		if err := known.set(p, known.value); err != nil {
			return nil, fmt.Errorf("default of %s: %w", known.name, err)
		}
	}
	given := make(map[string]bool)
	for _, assignment := range assignments {
		name, value, err := setting.Cut(assignment)
		if err != nil {
			return nil, err
		}
		at, found := slices.BinarySearchFunc(properties, name, func(known property, name string) int { return strings.Compare(known.name, name) })
		switch {
		case !found:
			return nil, notKnown(name)
		case given[name]:
			return nil, fmt.Errorf("%s is set twice", name)
		}
		given[name] = true
		if err := properties[at].set(p, value); err != nil {
			return nil, fmt.Errorf("%s=%s: %w", name, value, err)
		}
	}
	return p, p.settle(given)
}

// notKnown says why a property cannot be set.
func notKnown(name string) error {
	for begin, reason := range refused {
		if name == begin || strings.HasSuffix(begin, ".") && strings.HasPrefix(name, begin) {
			return fmt.Errorf("%s cannot be set: %s", name, reason)
		}
	}
	var names []string
	for _, known := range properties {
		names = append(names, known.name)
	}
	for known := range refused {
		if !strings.HasSuffix(known, ".") {
			names = append(names, known)
		}
	}
	slices.Sort(names)
	return fmt.Errorf("%s is not a producer property: did you mean %s? (`oncemq help produce` lists them)", name, setting.Nearest(name, names))
}

// ProducerPropertiesHelp is the table of all that can be set, for a help text.
func ProducerPropertiesHelp() string {
	var b strings.Builder
	for _, p := range properties {
		fmt.Fprintf(&b, "  %s=%s\n      %s\n", p.name, p.value, p.help)
	}
	return b.String()
}
