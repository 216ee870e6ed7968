package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/wire"
)

// streamConn is a connection that reads from bytes and forgets what is written.
type streamConn struct {
	*bytes.Reader
	net.Conn // nil: no other method is called
	written  int
}

func (c *streamConn) Read(b []byte) (int, error)      { return c.Reader.Read(b) }
func (c *streamConn) Write(b []byte) (int, error)     { c.written += len(b); return len(b), nil }
func (c *streamConn) Close() error                    { return nil }
func (c *streamConn) RemoteAddr() net.Addr            { return &net.TCPAddr{} }
func (c *streamConn) SetReadDeadline(time.Time) error { return nil }

// Whatever a client sends: nothing panics, each connection ends, and no frame is left over or released twice.
func FuzzConnection(f *testing.F) {
	seeds := []kmsg.Request{metadataOf(9, "t", "new"), metadataOf(0), one(9, -1, plain(1, "seed")), one(13, 0, plain(1, "")), fetchOf(12, 0, 0), createOf(7, nil)}
	for _, a := range apis {
		for v := a.min; v <= a.max; v++ {
			req := kmsg.RequestForKey(int16(a.key))
			req.SetVersion(v)
			seeds = append(seeds, req)
		}
	}
	var all []byte
	for _, req := range seeds {
		f.Add(frameOf(req, 1))
		all = append(all, frameOf(req, 2)...)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, stream []byte) {
		synctest.Test(t, func(t *testing.T) {
			s, err := New(Config{}, twoPartitions(), slog.New(slog.DiscardHandler), time.Now)
			if err != nil {
				t.Fatal(err)
			}
			nc := &streamConn{Reader: bytes.NewReader(stream)}
			c := newConnection(s, newConnections(), nc, t.Context(), make(chan struct{}))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			c.run()
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
				t.Errorf("%d bytes allocated for a stream of %d", n, len(stream))
			}
			if nc.Len() > 0 && c.ending.how == endQuiet {
				t.Errorf("%d bytes were not read, without a reason", nc.Len())
			}
		})
	})
}

// Whatever is asked for, the answer fits into the room that was made for it, is whole, and nothing stays lent.
func FuzzAnswers(f *testing.F) {
	for i, a := range apis {
		for v := a.min; v <= a.max; v++ {
			req := kmsg.RequestForKey(int16(a.key))
			req.SetVersion(v)
			f.Add(uint8(i), v, req.AppendTo(nil))
		}
	}
	add := func(req kmsg.Request) {
		f.Add(uint8(slices.IndexFunc(apis, func(a api) bool { return int16(a.key) == req.Key() })), req.GetVersion(), req.AppendTo(nil))
	}
	for v := range int16(7) {
		add(deletionOf(v, "t", "a", "", strings.Repeat("long", 70), "a"))
		add(createOf(v, nil))
		add(metadataOf(v+7, "t", "new", "b d"))
	}
	add(deletionOf(6, "#t", "t", "#u"))
	for v := range int16(3) {
		add(trimOf(v, -1, 2, 5, -9))
	}
	add(fetchOf(12, 0, 0))
	f.Fuzz(func(t *testing.T, i uint8, version int16, body []byte) {
		a := apis[int(i)%len(apis)]
		if a.handle == nil || version < a.min || version > a.max {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			s, err := New(Config{}, twoPartitions(), slog.New(slog.DiscardHandler), time.Now)
			if err != nil {
				t.Fatal(err)
			}
			c := call{
				server: s, ctx: t.Context(), prefix: wire.Prefix{Key: a.key, Version: version, CorrelationID: 7},
				body: body, request: s.frames.get(len(body)),
			}
			if err := a.handle(s, &c); err == nil {
				room := outKept
				if c.response != nil {
					room = len(c.response.buf)
				}
				if len(c.out) > room {
					t.Errorf("%s v%d: an answer of %d bytes, and room for %d", a.key, version, len(c.out), room)
				}
				resp := kmsg.ResponseForKey(int16(a.key))
				resp.SetVersion(version)
				if rest := c.out[len(c.prefix.BeginResponse(nil)):]; resp.ReadFrom(rest) != nil {
					t.Errorf("%s v%d: the answer is %x", a.key, version, rest)
				}
			}
			c.giveBack()
			if b := &s.budgets; b.working.held() != 0 || b.answers.held() != 0 {
				t.Errorf("%s v%d: %d and %d bytes are still lent", a.key, version, b.working.held(), b.answers.held())
			}
		})
	})
}

