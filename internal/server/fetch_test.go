package server

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/wire"
)

// fetchOf makes a Fetch request of topic "t" with an offset for each partition, from 0 on, that waits for nothing.
func fetchOf(version int16, offsets ...int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MinBytes, req.SessionEpoch = version, 1, -1
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.TopicID = "t", topicID("t")
	for i, offset := range offsets {
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.PartitionMaxBytes = int32(i), offset, 1<<20
		topic.Partitions = append(topic.Partitions, p)
	}
	req.Topics = append(req.Topics, topic)
	return req
}

// fetched prints a Fetch response in one line: partition:code, and when there is no error the high watermark, and the
// offsets of the batches.
func fetched(t *testing.T, resp *kmsg.FetchResponse) string {
	t.Helper()
	var b strings.Builder
	if resp.ErrorCode != 0 || resp.SessionID != 0 {
		fmt.Fprintf(&b, "error %d session %d ", resp.ErrorCode, resp.SessionID)
	}
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			fmt.Fprintf(&b, "%d:%d", p.Partition, p.ErrorCode)
			if p.ErrorCode == 0 {
				fmt.Fprintf(&b, "<%d", p.HighWatermark)
			}
			for rest := p.RecordBatches; len(rest) > 0; {
				h, err := batch.CheckStored(rest)
				if err != nil {
					t.Fatalf("partition %d: %v", p.Partition, err)
				}
				fmt.Fprintf(&b, "[%d-%d]", h.BaseOffset, h.LastOffset())
				rest = rest[h.Size:]
			}
			b.WriteByte(' ')
			if p.LastStableOffset != p.HighWatermark || p.PreferredReadReplica != -1 && resp.Version >= 11 || len(p.AbortedTransactions) > 0 {
				t.Errorf("partition %+v", p)
			}
		}
	}
	return strings.TrimSpace(b.String())
}

func wantFetched(t *testing.T, resp kmsg.Response, want string) {
	t.Helper()
	if got := fetched(t, resp.(*kmsg.FetchResponse)); got != want {
		t.Errorf("fetched %q, want %q", got, want)
	}
}

// twoPartitions is a node with batches of three records and 161 bytes: three in partition 0, one in partition 1.
func twoPartitions() *fakeNode {
	node := newFakeNode()
	node.add("t", 2)
	for i := range 3 {
		node.at("t", 0).append(plain(3, strings.Repeat(fmt.Sprint(i), 100)))
	}
	node.at("t", 1).append(plain(3, strings.Repeat("b", 100)))
	return node
}

func TestFetchEveryVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := twoPartitions()
		h := start(t, Config{}, node)
		defer h.stop()
		c := h.client()
		defer c.close()
		for v := int16(4); v <= 17; v++ {
			req := fetchOf(v, 3, 3, 0)
			unknown := kmsg.NewFetchRequestTopic()
			unknown.Topic, unknown.TopicID = "u", topicID("u")
			unknown.Partitions = fetchOf(v, 0).Topics[0].Partitions
			req.Topics = append(req.Topics, unknown)
			resp := ask[*kmsg.FetchResponse](c, req)
			code := 3
			if v >= 13 {
				code = 100
			}
			wantFetched(t, resp, fmt.Sprintf("0:0<9[3-5][6-8] 1:0<3 2:3 0:%d", code))
			p := resp.Topics[0].Partitions[0]
			if !bytes.Equal(p.RecordBatches, node.at("t", 0).log[161:]) {
				t.Errorf("v%d: the records are not those of the log", v)
			}
			if v >= 5 && (p.LogStartOffset != 0 || resp.Topics[0].Partitions[2].LogStartOffset != -1) {
				t.Errorf("v%d: log start offset %d", v, p.LogStartOffset)
			}
			if v < 13 && resp.Topics[0].Topic != "t" || v >= 13 && resp.Topics[0].TopicID != topicID("t") {
				t.Errorf("v%d: topic %+v", v, resp.Topics[0])
			}
		}
		h.quiet()
	})
}

func TestFetchLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{FetchBytesMax: 161 * 3}, twoPartitions())
		defer h.stop()
		c := h.client()
		defer c.close()
		for _, x := range []struct {
			total, partition int32
			offset           int64
			want             string
		}{
			{1 << 20, 1 << 20, 0, "0:0<9[0-2][3-5][6-8] 1:0<3"}, // the broker's own limit
			{1 << 20, 322, 0, "0:0<9[0-2][3-5] 1:0<3[0-2]"},
			{1 << 20, 321, 0, "0:0<9[0-2] 1:0<3[0-2]"},
			{1 << 20, 161, 1, "0:0<9[0-2] 1:0<3[0-2]"}, // from the middle of a batch
			{321, 1 << 20, 0, "0:0<9[0-2] 1:0<3"},
			{322, 161, 0, "0:0<9[0-2] 1:0<3[0-2]"},
			{1 << 20, 100, 0, "0:0<9[0-2] 1:0<3"}, // the first batch, whatever the limits (KIP-74)
			{0, 0, 4, "0:0<9[3-5] 1:0<3"},
			{-1, -1, 4, "0:0<9[3-5] 1:0<3"},
			{1 << 20, 0, 9, "0:0<9 1:0<3[0-2]"}, // the first that has data
		} {
			req := fetchOf(11, x.offset, 0)
			req.MaxBytes = x.total
			for i := range req.Topics[0].Partitions {
				req.Topics[0].Partitions[i].PartitionMaxBytes = x.partition
			}
			resp := ask[*kmsg.FetchResponse](c, req)
			if got := fetched(t, resp); got != x.want {
				t.Errorf("%+v: fetched %q", x, got)
			}
		}
	})
}

func TestFetchErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := twoPartitions()
		p := node.at("t", 0)
		p.set(func(s *replica.Status) { s.LogStart, s.HighWatermark, s.Term = 3, 6, 3 })
		h := start(t, Config{}, node)
		defer h.stop()
		c := h.client()
		defer c.close()
		ask := func(change func(*kmsg.FetchRequest)) string {
			req := fetchOf(15, 3)
			req.MaxWaitMillis = 60_000
			change(req)
			return fetched(t, ask[*kmsg.FetchResponse](c, req))
		}
		offset := func(n int64) func(*kmsg.FetchRequest) {
			return func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].FetchOffset = n }
		}
		epoch := func(n int32) func(*kmsg.FetchRequest) {
			return func(r *kmsg.FetchRequest) { r.Topics[0].Partitions[0].CurrentLeaderEpoch = n }
		}
		began := time.Now()
		for _, x := range []struct{ name, got, want string }{
			{"below the start", ask(offset(2)), "0:1"},
			{"negative", ask(offset(-1)), "0:1"},
			{"above the end", ask(offset(10)), "0:1"},
			{"epoch", ask(epoch(3)), "0:0<6[3-5]"},
			{"older epoch", ask(epoch(2)), "0:74"},
			{"newer epoch", ask(epoch(4)), "0:75"},
			{"session goes on", ask(func(r *kmsg.FetchRequest) { r.SessionID, r.SessionEpoch = 8, 1 }), "error 70 session 0"},
			{"session goes on without an id", ask(func(r *kmsg.FetchRequest) { r.SessionEpoch = 5 }), "error 70 session 0"},
			{"session begins", ask(func(r *kmsg.FetchRequest) { r.SessionEpoch = 0 }), "0:0<6[3-5]"},
			{"session ends", ask(func(r *kmsg.FetchRequest) { r.SessionID = 8 }), "0:0<6[3-5]"},
			{"follower", ask(func(r *kmsg.FetchRequest) { r.ReplicaState.ID = 2 }), "0:42"},
			{"follower, old", ask(func(r *kmsg.FetchRequest) { r.Version, r.ReplicaID = 12, 2 }), "0:42"},
			{"debugging consumer", ask(func(r *kmsg.FetchRequest) { r.Version, r.ReplicaID = 12, -2 }), "0:0<6[3-5]"},
			{"no partitions", ask(func(r *kmsg.FetchRequest) { r.Topics[0].Partitions = nil }), ""},
			{"no topics", ask(func(r *kmsg.FetchRequest) { r.Topics = nil }), ""},
		} {
			if x.got != x.want {
				t.Errorf("%s: fetched %q, want %q", x.name, x.got, x.want)
			}
		}
		// At the high watermark, below the end, there is nothing yet.
		req := fetchOf(15, 7)
		wantFetched(t, askAny(c, req), "0:0<6")
		p.set(func(s *replica.Status) { s.Ready = false })
		if got := ask(offset(3)); got != "0:6" {
			t.Errorf("not ready: %q", got)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("an error waited for data: %v", took)
		}
		h.quiet()
		p.set(func(s *replica.Status) { s.Ready = true })
		for _, x := range []struct {
			err  error
			want string
		}{{errDisk, "0:56"}, {errDisk, "0:56"}, {replica.ErrNotLeader, "0:6"}, {replica.ErrOffline, "0:56"}, {replica.ErrDamaged, "0:56"}, {replica.ErrOutOfRange, "0:6"}, {replica.ErrStopped, "0:6"}} {
			p.mu.Lock()
			p.readErr = x.err
			p.mu.Unlock()
			if got := ask(offset(3)); got != x.want {
				t.Errorf("%v: %q", x.err, got)
			}
		}
		// What the partition has told already is not told again, and the rest not again and again.
		h.logged("topic=t", "partition=0", "offset=3", errDisk.Error())
	})
}

