package dedupe

import (
	"bytes"
	"encoding/hex"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"pgregory.net/rapid"
)

// TestForgottenLayout pins the bytes: they are in the log.
func TestForgottenLayout(t *testing.T) {
	list := []Forgotten{{ID: 3<<32 | 9, Epoch: 258, NextSequence: maxSequence}, {ID: 7}}
	const want = "00000002" + "0000000300000009" + "0102" + "7fffffff" + "0000000000000007" + "0000" + "00000000"
	data := AppendForgotten([]byte("x"), list)
	if got := hex.EncodeToString(data[1:]); data[0] != 'x' || got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, err := ParseForgotten(data[1:]); err != nil || !slices.Equal(got, list) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestForgottenRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := make([]Forgotten, rapid.SampledFrom([]int{1, 2, 3, ForgottenMax - 1, ForgottenMax}).Draw(t, "length"))
		for i := range min(len(list), 20) {
			list[i] = Forgotten{
				ID:           batch.ProducerID(rapid.Int64Range(0, math.MaxInt64).Draw(t, "id")),
				Epoch:        batch.Epoch(rapid.Int16Range(0, math.MaxInt16).Draw(t, "epoch")),
				NextSequence: batch.Sequence(rapid.Int32Range(0, math.MaxInt32).Draw(t, "next")),
			}
		}
		data := AppendForgotten(nil, list)
		got, err := ParseForgotten(data)
		if err != nil || !slices.Equal(got, list) {
			t.Fatalf("%+v, %v", got, err)
		}
		for _, cut := range []int{0, 3, 4, len(data) - 1} {
			if _, err := ParseForgotten(data[:cut]); err == nil {
				t.Fatalf("%d of %d bytes were read", cut, len(data))
			}
		}
		if _, err := ParseForgotten(append(data, 0)); err == nil {
			t.Fatal("a byte behind the list was not noticed")
		}
	})
}

func TestParseForgottenRefuses(t *testing.T) {
	const right = "00000001" + "0000000000000007" + "0000" + "00000001"
	for name, text := range map[string]string{
		"nothing":           "",
		"nobody":            "00000000",
		"negative id":       "00000001" + "8000000000000007" + "0000" + "00000001",
		"negative epoch":    "00000001" + "0000000000000007" + "8000" + "00000001",
		"negative sequence": "00000001" + "0000000000000007" + "0000" + "80000001",
		"one too few":       "00000002" + right[8:],
		"one too many":      "00000000" + right[8:],
		"the second one":    "00000002" + right[8:] + "ffffffffffffffff" + "0000" + "00000001",
		"count without end": "ffffffff" + right[8:],
	} {
		data, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if list, err := ParseForgotten(data); err == nil {
			t.Errorf("%s: read as %+v", name, list)
		} else {
			t.Log(err)
		}
	}
	data := AppendForgotten(nil, make([]Forgotten, ForgottenMax))
	data = append(data, make([]byte, forgottenBytes)...)
	data[3]++
	if _, err := ParseForgotten(data); err == nil {
		t.Error("one more than allowed was not noticed")
	}
}

// TestParseForgottenTakesLittleMemory gives a count that nothing stands behind.
func TestParseForgottenTakesLittleMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := ParseForgotten([]byte{0, 0, 0x10, 0, 0}); err == nil { // ForgottenMax
		t.Error("the count was believed")
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 16<<10 {
		t.Errorf("it cost %d bytes", n)
	}
}

// FuzzParseForgotten: whatever is accepted is written as the same bytes, and can be applied to any table.
func FuzzParseForgotten(f *testing.F) {
	f.Add(AppendForgotten(nil, []Forgotten{{ID: 3<<32 | 8, Epoch: 2, NextSequence: 1}, {ID: 7, Epoch: 258, NextSequence: 3}}))
	f.Add(AppendForgotten(nil, make([]Forgotten, ForgottenMax)))
	f.Add([]byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := ParseForgotten(data)
		if err != nil {
			return
		}
		if got := AppendForgotten(nil, list); !bytes.Equal(got, data) {
			t.Fatalf("read %x, wrote %x", data, got)
		}
		table := sample()
		table.Forget(list)
		if err := table.Check(); err != nil {
			t.Fatal(err)
		}
	})
}
