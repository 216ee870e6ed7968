package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/wire"
)

// served runs f in a bubble of virtual time with a client of a server on node.
func served(t *testing.T, config Config, node *fakeNode, f func(*testing.T, *harness, *client)) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, config, node)
		defer h.stop()
		c := h.client()
		defer c.close()
		f(t, h, c)
		h.quiet()
	})
}

func TestDispatchTable(t *testing.T) {
	for i, a := range apis {
		if i > 0 && a.key <= apis[i-1].key || a.min > a.max {
			t.Errorf("row of %s is out of order", a.key)
		}
		if err := (wire.Prefix{Key: a.key}).CheckFrame(100); err != nil {
			t.Error(err)
		}
		if max := kmsg.RequestForKey(int16(a.key)).MaxVersion(); a.max > max {
			t.Errorf("%s: version %d is served, kmsg knows %d", a.key, a.max, max)
		}
		if (a.handle == nil) != (a.key == wire.KeyProduce) {
			t.Errorf("%s: handler", a.key)
		}
	}
}

func TestApiVersions(t *testing.T) {
	want := "0:0-13 1:4-17 2:0-11 3:0-13 10:0-6 18:0-4 19:0-7 20:0-6 21:0-2 22:0-5 43:0-2"
	rows := func(resp *kmsg.ApiVersionsResponse) string {
		var s []string
		for _, k := range resp.ApiKeys {
			s = append(s, fmt.Sprintf("%d:%d-%d", k.ApiKey, k.MinVersion, k.MaxVersion))
		}
		return strings.Join(s, " ")
	}
	served(t, Config{}, newFakeNode(), func(t *testing.T, h *harness, c *client) {
		for v := int16(0); v <= 4; v++ {
			req := kmsg.NewPtrApiVersionsRequest()
			req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = v, "franz-go", "v1.22.3"
			resp := ask[*kmsg.ApiVersionsResponse](c, req)
			if got := rows(resp); resp.ErrorCode != 0 || got != want {
				t.Errorf("v%d: error %d, %s", v, resp.ErrorCode, got)
			}
			for _, word := range []string{"", "-a", "a-", ".", "a b", "a\n", "ü"} {
				req.ClientSoftwareVersion = word
				resp := ask[*kmsg.ApiVersionsResponse](c, req)
				if refused := resp.ErrorCode == 42 && len(resp.ApiKeys) == 0; refused != (v >= 3) {
					t.Errorf("v%d: version %q: error %d", v, word, resp.ErrorCode)
				}
			}
		}
		// A newer version is answered in the encoding of version 0, with the one row that tells what to use instead.
		for _, v := range []int16{5, 9, 32767} {
			c.queue <- []byte{0, 0, 0, 11, 0, 18, byte(v >> 8), byte(v), 0, 0, 0, 9, 1, 2, 3} // what follows the prefix is unknown
			body, err := c.receiveFrame()
			if err != nil {
				t.Fatal(err)
			}
			resp := kmsg.NewPtrApiVersionsResponse()
			if err := resp.ReadFrom(body[4:]); err != nil || body[3] != 9 || resp.ErrorCode != 35 || rows(resp) != "18:0-4" || len(body) != 4+2+4+6 {
				t.Errorf("v%d: %x, %v", v, body, err)
			}
		}
	})
}

