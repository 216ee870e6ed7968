// Package dedupe decides whether a producer's batch is new, a retry of a stored one, from a replaced producer, or
// out of order. It is the promise of OnceMQ in one place, and pure: no file, clock, lock, randomness or log.
//
// # The rule
//
// Per partition and producer id a Table remembers the epoch and the last five batches that were stored. A batch is
// judged by the first line that fits:
//
//  1. same epoch, and first and last sequence are those of a remembered batch: Duplicate, with its offsets
//  2. epoch older than the remembered one: Fenced
//  3. epoch newer: Append when it begins at sequence 0, else OutOfOrder
//  4. begins at the sequence after the last stored one: Append
//  5. producer not known: Append when it begins at 0, or when the partition may have forgotten it; else OutOfOrder
//  6. anything else: OutOfOrder
//
// A batch without a producer is always appended. Sequences live modulo 2^31: after 2147483647 comes 0, and one batch
// may wrap. Both ends must match in line 1: a batch that shares only its first sequence with a stored one may have
// records that were never stored, and saying "stored" would lose them.
//
// # Marks
//
// What a partition forgets leaves a mark, so that a producer that lived on may continue at any sequence, while one
// that the partition never knew must begin at 0: else the loss of its first batch would go unseen. A producer id is a
// start number (its upper 32 bits) and a counter (its lower 32). Ids rise within a start number, so one mark per
// start number, the highest counter forgotten, covers all that were forgotten; start numbers rise as well, so beyond
// marksMax the lowest ones merge into a floor below which every id counts as forgotten.
//
// # Invariants
//
// Of a Table, checked by Check and required by Parse; n is the number of batches in a producer's window:
//
//	(D1) 1 <= n <= 5, id >= 0, epoch >= 0
//	(D2) batch i+1 begins at the sequence after batch i's last; no batch spans all 2^31 sequences
//	(D3) every base offset is from 0 to batch.MaxBaseOffset; batch i+1 lies wholly above batch i
//	(D4) n < 5 and the id is not marked: the window begins at sequence 0
//	(D5) -1 <= producer's clock <= table's clock
//	(D6) at most marksMax marks, their start numbers ascending and >= floor
//
// Of a Head, in which proposals are "on their way" from when Raft has accepted them until they are applied:
//
//	(H1) it decides every batch, and counts producers, as a Table would that had applied the whole log
//	(H2) it holds copies of exactly the producers that proposals on their way name, and marks of its own exactly
//	     while one of these forgets
//	(H3) nobody is forgotten of whom an earlier proposal is on its way
//
// # Path of the data
//
// The leader decides on a Head: the applied Table plus what its own proposals that are not applied yet will make of
// it. Whom to forget it learns from Head.Idle; the entry that says so goes into the log like a batch, and counts on the
// head from its proposal on (Head.Forget). Every replica applies committed entries to its Table: batches by Record,
// clock entries by SetClock, expiry and eviction by Forget; the leader's Head hears of it by Applied and ForgetApplied.
// A Table depends on nothing but those entries, so equal logs give equal tables, and AppendTo writes equal tables as
// equal bytes. For a base snapshot a Clone is written, by another goroutine than the table's.
package dedupe
