package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

func TestParseBrokers(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1:9092": "127.0.0.1:9092", "broker": "broker:9092", "a:1,b:2": "a:1 b:2", " a:1 , b ": "a:1 b:9092",
		"[::1]:9093": "[::1]:9093", "::1": "[::1]:9092", "[::1]": "[::1]:9092",
	} {
		if got, err := ParseBrokers(text); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", ",", "a,", "a:", ":9092", "a:0", "a:65536", "a:b", "a:1:2", "http://a:1", "a b"} {
		if got, err := ParseBrokers(text); err == nil {
			t.Errorf("%q was taken for %q", text, got)
		}
	}
}

func TestParseStartOffset(t *testing.T) {
	of := span{begin: 10, end: 20}
	for text, want := range map[string]int64{
		"beginning": 10, "earliest": 10, "end": 20, "latest": 20, "0": 10, "10": 10, "15": 15, "20": 20, "25": 25,
		"-1": 19, "-10": 10, "-11": 10, "-9223372036854775807": 10, "-0": 10, "9223372036854775807": 9223372036854775807,
	} {
		if s, err := ParseStartOffset(text); err != nil || s.wanted(of) != want {
			t.Errorf("%s: %d, %v, want %d", text, s.wanted(of), err, want)
		}
	}
	for _, text := range []string{"", "middle", "1.5", "--1", "9223372036854775808", "-9223372036854775808", "stored"} {
		if s, err := ParseStartOffset(text); err == nil {
			t.Errorf("%q was taken for %+v", text, s)
		}
	}
}

func TestUnescape(t *testing.T) {
	for text, want := range map[string]string{
		"": "", ":": ":", `\t`: "\t", `\n\r\\`: "\n\r\\", `\x00\xfF.`: "\x00\xff.", "é": "é", `a\tb`: "a\tb",
	} {
		if got, err := Unescape(text); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{`\`, `a\`, `\q`, `\x`, `\x1`, `\xg0`, `\x+1`, `\N`} {
		if got, err := Unescape(text); err == nil {
			t.Errorf("%s was taken for %q", text, got)
		}
	}
	if _, err := ParseSeparator(""); err == nil {
		t.Error("an empty separator was taken")
	}
}

func TestFormat(t *testing.T) {
	r := &kgo.Record{
		Topic: "payments", Partition: 3, Offset: 41, Timestamp: time.UnixMilli(1700000000123), Key: []byte("k\xff"), Value: []byte("v\n"),
		Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "b"}},
	}
	empty := &kgo.Record{Topic: "t", Timestamp: time.UnixMilli(0)}
	for _, c := range []struct {
		format string
		record *kgo.Record
		want   string
	}{
		{`%t/%p @ %o at %T\n`, r, "payments/3 @ 41 at 1700000000123\n"},
		{`%k=%s`, r, "k\xff=v\n"},
		{`%K %S %h%%`, r, "2 2 a=1,b=%"},
		{`%R%s`, r, "\x00\x00\x00\x02v\n"},
		{`[%k][%s][%h]%K%S`, empty, "[][][]-1-1"},
		{`%R`, empty, "\xff\xff\xff\xff"},
		{`\x00\\%%\t`, empty, "\x00\\%\t"},
		{`json`, empty, `{"topic":"t","partition":0,"offset":0,"tstype":"create","ts":0,"key":null,"payload":null}` + "\n"},
		{`json`, r, `{"topic":"payments","partition":3,"offset":41,"tstype":"create","ts":1700000000123,"headers":["a","1","b",null],` +
			`"key":{"base64":"a/8="},"payload":"v\n"}` + "\n"},
	} {
		f, err := ParseFormat(c.format)
		if err != nil {
			t.Fatalf("%s: %v", c.format, err)
		}
		if got := string(f.Append([]byte("before "), c.record)); got != "before "+c.want {
			t.Errorf("%s: %q, want %q", c.format, got, c.want)
		}
	}
	for format, want := range map[string]string{"": "empty", "%": "write %%", "%q": "%q stands for nothing", "a%é": "%é", `\q`: `\q`} {
		if _, err := ParseFormat(format); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", format, err, want)
		}
	}
}

// Whatever bytes a record has, its JSON is one line of valid JSON, from which they can be had again.
func TestFormatJSONIsLossless(t *testing.T) {
	f, err := ParseFormat("json")
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.Custom(func(t *rapid.T) []byte { return []byte(rapid.String().Draw(t, "text")) })).Draw(t, "value")
		line := f.Append(nil, &kgo.Record{Value: value})
		var record struct{ Payload any }
		if err := json.Unmarshal(line, &record); err != nil || strings.IndexByte(string(line), '\n') != len(line)-1 {
			t.Fatalf("%q: %v", line, err)
		}
		switch payload := record.Payload.(type) {
		case string:
			if payload != string(value) {
				t.Fatalf("%q came out as %q", value, payload)
			}
		case map[string]any:
			var raw struct{ Payload struct{ Base64 []byte } }
			if err := json.Unmarshal(line, &raw); err != nil || string(raw.Payload.Base64) != string(value) {
				t.Fatalf("%q came out as %q, %v", value, raw.Payload.Base64, err)
			}
		default:
			if value != nil {
				t.Fatalf("%q came out as %v", value, payload)
			}
		}
	})
}

func TestFigures(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := grouped(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	for n, want := range map[float64]string{0: "0 bytes", 999: "999 bytes", 1000: "1.0 kB", 20_900_000: "20.9 MB", 3e9: "3.0 GB", 5e15: "5000.0 TB"} {
		if got := volume(n); got != want {
			t.Errorf("%f: %q, want %q", n, got, want)
		}
	}
	var tally tally
	for range 3 {
		tally.send(10)
	}
	tally.fail(9, errLine, true)
	tally.fail(7, errDelivery, false)
	if last := tally.ack(10); !last || tally.first != 7 || tally.firstErr != errDelivery || tally.unknown != 1 || tally.waiting() != 0 {
		t.Errorf("after two failures and an answer: %+v", &tally)
	}
	if got, want := tally.progress(2*time.Second), "1 record, 10 bytes, 0 records/s, 5 bytes/s, 0 waiting"; got != want {
		t.Errorf("progress %q, want %q", got, want)
	}
}

// What is said appears on a line of its own, above the line that is written over.
func TestNotices(t *testing.T) {
	var b strings.Builder
	n := &notices{w: &b}
	n.say("one")
	n.show("10 %")
	n.show("20 %")
	n.say("two %d", 2)
	n.clear()
	n.show("30 %")
	n.clear()
	n.clear()
	want := "oncemq: one\n\r\x1b[K10 %\r\x1b[K20 %\r\x1b[Koncemq: two 2\n\r\x1b[K30 %\r\x1b[K"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
