package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// After a stop in good order and after a kill alike: all data at its offsets, the last five batches of each producer
// recognised byte for byte, older ones refused, the next one in order stored, no producer id given twice.
func TestRestart(t *testing.T) {
	stops := []struct {
		name   string
		signal syscall.Signal
		code   int
	}{
		{"SIGTERM", syscall.SIGTERM, 0},
		{"SIGKILL", syscall.SIGKILL, -1},
		{"SIGTERM again", syscall.SIGTERM, 0},
	}
	data := t.TempDir() + "/data"
	b := ownBroker(t, testbroker.Config{Data: data})
	topic := newTopic(t, dial(t, b), 1)
	ids := []batch.ProducerID{newProducerID(t, dial(t, b)), newProducerID(t, dial(t, b))}
	given := slices.Clone(ids)
	var log [][]byte
	type stored struct {
		raw  []byte
		base batch.Offset
	}
	var batches [2][]stored // of each producer, all of them
	var next [2]batch.Sequence
	produceSome := func(c *rawkafka.Client, round, n int) {
		t.Helper()
		for i := range n {
			p := i % 2
			records := payloads(fmt.Sprintf("round %d batch %d", round, i), 1+i%3)
			raw := rawkafka.Idempotent(ids[p], 0, next[p], records...).Bytes()
			base := batch.Offset(len(log))
			mustStore(t, c, topic, raw, base)
			batches[p] = append(batches[p], stored{raw, base})
			next[p] += batch.Sequence(len(records))
			log = append(log, records...)
		}
	}
	produceSome(dial(t, b), 0, 14)
	for round, stop := range stops {
		before := readRaw(t, dial(t, b), topic)
		if err := b.Signal(stop.signal); err != nil {
			t.Fatal(err)
		}
		if code, err := waitExit(t, b); err != nil || code != stop.code {
			t.Fatalf("%s ended the broker with code %d, %v, want %d:\n%s", stop.name, code, err, stop.code, b.Output())
		}
		b = ownBroker(t, testbroker.Config{Data: data})
		c := dial(t, b)
		if !bytes.Equal(readRaw(t, c, topic), before) {
			t.Errorf("after %s the log reads other bytes than before", stop.name)
		}
		for p := range batches {
			all := batches[p]
			for range 2 {
				for _, s := range all[len(all)-5:] {
					mustStore(t, c, topic, s.raw, s.base)
				}
			}
			if a := produce(t, c, topic, all[len(all)-6].raw); a.Code != codeOutOfOrder {
				t.Errorf("after %s a batch beyond the window was answered with code %d, want %d", stop.name, a.Code, codeOutOfOrder)
			}
			gap := rawkafka.Idempotent(ids[p], 0, next[p]+1, []byte("gap")).Bytes()
			if a := produce(t, c, topic, gap); a.Code != codeOutOfOrder {
				t.Errorf("after %s a batch behind a gap was answered with code %d, want %d", stop.name, a.Code, codeOutOfOrder)
			}
		}
		for range 3 {
			id := newProducerID(t, c)
			if slices.Contains(given, id) {
				t.Errorf("after %s producer id %d was given again", stop.name, id)
			}
			given = append(given, id)
		}
		mustHold(t, c, topic, log)
		produceSome(c, round+1, 14)
		mustHold(t, c, topic, log)
	}
}

func waitExit(t *testing.T, b *testbroker.Broker) (int, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return b.Wait(ctx)
}

