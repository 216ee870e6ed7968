package cli

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// bufferedRecordsMax bounds the records that wait for an answer where buffer.memory, which counts their bytes alone,
// would let small ones pile up. It is several times what is ever in flight at full speed.
const bufferedRecordsMax = 50_000

// answerOverhead is how much longer than request.timeout.ms an answer may take before its connection is given up: the
// broker, which is told that time, shall be the first to say that it is over.
const answerOverhead = 10 * time.Second

// settle applies the rules that join several properties, as Kafka 4 has them. given holds the names that were set: a
// default gives way to what was set, but what was set is never changed.
func (p *ProducerProperties) settle(given map[string]bool) error {
	if err := p.settleIdempotence(given); err != nil {
		return err
	}
	// The client could not tell that a request is lost before the record is.
	if least := p.linger + p.requestTimeout; p.deliveryTimeout < least {
		if given["delivery.timeout.ms"] {
			return fmt.Errorf("delivery.timeout.ms=%d is shorter than linger.ms=%d and request.timeout.ms=%d together",
				p.deliveryTimeout.Milliseconds(), p.linger.Milliseconds(), p.requestTimeout.Milliseconds())
		}
		p.deliveryTimeout = min(least, math.MaxInt32*time.Millisecond)
		p.note("delivery.timeout.ms is raised to %d, the sum of linger.ms and request.timeout.ms", p.deliveryTimeout.Milliseconds())
	}
	if p.retryBackoff > p.retryBackoffMax {
		p.note("retry.backoff.ms is above retry.backoff.max.ms=%d, which is every wait then", p.retryBackoffMax.Milliseconds())
	}
	return nil
}

// settleIdempotence decides whether the producer is idempotent. Asked for, it must be possible; by default it gives way
// to acks and retries with a note, but not to too many requests in flight, which is an error since Kafka 4 (KAFKA-17927).
func (p *ProducerProperties) settleIdempotence(given map[string]bool) error {
	if !p.idempotence {
		return nil
	}
	var conflicts []string
	if p.retries == 0 {
		conflicts = append(conflicts, "retries=0")
	}
	if p.acks != acksAll {
		conflicts = append(conflicts, fmt.Sprintf("acks=%d", p.acks))
	}
	asked := given["enable.idempotence"]
	if p.inFlight > inFlightMax {
		if !asked {
			return fmt.Errorf("max.in.flight.requests.per.connection=%d is too many for an idempotent producer, which may have %d: "+
				"set it to %[2]d, or enable.idempotence=false as well", p.inFlight, inFlightMax)
		}
		conflicts = append(conflicts, fmt.Sprintf("max.in.flight.requests.per.connection=%d", p.inFlight))
	}
	switch list := strings.Join(conflicts, " and "); {
	case len(conflicts) > 0 && asked:
		return fmt.Errorf("enable.idempotence=true does not go with %s: it needs acks=all, retries above 0 and at most %d requests in flight", list, inFlightMax)
	case len(conflicts) > 0:
		p.idempotence = false
		p.note("idempotence is off because of %s: what the client sends again can be stored twice", list)
	case p.inFlight < inFlightMax:
		return fmt.Errorf("max.in.flight.requests.per.connection=%d cannot be had with idempotence: this client then has %d in flight, "+
			"and keeps the order all the same; leave it out, or set enable.idempotence=false as well", p.inFlight, inFlightMax)
	}
	return nil
}

func (p *ProducerProperties) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// recordBytesMax is the largest record, counted as a batch of its own, as in Kafka also against buffer.memory.
func (p *ProducerProperties) recordBytesMax() int {
	return min(int(min(p.batchBytes, p.requestBytes)), p.bufferBytes)
}

// options are the properties as franz-go takes them. random returns numbers from 0 on below 1.
func (p *ProducerProperties) options(random func() float64) []kgo.Opt {
	options := []kgo.Opt{
		kgo.BrokerMaxWriteBytes(p.requestBytes),
		kgo.ClientID(p.clientID),
		kgo.ConnIdleTimeout(p.connectionIdle),
		kgo.DialTimeout(p.connectionSetup),
		kgo.DisableClientMetrics(),
		kgo.MaxBufferedBytes(p.bufferBytes),
		kgo.MaxBufferedRecords(bufferedRecordsMax),
		kgo.MetadataMaxAge(p.metadataAge),
		kgo.MetadataMinAge(min(p.metadataAge, metadataMinAge)),
		kgo.ProduceRequestTimeout(p.requestTimeout),
		kgo.ProducerBatchCompression(p.codec),
		kgo.ProducerBatchMaxBytes(min(p.batchBytes, p.requestBytes)),
		kgo.ProducerLinger(p.linger),
		kgo.RecordDeliveryTimeout(p.deliveryTimeout),
		kgo.RecordRetries(p.retries),
		kgo.RequestTimeoutOverhead(min(p.requestTimeout, answerOverhead)),
		kgo.RetryBackoffFn(p.backoff(random)),
	}
	switch p.acks {
	case acksNone:
		options = append(options, kgo.RequiredAcks(kgo.NoAck()))
	case acksLeader:
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()))
	default:
		options = append(options, kgo.RequiredAcks(kgo.AllISRAcks()))
	}
	if !p.idempotence {
		return append(options, kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(p.inFlight))
	}
	// Without this the client would wait for ever for the answer to a request that is out: neither delivery.timeout.ms
	// nor retries nor giving up would hold. The danger that it names, sending a record of unknown fate again as a new
	// one, is not there: nothing here sends a record again that has failed.
	return append(options, kgo.AllowIdempotentProduceCancellation())
}

func (p *ProducerProperties) backoff(random func() float64) func(int) time.Duration {
	return backoff(p.retryBackoff, p.retryBackoffMax, random)
}
