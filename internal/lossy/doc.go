// Package lossy is a TCP proxy between Kafka clients and a broker that loses answers, cuts connections, delays and
// delivers in pieces, by seed: what a bad network does to a client whose retries must not be stored twice. It is test
// support; the broker does not import it.
//
// The broker is started with the proxy's address as the one that clients are told, so nothing needs to be rewritten.
// Of the protocol the proxy knows only that every request and every answer is a frame that begins with its length.
//
//  1. What it delivers is what it was given: frames in order, bytes unchanged. A connection on which something was
//     lost delivers nothing after it in that direction, as with TCP.
//  2. A fault is counted once it has happened, not when it was drawn.
//  3. The faults of the n-th connection follow from the seed, n and the frames on it. Which client gets the n-th
//     connection does not.
//  4. A frame whose length cannot be right and a broker that cannot be reached are not faults of the network: they
//     end the connection and are kept for Err.
//  5. Every frame is bounded by Options.FrameBytesMax before memory is taken for it.
//  6. Close returns after the last goroutine of the proxy has ended.
//
// Bytes take this path: client -> link.requests -> broker -> link.answers -> client.
package lossy
