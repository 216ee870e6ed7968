package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// frame is a request with a length field that may lie about what follows.
func frame(claims uint32, rest ...byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, claims), rest...)
}

// requestHeader is the header of a request without a client id.
func requestHeader(key, version uint16, tags ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, key)
	b = binary.BigEndian.AppendUint16(b, version)
	b = append(b, 0, 0, 0, 1, 0xff, 0xff)
	return append(b, tags...)
}

func sized(b []byte) []byte { return frame(uint32(len(b)), b...) }

// Frames that lie, are cut off or are garbage close their connection, and only that one.
func TestLyingFrames(t *testing.T) {
	b := ownBroker(t, testbroker.Config{Data: t.TempDir() + "/data"})
	steady := dial(t, b) // opened before, used throughout
	topic, target := newTopic(t, steady, 1), newTopic(t, steady, 1)
	id := newProducerID(t, steady)
	var log [][]byte
	stillServes := func(t *testing.T) {
		t.Helper()
		payload := fmt.Appendf(nil, "record %d", len(log))
		mustStore(t, steady, topic, rawkafka.Idempotent(id, 0, batch.Sequence(len(log)), payload).Bytes(), batch.Offset(len(log)))
		log = append(log, payload)
		newProducerID(t, dial(t, b)) // a new connection works as well
	}
	hugeArray := []byte{0xff, 0xff, 0, 0, 0, 0, 0x75, 0x30, 0x7f, 0xff, 0xff, 0xff}              // acks, timeout, 2^31-1 topics
	hugeCompactArray := []byte{0, 0xff, 0xff, 0, 0, 0x75, 0x30, 0xff, 0xff, 0xff, 0xff, 0x0f, 0} // the same, flexible
	whole, _ := steady.Frame(rawkafka.ProduceRequest(rawkafka.ProduceVersion, target, 0, rawkafka.Plain([]byte("never")).Bytes()))
	frames := map[string][]byte{
		"length of 2 GiB":             frame(1<<31-1, requestHeader(0, 9, 0)...),
		"negative length":             frame(1<<31, requestHeader(0, 9, 0)...),
		"length -1":                   frame(1<<32 - 1),
		"length 0":                    frame(0, requestHeader(0, 9, 0)...),
		"length above the limit":      frame(100<<20+1, requestHeader(0, 9, 0)...),
		"shorter than a header":       sized([]byte{0, 0, 0, 9}),
		"header only":                 sized(requestHeader(0, 9, 0)),
		"client id beyond the end":    sized([]byte{0, 3, 0, 1, 0, 0, 0, 1, 0x7f, 0xff}),
		"unknown api key":             sized(requestHeader(999, 0)),
		"api key that is not served":  sized(requestHeader(11, 5)),
		"version that is not served":  sized(requestHeader(3, 99, 0)),
		"metadata of 100 MiB":         frame(100<<20, requestHeader(3, 9, 0)...),
		"produce with a huge array":   sized(append(requestHeader(0, 7), hugeArray...)),
		"produce with a huge compact": sized(append(requestHeader(0, 9, 0), hugeCompactArray...)),
		"metadata with a huge array":  sized(append(requestHeader(3, 1), 0x7f, 0xff, 0xff, 0xff)),
		"fetch with a huge array":     sized(append(requestHeader(1, 4), append(bytes.Repeat([]byte{0}, 17), 0x7f, 0xff, 0xff, 0xff)...)),
		"create topics, huge array":   sized(append(requestHeader(19, 0), 0x7f, 0xff, 0xff, 0xff)),
		"garbage":                     []byte("GET / HTTP/1.1\r\nHost: example\r\n\r\n"),
		"a TLS hello":                 append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, bytes.Repeat([]byte{7}, 600)...),
		"bytes behind a complete body": func() []byte {
			f := append(bytes.Clone(whole), 1, 2, 3)
			binary.BigEndian.PutUint32(f, uint32(len(f)-4))
			return f
		}(),
		"records that end beyond a body": func() []byte {
			f := bytes.Clone(whole[:len(whole)-10])
			binary.BigEndian.PutUint32(f, uint32(len(f)-4))
			return f
		}(),
	}
	for _, name := range slices.Sorted(maps.Keys(frames)) {
		t.Run(name, func(t *testing.T) {
			c := dial(t, b)
			if err := c.SendRaw(frames[name]); err != nil {
				t.Fatal(err)
			}
			if err := c.AwaitClose(); err != nil {
				t.Error(err)
			}
			stillServes(t)
		})
	}
	t.Run("cut off", func(t *testing.T) {
		for _, n := range []int{1, 4, 9, len(whole) - 1} {
			c := dial(t, b)
			if err := c.SendRaw(whole[:n]); err != nil {
				t.Fatal(err)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			stillServes(t)
		}
	})
	t.Run("random", func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		for range 200 {
			key := uint16([]int{0, 1, 2, 3, 10, 18, 19, 22}[rng.IntN(8)])
			body := requestHeader(key, uint16(rng.IntN(6)))
			for range rng.IntN(60) {
				body = append(body, byte(rng.Uint32()))
			}
			c := dial(t, b)
			if err := c.SendRaw(sized(body)); err != nil {
				t.Fatal(err)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		stillServes(t)
	})
	mustHold(t, steady, topic, log)
	mustHold(t, steady, target, nil)
}

// Requests of different kinds on one connection, sent together, are answered in order.
func TestMixedPipeline(t *testing.T) {
	c := dial(t, sharedBroker(t))
	topic := newTopic(t, c, 1)
	var reqs []kmsg.Request
	for i := range 10 {
		metadata := kmsg.NewPtrMetadataRequest()
		metadata.Version = 9
		id := kmsg.NewPtrInitProducerIDRequest()
		id.Version = 2
		raw := rawkafka.Plain(fmt.Appendf(nil, "%d", i)).Bytes()
		reqs = append(reqs, rawkafka.ProduceRequest(rawkafka.ProduceVersion, topic, 0, raw), metadata,
			rawkafka.FetchRequest(rawkafka.FetchVersion, topic, 0, batch.Offset(i), 0), id)
	}
	if err := c.SendAll(reqs...); err != nil {
		t.Fatal(err)
	}
	for i, req := range reqs {
		answer, err := c.Receive()
		if err != nil || answer.Key() != req.Key() {
			t.Fatalf("answer %d: %+v, %v", i, answer, err)
		}
		switch a := answer.(type) {
		case *kmsg.ProduceResponse:
			if p := a.Topics[0].Partitions[0]; p.ErrorCode != 0 || p.BaseOffset != int64(i/4) {
				t.Errorf("answer %d: %+v", i, p)
			}
		case *kmsg.FetchResponse: // the produce before it on this connection is answered, so its record is there
			f, err := rawkafka.FetchAnswerOf(a)
			if err != nil || len(f.Batches) != 1 || f.Batches[0].BaseOffset != batch.Offset(i/4) {
				t.Errorf("answer %d: %+v, %v", i, f, err)
			}
		}
	}
}
