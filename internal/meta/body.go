package meta

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/oncemq/oncemq/internal/invariant"
)

// body is the State as JSON, in the base snapshot of raft0. Lists are in the order of the State's.
type body struct {
	Cluster         ID          `json:"cluster"`
	NextStartNumber uint32      `json:"next_start_number"`
	NextGroup       uint64      `json:"next_group"`
	Nodes           []bodyNode  `json:"nodes"`
	Topics          []bodyTopic `json:"topics"`
	bodyDeletions
}

type bodyNode struct {
	ID          int32  `json:"id"`
	Host        string `json:"host"`
	Port        int32  `json:"port"`
	Nonce       ID     `json:"nonce"`
	StartNumber uint32 `json:"start_number"`
	Rack        string `json:"rack,omitempty"`
}

type bodyTopic struct {
	Name       string          `json:"name"`
	ID         ID              `json:"id"`
	Rules      uint16          `json:"rules"`
	Floor      uint32          `json:"floor"`
	MinInSync  int32           `json:"min_in_sync,omitempty"`
	Partitions []bodyPartition `json:"partitions"`
}

type bodyPartition struct {
	Group    uint64  `json:"group"`
	Replicas []int32 `json:"replicas"`
}

// AppendTo appends the state in the form in which Parse reads it. Equal states append equal bytes.
func (s *State) AppendTo(dst []byte) []byte {
	b := body{
		Cluster:         s.view.cluster,
		NextStartNumber: s.nextStart,
		NextGroup:       s.nextGroup,
		Nodes:           make([]bodyNode, len(s.nodes)),
		Topics:          []bodyTopic{}, // not null when there is none
		bodyDeletions:   s.bodyDeletions(),
	}
	for i, n := range s.nodes {
		broker := s.view.brokers[i]
		b.Nodes[i] = bodyNode{ID: n.id, Host: broker.Host, Port: broker.Port, Nonce: n.nonce, StartNumber: n.start, Rack: broker.Rack}
	}
	for _, t := range s.view.All() {
		partitions := make([]bodyPartition, len(t.Partitions))
		for j, p := range t.Partitions {
			partitions[j] = bodyPartition(p)
		}
		b.Topics = append(b.Topics, bodyTopic{
			Name: t.Name, ID: t.ID, Rules: t.Rules, Floor: t.Floor, MinInSync: t.MinInSync, Partitions: partitions,
		})
	}
	text, err := json.Marshal(b)
	if err != nil {
		invariant.Bug("encode cluster metadata: %v", err)
	}
	return append(dst, text...)
}

// Parse reads what AppendTo wrote. An unknown field is an ErrNewerVersion; a state that no commands could have made is
// another error.
func Parse(src []byte) (*State, error) {
	var b body
	if err := decodeStrictly(src, &b); err != nil {
		return nil, fmt.Errorf("%w: base snapshot of raft0: %w", ErrNewerVersion, err)
	}
	s, err := b.state()
	if err != nil {
		return nil, fmt.Errorf("read cluster metadata: %w", err)
	}
	return s, nil
}

func (b *body) state() (*State, error) {
	s := New()
	if b.Cluster == (ID{}) {
		if b.NextStartNumber != 0 || b.NextGroup != 1 || len(b.Nodes) > 0 || len(b.Topics) > 0 || !b.isEmpty() {
			return nil, errors.New("there are nodes, topics, deletions or numbers without a cluster")
		}
		return s, nil
	}
	if b.NextStartNumber == 0 || b.NextStartNumber > StartNumberMax+1 || b.NextGroup == 0 || b.NextGroup > 1<<62 {
		return nil, fmt.Errorf("next start number %d, next group %d", b.NextStartNumber, b.NextGroup)
	}
	s.view.cluster, s.nextStart, s.nextGroup = b.Cluster, b.NextStartNumber, b.NextGroup
	if err := s.addNodes(b.Nodes); err != nil {
		return nil, err
	}
	topics := make([]*Topic, len(b.Topics))
	for i := range b.Topics {
		var err error
		if topics[i], err = s.readTopic(&b.Topics[i]); err != nil {
			return nil, fmt.Errorf("topic %q: %w", b.Topics[i].Name, err)
		}
	}
	if err := s.addTopics(topics); err != nil {
		return nil, err
	}
	if err := s.addDeletions(&b.bodyDeletions); err != nil {
		return nil, err
	}
	return s, s.checkGroups(topics)
}

