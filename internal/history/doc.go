// Package history records what was sent to one partition and what was answered, and judges what was read back:
// the exactly-once checker of the campaigns and end-to-end tests. It is test support; the broker does not import it.
//
// Every record carries a value that is never sent twice: a producer and a number that this producer counts up
// (Value, AppendPayload, ParsePayload). With unique values and answered offsets no search is needed: sorting
// decides everything, in O(n log n) of the records.
//
// A caller opens one History per partition, calls Invoke before the first byte of a batch leaves, Stored or
// Refused after its answer arrived (neither when the outcome stays unknown), Read for every pass over the log,
// and Judge at the end. A retry of the same bytes is the same send: it is not invoked again. Where records may be deleted
// or producers forgotten while the load runs, Trim and MayRepeat say what is no fault for that reason.
//
// What a faultless partition fulfils, and the count in Verdict that says otherwise:
//
//  1. Every value answered as stored, and not trimmed, is there (Lost), at the offset that was answered (WrongOffset).
//  2. No value stands at two offsets (Duplicate), unless it may repeat.
//  3. No value is there that was refused for good, or that nobody sent (Phantom).
//  4. A batch is there as a whole, at consecutive offsets, or not at all (Torn); its beginning may be trimmed.
//  5. The values of one producer stand in the order in which they were numbered (Reordered).
//  6. All reads agree on what an offset holds (Divergent), and each gets every offset of its range once, in
//     rising order (Gap).
//  7. All answers to one batch and its retries are the same (Contradicted).
//  8. JudgeRealTime only: what was answered before another send began stands before it (Stale).
package history
