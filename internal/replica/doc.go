// Package replica is one replica of one Raft group: a partition, or raft0, the group that holds the cluster's metadata.
//
// Each replica is a pure core inside a thin shell. The core (core.go; on top of it metadata.go, or partition.go with
// apply.go, producers.go, beginnings.go and retention.go) holds a raft.RawNode, the state that its committed entries add
// up to, and those who wait for an entry; it takes values and returns values, and knows no clock, no file and no
// goroutine. The shell (loop.go) is the one goroutine that owns a core: it takes what waits in the mailbox, steps the
// core, hands what is to be stored to the flushers (package raftlog) and delivers the answers. It never waits for a
// disk. What others call is in replica.go, housekeeping.go and metadata.go.
//
// Invariants of a partition:
//
//  1. The head decides as a table would that had applied the whole log: it is the applied table plus this leader's own
//     proposals in log order. Nothing else can append in between: deciding, stamping and proposing happen in one step
//     of one goroutine, and proposals are never forwarded to another replica.
//  2. A leader serves only after the first entry of its own term is applied: then all that earlier leaders stored is in
//     the table. Until then nothing is decided; the answer is retriable.
//  3. A batch and its retry wait in the same place, as long as their acks ask for: with acks=all for the entry that holds
//     the original to be applied, and on the disks of min.insync.replicas replicas; with acks=1 for it to be on the leader's.
//     So a retry is never answered before its original could be, and gets the same offset.
//  4. Every applied batch is decided once more, on every replica, by the same function. A difference means that the log
//     and the rule do not agree; the partition then goes offline with all that is needed to understand it, and
//     nothing is answered that was not certain before.
//  5. The high watermark is the offset after the last applied batch. It is published before the answers that it
//     allows, so that a read that begins after an answer finds the record.
//  6. Once Raft has accepted a batch, its submission ends with success, with ErrCutOff or with ErrStopped, never with an
//     error that says "not stored". A retry of it neither, as long as it is recognised. A leader that steps down keeps those
//     who wait: success when the entry of this index and this term is applied here after all, ErrCutOff when another one
//     takes its place.
//  7. What is forgotten, and where the log starts, is decided by the leader and stands in the log: expire, evict and log
//     start entries. A producer is forgotten for no other reason, never before the time of its setting has passed
//     since its last batch, and never while a batch of it is on its way.
//  8. A base snapshot is the state behind the last entry of a segment, and nothing else. It is copied in the loop when
//     the applied index stands exactly there, and written beside the loop.
//  9. A segment is removed when all of it lies below the applied log start and the next one has its base snapshot.
//  10. The node's count of producers is what the head remembers, after each turn, from the open to the end of Close.
//  11. When the first batch of a producer that may have been forgotten is refused for a reason that passes, none behind it
//     is taken as the beginning instead, for some minutes and as far as this leader's memory goes (beginnings.go).
//  12. In a group of several, what makes a client give up is said only when a majority has confirmed, after the decision, that
//     this replica leads (reads.go). An old leader that is cut off says nothing but what is retriable.
//  13. A message of another replica that no replica in order sends is dropped, before Raft panics at it (guard.go). A replica
//     that has lost the end of its log stays behind, and the process goes on.
//  14. A base snapshot of another replica is verified whole before Raft hears of it, and becomes the state in the turn in
//     which the writer has put it in the place of the log (install.go).
//  15. A replica that goes offline neither ticks nor answers in its group: the others elect among themselves.
//
// A group of one is never ticked, campaigns once at its start, confirms by itself that it leads, and waits for nobody's disk
// but its own. In a group of several Raft's ticks come from the node, each 100 ms; beside its timeouts a replica campaigns
// when the node has lost the leader's process, one voter after the other (election.go).
//
// The path of a batch: Submit (bounded, in call order) → loop → Partition core: decide on head, stamp base offset and
// term, all waiting batches in one proposal → Ready → other replicas, and flusher: write, fdatasync → responses → loop:
// commit, apply on table, raise the high watermark, answer.
//
// The path of a segment: the flusher begins it → the loop hears of its first index, before any of its entries can be
// applied → applied stands before it: cut the state → Background: encode, write → the segment before it may go.
//
// Times are log times: a batch is preceded by a clock entry when the newest is one interval old, and a producer's time is
// that of the clock entry before its last batch. Between clock entries the leader counts on by monotonic time. So log time
// stands still while nobody leads, and idle times come out too short, by the interval at most too long, which every
// judgement allows for.
package replica
