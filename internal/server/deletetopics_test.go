package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
)

// deletionOf makes a DeleteTopics request of names and, as #name, ids.
func deletionOf(version int16, names ...string) *kmsg.DeleteTopicsRequest {
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.Version, req.TimeoutMillis = version, 5000
	for _, name := range names {
		if version < 6 {
			req.TopicNames = append(req.TopicNames, name)
			continue
		}
		topic := kmsg.NewDeleteTopicsRequestTopic()
		if id, ok := strings.CutPrefix(name, "#"); ok {
			topic.TopicID = topicID(id)
		} else {
			topic.Topic = &name
		}
		req.Topics = append(req.Topics, topic)
	}
	return req
}

// deleted prints a DeleteTopics response: each topic with its error code.
func deleted(t *testing.T, resp *kmsg.DeleteTopicsResponse) string {
	t.Helper()
	var s []string
	for _, row := range resp.Topics {
		name := "null"
		if row.Topic != nil {
			name = *row.Topic
		}
		s = append(s, fmt.Sprintf("%s:%d", name, row.ErrorCode))
		if known := row.ErrorCode == 0; resp.Version >= 6 && known && row.TopicID != topicID(name) || (row.ErrorMessage == nil) != (known || resp.Version < 5) {
			t.Errorf("v%d: %+v", resp.Version, row)
		}
	}
	if resp.ThrottleMillis != 0 {
		t.Errorf("v%d: throttled for %d ms", resp.Version, resp.ThrottleMillis)
	}
	return strings.Join(s, " ")
}

func TestDeleteTopicsEveryVersion(t *testing.T) {
	for v := int16(0); v <= 6; v++ {
		node := newFakeNode()
		for _, name := range []string{"a", "b", "c"} {
			node.add(name, 2)
		}
		served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
			ask := func(names ...string) string {
				return deleted(t, ask[*kmsg.DeleteTopicsResponse](c, deletionOf(v, names...)))
			}
			for _, x := range [][2]string{
				{ask(), ""},
				{ask("c", "missing", "a", "a b"), "c:0 missing:3 a:0 a b:3"},
				{ask("a"), "a:3"},
				{ask("b", "a", "b", "b"), "b:42 a:3"},
				{ask("b"), "b:0"},
			} {
				if x[0] != x[1] {
					t.Errorf("v%d: %q, want %q", v, x[0], x[1])
				}
			}
			if left := node.Topics().All(); len(left) > 0 || len(node.partitions) > 0 {
				t.Errorf("v%d: %d topics and %d partitions are left", v, len(left), len(node.partitions))
			}
		})
	}
}

func TestDeleteTopicsByID(t *testing.T) {
	node := newFakeNode()
	for _, name := range []string{"a", "b", "c", "d"} {
		node.add(name, 1)
	}
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		for _, x := range []struct {
			names []string
			want  string
		}{
			{[]string{"#a"}, "a:0"},
			{[]string{"#a"}, "null:100"},
			{[]string{"#a", "#a", "#x"}, "null:42 null:100"},
			{[]string{"#b", "#c", "#b"}, "b:42 c:0"},
			{[]string{"#b", "b"}, "b:42"}, // the same topic
			{[]string{"d", "#b", "#d"}, "d:42 b:0"},
		} {
			resp := ask[*kmsg.DeleteTopicsResponse](c, deletionOf(6, x.names...))
			got := ""
			for _, row := range resp.Topics {
				name := "null"
				if row.Topic != nil {
					name = *row.Topic
				}
				got += fmt.Sprintf(" %s:%d", name, row.ErrorCode)
			}
			if strings.TrimSpace(got) != x.want {
				t.Errorf("%v: %s, want %s", x.names, got, x.want)
			}
		}
		both, neither := deletionOf(6, "d"), deletionOf(6, "d")
		both.Topics[0].TopicID = topicID("d")
		neither.Topics[0].Topic = nil
		for _, req := range []*kmsg.DeleteTopicsRequest{both, neither} {
			row := ask[*kmsg.DeleteTopicsResponse](c, req).Topics[0]
			if row.ErrorCode != 42 || (row.Topic == nil) != (req == neither) || row.TopicID != req.Topics[0].TopicID {
				t.Errorf("%+v", row)
			}
		}
		if _, ok := node.Topics().ByName("d"); !ok {
			t.Error("a topic is gone that no request named rightly")
		}
	})
}

// One topic's trouble is not another's, and does not use up its time.
func TestDeleteTopicsErrorsOfTheNode(t *testing.T) {
	node := newFakeNode()
	for _, name := range []string{"a", "slow", "b"} {
		node.add(name, 1)
	}
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		for err, code := range map[error]int16{
			replica.ErrNotLeader: 41, errDisk: -1, replica.ErrStopped: 7, context.Canceled: 7,
			fmt.Errorf("%w: a", meta.ErrUnknownTopic): 3, fmt.Errorf("%w: %w", replica.ErrDiskFull, errDisk): 56,
		} {
			node.deleteErr = err
			row := ask[*kmsg.DeleteTopicsResponse](c, deletionOf(6, "a")).Topics[0]
			if row.ErrorCode != code || !strings.Contains(*row.ErrorMessage, err.Error()) || *row.Topic != "a" {
				t.Errorf("%v: %+v", err, row)
			}
			row = ask[*kmsg.DeleteTopicsResponse](c, deletionOf(6, "#a")).Topics[0]
			if errors.Is(err, meta.ErrUnknownTopic) != (row.ErrorCode == 100 && row.Topic == nil && row.TopicID == topicID("a")) {
				t.Errorf("%v, by id: %+v", err, row)
			}
		}
		node.deleteErr, node.deleting = nil, map[string]chan struct{}{"slow": make(chan struct{})}
		for timeout, want := range map[int32]time.Duration{3000: 3 * time.Second, 0: 10 * time.Second, -1: 10 * time.Second, 1<<31 - 1: changeTimeoutMax} {
			req := deletionOf(6, "slow", "missing")
			if timeout == 3000 {
				req = deletionOf(6, "a", "slow", "missing", "b")
			}
			req.TimeoutMillis = timeout
			began := time.Now()
			got := deleted(t, ask[*kmsg.DeleteTopicsResponse](c, req))
			if took := time.Since(began); took != want || got != "slow:7 missing:3" && got != "a:0 slow:7 missing:3 b:0" {
				t.Errorf("timeout %d: %s after %v", timeout, got, took)
			}
		}
		if left := node.Topics().All(); len(left) != 1 {
			t.Errorf("%d topics are left", len(left))
		}
	})
}
