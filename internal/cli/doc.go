// Package cli is what the commands topic, produce and consume do. It is a Kafka client like any other, on franz-go: it
// knows nothing of the broker but the protocol, and works with other brokers too. Flags and help texts are in
// cmd/oncemq.
//
// Invariants:
//
//  1. What cannot be done as asked is refused before anything is sent: a property, a format or an offset that is not
//     understood, or that the client cannot honour, is an error and never ignored.
//  2. Every line that was read as a whole ends as acknowledged, as failed or as not acknowledged, and the counts of
//     these are told at the end. Nothing is counted as acknowledged before the broker said so.
//  3. Memory is bounded for endless input and output: two buffers of input, one line of at most the largest record,
//     and what the client may buffer (buffer.memory, and bufferedRecordsMax records).
//  4. Bytes are kept: a key and a value go out and come in as they are. A line ends at a line feed, which belongs to
//     no record; nothing else is trimmed.
//  5. Waiting ends: a broker that cannot be reached is an error after patience, an acknowledgement that does not come
//     one after delivery.timeout.ms, and whatever waits says on stderr for what. Only reading input and following a
//     topic have no end of their own.
//
// A line of produce takes this path: source reads a block (its own goroutine) -> lineSplitter finds the lines ->
// production.send copies one, splits off the key and hands it to franz-go, which blocks when its buffers are full ->
// production.done counts the answer. A record of consume: franz-go -> consumption.take drops what was not asked for ->
// Format.Append -> a buffer before stdout that is flushed whenever nothing more is at hand.
package cli
