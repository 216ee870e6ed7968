// Package peer carries Raft's messages, and calls, between the nodes of a cluster.
//
// Each node dials each other one twice: a control connection for what is small and urgent, and a data connection for entries
// and snapshots. What a node sends goes over the two that it has dialed; what it receives comes over the two that the other
// one has dialed. Only pongs and the replies to calls come back on the connection that they belong to. So two nodes have
// four connections, and neither waits for the other one's.
//
//	dialer                                   acceptor
//	magic, hello {versions, cluster, from, disk, to, channel, process}
//	                                         accept {version, cluster, node, disk, process}, or refuse {text}
//	begin, or refuse {text}
//	then on control: ping, beats, message, tell, call, cancel   and back: pong, reply
//	then on data: message, snapshot, chunk
//
// Each frame is a prefix, a head and a payload (frame.go). A CRC-32C covers prefix and head. The payload is the data of
// entries, a part of a snapshot or the body of a call: they are written from where they lie, without being copied, and have
// checksums of their own where they need them. Heads are big-endian and fixed (message.go, handshake.go).
//
// Invariants:
//
//  1. Only a node of this cluster with the id and the disk that the configuration names is let in, and only when it looks
//     for this node; a process that was refused hears why, and both sides write one line a minute about it.
//  2. The messages on one connection are handed over in the order in which they were sent, so MsgApp of one group is.
//  3. All connections that are attached to a peer lead to one process of it. Down is called when none is left, once for each
//     process, after the last of its messages was handed over; a later process is attached only after that.
//  4. Nothing is sent twice, and nothing is kept for a node that is not connected: what does not fit, and what waits when a
//     connection ends, is dropped, and Unreachable tells of it. A full queue ends no connection.
//  5. SnapshotSent is called once for each MsgSnap given to Send before Close, whatever becomes of it.
//  6. No length from the network costs memory before the bytes are there, beyond 1 MiB and as much as has arrived. Whatever
//     a peer sends, nothing panics: what cannot be read ends the connection.
//  7. A snapshot holds up the messages of other groups by one chunk of 256 KiB at most, and no part of one is handed over.
//  8. No method of Transport but Call and Close waits for the network, for the Handler or for another goroutine's write.
//
// The path of a message: Send looks up the node of its To, and appends the message to the queue of the control or the data
// connection (queue.go). The connection's writer takes what waits, up to 1 MiB, encodes the heads into one buffer, gathers
// all heartbeats in one frame, and writes everything with one writev (outbox.go), each time with one chunk of a snapshot if
// any is on its way. The reader of the other side takes a frame in, checks it, decodes the message, whose entries alias the
// frame's buffer, and calls Handler.Message (inbox.go).
//
// A process that is killed closes its connections: the readers end within milliseconds. One that hangs, or that the network
// hides, is found by the pings, which go every 200 ms: when nothing has come on a control connection for 3 s, all connections
// of the process are closed. Time is counted in ticks of 100 ms that this process has lived through, so that a stall of its
// own is not taken for the others' silence.
package peer
