package meta

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/oncemq/oncemq/internal/batch"
)

var seeds = flag.Int("meta.seeds", 5, "random command sequences of TestDeterminism")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// number makes an ID of a small number.
func number(n uint64) (id ID) {
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}

// TestStories runs the stories in testdata.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := New()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			story := story{t, d}
			switch d.Cmd {
			case "show":
				return show(s.View())
			case "deleted":
				return story.deleted(s.View())
			case "reload":
				text := s.AppendTo(nil)
				parsed, err := Parse(text)
				must(t, err)
				s = parsed
				return string(text) + "\n"
			case "raw":
				kind := binary.BigEndian.AppendUint16(nil, uint16(story.number("type", 0)))
				return outcome(s.Apply(append(kind, d.Input...)))
			}
			return outcome(s.Apply(Encode(story.command())))
		})
	})
}

// story reads the arguments of one line of a story.
type story struct {
	t *testing.T
	d *datadriven.TestData
}

func (s story) text(key, otherwise string) string {
	for _, arg := range s.d.CmdArgs {
		if arg.Key == key {
			return strings.Trim(strings.Join(arg.Vals, ","), "'")
		}
	}
	return otherwise
}

func (s story) number(key string, otherwise uint64) uint64 {
	text := s.text(key, "")
	if text == "" {
		return otherwise
	}
	base := 10
	if key == "id" || key == "nonce" {
		base = 16
	}
	n, err := strconv.ParseUint(text, base, 64)
	must(s.t, err)
	return n
}

func (s story) command() Command {
	switch s.d.Cmd {
	case "cluster":
		return &Cluster{ID: number(s.number("id", 0)), FirstStartNumber: uint32(s.number("first", 0))}
	case "start":
		return &Start{
			Node: int32(s.number("node", 0)), Nonce: number(s.number("nonce", 0)),
			Host: s.text("host", "h"), Port: int32(s.number("port", 9092)), Rack: s.text("rack", ""),
		}
	case "create":
		return &CreateTopic{
			Name: s.text("name", ""), ID: number(s.number("id", 0)), Partitions: s.partitions(),
			Rules: uint16(s.number("rules", 1)), Floor: uint32(s.number("floor", 0)),
			AfterDeletion: s.number("after", 0) > 0, DeletedSince: int64(s.number("since", 0)),
			MinInSync: int32(s.number("insync", 0)),
		}
	case "delete":
		return &DeleteTopic{Name: s.text("name", ""), ID: number(s.number("id", 0)), Time: int64(s.number("time", 0))}
	}
	s.d.Fatalf(s.t, "unknown command")
	return nil
}

// deleted shows when the topics of the names were deleted, and which of the first groups are.
func (s story) deleted(v *View) string {
	return showDeleted(v, s.number("groups", 0), strings.Split(s.text("names", ""), ",")...)
}

func showDeleted(v *View, groups uint64, names ...string) string {
	text := ""
	for _, name := range names {
		at, ok := v.DeletedAt(name)
		text += fmt.Sprintf("%s: %d %t\n", name, at, ok)
	}
	text += "groups:"
	for g := range groups {
		if v.GroupDeleted(g) {
			text += fmt.Sprintf(" %d", g)
		}
	}
	return text + "\n"
}

// partitions reads "1,2/2,1": two partitions of two replicas; "-" is one without any.
func (s story) partitions() [][]int32 {
	text := s.text("replicas", "")
	if text == "" {
		return nil
	}
	var list [][]int32
	for part := range strings.SplitSeq(text, "/") {
		var replicas []int32
		for id := range strings.SplitSeq(strings.Trim(part, "-"), ",") {
			if n, err := strconv.Atoi(id); err == nil {
				replicas = append(replicas, int32(n))
			}
		}
		list = append(list, replicas)
	}
	return list
}

