package rawkafka

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
)

// The versions that the calls of this file use unless the caller says otherwise.
const (
	ProduceVersion        = 9
	FetchVersion          = 12
	listOffsetsVersion    = 7
	createTopicsVersion   = 7
	initProducerIDVersion = 4
	metadataVersion       = 12
	deleteTopicsVersion   = 4
	deleteRecordsVersion  = 2
	electLeadersVersion   = 2
)

// Topic names a topic in both ways that the protocol knows: older versions use the name, newer ones the id.
type Topic struct {
	Name string
	ID   [16]byte
}

// CodeError is an error code of the Kafka protocol that a call did not expect.
type CodeError struct {
	Call string
	Code int16
	Text string // what the broker said to it, possibly empty
}

func (e *CodeError) Error() string {
	return fmt.Sprintf("%s: error code %d %s", e.Call, e.Code, e.Text)
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// CreateTopic creates a topic with one replica per partition and returns its id.
func (c *Client) CreateTopic(name string, partitions int32) (Topic, error) {
	return c.CreateReplicatedTopic(name, partitions, 1, nil)
}

// CreateReplicatedTopic creates a topic with a number of replicas per partition, -1 for the broker's default, and with these
// settings, and returns its id.
func (c *Client) CreateReplicatedTopic(name string, partitions int32, replication int16, settings map[string]string) (Topic, error) {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version = createTopicsVersion
	req.TimeoutMillis = int32(c.opt.Timeout / time.Millisecond)
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, replication
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		config := kmsg.NewCreateTopicsRequestTopicConfig()
		config.Name, config.Value = key, kmsg.StringPtr(settings[key])
		topic.Configs = append(topic.Configs, config)
	}
	req.Topics = append(req.Topics, topic)
	answer, err := Roundtrip[*kmsg.CreateTopicsResponse](c, req)
	if err != nil {
		return Topic{}, fmt.Errorf("create topic %s: %w", name, err)
	}
	if len(answer.Topics) != 1 || answer.Topics[0].Topic != name {
		return Topic{}, fmt.Errorf("create topic %s: the answer has %d topics, want this one", name, len(answer.Topics))
	}
	if t := answer.Topics[0]; t.ErrorCode != 0 {
		return Topic{}, &CodeError{Call: "create topic " + name, Code: t.ErrorCode, Text: text(t.ErrorMessage)}
	}
	return Topic{Name: name, ID: answer.Topics[0].TopicID}, nil
}

// Metadata asks for the brokers, and for these topics. A topic that is not known has an error code in the answer.
func (c *Client) Metadata(topics ...string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Version = metadataVersion
	req.AllowAutoTopicCreation = false
	req.Topics = []kmsg.MetadataRequestTopic{} // nil means all of them
	for _, name := range topics {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		req.Topics = append(req.Topics, topic)
	}
	answer, err := Roundtrip[*kmsg.MetadataResponse](c, req)
	if err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	return answer, nil
}

// ElectPreferredLeader asks that the first replica of a partition lead it. An error code is a CodeError.
func (c *Client) ElectPreferredLeader(topic Topic, partition int32) error {
	call := fmt.Sprintf("elect the preferred leader of %s/%d", topic.Name, partition)
	req := kmsg.NewPtrElectLeadersRequest()
	req.Version = electLeadersVersion
	req.TimeoutMillis = int32(c.opt.Timeout / time.Millisecond)
	t := kmsg.NewElectLeadersRequestTopic()
	t.Topic, t.Partitions = topic.Name, []int32{partition}
	req.Topics = append(req.Topics, t)
	answer, err := Roundtrip[*kmsg.ElectLeadersResponse](c, req)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", call, err)
	case answer.ErrorCode != 0:
		return &CodeError{Call: call, Code: answer.ErrorCode}
	case len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1:
		return fmt.Errorf("%s: the answer is not for one partition: %+v", call, answer)
	}
	if p := answer.Topics[0].Partitions[0]; p.ErrorCode != 0 {
		return &CodeError{Call: call, Code: p.ErrorCode, Text: text(p.ErrorMessage)}
	}
	return nil
}

// FindTopic asks for a topic by its name and returns it with its id.
func (c *Client) FindTopic(name string) (Topic, error) {
	call := "find topic " + name
	req := kmsg.NewPtrMetadataRequest()
	req.Version = metadataVersion
	req.AllowAutoTopicCreation = false
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &name
	req.Topics = append(req.Topics, topic)
	answer, err := Roundtrip[*kmsg.MetadataResponse](c, req)
	if err != nil {
		return Topic{}, fmt.Errorf("%s: %w", call, err)
	}
	if len(answer.Topics) != 1 || text(answer.Topics[0].Topic) != name {
		return Topic{}, fmt.Errorf("%s: the answer has %d topics, want this one", call, len(answer.Topics))
	}
	if code := answer.Topics[0].ErrorCode; code != 0 {
		return Topic{}, &CodeError{Call: call, Code: code}
	}
	return Topic{Name: name, ID: answer.Topics[0].TopicID}, nil
}