func TestInitProducerID(t *testing.T) {
	node := newFakeNode()
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		next := int64(1 << 32)
		for v := int16(0); v <= 5; v++ {
			for _, x := range []struct {
				txn   string
				id    int64
				epoch int16
				code  int16
			}{{"-", -1, -1, 0}, {"-", 5, 3, 0}, {"-", -1, 0, 42}, {"-", 5, -1, 42}, {"", -1, -1, 42}, {"txn", -1, -1, 53}, {"txn", 5, 3, 53}, {"txn", 5, -1, 53}} {
				req := kmsg.NewPtrInitProducerIDRequest()
				req.Version, req.ProducerID, req.ProducerEpoch = v, x.id, x.epoch
				if x.txn != "-" {
					req.TransactionalID = &x.txn
				}
				want := fmt.Sprintf("%d %d %d", x.code, -1, -1)
				if v < 3 && x.txn == "-" || x.code == 0 { // below version 3 id and epoch do not exist
					want = fmt.Sprintf("0 %d 0", next)
					next++
				}
				resp := ask[*kmsg.InitProducerIDResponse](c, req)
				if got := fmt.Sprintf("%d %d %d", resp.ErrorCode, resp.ProducerID, resp.ProducerEpoch); got != want {
					t.Errorf("v%d %+v: %s, want %s", v, x, got, want)
				}
			}
		}
		node.idErr = replica.ErrNotLeader
		req := kmsg.NewPtrInitProducerIDRequest()
		if resp := ask[*kmsg.InitProducerIDResponse](c, req); resp.ErrorCode != 14 || resp.ProducerID != -1 {
			t.Errorf("not ready: %+v", resp)
		}
	})
}

func TestFindCoordinator(t *testing.T) {
	served(t, Config{}, newFakeNode(), func(t *testing.T, h *harness, c *client) {
		for v := int16(0); v <= 6; v++ {
			for kind, want := range map[int8]struct {
				code int16
				text string
			}{0: {42, "groups are not supported yet"}, 1: {53, "transactions are not supported"}, 2: {42, "type 2"}, -1: {42, "type -1"}} {
				if v == 0 && kind != 0 {
					continue
				}
				req := kmsg.NewPtrFindCoordinatorRequest()
				req.Version, req.CoordinatorType, req.CoordinatorKey, req.CoordinatorKeys = v, kind, "k", []string{"k", "l"}
				resp := ask[*kmsg.FindCoordinatorResponse](c, req)
				rows := resp.Coordinators
				if v < 4 {
					row := kmsg.FindCoordinatorResponseCoordinator{NodeID: resp.NodeID, Port: resp.Port, ErrorCode: resp.ErrorCode, ErrorMessage: resp.ErrorMessage}
					rows = []kmsg.FindCoordinatorResponseCoordinator{row}
				} else if len(rows) != 2 || rows[0].Key != "k" || rows[1].Key != "l" {
					t.Errorf("v%d: %+v", v, rows)
				}
				for _, row := range rows {
					if row.ErrorCode != want.code || row.NodeID != -1 || row.Port != -1 || v > 0 && !strings.Contains(*row.ErrorMessage, want.text) {
						t.Errorf("v%d type %d: %+v", v, kind, row)
					}
				}
			}
		}
	})
}

