package wire

import "encoding/binary"

// FetchResult is what a Fetch response says of one partition, beside its records.
type FetchResult struct {
	Index int32
	Code  int16 // Kafka's error code; 0 is success
	// HighWatermark is the first offset that may not be read yet; it is the last stable offset as well, because
	// there are no transactions. -1 with most errors.
	HighWatermark int64
	// LogStartOffset is the first offset that may be read (written from version 5 on).
	LogStartOffset int64
	// Leader is where the partition is led, when that is news to the client (written from version 16 on, KIP-951).
	Leader CurrentLeader
}

// FetchEncoder appends the body of a Fetch response, version 4 to 17, to Dst, and lets the caller append the record
// bytes of each partition in their place, so that they are copied only once. Begin; for each topic Topic, its
// partitions and EndTopic; End. A partition is BeginPartition, then the records appended to Dst, then EndPartition.
type FetchEncoder struct {
	Dst     []byte
	Version int16

	head     int // where the partition begun last begins
	records  int // where its records begin
	expected int // how many bytes of them the caller expects
}

// Begin appends the error code and the session id (both from version 7 on) and the number of topics. Session id 0
// tells the client that there is no fetch session (KIP-227).
func (e *FetchEncoder) Begin(code int16, topics int) {
	dst := append(e.Dst, 0, 0, 0, 0) // throttle time
	if e.Version >= 7 {
		dst = binary.BigEndian.AppendUint16(dst, uint16(code))
		dst = append(dst, 0, 0, 0, 0) // session id
	}
	e.Dst = appendArrayLength(dst, topics, e.flexible())
}

// Topic appends the head of a topic: its name below version 13, its id from there on, and the number of partitions.
func (e *FetchEncoder) Topic(name string, id [16]byte, partitions int) {
	if e.Version >= 13 {
		e.Dst = append(e.Dst, id[:]...)
	} else {
		e.Dst = appendString(e.Dst, name, e.flexible())
	}
	e.Dst = appendArrayLength(e.Dst, partitions, e.flexible())
}

// BeginPartition makes room for the head of a partition. recordBytes is how many bytes of records the caller
// expects to append: when it is right, or close, EndPartition moves nothing.
func (e *FetchEncoder) BeginPartition(recordBytes int) {
	e.head, e.expected = len(e.Dst), recordBytes
	e.Dst = e.appendHead(e.Dst, FetchResult{}, recordBytes)
	e.records = len(e.Dst)
}

// EndPartition writes the head of the partition in front of the records appended since BeginPartition.
func (e *FetchEncoder) EndPartition(r FetchResult) {
	recordBytes := len(e.Dst) - e.records
	// The compact length in the head may come out shorter or longer than the room that was made for it.
	if move := e.lengthSize(recordBytes) - e.lengthSize(e.expected); move != 0 {
		e.Dst = append(e.Dst, make([]byte, max(move, 0))...)
		copy(e.Dst[e.records+move:], e.Dst[e.records:e.records+recordBytes])
		e.Dst = e.Dst[:e.records+move+recordBytes]
	}
	e.appendHead(e.Dst[:e.head], r, recordBytes)
	if e.Version >= fetchLeaderVersionMin && r.Leader != (CurrentLeader{}) {
		e.Dst = appendLeaderTag(e.Dst, fetchLeaderTag, r.Leader)
		return
	}
	e.Dst = appendNoTags(e.Dst, e.flexible())
}

// appendHead appends all of a partition that comes before its records.
func (e *FetchEncoder) appendHead(dst []byte, r FetchResult, recordBytes int) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(r.Index))
	dst = binary.BigEndian.AppendUint16(dst, uint16(r.Code))
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.HighWatermark))
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.HighWatermark)) // last stable offset
	if e.Version >= 5 {
		dst = binary.BigEndian.AppendUint64(dst, uint64(r.LogStartOffset))
	}
	dst = appendArrayLength(dst, 0, e.flexible()) // aborted transactions
	if e.Version >= 11 {
		dst = append(dst, 0xff, 0xff, 0xff, 0xff) // preferred read replica: none
	}
	return appendArrayLength(dst, recordBytes, e.flexible())
}

// lengthSize is the size of the field that counts n record bytes.
func (e *FetchEncoder) lengthSize(n int) int {
	if !e.flexible() {
		return 4
	}
	return uvarintSize(uint32(n) + 1)
}

// EndTopic ends a topic.
func (e *FetchEncoder) EndTopic() {
	e.Dst = appendNoTags(e.Dst, e.flexible())
}

// End ends the response. endpoints are where the leaders that it names can be reached, each once (written from version 16
// on, KIP-951).
func (e *FetchEncoder) End(endpoints []Endpoint) {
	if e.Version >= fetchLeaderVersionMin && len(endpoints) > 0 {
		e.Dst = appendEndpointsTag(e.Dst, endpoints)
		return
	}
	e.Dst = appendNoTags(e.Dst, e.flexible())
}

func (e *FetchEncoder) flexible() bool {
	return KeyFetch.Flexible(e.Version)
}
