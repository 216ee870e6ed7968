// Package node is one OnceMQ node: it opens everything in order, gives each partition its replica, keeps house for all of
// them, and closes in reverse.
//
// Invariants:
//
//  1. One process at a time uses a data directory (LOCK), and nothing is touched before the lock is held.
//  2. What is opened is opened in this order: lock, identity and listener for peers, state file, flushers, connections to
//     peers, raft0, partitions; and closed in reverse. The background pool works until the last replica is closed, and so do
//     the ticks and the connections.
//  3. A group's files are durable before the state file names its replica; a replica that is named has its files, or is
//     damaged, until the state file says that it is gone.
//  4. Producer ids are given out only under a start number that this run of the process got from raft0, which never
//     repeats.
//  5. A node says that it is ready when raft0 has applied, here, what this run has proposed, and every partition that has a
//     replica here is open, or is offline and the log says why; one that has its only replica here has a ready leader. Damage
//     of one partition, and a disk that is full, end nothing; damage of raft0 or the state file ends the start.
//  6. The files of a group are removed only after raft0 has applied the deletion of its topic. A group of which raft0 knows
//     nothing is reported and left as it is.
//  7. What was accepted is written in the end, however long the disk is full; what would not find room is refused before.
//  8. Only the nodes that have founded a cluster are in it, each with the data directory that it had then (package founding).
//  9. A message of Raft reaches a replica only from the node that its sender is on, and only under the replica's own id.
//  10. What must be the same for all nodes is decided where raft0's commands are applied. Nothing there depends on what one
//     node knows; the table of leaders, which does, decides nothing.
//
// The path of a topic: CreateTopic, on any node, chooses the nodes of the replicas and has a command applied by raft0,
// through the node that leads it (forward.go); applying it mints the group ids, and puts the topic into the placer's queue on
// every node; the placer makes and opens the replicas that are its node's; CreateTopic answers when each partition has a ready
// leader. A topic whose creation was cut short by a crash goes the same way at the next start, since raft0's log is applied
// again. DeleteTopic has a command applied too; that takes the topic out of the placers, whose workers close the replicas;
// DeleteTopic answers when those here are closed; the background pool removes the files, one group after the other, and a
// start goes on with that.
//
// The path of a leadership: a replica says what it knows of its group (replica.Host); the table of leaders keeps the newest
// (leaders.go); each node tells the others what it leads, and what it leads no more (gossip.go); clients are sent to whom the
// table names. Leaderships go to the preferred replica when it is back, and to others before a node stops (transfer.go).
//
// The path of a message between replicas: peer.Transport hands it to peering.Message (peering.go), which finds the replica
// among the members (members.go). These are the replicas of groups of several: they tick, and hear of nodes that are gone.
//
// Beside that run: space.go, which watches the disk, refuses batches below the low-water mark and has those writers try
// again that have met a full disk; and housekeeping.go, which has all replicas expire producers, retain records and write
// base snapshots, and keeps the number of producers of the whole node below its cap.
//
// Open files are bounded below all this, by vfs.Bounded: replicas hold a file for each segment and its index, of which there
// may be hundreds, but only those in use are really open. Inspect and GiveUp work on a directory that no node uses.
package node