func TestListOffsets(t *testing.T) {
	node := twoPartitions()
	node.at("t", 0).set(func(s *replica.Status) { s.LogStart, s.HighWatermark, s.NextOffset, s.Term = 3, 6, 9, 4 })
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		list := func(v int16, name string, partition int32, epoch int32, timestamp int64) string {
			req := kmsg.NewPtrListOffsetsRequest()
			req.Version = v
			topic, p := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
			topic.Topic, p.Partition, p.Timestamp, p.CurrentLeaderEpoch, p.MaxNumOffsets = name, partition, timestamp, epoch, 10
			topic.Partitions = append(topic.Partitions, p)
			req.Topics = append(req.Topics, topic)
			resp := ask[*kmsg.ListOffsetsResponse](c, req).Topics[0].Partitions[0]
			if resp.Partition != partition || resp.Timestamp != -1 && v > 0 {
				t.Errorf("v%d: %+v", v, resp)
			}
			if v == 0 {
				return fmt.Sprintf("%d %v", resp.ErrorCode, resp.OldStyleOffsets)
			}
			return fmt.Sprintf("%d %d/%d", resp.ErrorCode, resp.Offset, resp.LeaderEpoch)
		}
		for v := int16(0); v <= 11; v++ {
			want := func(code int, offset, epoch int) string {
				switch {
				case v == 0 && code == 0:
					return fmt.Sprintf("0 [%d]", offset)
				case v == 0:
					return fmt.Sprintf("%d []", code)
				case v < 4:
					epoch = -1
				}
				return fmt.Sprintf("%d %d/%d", code, offset, epoch)
			}
			for _, x := range []struct {
				name      string
				partition int32
				epoch     int32
				timestamp int64
				want      string
			}{
				{"t", 0, -1, -1, want(0, 6, 4)}, {"t", 0, -1, -2, want(0, 3, 4)}, {"t", 1, -1, -1, want(0, 3, 3)},
				{"t", 0, -1, -3, want(35, -1, -1)}, {"t", 0, -1, 0, want(35, -1, -1)}, {"t", 0, -1, 1 << 40, want(35, -1, -1)},
				{"t", 2, -1, -1, want(3, -1, -1)}, {"t", -1, -1, -1, want(3, -1, -1)}, {"u", 0, -1, -1, want(3, -1, -1)},
			} {
				if got := list(v, x.name, x.partition, x.epoch, x.timestamp); got != x.want {
					t.Errorf("v%d %+v: %s", v, x, got)
				}
			}
			if v >= 4 {
				if got := list(v, "t", 0, 3, -1) + " " + list(v, "t", 0, 5, -1) + " " + list(v, "t", 0, 4, -1); got != "74 -1/-1 75 -1/-1 0 6/4" {
					t.Errorf("v%d: leader epochs: %s", v, got)
				}
			}
			node.at("t", 1).set(func(s *replica.Status) { s.Ready = false })
			code := 78
			if v < 5 {
				code = 5
			}
			if got := list(v, "t", 1, -1, -1); got != want(code, -1, -1) {
				t.Errorf("v%d: not ready: %s", v, got)
			}
			node.at("t", 1).set(func(s *replica.Status) { s.Ready = true })
		}
	})
}

// described prints a Metadata response: each topic with its error, and for each partition error, leader and epoch.
func described(t *testing.T, resp *kmsg.MetadataResponse) string {
	t.Helper()
	if len(resp.Brokers) != 1 || resp.Brokers[0].NodeID != fakeNodeID || resp.Brokers[0].Host != "broker.example" || resp.Brokers[0].Port != 9092 || resp.Brokers[0].Rack != nil {
		t.Errorf("brokers %+v", resp.Brokers)
	}
	if v := resp.Version; v >= 1 && resp.ControllerID != fakeNodeID || v >= 2 && *resp.ClusterID != newFakeNode().ClusterID() || resp.ErrorCode != 0 || resp.AuthorizedOperations != -1<<31 {
		t.Errorf("response %+v", resp)
	}
	var s []string
	for _, topic := range resp.Topics {
		name := "null"
		if topic.Topic != nil {
			name = *topic.Topic
		}
		line := fmt.Sprintf("%s:%d", name, topic.ErrorCode)
		for i, p := range topic.Partitions {
			if p.Partition != int32(i) || !slices.Equal(p.Replicas, []int32{fakeNodeID}) || !slices.Equal(p.ISR, p.Replicas) || len(p.OfflineReplicas) > 0 {
				t.Errorf("partition %+v", p)
			}
			line += fmt.Sprintf(" %d@%d/%d", p.ErrorCode, p.Leader, p.LeaderEpoch)
		}
		if v := resp.Version; topic.IsInternal || topic.AuthorizedOperations != -1<<31 || v >= 10 && topic.ErrorCode == 0 && topic.TopicID != topicID(name) {
			t.Errorf("topic %+v", topic)
		}
		s = append(s, line)
	}
	return strings.Join(s, ", ")
}

func metadataOf(version int16, names ...string) *kmsg.MetadataRequest {
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.Topics = version, []kmsg.MetadataRequestTopic{}
	for _, name := range names {
		topic := kmsg.NewMetadataRequestTopic()
		if name != "null" {
			topic.Topic = &name
		}
		req.Topics = append(req.Topics, topic)
	}
	return req
}

