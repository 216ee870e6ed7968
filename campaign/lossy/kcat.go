package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/oncemq/oncemq/campaign/internal/kcat"
)

// kcatOptions are those of one producer.
func kcatOptions(broker, topic, clientID string) kcat.Options {
	return kcat.Options{
		Brokers: broker, Topic: topic, ClientID: clientID,
		AnswerWithin: answerWithin, Backoff: backoff, BatchRecords: batchRecords, BatchBytes: batchBytes,
	}
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
	partition, offset, err := kcat.Delivered(line)
	if err != nil {
		return err
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
	cmd := exec.CommandContext(ctx, c.kcat, kcat.Args(kcatOptions(c.proxy.Addr(), p.round.topic.Name, p.String()))...)
	answers, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("open a pipe: %w", err)
	}
	keys := kcat.Keys(partitions)
	reports := kcatReports{p: p}
	err = converse(cmd, p, answers, reports.read,
		func(r record) []byte { return fmt.Appendf(nil, "%s\t%s\n", keys[r.partition], r.line) })
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.Join(reports.said, "\n"))
	}
	return nil
}
