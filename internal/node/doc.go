// Package node is one OnceMQ node: it opens everything in order, gives each partition its replica, keeps house for all of
// them, and closes in reverse.
//
// Invariants:
//
//  1. One process at a time uses a data directory (LOCK), and nothing is touched before the lock is held.
//  2. What is opened is opened in this order: lock, state file, flushers, raft0, partitions; and closed in reverse. The
//     background pool works until the last replica is closed.
//  3. A group's files are durable before the state file names its replica; a replica that is named has its files, or is
//     damaged, until the state file says that it is gone.
//  4. Producer ids are given out only under a start number that this run of the process got from raft0, which never
//     repeats.
//  5. A node says that it is ready when every partition that raft0 knows has a ready leader, or is offline and the log says
//     why. Damage of one partition, and a disk that is full, end nothing; damage of raft0 or the state file ends the start.
//  6. The files of a group are removed only after raft0 has applied the deletion of its topic. A group of which raft0 knows
//     nothing is reported and left as it is.
//  7. What was accepted is written in the end, however long the disk is full; what would not find room is refused before.
//
// The path of a topic: CreateTopic proposes a command to raft0; applying it mints the group ids and puts the topic into
// the placer's queue; the placer makes and opens the replicas; CreateTopic answers when all are ready. A topic whose
// creation was cut short by a crash goes the same way at the next start, since raft0's log is applied again. DeleteTopic
// proposes a command too; applying it takes the topic out of the placer, whose workers close the replicas; DeleteTopic
// answers when all are closed; the background pool removes the files, one group after the other, and a start goes on with
// that.
//
// Beside that run: space.go, which watches the disk, refuses batches below the low-water mark and has those writers try
// again that have met a full disk; and housekeeping.go, which has all replicas expire producers, retain records and write
// base snapshots, and keeps the number of producers of the whole node below its cap.
//
// Open files are bounded below all this, by vfs.Bounded: replicas hold a file for each segment and its index, of which there
// may be hundreds, but only those in use are really open. Inspect and GiveUp work on a directory that no node uses.
package node
