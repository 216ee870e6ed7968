package wire

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func produceRequest(version int16) *kmsg.ProduceRequest {
	id := "txn"
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = version, -1, 1234
	if version >= 3 {
		req.TransactionID = &id
	}
	for i, name := range []string{"a", "", strings.Repeat("long", 60)} {
		topic := kmsg.NewProduceRequestTopic()
		topic.Topic, topic.TopicID = name, [16]byte{1, byte(i)}
		for j := range int32(i) {
			p := kmsg.NewProduceRequestTopicPartition()
			p.Partition = j - 1
			p.Records = bytes.Repeat([]byte{'r'}, 100*int(j))
			topic.Partitions = append(topic.Partitions, p)
		}
		req.Topics = append(req.Topics, topic)
	}
	req.Topics[2].Partitions[0].Records = nil
	return req
}

// sameProduce compares what the cursor gives with what kmsg decodes.
func sameProduce(t *testing.T, version int16, req ProduceRequest, want *kmsg.ProduceRequest) {
	t.Helper()
	if (req.TransactionalID == nil) != (want.TransactionID == nil) ||
		want.TransactionID != nil && string(req.TransactionalID) != *want.TransactionID ||
		req.Acks != want.Acks || req.TimeoutMillis != want.TimeoutMillis || req.Topics != len(want.Topics) {
		t.Fatalf("v%d: %+v, want %+v", version, req, want)
	}
	partitions := 0
	cursor := req.Cursor()
	for _, topic := range want.Topics {
		got, ok := cursor.NextTopic()
		if !ok || string(got.Name) != topic.Topic || got.ID != topic.TopicID {
			t.Fatalf("v%d: topic %+v, want %q %x", version, got, topic.Topic, topic.TopicID)
		}
		for _, partition := range topic.Partitions {
			p, ok := cursor.NextPartition()
			if !ok || p.Index != partition.Partition || !bytes.Equal(p.Records, partition.Records) {
				t.Fatalf("v%d: partition %d with %d bytes, want %d with %d", version, p.Index, len(p.Records), partition.Partition, len(partition.Records))
			}
			if partition.Records == nil != (p.Records == nil) || cap(p.Records) != len(p.Records) {
				t.Fatalf("v%d: records %v of capacity %d, want %v", version, p.Records, cap(p.Records), partition.Records)
			}
			partitions++
		}
		if _, ok := cursor.NextPartition(); ok {
			t.Fatal("one partition too many")
		}
	}
	if _, ok := cursor.NextTopic(); ok || req.Partitions != partitions {
		t.Fatalf("v%d: %d partitions counted, %d seen, more topics: %v", version, req.Partitions, partitions, ok)
	}
}

func TestProduceEachVersion(t *testing.T) {
	for v := int16(0); v <= 13; v++ {
		want := produceRequest(v)
		body := want.AppendTo(nil)
		for i := range want.Topics {
			if v >= 13 {
				want.Topics[i].Topic = ""
			} else {
				want.Topics[i].TopicID = [16]byte{}
			}
		}
		req, err := ParseProduce(v, body)
		if err != nil {
			t.Fatal(err)
		}
		sameProduce(t, v, req, want)
		for n := range body {
			if _, err := ParseProduce(v, body[:n]); err == nil {
				t.Fatalf("v%d: a body of %d bytes, cut to %d, is accepted", v, len(body), n)
			}
		}
		if _, err := ParseProduce(v, append(body, 0)); err == nil || !strings.Contains(err.Error(), "1 bytes follow") {
			t.Fatalf("v%d: trailing byte: %v", v, err)
		}
	}
}

func TestProduceTags(t *testing.T) {
	want := produceRequest(9)
	want.UnknownTags.Set(7, []byte("x"))
	want.Topics[0].UnknownTags.Set(8, nil)
	want.Topics[2].UnknownTags.Set(9, []byte("topic"))
	want.Topics[2].Partitions[1].UnknownTags.Set(300, []byte("partition"))
	body := want.AppendTo(nil)
	for i := range want.Topics {
		want.Topics[i].TopicID = [16]byte{}
	}
	req, err := ParseProduce(9, body)
	if err != nil {
		t.Fatal(err)
	}
	sameProduce(t, 9, req, want)
}