func TestMetadata(t *testing.T) {
	node := newFakeNode()
	node.add("b", 1)
	node.add("a", 2)
	node.at("a", 1).set(func(s *replica.Status) { s.Ready = false })
	delete(node.partitions, partitionKey{topicID("b"), 0})
	served(t, Config{NoAutoCreateTopics: true}, node, func(t *testing.T, h *harness, c *client) {
		for v := int16(0); v <= 13; v++ {
			ask := func(req *kmsg.MetadataRequest) string {
				t.Helper()
				return described(t, ask[*kmsg.MetadataResponse](c, req))
			}
			epoch := func(s string) string {
				if v < 7 {
					return strings.NewReplacer("/3", "/-1", "/1", "/-1").Replace(s)
				}
				return s
			}
			all := metadataOf(v)
			all.Topics = nil
			a, b := epoch("a:0 0@7/3 5@-1/3"), epoch("b:0 5@-1/1")
			none := ""
			if v == 0 {
				none = a + ", " + b
			}
			bad := metadataOf(v, "b", "x", "b", "a b", "", "a", "x")
			bad.AllowAutoTopicCreation = true
			for name, x := range map[string][2]string{
				"all":  {ask(all), a + ", " + b},
				"none": {ask(metadataOf(v)), none},
				"some": {ask(bad), b + ", x:3, a b:17, :17, " + a},
			} {
				if x[0] != x[1] {
					t.Errorf("v%d %s: %q, want %q", v, name, x[0], x[1])
				}
			}
			if v < 10 {
				continue
			}
			ids := metadataOf(v, "null", "null", "null", "null")
			ids.Topics[0].TopicID, ids.Topics[1].TopicID, ids.Topics[2].TopicID = topicID("a"), topicID("u"), topicID("a")
			want := a + ", null:100, null:100"
			if v < 12 {
				want = ":42, :42, :42"
			}
			if got := ask(ids); got != want {
				t.Errorf("v%d by id: %q, want %q", v, got, want)
			}
		}
	})
}

func TestAutoCreate(t *testing.T) {
	node := newFakeNode()
	served(t, Config{NumPartitions: 3}, node, func(t *testing.T, h *harness, c *client) {
		ask := func(v int16, allow bool, name string) string {
			req := metadataOf(v, name)
			req.AllowAutoTopicCreation = allow
			return described(t, ask[*kmsg.MetadataResponse](c, req))
		}
		for _, x := range [][2]string{
			{ask(9, false, "not-allowed"), "not-allowed:3"},
			{ask(9, true, "new"), "new:0 0@7/3 0@7/3 0@7/3"},
			{ask(9, true, "new"), "new:0 0@7/3 0@7/3 0@7/3"},
			{ask(3, false, "old-client"), "old-client:0 0@7/-1 0@7/-1 0@7/-1"},
			{ask(9, true, "bad name"), "bad name:17"},
			{ask(9, true, strings.Repeat("x", 250)), strings.Repeat("x", 250) + ":17"},
			{ask(9, true, "new_er"), "new_er:0 0@7/3 0@7/3 0@7/3"},
			{ask(9, true, "new.er"), "new.er:17"}, // collides
		} {
			if x[0] != x[1] {
				t.Errorf("%q, want %q", x[0], x[1])
			}
		}
		var created []string
		for _, topic := range node.created {
			if created = append(created, topic.Name); topic.Partitions != 3 || topic.Replication != -1 || topic.Assignment != nil || topic.MinInSync != 0 {
				t.Errorf("created %+v", topic)
			}
		}
		if got := strings.Join(created, " "); got != "new old-client new_er" {
			t.Errorf("created %s", got)
		}
		for err, code := range map[error]int{
			replica.ErrNotLeader: 5, replica.ErrStopped: 5, context.DeadlineExceeded: 5, meta.ErrTopicExists: 5, errDisk: 5,
			meta.ErrInvalidPartitions: 37, meta.ErrInvalidReplication: 38,
		} {
			node.createErr = err
			if got := ask(9, true, "x"); got != fmt.Sprintf("x:%d", code) {
				t.Errorf("%v: %s", err, got)
			}
		}
		// It takes too long: the client asks again.
		node.createErr, node.creating = nil, make(chan struct{})
		began := time.Now()
		if got := ask(9, true, "slow"); got != "slow:5" || time.Since(began) != 10*time.Second {
			t.Errorf("%s after %v", got, time.Since(began))
		}
		close(node.creating)
		if got := ask(9, true, "slow"); !strings.HasPrefix(got, "slow:0") {
			t.Error(got)
		}
	})
}

