package main

import (
	"io"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/campaign/internal/scripted"
	"github.com/oncemq/oncemq/campaign/internal/stage"
	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

func newTestCampaign() *campaign {
	c := newCampaign(config{producers: 1, seed: 1}, io.Discard)
	c.Partitions = []*stage.Partition{{Topic: rawkafka.Topic{Name: "t"}, History: history.New()}}
	c.producers = []*producer{newProducer(c, 0)}
	return c
}

// answering returns a client whose requests are answered, in order, with these messages.
func answering(t *testing.T, answers ...kmsg.Response) *rawkafka.Client {
	c, _ := scripted.Answering(t, answers...)
	return c
}

func producerID(id int64) kmsg.Response {
	a := kmsg.NewPtrInitProducerIDResponse()
	a.ProducerID = id
	return a
}

// A producer that has two batches in its window, the first answered with offset 0, the second unknown, meets each
// kind of answer to its retries. The campaign must see through all that are wrong, and take none that is right amiss.
func TestConfirm(t *testing.T) {
	tests := []struct {
		name    string
		answers []kmsg.Response
		wrong   string // part of the violation; empty when there is none
		err     bool
	}{
		{"as before, twice", []kmsg.Response{producerID(9), scripted.Produced(0, 0), scripted.Produced(0, 7), scripted.Produced(0, 0), scripted.Produced(0, 7)}, "", false},
		{"another offset", []kmsg.Response{producerID(9), scripted.Produced(0, 8), scripted.Produced(0, 9), scripted.Produced(0, 0), scripted.Produced(0, 9)}, "was answered 8", false},
		{"another offset in the second pass", []kmsg.Response{producerID(9), scripted.Produced(0, 0), scripted.Produced(0, 7), scripted.Produced(0, 0), scripted.Produced(0, 9)}, "was answered 9", false},
		{"out of order", []kmsg.Response{producerID(9), scripted.Produced(45, -1)}, "error code 45", true},
		{"second out of order", []kmsg.Response{producerID(9), scripted.Produced(0, 0), scripted.Produced(45, -1)}, "error code 45", true},
		{"fenced", []kmsg.Response{producerID(9), scripted.Produced(47, -1)}, "error code 47", true},
		{"topic forgotten", []kmsg.Response{producerID(9), scripted.Produced(3, -1)}, "error code 3", true},
		{"not ready", []kmsg.Response{producerID(9), scripted.Produced(6, -1), scripted.Produced(45, -1)}, "", true},
		{"timed out", []kmsg.Response{producerID(9), scripted.Produced(0, 0), scripted.Produced(7, -1)}, "", true},
		{"id given before", []kmsg.Response{producerID(4), scripted.Produced(0, 0), scripted.Produced(0, 7), scripted.Produced(0, 0), scripted.Produced(0, 7)}, "id 4 was given twice", false},
		{"ids not ready", []kmsg.Response{&kmsg.InitProducerIDResponse{ErrorCode: stage.CodeCoordinatorLoading}}, "", true},
		{"ids refused", []kmsg.Response{&kmsg.InitProducerIDResponse{ErrorCode: 31}}, "error code 31", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := newTestCampaign()
			c.newID(4, 0)
			p := c.producers[0]
			p.begin(4, 0)
			first, _ := p.next(p.lanes[0]), p.next(p.lanes[0])
			first.base = 0
			c.Partitions[0].History.Stored(first.id, 0)
			err := p.confirm(answering(t, test.answers...))
			if (err != nil) != test.err {
				t.Errorf("error %v, want one: %v", err, test.err)
			}
			noted(t, c, test.wrong)
		})
	}
}

func TestWindowKeepsTheLastFive(t *testing.T) {
	c := newTestCampaign()
	p := c.producers[0]
	p.begin(1, 0)
	p.lanes[0].next = 2147483647 // the next batch wraps
	var all []*sent
	for range 8 {
		all = append(all, p.next(p.lanes[0]))
	}
	got := p.lanes[0].recent
	if len(got) != window || got[0] != all[3] || got[4] != all[7] {
		t.Errorf("%d batches are kept, want the last %d", len(got), window)
	}
	batches, err := rawkafka.ReadBatches(all[1].bytes)
	if err != nil || batches[0].Sequence != batch.Sequence(all[0].count-1) {
		t.Errorf("after 2147483647 and %d records came sequence %d, %v", all[0].count, batches[0].Sequence, err)
	}
}

func TestFlags(t *testing.T) {
	cfg, err := parseFlags([]string{"--kills", "3", "--duration", "10m", "--seed", "7"})
	if err != nil || cfg.kills != 3 || cfg.duration.Minutes() != 10 || cfg.seed != 7 {
		t.Errorf("%+v, %v", cfg, err)
	}
	for _, args := range [][]string{{"--kills", "0"}, {"--producers", "0"}, {"--topics", "65"}, {"--rate", "-1"}, {"surplus"}} {
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
	if cfg, err := parseFlags(nil); err != nil || cfg.seed == 0 || cfg.kills != 20 {
		t.Errorf("defaults: %+v, %v", cfg, err)
	}
}
