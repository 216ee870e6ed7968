// Package wire reads Kafka request frames and writes response frames, with bounds.
//
// A frame is a 4-byte length and what it counts: a request header and a body whose layout depends on the API key
// and version. Most bodies are decoded and encoded by kmsg; this package adds what a broker needs around it:
//
//	socket → ParsePrefix → CheckFrame → ParseHeader → ParseProduce, or Decode (kmsg)
//	       ← EndResponse ← ProduceEncoder, FetchEncoder, or kmsg ← BeginResponse
//
// Produce requests are read in place, because kmsg makes structs of 64 bytes out of two bytes on the wire and a
// Produce frame may have 100 MiB. Produce and Fetch responses are written by hand, so that encoding a Produce
// answer allocates nothing and the record bytes of a Fetch answer are read from the file into their final place.
//
// Invariants:
//
//  1. No length or count from the network causes an allocation before it was held against the bytes present.
//  2. ParseProduce and its cursor allocate nothing; every slice they return is a part of the frame.
//  3. A frame that CheckFrame accepts for any API but Produce can be decoded with less than 64 MiB allocated.
//  4. Once ParseProduce has accepted a body, its cursor gives exactly the topics and partitions it counted.
//
// The package reads no clock and no socket, and keeps no state.
package wire
