package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

const (
	// churnEvery bounds the pause between two lives of a topic.
	churnEvery      = 30 * time.Millisecond
	churnBatchesMax = 6

	codeUnknownTopic   = 3
	codeTopicExists    = 36
	codeUnknownTopicID = 100
)

// life is where a topic stands.
type life int

const (
	absent   life = iota // a deletion was answered, or it never was
	creating             // asked for, not answered
	alive                // a creation was answered
	deleting             // asked for, not answered
)

// churn creates a topic, writes some batches to it, deletes it, and begins anew under the same name. Nobody else knows
// the topic, so all that is in it is known: record n has the value n.
type churn struct {
	c     *campaign
	rng   *rand.Rand
	topic rawkafka.Topic
	life  life
	left  int // batches that are still to be written in this life
	ids   map[[16]byte]struct{}
	ended time.Time // just before the last life was first asked to end

	producer batch.ProducerID // -1: none yet
	next     batch.Sequence
	stored   int64     // records in the topic
	doubt    []byte    // a batch that is sent and not answered
	first    time.Time // just before it was sent first
}

func newChurn(c *campaign, i int) *churn {
	return &churn{
		c: c, rng: rand.New(rand.NewPCG(c.cfg.seed, 4+uint64(i)<<32)), topic: rawkafka.Topic{Name: fmt.Sprintf("churn-%d", i)},
		ids: make(map[[16]byte]struct{}), producer: -1,
	}
}

// connection checks what is known of the topic, and goes on from there until stop is closed.
func (t *churn) connection(ctx context.Context, conn *rawkafka.Client, stop <-chan struct{}) error {
	if err := t.check(conn); err != nil {
		return err
	}
	for {
		if t.life == absent && !pause(ctx, stop, t.rng, churnEvery) {
			return ctx.Err()
		}
		select {
		case <-t.c.Violated():
			return nil
		default:
		}
		var err error
		switch t.life {
		case absent, creating:
			err = t.create(conn)
		case deleting:
			err = t.delete(conn)
		case alive:
			if t.left == 0 && t.doubt == nil {
				err = t.delete(conn)
			} else {
				err = t.write(conn)
			}
		}
		if err != nil {
			return err
		}
	}
}

// unexpected notes an error code that is neither one of these nor "not now".
func (t *churn) unexpected(err error) error {
	if code := (*rawkafka.CodeError)(nil); errors.As(err, &code) && !again(code.Code) {
		t.c.Violate("%v", err)
	}
	return err
}

func codeOf(err error) int16 {
	if code := (*rawkafka.CodeError)(nil); errors.As(err, &code) {
		return code.Code
	}
	return 0
}

// create begins a life. Its producer is a new one, or the one of the life before, which goes on as a client does that has
// not noticed, and may do so as long as a producer is remembered.
func (t *churn) create(conn *rawkafka.Client) error {
	doubt := t.life == creating
	t.life = creating
	topic, err := conn.CreateTopic(t.topic.Name, 1)
	if doubt && codeOf(err) == codeTopicExists {
		topic, err = conn.FindTopic(t.topic.Name)
	}
	if err != nil {
		return t.unexpected(err)
	}
	if _, known := t.ids[topic.ID]; known {
		t.c.Violate("topic %s has an id that it had before", topic.Name)
	}
	if t.producer == -1 || t.rng.IntN(2) == 0 || time.Since(t.ended) >= memory {
		id, epoch, err := conn.InitProducerID()
		if err != nil {
			return err // created is found out once more
		}
		t.c.newID(id, epoch)
		t.producer, t.next = id, 0
	}
	t.ids[topic.ID] = struct{}{}
	t.topic, t.life, t.stored, t.left = topic, alive, 0, t.rng.IntN(churnBatchesMax)
	return nil
}

