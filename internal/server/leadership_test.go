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

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
)

// threeNodes is a cluster of the nodes 7, 8 and 9 with a topic of five partitions: this node leads partition 0, node 8 leads
// partition 1 and has its only replica, node 9 leads partition 2, nobody partition 3, and partition 4 is led here by what
// the table says, and not ready.
func threeNodes() *fakeNode {
	node := newFakeNode()
	node.apply(&meta.Start{Node: fakeNodeID, Nonce: meta.ID{2}, Host: "broker.example", Port: 9092, Rack: "r7"})
	node.join(8, "")
	node.join(9, strings.Repeat("r", 255))
	node.mu.Lock()
	node.place("t", [][]int32{{7, 8, 9}, {8}, {9, 7, 8}, {7, 8, 9}, {8, 7, 9}})
	node.mu.Unlock()
	for i := range int32(3) {
		node.at("t", i+2).set(func(s *replica.Status) { s.Ready = false })
	}
	for i := int32(0); i < 5; i += 2 {
		node.at("t", i).append(plain(3, ""))
	}
	node.lead("t", 0, 7, 3, 7, 9)
	node.lead("t", 1, 8, 5, 8)
	node.lead("t", 2, 9, 6, 8, 9)
	node.lead("t", 3, -1, 4, 7, 8, 9)
	node.lead("t", 4, 7, 2, 7)
	return node
}

// Any node tells of all partitions, wherever they are.
func TestMetadataOfACluster(t *testing.T) {
	node := threeNodes()
	node.at("t", 2).status.Offline = replica.ErrOffline
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		for v := int16(0); v <= 13; v++ {
			resp := ask[*kmsg.MetadataResponse](c, metadataOf(v, "t"))
			var got []string
			for _, b := range resp.Brokers {
				rack := ""
				if b.Rack != nil {
					rack = *b.Rack
				}
				got = append(got, fmt.Sprintf("%d=%s:%d/%d", b.NodeID, b.Host, b.Port, len(rack)))
			}
			racks := [3]int{2, 0, 255}
			if v == 0 {
				racks = [3]int{}
			}
			if want := fmt.Sprintf("7=broker.example:9092/%d 8=broker8.example:9008/%d 9=broker9.example:9009/%d", racks[0], racks[1], racks[2]); strings.Join(got, " ") != want {
				t.Errorf("v%d: brokers %v", v, got)
			}
			got = nil
			for _, p := range resp.Topics[0].Partitions {
				got = append(got, fmt.Sprintf("%d@%d/%d%v%v%v", p.ErrorCode, p.Leader, p.LeaderEpoch, p.Replicas, p.ISR, p.OfflineReplicas))
			}
			want := "0@7/3[7 8 9][7 9][] 0@8/5[8][8][] 0@9/6[9 7 8][8 9][7] 5@-1/4[7 8 9][7 8 9][] 0@7/2[8 7 9][7][]"
			if v < 7 {
				want = strings.NewReplacer("/3", "/-1", "/5", "/-1", "/6", "/-1", "/4", "/-1", "/2", "/-1").Replace(want)
			}
			if v < 5 {
				want = strings.Replace(want, "[8 9][7]", "[8 9][]", 1)
			}
			if strings.Join(got, " ") != want {
				t.Errorf("v%d: %v\nwant %s", v, got, want)
			}
		}
	})
}

// hinted prints who leads the partitions of an answer, and where the brokers are that it tells of.
func hinted(brokers []string, leaders ...string) string {
	slices.Sort(brokers)
	return strings.Join(leaders, " ") + " " + strings.Join(brokers, " ")
}

const endpoints = "8=broker8.example:9008/0 9=broker9.example:9009/255"

func rackLength(rack *string) int {
	if rack == nil {
		return 0
	}
	return len(*rack)
}

// What is led elsewhere is answered by 6 and, where the version has it, by who leads (KIP-951). A node never sends a client
// back to itself.
func TestProduceNamesTheLeader(t *testing.T) {
	node := threeNodes()
	for i := int32(2); i < 5; i++ {
		node.at("t", i).verdict = func(batch.Header) replica.Ack { return replica.Ack{Base: -1, Err: replica.ErrNotLeader} }
	}
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		for v := int16(3); v <= 13; v++ {
			b := plain(1, "")
			resp := ask[*kmsg.ProduceResponse](c, produceOf(v, -1, map[string][][]byte{"t": {b, plain(1, ""), plain(1, ""), plain(1, ""), plain(1, ""), plain(1, "")}}))
			var codes, leaders, brokers []string
			for _, p := range resp.Topics[0].Partitions {
				codes = append(codes, fmt.Sprint(p.ErrorCode))
				leaders = append(leaders, fmt.Sprintf("%d/%d", p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch))
			}
			for _, b := range resp.Brokers {
				brokers = append(brokers, fmt.Sprintf("%d=%s:%d/%d", b.NodeID, b.Host, b.Port, rackLength(b.Rack)))
			}
			want := "-1/-1 8/5 9/6 -1/-1 -1/-1 -1/-1 " + endpoints
			if v < 10 {
				want = "-1/-1 -1/-1 -1/-1 -1/-1 -1/-1 -1/-1 "
			}
			if got := hinted(brokers, leaders...); got != want || strings.Join(codes, " ") != "0 6 6 6 6 3" {
				t.Errorf("v%d: codes %v, leaders %q, want %q", v, codes, got, want)
			}
		}
	})
}

