package meta

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Bounds of a cluster. They keep a mistaken command from filling memory and disks of every node for good.
const (
	// FirstStartNumberMax is the highest start number that a cluster may begin with: below 2^20, so that producer
	// ids stay below 2^53, where JavaScript counts exactly, for the first million starts.
	FirstStartNumberMax = 1<<20 - 1
	// StartNumberMax is the last start number: a producer id is a positive int64.
	StartNumberMax = 1<<31 - 1
	// NodesMax is the number of nodes that may ever have started.
	NodesMax = 1024
	// PartitionsPerTopicMax is the largest number of partitions of a topic.
	PartitionsPerTopicMax = 10_000
	// PartitionsMax is the largest number of partitions of all topics, and with it of topics.
	PartitionsMax = 200_000

	// MinInSyncMax is the largest min.insync.replicas of a topic: a replication factor is an int16.
	MinInSyncMax = 1<<15 - 1

	hostMax = 255 // of a host name, in bytes
	rackMax = 255
)

// The reasons for which a command is refused. Results wrap them, with a text for people.
var (
	ErrTopicExists        = errors.New("topic already exists")          // Kafka code 36
	ErrUnknownTopic       = errors.New("unknown topic")                 // 3
	ErrInvalidName        = errors.New("invalid topic name")            // 17
	ErrInvalidPartitions  = errors.New("invalid number of partitions")  // 37
	ErrInvalidReplication = errors.New("invalid replication factor")    // 38
	ErrInvalidAssignment  = errors.New("invalid replica assignment")    // 39
	ErrInvalidSetting     = errors.New("invalid topic setting")         // 40
	ErrInvalidTopicID     = errors.New("invalid topic id")              // the proposer's mistake
	ErrInvalidNode        = errors.New("invalid node")                  // the same
	ErrInvalidCluster     = errors.New("invalid cluster")               // the same
	ErrClusterExists      = errors.New("cluster already exists")        // somebody else made it
	ErrNoCluster          = errors.New("cluster does not exist yet")    // its first command is missing
	ErrStartNumbersUsedUp = errors.New("all start numbers are used up") // after two thousand million starts
)

// Result is what a command did. It is the same on every node.
type Result struct {
	// Refused says why the command changed nothing; nil when it was carried out.
	Refused error
	// StartNumber is the node's, for a Start.
	StartNumber uint32
	// Topic is the new one, for a CreateTopic, or the one that an earlier application of this command made.
	Topic *Topic
	// Deleted is the topic that is gone, for a DeleteTopic.
	Deleted *Topic
}

// State is the metadata. It belongs to one goroutine; others read its Views.
type State struct {
	view       *View
	nextStart  uint32 // from 1 to StartNumberMax+1; 0: no cluster yet
	nextGroup  uint64
	partitions int    // of all topics
	nodes      []node // ascending by id
	// deletions are those that are remembered, oldest first, at most DeletedNamesMax, and deletedIDs the ids of their
	// topics.
	deletions  []*deletion
	deletedIDs map[ID]bool
}

// node is what only the State knows of a broker.
type node struct {
	id    int32
	nonce ID     // of its newest Start
	start uint32 // the number that it got
}

// New returns the state before the first command.
func New() *State {
	return &State{view: &View{}, nextGroup: 1, deletedIDs: map[ID]bool{}}
}

// View returns the metadata as it is now.
func (s *State) View() *View { return s.view }

// Apply carries out one command in the form of Encode. The error is an ErrNewerVersion: nothing was changed, and the
// caller must not go on.
func (s *State) Apply(command []byte) (Result, error) {
	decoded, err := Decode(command)
	if err != nil {
		return Result{}, err
	}
	if c, ok := decoded.(*Cluster); ok {
		return Result{Refused: s.applyCluster(c)}, nil
	}
	if s.nextStart == 0 {
		return Result{Refused: ErrNoCluster}, nil
	}
	var result Result
	switch c := decoded.(type) {
	case *Start:
		result.StartNumber, result.Refused = s.applyStart(c)
	case *CreateTopic:
		result.Topic, result.Refused = s.applyCreateTopic(c)
	case *DeleteTopic:
		result.Deleted, result.Refused = s.applyDeleteTopic(c)
	}
	return result, nil
}

