package e2e

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

const (
	codeCorrupt             = 2
	codeUnknownTopic        = 3
	codeInvalidTopicName    = 17
	codeRequiredAcks        = 21
	codeInvalidTimestamp    = 32
	codeUnsupportedVersion  = 35
	codeTopicExists         = 36
	codeInvalidConfig       = 40
	codeInvalidRequest      = 42
	codeTransactionalDenied = 53
	codeInvalidRecord       = 87
	codeUnknownTopicID      = 100
)

// put16, put32 and put64 overwrite one field of a batch and make the checksum right again.
func put16(at int, v uint16) func([]byte) []byte {
	return func(b []byte) []byte { binary.BigEndian.PutUint16(b[at:], v); rawkafka.Seal(b); return b }
}

func put32(at int, v uint32) func([]byte) []byte {
	return func(b []byte) []byte { binary.BigEndian.PutUint32(b[at:], v); rawkafka.Seal(b); return b }
}

func put64(at int, v uint64) func([]byte) []byte {
	return func(b []byte) []byte { binary.BigEndian.PutUint64(b[at:], v); rawkafka.Seal(b); return b }
}

// edits does several edits, one after the other.
func edits(all ...func([]byte) []byte) func([]byte) []byte {
	return func(b []byte) []byte {
		for _, edit := range all {
			b = edit(b)
		}
		return b
	}
}

const minus1 = 1<<64 - 1

// badBatch breaks a batch that is right and next in order: 3 records of one producer.
type badBatch struct {
	name string
	edit func([]byte) []byte
	code int16
}

var badBatches = []badBatch{
	{"null records", func([]byte) []byte { return nil }, codeInvalidRecord},
	{"empty records", func([]byte) []byte { return []byte{} }, codeInvalidRecord},
	{"one byte", func(b []byte) []byte { return b[:1] }, codeCorrupt},
	{"cut off inside the header", func(b []byte) []byte { return b[:rawkafka.BatchHeaderSize-1] }, codeCorrupt},
	{"cut off after the header", func(b []byte) []byte { return b[:rawkafka.BatchHeaderSize] }, codeCorrupt},
	{"cut off by one byte", func(b []byte) []byte { return b[:len(b)-1] }, codeCorrupt},
	{"magic 0", func(b []byte) []byte { b[rawkafka.FieldMagic] = 0; return b }, codeInvalidRecord},
	{"magic 1", func(b []byte) []byte { b[rawkafka.FieldMagic] = 1; return b }, codeInvalidRecord},
	{"magic 3", func(b []byte) []byte { b[rawkafka.FieldMagic] = 3; return b }, codeInvalidRecord},
	{"magic 1 goes before a wrong length", func(b []byte) []byte { b[rawkafka.FieldMagic] = 1; return b[:20] }, codeInvalidRecord},
	{"length beyond the end", put32(rawkafka.FieldBatchLength, 1<<20), codeCorrupt},
	{"length of 2 GiB", put32(rawkafka.FieldBatchLength, 1<<31-1), codeCorrupt},
	{"length below the header", put32(rawkafka.FieldBatchLength, 48), codeCorrupt},
	{"length 0", put32(rawkafka.FieldBatchLength, 0), codeCorrupt},
	{"negative length", put32(rawkafka.FieldBatchLength, minus1&0xffffffff), codeCorrupt},
	{"wrong checksum", func(b []byte) []byte { b[rawkafka.FieldCRC]++; return b }, codeCorrupt},
	{"a flipped bit in the payload", func(b []byte) []byte { b[len(b)-3] ^= 4; return b }, codeCorrupt},
	{"a flipped bit in the sequence", func(b []byte) []byte { b[rawkafka.FieldBaseSequence+3] ^= 1; return b }, codeCorrupt},
	{"a byte behind the batch", func(b []byte) []byte { return append(b, 0) }, codeInvalidRecord},
	{"two batches", func(b []byte) []byte { return append(b, b...) }, codeInvalidRecord},
	{"base offset 5", func(b []byte) []byte { b[rawkafka.FieldBaseOffset+7] = 5; return b }, codeInvalidRecord},
	{"base offset -1", func(b []byte) []byte { binary.BigEndian.PutUint64(b, minus1); return b }, codeInvalidRecord},
	{"count above delta + 1", put32(rawkafka.FieldCount, 4), codeInvalidRecord},
	{"count below delta + 1", put32(rawkafka.FieldCount, 2), codeInvalidRecord},
	{"count 0, delta -1", edits(put32(rawkafka.FieldCount, 0), put32(rawkafka.FieldLastOffsetDelta, minus1&0xffffffff)), codeInvalidRecord},
	{"count -1, delta -2", edits(put32(rawkafka.FieldCount, minus1&0xffffffff), put32(rawkafka.FieldLastOffsetDelta, 1<<32-2)), codeInvalidRecord},
	{"count wraps", edits(put32(rawkafka.FieldCount, 1<<31), put32(rawkafka.FieldLastOffsetDelta, 1<<31-1)), codeInvalidRecord},
	{"control batch", put16(rawkafka.FieldAttributes, rawkafka.AttributeControl), codeInvalidRecord},
	{"transactional batch", put16(rawkafka.FieldAttributes, rawkafka.AttributeTransactional), codeTransactionalDenied},
	{"claims log append time", put16(rawkafka.FieldAttributes, rawkafka.AttributeLogAppendTime), codeInvalidTimestamp},
	{"producer id without an epoch", put16(rawkafka.FieldProducerEpoch, minus1&0xffff), codeInvalidRecord},
	{"producer id with a negative epoch", put16(rawkafka.FieldProducerEpoch, 1<<15), codeInvalidRecord},
	{"producer id without a sequence", put32(rawkafka.FieldBaseSequence, minus1&0xffffffff), codeInvalidRecord},
	{"producer id with a negative sequence", put32(rawkafka.FieldBaseSequence, 1<<31), codeInvalidRecord},
	{"epoch and sequence without a producer id", put64(rawkafka.FieldProducerID, minus1), codeInvalidRecord},
	{"epoch without producer id and sequence", edits(put64(rawkafka.FieldProducerID, minus1), put32(rawkafka.FieldBaseSequence, minus1&0xffffffff)), codeInvalidRecord},
	{"producer id -2", put64(rawkafka.FieldProducerID, minus1-1), codeInvalidRecord},
}

