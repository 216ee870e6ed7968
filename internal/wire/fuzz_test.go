package wire

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// overheadMax is what decoding may allocate beside DecodeAmplification: the struct itself, an error, and what the fuzzing
// engine allocates meanwhile.
const overheadMax = 64 << 10

func FuzzHeader(f *testing.F) {
	for _, s := range served {
		f.Add(kmsg.NewRequestFormatter(kmsg.FormatterClientID("fuzz")).AppendRequest(nil, request(s.key, s.max), 1))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < LengthSize+PrefixSize {
			return
		}
		n := allocated(func() {
			if _, err := ParseLength([LengthSize]byte(frame), 1<<20); err != nil {
				return
			}
			p := ParsePrefix([PrefixSize]byte(frame[LengthSize:]))
			if p.CheckFrame(len(frame)) != nil {
				return
			}
			client, body, err := p.ParseHeader(frame[LengthSize+PrefixSize:])
			if err == nil && len(client)+len(body) > len(frame)-LengthSize-PrefixSize-2 {
				t.Errorf("client id of %d and body of %d bytes out of a frame of %d", len(client), len(body), len(frame))
			}
		})
		if n > overheadMax {
			t.Errorf("%d bytes allocated", n)
		}
	})
}

func FuzzProduce(f *testing.F) {
	for v := int16(0); v <= 13; v++ {
		f.Add(v, produceRequest(v).AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if version < 0 || version > 13 {
			return
		}
		var req ProduceRequest
		var err error
		if n := allocated(func() { req, err = ParseProduce(version, body) }); n > overheadMax {
			t.Errorf("%d bytes allocated for a body of %d", n, len(body))
		}
		if err != nil {
			return
		}
		want := kmsg.NewPtrProduceRequest()
		want.Version = version
		if err := want.ReadFrom(body); err != nil {
			t.Fatalf("accepted, but kmsg says %v", err)
		}
		sameProduce(t, version, req, want)
	})
}

func FuzzDecode(f *testing.F) {
	for _, s := range served {
		f.Add(int16(s.key), s.max, request(s.key, s.max).AppendTo(nil))
		if s.key != KeyProduce {
			f.Add(int16(s.key), s.max, worst(s.key, s.max, 500))
		}
	}
	f.Fuzz(func(t *testing.T, key, version int16, body []byte) {
		for _, s := range served {
			if int16(s.key) != key || s.key == KeyProduce || version < s.min || version > s.max {
				continue
			}
			req := kmsg.RequestForKey(key)
			var err error
			n := allocated(func() { err = Prefix{s.key, version, 0}.Decode(req, body) })
			if n > uint64(DecodeAmplification*len(body)+overheadMax) {
				t.Errorf("%s v%d: %d bytes allocated for a body of %d", s.key, version, n, len(body))
			}
			if err != nil {
				return
			}
			again := kmsg.RequestForKey(key)
			if err := (Prefix{s.key, version, 0}).Decode(again, req.AppendTo(nil)); err != nil {
				t.Errorf("%s v%d: what was decoded and encoded is refused: %v", s.key, version, err)
			}
		}
	})
}

func BenchmarkParseProduce(b *testing.B) {
	req := kmsg.NewPtrProduceRequest()
	req.Version = 12
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic = "topic"
	p := kmsg.NewProduceRequestTopicPartition()
	p.Records = make([]byte, 64<<10)
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	body := req.AppendTo(nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseProduce(12, body); err != nil {
			b.Fatal(err)
		}
	}
}
