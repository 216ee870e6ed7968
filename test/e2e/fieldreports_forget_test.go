package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// pace is how long the broker may let a request wait that is repeated until something has happened.
const pace = 5 * time.Millisecond

// until calls try, at the pace of a fetch that finds nothing, until it says true.
func (p *producer) until(what string, try func() bool) {
	p.t.Helper()
	for begun := time.Now(); !try(); {
		if time.Since(begun) > patience {
			p.t.Fatalf("%s: not within %v", what, patience)
		}
		if _, err := p.c.Fetch(rawkafka.FetchVersion, p.topic, p.partition, p.next(), pace); err != nil {
			p.t.Fatal(err)
		}
	}
}

// storeWhenAllowed sends a batch again and again, as long as it is refused with code, until it is stored.
func (p *producer) storeWhenAllowed(epoch batch.Epoch, sequence batch.Sequence, n int, code int16) {
	p.t.Helper()
	p.until(fmt.Sprintf("sequence %d is refused with %d no more", sequence, code), func() bool {
		a := p.send(epoch, sequence, n)
		if a.Code != 0 && a.Code != code || a.Code == 0 && a.Base != p.next() {
			p.t.Fatalf("sequence %d was answered with code %d offset %d (%s), want %d, or 0 and %d", sequence, a.Code, a.Base, a.Text, code, p.next())
		}
		return a.Code == 0
	})
	p.stored(epoch, sequence, n)
}

// awaitForgotten waits until the partition has forgotten a producer whose id is higher than that of older, which the
// partition has never seen: from then on older may begin anywhere, and before it may not.
func awaitForgotten(older *producer) {
	older.t.Helper()
	older.storeWhenAllowed(0, 1000, 1, codeOutOfOrder)
}

// shortMemory makes a broker forget a producer that is idle for a good second.
var shortMemory = []string{"producer.id.expiration.ms=1200", "producer.id.expiration.check.interval.ms=20"}

// A producer was idle for longer than the broker remembered it; its next batch was judged as if it were a new producer's
// and refused, which some clients take for the end (redpanda-data/redpanda issue 22670). Right is: a producer that was
// forgotten goes on where it was, and is remembered again from there, retries included.
func TestIdleProducerComesBack(t *testing.T) {
	t.Parallel()
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data", Set: shortMemory})
	t.Run("raw", func(t *testing.T) {
		t.Parallel()
		older := newProducerOn(t, b)
		p := older.beside()
		p.store(0, 0, 7)
		awaitForgotten(older)
		base := p.next()
		p.store(0, 7, 8)
		p.again(0, 7, 8, base)
		p.refused(0, 16, 1, codeOutOfOrder) // a gap is one as before
		p.store(0, 15, 1)
		p.mustHold(t, p.c, 0)
	})
	t.Run("franz-go", func(t *testing.T) {
		t.Parallel()
		older := newProducerOn(t, b)
		client := newFranz(t, b, kgo.StopProducerOnDataLossDetected(), kgo.ProducerBatchCompression(kgo.NoCompression()))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		produce := func(n int) {
			for range n {
				value := fmt.Appendf(nil, "record %d", older.next())
				older.records = append(older.records, value)
				if err := client.ProduceSync(ctx, &kgo.Record{Topic: older.topic.Name, Value: value}).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
		}
		produce(7)
		awaitForgotten(older)
		produce(8)
		older.mustHold(t, older.c, 0)
	})
	t.Run("kcat", func(t *testing.T) {
		t.Parallel()
		older := newProducerOn(t, b)
		in, ended := pipeToKcat(t, "-P", "-b", b.Addr(), "-t", older.topic.Name, "-X", "enable.idempotence=true", "-X", "acks=all")
		produce := func(n int) {
			for range n {
				base := older.next()
				line := fmt.Appendf(nil, "%-1023d", base) // kcat reads its input in pieces of 1024 bytes
				older.records = append(older.records, line)
				if _, err := fmt.Fprintf(in, "%s\n", line); err != nil {
					t.Fatal(err)
				}
				awaitHighWatermark(t, older.c, older.topic, base, base+1)
			}
		}
		produce(7)
		awaitForgotten(older)
		produce(8)
		if err := errors.Join(in.Close(), ended()); err != nil {
			t.Error(err)
		}
		older.mustHold(t, older.c, 0)
	})
}

// pipeToKcat runs kcat and returns its input, and what waits for its end and says what was wrong.
func pipeToKcat(t *testing.T, args ...string) (in interface {
	Write([]byte) (int, error)
	Close() error
}, ended func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	cmd := exec.CommandContext(ctx, "kcat", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v (is kcat installed?)", err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	return in, func() error {
		if err := cmd.Wait(); err != nil || strings.Contains(stderr.String(), "ERROR") {
			return fmt.Errorf("kcat ended with %w and says: %s", err, stderr.String())
		}
		return nil
	}
}

// After 2147483647 comes 0. Some brokers and clients went negative there, some wrapped one early, and a producer was
// refused for good (redpanda-data/redpanda issue 4854, twmb/franz-go issues 216 and 226, Apache Kafka KAFKA-7692 and
// KAFKA-7693). To begin that high a producer must be one that the partition may have forgotten: here for want of room.
func TestSequenceWraps(t *testing.T) {
	t.Parallel()
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data",
		Set: []string{"producer.id.max.per.partition=2", "producer.id.eviction.min.age.ms=0"}})
	// atTheEnd returns a producer that is known to a partition with these batches.
	atTheEnd := func(sequence batch.Sequence, n int) *producer {
		p := newProducerOn(t, b)
		for range 3 {
			p.beside().storeWhenAllowed(0, 0, 1, codeNotEnoughReplicas)
		}
		p.storeWhenAllowed(0, sequence, n, codeNotEnoughReplicas)
		return p
	}
	t.Run("between two batches", func(t *testing.T) {
		p := atTheEnd(2147483640, 5)
		p.store(0, 2147483645, 3)
		base := p.next()
		p.refused(0, -2147483648, 1, codeInvalidRecord)
		p.refused(0, 1, 1, codeOutOfOrder)
		p.refused(0, 2147483647, 1, codeOutOfOrder)
		p.store(0, 0, 1)
		for range 2 {
			p.again(0, 0, 1, base)
			p.again(0, 2147483645, 3, base-3)
			p.again(0, 2147483640, 5, base-8)
		}
		p.store(0, 1, 1)
		p.mustHold(t, p.c, 0)
	})
	t.Run("inside a batch", func(t *testing.T) {
		p := atTheEnd(2147483646, 1)
		base := p.next()
		p.store(0, 2147483647, 4)
		p.refused(0, 4, 1, codeOutOfOrder)
		p.refused(0, 2, 1, codeOutOfOrder)
		p.again(0, 2147483647, 4, base)
		p.store(0, 3, 1)
		p.again(0, 2147483647, 4, base)
		p.mustHold(t, p.c, 0)
	})
}

