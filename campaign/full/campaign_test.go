package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/campaign/internal/scripted"
	"github.com/oncemq/oncemq/campaign/internal/stage"
	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

func newTestProducer() *producer {
	c := newCampaign(config{producers: 1, seed: 1}, io.Discard)
	c.Partitions = []*stage.Partition{{Topic: rawkafka.Topic{Name: "t"}, History: history.New()}}
	p := newProducer(c, 0)
	p.id, p.epoch = 9, 0
	return p
}

// answer is what a scripted broker says to one batch.
type answer struct {
	code int16
	base int64
}

// answering returns a client whose produces are answered with these, in order. requests gets the number of requests that
// came, when the client has hung up.
func answering(t *testing.T, answers ...answer) (c *rawkafka.Client, requests <-chan int) {
	var responses []kmsg.Response
	for _, a := range answers {
		responses = append(responses, scripted.Produced(a.code, a.base))
	}
	return scripted.Answering(t, responses...)
}

// A producer sends two batches together and meets each kind of answer. It must see through all that are wrong, take none
// that is right amiss, and keep exactly what is not stored.
func TestBurst(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []answer
		pending []int // of the two, by number
		inRow   int64
		wrong   string // part of the violation; empty when there is none
	}{
		{"stored", []answer{{0, 0}, {0, 7}}, nil, 0, ""},
		{"refused", []answer{{stage.CodeStorage, -1}, {stage.CodeStorage, -1}}, []int{0, 1}, 2, ""},
		{"refused, and the next one follows nothing", []answer{{stage.CodeStorage, -1}, {codeOutOfOrder, -1}}, []int{0, 1}, 1, ""},
		{"room for the first only", []answer{{0, 0}, {stage.CodeStorage, -1}}, []int{1}, 1, ""},
		{"time over, and then stored", []answer{{stage.CodeTimedOut, -1}, {0, 7}}, []int{0}, 0, ""},
		{"time over twice", []answer{{stage.CodeTimedOut, -1}, {stage.CodeTimedOut, -1}}, []int{0, 1}, 2 * fullAfter, ""},
		{"not ready", []answer{{stage.CodeNotLeader, -1}, {stage.CodeNotLeader, -1}}, []int{0, 1}, 2, ""},
		{"out of order", []answer{{codeOutOfOrder, -1}, {codeOutOfOrder, -1}}, []int{0, 1}, 0, "answer 45"},
		{"the second out of order", []answer{{0, 0}, {codeOutOfOrder, -1}}, []int{1}, 0, "answer 45"},
		{"out of order after time over", []answer{{stage.CodeTimedOut, -1}, {codeOutOfOrder, -1}}, []int{0, 1}, fullAfter, "answer 45"},
		{"stored behind a refusal", []answer{{stage.CodeStorage, -1}, {0, 7}}, []int{0, 1}, 1, "although the batch before it was refused"},
		{"fenced", []answer{{47, -1}, {0, 7}}, []int{0}, 0, "answer 47"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newTestProducer()
			batches := []*sent{p.make(), p.make()}
			p.pending = slices.Clone(batches)
			conn, _ := answering(t, c.answers...)
			err := p.burst(conn)
			if again := len(c.pending) > 0; errors.Is(err, errAgain) != again || !again && err != nil {
				t.Errorf("error %v", err)
			}
			var want []*sent
			for _, i := range c.pending {
				want = append(want, batches[i])
			}
			if !slices.Equal(p.pending, want) || p.inRow.Load() != c.inRow || len(p.last) != 2-len(want) {
				t.Errorf("%d are pending, want %d; %d refusals in a row, want %d; %d are known as stored",
					len(p.pending), len(want), p.inRow.Load(), c.inRow, len(p.last))
			}
			mustBreak(t, p.c, c.wrong)
		})
	}
}

func mustBreak(t *testing.T, c *campaign, want string) {
	t.Helper()
	if err := c.Broken(); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("violations %v, want %q", err, want)
	}
}

// What is stored is sent again, but no more of it than the broker must remember beside what is pending.
func TestConfirm(t *testing.T) {
	for _, c := range []struct {
		name    string
		pending int
		answers []answer
		wrong   string
	}{
		{"as before", 0, []answer{{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}}, ""},
		{"beside two that are pending", 2, []answer{{0, 2}, {0, 3}, {0, 4}}, ""},
		{"refused", 4, []answer{{stage.CodeStorage, -1}}, "answer 56"},
		{"another offset", 4, []answer{{0, 5}}, "offset 5"},
		{"forgotten", 4, []answer{{codeOutOfOrder, -1}}, "answer 45"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newTestProducer()
			for i := range window {
				s := p.make()
				s.base = batch.Offset(i)
				p.last = append(p.last, s)
			}
			for range c.pending {
				p.pending = append(p.pending, p.make())
			}
			conn, requests := answering(t, c.answers...)
			if err := p.confirmOver(conn); err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
			if n := <-requests; n != len(c.answers) {
				t.Errorf("%d batches were sent again, want %d", n, len(c.answers))
			}
			mustBreak(t, p.c, c.wrong)
		})
	}
}

func TestFlags(t *testing.T) {
	for args, ok := range map[string]bool{
		"": true, "--size 32 --rounds 1 --producers 1 --hold 0s": true, "--dir x": true,
		"--size 31": false, "--size 4097": false, "--rounds 0": false, "--producers 0": false, "--producers 65": false, "--hold -1s": false, "x": false,
	} {
		if _, err := parseFlags(strings.Fields(args)); (err == nil) != ok {
			t.Errorf("%q: %v", args, err)
		}
	}
}
