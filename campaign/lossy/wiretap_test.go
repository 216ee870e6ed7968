package main

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

// wire stands in for the proxy: it shows a wiretap produces to partition 0 of one topic, and their answers.
type wire struct {
	t         *testing.T
	tap       *wiretap
	version   int16
	formatter *kmsg.RequestFormatter
	sent      map[uint64][]int32 // correlation ids that wait for an answer, by connection
	next      int32
}

var wireTopic = rawkafka.Topic{Name: "t", ID: [16]byte{1, 2, 3}}

func newWire(t *testing.T, version int16) *wire {
	w := &wire{t: t, tap: newWiretap(), version: version, sent: make(map[uint64][]int32),
		formatter: kmsg.NewRequestFormatter(kmsg.FormatterClientID("client"))}
	w.tap.name(wireTopic)
	return w
}

// records is one batch of producer 9 in epoch 0: sequences 10 n to 10 n + 9.
func records(n int, content string) []byte {
	values := make([][]byte, 10)
	for i := range values {
		values[i] = []byte(content)
	}
	return rawkafka.Idempotent(9, 0, batch.Sequence(10*n), values...).Bytes()
}

func (w *wire) request(conn uint64, req kmsg.Request) {
	w.next++
	w.sent[conn] = append(w.sent[conn], w.next)
	w.tap.request(conn, w.formatter.AppendRequest(nil, req, w.next))
}

func (w *wire) send(conn uint64, raw []byte) {
	w.request(conn, rawkafka.ProduceRequest(w.version, wireTopic, 0, raw))
}

// answer answers the oldest request of the connection.
func (w *wire) answer(conn uint64, code int16, base int64) {
	w.answers(conn, w.produced(0, code, base))
}

func (w *wire) produced(partition int32, code int16, base int64) *kmsg.ProduceResponse {
	a := kmsg.NewPtrProduceResponse()
	topic := kmsg.NewProduceResponseTopic()
	topic.Topic, topic.TopicID = wireTopic.Name, wireTopic.ID
	p := kmsg.NewProduceResponseTopicPartition()
	p.Partition, p.ErrorCode, p.BaseOffset = partition, code, base
	topic.Partitions = append(topic.Partitions, p)
	a.Topics = append(a.Topics, topic)
	return a
}

func (w *wire) answers(conn uint64, a kmsg.Response) {
	a.SetVersion(w.version)
	frame := binary.BigEndian.AppendUint32(make([]byte, 4), uint32(w.sent[conn][0]))
	w.sent[conn] = w.sent[conn][1:]
	if a.IsFlexible() {
		frame = append(frame, 0)
	}
	frame = a.AppendTo(frame)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	w.tap.answer(conn, frame)
}

// logged is what a fetch would give for these batches, one after the other from offset 0.
func logged(t *testing.T, raws ...[]byte) []rawkafka.Batch {
	t.Helper()
	var all []byte
	next := batch.Offset(0)
	for _, raw := range raws {
		binary.BigEndian.PutUint64(raw, uint64(next))
		all = append(all, raw...)
		next += batch.Offset(binary.BigEndian.Uint32(raw[rawkafka.FieldCount:]))
	}
	log, err := rawkafka.ReadBatches(all)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func epoch1(sequence batch.Sequence) []byte {
	return rawkafka.Idempotent(9, 1, sequence, []byte("x")).Bytes()
}

// tapped is something that the wiretap sees, and part of what it says to that: nothing when all is right.
type tapped struct {
	name string
	play func(w *wire)
	want string
}

// playAll plays each at a version before flexible headers, one with them, and one with topic ids.
func playAll(t *testing.T, tests []tapped) {
	t.Helper()
	for _, test := range tests {
		for _, version := range []int16{8, 9, 13} {
			w := newWire(t, version)
			test.play(w)
			got := strings.Join(w.tap.problems, "\n")
			if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("%s, version %d: problems %q, want %q", test.name, version, got, test.want)
			}
		}
	}
}

