package main

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/campaign/internal/scripted"
	"github.com/oncemq/oncemq/campaign/internal/stage"
	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// newTestCampaign has one partition and the addresses of three nodes, of which none runs.
func newTestCampaign(t *testing.T) *campaign {
	t.Helper()
	c := newCampaign(config{producers: 1, nodes: 3, seed: 1}, io.Discard)
	c.Partitions = []*stage.Partition{{Topic: rawkafka.Topic{Name: "t", ID: [16]byte{7}}, History: history.New(), Parse: parseValue}}
	binary := filepath.Join(t.TempDir(), "binary")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var err error
	if c.nodes, err = testbroker.StartCluster(testbroker.ClusterConfig{Binary: binary, Dir: t.TempDir(), Nodes: 3}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.nodes.Close() })
	c.routes = newRoutes(c)
	c.producers = []*producer{newProducer(c, 0)}
	return c
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

func TestParseFlags(t *testing.T) {
	for _, args := range []string{"x", "--partitions 0", "--producers 65", "--nodes 0", "--rate -1", "--duration -1s", "--p99 -1s",
		"--faults flood", "--faults kill,", "--nodes 1 --faults isolate"} {
		if _, err := parseFlags(strings.Fields(args)); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	cfg, err := parseFlags([]string{"--faults", "pause,kill,pause"})
	if err != nil || cfg.seed == 0 || !slices.Equal(cfg.faults, []kind{pause, kill}) {
		t.Errorf("%+v, %v", cfg, err)
	}
	for args, want := range map[string]int{"": len(kinds), "--faults none": 0, "--nodes 1": 4} {
		if cfg, err := parseFlags(strings.Fields(args)); err != nil || len(cfg.faults) != want {
			t.Errorf("%q: faults %v, %v", args, cfg.faults, err)
		}
	}
}

// Each kind comes once in each round, at the node that was drawn, within the bounds; a seed draws the same again.
func TestSchedule(t *testing.T) {
	leader := func(rng *rand.Rand) int { return rng.IntN(3) }
	one, other := newSchedule(9, kinds), newSchedule(9, kinds)
	var nodes [3]int
	for round := range 50 {
		seen := make(map[kind]bool)
		for range kinds {
			f := one.next(leader)
			if again := other.next(leader); f != again {
				t.Fatalf("round %d: %v, and the same seed draws %v", round, f, again)
			}
			seen[f.kind] = true
			switch {
			case (f.kind == killAll || f.kind == transfer) != (f.node == -1):
				t.Errorf("%v has node %d", f, f.node)
			case f.node >= 0:
				nodes[f.node]++
			}
			if f.hold > troubleMax || f.kind == kill && f.hold > downMax || (f.kind == pause || f.kind == isolate) && f.hold < troubleMin {
				t.Errorf("%v lasts %v", f, f.hold)
			}
			if f.kind == slow && f.slowed == (testbroker.Condition{}) {
				t.Errorf("%v is not slow", f)
			}
			if f.String() == "" {
				t.Error("a fault without a text")
			}
		}
		if len(seen) != len(kinds) {
			t.Fatalf("round %d has only %v", round, seen)
		}
	}
	if slices.Min(nodes[:]) < 40 {
		t.Errorf("the faults fall on the nodes %v times", nodes)
	}
}

func TestAway(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	for _, test := range []struct {
		name            string
		successes       []int
		floor, from, to int
		want            int
	}{
		{"nothing happens", []int{0, 20, 40, 60, 80}, 0, 30, 70, 20},
		{"a gap in the fault", []int{0, 20, 900, 920}, 0, 30, 1000, 880},
		{"a gap that begins before it and ends in it", []int{0, 500, 520}, 0, 400, 520, 500},
		{"a gap that begins in it and ends behind it", []int{0, 20, 40, 900}, 0, 30, 100, 860},
		{"a gap before it", []int{0, 500, 520, 540}, 0, 510, 540, 20},
		{"a gap behind it", []int{0, 20, 40, 900}, 0, 10, 30, 20},
		{"all were down", []int{0, 20, 900, 920}, 700, 30, 1000, 200},
		{"nothing was ever stored", nil, 0, 30, 70, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &probe{}
			for _, ms := range test.successes {
				p.success(at(ms))
			}
			for range 2 { // what is forgotten is not needed
				if got, _ := p.away(at(test.floor), at(test.from), at(test.to)); got != time.Duration(test.want)*time.Millisecond {
					t.Errorf("away for %v, want %d ms", got, test.want)
				}
			}
		})
	}
}

