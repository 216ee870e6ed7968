package wire

import (
	"bytes"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestFetchResponseEachVersion(t *testing.T) {
	records := make([]byte, 1<<21+10)
	for i := range records {
		records[i] = byte(i * 7)
	}
	// The room for the length is made for the first of each pair, the records have the second.
	sizes := [][2]int{{0, 0}, {100, 100}, {126, 127}, {127, 126}, {0, 127}, {20000, 100}, {20000, 16383}, {16383, 16382}, {1 << 21, 0}, {0, 1 << 21}}
	for v := int16(4); v <= 17; v++ {
		want := kmsg.NewFetchResponse()
		want.Version, want.ErrorCode = v, 70
		if v < 7 {
			want.ErrorCode = 0
		}
		e := FetchEncoder{Version: v, Dst: []byte{}}
		e.Begin(70, 2)
		for i := range 2 {
			topic := kmsg.NewFetchResponseTopic()
			topic.Topic, topic.TopicID = "name", [16]byte{byte(i)}
			e.Topic(topic.Topic, topic.TopicID, len(sizes))
			for j, size := range sizes {
				p := kmsg.NewFetchResponseTopicPartition()
				p.Partition, p.ErrorCode, p.HighWatermark, p.LogStartOffset = int32(j), int16(i), int64(size[1]), int64(-i)
				p.LastStableOffset, p.PreferredReadReplica = p.HighWatermark, -1
				p.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}
				p.RecordBatches = records[:size[1]]
				e.BeginPartition(size[0])
				e.Dst = append(e.Dst, p.RecordBatches...)
				var leader CurrentLeader
				if j%2 == 1 {
					leader = CurrentLeader{int32(i), int32(j)}
				}
				if v >= 16 && j%2 == 1 {
					p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = leader.ID, leader.Epoch
				}
				e.EndPartition(FetchResult{p.Partition, p.ErrorCode, p.HighWatermark, p.LogStartOffset, leader})
				topic.Partitions = append(topic.Partitions, p)
			}
			e.EndTopic()
			want.Topics = append(want.Topics, topic)
		}
		e.End(someEndpoints)
		for _, e := range someEndpoints {
			if v >= 16 {
				want.Brokers = append(want.Brokers, kmsg.FetchResponseBroker{NodeID: e.ID, Host: e.Host, Port: e.Port, Rack: rackOf(e)})
			}
		}
		if got := want.AppendTo(nil); !bytes.Equal(e.Dst, got) {
			t.Errorf("v%d: responses of %d bytes differ, want %d", v, len(e.Dst), len(got))
		}
	}
}

func TestFetchEncoderMovesNothingWhenRoomIsRight(t *testing.T) {
	dst := make([]byte, 0, 4096)
	records := make([]byte, 1000)
	if n := testing.AllocsPerRun(100, func() {
		e := FetchEncoder{Version: 13, Dst: dst[:0]}
		e.Begin(0, 1)
		e.Topic("", [16]byte{1}, 1)
		e.BeginPartition(len(records))
		e.Dst = append(e.Dst, records...)
		e.EndPartition(FetchResult{})
		e.EndTopic()
		e.End(nil)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
