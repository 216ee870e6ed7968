// Package meta is the state machine of the cluster's metadata: which nodes and topics there are, which Raft group each
// partition is, which start numbers were given out, and what was deleted.
//
// Its commands are the entries of the metadata group, raft0. Every node applies the same commands in the same order and
// so has the same State; nothing else goes in: no clock, no randomness (the proposer draws what must be random, and it
// stands in the command), no file, no lock.
//
// Invariants:
//
//  1. Equal commands in equal order make equal states, byte for byte (AppendTo), and equal results.
//  2. A refused command is refused by all nodes alike, and changes nothing.
//  3. A start number is given out once, to one nonce of one node; they rise. Together with ProducerIDs: no producer id
//     is given out twice.
//  4. A group id is given out once; they rise from 1. Each that was given out is a partition of one topic, or deleted
//     for ever: what a node may remove from its disk is said outright, never concluded from what is not there.
//  5. A View never changes. What a later command does to the State is seen in a later View only.
//  6. Of two topics neither name nor id are equal, and no two names differ only in '.' and '_'. No topic has the id of one
//     of the last DeletedNamesMax that were deleted.
//  7. Whoever asks for it when creating a topic has every start number marked that was given out before: the topic may
//     have had the name of another one, which producers outlived.
//
// The path of data: a node encodes a Command and proposes it; when the entry is committed, each node's loop of raft0
// calls Apply, publishes State.View for the readers (Metadata, Produce, …), and answers the proposer by the Result. A node
// opens the groups of the topics in the View, and removes those of which View.GroupDeleted is true.
// AppendTo is the body of raft0's base snapshot, Parse reads it at start.
package meta