func TestOutages(t *testing.T) {
	o := newOutages()
	if err := o.judge(time.Nanosecond, time.Nanosecond); err != nil {
		t.Errorf("with nothing measured: %v", err)
	}
	for i := range 100 {
		o.add(kill, ofLeader, time.Duration(i+1)*time.Millisecond)
	}
	o.add(pause, ofOthers, 200*time.Millisecond)
	o.add(killAll, ofAll, time.Hour)
	o.add(killMost, ofAll, time.Hour)
	for _, test := range []struct {
		p99, worst time.Duration
		wrong      string
	}{
		{99 * time.Millisecond, 200 * time.Millisecond, ""},
		{0, 0, ""},
		{98 * time.Millisecond, 0, "99ms at the 99th percentile"},
		{0, 199 * time.Millisecond, "a partition was away for 200ms"},
	} {
		err := o.judge(test.p99, test.worst)
		if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%v and %v: %v, want %q", test.p99, test.worst, err, test.wrong)
		}
	}
	table := strings.Fields(o.String())
	for _, want := range []string{"kill", "50ms", "99ms", "100ms", "pause", "200ms", "kill-all", "1h0m0s"} {
		if !slices.Contains(table, want) {
			t.Errorf("the table has no %s:\n%v", want, o)
		}
	}
}

// zeroWidth is an entry without an offset.
func zeroWidth(size int) []byte {
	b := make([]byte, size)
	binary.BigEndian.PutUint64(b, 1<<63|5)
	binary.BigEndian.PutUint32(b[entryLength:], uint32(size-entryBody))
	return b
}

