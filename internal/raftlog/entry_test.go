package raftlog

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/seglog"
)

// What another replica may send and what not, behind an entry of term 3.
func TestCheckEntry(t *testing.T) {
	changed := func(at int, b byte) []byte {
		data := storedBatch(5, 3, "payload")
		data[at] = b
		return data
	}
	conf := entry(2, 3, []byte{1})
	conf.Type = pb.EntryConfChangeV2.Enum()
	unknown := entry(2, 3, nil)
	unknown.Type = pb.EntryType(7).Enum()
	for name, test := range map[string]struct {
		e     *pb.Entry
		right bool
	}{
		"empty":                    {entry(2, 3, nil), true},
		"a new term":               {entry(2, 9, nil), true},
		"a batch":                  {entry(2, 3, storedBatch(5, 3, "payload")), true},
		"a command":                {entry(2, 3, EncodeCommand(seglog.KindClock, make([]byte, 8))), true},
		"a membership":             {conf, true},
		"no entry":                 {nil, false},
		"an older term":            {entry(2, 2, nil), false},
		"a term without an end":    {entry(2, 1<<31, nil), false},
		"an unknown type":          {unknown, false},
		"a batch of a new term":    {entry(2, 4, storedBatch(5, 4, "payload")), false},
		"a batch of another term":  {entry(2, 3, storedBatch(5, 4, "payload")), false},
		"a command of a new term":  {entry(2, 4, EncodeCommand(seglog.KindClock, nil)), false},
		"an unknown command":       {entry(2, 3, EncodeCommand(99, nil)), false},
		"an empty one as command":  {entry(2, 3, EncodeCommand(seglog.KindEmpty, []byte{1})), false},
		"a header as command":      {entry(2, 3, EncodeCommand(127, make([]byte, 56))), false},
		"version 0":                {entry(2, 3, []byte{0xff, byte(seglog.KindClock), 0, 0}), false},
		"a beginning of a command": {entry(2, 3, []byte{0xff, 17, 0}), false},
		"a beginning of a batch":   {entry(2, 3, storedBatch(5, 3, "payload")[:60]), false},
		"a negative offset":        {entry(2, 3, changed(0, 0x80)), false},
		"another length":           {entry(2, 3, changed(11, 1)), false},
		"another magic":            {entry(2, 3, changed(16, 1)), false},
	} {
		if err := CheckEntry(test.e, 3); (err == nil) != test.right {
			t.Errorf("%s: %v", name, err)
		}
	}
	if CheckEntry(entry(2, 3, nil), 1<<40) == nil {
		t.Error("a previous term without an end")
	}
}

// Whatever it lets through can be written, but for the offset.
func TestCheckEntryAgreesWithTheLog(t *testing.T) {
	mem := newStateFS(t)
	l := newLog(t, mem, createState(t, mem), 1)
	rng := rand.New(rand.NewPCG(3, 3))
	right := 0
	for range 20000 {
		data := storedBatch(0, 1, "payload")
		if rng.IntN(2) == 0 {
			data = EncodeCommand(seglog.Kind(rng.IntN(40)), make([]byte, rng.IntN(3)))
		}
		for range rng.IntN(3) {
			data[rng.IntN(len(data))] = byte(rng.IntN(256))
		}
		e := entry(2, uint64(1+rng.IntN(2)), data)
		if CheckEntry(e, 1) != nil {
			continue
		}
		right++
		if logged := toLog(e); logged.Kind != seglog.KindBatch || binary.BigEndian.Uint64(data) == 0 {
			must(t, l.segments.Append([]seglog.Entry{logged}))
			must(t, l.segments.TruncateSuffix(2))
		}
	}
	if right < 1000 {
		t.Fatalf("only %d", right)
	}
}
