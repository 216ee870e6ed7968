package e2e

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

const (
	codeOutOfOrder   = 45
	codeFenced       = 47
	codeTooLarge     = 10
	maxMessageBytes  = 1048588
	noOffset         = batch.Offset(-1)
	smallPayloadSize = 20
)

// table is one producer on one partition, and the log that its batches must have led to.
type table struct {
	t              *testing.T
	c              *rawkafka.Client
	produceVersion int16
	topic          rawkafka.Topic
	id             batch.ProducerID
	sent           int
	log            [][]byte // what the partition must hold
}

// send sends a batch whose payloads nothing else has, so that the log shows whether it was written.
func (w *table) send(epoch batch.Epoch, sequence batch.Sequence, count, payloadSize int) (rawkafka.ProduceAnswer, [][]byte) {
	w.t.Helper()
	w.sent++
	var records [][]byte
	for i := range count {
		p := fmt.Appendf(nil, "batch %d record %d ", w.sent, i)
		records = append(records, append(p, bytes.Repeat([]byte("."), max(0, payloadSize-len(p)))...))
	}
	raw := rawkafka.Idempotent(w.id, epoch, sequence, records...).Bytes()
	a, err := w.c.Produce(w.produceVersion, w.topic, 0, raw)
	if err != nil {
		w.t.Fatal(err)
	}
	if a.AppendTime != -1 {
		w.t.Errorf("sequence %d: append time %d, want -1: the client sets the timestamps of this topic", sequence, a.AppendTime)
	}
	return a, records
}

// stored: the batch is appended.
func (w *table) stored(epoch batch.Epoch, sequence batch.Sequence, count int) {
	w.t.Helper()
	a, records := w.send(epoch, sequence, count, smallPayloadSize)
	w.expect("is in order", epoch, sequence, count, a, 0, batch.Offset(len(w.log)))
	w.log = append(w.log, records...)
}

// duplicate: the answer is the original's, and nothing is written.
func (w *table) duplicate(epoch batch.Epoch, sequence batch.Sequence, count int, original batch.Offset) {
	w.t.Helper()
	a, _ := w.send(epoch, sequence, count, smallPayloadSize)
	w.expect("is a retry", epoch, sequence, count, a, 0, original)
}

// refused: the answer is an error, and nothing is written.
func (w *table) refused(epoch batch.Epoch, sequence batch.Sequence, count int, code int16) {
	w.t.Helper()
	a, _ := w.send(epoch, sequence, count, smallPayloadSize)
	w.expect("must be refused", epoch, sequence, count, a, code, noOffset)
}

func (w *table) expect(what string, epoch batch.Epoch, sequence batch.Sequence, count int, a rawkafka.ProduceAnswer, code int16, base batch.Offset) {
	w.t.Helper()
	if a.Code != code || a.Base != base {
		w.t.Fatalf("epoch %d sequence %d, %d records, %s: answered code %d offset %d (%s), want code %d offset %d",
			epoch, sequence, count, what, a.Code, a.Base, a.Text, code, base)
	}
}

// decisions replays the decision table: a name for each row, and the conversation that shows it.
var decisions = []struct {
	row string
	run func(*table)
}{
	{"epoch older than seen: fenced", func(w *table) {
		w.stored(0, 0, 3)
		w.stored(1, 0, 2)
		w.refused(0, 3, 1, codeFenced) // would be next in the old epoch
		w.refused(0, 0, 3, codeFenced) // was stored in the old epoch
		w.refused(0, 9, 1, codeFenced) // would be a gap
		w.stored(1, 2, 1)
	}},
	{"epoch newer than seen: new incarnation, window reset", func(w *table) {
		w.stored(0, 0, 3)
		w.stored(0, 3, 2)
		w.stored(1, 0, 2)
		w.duplicate(1, 0, 2, 5)
		w.refused(1, 3, 2, codeOutOfOrder) // a batch of the old epoch's window, in the new epoch
		w.stored(7, 0, 1)                  // epochs may jump
		w.refused(1, 2, 1, codeFenced)
	}},
	{"base sequence is the next one: in order", func(w *table) {
		w.stored(0, 0, 1)
		w.stored(0, 1, 5)
		w.stored(0, 6, 100)
		w.stored(0, 106, 1)
	}},
	{"base sequence hits the window: duplicate, original offset", func(w *table) {
		w.stored(0, 0, 3)
		w.duplicate(0, 0, 3, 0)
		w.duplicate(0, 0, 3, 0)
		for i := range 4 {
			w.stored(0, batch.Sequence(3+i), 1)
		}
		for range 2 { // all five, oldest first, then newest first, and again
			w.duplicate(0, 0, 3, 0)
			for i := range 4 {
				w.duplicate(0, batch.Sequence(3+i), 1, batch.Offset(3+i))
			}
			for i := range 4 {
				w.duplicate(0, batch.Sequence(6-i), 1, batch.Offset(6-i))
			}
		}
		w.stored(0, 7, 1)
	}},
	{"gap ahead: out of order", func(w *table) {
		w.refused(0, 1, 1, codeOutOfOrder) // first contact must begin at 0
		w.refused(0, 2147483647, 1, codeOutOfOrder)
		w.stored(0, 0, 3)
		w.refused(0, 4, 1, codeOutOfOrder)
		w.refused(0, 2147483647, 1, codeOutOfOrder)
		w.stored(0, 3, 1)
	}},
	{"stale beyond the window: out of order", func(w *table) {
		for i := range 6 {
			w.stored(0, batch.Sequence(i), 1)
		}
		w.refused(0, 0, 1, codeOutOfOrder)
		w.duplicate(0, 1, 1, 1)
		w.stored(0, 6, 1)
		w.refused(0, 1, 1, codeOutOfOrder)
	}},
	{"stricter: a duplicate matches at both ends", func(w *table) {
		w.stored(0, 0, 3)
		w.stored(0, 3, 2)
		w.refused(0, 0, 2, codeOutOfOrder) // shorter
		w.refused(0, 0, 4, codeOutOfOrder) // longer
		w.refused(0, 1, 2, codeOutOfOrder) // same end
		w.refused(0, 0, 5, codeOutOfOrder) // two batches in one
		w.refused(0, 2, 2, codeOutOfOrder) // over the border
		w.refused(0, 3, 3, codeOutOfOrder) // longer than the newest: its last record was never stored
		w.duplicate(0, 3, 2, 3)
		w.stored(0, 5, 1)
	}},
	{"stricter: a newer epoch begins at 0", func(w *table) {
		w.stored(0, 0, 3)
		w.refused(1, 3, 1, codeOutOfOrder)
		w.refused(1, 1, 1, codeOutOfOrder)
		w.duplicate(0, 0, 3, 0) // the refused ones changed nothing
		w.stored(0, 3, 1)
		w.stored(1, 0, 1)
	}},
	{"stricter: duplicates are recognised before the size limit", func(w *table) {
		w.stored(0, 0, 3)
		a, _ := w.send(0, 0, 3, maxMessageBytes/2)
		w.expect("is a retry in a batch above max.message.bytes", 0, 0, 3, a, 0, 0)
		a, _ = w.send(0, 3, 3, maxMessageBytes/2)
		w.expect("is new and above max.message.bytes", 0, 3, 3, a, codeTooLarge, noOffset)
		w.refused(0, 6, 1, codeOutOfOrder) // the refused one used up no sequence
		w.stored(0, 3, 3)
	}},
	{"producers and their states are apart", func(w *table) {
		w.stored(0, 0, 3)
		first := w.id
		w.id = newProducerID(w.t, w.c)
		w.refused(0, 3, 1, codeOutOfOrder)
		w.stored(0, 0, 3)
		w.duplicate(0, 0, 3, 3)
		w.id = first
		w.duplicate(0, 0, 3, 0)
		w.stored(0, 3, 1)
	}},
	{"no producer id: no check", func(w *table) {
		w.stored(0, 0, 3)
		with := w.id
		w.id = -1
		w.stored(-1, -1, 2)
		w.stored(-1, -1, 2)
		w.id = with
		w.duplicate(0, 0, 3, 0)
		w.stored(0, 3, 1)
	}},
}