func TestFetchNamesTheLeader(t *testing.T) {
	node := threeNodes()
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		for v := int16(4); v <= 17; v++ {
			req := fetchOf(v, 0, 0, 0, 0, 0, 0)
			req.Topics[0].Partitions[0].CurrentLeaderEpoch = 2
			resp := ask[*kmsg.FetchResponse](c, req)
			var codes, leaders, brokers []string
			for _, p := range resp.Topics[0].Partitions {
				codes = append(codes, fmt.Sprint(p.ErrorCode))
				leaders = append(leaders, fmt.Sprintf("%d/%d", p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch))
			}
			for _, b := range resp.Brokers {
				brokers = append(brokers, fmt.Sprintf("%d=%s:%d/%d", b.NodeID, b.Host, b.Port, rackLength(b.Rack)))
			}
			want, wantCodes := "7/3 8/5 9/6 -1/-1 -1/-1 -1/-1 7=broker.example:9092/2 "+endpoints, "74 6 6 6 6 3"
			if v < 16 {
				want = "-1/-1 -1/-1 -1/-1 -1/-1 -1/-1 -1/-1 "
			}
			if v < 9 {
				wantCodes = "0 6 6 6 6 3" // no epoch in the request
			}
			if got := hinted(brokers, leaders...); got != want || strings.Join(codes, " ") != wantCodes {
				t.Errorf("v%d: codes %v, leaders %q, want %q", v, codes, got, want)
			}
		}
	})
}

// listed asks for the latest offset of the partitions of topic "t" from 0 to n-1.
func listed(c *client, version int16, n int) string {
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version = version
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = "t"
	for i := range n {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = int32(i), timestampLatest
		topic.Partitions = append(topic.Partitions, p)
	}
	req.Topics = append(req.Topics, topic)
	var s []string
	for _, p := range ask[*kmsg.ListOffsetsResponse](c, req).Topics[0].Partitions {
		s = append(s, fmt.Sprintf("%d:%d@%d", p.Partition, p.ErrorCode, p.Offset))
	}
	return strings.Join(s, " ")
}

// An offset is told by a leader that has confirmed that it leads; who cannot says so in time, and nobody waits for it
// longer than that.
func TestListOffsetsAreConfirmed(t *testing.T) {
	node := threeNodes()
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		if got := listed(c, 1, 5) + ", " + listed(c, 5, 5); got != "0:0@3 1:6@-1 2:6@-1 3:5@-1 4:5@-1, 0:0@3 1:6@-1 2:6@-1 3:78@-1 4:78@-1" {
			t.Error(got)
		}
		p := node.at("t", 0)
		confirm := func(f func(context.Context) error) {
			p.mu.Lock()
			p.confirm = f
			p.mu.Unlock()
		}
		// What is committed at the confirmation counts.
		confirm(func(context.Context) error {
			p.append(plain(2, ""))
			return nil
		})
		if got := listed(c, 7, 1); got != "0:0@5" {
			t.Error(got)
		}
		// It did not lead any more.
		confirm(func(context.Context) error { return replica.ErrNotLeader })
		if got := listed(c, 7, 1); got != "0:78@-1" {
			t.Error(got)
		}
		node.lead("t", 0, 9, 9, 9)
		if got := listed(c, 7, 1); got != "0:6@-1" {
			t.Error(got)
		}
		// It leads again, in another term, than the client knows.
		confirm(func(context.Context) error {
			p.set(func(s *replica.Status) { s.Ready = false })
			return nil
		})
		if got := listed(c, 7, 1); got != "0:6@-1" {
			t.Error(got)
		}
	})
}

func TestOnePartitionThatCannotConfirm(t *testing.T) {
	node := newFakeNode()
	node.add("t", 200)
	stuck := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	node.at("t", 0).confirm, node.at("t", 150).confirm = stuck, stuck
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		began := time.Now()
		got := listed(c, 7, 200)
		if took := time.Since(began); took != confirmMax {
			t.Errorf("took %v", took)
		}
		if strings.Count(got, ":0@0") != 198 || !strings.Contains(got, "150:78@-1") || !strings.HasPrefix(got, "0:78@-1") {
			t.Error(got)
		}
	})
}

