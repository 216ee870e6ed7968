package wire

import "encoding/binary"

// noTime is the timestamp -1.
const noTime = ^uint64(0)

// ProduceResult is the answer for one partition of a Produce request.
type ProduceResult struct {
	Index int32
	Code  int16 // Kafka's error code; 0 is success
	// BaseOffset is where the first record of the batch is stored, -1 with an error.
	BaseOffset int64
	// LogStartOffset is -1 when it is not known (written from version 5 on).
	LogStartOffset int64
	// Message tells a person what was expected and what came; empty is null (written from version 8 on, KIP-467).
	Message string
	// Leader is where the partition is led, when that is news to the client (written from version 10 on, KIP-951).
	Leader CurrentLeader
}

// ProduceEncoder appends the body of a Produce response, version 0 to 13, to Dst: Begin; for each topic Topic, a
// Partition for each partition and EndTopic; End. It allocates nothing but room in Dst.
//
// The log append time is always -1: a batch keeps the timestamps that its producer gave it.
type ProduceEncoder struct {
	Dst     []byte
	Version int16
}

// Begin appends the number of topics.
func (e *ProduceEncoder) Begin(topics int) {
	e.Dst = appendArrayLength(e.Dst, topics, e.flexible())
}

// Topic appends the head of a topic: its name below version 13, its id from there on, and the number of partitions.
func (e *ProduceEncoder) Topic(name string, id [16]byte, partitions int) {
	if e.Version >= 13 {
		e.Dst = append(e.Dst, id[:]...)
	} else {
		e.Dst = appendString(e.Dst, name, e.flexible())
	}
	e.Dst = appendArrayLength(e.Dst, partitions, e.flexible())
}

// Partition appends one partition of the topic.
func (e *ProduceEncoder) Partition(r ProduceResult) {
	dst := binary.BigEndian.AppendUint32(e.Dst, uint32(r.Index))
	dst = binary.BigEndian.AppendUint16(dst, uint16(r.Code))
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.BaseOffset))
	if e.Version >= 2 {
		dst = binary.BigEndian.AppendUint64(dst, noTime)
	}
	if e.Version >= 5 {
		dst = binary.BigEndian.AppendUint64(dst, uint64(r.LogStartOffset))
	}
	if e.Version >= 8 {
		dst = appendArrayLength(dst, 0, e.flexible()) // no errors of single records: a batch stands or falls whole
		dst = appendMessage(dst, r.Message, e.flexible())
	}
	if e.Version >= produceLeaderVersionMin && r.Leader != (CurrentLeader{}) {
		e.Dst = appendLeaderTag(dst, produceLeaderTag, r.Leader)
		return
	}
	e.Dst = appendNoTags(dst, e.flexible())
}

// EndTopic ends a topic.
func (e *ProduceEncoder) EndTopic() {
	e.Dst = appendNoTags(e.Dst, e.flexible())
}

// End ends the response. endpoints are where the leaders that it names can be reached, each once (written from version 10
// on, KIP-951).
func (e *ProduceEncoder) End(endpoints []Endpoint) {
	if e.Version >= 1 {
		e.Dst = append(e.Dst, 0, 0, 0, 0) // throttle time
	}
	if e.Version >= produceLeaderVersionMin && len(endpoints) > 0 {
		e.Dst = appendEndpointsTag(e.Dst, endpoints)
		return
	}
	e.Dst = appendNoTags(e.Dst, e.flexible())
}

func (e *ProduceEncoder) flexible() bool {
	return KeyProduce.Flexible(e.Version)
}