func (s *State) applyCluster(c *Cluster) error {
	if s.nextStart != 0 {
		return ErrClusterExists
	}
	if c.ID == (ID{}) {
		return fmt.Errorf("%w: id 0", ErrInvalidCluster)
	}
	if c.FirstStartNumber == 0 || c.FirstStartNumber > FirstStartNumberMax {
		return fmt.Errorf("%w: first start number %d, allowed are 1 to %d", ErrInvalidCluster, c.FirstStartNumber, FirstStartNumberMax)
	}
	next := *s.view
	next.cluster = c.ID
	s.view, s.nextStart = &next, c.FirstStartNumber
	return nil
}

func (s *State) applyStart(c *Start) (uint32, error) {
	at, known := slices.BinarySearchFunc(s.nodes, c.Node, func(n node, id int32) int { return cmp.Compare(n.id, id) })
	if known && s.nodes[at].nonce == c.Nonce {
		return s.nodes[at].start, nil
	}
	broker := Broker{ID: c.Node, Host: c.Host, Port: c.Port, Rack: c.Rack}
	if err := broker.check(); err != nil {
		return 0, err
	}
	switch {
	case c.Nonce == ID{}:
		return 0, fmt.Errorf("%w: node %d has nonce 0", ErrInvalidNode, c.Node)
	case !known && len(s.nodes) == NodesMax:
		return 0, fmt.Errorf("%w: node %d would be number %d, allowed are %d", ErrInvalidNode, c.Node, NodesMax+1, NodesMax)
	case s.nextStart > StartNumberMax:
		return 0, ErrStartNumbersUsedUp
	}
	next := *s.view
	next.brokers = slices.Clone(next.brokers)
	started := node{id: c.Node, nonce: c.Nonce, start: s.nextStart}
	if known {
		s.nodes[at], next.brokers[at] = started, broker
	} else {
		s.nodes = slices.Insert(s.nodes, at, started)
		next.brokers = slices.Insert(next.brokers, at, broker)
	}
	s.view = &next
	s.nextStart++
	return started.start, nil
}

// check says what is wrong with a broker.
func (b Broker) check() error {
	if b.ID < 1 {
		return fmt.Errorf("%w: id %d, allowed are positive ones", ErrInvalidNode, b.ID)
	}
	if b.Port < 1 || b.Port > 1<<16-1 {
		return fmt.Errorf("%w: node %d has port %d", ErrInvalidNode, b.ID, b.Port)
	}
	if err := CheckHost(b.Host); err != nil {
		return fmt.Errorf("%w: node %d has a %w", ErrInvalidNode, b.ID, err)
	}
	if err := CheckRack(b.Rack); err != nil {
		return fmt.Errorf("%w: node %d has a %w", ErrInvalidNode, b.ID, err)
	}
	return nil
}

// CheckRack returns an error that tells why a rack cannot have this name. The empty name stands for none.
func CheckRack(rack string) error {
	if len(rack) > rackMax {
		return fmt.Errorf("rack of %d bytes, allowed are %d", len(rack), rackMax)
	}
	for i := range len(rack) {
		if c := rack[i]; c < ' ' || c > '~' {
			return fmt.Errorf("rack %q with %q at byte %d, allowed are the printable characters of ASCII", rack, c, i)
		}
	}
	return nil
}

// CheckMinInSync returns an ErrInvalidSetting for what can be no topic's min.insync.replicas. 0 stands for that of the
// brokers.
func CheckMinInSync(n int32) error {
	if n < 0 || n > MinInSyncMax {
		return fmt.Errorf("%w: min.insync.replicas %d, allowed are 1 to %d", ErrInvalidSetting, n, MinInSyncMax)
	}
	return nil
}

// CheckHost returns an error that tells why clients cannot be told a host name or address.
func CheckHost(host string) error {
	if len(host) == 0 || len(host) > hostMax {
		return fmt.Errorf("host name of %d bytes, allowed are 1 to %d", len(host), hostMax)
	}
	for i := range len(host) {
		if c := host[i]; c <= ' ' || c > '~' {
			return fmt.Errorf("host name %q with %q at byte %d, allowed are the visible characters of ASCII", host, c, i)
		}
	}
	return nil
}

