package meta

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// made creates a topic of n partitions, and deleted deletes it.
func made(t testing.TB, s *State, name string, id uint64, n int) {
	t.Helper()
	apply(t, s, &CreateTopic{Name: name, ID: number(id), Partitions: slices.Repeat([][]int32{{1}}, n)})
}

func deleted(t testing.TB, s *State, name string, id uint64, time int64) {
	t.Helper()
	apply(t, s, &DeleteTopic{Name: name, ID: number(id), Time: time})
}

// checkChunks demands that an index is in order and cut as it should be.
func checkChunks[T any](t *testing.T, x index[T], order func(a, b T) int) {
	t.Helper()
	for _, chunk := range x.chunks {
		if len(chunk) == 0 || len(chunk) > chunkMax {
			t.Fatalf("a chunk of %d", len(chunk))
		}
	}
	all := x.all()
	for i := 1; i < len(all); i++ {
		if order(all[i-1], all[i]) >= 0 {
			t.Fatalf("element %d is not in order", i)
		}
	}
}

// Of more deletions than are remembered the oldest ones leave their latest time, for every name that is not known. Names
// come again: what counts is the last time.
func TestDeletedNamesAreBounded(t *testing.T) {
	const seed, more = 3, 300
	rng := rand.New(rand.NewPCG(seed, seed))
	type forgotten struct {
		name string
		time int64
	}
	var all []forgotten
	s := newCluster(t)
	check := func(v *View) {
		t.Helper()
		before, last := int64(0), map[string]int64{}
		for i, d := range all {
			if i < len(all)-DeletedNamesMax {
				before = max(before, d.time)
			} else {
				last[d.name] = d.time
			}
		}
		for i := range 600 {
			name := fmt.Sprint("t", i)
			want, known := last[name]
			if !known {
				want = before
			}
			if at, ok := v.DeletedAt(name); at != want || ok != (known || before > 0) {
				t.Fatalf("seed %d, %d deletions: %s was deleted at %d (%t), want %d (%t)", seed, len(all), name, at, ok, want, known)
			}
		}
		if n := len(v.deleted.names.all()); n != len(last) {
			t.Fatalf("seed %d: %d names are remembered, want %d", seed, n, len(last))
		}
		checkChunks(t, v.deleted.names, func(a, b *deletion) int { return strings.Compare(a.name, b.name) })
	}
	for i := range DeletedNamesMax + more {
		d := forgotten{name: fmt.Sprint("u", i), time: rng.Int64N(1000) - 100}
		if rng.IntN(30) == 0 {
			d.name = fmt.Sprint("t", rng.IntN(500))
		}
		made(t, s, d.name, uint64(i+1), 1)
		deleted(t, s, d.name, uint64(i+1), d.time)
		all = append(all, d)
		if i%1000 == 999 || i > DeletedNamesMax-3 && (i < DeletedNamesMax+3 || i%50 == 0) {
			check(s.View())
		}
	}
	check(s.View())
	if n := len(s.deletions); n != DeletedNamesMax {
		t.Fatalf("%d deletions are remembered", n)
	}
	parsed, err := Parse(s.AppendTo(nil))
	must(t, err)
	check(parsed.View())
	if !bytes.Equal(parsed.AppendTo(nil), s.AppendTo(nil)) {
		t.Fatal("parsing changed the state")
	}
	for _, s := range []*State{s, parsed} {
		made(t, s, "again", more, 1) // the id of the newest deletion that is not remembered
		r, err := s.Apply(Encode(&CreateTopic{Name: "again-2", ID: number(more + 1), Partitions: [][]int32{{1}}}))
		must(t, err)
		if !errors.Is(r.Refused, ErrInvalidTopicID) {
			t.Fatalf("the id of the oldest deletion that is remembered: %v", r.Refused)
		}
	}
}

// Thousands of topics are deleted in any order, and some created again: views find what is there, groups that were
// deleted are told from all others, old views stay.
func TestManyDeletions(t *testing.T) {
	const seed, n = 5, 10 * chunkMax
	rng := rand.New(rand.NewPCG(seed, seed))
	s := newCluster(t)
	gone := map[uint64]bool{}
	for i := range n {
		made(t, s, fmt.Sprintf("t%05d", i*7919%n), uint64(i+1), 1+i%3)
	}
	full := s.View()
	check := func(v *View, want int) {
		t.Helper()
		if len(v.All()) != want || len(v.ids.all()) != want {
			t.Fatalf("seed %d: %d topics, want %d", seed, len(v.All()), want)
		}
		checkChunks(t, v.names, func(a, b *Topic) int { return compareNames(a.Name, b.Name) })
		checkChunks(t, v.ids, func(a, b *Topic) int { return bytes.Compare(a.ID[:], b.ID[:]) })
		checkChunks(t, v.deleted.groups, func(a, b groups) int { return int(a.last+1) - int(b.first) })
		for g := range s.nextGroup + 2 {
			if v.GroupDeleted(g) != gone[g] {
				t.Fatalf("seed %d: group %d deleted: %t", seed, g, v.GroupDeleted(g))
			}
		}
	}
	all := full.All()
	for k, i := range rng.Perm(n) {
		topic := all[i]
		r := apply(t, s, &DeleteTopic{Name: topic.Name, ID: topic.ID})
		if r.Deleted != topic {
			t.Fatalf("seed %d: deleted %v", seed, r.Deleted)
		}
		for _, p := range topic.Partitions {
			gone[p.Group] = true
		}
		if _, ok := s.View().ByName(topic.Name); ok {
			t.Fatalf("seed %d: topic %s is found", seed, topic.Name)
		}
		if k%400 == 0 {
			check(s.View(), n-k-1)
		}
	}
	check(s.View(), 0)
	if r := s.View().deleted.groups.all(); len(r) != 1 || s.partitions != 0 {
		t.Fatalf("deleted groups are %v, %d partitions left", r, s.partitions)
	}
	gone = map[uint64]bool{}
	check(full, n)
	if _, ok := full.ByName("t00001"); !ok {
		t.Fatal("a topic of an old view is gone")
	}
}