// DeleteTopic deletes a topic by its name.
func (c *Client) DeleteTopic(name string) error {
	call := "delete topic " + name
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.Version = deleteTopicsVersion
	req.TimeoutMillis = int32(c.opt.Timeout / time.Millisecond)
	req.TopicNames = []string{name}
	answer, err := Roundtrip[*kmsg.DeleteTopicsResponse](c, req)
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	if len(answer.Topics) != 1 || text(answer.Topics[0].Topic) != name {
		return fmt.Errorf("%s: the answer has %d topics, want this one", call, len(answer.Topics))
	}
	if t := answer.Topics[0]; t.ErrorCode != 0 {
		return &CodeError{Call: call, Code: t.ErrorCode, Text: text(t.ErrorMessage)}
	}
	return nil
}

// DeleteRecords moves a partition's log start up to an offset, -1 for the high watermark, and returns where it is then.
func (c *Client) DeleteRecords(topic Topic, partition int32, before batch.Offset) (logStart batch.Offset, err error) {
	call := fmt.Sprintf("delete records of %s/%d before %d", topic.Name, partition, before)
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.Version = deleteRecordsVersion
	req.TimeoutMillis = int32(c.opt.Timeout / time.Millisecond)
	t := kmsg.NewDeleteRecordsRequestTopic()
	t.Topic = topic.Name
	p := kmsg.NewDeleteRecordsRequestTopicPartition()
	p.Partition, p.Offset = partition, int64(before)
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return roundtripOffset(c, call, req, func(a *kmsg.DeleteRecordsResponse) (code int16, offset int64, ok bool) {
		if len(a.Topics) != 1 || len(a.Topics[0].Partitions) != 1 {
			return 0, 0, false
		}
		p := a.Topics[0].Partitions[0]
		return p.ErrorCode, p.LowWatermark, true
	})
}

// InitProducerID asks for a producer id and returns it with its epoch.
func (c *Client) InitProducerID() (batch.ProducerID, batch.Epoch, error) {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version = initProducerIDVersion
	req.ProducerID, req.ProducerEpoch = -1, -1
	answer, err := Roundtrip[*kmsg.InitProducerIDResponse](c, req)
	if err != nil {
		return -1, -1, fmt.Errorf("init producer id: %w", err)
	}
	if answer.ErrorCode != 0 {
		return -1, -1, &CodeError{Call: "init producer id", Code: answer.ErrorCode}
	}
	return batch.ProducerID(answer.ProducerID), batch.Epoch(answer.ProducerEpoch), nil
}

