package meta

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/oncemq/oncemq/internal/invariant"
)

// ErrNewerVersion says that a command or a base snapshot has something that this version does not know. Whoever met it
// must stop: its state would differ from the other nodes'.
var ErrNewerVersion = errors.New("cluster metadata was written by a newer version of oncemq")

// ID is 16 random bytes that name something: a cluster, a topic, a nonce. In JSON it is 32 hexadecimal digits.
type ID [16]byte

// MarshalText implements encoding.TextMarshaler.
func (id ID) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, id[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *ID) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(id)) {
		return fmt.Errorf("id of %d digits, expected %d", len(text), hex.EncodedLen(len(id)))
	}
	_, err := hex.Decode(id[:], text)
	return err
}

// Command is a change of the metadata: *Cluster, *Start, *CreateTopic or *DeleteTopic. On disk it is its type as u16,
// big-endian, and JSON.
type Command interface {
	commandType() uint16
}

const (
	typeCluster     = 1
	typeStart       = 2
	typeCreateTopic = 3
	typeDeleteTopic = 4
)

// Cluster is the first command of a cluster: it is born. A second one is refused with ErrClusterExists, so that
// several nodes may propose it at the same time.
type Cluster struct {
	ID ID `json:"id"`
	// FirstStartNumber is the start number that the first Start gets, drawn at random from 1 to
	// FirstStartNumberMax by the proposer: a cluster that is made anew at the same place must not give out the
	// producer ids of the one before it, for clients may outlive that.
	FirstStartNumber uint32 `json:"first_start_number"`
}

// Start gives a node a new start number and takes note of its address.
type Start struct {
	Node int32 `json:"node"` // from 1 upwards
	// Nonce is drawn anew for each number wanted. A proposal whose outcome is unknown is repeated with the same
	// nonce: however often it is applied before the node's next nonce, it gets one number.
	Nonce ID `json:"nonce"`
	// Host and Port are the address that the node tells to Kafka clients.
	Host string `json:"host"`
	Port int32  `json:"port"`
	// Rack is where the node stands, printable ASCII of at most 255 bytes; empty: nobody said it.
	Rack string `json:"rack,omitempty"`
}

// CreateTopic creates a topic. A proposal whose outcome is unknown may be repeated: a topic of this name with the same
// ID is answered like a new one, and one that was deleted meanwhile does not come back (ErrInvalidTopicID).
type CreateTopic struct {
	Name string `json:"name"`
	ID   ID     `json:"id"`
	// Partitions has the nodes of each partition's replicas, the preferred leader first.
	Partitions [][]int32 `json:"partitions"`
	// Rules is the version of the decision rules with which the partitions begin.
	Rules uint16 `json:"rules"`
	// Floor: partitions begin with all start numbers below it marked as possibly forgotten.
	Floor uint32 `json:"floor"`
	// AfterDeletion: a topic of this name was deleted not long ago, and producers may have lived through it. The
	// partitions begin with every start number marked that was given out before this command is applied.
	AfterDeletion bool `json:"after_deletion"`
	// DeletedSince, when it is not 0, has the same effect if a topic of this name was deleted at that time or later, by
	// View.DeletedAt at the moment when this command is applied. In milliseconds, of the clock of the proposer.
	DeletedSince int64 `json:"deleted_since,omitempty"`
	// MinInSync is how many replicas must have a record on disk before it counts as stored (min.insync.replicas), from 1 to
	// MinInSyncMax; 0: as the brokers are set. It may be more than there are replicas.
	MinInSync int32 `json:"min_in_sync,omitempty"`
}

// DeleteTopic deletes the topic that has both the name and the ID. Its groups are deleted for ever. A proposal whose
// outcome is unknown may be repeated: it is refused with ErrUnknownTopic when the topic is gone.
type DeleteTopic struct {
	Name string `json:"name"`
	ID   ID     `json:"id"`
	// Time is that of the proposer's wall clock, in milliseconds. Nothing but View.DeletedAt depends on it.
	Time int64 `json:"time"`
}

func (*Cluster) commandType() uint16     { return typeCluster }
func (*Start) commandType() uint16       { return typeStart }
func (*CreateTopic) commandType() uint16 { return typeCreateTopic }
func (*DeleteTopic) commandType() uint16 { return typeDeleteTopic }

// Encode returns the bytes of a command, as Decode reads them.
func Encode(c Command) []byte {
	text, err := json.Marshal(c)
	if err != nil {
		invariant.Bug("encode metadata command %T: %v", c, err)
	}
	return append(binary.BigEndian.AppendUint16(nil, c.commandType()), text...)
}

// Decode reads what Encode wrote. Everything else is an ErrNewerVersion: the bytes are protected by the log's CRC, so
// what this version cannot read, another one wrote.
func Decode(b []byte) (Command, error) {
	if len(b) < 2 {
		return nil, fmt.Errorf("%w: command of %d bytes", ErrNewerVersion, len(b))
	}
	var c Command
	switch t := binary.BigEndian.Uint16(b); t {
	case typeCluster:
		c = &Cluster{}
	case typeStart:
		c = &Start{}
	case typeCreateTopic:
		c = &CreateTopic{}
	case typeDeleteTopic:
		c = &DeleteTopic{}
	default:
		return nil, fmt.Errorf("%w: unknown command type %d", ErrNewerVersion, t)
	}
	if err := decodeStrictly(b[2:], c); err != nil {
		return nil, fmt.Errorf("%w: command type %d: %w", ErrNewerVersion, c.commandType(), err)
	}
	return c, nil
}

// decodeStrictly reads one JSON object and nothing behind it; a field that v does not have is an error.
func decodeStrictly(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("trailing bytes")
	}
	return nil
}
