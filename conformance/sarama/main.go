// Command sarama is an idempotent producer on github.com/IBM/sarama, for campaigns that run it as a child process. It
// is a module of its own, so that the broker's module does not depend on sarama.
//
//	go run -C conformance/sarama . --broker HOST:PORT --topic NAME < lines
//
// Each line of the input is one record: the partition, a space and the value. For each record one line is printed once
// its fate is known: "stored LINE OFFSET" or "failed LINE ERROR", where LINE counts the input from 0. The status is 0
// when all of the input has been read and each record has got its line, whatever that says.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

// lineBytesMax is the largest line of input in bytes.
const lineBytesMax = 1 << 20

func main() {
	broker := flag.String("broker", "127.0.0.1:9092", "HOST:PORT of the broker")
	topic := flag.String("topic", "", "topic, which must exist")
	clientID := flag.String("client-id", "sarama", "client id in every request")
	timeout := flag.Duration("timeout", time.Second, "how long an answer is waited for")
	batch := flag.Int("batch", 100, "records in a request at most")
	verbose := flag.Bool("v", false, "print sarama's own log to stderr")
	flag.Parse()
	if *verbose {
		sarama.Logger = log.New(os.Stderr, "", log.Lmicroseconds)
	}
	if err := run(*broker, *topic, config(*clientID, *timeout, *batch), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sarama:", err)
		os.Exit(1)
	}
}

// config has everything that sarama asks for idempotence, and patience without end: a record is reported as failed
// only when no retry can help.
func config(clientID string, timeout time.Duration, batch int) *sarama.Config {
	const retries, backoff = 1_000_000, 10 * time.Millisecond
	cfg := sarama.NewConfig()
	cfg.ClientID = clientID
	cfg.Version = sarama.MaxVersion
	cfg.Net.MaxOpenRequests = 1
	cfg.Net.DialTimeout, cfg.Net.ReadTimeout, cfg.Net.WriteTimeout = timeout, timeout, timeout
	cfg.Metadata.Retry.Max, cfg.Metadata.Retry.Backoff = retries, backoff
	cfg.Producer.Idempotent = true
	cfg.Producer.RequiredAcks = sarama.WaitForAll
	cfg.Producer.Retry.Max, cfg.Producer.Retry.Backoff = retries, backoff
	cfg.Producer.Flush.MaxMessages = batch
	cfg.Producer.Partitioner = sarama.NewManualPartitioner
	cfg.Producer.Return.Successes, cfg.Producer.Return.Errors = true, true
	return cfg
}

func run(broker, topic string, cfg *sarama.Config, in io.Reader, out io.Writer) error {
	producer, err := makeProducer(broker, cfg)
	if err != nil {
		return err
	}
	fed := make(chan error, 1)
	sent := make(chan int, 1)
	go func() {
		n, err := feed(producer, topic, in)
		fed <- err
		sent <- n
	}()
	buffered := bufio.NewWriter(out)
	known, total := 0, -1 // total: -1 until the input has ended
	for known != total {
		var line string
		select {
		case total = <-sent:
			continue
		case m := <-producer.Successes():
			line = fmt.Sprintf("stored %d %d\n", m.Metadata, m.Offset)
		case e := <-producer.Errors():
			line = fmt.Sprintf("failed %d %q\n", e.Msg.Metadata, e.Err)
		}
		known++
		if _, err := buffered.WriteString(line); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		if len(producer.Successes()) == 0 { // nothing more at this moment
			if err := buffered.Flush(); err != nil {
				return fmt.Errorf("print: %w", err)
			}
		}
	}
	return errors.Join(<-fed, producer.Close())
}

// makerAttempts is how often a producer is tried to be made: sarama asks for its producer id once, whatever the settings
// for retries say, and on a network of the kind that this program is made for that answer may be lost.
const makerAttempts = 100

func makeProducer(broker string, cfg *sarama.Config) (sarama.AsyncProducer, error) {
	for attempt := 1; ; attempt++ {
		producer, err := sarama.NewAsyncProducer([]string{broker}, cfg)
		if err == nil {
			return producer, nil
		}
		if err = fmt.Errorf("make a producer, attempt %d: %w", attempt, err); attempt == makerAttempts {
			return nil, err
		}
		fmt.Fprintln(os.Stderr, "sarama:", err)
	}
}

// feed sends every line and returns how many records that were.
func feed(producer sarama.AsyncProducer, topic string, in io.Reader) (int, error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, lineBytesMax)
	n := 0
	for ; lines.Scan(); n++ {
		number, value, _ := strings.Cut(lines.Text(), " ")
		partition, err := strconv.ParseInt(number, 10, 32)
		if err != nil {
			return n, fmt.Errorf("line %d: %w", n, err)
		}
		producer.Input() <- &sarama.ProducerMessage{
			Topic: topic, Partition: int32(partition), Value: sarama.StringEncoder(value), Metadata: n,
		}
	}
	if err := lines.Err(); err != nil {
		return n, fmt.Errorf("read line %d: %w", n, err)
	}
	return n, nil
}