// ProduceRequest builds a produce of the records to one partition. Acks is all.
func ProduceRequest(version int16, topic Topic, partition int32, records []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version = version
	req.Acks = -1
	req.TimeoutMillis = 30_000
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.TopicID = topic.Name, topic.ID
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, records
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

// ProduceAnswer is what the broker said about one partition of a produce.
type ProduceAnswer struct {
	Code       int16
	Base       batch.Offset // -1 with an error
	LogStart   batch.Offset
	AppendTime int64 // -1 unless the broker sets timestamps
	Text       string
}

// ProduceAnswerOf takes the only partition out of a produce's answer.
func ProduceAnswerOf(answer kmsg.Response) (ProduceAnswer, error) {
	a, ok := answer.(*kmsg.ProduceResponse)
	if !ok || len(a.Topics) != 1 || len(a.Topics[0].Partitions) != 1 {
		return ProduceAnswer{}, fmt.Errorf("produce: the answer is no produce answer for one partition: %+v", answer)
	}
	p := a.Topics[0].Partitions[0]
	return ProduceAnswer{
		Code:       p.ErrorCode,
		Base:       batch.Offset(p.BaseOffset),
		LogStart:   batch.Offset(p.LogStartOffset),
		AppendTime: p.LogAppendTime,
		Text:       text(p.ErrorMessage),
	}, nil
}

// ReceiveProduce reads the answer to the oldest request, which is a produce to one partition. An error code is no error here.
func (c *Client) ReceiveProduce() (ProduceAnswer, error) {
	answer, err := c.Receive()
	if err != nil {
		return ProduceAnswer{}, err
	}
	return ProduceAnswerOf(answer)
}

// ReceiveStored is ReceiveProduce, and an error code is a CodeError.
func (c *Client) ReceiveStored() error {
	a, err := c.ReceiveProduce()
	if err == nil && a.Code != 0 {
		err = &CodeError{Call: "produce", Code: a.Code, Text: a.Text}
	}
	return err
}

// Produce sends records to one partition, acks=all, and waits for the answer. An error code is no error here.
func (c *Client) Produce(version int16, topic Topic, partition int32, records []byte) (ProduceAnswer, error) {
	answer, err := Roundtrip[*kmsg.ProduceResponse](c, ProduceRequest(version, topic, partition, records))
	if err != nil {
		return ProduceAnswer{}, fmt.Errorf("produce to %s/%d: %w", topic.Name, partition, err)
	}
	return ProduceAnswerOf(answer)
}

// FetchRequest builds a fetch from one partition that waits up to maxWait for one byte.
func FetchRequest(version int16, topic Topic, partition int32, from batch.Offset, maxWait time.Duration) *kmsg.FetchRequest {
	const maxBytes = 8 << 20
	req := kmsg.NewPtrFetchRequest()
	req.Version = version
	req.ReplicaID = -1
	req.MaxWaitMillis = int32(maxWait / time.Millisecond)
	req.MinBytes, req.MaxBytes = 1, maxBytes
	req.SessionEpoch = -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = topic.Name, topic.ID
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = partition, int64(from), maxBytes
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

// FetchAnswer is what the broker said about one partition of a fetch.
type FetchAnswer struct {
	Code                    int16
	HighWatermark, LogStart batch.Offset
	Batches                 []Batch // whole; the first may begin before the offset that was asked for
}

// FetchAnswerOf takes the only partition out of a fetch's answer and reads its batches.
func FetchAnswerOf(answer kmsg.Response) (FetchAnswer, error) {
	a, ok := answer.(*kmsg.FetchResponse)
	if !ok || a.ErrorCode != 0 || len(a.Topics) != 1 || len(a.Topics[0].Partitions) != 1 {
		return FetchAnswer{}, fmt.Errorf("fetch: the answer is no fetch answer for one partition: %+v", answer)
	}
	p := a.Topics[0].Partitions[0]
	batches, err := ReadBatches(p.RecordBatches)
	if err != nil {
		return FetchAnswer{}, fmt.Errorf("fetch: %w", err)
	}
	return FetchAnswer{
		Code:          p.ErrorCode,
		HighWatermark: batch.Offset(p.HighWatermark),
		LogStart:      batch.Offset(p.LogStartOffset),
		Batches:       batches,
	}, nil
}

// Fetch reads from one partition and waits up to maxWait for data. An error code is no error here.
func (c *Client) Fetch(version int16, topic Topic, partition int32, from batch.Offset, maxWait time.Duration) (FetchAnswer, error) {
	answer, err := Roundtrip[*kmsg.FetchResponse](c, FetchRequest(version, topic, partition, from, maxWait))
	if err != nil {
		return FetchAnswer{}, fmt.Errorf("fetch from %s/%d at %d: %w", topic.Name, partition, from, err)
	}
	return FetchAnswerOf(answer)
}

// ReadLog reads a whole partition, from its log start up to its high watermark, which it returns as well. The first batch
// may begin before the log start.
func (c *Client) ReadLog(version int16, topic Topic, partition int32) ([]Batch, batch.Offset, error) {
	next, end, err := c.Offsets(topic, partition)
	if err != nil {
		return nil, 0, err
	}
	var log []Batch
	for next < end {
		answer, err := c.Fetch(version, topic, partition, next, 0)
		if err != nil {
			return nil, 0, err
		}
		if answer.Code != 0 || len(answer.Batches) == 0 {
			return nil, 0, fmt.Errorf("read %s/%d at %d, high watermark %d: error code %d and %d batches",
				topic.Name, partition, next, end, answer.Code, len(answer.Batches))
		}
		for i, b := range answer.Batches {
			if b.BaseOffset != next && (len(log) > 0 || i > 0 || b.BaseOffset > next || b.NextOffset() <= next) {
				return nil, 0, fmt.Errorf("read %s/%d: offset %d follows %d", topic.Name, partition, b.BaseOffset, next-1)
			}
			next = b.NextOffset()
		}
		log = append(log, answer.Batches...)
	}
	return log, end, nil
}

// Offsets returns the log start and the high watermark of a partition.
func (c *Client) Offsets(topic Topic, partition int32) (logStart, highWatermark batch.Offset, err error) {
	if logStart, err = c.listOffset(topic, partition, -2); err != nil {
		return 0, 0, err
	}
	highWatermark, err = c.listOffset(topic, partition, -1)
	return logStart, highWatermark, err
}

func (c *Client) listOffset(topic Topic, partition int32, timestamp int64) (batch.Offset, error) {
	call := fmt.Sprintf("list offset %d of %s/%d", timestamp, topic.Name, partition)
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version = listOffsetsVersion
	req.ReplicaID = -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic.Name
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.Timestamp = partition, timestamp
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return roundtripOffset(c, call, req, func(a *kmsg.ListOffsetsResponse) (code int16, offset int64, ok bool) {
		if len(a.Topics) != 1 || len(a.Topics[0].Partitions) != 1 {
			return 0, 0, false
		}
		p := a.Topics[0].Partitions[0]
		return p.ErrorCode, p.Offset, true
	})
}

// roundtripOffset makes a call that is answered with one offset. read takes the only partition out of the answer; it is not
// ok when that is not the only one.
func roundtripOffset[A kmsg.Response](c *Client, call string, req kmsg.Request, read func(A) (code int16, offset int64, ok bool)) (batch.Offset, error) {
	answer, err := Roundtrip[A](c, req)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", call, err)
	}
	code, offset, ok := read(answer)
	switch {
	case !ok:
		return 0, fmt.Errorf("%s: the answer is not for one partition: %+v", call, answer)
	case code != 0:
		return 0, &CodeError{Call: call, Code: code}
	}
	return batch.Offset(offset), nil
}
