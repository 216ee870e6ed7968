package wire

import "fmt"

// The least that one element of each array has on the wire: a topic is an empty name or an id, and a count; a
// partition is an index and a length.
const (
	topicBytesMin     = 2
	partitionBytesMin = 5
)

// ProduceEntriesMax bounds the topics and partitions of one Produce request together. What the broker keeps for
// one entry is many times the six bytes that an entry can have on the wire, so a frame of 100 MiB needs this
// second bound. A request of one small batch for each of 65,536 partitions is beyond what clients build.
const ProduceEntriesMax = 1 << 16

// ProduceNameBytesMax bounds the topic names of one Produce request together. They come back in the answer, and the
// broker keeps those that it does not know until then: a frame of 100 MiB that is all names would cost three times as
// much again.
const ProduceNameBytesMax = 4 << 20

// ProduceRequest is a Produce request of version 0 to 13, read in place. It borrows the frame.
type ProduceRequest struct {
	Version int16
	// TransactionalID is nil when null.
	TransactionalID []byte
	Acks            int16
	TimeoutMillis   int32
	// Topics and Partitions count the entries of the request; together they are at most ProduceEntriesMax.
	Topics, Partitions int

	topics reader // stands on the first topic
}

// ProduceTopic is one topic of a Produce request.
type ProduceTopic struct {
	Name []byte   // borrowed; nil from version 13 on
	ID   [16]byte // from version 13 on
}

// ProducePartition is one partition of a Produce request.
type ProducePartition struct {
	Index   int32
	Records []byte // borrowed; nil when null
}

// ParseProduce reads a body in place and checks the shape of the whole of it, so that a request which is cut off
// near its end is refused before anything of it was carried out. It looks at no record.
func ParseProduce(version int16, body []byte) (ProduceRequest, error) {
	req := ProduceRequest{Version: version}
	flexible := KeyProduce.Flexible(version)
	r := reader{src: body}
	if version >= 3 {
		req.TransactionalID = r.nullableString(flexible)
	}
	req.Acks = r.int16()
	req.TimeoutMillis = r.int32()
	req.Topics = r.arrayLength(flexible, topicBytesMin)
	req.topics = r
	names := 0
	cursor := req.Cursor()
	for {
		topic, ok := cursor.NextTopic()
		if !ok {
			break
		}
		if names += len(topic.Name); names > ProduceNameBytesMax {
			return ProduceRequest{}, fmt.Errorf("parse Produce v%d: more than %d bytes of topic names in one request", version, ProduceNameBytesMax)
		}
		req.Partitions += cursor.partitions
		if req.Topics+req.Partitions > ProduceEntriesMax {
			return ProduceRequest{}, fmt.Errorf("parse Produce v%d: more than %d topics and partitions in one request", version, ProduceEntriesMax)
		}
		for ok := true; ok; {
			_, ok = cursor.NextPartition()
		}
	}
	cursor.r.skipTags(flexible)
	if cursor.r.bad {
		return ProduceRequest{}, fmt.Errorf("parse Produce v%d: %d bytes are cut off or lie about a length", version, len(body))
	}
	if n := len(cursor.r.src); n > 0 {
		return ProduceRequest{}, fmt.Errorf("parse Produce v%d: %d bytes follow the end of the request", version, n)
	}
	return req, nil
}

// ProduceCursor walks over a Produce request: NextTopic, then NextPartition until it says false, and again.
type ProduceCursor struct {
	r          reader
	version    int16
	flexible   bool
	topics     int // not begun
	partitions int // of the topic begun, not given out
}

// Cursor stands before the first topic.
func (req *ProduceRequest) Cursor() ProduceCursor {
	return ProduceCursor{
		r:        req.topics,
		version:  req.Version,
		flexible: KeyProduce.Flexible(req.Version),
		topics:   req.Topics,
	}
}

// NextTopic begins the next topic; the partitions of the one before must have been walked over.
func (c *ProduceCursor) NextTopic() (topic ProduceTopic, ok bool) {
	if c.topics == 0 || c.r.bad {
		return ProduceTopic{}, false
	}
	c.topics--
	if c.version >= 13 {
		topic.ID = c.r.uuid()
	} else {
		topic.Name = c.r.string(c.flexible)
	}
	c.partitions = c.r.arrayLength(c.flexible, partitionBytesMin)
	if c.partitions == 0 {
		c.r.skipTags(c.flexible)
	}
	return topic, !c.r.bad
}

// NextPartition gives the next partition of the topic.
func (c *ProduceCursor) NextPartition() (p ProducePartition, ok bool) {
	if c.partitions == 0 || c.r.bad {
		return ProducePartition{}, false
	}
	c.partitions--
	p.Index = c.r.int32()
	p.Records = c.r.nullableBytes(c.flexible)
	c.r.skipTags(c.flexible)
	if c.partitions == 0 {
		c.r.skipTags(c.flexible)
	}
	return p, !c.r.bad
}
