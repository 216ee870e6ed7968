// Package server speaks the Kafka protocol: it listens, reads requests, hands them to the node and writes answers.
//
// Each connection has one goroutine that reads requests, in the order in which they come, and carries them out. Only
// produces overlap. Their batches go into the partitions' mailboxes in that order, and a second goroutine of the
// connection writes the answers, again in that order, as the partitions give them:
//
//	socket → frame → wire.ParseProduce → batch.CheckProduce → queue, Partition.Submit  (reading goroutine)
//	                                                    Done ← partition's goroutine
//	socket ← wire.ProduceEncoder ← one result for each partition                       (writing goroutine)
//
// Every other request begins when the answers before it are written, is carried out by the reading goroutine, and
// is answered by it:
//
//	socket → frame → kmsg → handler (one file for each API) → kmsg or wire.FetchEncoder → socket
//
// Invariants:
//
//  1. The answers of a connection are written in the order of its requests.
//  2. A produce request is carried out only if the whole of it could be read; then each partition in it gets exactly
//     one result, whatever happens to the others. No result says "not stored" of a batch that a partition accepted:
//     where that is in doubt, the result is REQUEST_TIMED_OUT (7), or the connection is closed without one.
//  3. The bytes of a batch stay where the socket put them until the partition has taken them (replica.Done.Taken);
//     then their buffer is used again. Nothing else keeps a part of a request frame once the request is parsed.
//  4. What a connection holds is bounded: a frame by the bound of its API, memory for a frame by what has arrived of
//     it, outstanding produces by number and bytes, what a partition has accepted by the partition. At a bound the
//     connection is not read.
//  5. What all connections hold together is bounded (budget.go): requests, what they are turned into, and answers. At a
//     bound a request waits, before it is read or before its answer is made; none fails. Whoever waits waits for the
//     disk, for other requests that wait for nothing that comes before, or for clients; and no client is waited for any
//     longer than the janitor allows.
//  6. A connection is closed as idle only between two requests, when none is unanswered.
//  7. A connection leaves exactly one line in the log that says why it was closed, unless the client or the network
//     ended it between two requests or did not take an answer, or the server stops, or the janitor closed it: what that
//     cuts is counted in one line. However many connections there are, the lines are bounded (Server.closings).
//
// The package has no state outside Server, and reads no clock but the one that it is given; timers are the time
// package's. What it needs of the node is declared in ports.go.
package server
