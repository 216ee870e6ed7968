package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

const codeOffsetOutOfRange = 1

// A client that wants transactions is told at once that there are none, whatever it asks first.
func TestTransactionsAreRefusedAtOnce(t *testing.T) {
	c := dial(t, sharedBroker(t))
	begun := time.Now()
	for version := range int16(6) {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.Version = version
		req.TransactionalID = kmsg.StringPtr("payments-1")
		req.TransactionTimeoutMillis = 60_000
		a, err := rawkafka.Roundtrip[*kmsg.InitProducerIDResponse](c, req)
		if err != nil {
			t.Fatal(err)
		}
		if a.ErrorCode != codeTransactionalDenied || a.ProducerID != -1 || a.ProducerEpoch != -1 {
			t.Errorf("InitProducerId v%d with a transactional id: %+v, want code 53, id -1, epoch -1", version, a)
		}
	}
	for version := int16(1); version < 7; version++ {
		for kind, want := range map[int8]int16{0: codeInvalidRequest, 1: codeTransactionalDenied} {
			code, text := findCoordinator(t, c, version, kind)
			if code != want || text == "" {
				t.Errorf("FindCoordinator v%d of type %d: code %d text %q, want %d and a text", version, kind, code, text, want)
			}
		}
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("18 refusals took %v", took)
	}
}

func findCoordinator(t *testing.T, c *rawkafka.Client, version int16, kind int8) (code int16, text string) {
	t.Helper()
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.Version, req.CoordinatorType, req.CoordinatorKey = version, kind, "payments-1"
	req.CoordinatorKeys = []string{"payments-1"}
	a, err := rawkafka.Roundtrip[*kmsg.FindCoordinatorResponse](c, req)
	if err != nil {
		t.Fatal(err)
	}
	message := a.ErrorMessage
	code = a.ErrorCode
	if version >= 4 {
		if len(a.Coordinators) != 1 {
			t.Fatalf("FindCoordinator v%d: %d coordinators for one key", version, len(a.Coordinators))
		}
		code, message = a.Coordinators[0].ErrorCode, a.Coordinators[0].ErrorMessage
	}
	if message == nil {
		return code, ""
	}
	return code, *message
}

// InitProducerId gives a fresh id at every version, and refuses half of a pair of id and epoch.
func TestInitProducerID(t *testing.T) {
	c := dial(t, sharedBroker(t))
	seen := make(map[int64]bool)
	ask := func(version int16, id int64, epoch int16) *kmsg.InitProducerIDResponse {
		t.Helper()
		req := kmsg.NewPtrInitProducerIDRequest()
		req.Version, req.ProducerID, req.ProducerEpoch = version, id, epoch
		a, err := rawkafka.Roundtrip[*kmsg.InitProducerIDResponse](c, req)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	last := int64(-1)
	for range 20 {
		for version := range int16(6) {
			a := ask(version, -1, -1)
			if a.ErrorCode != 0 || a.ProducerEpoch != 0 || seen[a.ProducerID] || a.ProducerID <= last {
				t.Fatalf("v%d: %+v after %d, want a higher id that is new, with epoch 0", version, a, last)
			}
			last = a.ProducerID
			seen[last] = true
		}
	}
	for _, epoch := range []int16{0, 3, 32767} { // the client wants a newer epoch of its id: it gets a new id
		if a := ask(4, last, epoch); a.ErrorCode != 0 || a.ProducerEpoch != 0 || a.ProducerID <= last {
			t.Errorf("with id %d and epoch %d: %+v, want a new id with epoch 0", last, epoch, a)
		}
	}
	for _, half := range []struct {
		id    int64
		epoch int16
	}{{-1, 0}, {last, -1}} {
		if a := ask(3, half.id, half.epoch); a.ErrorCode != codeInvalidRequest {
			t.Errorf("with id %d and epoch %d: code %d, want %d", half.id, half.epoch, a.ErrorCode, codeInvalidRequest)
		}
	}
}

// ApiVersions answers every version that it knows, and a newer one in the encoding of version 0 with error 35, which
// every client understands.
func TestAPIVersions(t *testing.T) {
	c := dial(t, sharedBroker(t))
	for version := range int16(5) {
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = version, "rawkafka", "1"
		a, err := rawkafka.Roundtrip[*kmsg.ApiVersionsResponse](c, req)
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[int16][2]int16)
		for _, k := range a.ApiKeys {
			got[k.ApiKey] = [2]int16{k.MinVersion, k.MaxVersion}
		}
		want := map[int16][2]int16{0: {0, 13}, 1: {4, 17}, 2: {0, 11}, 3: {0, 13}, 10: {0, 6}, 18: {0, 4}, 19: {0, 7}, 20: {0, 6}, 21: {0, 2}, 22: {0, 5}, 43: {0, 2}}
		if a.ErrorCode != 0 || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("v%d: code %d, api keys %v, want %v", version, a.ErrorCode, got, want)
		}
	}
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version = 4
	frame, correlation := c.Frame(req)
	binary.BigEndian.PutUint16(frame[6:], 5) // a version that nobody defined
	if err := c.SendRaw(frame); err != nil {
		t.Fatal(err)
	}
	got, err := c.ReceiveFrame()
	if err != nil {
		t.Fatal(err)
	}
	want := binary.BigEndian.AppendUint32(nil, uint32(correlation))
	want = append(want, 0, codeUnsupportedVersion, 0, 0, 0, 1, 0, 18, 0, 0, 0, 4)
	if !bytes.Equal(got, want) {
		t.Errorf("a newer version was answered with % x, want % x", got, want)
	}
}