func TestProduceLies(t *testing.T) {
	for name, c := range map[string]struct {
		version int16
		body    string
	}{
		"null topics":               {3, "\xff\xff\xff\xff\x00\x00\x00\x01\xff\xff\xff\xff"},
		"negative topics":           {3, "\xff\xff\xff\xff\x00\x00\x00\x01\x80\x00\x00\x00"},
		"two thousand million":      {3, "\xff\xff\xff\xff\x00\x00\x00\x01\x7f\xff\xff\xff\x00\x00"},
		"null name":                 {3, "\xff\xff\xff\xff\x00\x00\x00\x01\x00\x00\x00\x01\xff\xff\x00\x00\x00\x00"},
		"null partitions":           {3, "\xff\xff\xff\xff\x00\x00\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"},
		"many partitions":           {3, "\xff\xff\xff\xff\x00\x00\x00\x01\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x02\x00\x00\x00\x00\xff\xff\xff\xff"},
		"records of -2":             {3, "\xff\xff\xff\xff\x00\x00\x00\x01\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xfe"},
		"records too long":          {3, "\xff\xff\xff\xff\x00\x00\x00\x01\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02r"},
		"null topics, compact":      {9, "\x00\xff\xff\x00\x00\x00\x01\x00\x00"},
		"topics of 2^32-1, compact": {9, "\x00\xff\xff\x00\x00\x00\x01\xff\xff\xff\xff\x0f\x00"},
		"overlong number, compact":  {9, "\x00\xff\xff\x00\x00\x00\x01\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x00"},
		"tags of 2^32-1, compact":   {9, "\x00\xff\xff\x00\x00\x00\x01\x01\xff\xff\xff\xff\x0f\x00\x00"},
		"tag too long, compact":     {9, "\x00\xff\xff\x00\x00\x00\x01\x01\x01\x00\x05abcd"},
		"empty body":                {3, ""},
	} {
		if req, err := ParseProduce(c.version, []byte(c.body)); err == nil {
			t.Errorf("%s: accepted as %+v", name, req)
		}
		if _, err := ParseProduce(c.version, nil); err == nil {
			t.Error("a nil body is accepted")
		}
	}
}

func TestProduceBoundsEntries(t *testing.T) {
	// 100 MiB can hold 17 million partitions with null records.
	head := []byte("\x00\xff\xff\x00\x00\x00\x01\x02\x02t")
	body := appendArrayLength(head, 1<<20, true)
	body = append(body, make([]byte, 6<<20)...)
	body = append(body, 0, 0)
	var err error
	n := allocated(func() { _, err = ParseProduce(9, body) })
	if err == nil || !strings.Contains(err.Error(), "65536") || n > 4096 {
		t.Errorf("a million partitions: %v, %d bytes allocated", err, n)
	}
	body = appendArrayLength(head[:len(head):len(head)], ProduceEntriesMax-1, true)
	body = append(body, make([]byte, 6*(ProduceEntriesMax-1))...)
	body = append(body, 0, 0)
	if req, err := ParseProduce(9, body); err != nil || req.Partitions != ProduceEntriesMax-1 {
		t.Errorf("%d partitions: %v", req.Partitions, err)
	}
}

// The names of a request come back in its answer: a frame of 100 MiB that is all names must not cost it twice more.
func TestProduceBoundsNames(t *testing.T) {
	for _, v := range []int16{3, 8, 9, 12} {
		for _, c := range []struct {
			topics, name int
			ok           bool
		}{
			{1, math.MaxInt16, true},
			{1, ProduceNameBytesMax + 1, false}, // one compact name
			{ProduceNameBytesMax / 32_000, 32_000, true},
			{ProduceNameBytesMax/32_000 + 1, 32_000, false},
		} {
			if c.name > math.MaxInt16 && v < 9 {
				continue // cannot be said
			}
			req := kmsg.NewPtrProduceRequest()
			req.Version = v
			topic := kmsg.NewProduceRequestTopic()
			topic.Topic = strings.Repeat("n", c.name)
			req.Topics = slices.Repeat([]kmsg.ProduceRequestTopic{topic}, c.topics)
			if _, err := ParseProduce(v, req.AppendTo(nil)); (err == nil) != c.ok {
				t.Errorf("v%d: %d names of %d bytes: %v", v, c.topics, c.name, err)
			}
		}
	}
}