func TestReadReplica(t *testing.T) {
	stored := func(base batch.Offset, text string) []byte {
		b := rawkafka.Plain([]byte(text))
		b.BaseOffset = base
		return b.Bytes()
	}
	dir := t.TempDir()
	write := func(name string, parts ...[]byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), slices.Concat(parts...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("00000000000000000002.log", zeroWidth(136), stored(0, "a"), zeroWidth(40), stored(1, "b"), make([]byte, 100))
	write("00000000000000000005.log", zeroWidth(136), stored(2, "c"))
	write("00000000000000000005.idx", []byte("no segment"))
	log, err := readReplica(dir)
	if err != nil || len(log) != 3 || log[2].base != 2 {
		t.Fatalf("read %+v, %v", log, err)
	}
	if wrong := difference(log, slices.Clone(log)); wrong != "" {
		t.Errorf("a log differs from itself: %s", wrong)
	}
	other := slices.Clone(log)
	other[1].sum++
	for _, wrong := range []string{difference(log, other), difference(log, log[:2]), difference(log[:1], log)} {
		if wrong == "" {
			t.Error("a difference was not noticed")
		}
	}
	for name, bad := range map[string][]byte{"cut": stored(3, "d")[:65], "noise": []byte("this is no entry, and it goes on for a while")} {
		write("00000000000000000006.log", zeroWidth(136), bad)
		if _, err := readReplica(dir); err == nil {
			t.Errorf("%s was read", name)
		}
	}
}

func TestParseValue(t *testing.T) {
	want := history.Value{Producer: kcatName, Number: 3}
	raw := history.AppendPayload(nil, want, kcatPayload)
	for _, record := range [][]byte{raw, []byte(hex.EncodeToString(raw))} {
		if got, err := parseValue(record); got != want || err != nil {
			t.Errorf("read %v, %v", got, err)
		}
	}
	if _, err := parseValue([]byte("abcd")); err == nil {
		t.Error("noise was read")
	}
}

// metadata is the answer of a node, in which the broker of node i has the id i+1.
func metadata(c *campaign, leader, epoch int32, replicas, inSync []int32) *kmsg.MetadataResponse {
	a := kmsg.NewPtrMetadataResponse()
	a.ControllerID = 2
	for i, addr := range c.nodes.Addrs() {
		host, port, _ := strings.Cut(addr, ":")
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host = int32(i+1), host
		for _, digit := range port {
			b.Port = b.Port*10 + digit - '0'
		}
		a.Brokers = append(a.Brokers, b)
	}
	topic := kmsg.NewMetadataResponseTopic()
	topic.Topic, topic.TopicID = kmsg.StringPtr("t"), [16]byte{7}
	p := kmsg.NewMetadataResponseTopicPartition()
	p.Leader, p.LeaderEpoch, p.Replicas, p.ISR = leader, epoch, replicas, inSync
	topic.Partitions = append(topic.Partitions, p)
	a.Topics = append(a.Topics, topic)
	return a
}

var three = []int32{3, 1, 2}

func TestRoutes(t *testing.T) {
	c := newTestCampaign(t)
	r := c.routes
	now := time.Now()
	tell := func(node int, leader, epoch int32, inSync []int32) {
		r.note(node, now, metadata(c, leader, epoch, three, inSync))
	}
	if r.leader(0) != nobody || r.settled(now) || r.controller() != nobody {
		t.Error("something is known before anybody was asked")
	}
	tell(0, 1, 4, three)
	tell(1, 2, 5, three)
	tell(2, -1, 6, three) // it knows of an election, and not who has won
	if r.leader(0) != 1 || r.controller() != 1 {
		t.Errorf("leader %d, controller %d, want 1 and 1", r.leader(0), r.controller())
	}
	if r.notPreferred() != 0 {
		t.Error("node 3 is preferred and does not lead, and that was not noticed")
	}
	if r.settled(now) || r.why() == "" {
		t.Error("settled, and the nodes do not agree")
	}
	tell(0, 3, 6, three)
	tell(1, 3, 6, three)
	tell(2, 3, 6, three[:2])
	if r.settled(now) {
		t.Error("settled, and a replica is not in sync")
	}
	tell(2, 3, 6, three)
	if !r.settled(now) || r.leader(0) != 2 {
		t.Errorf("not settled: %s; leader %d", r.why(), r.leader(0))
	}
	if r.settled(now.Add(1)) {
		t.Error("settled by what was said before")
	}
	if r.notPreferred() != nobody {
		t.Error("the preferred leader leads, and that was not noticed")
	}
	noted(t, c, "")
	tell(1, 2, 6, three)
	noted(t, c, "two leaders in epoch 6")
}

func TestMetadataThatIsWrong(t *testing.T) {
	for name, change := range map[string]func(*kmsg.MetadataResponse){
		"unknown":    func(a *kmsg.MetadataResponse) { a.Topics[0].ErrorCode = 3 },
		"missing":    func(a *kmsg.MetadataResponse) { a.Topics = nil },
		"another id": func(a *kmsg.MetadataResponse) { a.Topics[0].TopicID = [16]byte{8} },
	} {
		c := newTestCampaign(t)
		a := metadata(c, 1, 1, three, three)
		change(a)
		c.routes.note(0, time.Now(), a)
		if c.Broken() == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
	c := newTestCampaign(t)
	a := metadata(c, 1, 1, three, three)
	a.Topics[0].ErrorCode, a.Topics[0].Partitions = codeLeaderNotAvailable, nil
	c.routes.note(0, time.Now(), a)
	noted(t, c, "")
}

// A producer that has two batches in its window, the first answered with offset 0, the second unknown, meets each kind of
// answer to its retries.
func TestConfirm(t *testing.T) {
	for _, test := range []struct {
		name    string
		answers []kmsg.Response
		wrong   string // part of the violation; empty when there is none
		err     error
	}{
		{"as before", []kmsg.Response{scripted.Produced(0, 0), scripted.Produced(0, 7)}, "", nil},
		{"another offset", []kmsg.Response{scripted.Produced(0, 1), scripted.Produced(0, 7)}, "was answered 1", errWrong},
		{"not the leader", []kmsg.Response{scripted.Produced(6, -1), scripted.Produced(6, -1)}, "", errRefused},
		{"not the leader, and then it is", []kmsg.Response{scripted.Produced(6, -1), scripted.Produced(45, -1)}, "", errAgain},
		{"cut off, and the next is there", []kmsg.Response{scripted.Produced(20, -1), scripted.Produced(0, 7)}, "", errAgain},
		{"out of order", []kmsg.Response{scripted.Produced(45, -1)}, "error code 45", errWrong},
		{"out of order behind one that is there", []kmsg.Response{scripted.Produced(0, 0), scripted.Produced(45, -1)}, "error code 45", errWrong},
		{"fenced behind one that is not", []kmsg.Response{scripted.Produced(7, -1), scripted.Produced(47, -1)}, "error code 47", errWrong},
		{"no such topic", []kmsg.Response{scripted.Produced(3, -1)}, "error code 3", errWrong},
		{"storage", []kmsg.Response{scripted.Produced(56, -1)}, "error code 56", errWrong},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newTestCampaign(t)
			p := c.producers[0]
			p.begin(4, 0)
			if err := p.stored(p.newBatch(), 0); err != nil {
				t.Fatal(err)
			}
			p.newBatch()
			conn, _ := scripted.Answering(t, test.answers...)
			if err := p.confirm(conn); !errors.Is(err, test.err) {
				t.Errorf("error %v, want %v", err, test.err)
			}
			noted(t, c, test.wrong)
		})
	}
}

