package peer

import (
	"bytes"
	"io"
	"reflect"
	"runtime"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/oncemq/oncemq/internal/seglog"
)

// plain is a message with every field that is not set made zero, so that proto.Equal compares what getters say.
func plain(m *pb.Message) *pb.Message {
	c := proto.CloneOf(m)
	c.Type, c.To, c.From, c.Term, c.LogTerm = m.GetType().Enum(), new(m.GetTo()), new(m.GetFrom()), new(m.GetTerm()), new(m.GetLogTerm())
	c.Index, c.Commit, c.RejectHint, c.Vote = new(m.GetIndex()), new(m.GetCommit()), new(m.GetRejectHint()), new(m.GetVote())
	c.Reject, c.Context, c.Responses = new(m.GetReject()), append([]byte{}, m.GetContext()...), nil
	for _, e := range c.Entries {
		e.Type, e.Term, e.Index, e.Data = e.GetType().Enum(), new(e.GetTerm()), new(e.GetIndex()), append([]byte{}, e.GetData()...)
	}
	if s := c.Snapshot; s != nil {
		s.Metadata = pb.EnsureSnapshotMetadata(s.Metadata)
		s.Data = append([]byte{}, s.Data...)
	}
	return c
}

func alike(a, b *pb.Message) bool { return proto.Equal(plain(a), plain(b)) }

// maybe leaves a field out, or sets it to any value.
func maybe(t *rapid.T, name string) *uint64 {
	if rapid.Bool().Draw(t, "has "+name) {
		return new(rapid.Uint64().Draw(t, name))
	}
	return nil
}

var someTypes = []pb.MessageType{
	pb.MsgApp, pb.MsgAppResp, pb.MsgVote, pb.MsgVoteResp, pb.MsgSnap, pb.MsgHeartbeat, pb.MsgHeartbeatResp,
	pb.MsgTransferLeader, pb.MsgTimeoutNow, pb.MsgReadIndex, pb.MsgReadIndexResp, pb.MsgPreVote, pb.MsgPreVoteResp,
}

func anyMessage(t *rapid.T) *pb.Message {
	bytes := rapid.SliceOfN(rapid.Byte(), 0, 300)
	m := &pb.Message{
		Type: rapid.SampledFrom(someTypes).Draw(t, "type").Enum(), To: maybe(t, "to"), From: maybe(t, "from"), Term: maybe(t, "term"),
		LogTerm: maybe(t, "log term"), Index: maybe(t, "index"), Commit: maybe(t, "commit"),
		RejectHint: maybe(t, "hint"), Vote: maybe(t, "vote"), Context: bytes.Draw(t, "context"),
	}
	if rapid.Bool().Draw(t, "has reject") {
		m.Reject = new(rapid.Bool().Draw(t, "reject"))
	}
	if m.GetType() == pb.MsgSnap {
		ids := rapid.SliceOfN(rapid.Uint64(), 0, 4)
		m.Snapshot = &pb.Snapshot{Metadata: &pb.SnapshotMetadata{Index: maybe(t, "snapshot index"), Term: maybe(t, "snapshot term"),
			ConfState: &pb.ConfState{Voters: ids.Draw(t, "voters"), Learners: ids.Draw(t, "learners"),
				VotersOutgoing: ids.Draw(t, "outgoing"), LearnersNext: ids.Draw(t, "next"), AutoLeave: new(rapid.Bool().Draw(t, "leave"))}}}
		return m
	}
	for range rapid.IntRange(0, 5).Draw(t, "entries") {
		typ := pb.EntryType(rapid.IntRange(0, 2).Draw(t, "entry type"))
		m.Entries = append(m.Entries, &pb.Entry{Type: &typ, Term: maybe(t, "entry term"), Index: maybe(t, "entry index"), Data: bytes.Draw(t, "data")})
	}
	return m
}

// Every field of every message comes out of the bytes as it went in, through the writer's own encoding.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var o outbox
		o.begin()
		var sent []*pb.Message
		for range rapid.IntRange(1, 5).Draw(t, "messages") {
			m := anyMessage(t)
			head, payload := measure(m)
			if got := appendMessage(nil, 3, m); len(got) != head {
				t.Fatalf("a head of %d bytes was taken for %d", len(got), head)
			}
			if m.GetType() == pb.MsgSnap {
				r, err := parseMessage(appendMessage(nil, 3, m), nil)
				if err != nil || !alike(m, &r.message) || r.group != 3 || payload != 0 {
					t.Fatalf("%v\ncame as %v, %v", m, &r.message, err)
				}
				continue
			}
			sent = append(sent, m)
			o.item(&item{group: seglog.GroupID(len(sent)), message: m})
		}
		if len(o.beats) > prefixBytes {
			seal(o.beats, kindBeats, 0)
			o.payload(o.beats)
		}
		o.sweep()
		got := map[seglog.GroupID]*received{}
		in := newFrameReader(bytes.NewReader(bytes.Join(o.pieces, nil)), readAhead)
		in.expect = controlIn
		for {
			f, err := in.next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for src := (fields{src: f.head}); len(src.src) > 0; {
				var r *received
				if f.kind == kindBeats {
					r, err = parseBeat(&src)
				} else {
					r, err = parseMessage(f.head, f.payload)
					src.src = nil
				}
				if err != nil {
					t.Fatal(err)
				}
				got[r.group] = r
			}
		}
		for i, m := range sent {
			if r := got[seglog.GroupID(i+1)]; r == nil || !alike(m, &r.message) {
				t.Fatalf("%v\ncame as %v", m, r)
			}
		}
	})
}