// Each bad batch gets its code, uses up no sequence, and leaves no trace: the same batch, unbroken, is stored at the
// next offset. It is refused as the first batch of its producer as well, before the partition knows the producer.
func TestBadBatches(t *testing.T) {
	c := dial(t, sharedBroker(t))
	topic := newTopic(t, c, 1)
	id := newProducerID(t, c)
	var log [][]byte
	refuse := func(raw []byte, code int16) {
		t.Helper()
		if a := produce(t, c, topic, raw); a.Code != code || a.Base != noOffset {
			t.Errorf("answered code %d offset %d (%s), want code %d and offset -1", a.Code, a.Base, a.Text, code)
		} else if a.Text == "" {
			t.Errorf("no text says what is wrong")
		}
	}
	for i, bad := range badBatches {
		t.Run(bad.name, func(t *testing.T) {
			records := payloads(bad.name, 3)
			fresh := rawkafka.Idempotent(newProducerID(t, c), 0, 0, records...).Bytes()
			refuse(bad.edit(slices.Clone(fresh)), bad.code)
			raw := rawkafka.Idempotent(id, 0, batch.Sequence(3*i), records...).Bytes()
			refuse(bad.edit(slices.Clone(raw)), bad.code)
			mustStore(t, c, topic, raw, batch.Offset(len(log)))
			log = append(log, records...)
		})
	}
	mustHold(t, c, topic, log)
}

