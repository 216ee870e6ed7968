package server

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/replica"
)

// A partition that is offline says so, and the other one of its topic is served as before.
func TestOfflinePartition(t *testing.T) {
	node := twoPartitions()
	reason := fmt.Errorf("%w: %w", replica.ErrOffline, errDisk)
	p := node.at("t", 0)
	p.status = replica.Status{Offline: reason}
	p.readErr, p.trimErr = reason, reason
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		for v := int16(0); v <= 13; v++ {
			resp := ask[*kmsg.MetadataResponse](c, metadataOf(v, "t"))
			partitions := resp.Topics[0].Partitions
			if p := partitions[0]; p.ErrorCode != 5 || p.Leader != -1 || v >= 7 && p.LeaderEpoch != epochAtBirth || v >= 5 && !slices.Equal(p.OfflineReplicas, []int32{fakeNodeID}) {
				t.Errorf("v%d: %+v", v, p)
			}
			if p := partitions[1]; p.ErrorCode != 0 || p.Leader != fakeNodeID || len(p.OfflineReplicas) > 0 {
				t.Errorf("v%d: %+v", v, p)
			}
		}
		wantFetched(t, askAny(c, fetchOf(12, 0, 0)), "0:56 1:0<3[0-2]")
		list := kmsg.NewPtrListOffsetsRequest()
		list.Version = 7
		list.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: "t", Partitions: []kmsg.ListOffsetsRequestTopicPartition{{Partition: 0, Timestamp: -1, CurrentLeaderEpoch: -1}}}}
		if got := ask[*kmsg.ListOffsetsResponse](c, list).Topics[0].Partitions[0]; got.ErrorCode != 56 || got.Offset != -1 {
			t.Errorf("list offsets: %+v", got)
		}
		if got := trimmed(t, ask[*kmsg.DeleteRecordsResponse](c, trimOf(2, 1, 1))); got != "t/0:56@-1 t/1:0@1" {
			t.Errorf("delete records: %s", got)
		}
	})
}