// Metadata: the advertised address, a topic by name and by id, all topics, automatic creation.
func TestMetadata(t *testing.T) {
	b := sharedBroker(t)
	c := dial(t, b)
	topic := newTopic(t, c, 3)
	ask := func(version int16, create bool, topics ...kmsg.MetadataRequestTopic) *kmsg.MetadataResponse {
		t.Helper()
		req := kmsg.NewPtrMetadataRequest()
		req.Version, req.AllowAutoTopicCreation, req.Topics = version, create, topics
		a, err := rawkafka.Roundtrip[*kmsg.MetadataResponse](c, req)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	byName := func(name string) kmsg.MetadataRequestTopic {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		return topic
	}
	host, port, err := net.SplitHostPort(b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	for version := range int16(14) {
		a := ask(version, false, byName(topic.Name))
		if len(a.Brokers) != 1 || a.Brokers[0].Host != host || strconv.Itoa(int(a.Brokers[0].Port)) != port || a.Brokers[0].NodeID < 1 {
			t.Fatalf("v%d: brokers %+v, want one at %s", version, a.Brokers, b.Addr())
		}
		if len(a.Topics) != 1 || a.Topics[0].ErrorCode != 0 || *a.Topics[0].Topic != topic.Name || len(a.Topics[0].Partitions) != 3 {
			t.Fatalf("v%d: topics %+v, want %s with 3 partitions", version, a.Topics, topic.Name)
		}
		for _, p := range a.Topics[0].Partitions {
			if p.ErrorCode != 0 || p.Leader != a.Brokers[0].NodeID || len(p.Replicas) != 1 || len(p.ISR) != 1 {
				t.Errorf("v%d: partition %+v, want leader %d", version, p, a.Brokers[0].NodeID)
			}
		}
		if version >= 10 && a.Topics[0].TopicID != topic.ID {
			t.Errorf("v%d: topic id %x, want %x", version, a.Topics[0].TopicID, topic.ID)
		}
	}
	byID := kmsg.NewMetadataRequestTopic()
	byID.TopicID = topic.ID
	if a := ask(12, false, byID); len(a.Topics) != 1 || a.Topics[0].ErrorCode != 0 || a.Topics[0].Topic == nil || *a.Topics[0].Topic != topic.Name {
		t.Errorf("by id: %+v, want %s", a.Topics, topic.Name)
	}
	byID.TopicID = [16]byte{9}
	if a := ask(12, false, byID); len(a.Topics) != 1 || a.Topics[0].ErrorCode != codeUnknownTopicID {
		t.Errorf("by an unknown id: %+v, want code %d", a.Topics, codeUnknownTopicID)
	}
	if a := ask(12, false); len(a.Topics) == 0 {
		t.Error("a null list of topics was answered with none, want all")
	}
	name := freshName()
	if a := ask(12, false, byName(name)); len(a.Topics) != 1 || a.Topics[0].ErrorCode != codeUnknownTopic {
		t.Errorf("unknown and not to be created: %+v, want code %d", a.Topics, codeUnknownTopic)
	}
	a := ask(12, true, byName(name))
	if len(a.Topics) != 1 || a.Topics[0].ErrorCode != 0 || len(a.Topics[0].Partitions) != 1 {
		t.Fatalf("to be created: %+v, want one partition, ready", a.Topics)
	}
	mustStore(t, c, rawkafka.Topic{Name: name}, rawkafka.Plain([]byte("x")).Bytes(), 0)
}

// A fetch at the end of the log waits, and answers as soon as there is something.
func TestLongPollWakesOnProduce(t *testing.T) {
	b := sharedBroker(t)
	c, reader := dial(t, b), dial(t, b)
	topic := newTopic(t, c, 1)
	begun := time.Now()
	a, err := reader.Fetch(rawkafka.FetchVersion, topic, 0, 0, 50*time.Millisecond)
	if err != nil || a.Code != 0 || len(a.Batches) != 0 {
		t.Fatalf("fetch from an empty log: %+v, %v", a, err)
	}
	if took := time.Since(begun); took < 50*time.Millisecond {
		t.Errorf("a fetch of an empty log that may wait 50 ms came back after %v", took)
	}
	for i := range 20 {
		const maxWait = 25 * time.Second
		begun := time.Now()
		if err := reader.Send(rawkafka.FetchRequest(rawkafka.FetchVersion, topic, 0, batch.Offset(i), maxWait)); err != nil {
			t.Fatal(err)
		}
		// Some requests on another connection give the fetch the time to come to rest.
		for range i {
			if _, _, err := c.Offsets(topic, 0); err != nil {
				t.Fatal(err)
			}
		}
		payload := fmt.Appendf(nil, "wake %d", i)
		mustStore(t, c, topic, rawkafka.Plain(payload).Bytes(), batch.Offset(i))
		answer, err := reader.Receive()
		if err != nil {
			t.Fatal(err)
		}
		a, err := rawkafka.FetchAnswerOf(answer)
		if err != nil || a.Code != 0 || len(a.Batches) != 1 || !bytes.Equal(a.Batches[0].Records[0], payload) {
			t.Fatalf("the waiting fetch got %+v, %v, want %q", a, err, payload)
		}
		if took := time.Since(begun); took > maxWait/2 {
			t.Errorf("the waiting fetch came back after %v", took)
		}
	}
}

// Fetch gives whole batches, beginning with the one that holds the offset, keeps to its limits but always gives one.
func TestFetchLimits(t *testing.T) {
	c := dial(t, sharedBroker(t))
	topic := newTopic(t, c, 1)
	const batches, perBatch = 10, 10
	size := 0
	for i := range batches {
		raw := rawkafka.Plain(payloads(fmt.Sprintf("batch %d", i), perBatch)...).Bytes()
		size = len(raw)
		mustStore(t, c, topic, raw, batch.Offset(i*perBatch))
	}
	fetch := func(from int64, maxBytes, partitionMaxBytes int32) rawkafka.FetchAnswer {
		t.Helper()
		req := rawkafka.FetchRequest(rawkafka.FetchVersion, topic, 0, batch.Offset(from), 0)
		req.MaxBytes, req.Topics[0].Partitions[0].PartitionMaxBytes = maxBytes, partitionMaxBytes
		answer, err := rawkafka.Roundtrip[*kmsg.FetchResponse](c, req)
		if err != nil {
			t.Fatal(err)
		}
		a, err := rawkafka.FetchAnswerOf(answer)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	tests := []struct {
		name                        string
		from                        int64
		maxBytes, partitionMaxBytes int32
		first, count                int // batches
	}{
		{"everything", 0, 1 << 20, 1 << 20, 0, 10},
		{"from the middle of a batch", 35, 1 << 20, 1 << 20, 3, 7},
		{"from the last record of a batch", 39, 1 << 20, 1 << 20, 3, 7},
		{"from the last record", 99, 1 << 20, 1 << 20, 9, 1},
		{"from the end", 100, 1 << 20, 1 << 20, 0, 0},
		{"the request's limit", 20, int32(3 * size), 1 << 20, 2, 3},
		{"the partition's limit", 20, 1 << 20, int32(3 * size), 2, 3},
		{"a limit below one batch", 20, 1, 1, 2, 1},
		{"no bytes at all", 20, 0, 0, 2, 1},
	}
	for _, test := range tests {
		a := fetch(test.from, test.maxBytes, test.partitionMaxBytes)
		if a.Code != 0 || a.HighWatermark != batches*perBatch || a.LogStart != 0 || len(a.Batches) != test.count {
			t.Errorf("%s: code %d, high watermark %d, log start %d, %d batches, want 0, 100, 0, %d",
				test.name, a.Code, a.HighWatermark, a.LogStart, len(a.Batches), test.count)
			continue
		}
		if test.count > 0 && a.Batches[0].BaseOffset != batch.Offset(test.first*perBatch) {
			t.Errorf("%s: begins at %d, want %d", test.name, a.Batches[0].BaseOffset, test.first*perBatch)
		}
	}
	for _, from := range []int64{-1, 101, 1 << 62} {
		if a := fetch(from, 1<<20, 1<<20); a.Code != codeOffsetOutOfRange || len(a.Batches) != 0 {
			t.Errorf("fetch at %d: code %d with %d batches, want %d", from, a.Code, len(a.Batches), codeOffsetOutOfRange)
		}
	}
}

// ListOffsets knows the first and the last offset at every version; looking for a time is refused for now.
func TestListOffsets(t *testing.T) {
	c := dial(t, sharedBroker(t))
	topic := newTopic(t, c, 1)
	mustStore(t, c, topic, rawkafka.Plain(payloads("x", 7)...).Bytes(), 0)
	for version := range int16(12) {
		for timestamp, want := range map[int64]int64{-1: 7, -2: 0, 1_700_000_000_000: -1} {
			req := kmsg.NewPtrListOffsetsRequest()
			req.Version, req.ReplicaID = version, -1
			rt, rp := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
			rt.Topic, rp.Timestamp, rp.MaxNumOffsets = topic.Name, timestamp, 1
			rt.Partitions = append(rt.Partitions, rp)
			req.Topics = append(req.Topics, rt)
			a, err := rawkafka.Roundtrip[*kmsg.ListOffsetsResponse](c, req)
			if err != nil {
				t.Fatal(err)
			}
			if len(a.Topics) != 1 || len(a.Topics[0].Partitions) != 1 {
				t.Fatalf("v%d: %+v, want one partition", version, a)
			}
			p := a.Topics[0].Partitions[0]
			if version == 0 {
				p.Offset = -1
				if len(p.OldStyleOffsets) == 1 {
					p.Offset = p.OldStyleOffsets[0]
				}
			}
			code := int16(0)
			if want == -1 {
				code = codeUnsupportedVersion
			}
			if p.ErrorCode != code || p.Offset != want {
				t.Errorf("v%d, timestamp %d: code %d offset %d, want %d and %d", version, timestamp, p.ErrorCode, p.Offset, code, want)
			}
		}
	}
}

// Clients are told the advertised address, not the one that the broker listens on.
func TestAdvertisedAddress(t *testing.T) {
	c := dial(t, ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data", Advertise: "broker-1.example.com:19092"}))
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 12
	a, err := rawkafka.Roundtrip[*kmsg.MetadataResponse](c, req)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Brokers) != 1 || a.Brokers[0].Host != "broker-1.example.com" || a.Brokers[0].Port != 19092 {
		t.Errorf("brokers %+v, want broker-1.example.com:19092", a.Brokers)
	}
}
