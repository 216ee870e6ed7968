package batch

// Offset is the position of a record in a partition, counted from 0. -1 means "none".
type Offset int64

// ProducerID names one idempotent producer. -1 means that the batch carries none.
type ProducerID int64

// Epoch is the incarnation of a producer id, 0 to 32767; -1 means "none". It is not the leader epoch: that is Term.
type Epoch int16

// Sequence numbers the records of one producer on one partition. Sequences live modulo 2^31: after 2147483647
// comes 0. -1 means "none".
type Sequence int32

// Term is a Raft term as a batch carries it in partitionLeaderEpoch. Kafka reads that field as a signed 32-bit
// leader epoch, so a term stays at or below 2147483647.
type Term uint32
