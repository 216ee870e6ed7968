// Package seglog stores the log of one Raft group in segment files: appends, indexes, reads and recovers it.
//
// The log of a partition is its Raft log. An entry is a record batch, stored byte for byte, or a zero-width frame, which
// owns a Raft index but no offset. A segment is a file that begins with a header frame and goes on with entries in the
// order of their index; it is named by its first index, in 20 digits. Beside it lies the index file, 32 bytes an
// entry: made from the log, made again when it does not agree with it. Other files in the directory are nobody's
// business here.
//
//	00000000000000000002.log   header frame | entry 2 | entry 3 | ... | entry 99
//	00000000000000000002.idx   record of 2  | record of 3  | ...
//	00000000000000000100.log   header frame | entry 100 | ...
//
// # Invariants
//
//	(L1) Indexes run from FirstIndex to LastIndex, offsets from FirstOffset to NextOffset, both without a gap.
//	(L2) A term is never lower than the one before it, and higher only at an entry of KindEmpty.
//	(L3) A header frame and its directory entry are durable before the segment's first entry is written.
//	(L4) A segment is durable before the first byte of the next one is written: only the last may end badly.
//	(L5) Record k of an index file is written after the bytes that it names, and goes before they are cut off. It
//	     describes entry first + k: an entry that the index names was whole when the process ended.
//	(L6) A reader is shown only what is written whole, and that does not change any more. What is taken away from it, by
//	     DropBefore, TruncateSuffix or Reset, it is told of by ErrOutOfRange; a read of what stays does not notice.
//	(L7) Opening never cuts off what is valid, and changes nothing before it has read and judged all.
//	(L8) After a failed sync nothing is written or reported durable any more: the pages that could not be written count
//	     as clean, and another sync would succeed without them.
//	(L9) Segments go one by one, from the beginning of the log or from its end, each for good before the next one: what
//	     a crash leaves of them is a log without a gap. Only Reset takes all; that it was begun is kept elsewhere.
//	(L10) What damage makes unusable is never deleted here: Open refuses it, and Abandon, and a cut after the end of the
//	      machine, keep it in side files, which are on disk before the log is shortened.
//
// The appender may assume (L1) and (L2) of what is on disk and checks them of what it is given. Open proves (L1) to (L4)
// of what it reads, which is all from OpenOptions.From on. Each read proves what it returns, checksums included: no
// damage is ever served, wherever it is and however old. A read that meets damage in a sealed segment first has the whole
// segment read, once, as its index may be all that is wrong: then that is made right, and the read repeated.
//
// # Path of the data
//
// Append checks the entries, writes them with one pwritev from where they are, writes their index records, and shows
// them to readers. Sync makes them durable; End is then the durable mark, which the caller keeps elsewhere and hands
// to Open as the floor. Locate finds the batches for a range of offsets, Read copies and checks them; sealed segments
// (all but the last) keep no index in memory. DropBefore takes whole segments from the beginning, TruncateSuffix entries
// from the end, which another leader has others for, and Reset all, for a snapshot; nothing else removes data in the course
// of events. When Open has found damage, Inspect tells how far it goes, and Abandon goes on
// without it.
package seglog
