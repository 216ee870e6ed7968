package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// answerWithin is how long the clients wait for an answer before they give a connection up.
	answerWithin = 500 * time.Millisecond
	// backoff is their pause before they try again.
	backoff = 10 * time.Millisecond
	// batchRecords and batchBytes keep batches small, so that there are many for the proxy to lose.
	batchRecords = 20
	batchBytes   = 2048
)

// client sends all that feed gives, and tells p what became of it. It returns after the last answer.
type client func(ctx context.Context, c *campaign, p *producer) error

// clients has all clients by the names that --clients knows.
var clients = map[string]client{"franz-go": runFranz, "sarama": runSarama, "kcat": runKcat}

// runFranz produces with franz-go in this process. StopProducerOnDataLossDetected makes a wrong refusal by the broker
// an error; by default franz-go would number its batches anew and send them again. AlwaysRetryEOF: by default it takes
// a connection that ends before its first answer for one that needs TLS, and gives up.
func runFranz(ctx context.Context, c *campaign, p *producer) error {
	client, err := kgo.NewClient(
		kgo.ClientID(p.String()),
		kgo.SeedBrokers(c.proxy.Addr()),
		kgo.DefaultProduceTopic(p.round.topic.Name),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(batchBytes),
		kgo.ProducerLinger(0),
		kgo.StopProducerOnDataLossDetected(),
		kgo.AlwaysRetryEOF(),
		kgo.ProduceRequestTimeout(answerWithin),
		kgo.RequestTimeoutOverhead(answerWithin),
		kgo.RetryTimeout(clientWithin),
		kgo.RequestRetries(1_000_000),
		kgo.UnknownTopicRetries(-1),
		kgo.RetryBackoffFn(func(int) time.Duration { return backoff }),
		kgo.MetadataMinAge(backoff),
	)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	defer client.Close()
	for r := range p.all() {
		record := &kgo.Record{Value: r.line, Partition: r.partition}
		client.Produce(ctx, record, func(record *kgo.Record, err error) {
			if err != nil {
				p.failed(r.number, err.Error())
				return
			}
			p.stored(r.number, record.Offset)
		})
	}
	if err := client.Flush(ctx); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// runSarama runs the program of conformance/sarama.
func runSarama(ctx context.Context, c *campaign, p *producer) error {
	cmd := exec.CommandContext(ctx, c.sarama, "--broker", c.proxy.Addr(), "--topic", p.round.topic.Name,
		"--client-id", p.String(), "--timeout", answerWithin.String(), "--batch", strconv.Itoa(batchRecords))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	answers, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("open a pipe: %w", err)
	}
	err = converse(cmd, p, answers,
		func(line string) error { return readSarama(p, line) },
		func(r record) []byte { return fmt.Appendf(nil, "%d %s\n", r.partition, r.line) })
	if err != nil {
		return fmt.Errorf("%w: %s", err, stderr.String())
	}
	return nil
}

// readSarama reads one line that the program has printed.
func readSarama(p *producer, line string) error {
	fate, rest, _ := strings.Cut(line, " ")
	first, rest, _ := strings.Cut(rest, " ")
	number, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return fmt.Errorf("%q: %w", line, err)
	}
	if fate != "stored" {
		p.failed(number, rest)
		return nil
	}
	offset, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		return fmt.Errorf("%q: %w", line, err)
	}
	p.stored(number, offset)
	return nil
}

// converse runs a child process: it writes the records of p to it and reads its answers line by line.
func converse(cmd *exec.Cmd, p *producer, answers io.Reader, read func(string) error, write func(record) []byte) error {
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("open a pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	fed := make(chan error, 1)
	go func() {
		buffered := bufio.NewWriter(in)
		for r := range p.all() {
			if _, err := buffered.Write(write(r)); err != nil {
				break // the child has ended, which tells more
			}
		}
		_ = buffered.Flush()
		fed <- in.Close()
	}()
	var wrong error
	lines := bufio.NewScanner(answers)
	for lines.Scan() {
		if err := read(lines.Text()); err != nil && wrong == nil {
			wrong = err
		}
	}
	err = cmd.Wait()
	<-fed
	switch {
	case err != nil:
		return fmt.Errorf("%s ended: %w", cmd.Path, err)
	case wrong != nil:
		return fmt.Errorf("read what %s says: %w", cmd.Path, wrong)
	}
	return lines.Err()
}
