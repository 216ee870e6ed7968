// Package kcat is what the campaigns know of kcat, a command-line client made with librdkafka: how it is made an idempotent
// producer, and what it prints. It is test support; the broker does not import it.
package kcat

import (
	"fmt"
	"hash/crc32"
	"strconv"
	"time"
)

// Options are how kcat produces.
type Options struct {
	Brokers  string // HOST:PORT, separated by commas
	Topic    string
	ClientID string
	// AnswerWithin bounds the wait for one answer, Backoff is the pause before a retry.
	AnswerWithin, Backoff time.Duration
	// BatchRecords and BatchBytes bound a batch.
	BatchRecords, BatchBytes int
	// Debug are the parts of librdkafka that say what they do, separated by commas; "" for none.
	Debug string
}

// Args makes kcat an idempotent producer of lines with a key and a value, separated by a tab. It reports where each record
// went, and does not end when all brokers are away for a moment.
func Args(o Options) []string {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	args := []string{"-P", "-E", "-v", "-v", "-b", o.Brokers, "-t", o.Topic, "-K", "\t"}
	for key, value := range map[string]string{
		"client.id":                o.ClientID,
		"enable.idempotence":       "true",
		"acks":                     "all",
		"partitioner":              "consistent",
		"message.timeout.ms":       "0", // no limit
		"request.timeout.ms":       ms(o.AnswerWithin),
		"socket.timeout.ms":        ms(o.AnswerWithin),
		"retry.backoff.ms":         ms(o.Backoff),
		"reconnect.backoff.ms":     ms(o.Backoff),
		"reconnect.backoff.max.ms": ms(10 * o.Backoff),
		"linger.ms":                "1",
		"batch.num.messages":       strconv.Itoa(o.BatchRecords),
		"batch.size":               strconv.Itoa(o.BatchBytes),
	} {
		args = append(args, "-X", key+"="+value)
	}
	if o.Debug != "" {
		args = append(args, "-X", "debug="+o.Debug)
	}
	return args
}

// Delivered reads the line with which kcat says where a record went. It does not say which record: the lines of a partition
// come in the order of its records.
func Delivered(line string) (partition, offset int64, err error) {
	if _, err := fmt.Sscanf(line, "%% Message delivered to partition %d (offset %d)", &partition, &offset); err != nil {
		return 0, 0, fmt.Errorf("%q: %w", line, err)
	}
	return partition, offset, nil
}

// Keys returns a key for each partition that librdkafka's consistent partitioner sends there.
func Keys(partitions uint32) []string {
	keys := make([]string, partitions)
	for i, missing := 0, partitions; missing > 0; i++ {
		key := strconv.Itoa(i)
		if p := crc32.ChecksumIEEE([]byte(key)) % partitions; keys[p] == "" {
			keys[p] = key
			missing--
		}
	}
	return keys
}
