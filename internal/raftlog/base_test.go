package raftlog

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

func testBases() []Base {
	return []Base{
		{
			Cluster: [16]byte{0xc1, 15: 0xc2}, Group: 3, Index: 1, Term: 1,
			Members: Members{Voters: []uint64{1<<32 | 1}},
			Body:    []byte("body"),
		},
		{
			Group: 1 << 40, Index: 1 << 50, Term: 77, LogStart: 5, NextOffset: 1 << 60,
			Members: Members{
				Voters: []uint64{1, 2, 3}, Learners: []uint64{9}, Outgoing: []uint64{4, 5}, LearnersNext: []uint64{6},
				AutoLeave: true,
			},
			Body: []byte{},
		},
		{Index: 1, Term: 1, Members: Members{Voters: []uint64{7}}, Body: []byte("{}")},
	}
}

// The bytes are a promise to the next version: this test changes only together with the format number.
func TestBaseBytes(t *testing.T) {
	want := "4f4d514241534531" + "00000050" + "0c2b3b01" + "0001" + "01" + "00" +
		"c10000000000000000000000000000c2" + "0000000000000003" + "0000000000000001" + "00000001" +
		"0001" + "0000000100000001" + "0000" + "0000" + "0000" +
		"0000000000000000" + "0000000000000000" + "626f6479"
	if got := hex.EncodeToString(testBases()[0].AppendTo(nil)); got != want {
		t.Fatalf("got\n%s, want\n%s", got, want)
	}
}

func TestStateRecordBytes(t *testing.T) {
	b, _ := appendRecord(nil, link{sequence: 5, durable: 4, previous: 0x01020304},
		stateRecord{recordType: recordVote, group: 9, term: 3, vote: 1<<32 | 1})
	want := "4f4d5331" + "0000001a" + "0000000000000005" + "0000000000000004" + "01020304" + "384cf310" +
		"04" + "01" + "0000000000000009" + "0000000000000003" + "0000000100000001" + "000000000000"
	if got := hex.EncodeToString(b); got != want {
		t.Fatalf("got\n%s, want\n%s", got, want)
	}
}

func TestBaseComesBack(t *testing.T) {
	mem := newStateFS(t)
	var want []seglog.Index
	for _, base := range testBases() {
		prefix := []byte("before")
		b := base.AppendTo(slices.Clone(prefix))
		if !bytes.HasPrefix(b, prefix) {
			t.Fatal("AppendTo does not append")
		}
		got, err := DecodeBase("x", b[len(prefix):])
		must(t, err)
		if !reflect.DeepEqual(got, base) {
			t.Fatalf("decoded %+v, want %+v", got, base)
		}
		must(t, WriteBase(mem, stateDir, base))
		got, err = ReadBase(mem, basePath(stateDir, base.Index))
		must(t, err)
		if !reflect.DeepEqual(got, base) {
			t.Fatalf("read %+v, want %+v", got, base)
		}
		if !slices.Contains(want, base.Index) {
			want = append(want, base.Index)
		}
	}
	for _, name := range []string{"00000000000000000002.log", "2.base", "00000000000000000001.base", "00000000000000000009.base.tmp"} {
		f, err := mem.Create(stateDir + "/" + name)
		must(t, err)
		must(t, f.Close())
	}
	indexes, err := ListBases(mem, stateDir)
	must(t, err)
	if !slices.Equal(indexes, want) {
		t.Fatalf("listed %v, want %v", indexes, want)
	}
	if got, want := basePath("/g", 1), "/g/00000000000000000002.base"; got != want {
		t.Fatalf("path %s, want %s", got, want)
	}
}

func TestBaseConfState(t *testing.T) {
	m := testBases()[1].Members
	c := m.confState()
	got := Members{c.GetVoters(), c.GetLearners(), c.GetVotersOutgoing(), c.GetLearnersNext(), c.GetAutoLeave()}
	if !reflect.DeepEqual(got, m) {
		t.Fatalf("got %+v, want %+v", got, m)
	}
}

// Every byte counts, and so does the length.
func TestBaseEveryByteFlipped(t *testing.T) {
	for _, base := range testBases() {
		b := base.AppendTo(nil)
		for i := range b {
			for _, mask := range []byte{0x01, 0x80, 0xff} {
				flipped := slices.Clone(b)
				flipped[i] ^= mask
				_, err := DecodeBase("g/1.base", flipped)
				if damage, ok := errors.AsType[*BaseDamageError](err); !ok || damage.Path != "g/1.base" {
					t.Fatalf("byte %d ^ %#x: %v", i, mask, err)
				}
			}
		}
		for n := range b {
			if _, err := DecodeBase("x", b[:n]); err == nil {
				t.Fatalf("the first %d bytes are taken for a base", n)
			}
		}
		if _, err := DecodeBase("x", append(slices.Clone(b), 0)); err == nil {
			t.Fatal("a byte too much is not found")
		}
	}
}

