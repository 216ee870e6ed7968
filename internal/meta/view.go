package meta

import (
	"bytes"
	"fmt"
)

// Broker is a node as Kafka clients see it.
type Broker struct {
	ID   int32
	Host string
	Port int32
	Rack string // empty: not known
}

// Topic is one topic. It never changes.
type Topic struct {
	Name       string
	ID         [16]byte
	Partitions []Partition // by number
	// Rules is the version of the decision rules, and Floor the first start number that is not marked, with which
	// the partitions are born.
	Rules uint16
	Floor uint32
	// MinInSync is the topic's min.insync.replicas; 0: as the brokers are set.
	MinInSync int32
}

// Partition is one partition of a topic.
type Partition struct {
	Group    uint64  // the Raft group, from 1 upwards, never used again
	Replicas []int32 // nodes, the preferred leader first
}

// View is the metadata at one moment. It is safe for concurrent use and never changes; nothing that its methods return
// may be changed by the caller, except the list of All.
type View struct {
	cluster ID // zero: no cluster yet
	brokers []Broker
	names   index[*Topic] // all topics by compareNames
	ids     index[*Topic] // all topics by ID
	deleted deletions
}

// Cluster returns the cluster's id. ok is false before the first command.
func (v *View) Cluster() (id [16]byte, ok bool) { return v.cluster, v.cluster != ID{} }

// Brokers returns all nodes that have ever started, ascending by id.
func (v *View) Brokers() []Broker { return v.brokers }

// All returns all topics in ascending order of their names, with '.' counted as '_'. The list is the caller's.
func (v *View) All() []*Topic { return v.names.all() }

// ByName returns the topic with a name.
func (v *View) ByName(name string) (*Topic, bool) {
	if p, found := v.findName(name); found && v.names.at(p).Name == name {
		return v.names.at(p), true
	}
	return nil, false
}

// ByID returns the topic with an id.
func (v *View) ByID(id [16]byte) (*Topic, bool) {
	if p, found := v.findID(id); found {
		return v.ids.at(p), true
	}
	return nil, false
}

// CheckNewTopic says whether a topic could be created under a name now. Errors wrap ErrInvalidName, also for a name that
// collides with another one, or ErrTopicExists.
func (v *View) CheckNewTopic(name string) error {
	if err := CheckTopicName(name); err != nil {
		return err
	}
	p, found := v.findName(name)
	if !found {
		return nil
	}
	if other := v.names.at(p).Name; other != name {
		return fmt.Errorf("%w: %q differs from the topic %q only in '.' and '_'", ErrInvalidName, name, other)
	}
	return fmt.Errorf("%w: %q", ErrTopicExists, name)
}

// findName returns where the topic with this name, or one that collides with it, is or would be.
func (v *View) findName(name string) (place, bool) {
	return v.names.find(func(t *Topic) int { return compareNames(t.Name, name) })
}

func (v *View) findID(id [16]byte) (place, bool) {
	return v.ids.find(func(t *Topic) int { return bytes.Compare(t.ID[:], id[:]) })
}

// with returns a view that has one more topic. Neither its name nor its id is there yet.
func (v *View) with(t *Topic) *View {
	next := *v
	p, _ := v.findName(t.Name)
	next.names = v.names.inserted(p, t)
	p, _ = v.findID(t.ID)
	next.ids = v.ids.inserted(p, t)
	return &next
}

// without returns a view that does not have t.
func (v *View) without(t *Topic) *View {
	next := *v
	p, _ := v.findName(t.Name)
	next.names = v.names.removed(p)
	p, _ = v.findID(t.ID)
	next.ids = v.ids.removed(p)
	return &next
}