func (s *State) addNodes(nodes []bodyNode) error {
	if len(nodes) > NodesMax {
		return fmt.Errorf("%d nodes", len(nodes))
	}
	previous := int32(0)
	starts := make(map[uint32]int32, len(nodes))
	for _, n := range nodes {
		broker := Broker{ID: n.ID, Host: n.Host, Port: n.Port, Rack: n.Rack}
		if err := broker.check(); err != nil {
			return err
		}
		if n.ID <= previous {
			return fmt.Errorf("node %d behind node %d", n.ID, previous)
		}
		if other, used := starts[n.StartNumber]; used || n.StartNumber == 0 || n.StartNumber >= s.nextStart || n.Nonce == (ID{}) {
			return fmt.Errorf("node %d has start number %d (node %d: %t), next is %d", n.ID, n.StartNumber, other, used, s.nextStart)
		}
		starts[n.StartNumber], previous = n.ID, n.ID
		s.nodes = append(s.nodes, node{id: n.ID, nonce: n.Nonce, start: n.StartNumber})
		s.view.brokers = append(s.view.brokers, broker)
	}
	return nil
}

// readTopic returns a topic and counts its partitions.
func (s *State) readTopic(b *bodyTopic) (*Topic, error) {
	if err := CheckTopicName(b.Name); err != nil {
		return nil, err
	}
	if b.ID == (ID{}) {
		return nil, errors.New("id 0")
	}
	n := len(b.Partitions)
	if n < 1 || n > PartitionsPerTopicMax || n > PartitionsMax-s.partitions {
		return nil, fmt.Errorf("%d partitions", n)
	}
	if err := CheckMinInSync(b.MinInSync); err != nil {
		return nil, err
	}
	s.partitions += n
	t := &Topic{Name: b.Name, ID: b.ID, Rules: b.Rules, Floor: b.Floor, MinInSync: b.MinInSync, Partitions: make([]Partition, n)}
	for i, p := range b.Partitions {
		if err := s.checkReplicas(p.Replicas); err != nil {
			return nil, fmt.Errorf("partition %d: %w", i, err)
		}
		t.Partitions[i] = Partition(p)
	}
	return t, nil
}

// addTopics makes the indexes of the state's view, which nobody has seen yet.
func (s *State) addTopics(topics []*Topic) error {
	for i := 1; i < len(topics); i++ {
		if one, other := topics[i-1], topics[i]; compareNames(one.Name, other.Name) >= 0 {
			return fmt.Errorf("topic %q stands behind %q", other.Name, one.Name)
		}
	}
	ids := slices.Clone(topics)
	slices.SortFunc(ids, func(a, b *Topic) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	for i := 1; i < len(ids); i++ {
		if ids[i].ID == ids[i-1].ID {
			return fmt.Errorf("topics %q and %q have the id %x", ids[i-1].Name, ids[i].Name, ids[i].ID)
		}
	}
	s.view.names, s.view.ids = newIndex(topics), newIndex(ids)
	return nil
}

// checkGroups demands that each group that was given out is either one partition or deleted, and that deleted
// neighbours are one.
func (s *State) checkGroups(topics []*Topic) error {
	type part struct {
		groups
		deleted bool
	}
	parts := make([]part, 0, s.partitions)
	for _, t := range topics {
		for _, p := range t.Partitions {
			parts = append(parts, part{groups: groups{p.Group, p.Group}})
		}
	}
	for _, g := range s.view.deleted.groups.all() {
		parts = append(parts, part{groups: g, deleted: true})
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.first, b.first) })
	previous := part{}
	for _, p := range parts {
		if p.first != previous.last+1 || p.last < p.first || p.deleted && previous.deleted {
			return fmt.Errorf("groups %d to %d (deleted: %t) behind groups %d to %d (%t)",
				p.first, p.last, p.deleted, previous.first, previous.last, previous.deleted)
		}
		previous = p
	}
	if previous.last != s.nextGroup-1 {
		return fmt.Errorf("group %d is the last one, next is %d", previous.last, s.nextGroup)
	}
	return nil
}
