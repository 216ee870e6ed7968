package dedupe

import "github.com/oncemq/oncemq/internal/batch"

// Verdict is what is to be done with a batch. The zero value is no verdict, so that a Decision that nobody made
// cannot be read as "store it".
type Verdict uint8

// The verdicts, with the answer that the producer gets.
const (
	// Append: the batch is new and in order; store it.
	Append Verdict = iota + 1
	// Duplicate: the batch is stored already; answer success with the original offset, store nothing.
	Duplicate
	// Fenced: the producer was replaced by a newer incarnation (INVALID_PRODUCER_EPOCH, 47).
	Fenced
	// OutOfOrder: a batch before this one is missing, or this one is too old to be recognised
	// (OUT_OF_ORDER_SEQUENCE_NUMBER, 45).
	OutOfOrder
)

var verdicts = [...]string{
	0: "none", Append: "Append", Duplicate: "Duplicate", Fenced: "Fenced", OutOfOrder: "OutOfOrder",
}

// String is the verdict's name.
func (v Verdict) String() string { return verdicts[v] }

// Reason is why a verdict was given. The set is closed; each reason belongs to one verdict.
type Reason uint8

// The reasons.
const (
	// NoProducer (Append): the batch carries no producer id, nothing is checked or remembered.
	NoProducer Reason = iota
	// FirstContact (Append): the producer is not known here and begins at sequence 0.
	FirstContact
	// FirstContactForgotten (Append): the producer is not known here and does not begin at 0, but the partition
	// may have forgotten it. Whether this batch is a retry of a stored one cannot be known.
	FirstContactForgotten
	// NextInSequence (Append): the batch begins where the last one ended.
	NextInSequence
	// NewEpoch (Append): a newer incarnation of the producer begins at sequence 0.
	NewEpoch
	// InWindow (Duplicate): both sequences are those of one of the last five batches of this epoch.
	InWindow
	// OldEpoch (Fenced): the epoch is older than the one seen last.
	OldEpoch
	// Gap (OutOfOrder): the batch begins ahead of the expected sequence; something before it is missing.
	Gap
	// Stale (OutOfOrder): the batch begins behind the expected sequence and is no remembered batch: too old, or
	// cut differently from what was stored.
	Stale
	// EpochNotFromZero (OutOfOrder): a newer incarnation must begin at sequence 0.
	EpochNotFromZero
	// FirstContactNotZero (OutOfOrder): a producer that this partition never knew must begin at sequence 0.
	FirstContactNotZero
)

var reasons = [...]string{
	NoProducer:            "NoProducer",
	FirstContact:          "FirstContact",
	FirstContactForgotten: "FirstContactForgotten",
	NextInSequence:        "NextInSequence",
	NewEpoch:              "NewEpoch",
	InWindow:              "InWindow",
	OldEpoch:              "OldEpoch",
	Gap:                   "Gap",
	Stale:                 "Stale",
	EpochNotFromZero:      "EpochNotFromZero",
	FirstContactNotZero:   "FirstContactNotZero",
}

// String is the reason's name.
func (r Reason) String() string { return reasons[r] }

// Decision is the answer to "may this batch be stored?".
type Decision struct {
	Verdict Verdict
	Reason  Reason
	// Base and Last are the offsets of the first and of the last record of the original. -1 unless Duplicate.
	Base, Last batch.Offset
	// Expected is the sequence with which a new batch of this producer and epoch would have to begin. -1 when
	// there is none: without a producer, and for an old epoch. 0 for a producer that is not known.
	Expected batch.Sequence
	// SeenEpoch is the newest epoch of the producer that was stored here, -1 when it is not known.
	SeenEpoch batch.Epoch
}

// AddsProducer reports whether recording the batch makes the partition remember one producer more.
func (d Decision) AddsProducer() bool {
	return d.Verdict == Append && (d.Reason == FirstContact || d.Reason == FirstContactForgotten)
}