// readRaw returns the stored bytes of partition 0, all batches together.
func readRaw(t *testing.T, c *rawkafka.Client, topic rawkafka.Topic) []byte {
	t.Helper()
	log, _, err := c.ReadLog(rawkafka.FetchVersion, topic, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, b := range log {
		all = append(all, b.Raw...)
	}
	return all
}

// A broker comes back at the address that its clients know, although connections were open when it stopped.
func TestRestartAtTheSameAddress(t *testing.T) {
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	topic := newTopic(t, dial(t, b), 1)
	mustStore(t, dial(t, b), topic, rawkafka.Plain([]byte("x")).Bytes(), 0)
	open := dial(t, b)
	terminate(t, b)
	if err := open.AwaitClose(); err != nil {
		t.Error(err)
	}
	mustHold(t, dial(t, ownBroker(t, b.Config())), topic, [][]byte{[]byte("x")})
}

// writer is an idempotent producer of one-record batches on partition 0, whose record n has the sequence n.
type writer struct {
	name   int32
	id     batch.ProducerID
	topic  rawkafka.Topic
	log    *history.History
	number int64
	last   []written // the last batches, at most inFlightMax
}

type written struct {
	raw []byte
	id  history.SendID
}

const inFlightMax = 5

func (w *writer) next() written {
	value := history.AppendPayload(nil, history.Value{Producer: w.name, Number: w.number}, 200)
	s := written{
		raw: rawkafka.Idempotent(w.id, 0, batch.Sequence(w.number), value).Bytes(),
		id:  w.log.Invoke(w.name, w.number, 1),
	}
	w.number++
	if w.last = append(w.last, s); len(w.last) > inFlightMax {
		w.last = w.last[1:]
	}
	return s
}

func (w *writer) send(c *rawkafka.Client, s written) error {
	return c.Send(rawkafka.ProduceRequest(rawkafka.ProduceVersion, w.topic, 0, s.raw))
}

func (w *writer) receive(c *rawkafka.Client, s written) error {
	answer, err := c.Receive()
	if err != nil {
		return err
	}
	a, err := rawkafka.ProduceAnswerOf(answer)
	if err == nil && a.Code != 0 {
		err = fmt.Errorf("error code %d %s", a.Code, a.Text)
	}
	if err == nil {
		w.log.Stored(s.id, a.Base)
	}
	return err
}

// load writes until the connection breaks. It calls underWay after the hundredth answer, or at the end.
func (w *writer) load(c *rawkafka.Client, underWay func()) {
	underWay = sync.OnceFunc(underWay)
	defer underWay()
	received := 0
	for n := 0; ; n++ {
		if err := w.send(c, w.next()); err != nil {
			return
		}
		if n-received < inFlightMax-1 {
			continue
		}
		oldest := w.last[len(w.last)-1-(n-received)]
		if err := w.receive(c, oldest); err != nil {
			return
		}
		if received++; received == 100 {
			underWay()
		}
	}
}

// SIGTERM while four producers write: the broker ends with 0, what it acknowledged is there, and what it left
// unanswered is, after the retry, there once.
func TestStopUnderLoad(t *testing.T) {
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	topic := newTopic(t, dial(t, b), 1)
	log := history.New()
	var writers []*writer
	for name := range int32(4) {
		writers = append(writers, &writer{name: name, id: newProducerID(t, dial(t, b)), topic: topic, log: log})
	}
	for range 3 {
		var underWay, ended sync.WaitGroup
		for _, w := range writers {
			c := dial(t, b)
			underWay.Add(1)
			ended.Go(func() { w.load(c, underWay.Done) })
		}
		underWay.Wait()
		terminate(t, b)
		ended.Wait()
		b = ownBroker(t, testbroker.Config{Data: b.Config().Data})
		for _, w := range writers {
			c := dial(t, b)
			for _, s := range w.last {
				if err := errors.Join(w.send(c, s), w.receive(c, s)); err != nil {
					t.Fatalf("retry of a batch of producer %d: %v", w.name, err)
				}
			}
		}
	}
	batches, end, err := dial(t, b).ReadLog(rawkafka.FetchVersion, topic, 0)
	if err != nil {
		t.Fatal(err)
	}
	read := history.Read{End: end}
	for _, b := range batches {
		value, err := history.ParsePayload(b.Records[0])
		if err != nil {
			t.Fatal(err)
		}
		read.Records = append(read.Records, history.Record{Offset: b.BaseOffset, Value: value})
	}
	log.Read(read)
	if v := log.JudgeRealTime(); !v.OK() || v.Unknown > 0 {
		t.Errorf("%d batches were never answered; %v", v.Unknown, v)
	}
}