func TestAnswersToBatches(t *testing.T) {
	playAll(t, []tapped{
		{"two batches, stored", func(w *wire) {
			w.send(1, records(0, "a"))
			w.send(1, records(1, "a"))
			w.answer(1, 0, 0)
			w.answer(1, 0, 10)
			w.tap.judge("t", 0, logged(w.t, records(0, "a"), records(1, "a")))
		}, ""},
		{"a retry answered as the original", func(w *wire) {
			w.send(1, records(0, "a"))
			w.answer(1, 0, 5)
			w.send(2, records(0, "a"))
			w.answer(2, 0, 5)
		}, ""},
		{"a retry answered with another offset", func(w *wire) {
			w.send(1, records(0, "a"))
			w.answer(1, 0, 5)
			w.send(2, records(0, "a"))
			w.answer(2, 0, 15)
		}, "a batch is at 5, its retry was answered 15"},
		{"a retry with other content", func(w *wire) {
			w.send(1, records(0, "a"))
			w.send(2, records(0, "b"))
		}, "sent again with other content"},
		{"try again", func(w *wire) {
			w.send(1, records(0, "a"))
			w.answer(1, codeTimedOut, -1)
		}, ""},
		{"out of order, the batch before never came", func(w *wire) {
			w.send(1, records(1, "a"))
			w.answer(1, codeOutOfOrder, -1)
		}, ""},
		{"out of order, the batch before came over another connection and was answered later", func(w *wire) {
			w.send(1, records(0, "a"))
			w.send(2, records(1, "a"))
			w.answer(1, 0, 0)
			w.answer(2, codeOutOfOrder, -1)
		}, ""},
		{"out of order, the batch before is stored", func(w *wire) {
			w.send(1, records(0, "a"))
			w.answer(1, 0, 0)
			w.send(2, records(1, "a"))
			w.answer(2, codeOutOfOrder, -1)
		}, "refused with code 45"},
		{"out of order, the batch before went ahead on the same connection", func(w *wire) {
			w.send(1, records(0, "a"))
			w.send(1, records(1, "a"))
			w.answer(1, 0, 0)
			w.answer(1, codeOutOfOrder, -1)
		}, "refused with code 45"},
		{"out of order, the first batch", func(w *wire) {
			w.send(1, records(0, "a"))
			w.answer(1, codeOutOfOrder, -1)
		}, "refused with code 45"},
		{"out of order, the batch itself is stored", func(w *wire) {
			w.send(1, records(1, "a"))
			w.answer(1, 0, 10)
			w.send(1, records(1, "a"))
			w.answer(1, codeOutOfOrder, -1)
		}, "refused with code 45, earlier answered with success 1 times"},
		{"fenced", func(w *wire) {
			w.send(1, records(1, "a"))
			w.answer(1, 47, -1)
		}, "refused with code 47"},
	})
}

func TestFrames(t *testing.T) {
	playAll(t, []tapped{
		{"an answer to no request", func(w *wire) {
			w.sent[1] = []int32{1}
			w.answer(1, 0, 0)
		}, "to no request"},
		{"answers change places", func(w *wire) {
			w.send(1, records(0, "a"))
			w.send(1, records(1, "a"))
			w.sent[1][0]++
			w.answer(1, 0, 0)
		}, "correlation id 2, want 1"},
		{"another partition answered", func(w *wire) {
			w.send(1, records(0, "a"))
			w.answers(1, w.produced(1, 0, 0))
		}, "partition 1 was not asked for"},
		{"no partition answered", func(w *wire) {
			w.send(1, records(0, "a"))
			w.answers(1, kmsg.NewPtrProduceResponse())
		}, "1 partitions have no answer"},
		{"acks", func(w *wire) {
			req := rawkafka.ProduceRequest(w.version, wireTopic, 0, records(0, "a"))
			req.Acks = 1
			w.request(1, req)
		}, "a produce with acks 1"},
		{"without idempotence", func(w *wire) {
			w.send(1, rawkafka.Plain([]byte("a")).Bytes())
		}, "a batch without a producer"},
		{"a request cut short", func(w *wire) { w.tap.request(1, make([]byte, 13)) }, "a request that cannot be read"},
		{"an answer cut short", func(w *wire) {
			w.send(1, records(0, "a"))
			w.tap.answer(1, make([]byte, 7))
		}, "an answer of 7 bytes"},
	})
}