func outcome(r Result, err error) string {
	switch {
	case err != nil && !errors.Is(err, ErrNewerVersion):
		return fmt.Sprintf("unexpected error: %v\n", err)
	case err != nil:
		return fmt.Sprintf("error: %v\n", err)
	case r.Refused != nil:
		return fmt.Sprintf("refused: %v\n", r.Refused)
	case r.Topic != nil:
		return "topic " + showTopic(r.Topic)
	case r.Deleted != nil:
		return "deleted " + showTopic(r.Deleted)
	case r.StartNumber != 0:
		return fmt.Sprintf("start number %d\n", r.StartNumber)
	}
	return "ok\n"
}

func showTopic(t *Topic) string {
	text := fmt.Sprintf("%s %x rules=%d floor=%d", t.Name, t.ID, t.Rules, t.Floor)
	if t.MinInSync != 0 {
		text += fmt.Sprintf(" insync=%d", t.MinInSync)
	}
	text += ":"
	for _, p := range t.Partitions {
		text += fmt.Sprintf(" %d%v", p.Group, p.Replicas)
	}
	return text + "\n"
}

func show(v *View) string {
	text := "no cluster\n"
	if id, ok := v.Cluster(); ok {
		text = fmt.Sprintf("cluster %x\n", id)
	}
	text += "brokers:"
	for _, b := range v.Brokers() {
		text += fmt.Sprintf(" %d=%s:%d", b.ID, b.Host, b.Port)
		if b.Rack != "" {
			text += "@" + b.Rack
		}
	}
	text += "\ntopics:"
	for _, t := range v.All() {
		text += " " + t.Name
	}
	return text + "\n"
}

