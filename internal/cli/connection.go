package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// patience bounds the wait for an answer that does not depend on anything but the broker.
const patience = 10 * time.Second

// pause is how long to wait before asking again what the broker could not answer yet.
const pause = 100 * time.Millisecond

// metadataMinAge is how soon the client asks again where the partitions are. It bounds how long a client stands still
// after its broker is back.
const metadataMinAge = time.Second

// backoffSpread is the part of a wait by which it is made longer or shorter, so that clients that lost a broker together
// do not come back together. It is Kafka's.
const backoffSpread = 0.2

// backoff returns how long to wait before the n-th retry: doubling from first to most. random returns numbers from 0 on,
// below 1.
func backoff(first, most time.Duration, random func() float64) func(int) time.Duration {
	return func(failures int) time.Duration {
		wait := first
		for i := 1; i < failures && wait < most; i++ {
			wait *= 2
		}
		return time.Duration(float64(min(wait, most)) * (1 - backoffSpread + 2*backoffSpread*random()))
	}
}

// DefaultBroker is where `oncemq serve` listens when it is told nothing.
const DefaultBroker = "127.0.0.1:9092"

// kafkaPort is the port of an address that names none, as in kcat.
const kafkaPort = "9092"

// ParseBrokers reads HOST[:PORT][,...]. An error is a mistake in asking.
func ParseBrokers(text string) ([]string, error) {
	var brokers []string
	for address := range strings.SplitSeq(text, ",") {
		address = strings.TrimSpace(address)
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			// No port, or an IPv6 address without brackets, to which none can be told apart.
			host, port = strings.TrimSuffix(strings.TrimPrefix(address, "["), "]"), kafkaPort
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || host == "" || strings.ContainsAny(host, " /[]") || strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return nil, fmt.Errorf("%q is not HOST:PORT", address)
		}
		brokers = append(brokers, net.JoinHostPort(host, port))
	}
	return brokers, nil
}

// connection is a client of a cluster that has answered.
type connection struct {
	client *kgo.Client
	admin  *kadm.Client
}

// connect makes a client and waits until one of the brokers answers. From then on the client connects again by
// itself, and what hinders it is said on n.
func connect(ctx context.Context, brokers []string, n *notices, options ...kgo.Opt) (*connection, error) {
	reach := &reachability{notices: n, lost: make(map[string]struct{})}
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(brokers...), kgo.WithHooks(reach))...)
	if err != nil {
		return nil, fmt.Errorf("set up the client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		client.Close()
		if errors.Is(err, context.Canceled) {
			return nil, ErrInterrupted
		}
		return nil, fmt.Errorf("no broker answers at %s: %s\nstart one with `oncemq serve`, or name another with -b HOST:PORT",
			strings.Join(brokers, ", "), networkCause(err))
	}
	reach.arm()
	return &connection{client, kadm.NewClient(client)}, nil
}

func (c *connection) close() { c.client.Close() }

// networkCause says in few words why a connection failed.
func networkCause(err error) string {
	switch dns, _ := errors.AsType[*net.DNSError](err); {
	case dns != nil:
		return "the name " + dns.Name + " is not known"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer in time"
	default:
		return err.Error()
	}
}

// reachability tells a person when a broker cannot be reached and when it can again, once each.
type reachability struct {
	notices *notices

	mu    sync.Mutex
	armed bool
	lost  map[string]struct{} // addresses; no more than the cluster has brokers
}

var _ kgo.HookBrokerConnect = (*reachability)(nil)

func (r *reachability) arm() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.armed = true
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (r *reachability) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.armed || errors.Is(err, context.Canceled) {
		return
	}
	address := net.JoinHostPort(meta.Host, strconv.Itoa(int(meta.Port)))
	_, wasLost := r.lost[address]
	switch {
	case err != nil && !wasLost:
		r.lost[address] = struct{}{}
		r.notices.say("the broker at %s cannot be reached (%s): trying again", address, networkCause(err))
	case err == nil && wasLost:
		delete(r.lost, address)
		r.notices.say("the broker at %s is back", address)
	}
}

// lookUp returns what the cluster says of a topic. It does not bring the topic into being.
func (c *connection) lookUp(ctx context.Context, topic string) (kadm.TopicDetail, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	details, err := c.admin.ListTopics(ctx, topic)
	if errors.Is(err, context.Canceled) {
		err = ErrInterrupted
	}
	if err != nil {
		return kadm.TopicDetail{}, fmt.Errorf("ask for topic %s: %w", topic, err)
	}
	detail, ok := details[topic]
	switch {
	case !ok || errors.Is(detail.Err, kerr.UnknownTopicOrPartition):
		return detail, fmt.Errorf("topic %s does not exist: make it with `oncemq topic create %s`, or see `oncemq topic list`", topic, topic)
	case detail.Err != nil:
		return detail, fmt.Errorf("ask for topic %s: %w", topic, detail.Err)
	}
	return detail, nil
}

// checkTopic finds out whether there is a topic, and in it a partition unless that is AnyPartition.
func (c *connection) checkTopic(ctx context.Context, topic string, partition int32) error {
	detail, err := c.lookUp(ctx, topic)
	if err == nil {
		_, err = choose(detail, partition)
	}
	return err
}

// choose returns the partition of a topic, or all of them in order when it is AnyPartition.
func choose(topic kadm.TopicDetail, partition int32) ([]int32, error) {
	if partition == AnyPartition {
		return slices.Sorted(maps.Keys(topic.Partitions)), nil
	}
	if _, ok := topic.Partitions[partition]; ok {
		return []int32{partition}, nil
	}
	if len(topic.Partitions) == 1 {
		return nil, fmt.Errorf("topic %s has no partition %d: its only one is 0", topic.Topic, partition)
	}
	return nil, fmt.Errorf("topic %s has no partition %d: its partitions are 0 to %d", topic.Topic, partition, len(topic.Partitions)-1)
}

// span is the range of a partition: offsets from begin on, below end.
type span struct{ begin, end int64 }

// spans returns the range of every partition of the topics. A partition whose leader is about to be ready, as after
// a start, is waited for.
func (c *connection) spans(ctx context.Context, topics ...string) (map[string]map[int32]span, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		spans, err := c.spansNow(ctx, topics)
		if err == nil || !kerr.IsRetriable(err) {
			return spans, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		case <-timer.C:
		}
	}
}

func (c *connection) spansNow(ctx context.Context, topics []string) (map[string]map[int32]span, error) {
	begins, err := c.admin.ListStartOffsets(ctx, topics...)
	if err == nil {
		err = begins.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the first offsets: %w", err)
	}
	ends, err := c.admin.ListEndOffsets(ctx, topics...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the last offsets: %w", err)
	}
	spans := make(map[string]map[int32]span)
	ends.Each(func(end kadm.ListedOffset) {
		begin, ok := begins.Lookup(end.Topic, end.Partition)
		if !ok {
			return // made between the two questions: it has nothing yet
		}
		if spans[end.Topic] == nil {
			spans[end.Topic] = make(map[int32]span)
		}
		spans[end.Topic][end.Partition] = span{begin.Offset, end.Offset}
	})
	return spans, nil
}
