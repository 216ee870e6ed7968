// Package rawkafka is a Kafka client with nothing between the caller and the wire: one connection, requests as the
// caller wrote them, answers as they came. It is test support; the broker does not import it.
//
// A retry that repeats the same bytes, five requests in flight, a batch with one wrong field, half a frame: a real
// client library hides or forbids all of these. Client sends kmsg types at exactly the version that the caller set,
// pipelined when wanted, and raw bytes. Batch builds record batches (format v2, uncompressed), right ones by
// default; the tests break one field of the finished bytes and, where it lies under the checksum, call Seal.
//
//  1. Nothing is retried, reconnected, split, reordered or decompressed here.
//  2. Every wait ends: each read and write has the deadline of Options.Timeout.
//  3. Every answer is bounded by Options.FrameBytesMax before memory is taken for it.
//  4. Batches are read with this package's own code, not with the broker's, so that an error in the broker's parser
//     cannot hide itself.
//
// Bytes take this path: Batch.Bytes -> ProduceRequest.Records -> Send -> connection; connection -> Receive ->
// FetchResponse -> ReadBatches.
package rawkafka