func TestTopicNames(t *testing.T) {
	for _, good := range []string{"a", "A.b_c-9", "azAZ09", "...", "-", "_", strings.Repeat("x", 249)} {
		if err := CheckTopicName(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", ".", "..", strings.Repeat("x", 250), "a b", "a/b", "ä", "a\x00", "a\xff", "a:b", "a\n"} {
		if err := CheckTopicName(bad); !errors.Is(err, ErrInvalidName) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestHosts(t *testing.T) {
	for _, good := range []string{"h", "!~", "::1", strings.Repeat("x", 255)} {
		if err := CheckHost(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", " ", "a b", "a\x7f", "\u00e4", strings.Repeat("x", 256)} {
		if err := CheckHost(bad); err == nil {
			t.Errorf("%q is not refused", bad)
		}
	}
}

// compareNames is the comparison of the names with '.' replaced.
func TestCompareNames(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		draw := func() string {
			b := make([]byte, rng.IntN(4))
			for i := range b {
				b[i] = "._-aZ9^`"[rng.IntN(8)]
			}
			return string(b)
		}
		a, b := draw(), draw()
		want := strings.Compare(strings.ReplaceAll(a, ".", "_"), strings.ReplaceAll(b, ".", "_"))
		if got := compareNames(a, b); got != want {
			t.Fatalf("compare %q with %q: got %d, want %d", a, b, got, want)
		}
	}
}

// randomCommand draws a command that often, but not always, is carried out.
func randomCommand(rng *rand.Rand, v *View) Command {
	switch rng.IntN(14) {
	case 0:
		return &Cluster{ID: number(rng.Uint64N(3)), FirstStartNumber: rng.Uint32N(5)}
	case 1, 2, 3, 4:
		return &Start{Node: rng.Int32N(6), Nonce: number(rng.Uint64N(40)), Host: "h", Port: 1 + rng.Int32N(9)}
	case 5, 6:
		d := &DeleteTopic{Name: "a", ID: number(rng.Uint64N(1000)), Time: rng.Int64N(1000)}
		if all := v.All(); len(all) > 0 {
			t := all[rng.IntN(len(all))]
			d.Name = t.Name
			if rng.IntN(5) > 0 {
				d.ID = t.ID
			}
		}
		return d
	}
	c := &CreateTopic{ID: number(rng.Uint64N(1000)), Rules: 1, Floor: rng.Uint32N(3), AfterDeletion: rng.IntN(3) == 0}
	for range 1 + rng.IntN(3) {
		c.Name += string("ab._"[rng.IntN(4)])
	}
	for range rng.IntN(4) {
		c.Partitions = append(c.Partitions, []int32{1 + rng.Int32N(5)})
	}
	return c
}

// The same commands, applied by two nodes, one of which restarts from a base snapshot now and then, give the same
// results and the same bytes. No start number and no group is given out twice; a refused command changes nothing; a
// view stays what it was.
func TestDeterminism(t *testing.T) {
	for seed := range uint64(*seeds) {
		rng := rand.New(rand.NewPCG(seed, 1))
		one, two := New(), New()
		starts, groups := map[uint32]Start{}, map[uint64]ID{}
		var views []*View
		var shown []string
		for step := range 400 {
			c := randomCommand(rng, one.View())
			before := one.AppendTo(nil)
			r, err := one.Apply(Encode(c))
			must(t, err)
			again, err := two.Apply(Encode(c))
			must(t, err)
			text := one.AppendTo(nil)
			if outcome(r, nil) != outcome(again, nil) || !bytes.Equal(text, two.AppendTo(nil)) {
				t.Fatalf("seed %d step %d: %+v\n%s\n%s\nthen\n%s\n%s", seed, step, c, outcome(r, nil), outcome(again, nil), text, two.AppendTo(nil))
			}
			if r.Refused != nil && !bytes.Equal(before, text) {
				t.Fatalf("seed %d step %d: %+v is refused and changes the state", seed, step, c)
			}
			if rng.IntN(10) == 0 {
				two, err = Parse(text)
				must(t, err)
				if two.partitions != one.partitions {
					t.Fatalf("seed %d: %d partitions counted after a restart, %d before", seed, two.partitions, one.partitions)
				}
			}
			if r.StartNumber != 0 {
				start := *c.(*Start)
				if first, given := starts[r.StartNumber]; given && (first.Node != start.Node || first.Nonce != start.Nonce) {
					t.Fatalf("seed %d step %d: start number %d for %+v and %+v", seed, step, r.StartNumber, first, start)
				}
				starts[r.StartNumber] = start
			}
			if r.Topic != nil {
				checkTopic(t, one.View(), r.Topic)
				for _, p := range r.Topic.Partitions {
					if other, given := groups[p.Group]; given && other != r.Topic.ID {
						t.Fatalf("seed %d step %d: group %d for %x and %x", seed, step, p.Group, other, r.Topic.ID)
					}
					groups[p.Group] = r.Topic.ID
				}
			}
			views, shown = append(views, one.View()), append(shown, show(one.View())+showDeleted(one.View(), 64, "a", "b", "ab", "_"))
		}
		for i, v := range views {
			if show(v)+showDeleted(v, 64, "a", "b", "ab", "_") != shown[i] {
				t.Fatalf("seed %d: view %d has changed", seed, i)
			}
		}
		if len(starts) < 5 || len(groups) < 20 {
			t.Fatalf("seed %d: only %d starts and %d groups", seed, len(starts), len(groups))
		}
	}
}

func checkTopic(t *testing.T, v *View, topic *Topic) {
	t.Helper()
	byName, ok := v.ByName(topic.Name)
	byID, ok2 := v.ByID(topic.ID)
	if !ok || !ok2 || byName != topic || byID != topic || !slices.Contains(v.All(), topic) {
		t.Fatalf("topic %q is not in the view", topic.Name)
	}
	if err := v.CheckNewTopic(topic.Name); !errors.Is(err, ErrTopicExists) {
		t.Fatalf("topic %q again: %v", topic.Name, err)
	}
	if other := strings.ReplaceAll(topic.Name, ".", "_"); other != topic.Name {
		if err := v.CheckNewTopic(other); !errors.Is(err, ErrInvalidName) {
			t.Fatalf("topic %q beside %q: %v", other, topic.Name, err)
		}
		if _, ok := v.ByName(other); ok {
			t.Fatalf("%q finds %q", other, topic.Name)
		}
	}
	if !slices.IsSortedFunc(v.All(), func(a, b *Topic) int { return compareNames(a.Name, b.Name) }) {
		t.Fatal("topics are not in order")
	}
}

// Thousands of topics, in views that share most of their lists, are found as in one sorted list; old views stay.
func TestManyTopics(t *testing.T) {
	const n = 20 * chunkMax
	s := newCluster(t)
	rng := rand.New(rand.NewPCG(1, 1))
	var names []string
	var old []*View
	for i := range n {
		name := fmt.Sprintf("%c%x", "ab."[i%3], rng.Uint64())
		if i > n/2 {
			name = fmt.Sprintf("sorted-%08d", i) // at the end, always
		}
		names = append(names, name)
		apply(t, s, &CreateTopic{Name: name, ID: number(rng.Uint64()), Partitions: [][]int32{{1}}})
		if i%500 == 0 {
			old = append(old, s.View())
		}
	}
	parsed, err := Parse(s.AppendTo(nil))
	must(t, err)
	for i, v := range append(old, s.View(), parsed.View()) {
		have := names[:min(500*i+1, n)]
		if i >= len(old) {
			have = names
		}
		all := v.All()
		if len(all) != len(have) {
			t.Fatalf("view %d has %d topics, expected %d", i, len(all), len(have))
		}
		for _, name := range have {
			topic, ok := v.ByName(name)
			if !ok || topic.Name != name {
				t.Fatalf("view %d: topic %s is not found", i, name)
			}
			if other, ok := v.ByID(topic.ID); !ok || other != topic {
				t.Fatalf("view %d: topic %s is not found by id", i, name)
			}
		}
		if _, ok := v.ByName("never-made"); ok {
			t.Fatal("a topic is found that was never made")
		}
		if !slices.IsSortedFunc(all, func(a, b *Topic) int { return compareNames(a.Name, b.Name) }) {
			t.Fatalf("view %d is not in order", i)
		}
		for _, chunk := range v.names.chunks {
			if len(chunk) == 0 || len(chunk) > chunkMax {
				t.Fatalf("view %d has a chunk of %d topics", i, len(chunk))
			}
		}
	}
}

// The order in which topics came does not matter to the bytes, but for the ids that they were given.
func TestBodyIsCanonical(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f", "a.", "-"}
	var first []string
	for seed := range uint64(20) {
		s := newCluster(t)
		rng := rand.New(rand.NewPCG(seed, 1))
		for _, i := range rng.Perm(len(names)) {
			apply(t, s, &CreateTopic{Name: names[i], ID: number(uint64(100 - i)), Partitions: [][]int32{{1}}})
		}
		var got []string
		for _, topic := range s.View().All() {
			got = append(got, topic.Name)
		}
		if first == nil {
			first = got
		}
		if !slices.Equal(got, first) {
			t.Fatalf("seed %d: %v, before %v", seed, got, first)
		}
		parsed, err := Parse(s.AppendTo([]byte(nil)))
		must(t, err)
		if !bytes.Equal(parsed.AppendTo(nil), s.AppendTo(nil)) {
			t.Fatal("parsing changed the state")
		}
	}
}

func newCluster(t testing.TB) *State {
	t.Helper()
	s := New()
	apply(t, s, &Cluster{ID: number(1), FirstStartNumber: 1})
	apply(t, s, &Start{Node: 1, Nonce: number(1), Host: "h", Port: 1})
	return s
}

func apply(t testing.TB, s *State, c Command) Result {
	t.Helper()
	r, err := s.Apply(Encode(c))
	must(t, err)
	must(t, r.Refused)
	return r
}

func TestBounds(t *testing.T) {
	partitions := func(n int) [][]int32 { return slices.Repeat([][]int32{{1}}, n) }
	s := newCluster(t)
	id := uint64(10)
	create := func(n int) error {
		id++
		r, err := s.Apply(Encode(&CreateTopic{Name: fmt.Sprint("t", id), ID: number(id), Partitions: partitions(n)}))
		must(t, err)
		return r.Refused
	}
	if err := create(PartitionsPerTopicMax + 1); !errors.Is(err, ErrInvalidPartitions) {
		t.Fatalf("too many partitions: %v", err)
	}
	must(t, create(PartitionsPerTopicMax))
	s.partitions = PartitionsMax - 1
	if err := create(2); !errors.Is(err, ErrInvalidPartitions) {
		t.Fatalf("one partition too many in the cluster: %v", err)
	}
	must(t, create(1))

	for n := int32(2); n <= NodesMax; n++ {
		apply(t, s, &Start{Node: n, Nonce: number(uint64(n)), Host: "h", Port: 1})
	}
	r, err := s.Apply(Encode(&Start{Node: NodesMax + 1, Nonce: number(1), Host: "h", Port: 1}))
	must(t, err)
	if !errors.Is(r.Refused, ErrInvalidNode) || !strings.Contains(r.Refused.Error(), fmt.Sprintf("would be number %d,", NodesMax+1)) {
		t.Fatalf("one node too many: %v", r.Refused)
	}
}

func TestStartNumbersUsedUp(t *testing.T) {
	text := string(newCluster(t).AppendTo(nil))
	text = strings.Replace(text, `"next_start_number":2`, fmt.Sprintf(`"next_start_number":%d`, StartNumberMax), 1)
	s, err := Parse([]byte(text))
	must(t, err)
	if r := apply(t, s, &Start{Node: 1, Nonce: number(2), Host: "h", Port: 1}); r.StartNumber != StartNumberMax {
		t.Fatalf("start number %d", r.StartNumber)
	}
	r, err := s.Apply(Encode(&Start{Node: 1, Nonce: number(3), Host: "h", Port: 1}))
	must(t, err)
	if !errors.Is(r.Refused, ErrStartNumbersUsedUp) {
		t.Fatalf("refused: %v", r.Refused)
	}
	// That state is still one that can be read.
	_, err = Parse(s.AppendTo(nil))
	must(t, err)
}

// A base snapshot that no commands could have made is refused.
func TestParseRefuses(t *testing.T) {
	s := newCluster(t)
	apply(t, s, &Start{Node: 2, Nonce: number(2), Host: "h", Port: 1})
	apply(t, s, &CreateTopic{Name: "a", ID: number(7), Partitions: [][]int32{{1}, {1}}})
	apply(t, s, &CreateTopic{Name: "b", ID: number(8), Partitions: [][]int32{{1}}})
	good := string(s.AppendTo(nil))
	for name, change := range map[string][2]string{
		"unknown field":        {`"rules"`, `"laws"`},
		"trailing bytes":       {`"deleted_groups":[]}`, `"deleted_groups":[]} 1`},
		"cut off":              {`"deleted_groups":[]}`, `"deleted_groups":[]`},
		"no cluster":           {`"cluster":"00000000000000000000000000000001"`, `"cluster":"00000000000000000000000000000000"`},
		"start number to come": {`"start_number":2`, `"start_number":3`},
		"start number twice":   {`"start_number":2`, `"start_number":1`},
		"start number 0":       {`"start_number":2`, `"start_number":0`},
		"no next start number": {`"next_start_number":3`, `"next_start_number":0`},
		"last start number":    {`"next_start_number":3`, `"next_start_number":2147483649`},
		"nodes not in order":   {`"id":2,`, `"id":1,`},
		"bad port":             {`"port":1`, `"port":0`},
		"group to come":        {`"group":3`, `"group":4`},
		"group twice":          {`"group":3`, `"group":1`},
		"group 0":              {`"group":3`, `"group":0`},
		"group ids at an end":  {`"next_group":4`, `"next_group":18446744073709551615`},
		"topics not in order":  {`"name":"b"`, `"name":"A"`},
		"topic twice":          {`"name":"b"`, `"name":"a"`},
		"bad name":             {`"name":"b"`, `"name":"b/"`},
		"topic id twice":       {`00000000000000000000000000000008`, `00000000000000000000000000000007`},
		"topic id 0":           {`00000000000000000000000000000008`, `00000000000000000000000000000000`},
		"unknown node":         {`"replicas":[1]`, `"replicas":[9]`},
		"no replicas":          {`"replicas":[1]`, `"replicas":[]`},
		"no partitions":        {`"partitions":[{"group":3,"replicas":[1]}]`, `"partitions":[]`},
	} {
		text := strings.Replace(good, change[0], change[1], 1)
		if text == good {
			t.Fatalf("%s: nothing to change in %s", name, good)
		}
		_, err := Parse([]byte(text))
		if err == nil {
			t.Errorf("%s is not refused: %s", name, text)
		}
		if newer := slices.Contains([]string{"unknown field", "trailing bytes", "cut off"}, name); errors.Is(err, ErrNewerVersion) != newer {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProducerIDs(t *testing.T) {
	var ids ProducerIDs
	if id, ok := ids.Next(); ok || id != -1 {
		t.Fatalf("id %d without a start number", id)
	}
	ids.Use(3)
	for want := range batch.ProducerID(3) {
		if id, ok := ids.Next(); !ok || id != 3<<32|want {
			t.Fatalf("id %d (%t)", id, ok)
		}
	}
	// All but one of a start number's ids are used up.
	ids.state.Store(3<<leftBits | 1)
	if id, ok := ids.Next(); !ok || id != 4<<32-1 {
		t.Fatalf("last id %d (%t)", id, ok)
	}
	for range 3 {
		if id, ok := ids.Next(); ok {
			t.Fatalf("id %d behind the last one", id)
		}
	}
	for _, used := range []uint32{3, 2, 0, StartNumberMax + 1} {
		func() {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.HasPrefix(text, "BUG: ") {
					t.Errorf("start number %d after 3: %s", used, text)
				}
			}()
			ids.Use(used)
		}()
	}
	ids.Use(StartNumberMax)
	if id, ok := ids.Next(); !ok || id != StartNumberMax<<32 {
		t.Fatalf("id %d (%t)", id, ok)
	}
}

// Many goroutines take ids while start numbers run out and new ones come: none comes twice.
func TestProducerIDsConcurrently(t *testing.T) {
	var ids ProducerIDs
	const workers, rounds, each = 4, 50, 200
	taken := make([]map[batch.ProducerID]bool, workers)
	var done sync.WaitGroup
	for w := range workers {
		taken[w] = map[batch.ProducerID]bool{}
		done.Go(func() {
			for len(taken[w]) < rounds*each {
				if id, ok := ids.Next(); ok {
					if taken[w][id] {
						t.Errorf("id %d twice", id)
						return
					}
					taken[w][id] = true
				}
			}
		})
	}
	stop := make(chan struct{})
	var feeder sync.WaitGroup
	feeder.Go(func() {
		for start := uint32(1); ; start++ {
			ids.Use(start)
			// As if most of its ids had been taken.
			for {
				old := ids.state.Load()
				if left := old & (1<<leftBits - 1); left < each || ids.state.CompareAndSwap(old, old-left+each) {
					break
				}
			}
			for left := uint64(1); left > 0; left = ids.state.Load() & (1<<leftBits - 1) {
				select {
				case <-stop:
					return
				default:
				}
			}
		}
	})
	done.Wait()
	close(stop)
	feeder.Wait()
	all := map[batch.ProducerID]bool{}
	for _, some := range taken {
		for id := range maps.Keys(some) {
			if all[id] {
				t.Fatalf("id %d twice", id)
			}
			all[id] = true
		}
	}
}

func FuzzApply(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		f.Add(Encode(randomCommand(rng, New().View())))
	}
	f.Add([]byte{})
	f.Add([]byte{0, 3, 'n', 'u', 'l', 'l'})
	f.Fuzz(func(t *testing.T, command []byte) {
		s := newCluster(t)
		before := s.AppendTo(nil)
		r, err := s.Apply(command)
		if err != nil && !errors.Is(err, ErrNewerVersion) {
			t.Fatalf("error %v", err)
		}
		text := s.AppendTo(nil)
		if (err != nil || r.Refused != nil) && !bytes.Equal(before, text) {
			t.Fatalf("a refused command changed the state to %s", text)
		}
		parsed, err := Parse(text)
		must(t, err)
		if !bytes.Equal(parsed.AppendTo(nil), text) {
			t.Fatal("parsing changed the state")
		}
		if c, err := Decode(command); err == nil {
			again, err := Decode(Encode(c))
			must(t, err)
			if !bytes.Equal(Encode(again), Encode(c)) {
				t.Fatal("encoding is not stable")
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	s := newCluster(f)
	f.Add(New().AppendTo(nil))
	apply(f, s, &CreateTopic{Name: "a", ID: number(7), Partitions: [][]int32{{1}, {1}}})
	f.Add(s.AppendTo(nil))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, src []byte) {
		s, err := Parse(src)
		if err != nil {
			return
		}
		text := s.AppendTo(nil)
		again, err := Parse(text)
		must(t, err)
		if !bytes.Equal(again.AppendTo(nil), text) {
			t.Fatal("parsing changed the state")
		}
		rng := rand.New(rand.NewPCG(1, 1))
		for range 10 {
			c := Encode(randomCommand(rng, s.View()))
			if a, b := outcome(s.Apply(c)), outcome(again.Apply(c)); a != b {
				t.Fatalf("%s differs from %s", a, b)
			}
		}
	})
}

// manyTopics makes a cluster of n topics with a view for each step.
func manyTopics(b testing.TB, n int) *State {
	s := newCluster(b)
	for i := range n {
		apply(b, s, &CreateTopic{Name: fmt.Sprintf("topic-%07d", i*7919%n), ID: number(uint64(i*104729%n + 1)), Partitions: [][]int32{{1}}})
		_ = s.View()
	}
	return s
}

func BenchmarkCreate10000Topics(b *testing.B) {
	for b.Loop() {
		manyTopics(b, 10_000)
	}
}

func BenchmarkCreateBeside10000Topics(b *testing.B) {
	s := manyTopics(b, 10_000)
	command := Encode(&CreateTopic{Name: "one-more", ID: number(1 << 40), Partitions: [][]int32{{1}}})
	before := *s
	b.ReportAllocs()
	for b.Loop() {
		*s = before
		if r, err := s.Apply(command); err != nil || r.Refused != nil {
			b.Fatal(err, r.Refused)
		}
	}
}

func BenchmarkByName(b *testing.B) {
	v := manyTopics(b, 10_000).View()
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := v.ByName("topic-0001234"); !ok {
			b.Fatal("not found")
		}
	}
}

func BenchmarkByID(b *testing.B) {
	v := manyTopics(b, 10_000).View()
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := v.ByID(number(77)); !ok {
			b.Fatal("not found")
		}
	}
}

func BenchmarkParse10000Topics(b *testing.B) {
	text := manyTopics(b, 10_000).AppendTo(nil)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkProducerIDs(b *testing.B) {
	var ids ProducerIDs
	ids.Use(1)
	b.ReportAllocs()
	for b.Loop() {
		ids.Next()
	}
}
