package server

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/batch"
)

// When partitions answer slowly, requests pile up to the bound and no further. Then producers wait, and nobody else; and
// when the partitions answer again everything that waited is stored, in order, and nothing has failed.
func TestSlowPartitionsSlowProducersDown(t *testing.T) {
	const producers, pipeline, payload = 20, 3, 100 << 10
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		node.add("t", producers+1)
		for i := range producers {
			node.at("t", int32(i)).hold()
		}
		h := start(t, Config{QueuedRequestBytesMax: 2 << 20, ConnectionIdleMax: -1}, node)
		defer h.stop()
		var all []*client
		for i := range producers {
			c := h.client()
			defer c.close()
			for sequence := range pipeline {
				req := one(9, -1, records(batch.ProducerID(i), 0, batch.Sequence(sequence), 1, strings.Repeat("x", payload)))
				req.Topics[0].Partitions[0].Partition = int32(i)
				req.TimeoutMillis = 3_600_000
				c.send(req)
			}
			all = append(all, c)
		}
		held := func() (n int) {
			synctest.Wait()
			for i := range producers {
				p := node.at("t", int32(i))
				p.mu.Lock()
				n += len(p.holding)
				p.mu.Unlock()
			}
			return n
		}
		most := (1 << 20) / bufferSize(payload)
		if n := held(); n != most {
			t.Errorf("%d requests are with the partitions, want %d", n, most)
		}
		time.Sleep(5 * time.Minute)
		consumer := h.client()
		defer consumer.close()
		consumer.open()
		wantFetched(t, askAny(consumer, fetchOf(12, 0)), "0:0<0")
		for left := producers * pipeline; left > 0; {
			n := held()
			if n == 0 || n > most {
				t.Fatalf("%d requests are with the partitions, %d are left", n, left)
			}
			for i := range producers {
				p := node.at("t", int32(i))
				p.mu.Lock()
				n := len(p.holding)
				p.mu.Unlock()
				p.finish(n)
				left -= n
			}
		}
		for i, c := range all {
			for sequence := range pipeline {
				wantAnswers(t, c.receive(), fmt.Sprintf("%d:0@%d,0", i, sequence))
			}
		}
		if lent := h.server.budgets.produces.held(); lent != 0 {
			t.Errorf("%d bytes are still lent", lent)
		}
		h.quiet()
	})
}

// Budgets that are smaller than any request let one at a time through, and nobody waits for ever.
func TestTinyBudgets(t *testing.T) {
	const connections, rounds = 8, 30
	node := newFakeNode()
	node.add("t", 2*connections)
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{QueuedRequestBytesMax: 1}, node)
		defer h.stop()
		kinds := &h.server.budgets
		for _, b := range []*budget{&kinds.producing, &kinds.requests, &kinds.working, &kinds.answers} {
			b.bound(1)
		}
		for k := range connections {
			c := h.client()
			defer c.close()
			metadata := metadataOf(9, strings.Repeat("long", 12_000), "t")
			for i := range rounds {
				req := produceOf(9, -1, map[string][][]byte{"t": make([][]byte, 2)})
				for j := range req.Topics[0].Partitions {
					p := &req.Topics[0].Partitions[j]
					p.Partition, p.Records = int32(2*k+j), records(batch.ProducerID(k), 0, batch.Sequence(i), 1, strings.Repeat("x", i*37%3000))
				}
				fetch := fetchOf(12, 0, 0)
				fetch.Topics[0].Partitions[0].Partition, fetch.Topics[0].Partitions[1].Partition = int32(2*k), int32(2*k+1)
				c.send(req, req, metadata, fetch)
			}
			go func() {
				for i := range rounds {
					for range 2 {
						for _, p := range c.receive().(*kmsg.ProduceResponse).Topics[0].Partitions {
							if p.ErrorCode != 0 || p.BaseOffset/2 != int64(i) {
								t.Errorf("connection %d round %d: %+v", k, i, p)
							}
						}
					}
					if topics := c.receive().(*kmsg.MetadataResponse).Topics; len(topics) != 2 || topics[0].ErrorCode != 17 || topics[1].ErrorCode != 0 {
						t.Errorf("connection %d round %d: %d topics", k, i, len(topics))
					}
					if got := fetched(t, c.receive().(*kmsg.FetchResponse)); strings.Count(got, ":0<") != 2 {
						t.Errorf("connection %d round %d: %s", k, i, got)
					}
				}
			}()
		}
		synctest.Wait()
		for _, b := range []*budget{&kinds.produces, &kinds.producing, &kinds.requests, &kinds.working, &kinds.answers} {
			if b.held() != 0 || b.waiting() > 0 {
				t.Errorf("%d bytes are still lent, %d wait", b.held(), b.waiting())
			}
		}
	})
}

// Whoever waits for memory when the server stops, or when its connection is cut, waits no longer.
func TestEndsOfThoseThatWaitForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode()
		node.add("t", 1)
		p := node.at("t", 0)
		p.hold()
		h := start(t, Config{QueuedRequestBytesMax: 1, ConnectionIdleMax: -1}, node)
		produces := &h.server.budgets.produces
		deaf, holds, waits := h.client(), h.client(), h.client()
		unknown := one(9, -1, plain(1, ""))
		unknown.Topics[0].Topic = "unknown"
		deaf.send(unknown) // whose answer is not taken
		synctest.Wait()
		patient := one(9, -1, plain(1, ""))
		patient.TimeoutMillis = 600_000
		holds.send(patient)
		synctest.Wait()
		deaf.send(one(9, -1, plain(1, "")))
		waits.send(one(9, -1, plain(1, "")))
		synctest.Wait()
		if n := produces.waiting(); n != 2 {
			t.Fatalf("%d requests wait", n)
		}
		time.Sleep(stallMax + 2*tick)
		synctest.Wait()
		h.logged("the client did not take its answer", "connections=1")
		deaf.close()
		if n := produces.waiting(); n != 1 {
			t.Fatalf("%d requests wait", n)
		}
		began := time.Now()
		h.cancel()
		waits.ended()
		p.finish(1)
		wantAnswers(t, holds.receive(), "0:0@0,0")
		holds.close()
		h.stop()
		if took := time.Since(began); took > 0 || produces.held() != 0 {
			t.Errorf("stopped after %v, %d bytes are still lent", took, produces.held())
		}
	})
}
