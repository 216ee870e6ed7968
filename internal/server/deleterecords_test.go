package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/replica"
)

// trimOf makes a DeleteRecords request of topic "t" with an offset for each partition, from 0 on.
func trimOf(version int16, offsets ...int64) *kmsg.DeleteRecordsRequest {
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.Version, req.TimeoutMillis = version, 5000
	topic := kmsg.NewDeleteRecordsRequestTopic()
	topic.Topic = "t"
	for i, offset := range offsets {
		p := kmsg.NewDeleteRecordsRequestTopicPartition()
		p.Partition, p.Offset = int32(i), offset
		topic.Partitions = append(topic.Partitions, p)
	}
	req.Topics = append(req.Topics, topic)
	return req
}

// trimmed prints a DeleteRecords response: each partition with its error code and log start.
func trimmed(t *testing.T, resp *kmsg.DeleteRecordsResponse) string {
	t.Helper()
	var s []string
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			s = append(s, fmt.Sprintf("%s/%d:%d@%d", topic.Topic, p.Partition, p.ErrorCode, p.LowWatermark))
		}
	}
	if resp.ThrottleMillis != 0 {
		t.Errorf("v%d: throttled for %d ms", resp.Version, resp.ThrottleMillis)
	}
	return strings.Join(s, " ")
}

func TestDeleteRecordsEveryVersion(t *testing.T) {
	for v := int16(0); v <= 2; v++ {
		node := twoPartitions() // 9 and 3 records
		served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
			ask := func(req *kmsg.DeleteRecordsRequest) string {
				return trimmed(t, ask[*kmsg.DeleteRecordsResponse](c, req))
			}
			for _, x := range [][2]string{
				{ask(trimOf(v)), ""},
				{ask(trimOf(v, 0, 0)), "t/0:0@0 t/1:0@0"},
				{ask(trimOf(v, 4, 4, 0)), "t/0:0@4 t/1:1@-1 t/2:3@-1"}, // also in the middle of a batch
				{ask(trimOf(v, 3)), "t/0:0@4"},                         // it begins later already
				{ask(trimOf(v, 10, 3)), "t/0:1@-1 t/1:0@3"},
				{ask(trimOf(v, -2)), "t/0:1@-1"},
				{ask(trimOf(v, -1, -1)), "t/0:0@9 t/1:0@3"},
			} {
				if x[0] != x[1] {
					t.Errorf("v%d: %q, want %q", v, x[0], x[1])
				}
			}
			if s := node.at("t", 0).Status(); s.LogStart != 9 {
				t.Errorf("v%d: the log starts at %d", v, s.LogStart)
			}
			other := trimOf(v, 5)
			other.Topics = append(other.Topics, trimOf(v, 5, 5).Topics...)
			other.Topics[0].Topic, other.Topics[1].Partitions[1].Partition = "u", -1
			if got := ask(other); got != "u/0:3@-1 t/0:0@9 t/-1:3@-1" {
				t.Errorf("v%d: %s", v, got)
			}
		})
	}
}

// One partition's trouble is not another's, and does not use up its time.
func TestDeleteRecordsErrors(t *testing.T) {
	node := twoPartitions()
	p := node.at("t", 0)
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		ask := func(req *kmsg.DeleteRecordsRequest) string {
			return trimmed(t, ask[*kmsg.DeleteRecordsResponse](c, req))
		}
		for err, code := range map[error]int{
			replica.ErrNotLeader: 6, replica.ErrStopped: 6, replica.ErrOffline: 56, replica.ErrDiskFull: 56, replica.ErrOutOfRange: 1,
		} {
			p.trimErr = err
			if got := ask(trimOf(2, 1, 1)); got != fmt.Sprintf("t/0:%d@-1 t/1:0@1", code) {
				t.Errorf("%v: %s", err, got)
			}
		}
		h.quiet()
		p.trimErr = errDisk
		if got := ask(trimOf(2, 1)) + ask(trimOf(2, 1)); got != "t/0:56@-1t/0:56@-1" {
			t.Error(got)
		}
		h.logged("delete records failed", "topic=t", "partition=0", "offset=1", errDisk.Error())
		p.trimErr, p.trimming = nil, make(chan struct{})
		for timeout, want := range map[int32]time.Duration{3000: 3 * time.Second, 0: 10 * time.Second} {
			req := trimOf(2, 1, 2)
			req.TimeoutMillis = timeout
			began := time.Now()
			if got, took := ask(req), time.Since(began); got != "t/0:7@-1 t/1:0@2" || took != want {
				t.Errorf("timeout %d: %s after %v", timeout, got, took)
			}
		}
		p.set(func(s *replica.Status) { s.Ready = false })
		node.at("t", 1).set(func(s *replica.Status) { s.Offline = errDisk })
		if got := ask(trimOf(2, 1, 1)); got != "t/0:6@-1 t/1:56@-1" {
			t.Error(got)
		}
	})
}

// More partitions than are trimmed at a time, all of them slow: they still come to their end together.
func TestDeleteRecordsOfManyPartitions(t *testing.T) {
	const partitions = 2*changesAtOnce + 1
	node := newFakeNode()
	node.add("t", partitions)
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		for i := range partitions {
			trimming := make(chan struct{})
			node.at("t", int32(i)).trimming = trimming
			time.AfterFunc(time.Second, func() { close(trimming) })
		}
		began := time.Now()
		got := trimmed(t, ask[*kmsg.DeleteRecordsResponse](c, trimOf(2, make([]int64, partitions)...)))
		if n := strings.Count(got, ":0@0"); n != partitions || time.Since(began) > 3*time.Second {
			t.Errorf("%d partitions are trimmed after %v", n, time.Since(began))
		}
	})
}
