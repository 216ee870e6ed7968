package meta

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// model is the metadata told a second time, as plainly as possible, without bounds and without text: lists that are
// searched from the beginning.
type model struct {
	cluster   ID
	nextStart uint32
	nextGroup uint64
	nodes     map[int32]modelNode
	topics    []*Topic
	deleted   []modelDeletion // all that ever were
}

type modelNode struct {
	nonce ID
	start uint32
	at    string
}

type modelDeletion struct {
	topic *Topic
	time  int64
}

func newModel() *model { return &model{nextGroup: 1, nodes: map[int32]modelNode{}} }

// apply returns what Apply has to.
func (m *model) apply(command Command) Result {
	if c, ok := command.(*Cluster); ok {
		switch {
		case m.cluster != ID{}:
			return Result{Refused: ErrClusterExists}
		case c.ID == ID{} || c.FirstStartNumber == 0:
			return Result{Refused: ErrInvalidCluster}
		}
		m.cluster, m.nextStart = c.ID, c.FirstStartNumber
		return Result{}
	}
	if m.cluster == (ID{}) {
		return Result{Refused: ErrNoCluster}
	}
	switch c := command.(type) {
	case *Start:
		return m.start(c)
	case *CreateTopic:
		return m.create(c)
	case *DeleteTopic:
		for i, t := range m.topics {
			if t.Name == c.Name && t.ID == c.ID {
				m.topics = slices.Delete(m.topics, i, i+1)
				m.deleted = append(m.deleted, modelDeletion{t, c.Time})
				return Result{Deleted: t}
			}
		}
		return Result{Refused: ErrUnknownTopic}
	}
	panic("unknown command")
}

func (m *model) start(c *Start) Result {
	if n, ok := m.nodes[c.Node]; ok && n.nonce == c.Nonce {
		return Result{StartNumber: n.start}
	}
	if c.Node < 1 || c.Nonce == (ID{}) {
		return Result{Refused: ErrInvalidNode}
	}
	at := fmt.Sprintf("%d=%s:%d", c.Node, c.Host, c.Port)
	if c.Rack != "" {
		at += "@" + c.Rack
	}
	m.nodes[c.Node] = modelNode{c.Nonce, m.nextStart, at}
	m.nextStart++
	return Result{StartNumber: m.nextStart - 1}
}

func (m *model) create(c *CreateTopic) Result {
	flat := func(name string) string { return strings.ReplaceAll(name, ".", "_") }
	refused := error(nil)
	for _, t := range m.topics {
		switch {
		case t.Name == c.Name && t.ID == c.ID:
			return Result{Topic: t}
		case t.Name == c.Name:
			refused = ErrTopicExists
		case flat(t.Name) == flat(c.Name):
			refused = ErrInvalidName
		}
	}
	sameID := func(t *Topic) bool { return t.ID == c.ID }
	switch {
	case c.Name == "." || c.Name == "..":
		refused = ErrInvalidName
	case refused != nil:
	case c.ID == ID{} || slices.ContainsFunc(m.topics, sameID) ||
		slices.ContainsFunc(m.deleted, func(d modelDeletion) bool { return sameID(d.topic) }):
		refused = ErrInvalidTopicID
	case len(c.Partitions) == 0:
		refused = ErrInvalidPartitions
	case c.MinInSync < 0 || c.MinInSync > 32767:
		refused = ErrInvalidSetting
	default:
		for _, replicas := range c.Partitions {
			if _, known := m.nodes[replicas[0]]; !known {
				refused = ErrInvalidAssignment
			}
		}
	}
	if refused != nil {
		return Result{Refused: refused}
	}
	t := &Topic{Name: c.Name, ID: c.ID, Rules: c.Rules, Floor: c.Floor, MinInSync: c.MinInSync}
	after := c.AfterDeletion
	for i := len(m.deleted) - 1; i >= 0; i-- {
		if d := m.deleted[i]; d.topic.Name == c.Name {
			after = after || c.DeletedSince != 0 && d.time >= c.DeletedSince
			break
		}
	}
	if after && m.nextStart > c.Floor {
		t.Floor = m.nextStart
	}
	for _, replicas := range c.Partitions {
		t.Partitions = append(t.Partitions, Partition{Group: m.nextGroup, Replicas: replicas})
		m.nextGroup++
	}
	m.topics = append(m.topics, t)
	return Result{Topic: t}
}

// complaint says where a view does not tell what the model knows; empty: nowhere.
func (m *model) complaint(v *View) string {
	if id, ok := v.Cluster(); id != m.cluster || ok != (m.cluster != ID{}) {
		return "the cluster"
	}
	brokers := ""
	for _, id := range slices.Sorted(maps.Keys(m.nodes)) {
		brokers += " " + m.nodes[id].at
	}
	if !strings.Contains(show(v), "brokers:"+brokers+"\n") {
		return "the brokers"
	}
	if len(v.All()) != len(m.topics) {
		return "the number of topics"
	}
	for _, t := range m.topics {
		byName, ok := v.ByName(t.Name)
		byID, ok2 := v.ByID(t.ID)
		if !ok || !ok2 || byName != byID || showTopic(byName) != showTopic(t) {
			return "topic " + t.Name
		}
	}
	return m.complaintOfDeleted(v)
}