// The library's messages have no field that is not carried.
func TestAllFieldsAreKnown(t *testing.T) {
	for v, want := range map[any]int{pb.Message{}.Type: 0, (*pb.Message)(nil): 14, (*pb.Entry)(nil): 4, (*pb.Snapshot)(nil): 2,
		(*pb.SnapshotMetadata)(nil): 3, (*pb.ConfState)(nil): 5} {
		m, ok := v.(proto.Message)
		if ok && m.ProtoReflect().Descriptor().Fields().Len() != want {
			t.Errorf("%s has %d fields, %d are known", reflect.TypeOf(v), m.ProtoReflect().Descriptor().Fields().Len(), want)
		}
	}
}

// What does not come between nodes is refused, whatever else is right.
func TestTypesThatAreRefused(t *testing.T) {
	for typ := range 256 {
		head := appendMessage(nil, 1, testMessage(pb.MsgVote, 1, 2, 3))
		head[8] = byte(typ)
		_, err := parseMessage(head, nil)
		if want := between[pb.MessageType(typ)] && pb.MessageType(typ) != pb.MsgSnap; (err == nil) != want {
			t.Errorf("type %d: %v", typ, err)
		}
	}
}

// A length that lies costs no more than a first step.
func TestLyingLength(t *testing.T) {
	frame := appendFrame(nil, kindMessage, appendMessage(nil, 1, appOf(1, 2, 3, make([]byte, 70*mib))), make([]byte, 70*mib))
	frame = frame[:len(frame)-69*mib]
	in := newFrameReader(bytes.NewReader(frame), readAhead)
	in.expect = dataIn
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := in.next()
	runtime.ReadMemStats(&after)
	if err != io.ErrUnexpectedEOF {
		t.Errorf("a frame that is cut off: %v", err)
	}
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 4*mib {
		t.Errorf("%d bytes were taken for the 1 MiB that has come", taken)
	}
}

// nobody is a Handler that does nothing.
type nobody struct{ Handler }

func (nobody) Message(NodeID, seglog.GroupID, *pb.Message) {}
func (nobody) Told(NodeID, uint8, []byte)                  {}

// Whatever comes: nothing panics, memory is bounded by what has come, and what is accepted is encoded to the same bytes.
func FuzzFrames(f *testing.F) {
	for _, m := range []*pb.Message{appOf(1, 2, 3, []byte("a"), nil, []byte("bcd")), testMessage(pb.MsgVote, 1, 2, 3)} {
		head, payload := appendMessage(nil, 1, m), []byte(nil)
		for _, e := range m.Entries {
			payload = append(payload, e.Data...)
		}
		f.Add(byte(kindMessage), head, payload)
	}
	f.Add(byte(kindBeats), appendBeat(appendBeat(nil, 1, testMessage(pb.MsgHeartbeat, 1, 2, 0)), 2, testMessage(pb.MsgHeartbeatResp, 1, 2, 0)), []byte(nil))
	f.Add(byte(kindSnapshot), append(make([]byte, 8), appendMessage(nil, 1, snapOf(1, 2, []byte("abc")))...), []byte(nil))
	f.Add(byte(kindChunk), make([]byte, 16), []byte("abc"))
	f.Add(byte(kindHello), hello{versionMin: 1, versionMax: 1}.append(nil), []byte(nil))
	f.Add(byte(kindAccept), accept{version: 1}.append(nil), []byte(nil))
	f.Add(byte(kindRefuse), refused("no").append(nil), []byte(nil))
	f.Add(byte(kindCall), make([]byte, 9), []byte("abc"))
	f.Fuzz(func(t *testing.T, k byte, head, payload []byte) {
		parseHello(head)
		parseAccept(head)
		parseRefusal(head)
		if r, err := parseMessage(head, payload); err == nil && r.kind != pb.MsgSnap && !bytes.Equal(appendMessage(nil, r.group, &r.message), head) {
			t.Errorf("%v is not %x", &r.message, head)
		}
		transport := &Transport{config: Config{Self: 2, Handler: nobody{}}, log: newSeldom(discard, new(ticksOfTest))}
		c := &connection{p: &peer{t: transport, id: 1}, queue: newQueue(mib)}
		if kind(k) == kindCall { // starts goroutines; its head is three fields
			return
		}
		for range 3 {
			if err := c.receive(frame{kind(k), head, payload}); err != nil {
				break
			}
		}
		in := newFrameReader(io.MultiReader(bytes.NewReader(head), bytes.NewReader(payload)), 16)
		in.expect = 1<<kindEnd - 1
		in.magic()
		for {
			if _, err := in.next(); err != nil {
				break
			}
		}
	})
}
