package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/founding"
	"github.com/oncemq/oncemq/internal/peer"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
)

// cluster is what a node has in a cluster of several. Of a cluster of one it is zero.
type cluster struct {
	identity  *founding.Identity
	listener  *peer.Listener
	transport *peer.Transport
	peers     []peer.Peer // the other nodes
	founders  []int32     // all nodes, ascending; nil: this node alone
}

func (c *cluster) several() bool { return len(c.peers) > 0 }

// openIdentity finds out which of the founders this node is, and answers the questions of the others from then on. A node
// without founders must not have been one.
func (n *Node) openIdentity() error {
	if len(n.cfg.Founders) == 0 {
		return founding.CheckAlone(n.env.FS, n.cfg.Dir)
	}
	if n.cfg.PeerListener == nil {
		return fmt.Errorf("%w: there is no listener for the other ones", founding.ErrFounders)
	}
	if n.cluster.identity != nil {
		return nil // the disk was full behind this
	}
	identity, err := founding.OpenIdentity(founding.IdentityConfig{
		FS: n.env.FS, Dir: n.cfg.Dir, Random: n.env.Random, Self: n.cfg.PeerAddress, Founders: n.cfg.Founders, Logger: n.env.Logger,
	})
	if err != nil {
		return err
	}
	n.cluster.identity = identity
	n.cluster.listener = peer.Listen(n.cfg.PeerListener, n.env.Logger, identity.Answer)
	return nil
}

// newIdentity founds the cluster, alone or together with the other founders.
func (n *Node) newIdentity(ctx context.Context) (raftlog.NodeIdentity, error) {
	identity := n.cluster.identity
	if identity == nil {
		alone := raftlog.NodeIdentity{Node: firstNode}
		if _, err := io.ReadFull(n.env.Random, alone.Cluster[:]); err != nil {
			return alone, fmt.Errorf("draw cluster id: %w", err)
		}
		return alone, nil
	}
	err := identity.Found(ctx, func(ctx context.Context, address string, question []byte) ([]byte, error) {
		return peer.Ask(ctx, n.env.Dial, address, question)
	})
	return raftlog.NodeIdentity{Cluster: identity.Cluster(), Node: identity.Node()}, err
}

// confirmIdentity compares the state file, which is open, with who this node is among the founders. When it fails the file is
// closed again.
func (n *Node) confirmIdentity() error {
	if n.cluster.identity == nil {
		return nil
	}
	err := n.checkIdentity(n.cluster.identity)
	if err != nil {
		err = errors.Join(err, n.state.Close())
		n.state = nil
	}
	return err
}

// checkIdentity demands that the state file is that of a founder, and takes over from him who the others are.
func (n *Node) checkIdentity(identity *founding.Identity) error {
	if own := n.state.Node(); own.Cluster != identity.Cluster() || own.Node != identity.Node() {
		return fmt.Errorf("%w: the state file in %s is of node %d of cluster %s, its identity is node %d of cluster %s", ErrDamage,
			n.cfg.Dir, own.Node, founding.ClusterName(own.Cluster), identity.Node(), founding.ClusterName(identity.Cluster()))
	}
	n.cluster.founders = []int32{int32(identity.Node())}
	n.cluster.peers = nil
	for _, f := range identity.Peers() {
		n.cluster.peers = append(n.cluster.peers, peer.Peer{ID: peer.NodeID(f.Node), Address: f.Address, Disk: f.Disk})
		n.cluster.founders = append(n.cluster.founders, int32(f.Node))
	}
	slices.Sort(n.cluster.founders)
	return identity.NoteStarted()
}

// joinPeers lets the other nodes in and connects to them. From then on messages may arrive, for replicas that are not open
// yet too.
func (n *Node) joinPeers() {
	identity := n.state.Node()
	n.cluster.transport = n.cluster.listener.Join(peer.Config{
		Cluster: identity.Cluster, Self: peer.NodeID(identity.Node), Disk: n.cluster.identity.Disk(), Peers: n.cluster.peers,
		Dial: n.env.Dial, Logger: n.env.Logger, Handler: peering{n},
	})
	n.stopTicks = make(chan struct{})
	n.ticking.Go(func() { n.tick(n.stopTicks) })
	n.tasks.Go(n.gossip)
	if n.cfg.BalanceInterval >= 0 {
		n.tasks.Go(n.balance)
	}
}

// leavePeers closes all connections, after the last replica was closed.
func (n *Node) leavePeers() error {
	if n.stopTicks != nil {
		close(n.stopTicks)
		n.ticking.Wait()
		n.stopTicks = nil
	}
	var errs []error
	if n.cluster.transport != nil {
		errs = append(errs, n.cluster.transport.Close())
	}
	switch {
	case n.cluster.listener != nil:
		errs = append(errs, n.cluster.listener.Close())
	case n.cfg.PeerListener != nil:
		errs = append(errs, n.cfg.PeerListener.Close())
	}
	return errors.Join(errs...)
}

// peering is the node as its transport sees it. No method but Call may block.
type peering struct{ node *Node }

var _ peer.Handler = peering{}

// Message implements peer.Handler. A message for a replica that is not open here, or not of the node that it claims to be
// from, is dropped: Raft says everything again that is still of interest.
func (p peering) Message(from peer.NodeID, group seglog.GroupID, m *pb.Message) {
	if seglog.ReplicaID(m.GetTo()) != p.node.replicaID() || nodeOf(seglog.ReplicaID(m.GetFrom())) != uint32(from) {
		return
	}
	if r, ok := p.node.members.of(group); ok {
		r.Receive(m)
	}
}

// Unreachable implements peer.Handler.
func (p peering) Unreachable(node peer.NodeID) {
	for _, r := range p.node.members.all() {
		r.Unreachable(uint32(node))
	}
}

// SnapshotSent implements peer.Handler.
func (p peering) SnapshotSent(group seglog.GroupID, to seglog.ReplicaID, ok bool) {
	if r, known := p.node.members.of(group); known {
		r.SnapshotSent(to, ok)
	}
}

// Up implements peer.Handler.
func (p peering) Up(node peer.NodeID) {
	p.node.leaders.catchUp(uint32(node))
	p.node.balancer.nodeUp()
}

// Down implements peer.Handler.
func (p peering) Down(node peer.NodeID) {
	p.node.leaders.lost(uint32(node))
	p.node.leaders.leaves(uint32(node), false) // and comes back as one that stays
	for _, r := range p.node.members.all() {
		r.Lost(uint32(node))
	}
}

// Told implements peer.Handler. A kind that this version does not know is of a newer one, and nothing that matters to it.
func (p peering) Told(from peer.NodeID, kind uint8, body []byte) {
	switch kind {
	case tellLeaders:
		p.node.heard(uint32(from), body)
	case tellLeaving:
		p.node.leaders.leaves(uint32(from), true)
	}
}

// Call implements peer.Handler.
func (p peering) Call(ctx context.Context, from peer.NodeID, method uint8, body []byte) ([]byte, error) {
	if !p.node.governs.Load() {
		return nil, errNoLeader // the start has not come so far, or the end has begun
	}
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	switch method {
	case callPropose:
		return p.node.serveProposal(ctx, body)
	case callConfirm:
		return p.node.serveConfirm(ctx)
	case callTransfer:
		return nil, p.node.serveTransfer(body)
	}
	return nil, fmt.Errorf("node %d calls method %d, which this version does not have", from, method)
}