func createOf(version int16, change func(*kmsg.CreateTopicsRequestTopic)) *kmsg.CreateTopicsRequest {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = version, 5000
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = fmt.Sprintf("v%d", version), 2, 1
	if change != nil {
		change(&topic)
	}
	req.Topics = append(req.Topics, topic)
	return req
}

func TestCreateTopicsEveryVersion(t *testing.T) {
	node := newFakeNode()
	served(t, Config{NumPartitions: 3}, node, func(t *testing.T, h *harness, c *client) {
		for v := int16(0); v <= 7; v++ {
			req := createOf(v, nil)
			name := req.Topics[0].Topic
			req.ValidateOnly = v >= 1
			row := ask[*kmsg.CreateTopicsResponse](c, req).Topics[0]
			if _, ok := node.Topics().ByName(name); ok != (v == 0) || row.ErrorCode != 0 {
				t.Errorf("v%d: validated: %+v, created %v", v, row, ok)
			}
			if v == 0 {
				continue
			}
			req.ValidateOnly = false
			resp := ask[*kmsg.CreateTopicsResponse](c, req)
			row = resp.Topics[0]
			topic, ok := node.Topics().ByName(name)
			if !ok || row.ErrorCode != 0 || row.Topic != name || row.ErrorMessage != nil || len(topic.Partitions) != 2 {
				t.Errorf("v%d: %+v", v, row)
			}
			if v >= 7 && row.TopicID != topicID(name) {
				t.Errorf("v%d: topic id %x", v, row.TopicID)
			}
			if v >= 5 && (row.NumPartitions != 2 || row.ReplicationFactor != 1 || len(row.Configs) != len(kafkaTopicConfigs) ||
				row.Configs[0].Name != "cleanup.policy" || *row.Configs[0].Value != "delete" || row.Configs[0].Source != 5) {
				t.Errorf("v%d: %+v", v, row)
			}
			again := ask[*kmsg.CreateTopicsResponse](c, req).Topics[0]
			if again.ErrorCode != 36 || !strings.Contains(*again.ErrorMessage, "already exists") {
				t.Errorf("v%d: again: %+v", v, again)
			}
		}
	})
}