func (s *State) applyCreateTopic(c *CreateTopic) (*Topic, error) {
	if made, ok := s.view.ByName(c.Name); ok && made.ID == c.ID {
		return made, nil
	}
	if err := s.view.CheckNewTopic(c.Name); err != nil {
		return nil, err
	}
	if other, ok := s.view.ByID(c.ID); ok {
		return nil, fmt.Errorf("%w: topic %q has the one that is wanted for %q", ErrInvalidTopicID, other.Name, c.Name)
	}
	if c.ID == (ID{}) {
		return nil, fmt.Errorf("%w: 0 for topic %q", ErrInvalidTopicID, c.Name)
	}
	if s.deletedIDs[c.ID] {
		return nil, fmt.Errorf("%w: the one that is wanted for topic %q was that of a deleted topic", ErrInvalidTopicID, c.Name)
	}
	n := len(c.Partitions)
	if n < 1 || n > PartitionsPerTopicMax {
		return nil, fmt.Errorf("%w: %d for topic %q, allowed are 1 to %d", ErrInvalidPartitions, n, c.Name, PartitionsPerTopicMax)
	}
	if err := CheckMinInSync(c.MinInSync); err != nil {
		return nil, fmt.Errorf("topic %q: %w", c.Name, err)
	}
	if n > PartitionsMax-s.partitions {
		return nil, fmt.Errorf("%w: the cluster has %d partitions, %d more for topic %q would exceed %d",
			ErrInvalidPartitions, s.partitions, n, c.Name, PartitionsMax)
	}
	topic := &Topic{
		Name: c.Name, ID: c.ID, Partitions: make([]Partition, n), Rules: c.Rules, Floor: c.Floor, MinInSync: c.MinInSync,
	}
	for i, replicas := range c.Partitions {
		if err := s.checkReplicas(replicas); err != nil {
			return nil, fmt.Errorf("%w: partition %d of topic %q: %w", ErrInvalidAssignment, i, c.Name, err)
		}
		topic.Partitions[i] = Partition{Group: s.nextGroup + uint64(i), Replicas: replicas}
	}
	deleted, ok := s.view.DeletedAt(c.Name)
	if c.AfterDeletion || ok && c.DeletedSince != 0 && deleted >= c.DeletedSince {
		topic.Floor = max(topic.Floor, s.nextStart)
	}
	s.nextGroup += uint64(n)
	s.partitions += n
	s.view = s.view.with(topic)
	return topic, nil
}

func (s *State) applyDeleteTopic(c *DeleteTopic) (*Topic, error) {
	topic, ok := s.view.ByName(c.Name)
	if !ok || topic.ID != c.ID {
		return nil, fmt.Errorf("%w: %q with id %x", ErrUnknownTopic, c.Name, c.ID)
	}
	next := s.view.without(topic)
	made := &deletion{name: c.Name, id: c.ID, time: c.Time}
	next.deleted.add(made)
	next.deleted.addGroups(topic.Partitions)
	s.deletions, s.deletedIDs[c.ID] = append(s.deletions, made), true
	if oldest := s.deletions[0]; len(s.deletions) > DeletedNamesMax {
		next.deleted.drop(oldest)
		s.deletions = s.deletions[1:]
		delete(s.deletedIDs, oldest.id)
	}
	s.partitions -= len(topic.Partitions)
	s.view = next
	return topic, nil
}

// checkReplicas demands one replica at least, each on a node of its own that has started before.
func (s *State) checkReplicas(replicas []int32) error {
	if len(replicas) == 0 {
		return errors.New("no replicas")
	}
	for i, id := range replicas {
		if slices.Contains(replicas[:i], id) {
			return fmt.Errorf("node %d twice", id)
		}
		_, known := slices.BinarySearchFunc(s.nodes, id, func(n node, id int32) int { return cmp.Compare(n.id, id) })
		if !known {
			return fmt.Errorf("node %d is not known", id)
		}
	}
	return nil
}