func TestJudgeLog(t *testing.T) {
	playAll(t, []tapped{
		{"lost", func(w *wire) {
			w.send(1, records(0, "a"))
			w.answer(1, 0, 0)
			w.tap.judge("t", 0, nil)
		}, "answered with offset 0 and not in the log"},
		{"not answered and not stored", func(w *wire) {
			w.send(1, records(0, "a"))
			w.tap.judge("t", 0, nil)
		}, ""},
		{"stored twice", func(w *wire) {
			w.send(1, records(0, "a"))
			w.tap.judge("t", 0, logged(w.t, records(0, "a"), records(0, "a")))
		}, "offset 10: stored twice"},
		{"at another offset", func(w *wire) {
			w.send(1, records(0, "a"))
			w.answer(1, 0, 10)
			w.tap.judge("t", 0, logged(w.t, records(0, "a")))
		}, "offset 0: answered was 10"},
		{"other content stored", func(w *wire) {
			w.send(1, records(0, "a"))
			w.tap.judge("t", 0, logged(w.t, records(0, "b")))
		}, "other content than was sent"},
		{"nobody's batch", func(w *wire) {
			w.tap.judge("t", 0, logged(w.t, records(0, "a")))
		}, "nobody sent"},
		{"a gap", func(w *wire) {
			for n := range 3 {
				w.send(1, records(n, "a"))
			}
			w.tap.judge("t", 0, logged(w.t, records(0, "a"), records(2, "a")))
		}, "sequence 10 comes next"},
		{"the beginning is missing", func(w *wire) {
			w.send(1, records(1, "a"))
			w.tap.judge("t", 0, logged(w.t, records(1, "a")))
		}, "no epoch begins like this"},
		{"a new epoch", func(w *wire) {
			w.send(1, records(0, "a"))
			w.send(1, epoch1(0))
			w.tap.judge("t", 0, logged(w.t, records(0, "a"), epoch1(0)))
		}, ""},
		{"a new epoch not from 0", func(w *wire) {
			w.send(1, records(0, "a"))
			w.send(1, epoch1(10))
			w.tap.judge("t", 0, logged(w.t, records(0, "a"), epoch1(10)))
		}, "no epoch begins like this"},
		{"an epoch comes back", func(w *wire) {
			w.send(1, records(0, "a"))
			w.send(1, epoch1(0))
			w.tap.judge("t", 0, logged(w.t, epoch1(0), records(0, "a")))
		}, "no epoch begins like this"},
		{"an answer after the judgement", func(w *wire) {
			w.send(1, records(0, "a"))
			w.tap.judge("t", 0, logged(w.t, records(0, "a")))
			w.answer(1, 0, 99)
		}, ""},
	})
}

func TestTraffic(t *testing.T) {
	w := newWire(t, 9)
	w.send(1, records(0, "a"))
	w.send(1, records(1, "a"))
	w.answer(1, 0, 0)
	w.send(2, records(0, "a"))
	w.send(2, records(1, "a"))
	w.send(3, records(3, "a"))
	w.answer(2, 0, 0)
	w.answer(2, codeTimedOut, -1)
	w.answer(3, codeOutOfOrder, -1)
	want := traffic{batches: 3, again: 2, deduplicated: 1, early: 1, retriable: 1}
	if got := *w.tap.traffic("client"); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}