func TestCreateTopicsRefusals(t *testing.T) {
	node := newFakeNode()
	node.join(8, "")
	node.join(9, "")
	served(t, Config{NumPartitions: 3}, node, func(t *testing.T, h *harness, c *client) {
		config := func(name, value string) func(*kmsg.CreateTopicsRequestTopic) {
			return func(r *kmsg.CreateTopicsRequestTopic) {
				r.Configs = append(r.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: name, Value: &value})
			}
		}
		assign := func(list ...[]int32) func(*kmsg.CreateTopicsRequestTopic) {
			return func(r *kmsg.CreateTopicsRequestTopic) {
				r.NumPartitions, r.ReplicationFactor = -1, -1
				for _, a := range list {
					r.ReplicaAssignment = append(r.ReplicaAssignment, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: a[0], Replicas: a[1:]})
				}
			}
		}
		size := func(partitions int32, replication int16) func(*kmsg.CreateTopicsRequestTopic) {
			return func(r *kmsg.CreateTopicsRequestTopic) { r.NumPartitions, r.ReplicationFactor = partitions, replication }
		}
		for i, x := range []struct {
			version int16
			change  func(*kmsg.CreateTopicsRequestTopic)
			code    int16
			text    string
			created int
		}{
			{4, size(-1, -1), 0, "", 3},
			{3, size(-1, 1), 37, "-1", 0},
			{3, size(1, -1), 38, "-1", 0},
			{4, size(0, 1), 37, "1 or more", 0},
			{4, size(-2, 1), 37, "-2", 0},
			{4, size(1001, 1), 37, "", 0},
			{4, size(1, 3), 0, "", 1},
			{4, size(1, 4), 38, "", 0},
			{4, size(1, -2), 38, "-2", 0},
			{4, size(1, 0), 38, "0", 0},
			{4, func(r *kmsg.CreateTopicsRequestTopic) { r.Topic = "a b" }, 17, "invalid topic name", 0},
			{4, assign([]int32{1, 7}, []int32{0, 7}), 0, "", 2},
			{0, assign([]int32{0, 7}), 0, "", 1},
			{4, assign([]int32{0, 6}), 39, "broker 6", 0},
			{4, assign([]int32{0}), 39, "no replicas", 0},
			{4, assign([]int32{0, 7, 8, 9, 7}), 39, "broker 7 more than once", 0},
			{4, assign([]int32{0, 7, 7}), 39, "broker 7 more than once", 0},
			{4, assign([]int32{0, 7, 8}, []int32{1, 8}), 39, "", 0},
			{4, assign([]int32{1, 8, 7}, []int32{0, 7, 9}), 0, "", 2},
			{4, assign([]int32{0, 7}, []int32{0, 7}), 39, "once", 0},
			{4, assign([]int32{0, 7}, []int32{2, 7}), 39, "from 0 to 1", 0},
			{4, assign([]int32{-1, 7}), 39, "-1", 0},
			{4, func(r *kmsg.CreateTopicsRequestTopic) { assign([]int32{0, 7})(r); r.NumPartitions = 1 }, 42, "must be -1", 0},
			{4, config("retention.ms", "604800000"), 0, "", 2},
			{4, config("retention.ms", " 604800000 "), 0, "", 2},
			{4, config("retention.ms", "1"), 40, "retention.ms", 0},
			{4, config("cleanup.policy", "compact"), 40, "compact", 0},
			{4, config("cleanup.policy", "delete"), 0, "", 2},
			{4, config("min.cleanable.dirty.ratio", "0.50"), 0, "", 2},
			{4, config("preallocate", "FALSE"), 0, "", 2},
			{4, config("preallocate", "true"), 40, "preallocate", 0},
			{4, config("unclean.leader.election.enable", "true"), 40, "unclean", 0},
			{4, config("no.such.setting", "x"), 40, `unknown topic setting "no.such.setting"`, 0},
			{4, func(r *kmsg.CreateTopicsRequestTopic) {
				r.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "retention.ms"}}
			}, 40, "no value", 0},
		} {
			req := createOf(x.version, x.change)
			if req.Topics[0].Topic != "a b" {
				req.Topics[0].Topic = fmt.Sprintf("topic-%d", i)
			}
			row := ask[*kmsg.CreateTopicsResponse](c, req).Topics[0]
			text := ""
			if row.ErrorMessage != nil {
				text = *row.ErrorMessage
			}
			created := 0
			if topic, ok := node.Topics().ByName(req.Topics[0].Topic); ok {
				created = len(topic.Partitions)
			}
			if row.ErrorCode != x.code || !strings.Contains(text, x.text) || created != x.created || x.code != 0 && x.version > 0 && text == "" {
				t.Errorf("case %d: error %d %q, %d partitions; want %d %q, %d", i, row.ErrorCode, text, created, x.code, x.text, x.created)
			}
		}
		// One topic's error is not another's; a name given twice is refused once and not created.
		req := createOf(7, nil)
		for _, name := range []string{"twice", "good", "twice", "b@d", "twice"} {
			topic := req.Topics[0]
			topic.Topic = name
			req.Topics = append(req.Topics, topic)
		}
		req.Topics = req.Topics[1:]
		var got []string
		for _, row := range ask[*kmsg.CreateTopicsResponse](c, req).Topics {
			got = append(got, fmt.Sprintf("%s:%d", row.Topic, row.ErrorCode))
		}
		if strings.Join(got, " ") != "twice:42 good:0 b@d:17" {
			t.Errorf("rows %v", got)
		}
	})
}

