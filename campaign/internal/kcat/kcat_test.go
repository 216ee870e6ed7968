package kcat

import (
	"hash/crc32"
	"slices"
	"testing"
)

func TestKeys(t *testing.T) {
	for p, key := range Keys(7) {
		if crc32.ChecksumIEEE([]byte(key))%7 != uint32(p) {
			t.Errorf("key %q is not for partition %d", key, p)
		}
	}
}

func TestDelivered(t *testing.T) {
	if p, o, err := Delivered("% Message delivered to partition 3 (offset 41)"); p != 3 || o != 41 || err != nil {
		t.Errorf("partition %d, offset %d, %v", p, o, err)
	}
	if _, _, err := Delivered("% Message delivered to partition three"); err == nil {
		t.Error("a line without a partition was read")
	}
}

func TestArgs(t *testing.T) {
	args := Args(Options{Brokers: "a:1,b:2", Topic: "t", AnswerWithin: 2_000_000_000})
	for _, want := range []string{"a:1,b:2", "t", "enable.idempotence=true", "request.timeout.ms=2000"} {
		if !slices.Contains(args, want) {
			t.Errorf("%q is not among %v", want, args)
		}
	}
}