// OFFSET_OUT_OF_RANGE sends a consumer elsewhere, to where it skips or repeats records: only a leader that has confirmed
// says it, and only of what is still so then.
func TestOffsetsOutOfRangeAreConfirmed(t *testing.T) {
	for name, x := range map[string]struct {
		confirm func(*fakePartition) error
		took    time.Duration
		want    string
	}{
		"confirmed": {nil, 0, "0:1 1:0<3[0-2]"},
		"deposed":   {func(*fakePartition) error { return replica.ErrNotLeader }, 0, "0:6 1:0<3[0-2]"},
		"not known": {func(*fakePartition) error { return nil }, confirmMax, "0:6 1:0<3[0-2]"},
		"not so": {func(p *fakePartition) error {
			p.append(plain(3, ""))
			return nil
		}, 0, "0:6 1:0<3[0-2]"},
		"offline now": {func(p *fakePartition) error {
			p.set(func(s *replica.Status) { s.Offline = errDisk })
			return nil
		}, 0, "0:56 1:0<3[0-2]"},
	} {
		node := twoPartitions()
		p := node.at("t", 0)
		if x.confirm != nil {
			p.confirm = func(ctx context.Context) error {
				if x.took > 0 {
					<-ctx.Done()
					return ctx.Err()
				}
				return x.confirm(p)
			}
		}
		served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
			began := time.Now()
			req := fetchOf(12, 10, 0)
			req.MaxWaitMillis = 60_000
			if got := fetched(t, ask[*kmsg.FetchResponse](c, req)); got != x.want {
				t.Errorf("%s: %s, want %s", name, got, x.want)
			}
			if took := time.Since(began); took != x.took {
				t.Errorf("%s: took %v", name, took)
			}
		})
	}
}

// The same for DeleteRecords: who was deposed knows nothing of what came after it.
func TestTrimsOutOfRangeAreConfirmed(t *testing.T) {
	node := twoPartitions()
	p := node.at("t", 0)
	p.confirm = func(context.Context) error {
		p.append(plain(3, ""))
		return nil
	}
	node.at("t", 1).confirm = func(context.Context) error { return replica.ErrNotLeader }
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		if got := trimmed(t, ask[*kmsg.DeleteRecordsResponse](c, trimOf(2, 12, 12))); got != "t/0:0@12 t/1:6@-1" {
			t.Error(got)
		}
		if got := trimmed(t, ask[*kmsg.DeleteRecordsResponse](c, trimOf(2, 100))); got != "t/0:1@-1" {
			t.Error(got)
		}
		p.trimErr = replica.ErrCutOff
		if got := trimmed(t, ask[*kmsg.DeleteRecordsResponse](c, trimOf(2, 13))); got != "t/0:6@-1" {
			t.Error(got)
		}
	})
}

// A fetch that waits began with one leader; when there was another one since, it ends, even if this node leads again.
func TestNewTermEndsAWaitingFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := twoPartitions()
		h := start(t, Config{}, node)
		defer h.stop()
		c := h.client()
		defer c.close()
		req := fetchOf(12, 9, 3)
		req.MaxWaitMillis = 60_000
		c.send(req)
		synctest.Wait()
		node.at("t", 0).set(func(s *replica.Status) { s.Term = 5 })
		wantFetched(t, c.receive(), "0:6 1:0<3")
		wantFetched(t, askAny(c, fetchOf(12, 9, 3)), "0:0<9 1:0<3")
	})
}

// What a producer asks for reaches the partition, and what fails for want of replicas is tried again by every client.
func TestAcksAndReplicas(t *testing.T) {
	node := newFakeNode()
	node.add("t", 1)
	p := node.at("t", 0)
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		p.hold()
		c.send(one(9, -1, plain(1, "")), one(9, 0, plain(1, "")), one(9, 1, plain(1, "")))
		synctest.Wait()
		for i, acks := range []int16{-1, 0, 1} {
			if got := p.holding[i].Acks; got != acks {
				t.Errorf("acks %d arrive as %d", acks, got)
			}
		}
		p.finish(3)
		c.receive()
		c.sent = c.sent[1:]
		c.receive()
		p.mu.Lock()
		p.held = false
		p.mu.Unlock()
		for err, want := range map[error]string{
			fmt.Errorf("%w: 1 of 2", replica.ErrNotEnoughReplicas): "0:19@-1,-1", replica.ErrCutOff: "0:20@-1,-1",
		} {
			p.mu.Lock()
			p.verdict = func(batch.Header) replica.Ack { return replica.Ack{Base: -1, Err: err} }
			p.mu.Unlock()
			resp := ask[*kmsg.ProduceResponse](c, one(11, -1, plain(1, "")))
			if got := answers(resp); got != want || !strings.Contains(message(resp), err.Error()) {
				t.Errorf("%v: %s %q", err, got, message(resp))
			}
		}
	})
}

// No error that a partition documents becomes UNKNOWN_SERVER_ERROR in the answer of a produce or a read: clients give up on
// it, and number what follows anew.
func TestNoUnknownErrors(t *testing.T) {
	for _, e := range errorCodes {
		if c, text, ok := ackCode(replica.Ack{Err: fmt.Errorf("x: %w", e.err)}, batch.Header{}); !ok || c <= codeNone || text == "" {
			t.Errorf("%v: produce answers %d %q", e.err, c, text)
		}
		if c := readCode(e.err); c <= codeNone {
			t.Errorf("%v: a read answers %d", e.err, c)
		}
	}
}