// write sends the batch that is not answered yet, or a new one.
func (t *churn) write(conn *rawkafka.Client) error {
	retry := t.doubt != nil
	if !retry {
		payload := history.AppendPayload(nil, history.Value{Number: t.stored}, t.rng.IntN(payloadMax))
		t.doubt, t.first = rawkafka.Idempotent(t.producer, 0, t.next, payload).Bytes(), time.Now()
	}
	a, err := conn.Produce(produceVersion, t.topic, 0, t.doubt)
	switch {
	case retry && time.Since(t.first) >= memory:
		t.giveUp()
		return nil
	case err != nil:
		return err
	case again(a.Code):
		return errAgain
	case a.Code != 0 || a.Base != batch.Offset(t.stored):
		t.c.Violate("topic %s, producer %d: error code %d %s, offset %d to a batch that is right, want %d",
			t.topic.Name, t.producer, a.Code, a.Text, a.Base, t.stored)
	}
	t.doubt = nil
	t.stored++
	t.next++
	t.left--
	return nil
}

// giveUp ends a life in which a retry came so late that the topic may have forgotten its producer, and hold it twice.
func (t *churn) giveUp() {
	t.c.stats.late.Add(1)
	t.doubt, t.producer = nil, -1
	t.life, t.ended = deleting, time.Now()
}

func (t *churn) delete(conn *rawkafka.Client) error {
	doubt := t.life == deleting
	if !doubt {
		t.life, t.ended = deleting, time.Now()
	}
	if err := conn.DeleteTopic(t.topic.Name); err != nil && !(doubt && codeOf(err) == codeUnknownTopic) {
		return t.unexpected(err)
	}
	t.life = absent
	t.c.stats.topics.Add(1)
	offer(t.c.deleted)
	return t.check(conn)
}

// check holds the topic against what is known: one that was deleted is not there, under its name or its id, and one that
// was created is, with all that was stored in it. A batch in doubt is sent again first.
func (t *churn) check(conn *rawkafka.Client) error {
	switch t.life {
	case absent:
		return t.checkAbsent(conn)
	case alive:
		return t.checkAlive(conn)
	}
	return nil
}

func (t *churn) checkAbsent(conn *rawkafka.Client) error {
	if _, err := conn.FindTopic(t.topic.Name); codeOf(err) != codeUnknownTopic {
		if err == nil {
			t.c.Violate("topic %s was deleted, and is there", t.topic.Name)
		}
		return t.unexpected(err)
	}
	if len(t.ids) == 0 {
		return nil // it never was
	}
	raw := rawkafka.Plain([]byte("too late")).Bytes()
	a, err := conn.Produce(topicIDVersion, t.topic, 0, raw)
	if err == nil && a.Code != codeUnknownTopicID && !again(a.Code) {
		t.c.Violate("topic %s was deleted, and a produce to its id is answered with code %d", t.topic.Name, a.Code)
	}
	return err
}

// topicIDVersion is a version of Produce that names topics by their ids.
const topicIDVersion = 13

func (t *churn) checkAlive(conn *rawkafka.Client) error {
	if t.doubt != nil {
		if time.Since(t.first) >= memory {
			t.giveUp()
			return nil
		}
		if err := t.write(conn); err != nil || t.life != alive {
			return err
		}
	}
	found, err := conn.FindTopic(t.topic.Name)
	if err != nil {
		return t.unexpected(err)
	}
	if found.ID != t.topic.ID {
		t.c.Violate("topic %s has another id than it was created with", t.topic.Name)
	}
	return t.read(conn)
}

// read demands that the topic holds what was stored.
func (t *churn) read(conn *rawkafka.Client) error {
	log, end, err := conn.ReadLog(rawkafka.FetchVersion, t.topic, 0)
	if err != nil {
		return t.unexpected(err)
	}
	n := int64(0)
	for _, b := range log {
		for _, payload := range b.Records {
			if v, err := history.ParsePayload(payload); err != nil || v.Number != n {
				t.c.Violate("topic %s offset %d holds %v, %v", t.topic.Name, n, v, err)
			}
			n++
		}
	}
	if n != t.stored || int64(end) != t.stored {
		t.c.Violate("topic %s holds %d records and ends at %d, stored are %d", t.topic.Name, n, end, t.stored)
	}
	return nil
}