func askAny(c *client, req kmsg.Request) kmsg.Response {
	c.t.Helper()
	c.send(req)
	return c.receive()
}

func TestLongPoll(t *testing.T) {
	batch1 := plain(3, strings.Repeat("n", 100)) // 161 bytes
	for name, x := range map[string]struct {
		min   int32
		wait  int32
		event func(*fakeNode)
		took  time.Duration
		want  string
	}{
		"data is there":           {1, 5000, nil, 0, ""},
		"nothing comes":           {1, 5000, func(*fakeNode) {}, 5 * time.Second, "0:0<9 1:0<3"},
		"no wait":                 {1, 0, func(*fakeNode) {}, 0, "0:0<9 1:0<3"},
		"no minimum":              {0, 5000, func(*fakeNode) {}, 0, "0:0<9 1:0<3"},
		"a commit":                {1, 5000, func(n *fakeNode) { n.at("t", 0).append(batch1) }, time.Second, "0:0<12[9-11] 1:0<3"},
		"a commit elsewhere":      {1, 5000, func(n *fakeNode) { n.at("t", 1).append(batch1) }, time.Second, "0:0<9 1:0<6[3-5]"},
		"too little":              {162, 5000, func(n *fakeNode) { n.at("t", 0).append(batch1) }, 5 * time.Second, "0:0<12[9-11] 1:0<3"},
		"enough of both":          {322, 5000, func(n *fakeNode) { n.at("t", 0).append(batch1); n.at("t", 1).append(batch1) }, time.Second, "0:0<12[9-11] 1:0<6[3-5]"},
		"the minimum is too much": {1 << 30, 5000, func(n *fakeNode) { n.at("t", 0).append(batch1) }, 5 * time.Second, "0:0<12[9-11] 1:0<3"},
		"not ready any more": {1, 5000, func(n *fakeNode) { n.at("t", 1).set(func(s *replica.Status) { s.Ready = false }) },
			time.Second, "0:0<9 1:6"},
		"a wait beyond reason": {1, 1<<31 - 1, func(*fakeNode) {}, fetchWaitMax, "0:0<9 1:0<3"},
	} {
		synctest.Test(t, func(t *testing.T) {
			node := twoPartitions()
			h := start(t, Config{}, node)
			defer h.stop()
			c := h.client()
			defer c.close()
			req := fetchOf(12, 9, 3)
			if x.event == nil {
				req.Topics[0].Partitions[0].FetchOffset = 8
				x.want = "0:0<9[6-8] 1:0<3"
			}
			req.MinBytes, req.MaxWaitMillis = x.min, x.wait
			began := time.Now()
			c.send(req)
			if x.event != nil {
				go func() {
					time.Sleep(time.Second)
					x.event(node)
				}()
			}
			resp := c.receive()
			if took := time.Since(began); took != x.took {
				t.Errorf("%s: took %v, want %v", name, took, x.took)
			}
			wantFetched(t, resp, x.want)
			synctest.Wait()
			if n := node.at("t", 0).watched() + node.at("t", 1).watched(); n != 0 {
				t.Errorf("%s: %d watches are left", name, n)
			}
			time.Sleep(2 * time.Second)
		})
	}
}

// More than the response may have is not waited for.
func TestLongPollForMoreThanFits(t *testing.T) {
	served(t, Config{}, twoPartitions(), func(t *testing.T, h *harness, c *client) {
		req := fetchOf(12, 0)
		req.MinBytes, req.MaxBytes, req.MaxWaitMillis = 5000, 161, 60_000
		began := time.Now()
		wantFetched(t, askAny(c, req), "0:0<9[0-2]")
		if took := time.Since(began); took > 0 {
			t.Errorf("took %v", took)
		}
	})
}