// Values that nobody writes are refused although their CRC is right, and it is a bug to write them.
func TestBaseThatNobodyWrites(t *testing.T) {
	good := testBases()[1]
	for name, change := range map[string]func(*Base){
		"index 0":          func(b *Base) { b.Index = 0 },
		"last index":       func(b *Base) { b.Index = 1<<64 - 1 },
		"no voter":         func(b *Base) { b.Members.Voters = nil },
		"replica id 0":     func(b *Base) { b.Members.Learners = []uint64{0} },
		"not ascending":    func(b *Base) { b.Members.Outgoing = []uint64{2, 2} },
		"below start":      func(b *Base) { b.NextOffset = b.LogStart - 1 },
		"negative offsets": func(b *Base) { b.LogStart, b.NextOffset = -2, -1 },
	} {
		base := good
		change(&base)
		bug(t, name, func() { base.AppendTo(nil) })
	}
	for name, change := range map[string]func([]byte){
		"kind of raft0": func(b []byte) { b[18] = 2 },
		"auto_leave 2":  func(b []byte) { b[19] = 2 },
		"index 0":       func(b []byte) { copy(b[44:], make([]byte, 8)) },
		"long list":     func(b []byte) { b[56] = 0xff },
		"first list":    func(b []byte) { b[57] = 8 }, // reaches into the others, and leaves too little
		"no voter":      func(b []byte) { copy(b[56:], make([]byte, 26)) },
	} {
		b := good.AppendTo(nil)
		change(b)
		if _, err := DecodeBase("x", sealBase(b)); err == nil {
			t.Errorf("%s is not found", name)
		} else if _, ok := errors.AsType[*BaseDamageError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := good.AppendTo(nil)
	b[17] = 2
	_, err := DecodeBase("x", sealBase(b))
	if _, ok := errors.AsType[*NewerFormatError](err); !ok {
		t.Errorf("format 2: %v", err)
	}
}

// sealBase makes length and CRC right, in place.
func sealBase(b []byte) []byte {
	if len(b) >= baseHeaderSize {
		copy(b, baseMagic)
		n := uint32(len(b) - 12)
		copy(b[8:], []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		sum := baseCRC(b)
		copy(b[12:], []byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
	}
	return b
}

func TestReadBaseUnderAnotherName(t *testing.T) {
	mem := newStateFS(t)
	must(t, WriteBase(mem, stateDir, testBases()[0]))
	other := basePath(stateDir, 8)
	must(t, mem.Rename(basePath(stateDir, 1), other))
	_, err := ReadBase(mem, other)
	if damage, ok := errors.AsType[*BaseDamageError](err); !ok || !strings.Contains(damage.Detail, "index 1") {
		t.Fatalf("error %v", err)
	}
}

// The machine goes down before each operation of writing a base where there is an older one of the same index: one of
// the two is there whole. When WriteBase has returned, it is the new one.
func TestBaseEveryCrash(t *testing.T) {
	older := testBases()[0]
	newer := older
	newer.Body = bytes.Repeat([]byte("new"), 5000)
	mem := newStateFS(t)
	must(t, WriteBase(mem, stateDir, older))
	rng := rand.New(rand.NewPCG(1, 1))
	crashes := 0
	judge := func(errfs.Op) {
		for _, percent := range []int{0, 30, 70, 100} {
			crashes++
			clone := mem.CrashClone(percent, rng)
			got, err := ReadBase(clone, basePath(stateDir, 1))
			must(t, err)
			if !reflect.DeepEqual(got, older) && !reflect.DeepEqual(got, newer) {
				t.Fatal("neither the old base nor the new one")
			}
			must(t, WriteBase(clone, stateDir, newer)) // in spite of left-overs
		}
	}
	must(t, WriteBase(errfs.Wrap(mem, hook(judge)), stateDir, newer))
	if crashes < 20 {
		t.Fatalf("only %d crashes", crashes)
	}
	got, err := ReadBase(mem.CrashClone(0, nil), basePath(stateDir, 1))
	must(t, err)
	if !reflect.DeepEqual(got, newer) {
		t.Fatal("the base is not durable when WriteBase returns")
	}
}

func TestBaseEveryError(t *testing.T) {
	base := testBases()[0]
	for _, failure := range []errfs.Injector{errfs.EIO, errfs.ShortWrite(30, syscall.ENOSPC)} {
		for n := 0; ; n++ {
			mem := newStateFS(t)
			injector := errfs.OnIndex(n, failure)
			faulty := errfs.Wrap(mem, injector)
			err := WriteBase(faulty, stateDir, base)
			if err == nil {
				_, err = ReadBase(faulty, basePath(stateDir, 1))
			}
			if err == nil {
				_, err = ListBases(faulty, stateDir)
			}
			if !injector.Reached() {
				must(t, err)
				break
			}
			if err == nil || !strings.Contains(err.Error(), stateDir) {
				t.Fatalf("%s: error %v", injector, err)
			}
			must(t, WriteBase(mem, stateDir, base))
			_, err = ReadBase(mem, basePath(stateDir, 1))
			must(t, err)
		}
	}
}

func FuzzDecodeBase(f *testing.F) {
	for _, base := range testBases() {
		f.Add(base.AppendTo(nil))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if base, err := DecodeBase("x", b); err == nil && !bytes.Equal(base.AppendTo(nil), b) {
			t.Fatal("decoding and encoding changed the bytes")
		}
		b = sealBase(slices.Clone(b))
		if base, err := DecodeBase("x", b); err == nil && !bytes.Equal(base.AppendTo(nil), b) {
			t.Fatal("decoding and encoding changed the sealed bytes")
		}
	})
}

// A lying length must not make ReadBase allocate.
func TestReadBaseIsBounded(t *testing.T) {
	mem := memfs.New()
	must(t, mem.MkdirAll(stateDir))
	must(t, WriteBase(mem, stateDir, testBases()[0]))
	path := basePath(stateDir, 1)
	f, err := mem.Open(path)
	must(t, err)
	must(t, f.WriteVAt([][]byte{{0xff, 0xff, 0xff, 0xff}}, 8))
	must(t, f.Close())
	_, err = ReadBase(mem, path)
	if damage, ok := errors.AsType[*BaseDamageError](err); !ok || !strings.Contains(fmt.Sprint(damage), path) {
		t.Fatalf("error %v", err)
	}
}