// The log of a partition was emptied, by age or by DeleteRecords, and with a producer's last record went what the broker
// knew of it: its next batch was refused with UNKNOWN_PRODUCER_ID (Apache Kafka KAFKA-7190 and KAFKA-5793,
// spring-projects/spring-kafka issue 1441). Right is: what is remembered of producers has nothing to do with which records
// are left. A retry of a batch whose records are gone is answered with the offset at which they were.
func TestProducerOutlivesItsRecords(t *testing.T) {
	for _, way := range []struct {
		name  string
		set   []string
		empty func(*producer)
	}{
		{"DeleteRecords", []string{"log.retention.ms=-1"}, func(p *producer) {
			if start, err := p.c.DeleteRecords(p.topic, 0, -1); err != nil || start != p.next() {
				p.t.Fatalf("delete all records: the log starts at %d, %v, want %d", start, err, p.next())
			}
		}},
		{"retention by time", []string{"log.retention.ms=1", "log.retention.check.interval.ms=10"}, func(p *producer) {
			p.until("the log is empty", func() bool {
				start, _, err := p.c.Offsets(p.topic, 0)
				if err != nil {
					p.t.Fatal(err)
				}
				return start == p.next()
			})
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data", Set: way.set})
			stranger := newProducerOn(t, b)
			p := stranger.beside()
			p.store(0, 0, 5)
			way.empty(p)
			p.mustHold(t, p.c, 5)
			sequence := batch.Sequence(5)
			for i, sig := range append(stops, stops...) {
				base := p.next()
				p.store(0, sequence, 1)
				if i%2 == 1 {
					way.empty(p)
				}
				for range 2 {
					p.again(0, sequence, 1, base)
					p.refused(0, sequence+4, 1, codeOutOfOrder)
					stranger.refused(0, 40, 1, codeOutOfOrder)
					way.empty(p)
				}
				p.again(0, 0, 5, 0)
				sequence++
				b = restarted(t, b, sig)
				p.c = dial(t, b)
				stranger.c = p.c
				p.again(0, sequence-1, 1, base)
				p.mustHold(t, p.c, p.next())
			}
			p.store(0, sequence, 1)
			p.refused(0, 0, 5, codeOutOfOrder) // beyond the window now
			way.empty(p)
			if f, err := p.c.Fetch(rawkafka.FetchVersion, p.topic, 0, p.next()-1, 0); err != nil || f.Code != codeOffsetOutOfRange {
				t.Errorf("a fetch below the log start: %+v, %v, want code %d", f, err, codeOffsetOutOfRange)
			}
			if _, err := p.c.DeleteRecords(p.topic, 0, p.next()+1); codeOf(err) != codeOffsetOutOfRange {
				t.Errorf("delete records above the high watermark: %v, want code %d", err, codeOffsetOutOfRange)
			}
		})
	}
	t.Run("and forgotten at last", func(t *testing.T) {
		t.Parallel()
		b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data", Set: shortMemory})
		older := newProducerOn(t, b)
		second := older.beside()
		p := older.beside()
		p.store(0, 0, 5)
		if _, err := p.c.DeleteRecords(p.topic, 0, -1); err != nil {
			t.Fatal(err)
		}
		second.refused(0, 40, 1, codeOutOfOrder)
		awaitForgotten(older)
		second.store(0, 40, 1)
		p.store(0, 5, 1)
		p.beside().refused(0, 40, 1, codeOutOfOrder) // its id is above all that was forgotten
		p.mustHold(t, p.c, 5)
	})
}

// The same, when it is the size of the log that its oldest segments are deleted for.
func TestProducerOutlivesItsSegments(t *testing.T) {
	t.Parallel()
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data",
		Set: []string{"log.retention.ms=-1", "log.segment.bytes=65536", "log.retention.bytes=65536", "log.retention.check.interval.ms=10"}})
	p := newProducerOn(t, b)
	p.store(0, 0, 1)
	quiet := p.beside()
	quiet.store(0, 0, 1)
	for i := range batch.Sequence(40) {
		p.store(0, 1+200*i, 200) // some 10 KiB
	}
	p.until("the oldest records are deleted", func() bool {
		start, _, err := p.c.Offsets(p.topic, 0)
		if err != nil {
			t.Fatal(err)
		}
		return start > 2
	})
	quiet.again(0, 0, 1, 1)
	quiet.store(0, 1, 1)
	quiet.again(0, 0, 1, 1)
}
