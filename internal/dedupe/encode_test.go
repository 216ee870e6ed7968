package dedupe

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
)

// sample is a table with a clock, a floor, a mark and two producers.
func sample() *Table {
	t := New(RulesVersion, 2)
	t.SetClock(1000)
	t.Record(batch.Stamp{ID: 3<<32 | 9, Epoch: 1, First: 0, Last: 4}, 10)
	t.Forget([]Forgotten{{ID: 3<<32 | 9, Epoch: 1, NextSequence: 5}})
	t.Record(batch.Stamp{ID: 7, Epoch: 258, First: maxSequence, Last: 1}, 15)
	t.SetClock(2000)
	t.Record(batch.Stamp{ID: 3<<32 | 8, Epoch: 2, First: 0, Last: 0}, 20)
	t.Record(batch.Stamp{ID: 7, Epoch: 258, First: 2, Last: 2}, 21)
	return t
}

// TestLayout pins the bytes: they are on disk and go from node to node.
func TestLayout(t *testing.T) {
	want := strings.Join([]string{
		"0001", "00000000000007d0", "00000002", // rules, clock, floor
		"00000001", "00000003", "00000009", // marks
		"00000002",                                                       // producers
		"0000000000000007", "0102", "00000003", "00000000000007d0", "02", // id, epoch, next sequence, clock, batches
		"7fffffff", "00000001", "000000000000000f",
		"00000002", "00000002", "0000000000000015",
		"0000000300000008", "0002", "00000001", "00000000000007d0", "01",
		"00000000", "00000000", "0000000000000014",
	}, "")
	if got := hex.EncodeToString(sample().AppendTo(nil)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := sample().AppendTo([]byte("before")); !bytes.HasPrefix(got, []byte("before\x00\x01")) {
		t.Errorf("%q does not begin with what was there", got[:10])
	}
}

// Where the fields of the sample lie that the next test changes.
const (
	atSampleMark     = 18
	atSampleCount    = 26
	atSampleProducer = 30
	atSampleBatch    = atSampleProducer + producerBytes
	atSampleSecond   = atSampleBatch + 2*batchBytes
)

// TestParseRefuses changes one field of a right table at a time: every change must be noticed.
func TestParseRefuses(t *testing.T) {
	right := sample().AppendTo(nil)
	for _, c := range []struct {
		name string
		at   int
		hex  string
	}{
		{"clock below -1", 2, "fffffffffffffffe"},
		{"clock behind that of a producer", 2, "00000000000007cf"},
		{"more marks than are there", 14, "0000ffff"},
		{"more marks than are kept", 14, "00000401"},
		{"mark below the floor", atSampleMark, "00000001"},
		{"mark of no start number", atSampleMark, "80000000"},
		{"more producers than are there", atSampleCount, "00000003"},
		{"producers without end", atSampleCount, "ffffffff"},
		{"fewer producers than are there", atSampleCount, "00000001"},
		{"negative id", atSampleProducer, "ffffffffffffffff"},
		{"ids not ascending", atSampleProducer, "0000000300000009"},
		{"the same id twice", atSampleProducer, "0000000300000008"},
		{"negative epoch", atSampleProducer + 8, "ffff"},
		{"next sequence too high", atSampleProducer + 10, "00000004"},
		{"next sequence negative", atSampleProducer + 10, "80000003"},
		{"producer's clock ahead", atSampleProducer + 14, "00000000000007d1"},
		{"producer's clock below -1", atSampleProducer + 14, "fffffffffffffffe"},
		{"no batch", atSampleProducer + 22, "00"},
		{"six batches", atSampleProducer + 22, "06"},
		{"another number of batches", atSampleProducer + 22, "03"},
		{"negative first sequence", atSampleBatch, "ffffffff"},
		{"negative last sequence", atSampleBatch + 4, "80000001"},
		{"a gap in the window", atSampleBatch + 4, "00000000"},
		{"an overlap in the window", atSampleBatch + batchBytes, "00000001"},
		{"all sequences in one batch", atSampleBatch, "00000002"},
		{"negative offset", atSampleBatch + 8, "ffffffffffffffff"},
		{"offsets that overlap", atSampleBatch + batchBytes + 8, "0000000000000011"},
		{"offsets not ascending", atSampleBatch + batchBytes + 8, "000000000000000e"},
		{"last offset beyond an int64", atSampleBatch + batchBytes + 8, "7fffffffffffffff"},
		{"unmarked producer that does not begin at 0", atSampleSecond, "0000000400000001"},
	} {
		t.Run(c.name, func(t *testing.T) {
			field, err := hex.DecodeString(c.hex)
			if err != nil {
				t.Fatal(err)
			}
			data := bytes.Clone(right)
			copy(data[c.at:], field)
			if c.name == "unmarked producer that does not begin at 0" {
				copy(data[atSampleSecond+10:], []byte{0, 0, 0, 2})
				copy(data[atSampleSecond+producerBytes:], []byte{0, 0, 0, 1, 0, 0, 0, 1})
			}
			if table, err := Parse(data); err == nil {
				t.Errorf("read as\n%s", show(table))
			} else {
				t.Log(err)
			}
		})
	}
}

func TestParseRefusesEveryOtherLength(t *testing.T) {
	right := sample().AppendTo(nil)
	for n := range right {
		if table, err := Parse(right[:n]); err == nil {
			t.Errorf("the first %d bytes were read as\n%s", n, show(table))
		}
	}
	if _, err := Parse(append(right, 0)); err == nil {
		t.Error("a byte behind the table was not noticed")
	}
}

// TestParseSaysWhatIsWrong: the error names the values that do not agree, also where the window is full.
func TestParseSaysWhatIsWrong(t *testing.T) {
	table := New(RulesVersion, 0)
	for i := range batch.Sequence(windowMax) {
		table.Record(batch.Stamp{ID: 7, First: 10 * i, Last: 10*i + 9}, batch.Offset(10*i))
	}
	data := table.AppendTo(nil)
	atProducer := len(data) - producerBytes - windowMax*batchBytes
	for _, c := range []struct {
		at   int
		want string
	}{
		{atProducer + 13, "producer 7: next sequence 51 after 49"},
		{len(data) - batchBytes + 3, "producer 7: batch 4 begins at sequence 41 after 39"},
		{len(data) - 4*batchBytes + 3, "producer 7: batch 1 begins at sequence 11 after 9"},
	} {
		wrong := bytes.Clone(data)
		wrong[c.at]++
		if _, err := Parse(wrong); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

func TestParseRefusesClockOfEmptyTable(t *testing.T) {
	data := New(RulesVersion, 0).AppendTo(nil)
	data[9]-- // -1 becomes -2
	if _, err := Parse(data); err == nil {
		t.Error("clock -2 was not noticed")
	}
}

func TestParseNewerRules(t *testing.T) {
	data := sample().AppendTo(nil)
	data[1]++
	if _, err := Parse(data); !errors.Is(err, ErrUnknownRules) {
		t.Errorf("got %v", err)
	}
}

// TestParseTakesLittleMemory gives counts that nothing stands behind.
func TestParseTakesLittleMemory(t *testing.T) {
	data := New(RulesVersion, 0).AppendTo(nil)
	data = append(data, make([]byte, producerBytes+batchBytes)...)
	for _, count := range []byte{0x00, 0x7f, 0xff} {
		for _, at := range []int{14, 18} { // the counts of marks and of producers
			lying := bytes.Clone(data)
			for i := range 4 {
				lying[at+i] = count | 1
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, err := Parse(lying); err == nil {
				t.Errorf("count %x at byte %d was believed", lying[at:at+4], at)
			}
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 {
				t.Errorf("count %x at byte %d cost %d bytes", lying[at:at+4], at, n)
			}
		}
	}
}

// FuzzParse: whatever Parse accepts is a table in order, and is written as the same bytes.
func FuzzParse(f *testing.F) {
	f.Add(New(RulesVersion, 0).AppendTo(nil))
	f.Add(New(RulesVersion, math.MaxUint32).AppendTo(nil))
	f.Add(sample().AppendTo(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := Parse(data)
		if err != nil {
			return
		}
		if err := table.Check(); err != nil {
			t.Fatal(err)
		}
		if got := table.AppendTo(nil); !bytes.Equal(got, data) {
			t.Fatalf("read %x, wrote %x", data, got)
		}
	})
}