// Deleted groups of a topic whose partitions are not in order, between others.
func TestDeletedGroupsMerge(t *testing.T) {
	const seed = 6
	rng := rand.New(rand.NewPCG(seed, seed))
	for range 300 {
		var d deletions
		gone := map[uint64]bool{}
		ids := rng.Perm(30)
		for len(ids) > 0 {
			n := 1 + rng.IntN(min(4, len(ids)))
			var partitions []Partition
			for _, id := range ids[:n] {
				partitions = append(partitions, Partition{Group: uint64(id + 1)})
				gone[uint64(id+1)] = true
			}
			if rng.IntN(2) == 0 {
				slices.SortFunc(partitions, func(a, b Partition) int { return int(a.Group) - int(b.Group) })
			}
			d.addGroups(partitions)
			ids = ids[n:]
			v := View{deleted: d}
			for g := range uint64(33) {
				if v.GroupDeleted(g) != gone[g] {
					t.Fatalf("seed %d: %v, group %d", seed, d.groups.all(), g)
				}
			}
			checkChunks(t, d.groups, func(a, b groups) int { return int(a.last+1) - int(b.first) })
		}
	}
}

// Deletion makes room for as many partitions as are gone.
func TestDeletionGivesPartitionsBack(t *testing.T) {
	s := newCluster(t)
	made(t, s, "a", 1, 3)
	s.partitions = PartitionsMax
	deleted(t, s, "a", 1, 0)
	made(t, s, "b", 2, 2)
	made(t, s, "c", 3, 1)
	r, err := s.Apply(Encode(&CreateTopic{Name: "more", ID: number(4), Partitions: [][]int32{{1}}}))
	must(t, err)
	if !errors.Is(r.Refused, ErrInvalidPartitions) {
		t.Fatalf("one partition too many: %v", r.Refused)
	}
}

// A topic of many partitions is deleted at the price of one.
func TestDeletingManyPartitionsIsCheap(t *testing.T) {
	s := newCluster(t)
	made(t, s, "a", 1, PartitionsPerTopicMax)
	command, before := Encode(&DeleteTopic{Name: "a", ID: number(1)}), *s
	if n := testing.AllocsPerRun(3, func() {
		*s = before
		if r, err := s.Apply(command); err != nil || r.Refused != nil {
			t.Fatal(err, r.Refused)
		}
	}); n > 100 {
		t.Errorf("%v allocations", n)
	}
}

// A chunk is full before it is divided, and goes with its last element.
func TestIndexChunks(t *testing.T) {
	var x index[int]
	insert := func(n int) {
		p, _ := x.find(func(m int) int { return m - n })
		x = x.inserted(p, n)
	}
	for n := range chunkMax {
		insert(n)
	}
	if len(x.chunks) != 1 {
		t.Fatalf("%d elements are in %d chunks", chunkMax, len(x.chunks))
	}
	insert(chunkMax)
	if len(x.chunks) != 2 {
		t.Fatalf("%d elements are in %d chunks", chunkMax+1, len(x.chunks))
	}
	for n := range chunkMax + 1 {
		p, found := x.find(func(m int) int { return m - n })
		if !found {
			t.Fatalf("%d is not found", n)
		}
		if x = x.removed(p); len(x.all()) != chunkMax-n {
			t.Fatalf("%d elements left behind %d", len(x.all()), n)
		}
	}
	if len(x.chunks) != 0 {
		t.Fatalf("%d chunks of nothing", len(x.chunks))
	}
}

