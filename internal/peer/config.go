package peer

import (
	"context"
	"errors"
	"log/slog"
	"net"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/seglog"
)

// NodeID names a node of a cluster. It is the upper half of the ids of its replicas. 0 is none.
type NodeID uint32

// NodeOf returns the node of a replica.
func NodeOf(replica seglog.ReplicaID) NodeID { return NodeID(replica >> 32) }

// Peer is another node of the cluster.
type Peer struct {
	ID      NodeID
	Address string   // where it listens for peers, host:port
	Disk    [16]byte // names its data directory: another one under the same id is refused, for it has forgotten its votes
}

// Config is who this node is, and who the others are. It does not change while a Transport lives.
type Config struct {
	Cluster [16]byte
	Self    NodeID
	Disk    [16]byte // of this node
	Peers   []Peer   // all others; an entry for this node is passed over
	// Dial opens a connection; nil: TCP. The context ends an attempt that takes too long.
	Dial    func(ctx context.Context, address string) (net.Conn, error)
	Logger  *slog.Logger
	Handler Handler
}

// Handler is told what comes from the peers, and what became of what was sent. Its methods are called from many
// goroutines; none may block but Call, and none may close the Transport. After Transport.Close nothing is called any more.
type Handler interface {
	// Message hands over a message of Raft. The data of its entries are parts of a buffer that nobody else uses.
	Message(from NodeID, group seglog.GroupID, m *pb.Message)
	// Unreachable says that messages to the node were dropped. It is called at most once in 100 ms for a node, and at most
	// that much later.
	Unreachable(node NodeID)
	// SnapshotSent says, once for each MsgSnap given to Send, whether its last byte went to the operating system.
	SnapshotSent(group seglog.GroupID, to seglog.ReplicaID, ok bool)
	// Up says that both connections to the node stand. Messages may have come from it before. It is called again when one
	// of them was lost and stands again.
	Up(node NodeID)
	// Down says that the node's process is gone: no connection from or to it is left. It is called once for each process
	// that was connected, also when it was never Up, and after it no message of that process comes.
	Down(node NodeID)
	// Told hands over what another node gave to Transport.Tell. The calls for one node come in the order of its calls.
	Told(from NodeID, kind uint8, body []byte)
	// Call answers another node's Transport.Call. It runs on a goroutine of its own, at most 16 at a time for one node.
	// The context ends when the caller does not wait any more. The reply has at most 4 MiB.
	Call(ctx context.Context, from NodeID, method uint8, body []byte) ([]byte, error)
}

// What Call fails with.
var (
	// ErrNotConnected: there is no connection to the node, or it was lost before the reply: whether the call was carried
	// out is not known then.
	ErrNotConnected = errors.New("no connection to the node")
	// ErrBusy: more waits for the node than is kept for it. The call was not sent.
	ErrBusy = errors.New("too much waits to be sent to the node")
	// ErrTooLarge: a body, a question or an answer is larger than allowed. It was not sent.
	ErrTooLarge = errors.New("larger than allowed between nodes")
)

// RemoteError is an error that another node's Handler.Call returned.
type RemoteError struct{ Text string }

func (e *RemoteError) Error() string { return e.Text }
