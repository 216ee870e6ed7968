// Package scripted is a broker for tests of the campaigns that says what it was told to say: all that a campaign must see
// through. It is test support; the broker does not import it.
package scripted

import (
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/rawkafka"
)

// requestsMax is how many requests may come before the first is answered.
const requestsMax = 64

// Answering returns a client whose requests are answered, in order, with these messages. It gets the number of requests
// that came, when the client has hung up.
func Answering(t *testing.T, answers ...kmsg.Response) (c *rawkafka.Client, requests <-chan int) {
	ours, theirs := net.Pipe()
	t.Cleanup(func() { _ = ours.Close(); _ = theirs.Close() })
	frames, count := make(chan []byte, requestsMax), make(chan int, 1)
	go func() { // requests are read as they come; answers wait for their request
		defer close(frames)
		n := 0
		defer func() { count <- n }()
		for ; ; n++ {
			var size [4]byte
			if _, err := io.ReadFull(theirs, size[:]); err != nil {
				return
			}
			frame := make([]byte, binary.BigEndian.Uint32(size[:]))
			if _, err := io.ReadFull(theirs, frame); err != nil {
				return
			}
			frames <- frame
		}
	}()
	go func() {
		for _, answer := range answers {
			frame, ok := <-frames
			if !ok {
				return
			}
			if _, err := theirs.Write(answerTo(frame, answer)); err != nil {
				return
			}
		}
	}()
	return rawkafka.New(ours, rawkafka.Options{}), count
}

func answerTo(request []byte, answer kmsg.Response) []byte {
	answer.SetVersion(int16(binary.BigEndian.Uint16(request[2:])))
	frame := append([]byte{0, 0, 0, 0}, request[4:8]...)
	if answer.IsFlexible() {
		frame = append(frame, 0)
	}
	frame = answer.AppendTo(frame)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

// Produced answers a produce to one partition.
func Produced(code int16, base int64) kmsg.Response {
	a := kmsg.NewPtrProduceResponse()
	topic, p := kmsg.NewProduceResponseTopic(), kmsg.NewProduceResponseTopicPartition()
	p.ErrorCode, p.BaseOffset = code, base
	topic.Partitions = append(topic.Partitions, p)
	a.Topics = append(a.Topics, topic)
	return a
}

// Fetched answers a fetch from one partition.
func Fetched(logStart int64, code int16, highWatermark int64, records []byte) kmsg.Response {
	a := kmsg.NewPtrFetchResponse()
	topic, p := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
	p.ErrorCode, p.HighWatermark, p.LogStartOffset, p.RecordBatches = code, highWatermark, logStart, records
	topic.Partitions = append(topic.Partitions, p)
	a.Topics = append(a.Topics, topic)
	return a
}

// Listed answers a ListOffsets of one partition.
func Listed(offset int64) kmsg.Response {
	a := kmsg.NewPtrListOffsetsResponse()
	topic, p := kmsg.NewListOffsetsResponseTopic(), kmsg.NewListOffsetsResponseTopicPartition()
	p.Offset = offset
	topic.Partitions = append(topic.Partitions, p)
	a.Topics = append(a.Topics, topic)
	return a
}
