package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/campaign/internal/scripted"
	"github.com/oncemq/oncemq/campaign/internal/stage"
	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

func recordsDeleted(code int16, logStart int64) kmsg.Response {
	a := kmsg.NewPtrDeleteRecordsResponse()
	topic := kmsg.NewDeleteRecordsResponseTopic()
	p := kmsg.NewDeleteRecordsResponseTopicPartition()
	p.ErrorCode, p.LowWatermark = code, logStart
	topic.Partitions = append(topic.Partitions, p)
	a.Topics = append(a.Topics, topic)
	return a
}

func described(code int16, id byte) kmsg.Response {
	a := kmsg.NewPtrMetadataResponse()
	topic := kmsg.NewMetadataResponseTopic()
	topic.Topic, topic.ErrorCode, topic.TopicID = kmsg.StringPtr("churn-0"), code, [16]byte{id}
	a.Topics = append(a.Topics, topic)
	return a
}

// noted demands that the campaign noted a violation with this text, or none when it is empty.
func noted(t *testing.T, c *campaign, wrong string) {
	t.Helper()
	broken := c.Broken()
	if wrong == "" && broken != nil {
		t.Errorf("noted as a violation: %v", broken)
	}
	if wrong != "" && (!errors.Is(broken, stage.ErrViolated) || !strings.Contains(broken.Error(), wrong)) {
		t.Errorf("noted %v, want %q", broken, wrong)
	}
}

// A retry that is answered when the partition may have forgotten its producer is not judged; one before is.
func TestLateAnswers(t *testing.T) {
	for _, late := range []bool{false, true} {
		c := newTestCampaign()
		p := c.producers[0]
		p.begin(4, 0)
		l := p.lanes[0]
		s := p.next(l)
		s.base, s.retrying = 0, true
		l.History.Stored(s.id, 0)
		if late {
			l.touched = time.Now().Add(-memory)
		}
		conn := answering(t, scripted.Produced(0, 7))
		if err := conn.Send(rawkafka.ProduceRequest(produceVersion, l.Topic, 0, s.bytes)); err != nil {
			t.Fatal(err)
		}
		err := p.receive(conn, l, s, true)
		if errors.Is(err, errLate) != late {
			t.Errorf("late %v: %v", late, err)
		}
		if late {
			noted(t, c, "")
		} else {
			noted(t, c, "was answered 7")
		}
	}
}

// Where the producer may be forgotten nothing is sent again, and one with something in doubt goes on with a new id.
func TestConfirmOfTheForgotten(t *testing.T) {
	for _, doubt := range []bool{false, true} {
		c := newTestCampaign()
		p := c.producers[0]
		p.begin(4, 0)
		l := p.lanes[0]
		s := p.next(l)
		if !doubt {
			s.base = 0
		}
		l.touched = time.Now().Add(-memory)
		other := &lane{Partition: c.Partitions[0]}
		p.lanes = append(p.lanes, other)
		p.next(other)
		if err := p.confirm(answering(t, producerID(8), scripted.Produced(stage.CodeStorage, -1))); !errors.Is(err, errAgain) {
			t.Fatal(err)
		}
		if err := p.confirm(answering(t, producerID(9), scripted.Produced(0, 0), scripted.Produced(0, 0))); err != nil {
			t.Fatal(err)
		}
		if len(l.recent) > 0 || doubt && p.id != 9 {
			t.Errorf("in doubt %v: %d batches are kept, the id is %d", doubt, len(l.recent), p.id)
		}
	}
}

func TestTrim(t *testing.T) {
	for _, test := range []struct {
		name   string
		before batch.Offset
		answer kmsg.Response
		kept   int64
		wrong  string
	}{
		{"as asked", 7, recordsDeleted(0, 7), 7, ""},
		{"as asked before", 3, recordsDeleted(0, 5), 5, ""}, // without an answer
		{"not now", 7, recordsDeleted(stage.CodeStorage, -1), 0, ""},
		{"too little", 7, recordsDeleted(0, 6), 6, "the log starts at 6"},
		{"too much", 7, recordsDeleted(0, 8), 8, "the log starts at 8"},
		{"refused", 7, recordsDeleted(stage.CodeOffsetOutOfRange, -1), 0, "error code 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newTestCampaign()
			p := c.Partitions[0]
			p.Asked.Store(5)
			_ = newTrimmer(c).delete(answering(t, test.answer), p, test.before)
			if p.Kept.Load() != test.kept {
				t.Errorf("kept %d, want %d", p.Kept.Load(), test.kept)
			}
			noted(t, c, test.wrong)
		})
	}
	c := newTestCampaign()
	if err := newTrimmer(c).trim(answering(t, scripted.Listed(3), scripted.Listed(3)), c.Partitions[0]); err != nil || c.Partitions[0].Asked.Load() != 0 {
		t.Errorf("with nothing there: %v, asked for %d", err, c.Partitions[0].Asked.Load())
	}
}

func TestChurnNotices(t *testing.T) {
	record := rawkafka.Plain(history.AppendPayload(nil, history.Value{}, 40)).Bytes()
	for _, test := range []struct {
		name    string
		life    life
		answers []kmsg.Response
		wrong   string
	}{
		{"gone", absent, []kmsg.Response{described(codeUnknownTopic, 0), scripted.Produced(codeUnknownTopicID, -1)}, ""},
		{"a deleted topic is there", absent, []kmsg.Response{described(0, 1)}, "is there"},
		{"a deleted topic takes a batch", absent, []kmsg.Response{described(codeUnknownTopic, 0), scripted.Produced(0, 1)}, "answered with code 0"},
		{"as it was", alive, []kmsg.Response{described(0, 1), scripted.Listed(0), scripted.Listed(1), scripted.Fetched(0, 0, 1, record)}, ""},
		{"gone though it was created", alive, []kmsg.Response{described(codeUnknownTopic, 0)}, "error code 3"},
		{"another one", alive, []kmsg.Response{described(0, 2), scripted.Listed(0), scripted.Listed(1), scripted.Fetched(0, 0, 1, record)}, "has another id"},
		{"empty", alive, []kmsg.Response{described(0, 1), scripted.Listed(0), scripted.Listed(0)}, "holds 0 records"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newTestCampaign()
			churn := newChurn(c, 0)
			churn.life, churn.topic.ID, churn.stored = test.life, [16]byte{1}, 1
			churn.ids[churn.topic.ID] = struct{}{}
			_ = churn.check(answering(t, test.answers...))
			noted(t, c, test.wrong)
		})
	}
}

func TestFlood(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer kmsg.Response
		doubt  bool
		wrong  string
	}{
		{"stored", scripted.Produced(0, 3), false, ""},
		{"no room", scripted.Produced(codeNotEnoughReplicas, -1), true, ""},
		{"not ready", scripted.Produced(stage.CodeNotLeader, -1), true, ""},
		{"out of order", scripted.Produced(45, -1), true, "error code 45"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newTestCampaign()
			f := newFlood(c, 1)
			conn := answering(t, producerID(9), test.answer)
			if err := f.begin(conn); err != nil {
				t.Fatal(err)
			}
			_, _ = f.send(conn)
			if (f.doubt != nil) != test.doubt {
				t.Errorf("in doubt: %v, want %v", f.doubt != nil, test.doubt)
			}
			noted(t, c, test.wrong)
		})
	}
}