func TestBadProduceRequests(t *testing.T) {
	b := sharedBroker(t)
	c := dial(t, b)
	topic := newTopic(t, c, 2)
	id := newProducerID(t, c)
	first, second := payloads("first", 3), payloads("second", 2)
	raw := rawkafka.Idempotent(id, 0, 0, first...).Bytes()
	answers := func(req *kmsg.ProduceRequest) []kmsg.ProduceResponseTopicPartition {
		t.Helper()
		a, err := rawkafka.Roundtrip[*kmsg.ProduceResponse](c, req)
		if err != nil {
			t.Fatal(err)
		}
		var partitions []kmsg.ProduceResponseTopicPartition
		for _, topic := range a.Topics {
			partitions = append(partitions, topic.Partitions...)
		}
		return partitions
	}
	refused := func(name string, req *kmsg.ProduceRequest, code int16) {
		t.Helper()
		got := answers(req)
		if len(got) == 0 {
			t.Errorf("%s: no partition was answered", name)
		}
		for _, p := range got {
			if p.ErrorCode != code || p.BaseOffset != -1 {
				t.Errorf("%s: partition %d answered code %d offset %d, want %d and -1", name, p.Partition, p.ErrorCode, p.BaseOffset, code)
			}
		}
	}
	request := func(version int16, topic rawkafka.Topic, partition int32) *kmsg.ProduceRequest {
		return rawkafka.ProduceRequest(version, topic, partition, raw)
	}
	refused("unknown topic", request(9, rawkafka.Topic{Name: "nobody-made-it"}, 0), codeUnknownTopic)
	refused("unknown partition", request(9, topic, 2), codeUnknownTopic)
	refused("negative partition", request(9, topic, -1), codeUnknownTopic)
	refused("unknown topic id", request(13, rawkafka.Topic{ID: [16]byte{1, 2, 3}}, 0), codeUnknownTopicID)
	refused("unknown partition of a topic id", request(13, topic, 7), codeUnknownTopic)
	for _, acks := range []int16{2, -2, 32767} {
		req := request(9, topic, 0)
		req.Acks = acks
		other := req.Topics[0].Partitions[0]
		other.Partition = 1
		req.Topics[0].Partitions = append(req.Topics[0].Partitions, other)
		if got := answers(req); len(got) != 2 {
			t.Errorf("acks %d: %d partitions were answered, want 2", acks, len(got))
		}
		refused("acks", req, codeRequiredAcks)
	}
	transactional := request(9, topic, 0)
	transactional.TransactionID = kmsg.StringPtr("t")
	refused("transactional id", transactional, codeTransactionalDenied)
	for version := int16(0); version < 3; version++ {
		refused("version before 3", request(version, topic, 0), codeUnsupportedVersion)
	}

	// One partition's batch is too large: the other one's is stored.
	req := request(9, topic, 1)
	large := req.Topics[0].Partitions[0]
	large.Partition = 0
	large.Records = rawkafka.Idempotent(id, 0, 0, bytes.Repeat([]byte("x"), maxMessageBytes)).Bytes()
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, large)
	got := answers(req)
	if len(got) != 2 || got[0].Partition != 1 || got[0].ErrorCode != 0 || got[0].BaseOffset != 0 {
		t.Errorf("beside a batch that is too large: %+v, want partition 1 stored at 0", got)
	}
	if len(got) != 2 || got[1].Partition != 0 || got[1].ErrorCode != codeTooLarge || got[1].BaseOffset != -1 {
		t.Errorf("a batch that is too large: %+v, want code %d", got, codeTooLarge)
	}

	// Nothing of all this left a trace: both partitions go on where they were.
	mustStore(t, c, topic, raw, 0)
	mustStore(t, c, topic, rawkafka.Idempotent(id, 0, 3, second...).Bytes(), 3)
	mustHoldAt(t, c, rawkafka.FetchVersion, topic, 0, append(slices.Clone(first), second...))
	mustHoldAt(t, c, rawkafka.FetchVersion, topic, 1, first)
}

// A batch may have exactly max.message.bytes, header included.
func TestSizeLimit(t *testing.T) {
	c := dial(t, sharedBroker(t))
	topic := newTopic(t, c, 1)
	overhead := len(rawkafka.Plain(bytes.Repeat([]byte("x"), 1<<19)).Bytes()) - 1<<19 // lengths from 2^13 to 2^20 take 3 bytes
	largest := bytes.Repeat([]byte("x"), maxMessageBytes-overhead)
	mustStore(t, c, topic, rawkafka.Plain(largest).Bytes(), 0)
	if a := produce(t, c, topic, rawkafka.Plain(append(largest, 'x')).Bytes()); a.Code != codeTooLarge {
		t.Errorf("one byte above max.message.bytes was answered with code %d, want %d", a.Code, codeTooLarge)
	}
	mustHold(t, c, topic, [][]byte{largest})
}