func (m *model) complaintOfDeleted(v *View) string {
	gone := map[uint64]bool{}
	last := map[string]int64{}
	for _, d := range m.deleted {
		last[d.topic.Name] = d.time
		for _, p := range d.topic.Partitions {
			gone[p.Group] = true
		}
		if _, ok := v.ByID(d.topic.ID); ok {
			return "the id of a deleted topic"
		}
	}
	for group := range m.nextGroup + 3 {
		if v.GroupDeleted(group) != gone[group] {
			return fmt.Sprintf("group %d", group)
		}
	}
	for _, t := range m.topics {
		_, was := last[t.Name]
		if at, ok := v.DeletedAt(t.Name); ok != was || at != last[t.Name] {
			return "the deletion of " + t.Name
		}
	}
	for name, want := range last {
		if at, ok := v.DeletedAt(name); !ok || at != want {
			return "the deletion of " + name
		}
	}
	return ""
}

// drawCommand draws a command that is likely to matter.
func drawCommand(t *rapid.T, m *model) Command {
	id := func() ID { return number(rapid.Uint64Range(0, 12).Draw(t, "id")) }
	names := []string{"a", "b", "a.b", "a_b", "c", "d", ".."}
	switch rapid.SampledFrom([]string{"cluster", "start", "create", "create", "create", "create", "delete", "delete"}).Draw(t, "command") {
	case "cluster":
		return &Cluster{ID: id(), FirstStartNumber: rapid.Uint32Range(0, 3).Draw(t, "first")}
	case "start":
		return &Start{Node: rapid.Int32Range(0, 3).Draw(t, "node"), Nonce: id(), Host: "h",
			Port: rapid.Int32Range(1, 2).Draw(t, "port"), Rack: rapid.SampledFrom([]string{"", "a", "b c"}).Draw(t, "rack")}
	case "delete":
		c := &DeleteTopic{Name: rapid.SampledFrom(names).Draw(t, "name"), ID: id(), Time: rapid.Int64Range(-5, 1000).Draw(t, "time")}
		if len(m.topics) > 0 && rapid.IntRange(0, 3).Draw(t, "wrong") > 0 {
			topic := rapid.SampledFrom(m.topics).Draw(t, "topic")
			c.Name, c.ID = topic.Name, topic.ID
		}
		return c
	}
	return &CreateTopic{
		Name: rapid.SampledFrom(names).Draw(t, "name"), ID: number(rapid.Uint64Range(0, 200).Draw(t, "topic id")),
		Partitions:    rapid.SliceOfN(rapid.Map(rapid.Int32Range(1, 3), func(n int32) []int32 { return []int32{n} }), 0, 4).Draw(t, "partitions"),
		Rules:         1,
		Floor:         rapid.Uint32Range(0, 5).Draw(t, "floor"),
		AfterDeletion: rapid.IntRange(0, 3).Draw(t, "after deletion") == 0,
		DeletedSince:  rapid.Int64Range(-5, 1000).Draw(t, "deleted since"),
		MinInSync:     rapid.SampledFrom([]int32{0, 0, 1, 3, 32767, 32768, -1}).Draw(t, "min in sync"),
	}
}

// stateProgram runs random commands on a state and on the model: they agree on every result and on everything that a
// view tells, also after the state was written and read back.
func stateProgram(t *rapid.T) {
	s, m := New(), newModel()
	for range rapid.IntRange(1, 60).Draw(t, "commands") {
		c := drawCommand(t, m)
		got, err := s.Apply(Encode(c))
		if err != nil {
			t.Fatal(err)
		}
		want := m.apply(c)
		if !errors.Is(got.Refused, want.Refused) || (got.Refused == nil) != (want.Refused == nil) {
			t.Fatalf("%+v: refused %v, the model says %v", c, got.Refused, want.Refused)
		}
		if got.Refused == nil && outcome(got, nil) != outcome(want, nil) {
			t.Fatalf("%+v: %s, the model says %s", c, outcome(got, nil), outcome(want, nil))
		}
		parsed, err := Parse(s.AppendTo(nil))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range []*View{s.View(), parsed.View()} {
			if what := m.complaint(v); what != "" {
				t.Fatalf("after %+v: %s is wrong", c, what)
			}
		}
		if rapid.IntRange(0, 4).Draw(t, "restart") == 0 {
			s = parsed
		}
	}
}

func TestStateAgainstModel(t *testing.T) { rapid.Check(t, stateProgram) }

func FuzzState(f *testing.F) { f.Fuzz(rapid.MakeFuzz(stateProgram)) }