// The largest requests with the largest answers stay within what a connection may make the server allocate.
func TestLargestAnswers(t *testing.T) {
	name := func(i int) string {
		return string([]byte{'a' + byte(i%26), 'a' + byte(i/26%26), 'a' + byte(i/676%26), 'a' + byte(i/17576)})
	}
	topics := metadataOf(8)
	for i := range 85_000 {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name(i))
		topics.Topics = append(topics.Topics, topic)
	}
	coordinators := kmsg.NewPtrFindCoordinatorRequest()
	coordinators.Version, coordinators.CoordinatorKeys = 6, make([]string, 65_000)
	creation := createOf(7, nil)
	creation.ValidateOnly = true
	creation.Topics = nil
	for i := range 9_000 {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name(i), 1, 1
		creation.Topics = append(creation.Topics, topic)
	}
	offsets := kmsg.NewPtrListOffsetsRequest()
	offsets.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: "t", Partitions: make([]kmsg.ListOffsetsRequestTopicPartition, 32_000)}}
	fetch := fetchOf(4, make([]int64, 32_000)...)
	// A produce of 65,535 partitions that are refused, each with a text.
	produce := one(9, -1, nil)
	produce.Topics[0].Partitions = make([]kmsg.ProduceRequestTopicPartition, 65_535)
	// A produce whose names are all unknown, and come back.
	names := one(9, -1, nil)
	names.Topics[0].Topic = strings.Repeat("n", 32_000)
	names.Topics = slices.Repeat(names.Topics, wire.ProduceNameBytesMax/32_000)
	unknown := make([]string, 100_000)
	for i := range unknown {
		unknown[i] = name(i)
	}
	trims := trimOf(2, make([]int64, 32_000)...)
	for _, req := range []kmsg.Request{names, topics, coordinators, creation, offsets, fetch, produce, deletionOf(5, unknown...), trims} {
		stream := frameOf(req, 1)
		nc := &streamConn{Reader: bytes.NewReader(stream)}
		s, err := New(Config{NoAutoCreateTopics: true}, twoPartitions(), slog.New(slog.DiscardHandler), time.Now)
		if err != nil {
			t.Fatal(err)
		}
		c := newConnection(s, newConnections(), nc, t.Context(), make(chan struct{}))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c.run()
		runtime.ReadMemStats(&after)
		t.Logf("%T v%d: %d bytes, answer %d, allocated %d: %v", req, req.GetVersion(), len(stream), nc.written, after.TotalAlloc-before.TotalAlloc, c.ending)
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 || nc.written < len(stream)/2 {
			t.Errorf("%T: %d bytes allocated, answer of %d bytes", req, n, nc.written)
		}
	}
}

// What an answer takes while it is made is what is lent for it.
func TestAnswersTakeWhatIsLent(t *testing.T) {
	node := newFakeNode()
	node.add("wide", 10_000)
	coordinators := kmsg.NewPtrFindCoordinatorRequest()
	coordinators.Version, coordinators.CoordinatorKeys = 6, make([]string, 30_000)
	creation := createOf(7, nil)
	creation.ValidateOnly = true
	creation.Topics = slices.Repeat(creation.Topics, 1000)
	for i := range creation.Topics {
		creation.Topics[i].Topic = fmt.Sprint("t", i)
	}
	offsets := kmsg.NewPtrListOffsetsRequest()
	offsets.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: "wide", Partitions: make([]kmsg.ListOffsetsRequestTopicPartition, 10_000)}}
	for _, req := range []kmsg.Request{metadataOf(13, "wide"), metadataOf(7, "wide"), coordinators, creation, offsets} {
		s, err := New(Config{}, node, slog.New(slog.DiscardHandler), time.Now)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := s.api(wire.Key(req.Key()))
		body := req.AppendTo(nil)
		decode := func() {
			_ = (wire.Prefix{Key: a.key, Version: req.GetVersion()}).Decode(kmsg.RequestForKey(req.Key()), body)
		}
		c := call{server: s, ctx: t.Context(), prefix: wire.Prefix{Key: a.key, Version: req.GetVersion()}, body: body, request: s.frames.get(0)}
		n := allocated(func() { err = a.handle(s, &c) }) - allocated(decode)
		t.Logf("%s: %d bytes allocated for an answer of %d in a buffer of %d", a.key, n, len(c.out), cap(c.out))
		if err != nil || c.response == nil || n > answerAmplification*int64(len(c.response.buf)) {
			t.Errorf("%s: %d bytes allocated for an answer of %d, %v", a.key, n, len(c.out), err)
		}
	}
}

// allocated is how many bytes f allocates.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}
