package replica

import (
	"errors"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/seglog"
)

// The failures with which a partition ends a submission. A refusal is no failure of the partition: it is
// ErrRefused with the decision beside it.
var (
	// ErrNotLeader: this replica does not lead, or is not ready yet; the batch was never accepted (Kafka code 6).
	ErrNotLeader = errors.New("not the leader of this partition, or not ready yet")
	// ErrRefused: the decision says that this batch must not be stored (Kafka codes 45 and 47).
	ErrRefused = errors.New("batch refused")
	// ErrTooLarge: the batch is larger than max.message.bytes and not a retry of a stored one (Kafka code 10).
	ErrTooLarge = errors.New("batch larger than max.message.bytes")
	// ErrOffline: the partition cannot store or read; the batch was never accepted (Kafka code 56).
	ErrOffline = errors.New("partition is offline")
	// ErrDiskFull: the disk has too little room left for new batches; the batch was never accepted (Kafka code 56).
	ErrDiskFull = errors.New("disk is full")
	// ErrTooManyProducers: a new producer, and the partition or the node remembers as many as it may, none of which
	// it may forget yet; the batch was never accepted (Kafka code 19). The text says which cap, and when it can go on.
	ErrTooManyProducers = errors.New("too many producers")
	// ErrDamaged: what was to be read is stored, and the disk gives back something else (Kafka code 56).
	ErrDamaged = errors.New("stored data is damaged")
	// ErrOutOfRange: the offset lies below the log start or above the log end (Kafka code 1).
	ErrOutOfRange = errors.New("offset out of range")
	// ErrNotEnoughReplicas: fewer replicas are in sync than min.insync.replicas asks for; the batch was never accepted
	// (Kafka code 19).
	ErrNotEnoughReplicas = errors.New("fewer replicas in sync than min.insync.replicas")
	// ErrCutOff: the batch was accepted, and then leadership was lost: it was cut off this replica's log, where another
	// replica may still bring it back, or on how many replicas it is cannot be known here. The client's retry finds out
	// (Kafka code 20).
	ErrCutOff = errors.New("accepted, and then leadership was lost")
	// ErrStopped: the node stops. Whether an accepted batch is stored is unknown, so the connection is closed
	// and the client's retry finds out.
	ErrStopped = errors.New("partition is stopped")
)

// Done receives the end of one submission.
type Done interface {
	// Taken says that the partition needs the bytes of the batch no more. It is called exactly once, before Done.
	Taken()
	// Done delivers the answer, exactly once, from the partition's goroutine; it must not block.
	Done(Ack)
}

// Submission is one batch on its way into a partition.
type Submission struct {
	// Batch is the whole record batch. It belongs to the partition, which writes base offset and term into it,
	// until Done.Taken is called.
	Batch  []byte
	Header batch.Header
	// Acks is what the producer waits for: -1 for the commit and min.insync.replicas, 1 and 0 for the leader's disk.
	Acks int16
	Done Done
}

// submissionBytes is about what a submission costs beside its batch, in the mailbox, in Raft and in flight: without it, batches
// of one small record would take many times the bound on what is accepted.
const submissionBytes = 512

// held is what the submission counts for in the mailbox, in bytes.
func (s *Submission) held() int { return s.Header.Size + submissionBytes }

// Ack is the answer to a Submission.
type Ack struct {
	// Base is the offset of the batch's first record: where it was stored, now or by the original of which it is
	// a retry. -1 when Err is set.
	Base batch.Offset
	// LogStart is the partition's log start offset when the answer was made.
	LogStart batch.Offset
	// Decision is set for a retry (Duplicate) and when Err is ErrRefused.
	Decision dedupe.Decision
	// Err is nil, or one of this package's errors, possibly wrapped.
	Err error
}

// Status is what a partition says of itself to readers. It is a snapshot.
type Status struct {
	// Ready: this replica leads and has applied the first entry of its own term. Until then every read and write
	// gets a retriable answer.
	Ready bool
	// Term is the Raft term, Kafka's leader epoch. It never goes backwards.
	Term batch.Term
	// LogStart is the first offset that may be read, HighWatermark the first that may not be read yet, NextOffset
	// the first that is not stored yet. LogStart <= HighWatermark <= NextOffset.
	LogStart, HighWatermark, NextOffset batch.Offset
	// Producers is how many producers the partition remembers, those of accepted batches counted.
	Producers int
	// OldestIdle is how long the least recently used of them that may be evicted has been idle by log time: at least
	// so long, as of the last look; 0 when there is none, or the partition is offline. Every expiry and eviction looks anew.
	OldestIdle time.Duration
	// Offline is why the partition can neither store nor read; nil while it can.
	Offline error
	// Leader is the replica that leads, as far as this one knows; 0: unknown.
	Leader seglog.ReplicaID
	// InSync are the replicas in sync, ascending, this one included; of a leader only. Nobody may change it.
	InSync []seglog.ReplicaID
}

// Settings are the broker settings that every partition of a node obeys. They are shared and do not change.
type Settings struct {
	// MaxMessageBytes is the largest batch that is stored (message.max.bytes).
	MaxMessageBytes int
	// ProducerExpiration is how long a producer is silent before it is forgotten (producer.id.expiration.ms).
	// ProducerEvictionMinAge is how long at least, when a cap is reached (producer.id.eviction.min.age.ms).
	ProducerExpiration, ProducerEvictionMinAge time.Duration
	// ProducersMax is how many producers a partition remembers (producer.id.max.per.partition), from 1 upwards.
	ProducersMax int
	// Retention is how long records are kept, by their timestamps (log.retention.ms); < 0: for ever.
	Retention time.Duration
	// RetentionBytes is how many bytes of a partition are kept (log.retention.bytes); < 0: all.
	RetentionBytes int64
	// LagMax is how long a replica that is not level with its leader counts as in sync (replica.lag.time.max.ms); 0: 30 s.
	LagMax time.Duration
	// SegmentAge is the log time after which a segment is not appended to any more (log.roll.ms).
	SegmentAge time.Duration
}

// Host is what a replica needs of its node while it runs. No method may block.
type Host interface {
	// DiskFull says that no new batch is to be accepted.
	DiskFull() bool
	// Background has job run later, on another goroutine, one of a bounded number. A job that is dropped is not made up
	// for before the replica is opened again. One that runs after the replica was closed does nothing.
	Background(job func())
	// ReserveProducer counts one more producer of the node; false, and nothing is counted, at the node's cap
	// (producer.id.max.per.node).
	ReserveProducer() bool
	// CountProducers adds n to the node's count of producers, whatever the cap says: those that are there already
	// when a partition is opened (n > 0), and those that were forgotten, or are of a partition that is closed
	// (n < 0).
	CountProducers(n int)
	// Damaged tells of damage that a read has met, each time, or that took the replica offline, for log and console.
	Damaged(err error)
	// Led tells that what the replica knows of its group's leadership has changed.
	Led(Leadership)
}

// Chore is a piece of housekeeping, or several: they can be combined by |.
type Chore uint8

// The chores.
const (
	// Expire forgets producers that were silent for ProducerExpiration (producer.id.expiration.check.interval.ms).
	Expire Chore = 1 << iota
	// Retain moves the log start by Retention and RetentionBytes, begins a new segment by SegmentAge, and removes
	// segments that are not needed any more (log.retention.check.interval.ms).
	Retain
	// RetryBases writes base snapshots that could not be written, and removes segments that could not be removed.
	RetryBases
)