// A fetch that waits holds what it needs for that, and no more: most hold nothing.
func TestFetchesThatWaitHoldLittle(t *testing.T) {
	for partitions, want := range map[int]int64{20: 0, 1000: 1001*fetchedBytes + 1 - ownBytes} {
		served(t, Config{}, twoPartitions(), func(t *testing.T, h *harness, c *client) {
			req := fetchOf(12, slices.Repeat([]int64{9}, partitions)...)
			req.MaxWaitMillis = 5000
			for i := range req.Topics[0].Partitions {
				req.Topics[0].Partitions[i].Partition = 0
			}
			c.send(req)
			synctest.Wait()
			if lent := h.server.budgets.working.held(); lent != want {
				t.Errorf("%d partitions: %d bytes are lent, want %d", partitions, lent, want)
			}
			c.receive()
			synctest.Wait()
			if lent := h.server.budgets.working.held(); lent != 0 {
				t.Errorf("%d partitions: %d bytes are still lent", partitions, lent)
			}
		})
	}
}

// A partition that a request names twice is watched once.
func TestLongPollOfTheSamePartitionTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := twoPartitions()
		h := start(t, Config{}, node)
		defer h.stop()
		c := h.client()
		defer c.close()
		req := fetchOf(12, 9, 9)
		req.Topics[0].Partitions[1].Partition = 0
		req.MaxWaitMillis = 10_000
		c.send(req)
		synctest.Wait()
		node.at("t", 0).append(plain(1, ""))
		wantFetched(t, c.receive(), "0:0<10[9-9] 0:0<10[9-9]")
	})
}

// What is committed between the plan and the read is not in the response, but the next fetch has it; and the response
// is whole when there is less than planned.
func TestFetchReadsNoMoreThanPlanned(t *testing.T) {
	node := twoPartitions()
	p := node.at("t", 0)
	h := start(t, Config{}, node)
	defer h.stop()
	f := fetchCall{server: h.server, version: 12, maxBytes: 1 << 20}
	f.resolve(fetchOf(12, 0, 0))
	if !f.plan(1) || f.planned != 161*4 {
		t.Fatalf("planned %d bytes", f.planned)
	}
	p.append(plain(3, ""))
	got, result := f.read(&f.partitions[0], nil)
	if len(got) != 161*3 || result.HighWatermark != 12 {
		t.Errorf("%d bytes below %d", len(got), result.HighWatermark)
	}
	p.mu.Lock()
	p.batches = p.batches[1:2]
	p.mu.Unlock()
	c := call{prefix: wire.Prefix{Key: wire.KeyFetch, Version: 12}}
	f.respond(&c, codeNone)
	resp := kmsg.NewPtrFetchResponse()
	resp.Version = 12
	if err := resp.ReadFrom(c.out[9:]); err != nil {
		t.Fatal(err)
	}
	wantFetched(t, resp, "0:0<12[3-5] 1:0<3[0-2]")
}

// Clients that ask for much and do not read the answer hold a bounded amount of memory together; each gets something,
// and when the answers are read there is room again.
func TestAnswersThatAreNotReadHoldBoundedMemory(t *testing.T) {
	const batchBytes, logBytes, bytesMax, clients = 32 << 10, 2 << 20, 3 << 20, 30
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		node.add("t", 1)
		one := plain(1, strings.Repeat("x", batchBytes-batch.HeaderSize))
		for range logBytes / batchBytes {
			node.at("t", 0).append(one)
		}
		h := start(t, Config{}, node)
		defer h.stop()
		h.server.budgets.answers.bound(bytesMax)
		request := fetchOf(12, 0)
		request.MaxBytes, request.Topics[0].Partitions[0].PartitionMaxBytes = logBytes, logBytes
		for range 2 {
			var slow []*client
			for range clients {
				c := h.client()
				defer c.close()
				c.send(request)
				synctest.Wait()
				slow = append(slow, c)
			}
			total := 0
			for i, c := range slow {
				n := len(c.receive().(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches)
				if total += n; n < batchBytes || i == 0 && n < bytesMax/3 {
					t.Errorf("answer %d has %d bytes", i, n)
				}
			}
			if total > bytesMax+clients*ownBytes {
				t.Errorf("%d clients hold %d bytes of answers that they do not read", clients, total)
			}
			synctest.Wait()
		}
	})
}
