package main

import (
	"context"
	"fmt"
	"hash/crc32"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// kcatArgs makes kcat (librdkafka) an idempotent producer that reports where each record went and does not end when
// the only broker is away for a moment.
func kcatArgs(broker, topic, clientID string) []string {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	args := []string{"-P", "-E", "-v", "-v", "-b", broker, "-t", topic, "-K", "\t"}
	for key, value := range map[string]string{
		"client.id":                clientID,
		"enable.idempotence":       "true",
		"acks":                     "all",
		"partitioner":              "consistent",
		"message.timeout.ms":       "0", // no limit
		"request.timeout.ms":       ms(answerWithin),
		"socket.timeout.ms":        ms(answerWithin),
		"retry.backoff.ms":         ms(backoff),
		"reconnect.backoff.ms":     ms(backoff),
		"reconnect.backoff.max.ms": ms(10 * backoff),
		"linger.ms":                "1",
		"batch.num.messages":       strconv.Itoa(batchRecords),
		"batch.size":               strconv.Itoa(batchBytes),
	} {
		args = append(args, "-X", key+"="+value)
	}
	return args
}

// kcatReports reads what kcat prints. It tells the partition and the offset of each record, but not which record it
// means: the reports of a partition come in the order of its records.
type kcatReports struct {
	p    *producer
	seen [partitions]int64
	said []string // the last lines that are no reports
}

func (k *kcatReports) read(line string) error {
	switch {
	case strings.HasPrefix(line, "% Delivery failed"):
		k.p.failed(-1, line)
		return nil
	case !strings.HasPrefix(line, "% Message delivered"):
		if k.said = append(k.said, line); len(k.said) > problemsMax {
			k.said = slices.Delete(k.said, 0, 1)
		}
		return nil
	}
	var partition, offset int64
	if _, err := fmt.Sscanf(line, "%% Message delivered to partition %d (offset %d)", &partition, &offset); err != nil {
		return fmt.Errorf("%q: %w", line, err)
	}
	if partition < 0 || partition >= partitions {
		return fmt.Errorf("%q: there is no such partition", line)
	}
	number, err := k.p.sentTo(partition, k.seen[partition])
	if err != nil {
		return fmt.Errorf("%q: %w", line, err)
	}
	k.seen[partition]++
	k.p.stored(number, offset)
	return nil
}

// runKcat runs kcat, which picks the partition by the record's key.
func runKcat(ctx context.Context, c *campaign, p *producer) error {
	cmd := exec.CommandContext(ctx, c.kcat, kcatArgs(c.proxy.Addr(), p.round.topic.Name, p.String())...)
	answers, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("open a pipe: %w", err)
	}
	keys := kcatKeys(partitions)
	reports := kcatReports{p: p}
	err = converse(cmd, p, answers, reports.read,
		func(r record) []byte { return fmt.Appendf(nil, "%s\t%s\n", keys[r.partition], r.line) })
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.Join(reports.said, "\n"))
	}
	return nil
}

// kcatKeys returns a key for each partition that librdkafka's consistent partitioner sends there.
func kcatKeys(n uint32) []string {
	keys := make([]string, n)
	for i, missing := 0, n; missing > 0; i++ {
		key := strconv.Itoa(i)
		if p := crc32.ChecksumIEEE([]byte(key)) % n; keys[p] == "" {
			keys[p] = key
			missing--
		}
	}
	return keys
}