func TestProduceAllocatesNothing(t *testing.T) {
	for _, v := range []int16{3, 9, 13} {
		body := produceRequest(v).AppendTo(nil)
		if n := testing.AllocsPerRun(100, func() {
			req, err := ParseProduce(v, body)
			if err != nil {
				t.Fatal(err)
			}
			for cursor := req.Cursor(); ; {
				if _, ok := cursor.NextTopic(); !ok {
					break
				}
				for ok := true; ok; {
					_, ok = cursor.NextPartition()
				}
			}
		}); n != 0 {
			t.Errorf("v%d: %v allocations", v, n)
		}
	}
}

func TestProduceResponseEachVersion(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for v := range slices.Values(slices.Repeat([]int16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, 20)) {
		want := kmsg.NewProduceResponse()
		want.Version = v
		e := ProduceEncoder{Version: v}
		e.Begin(3)
		for i := range 3 {
			topic := kmsg.NewProduceResponseTopic()
			topic.Topic, topic.TopicID = strings.Repeat("t", i), [16]byte{byte(i)}
			e.Topic(topic.Topic, topic.TopicID, i)
			for range i {
				p := kmsg.NewProduceResponseTopicPartition()
				p.Partition, p.ErrorCode, p.BaseOffset = rng.Int32(), int16(rng.Int32()), rng.Int64()
				p.LogAppendTime, p.LogStartOffset = -1, rng.Int64()
				message := strings.Repeat("m", rng.IntN(2)*200)
				if message != "" {
					p.ErrorMessage = &message
				}
				var leader CurrentLeader
				if rng.IntN(2) == 0 {
					leader = CurrentLeader{rng.Int32(), rng.Int32()}
				}
				if v >= 10 && leader.Epoch > 0 {
					p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = leader.ID, leader.Epoch
				}
				e.Partition(ProduceResult{p.Partition, p.ErrorCode, p.BaseOffset, p.LogStartOffset, message, leader})
				topic.Partitions = append(topic.Partitions, p)
			}
			e.EndTopic()
			want.Topics = append(want.Topics, topic)
		}
		endpoints := someEndpoints[:rng.IntN(len(someEndpoints)+1)]
		e.End(endpoints)
		for _, e := range endpoints {
			if v >= 10 {
				want.Brokers = append(want.Brokers, kmsg.ProduceResponseBroker{NodeID: e.ID, Host: e.Host, Port: e.Port, Rack: rackOf(e)})
			}
		}
		if got := want.AppendTo(nil); !bytes.Equal(e.Dst, got) {
			t.Errorf("v%d: %x\nwant %x", v, e.Dst, got)
		}
	}
}

// someEndpoints have texts around the sizes at which a length takes one byte more.
var someEndpoints = []Endpoint{
	{1, "a", 9092, ""}, {2, strings.Repeat("h", 126), 1, strings.Repeat("r", 127)}, {1 << 30, strings.Repeat("h", 127), 65535, "r"},
	{4, strings.Repeat("h", 255), 0, strings.Repeat("r", 255)},
}

func rackOf(e Endpoint) *string {
	if e.Rack == "" {
		return nil
	}
	return &e.Rack
}

// What a caller makes room for is enough.
func TestEndpointsFitTheirRoom(t *testing.T) {
	room := EndpointsBytes
	for _, e := range someEndpoints {
		room += EndpointBytes + len(e.Host) + len(e.Rack)
	}
	if n := len(appendEndpointsTag(nil, someEndpoints)); n > room {
		t.Errorf("%d bytes, and room for %d", n, room)
	}
}

func TestHasLeader(t *testing.T) {
	for _, x := range []struct {
		key   Key
		first int16
	}{{KeyProduce, 10}, {KeyFetch, 16}} {
		if x.key.HasLeader(x.first-1) || !x.key.HasLeader(x.first) {
			t.Errorf("%s: not from version %d on", x.key, x.first)
		}
	}
	if KeyMetadata.HasLeader(13) {
		t.Error("Metadata has no such field")
	}
}

func TestMessagesAndNamesFitTheirLength(t *testing.T) {
	for _, v := range []int16{8, 13} {
		e := ProduceEncoder{Version: v}
		e.Begin(1)
		e.Topic(strings.Repeat("n", 40000), [16]byte{}, 1)
		e.Partition(ProduceResult{Message: strings.Repeat("m", 70000)})
		e.EndTopic()
		e.End(nil)
		got := kmsg.NewPtrProduceResponse()
		got.Version = v
		if err := got.ReadFrom(e.Dst); err != nil || len(*got.Topics[0].Partitions[0].ErrorMessage) != messageBytesMax {
			t.Errorf("v%d: %v", v, err)
		}
	}
}
