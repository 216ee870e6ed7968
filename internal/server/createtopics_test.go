package server

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A topic is made as it is asked for, and the answer says what it has.
func TestCreateTopicsInACluster(t *testing.T) {
	node := threeNodes()
	served(t, Config{NumPartitions: 2, TopicDefaults: TopicDefaults{MinInSync: 2}}, node, func(t *testing.T, h *harness, c *client) {
		minInSync := func(value string) []kmsg.CreateTopicsRequestTopicConfig {
			return []kmsg.CreateTopicsRequestTopicConfig{{Name: "min.insync.replicas", Value: &value}}
		}
		for i, x := range []struct {
			change      func(*kmsg.CreateTopicsRequestTopic)
			wanted      NewTopic
			partitions  int32
			replication int16
			minInSync   string
		}{
			{func(r *kmsg.CreateTopicsRequestTopic) { r.NumPartitions, r.ReplicationFactor = -1, -1 },
				NewTopic{Partitions: 2, Replication: -1}, 2, 3, "2 4"},
			{func(r *kmsg.CreateTopicsRequestTopic) { r.NumPartitions, r.ReplicationFactor = 4, 2 },
				NewTopic{Partitions: 4, Replication: 2}, 4, 2, "2 4"},
			{func(r *kmsg.CreateTopicsRequestTopic) {
				r.NumPartitions, r.ReplicationFactor = -1, -1
				r.ReplicaAssignment = []kmsg.CreateTopicsRequestTopicReplicaAssignment{{Partition: 1, Replicas: []int32{9, 7}}, {Partition: 0, Replicas: []int32{8, 9}}}
			}, NewTopic{Partitions: 2, Replication: -1, Assignment: [][]int32{{8, 9}, {9, 7}}}, 2, 2, "2 4"},
			{func(r *kmsg.CreateTopicsRequestTopic) { r.Configs = minInSync("3") },
				NewTopic{Partitions: 2, Replication: 1, MinInSync: 3}, 2, 1, "3 1"},
			{func(r *kmsg.CreateTopicsRequestTopic) { r.Configs = minInSync(" 2 ") }, // as the broker's, but it stays when that changes
				NewTopic{Partitions: 2, Replication: 1, MinInSync: 2}, 2, 1, "2 1"},
		} {
			for _, validate := range []bool{true, false} {
				req := createOf(7, x.change)
				req.ValidateOnly = validate
				name := fmt.Sprintf("topic-%d", i)
				req.Topics[0].Topic, x.wanted.Name = name, name
				row := ask[*kmsg.CreateTopicsResponse](c, req).Topics[0]
				if row.ErrorCode != 0 || row.NumPartitions != x.partitions || row.ReplicationFactor != x.replication || (row.TopicID == [16]byte{}) != validate {
					t.Errorf("case %d: %+v", i, row)
				}
				for _, config := range row.Configs {
					if got := fmt.Sprintf("%s %d", *config.Value, config.Source); config.Name == "min.insync.replicas" && got != x.minInSync {
						t.Errorf("case %d: min.insync.replicas %s", i, got)
					}
				}
			}
			if got := node.created[len(node.created)-1]; !reflect.DeepEqual(got, x.wanted) {
				t.Errorf("case %d: created %+v", i, got)
			}
		}
		for _, value := range []string{"0", "-1", "x", "", "1.5", "32768", "99999999999"} {
			row := ask[*kmsg.CreateTopicsResponse](c, createOf(7, func(r *kmsg.CreateTopicsRequestTopic) { r.Configs = minInSync(value) })).Topics[0]
			if row.ErrorCode != 40 || row.ErrorMessage == nil {
				t.Errorf("min.insync.replicas=%q: %+v", value, row)
			}
		}
		row := ask[*kmsg.CreateTopicsResponse](c, createOf(7, func(r *kmsg.CreateTopicsRequestTopic) {
			r.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "min.insync.replicas"}}
		})).Topics[0]
		if row.ErrorCode != 40 {
			t.Errorf("without a value: %+v", row)
		}
	})
}