func TestCreateTopicsErrorsOfTheNode(t *testing.T) {
	node := newFakeNode()
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		for err, code := range map[error]int16{replica.ErrNotLeader: 41, errDisk: -1, meta.ErrInvalidPartitions: 37} {
			node.createErr = err
			if row := ask[*kmsg.CreateTopicsResponse](c, createOf(7, nil)).Topics[0]; row.ErrorCode != code || *row.ErrorMessage != err.Error() {
				t.Errorf("%v: %+v", err, row)
			}
		}
		node.createErr, node.creating = nil, make(chan struct{})
		for timeout, want := range map[int32]time.Duration{5000: 5 * time.Second, 0: 10 * time.Second, -1: 10 * time.Second} {
			req := createOf(7, nil)
			req.TimeoutMillis = timeout
			began := time.Now()
			row := ask[*kmsg.CreateTopicsResponse](c, req).Topics[0]
			if took := time.Since(began); row.ErrorCode != 7 || took != want {
				t.Errorf("timeout %d: %+v after %v", timeout, row, took)
			}
		}
	})
}

func TestTopicConfigTable(t *testing.T) {
	configs := newTopicConfigs(kafkaTopicDefaults)
	if !slices.IsSortedFunc(configs, func(a, b topicConfig) int { return strings.Compare(a.name, b.name) }) {
		t.Error("the table is not in order")
	}
	for i, c := range configs {
		if c.value != kafkaTopicConfigs[i].value {
			t.Errorf("%s=%s follows from Kafka's defaults, Kafka has %s", c.name, c.value, kafkaTopicConfigs[i].value)
		}
		if err := configs.check(c.name, &c.value); err != nil {
			t.Error(err)
		}
		for _, value := range []string{"x", c.value + "0", "-" + c.value, "1.5"} {
			if err := configs.check(c.name, &value); err == nil && value != c.value && !(c.name == "min.cleanable.dirty.ratio" && value == "0.50") && !(c.value == "0" && (value == "00" || value == "-0")) {
				t.Errorf("%s=%s is accepted", c.name, value)
			}
		}
	}
}

// What a topic has follows from the broker's settings, and CreateTopics says and accepts that.
func TestTopicConfigsFollowTheBroker(t *testing.T) {
	defaults := TopicDefaults{Retention: -1, RetentionBytes: 5 << 30, SegmentAge: time.Hour, SegmentBytes: 1 << 20, MessageBytes: 10_000, MinInSync: 2}
	want := map[string]string{
		"retention.ms": "-1 4", "retention.bytes": "5368709120 4", "segment.ms": "3600000 4", "segment.bytes": "1048576 4",
		"max.message.bytes": "10000 4", "min.insync.replicas": "2 4", "cleanup.policy": "delete 5", "flush.ms": "9223372036854775807 5",
	}
	served(t, Config{TopicDefaults: defaults}, newFakeNode(), func(t *testing.T, h *harness, c *client) {
		row := ask[*kmsg.CreateTopicsResponse](c, createOf(7, nil)).Topics[0]
		for _, config := range row.Configs {
			if w, ok := want[config.Name]; ok && w != fmt.Sprintf("%s %d", *config.Value, config.Source) || !ok && config.Source != 5 {
				t.Errorf("%s=%s, source %d", config.Name, *config.Value, config.Source)
			}
		}
		for value, code := range map[string]int16{"10000": 0, "1048588": 40} {
			req := createOf(7, func(r *kmsg.CreateTopicsRequestTopic) {
				r.Topic, r.Configs = "t"+value, []kmsg.CreateTopicsRequestTopicConfig{{Name: "max.message.bytes", Value: &value}}
			})
			row := ask[*kmsg.CreateTopicsResponse](c, req).Topics[0]
			if row.ErrorCode != code || code != 0 && !strings.Contains(*row.ErrorMessage, `every topic has "10000", the broker's message.max.bytes`) {
				t.Errorf("max.message.bytes=%s: %+v", value, row)
			}
		}
	})
}