// A batch that was refused before it was accepted may be given up, and must not be there; one that may have been accepted,
// by another try as well, is not given up.
func TestGiveUp(t *testing.T) {
	for _, test := range []struct {
		name  string
		code  int16
		tries int
		may   bool
	}{
		{"refused", stage.CodeNotLeader, 1, true},
		{"refused for too few replicas", stage.CodeNotEnoughReplicas, 1, true},
		{"refused, and sent before", stage.CodeNotLeader, 2, false},
		{"cut off", stage.CodeCutOff, 1, false},
		{"timed out", stage.CodeTimedOut, 1, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			gaveUp := false
			for seed := range uint64(20) {
				c := newTestCampaign(t)
				p := c.producers[0]
				p.rng = rand.New(rand.NewPCG(seed, 0))
				p.begin(4, 0)
				s := p.newBatch()
				s.tries = test.tries
				conn, _ := scripted.Answering(t, scripted.Produced(test.code, -1))
				if err := conn.Send(p.request(s)); err != nil {
					t.Fatal(err)
				}
				err := p.broken(conn, []*sent{s}, p.receive(conn, s, false))
				gaveUp = gaveUp || errors.Is(err, errGivenUp)
				p.at.History.Read(history.Read{End: 1, Records: []history.Record{{Value: history.Value{}}}})
				if errors.Is(err, errGivenUp) == (p.at.History.Judge().Phantom == 0) {
					t.Errorf("%v, and then it is there: %v", err, p.at.History.Judge())
				}
			}
			if gaveUp != test.may {
				t.Errorf("given up %v, want %v", gaveUp, test.may)
			}
		})
	}
}

func TestKcatLosesCount(t *testing.T) {
	for version, loses := range map[string]bool{
		"Version 1.7.1 (JSON, Transactions, librdkafka 2.0.2 builtin.features=gzip)": true,
		"librdkafka 1.9.2": true, "librdkafka 2.3.0": false, "librdkafka 3.0.0": false, "kcat": false,
	} {
		if losesCount(version) != loses {
			t.Errorf("%q loses count: %v, want %v", version, !loses, loses)
		}
	}
	if lostCount(tail{"% Fatal error at produce:211:"}) || !lostCount(tail{"failed due to sequence desynchronization with broker 2"}) {
		t.Error("another fatal error is taken for that")
	}
}

func TestKcatReports(t *testing.T) {
	c := newTestCampaign(t)
	k := &librdkafka{c: c, sent: make([][]history.SendID, 1), number: make([]int64, 1)}
	k.invoke(0)
	k.invoke(0)
	const out = "% Auto-selecting\n% Message delivered to partition 0 (offset 4)\n% Message delivered to partition 0 (offset 5)\n"
	if err := k.read(strings.NewReader(out)); err != nil || len(k.sent[0]) != 0 {
		t.Errorf("%v, %d without an answer", err, len(k.sent[0]))
	}
	if err := k.read(strings.NewReader("% Message delivered to partition 0 (offset 6)\n")); err == nil {
		t.Error("a report of a record that was not sent was taken")
	}
	noted(t, c, "")
	_ = k.read(strings.NewReader("% Delivery failed for message: Broker: Message sequence out of order\n"))
	noted(t, c, "gave up a record")
}
