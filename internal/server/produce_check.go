package server

import (
	"fmt"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/wire"
)

const (
	// codecZstd is zstd in the attributes of a batch. Clients that speak less than version 7 cannot read it (KIP-110).
	codecZstd            = 4
	zstdVersionMin int16 = 7
	// batchVersionMin is the first version whose records are batches (KIP-98); those before it carry message sets.
	batchVersionMin int16 = 3
	// topicIDVersionMin is the first version of Produce, and of Fetch, that names topics by id (KIP-516).
	topicIDVersionMin int16 = 13
)

// produceCheck looks at a whole Produce request, and refuses what can be refused without asking a partition, before
// any batch of it is submitted.
type produceCheck struct {
	server *Server
	topics finder
	call   *produceCall
	req    wire.ProduceRequest
	// named has the place of each partition seen so far. It stays empty for a request of one partition.
	named map[partitionKey]int
}

// partitionKey names a partition within a request.
type partitionKey struct {
	topic [16]byte
	index int32
}

func (k *produceCheck) run() {
	whole := refuseRequest(&k.req)
	i := 0
	for cursor := k.req.Cursor(); ; {
		asked, ok := cursor.NextTopic()
		if !ok {
			break
		}
		topic := producedTopic{id: asked.ID}
		found := topic.find(&k.topics, k.req.Version, asked)
		for {
			entry, ok := cursor.NextPartition()
			if !ok {
				break
			}
			p := &k.call.partitions[i]
			p.call, p.index = k.call, entry.Index
			if whole.code == codeNone {
				whole = k.partition(i, found, entry.Records)
			}
			topic.partitions++
			i++
		}
		k.call.topics = append(k.call.topics, topic)
	}
	if whole.code != codeNone {
		for i := range k.call.partitions {
			k.call.partitions[i].refusal = whole
		}
	}
}

// refusal is a code and what to tell a person; without a code it is none.
type refusal struct {
	code     code
	text     string
	logStart batch.Offset // -1 when not known, or not told with this code
}

func refused(c code, text string) refusal {
	return refusal{c, text, -1}
}

// refuseRequest refuses what makes a whole request impossible.
func refuseRequest(req *wire.ProduceRequest) refusal {
	switch {
	case req.Version < batchVersionMin:
		return refused(codeUnsupportedVersion, "")
	case req.TransactionalID != nil:
		return refused(codeTransactionalIDNotAllowed, "transactions are not supported: use an idempotent producer without a transactional.id")
	case req.Acks < -1 || req.Acks > 1:
		return refused(codeInvalidRequiredAcks, fmt.Sprintf("acks must be -1 (all), 1 or 0, %d came", req.Acks))
	default:
		return refusal{}
	}
}

// find looks the topic up, by name below version 13 and by id from there on, and keeps what the answer needs of it.
func (t *producedTopic) find(topics *finder, version int16, asked wire.ProduceTopic) *meta.Topic {
	var topic *meta.Topic
	if version >= topicIDVersionMin {
		topic = topics.byID(asked.ID)
	} else {
		topic = topics.byName(string(asked.Name))
	}
	if topic == nil {
		t.name = string(asked.Name)
		return nil
	}
	t.name, t.topic = topic.Name, topic
	return topic
}

// partition checks the records for one partition, and prepares their submission or a refusal. What it returns refuses
// the whole request.
func (k *produceCheck) partition(i int, topic *meta.Topic, records []byte) (whole refusal) {
	p := &k.call.partitions[i]
	header, fault := batch.CheckProduce(records)
	if fault.Class() == batch.ClassTransactional {
		return refused(codeTransactionalIDNotAllowed, faultText(fault, header, len(records)))
	}
	partition, code := k.server.partition(topic, p.index)
	switch {
	case code != codeNone:
		p.refusal = refused(k.missing(code, topic))
	case k.again(partitionKey{topic.ID, p.index}, i, partition):
	case fault != batch.FaultNone:
		p.refusal = refused(faultCode(fault), faultText(fault, header, len(records)))
		if p.refusal.code == codeInvalidRecord {
			p.refusal.logStart = partition.Status().LogStart
		}
	case header.Codec() == codecZstd && k.req.Version < zstdVersionMin:
		p.refusal = refused(codeUnsupportedCompressionType, "")
	default:
		p.partition = partition
		p.submission = replica.Submission{Batch: records, Header: header, Acks: k.req.Acks, Done: p}
	}
	return refusal{}
}

// missing is the code and the text for a partition that is not there.
func (k *produceCheck) missing(c code, topic *meta.Topic) (code, string) {
	switch {
	case c == codeNotLeaderOrFollower:
		return c, replica.ErrNotLeader.Error()
	case topic == nil && k.topics.unsure:
		return codeNotLeaderOrFollower, unsureText
	case topic != nil:
		return c, fmt.Sprintf("the topic has %d partitions", len(topic.Partitions))
	case k.req.Version >= topicIDVersionMin:
		return codeUnknownTopicID, "no topic has this id"
	default:
		return c, "no topic has this name"
	}
}

// again refuses a partition that the request names more than once, at each place where it does: it has exactly one
// batch for a partition (KIP-98), and which of them came first means nothing.
func (k *produceCheck) again(key partitionKey, i int, partition Partition) bool {
	if len(k.call.partitions) == 1 {
		return false
	}
	first, again := k.named[key]
	if !again {
		k.named[key] = i
		return false
	}
	twice := refusal{codeInvalidRecord, "the request names this partition more than once", partition.Status().LogStart}
	k.call.partitions[first].refusal = twice
	k.call.partitions[i].refusal = twice
	return true
}
