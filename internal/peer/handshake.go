package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
)

// The versions of the protocol that this build speaks. Two nodes use the highest that both do.
const (
	versionMin = 1
	versionMax = 1
)

// channel tells the two connections apart that a node dials to each other one.
type channel uint8

const (
	control channel = iota // small and urgent
	data                   // entries and snapshots
	channels
)

func (c channel) String() string { return [...]string{"control", "data"}[c&1] }

// hello is what a dialer says first.
type hello struct {
	versionMin, versionMax uint16
	channel                channel
	cluster                [16]byte
	from                   NodeID
	disk                   [16]byte // of from
	to                     NodeID
	process                uint64 // a random number of from's process
}

func (h hello) append(dst []byte) []byte {
	order := binary.BigEndian
	dst = order.AppendUint16(dst, h.versionMin)
	dst = order.AppendUint16(dst, h.versionMax)
	dst = append(dst, byte(h.channel))
	dst = append(dst, h.cluster[:]...)
	dst = order.AppendUint32(dst, uint32(h.from))
	dst = append(dst, h.disk[:]...)
	dst = order.AppendUint32(dst, uint32(h.to))
	return order.AppendUint64(dst, h.process)
}

var errHandshake = errors.New("a handshake cannot be read")

// parseHello reads a hello. What a later version puts behind these fields is passed over, so that it learns of the
// versions and not of a broken frame.
func parseHello(head []byte) (h hello, err error) {
	f := fields{src: head}
	h.versionMin, h.versionMax = f.u16(), f.u16()
	h.channel = channel(f.u8())
	h.cluster = f.id()
	h.from = NodeID(f.u32())
	h.disk = f.id()
	h.to = NodeID(f.u32())
	h.process = f.u64()
	if f.bad {
		return hello{}, errHandshake
	}
	return h, nil
}

// accept is how the other side answers a hello that it likes.
type accept struct {
	version uint16
	cluster [16]byte
	node    NodeID
	disk    [16]byte
	process uint64
}

func (a accept) append(dst []byte) []byte {
	order := binary.BigEndian
	dst = order.AppendUint16(dst, a.version)
	dst = append(dst, a.cluster[:]...)
	dst = order.AppendUint32(dst, uint32(a.node))
	dst = append(dst, a.disk[:]...)
	return order.AppendUint64(dst, a.process)
}

func parseAccept(head []byte) (a accept, err error) {
	f := fields{src: head}
	a.version = f.u16()
	a.cluster = f.id()
	a.node = NodeID(f.u32())
	a.disk = f.id()
	a.process = f.u64()
	if f.bad {
		return accept{}, errHandshake
	}
	return a, nil
}

// refusal is why a node does not want another one.
type refusal struct {
	patience bool // it is to be asked again and nobody has to act: the node is not ready yet
	text     string
}

// refusalTextMax bounds the text of a refusal, in bytes.
const refusalTextMax = kib

func (r *refusal) Error() string { return r.text }

func (r *refusal) append(dst []byte) []byte {
	patience := byte(0)
	if r.patience {
		patience = 1
	}
	return append(append(dst, patience), r.text[:min(len(r.text), refusalTextMax)]...)
}

func parseRefusal(head []byte) *refusal {
	f := fields{src: head}
	patience := f.u8() == 1
	return &refusal{patience, string(f.src[:min(len(f.src), refusalTextMax)])}
}

func refused(format string, args ...any) *refusal {
	return &refusal{text: fmt.Sprintf(format, args...)}
}

var (
	notFounded = &refusal{patience: true, text: "this node has not joined a cluster yet"}
	stopping   = &refusal{patience: true, text: "this node stops"}
)

// judge says what is wrong with a dialer; nil: nothing. The version is the one to speak.
func (t *Transport) judge(h hello) (version uint16, wrong *refusal) {
	version = min(h.versionMax, versionMax)
	p := t.peers[h.from]
	switch {
	case version < max(h.versionMin, versionMin):
		return 0, refused("node %d speaks versions %d to %d between nodes, node %d speaks %d to %d",
			h.from, h.versionMin, h.versionMax, t.config.Self, versionMin, versionMax)
	case h.cluster != t.config.Cluster:
		return 0, refused("node %d belongs to cluster %x, node %d to cluster %x", h.from, h.cluster, t.config.Self, t.config.Cluster)
	case h.to != t.config.Self:
		return 0, refused("node %d looks for node %d, this is node %d", h.from, h.to, t.config.Self)
	case p == nil:
		return 0, refused("node %d is not known to node %d", h.from, t.config.Self)
	case h.disk != p.disk:
		return 0, refused("the disk of node %d is %x, node %d knows it with disk %x: "+
			"a node must not come back under its id with another data directory", h.from, h.disk, t.config.Self, p.disk)
	case h.channel >= channels:
		return 0, refused("node %d asks for connection %d, there are %d", h.from, h.channel, channels)
	}
	return version, nil
}

// judgeAnswer says what is wrong with who has answered a hello.
func (p *peer) judgeAnswer(a accept) *refusal {
	own := &p.t.config
	switch {
	case a.version < versionMin || a.version > versionMax:
		return refused("node %d has chosen version %d between nodes, node %d speaks %d to %d",
			a.node, a.version, own.Self, versionMin, versionMax)
	case a.cluster != own.Cluster:
		return refused("node %d belongs to cluster %x, node %d to cluster %x", a.node, a.cluster, own.Self, own.Cluster)
	case a.node != p.id:
		return refused("node %d looks for node %d, and node %d has answered", own.Self, p.id, a.node)
	case a.disk != p.disk:
		return refused("the disk of node %d is %x, node %d knows it with disk %x: "+
			"a node must not come back under its id with another data directory", a.node, a.disk, own.Self, p.disk)
	}
	return nil
}

func writeFrame(nc net.Conn, k kind, head, payload []byte) error {
	_, err := nc.Write(appendFrame(nil, k, head, payload))
	return err
}