// A base snapshot whose deletions no commands could have made is refused.
func TestParseRefusesDeletions(t *testing.T) {
	s := newCluster(t)
	for id, name := range []string{"a", "b", "c", "d", "e"} {
		made(t, s, name, uint64(id+1), 2)
	}
	deleted(t, s, "a", 1, 100)
	deleted(t, s, "c", 3, 200)
	good := string(s.AppendTo(nil))
	if _, err := Parse([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{
		"unknown field":          {`"time":100`, `"when":100`},
		"no name":                {`{"name":"a",`, `{"name":"",`},
		"bad name":               {`{"name":"a",`, `{"name":"a/",`},
		"id 0":                   {`"name":"a","id":"00000000000000000000000000000001"`, `"name":"a","id":"00000000000000000000000000000000"`},
		"id of another deletion": {`"name":"a","id":"00000000000000000000000000000001"`, `"name":"a","id":"00000000000000000000000000000003"`},
		"id of a topic":          {`"name":"a","id":"00000000000000000000000000000001"`, `"name":"a","id":"00000000000000000000000000000002"`},
		"negative time":          {`"deleted_before":0`, `"deleted_before":-1`},
		"group 0":                {`{"first":1,"last":2}`, `{"first":0,"last":2}`},
		"group of a topic":       {`{"first":1,"last":2}`, `{"first":1,"last":3}`},
		"group of nobody":        {`{"first":1,"last":2}`, `{"first":1,"last":1}`},
		"first group of nobody":  {`{"first":1,"last":2}`, `{"first":2,"last":2}`},
		"groups not given out":   {`{"first":5,"last":6}`, `{"first":5,"last":6},{"first":11,"last":11}`},
		"groups without end":     {`{"first":5,"last":6}`, `{"first":5,"last":6},{"first":11,"last":18446744073709551615}`},
		"groups from the end":    {`{"first":5,"last":6}`, `{"first":5,"last":4},{"first":5,"last":6}`},
		"neighbours":             {`{"first":1,"last":2}`, `{"first":1,"last":1},{"first":2,"last":2}`},
		"the same twice":         {`{"first":1,"last":2}`, `{"first":1,"last":2},{"first":1,"last":2}`},
		"not ascending":          {`{"first":1,"last":2},{"first":5,"last":6}`, `{"first":5,"last":6},{"first":1,"last":2}`},
		"next group too high":    {`"next_group":11`, `"next_group":12`},
		"next group too low":     {`"next_group":11`, `"next_group":10`},
	} {
		text := strings.Replace(good, change[0], change[1], 1)
		if text == good {
			t.Fatalf("%s: nothing to change in %s", name, good)
		}
		_, err := Parse([]byte(text))
		if err == nil || errors.Is(err, ErrNewerVersion) != (name == "unknown field") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// More deletions than are ever remembered, and exactly as many.
func TestParseBoundsDeletions(t *testing.T) {
	text := string(newCluster(t).AppendTo(nil))
	list := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,{"name":"a","id":"%032x","time":%d}`, i+1, i)
		}
		return strings.Replace(text, `"deleted":[]`, `"deleted":[`+b.String()[1:]+`]`, 1)
	}
	s, err := Parse([]byte(list(DeletedNamesMax)))
	must(t, err)
	if at, ok := s.View().DeletedAt("a"); at != DeletedNamesMax-1 || !ok {
		t.Errorf("a was deleted at %d (%t)", at, ok)
	}
	if _, err := Parse([]byte(list(DeletedNamesMax + 1))); err == nil {
		t.Error("one deletion too many is not refused")
	}
}

// The extremes of what a clock can say.
func TestDeletionTimes(t *testing.T) {
	s := newCluster(t)
	for i, time := range []int64{math.MinInt64, -1, 0, 1, math.MaxInt64} {
		made(t, s, "a", uint64(i+1), 1)
		deleted(t, s, "a", uint64(i+1), time)
		parsed, err := Parse(s.AppendTo(nil))
		must(t, err)
		if at, ok := parsed.View().DeletedAt("a"); at != time || !ok {
			t.Errorf("deleted at %d: %d (%t)", time, at, ok)
		}
		if at, ok := s.View().DeletedAt("b"); at != 0 || ok {
			t.Errorf("b was deleted at %d (%t)", at, ok)
		}
	}
}

func BenchmarkDeleteBeside10000Topics(b *testing.B) {
	s := manyTopics(b, 10_000)
	topic, _ := s.View().ByName("topic-0001234")
	command := Encode(&DeleteTopic{Name: topic.Name, ID: topic.ID})
	before := *s
	b.ReportAllocs()
	for b.Loop() {
		*s = before
		if r, err := s.Apply(command); err != nil || r.Refused != nil {
			b.Fatal(err, r.Refused)
		}
	}
}

// BenchmarkCreateAgain creates and deletes a topic where as many deletions are remembered as ever.
func BenchmarkCreateAgain(b *testing.B) {
	s := newCluster(b)
	id := uint64(0)
	cycle := func() {
		id++
		name := fmt.Sprintf("topic-%d", id)
		made(b, s, name, id, 1)
		deleted(b, s, name, id, 1)
	}
	for range DeletedNamesMax {
		cycle()
	}
	b.ReportAllocs()
	for b.Loop() {
		cycle()
	}
}
