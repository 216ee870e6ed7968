// Package sim runs whole clusters of replicas in one goroutine, in virtual time, with faults, and checks what they promise.
// It is test support.
//
// A run is a function of its seed: one PCG source draws the cluster, its faults (Swarm) and every delay, and all that
// happens is an event of one queue ordered by time. Product code runs inside events only: replicas and flushers are
// stepped, files are in memory (vfs/memfs), the clock is virtual, messages between replicas pass a simulated network.
// Raft takes its jitter from crypto/rand, so a run belongs into a test that has called cryptotest.SetGlobalRandom; the few
// calls that block run on goroutines of a testing/synctest bubble and are waited for, one event at a time.
//
// The path of a batch: producer → (request, delay) → node → Partition.Submit → turns and flushes as events → messages →
// (link, delay, loss) → other nodes → commit → Done → (answer, delay) → producer → history.
//
// A run has two phases. Safety: everything may fail, each node comes back in the end. Liveness: all is healed and nothing
// fails any more; all that was begun must end, and each partition must take a new batch, within a bounded time.
//
// What is checked, outside of the system:
//
//  1. What was answered stands at its offset, once and in order; nothing else stands there (package history).
//  2. Committed entries never differ between replicas, nor from one run of a process to the next: index, term, bytes.
//  3. Every committed batch is what the rule would have made, at the next offset, stamped with its entry's term; and each
//     base snapshot on each disk is, byte for byte, the state that a second application of the log comes to.
//  4. A term has one leader.
//  5. At one process the term and the high watermark do not go back.
//  6. A batch of which all earlier ones are answered is never refused by sequence or epoch.
//  7. A confirmed read sees all that was answered before it began.
//  8. Nobody waits when all is quiet.
//  9. No replica goes offline, and no process ends, but for a fault that the run has planted.
package sim