// The table holds at every version of Produce that changed the encoding, and what was stored reads the same by name
// (Fetch up to 12) and by topic id.
func TestDecisionTable(t *testing.T) {
	b := sharedBroker(t)
	for _, versions := range []struct{ produce, fetch int16 }{{3, 4}, {5, 7}, {8, 11}, {9, 12}, {12, 16}, {13, 17}} {
		for _, d := range decisions {
			t.Run(fmt.Sprintf("v%d/%s", versions.produce, d.row), func(t *testing.T) {
				c := dial(t, b)
				w := &table{t: t, c: c, produceVersion: versions.produce, topic: newTopic(t, c, 1), id: newProducerID(t, c)}
				d.run(w)
				mustHoldAt(t, c, versions.fetch, w.topic, 0, w.log)
			})
		}
	}
}

// The lesson of the lost answer: the retry of a payment finds the first attempt in the window, and the log holds it
// once. Without a producer id each attempt is stored.
func TestAttemptTable(t *testing.T) {
	b := sharedBroker(t)
	c := dial(t, b)
	topic := newTopic(t, c, 1)
	log := payloads("before", 40)
	mustStore(t, c, topic, rawkafka.Plain(log...).Bytes(), 0)
	id := newProducerID(t, c)

	// Attempt 1: stored at 40 to 42; the answer is lost with the connection.
	invoice := payloads("charge of 40.00", 3)
	attempt := rawkafka.Idempotent(id, 0, 0, invoice...).Bytes()
	lost := dial(t, b)
	if err := lost.Send(rawkafka.ProduceRequest(rawkafka.ProduceVersion, topic, 0, attempt)); err != nil {
		t.Fatal(err)
	}
	awaitHighWatermark(t, c, topic, 40, 43)
	if err := lost.Close(); err != nil {
		t.Fatal(err)
	}
	log = append(log, invoice...)
	mustHold(t, c, topic, log)

	// Attempt 2, the retry, over another connection: answered with 40, nothing written. And again.
	for range 2 {
		mustStore(t, dial(t, b), topic, attempt, 40)
		mustHold(t, c, topic, log)
	}

	// Attempt 3, the next batch: stored at 43 and 44.
	next := payloads("next", 2)
	mustStore(t, c, topic, rawkafka.Idempotent(id, 0, 3, next...).Bytes(), 43)
	log = append(log, next...)
	mustHold(t, c, topic, log)

	// The same three attempts without a producer id: three charges for one invoice.
	without := newTopic(t, c, 1)
	for i := range 3 {
		mustStore(t, c, without, rawkafka.Plain(invoice...).Bytes(), batch.Offset(3*i))
	}
	mustHold(t, c, without, slices.Concat(invoice, invoice, invoice))
}

// awaitHighWatermark waits until partition 0, which ends at from now, ends at end or later.
func awaitHighWatermark(t *testing.T, c *rawkafka.Client, topic rawkafka.Topic, from, end batch.Offset) {
	t.Helper()
	for {
		a, err := c.Fetch(rawkafka.FetchVersion, topic, 0, from, patience) // the broker waits until there is data
		if err != nil {
			t.Fatal(err)
		}
		if a.Code != 0 {
			t.Fatalf("fetch at %d: error code %d", from, a.Code)
		}
		if a.HighWatermark >= end {
			return
		}
	}
}