// With acks=0 nothing is answered; an error closes the connection, a retry does not.
func TestAcksZero(t *testing.T) {
	b := sharedBroker(t)
	c := dial(t, b)
	topic := newTopic(t, c, 1)
	id := newProducerID(t, c)
	unanswered := func(c *rawkafka.Client, raw []byte) {
		t.Helper()
		req := rawkafka.ProduceRequest(rawkafka.ProduceVersion, topic, 0, raw)
		req.Acks = 0
		if err := c.SendUnanswered(req); err != nil {
			t.Fatal(err)
		}
	}
	records := payloads("silent", 3)
	raw := rawkafka.Idempotent(id, 0, 0, records...).Bytes()
	unanswered(c, raw)
	unanswered(c, raw) // a retry
	// The next answer on this connection is that of the next request, and its batch stands behind the silent one.
	more := payloads("answered", 1)
	mustStore(t, c, topic, rawkafka.Idempotent(id, 0, 3, more...).Bytes(), 3)
	log := append(slices.Clone(records), more...)
	mustHold(t, c, topic, log)

	for name, bad := range map[string][]byte{
		"out of order": rawkafka.Idempotent(id, 0, 9, more...).Bytes(),
		"bad checksum": func() []byte { b := slices.Clone(raw); b[rawkafka.FieldCRC]++; return b }(),
		"no records":   nil,
	} {
		broken := dial(t, b)
		unanswered(broken, bad)
		if err := broken.AwaitClose(); err != nil {
			t.Errorf("%s with acks=0: %v", name, err)
		}
	}
	mustHold(t, c, topic, log)
}

func TestBadTopics(t *testing.T) {
	c := dial(t, sharedBroker(t))
	create := func(edit func(*kmsg.CreateTopicsRequestTopic)) (int16, string) {
		t.Helper()
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Version, req.TimeoutMillis = 7, 30_000
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = freshName(), 1, 1
		edit(&topic)
		req.Topics = append(req.Topics, topic)
		a, err := rawkafka.Roundtrip[*kmsg.CreateTopicsResponse](c, req)
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Topics) != 1 {
			t.Fatalf("%d topics were answered, want 1", len(a.Topics))
		}
		if a.Topics[0].ErrorMessage == nil {
			return a.Topics[0].ErrorCode, ""
		}
		return a.Topics[0].ErrorCode, *a.Topics[0].ErrorMessage
	}
	badNames := []string{"", ".", "..", "a/b", "a b", "ä", "a\x00b", string(bytes.Repeat([]byte("n"), 250))}
	for _, name := range badNames {
		if code, _ := create(func(topic *kmsg.CreateTopicsRequestTopic) { topic.Topic = name }); code != codeInvalidTopicName {
			t.Errorf("create topic %.20q: code %d, want %d", name, code, codeInvalidTopicName)
		}
	}
	existing := newTopic(t, c, 1)
	if code, _ := create(func(topic *kmsg.CreateTopicsRequestTopic) { topic.Topic = existing.Name }); code != codeTopicExists {
		t.Errorf("create a topic twice: code %d, want %d", code, codeTopicExists)
	}
	code, text := create(func(topic *kmsg.CreateTopicsRequestTopic) {
		config := kmsg.NewCreateTopicsRequestTopicConfig()
		config.Name, config.Value = "cleanup.policy", kmsg.StringPtr("compact")
		topic.Configs = append(topic.Configs, config)
	})
	if code != codeInvalidConfig || text == "" {
		t.Errorf("create with a setting that has no effect yet: code %d text %q, want %d and a text", code, text, codeInvalidConfig)
	}

	// The automatic creation by Metadata looks at names in the same way.
	for _, name := range badNames[1:] {
		req := kmsg.NewPtrMetadataRequest()
		req.Version, req.AllowAutoTopicCreation = 12, true
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		req.Topics = append(req.Topics, topic)
		a, err := rawkafka.Roundtrip[*kmsg.MetadataResponse](c, req)
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Topics) != 1 || a.Topics[0].ErrorCode != codeInvalidTopicName {
			t.Errorf("metadata of %.20q: %+v, want code %d", name, a.Topics, codeInvalidTopicName)
		}
	}
}
