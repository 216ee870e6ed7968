package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
)

// code is a Kafka error code.
type code int16

// The codes that this broker answers.
const (
	codeUnknownServerError         code = -1
	codeNone                       code = 0
	codeOffsetOutOfRange           code = 1
	codeCorruptMessage             code = 2
	codeUnknownTopicOrPartition    code = 3
	codeLeaderNotAvailable         code = 5
	codeNotLeaderOrFollower        code = 6
	codeRequestTimedOut            code = 7
	codeMessageTooLarge            code = 10
	codeCoordinatorLoadInProgress  code = 14
	codeInvalidTopic               code = 17
	codeNotEnoughReplicas          code = 19
	codeNotEnoughAfterAppend       code = 20 // NOT_ENOUGH_REPLICAS_AFTER_APPEND
	codeInvalidRequiredAcks        code = 21
	codeInvalidTimestamp           code = 32
	codeUnsupportedVersion         code = 35
	codeTopicAlreadyExists         code = 36
	codeInvalidPartitions          code = 37
	codeInvalidReplicationFactor   code = 38
	codeInvalidReplicaAssignment   code = 39
	codeInvalidConfig              code = 40
	codeNotController              code = 41
	codeInvalidRequest             code = 42
	codeOutOfOrderSequenceNumber   code = 45
	codeInvalidProducerEpoch       code = 47
	codeTransactionalIDNotAllowed  code = 53 // TRANSACTIONAL_ID_AUTHORIZATION_FAILED
	codeStorageError               code = 56
	codeFetchSessionIDNotFound     code = 70
	codeFencedLeaderEpoch          code = 74
	codeUnknownLeaderEpoch         code = 75
	codeUnsupportedCompressionType code = 76
	codeOffsetNotAvailable         code = 78
	codePreferredNotAvailable      code = 80 // PREFERRED_LEADER_NOT_AVAILABLE
	codeElectionNotNeeded          code = 84
	codeInvalidRecord              code = 87
	codeUnknownTopicID             code = 100
)

// errorCodes maps every error that the node and its partitions document. replica.ErrRefused and replica.ErrStopped are
// not in it: the code of a refusal is the decision's, and after a stop nothing may be answered.
var errorCodes = []struct {
	err  error
	code code
}{
	{replica.ErrNotLeader, codeNotLeaderOrFollower},
	{replica.ErrTooLarge, codeMessageTooLarge},
	{replica.ErrOffline, codeStorageError},
	{replica.ErrDamaged, codeStorageError},
	{replica.ErrDiskFull, codeStorageError},
	{replica.ErrTooManyProducers, codeNotEnoughReplicas},
	{replica.ErrNotEnoughReplicas, codeNotEnoughReplicas},
	{replica.ErrCutOff, codeNotEnoughAfterAppend},
	{replica.ErrOutOfRange, codeOffsetOutOfRange},
	{meta.ErrInvalidName, codeInvalidTopic},
	{meta.ErrTopicExists, codeTopicAlreadyExists},
	{meta.ErrUnknownTopic, codeUnknownTopicOrPartition},
	{meta.ErrInvalidPartitions, codeInvalidPartitions},
	{meta.ErrInvalidReplication, codeInvalidReplicationFactor},
	{meta.ErrInvalidAssignment, codeInvalidReplicaAssignment},
	{meta.ErrInvalidSetting, codeInvalidConfig},
	{ErrNoLeader, codeLeaderNotAvailable},
	{ErrElectionNotNeeded, codeElectionNotNeeded},
	{ErrPreferredNotAvailable, codePreferredNotAvailable},
	{context.DeadlineExceeded, codeRequestTimedOut},
	{context.Canceled, codeRequestTimedOut},
}

// codeOf is the code of an error. It is false for one that is not in the table.
func codeOf(err error) (code, bool) {
	for _, e := range errorCodes {
		if errors.Is(err, e.err) {
			return e.code, true
		}
	}
	return codeUnknownServerError, false
}

// faultCode is the code of a batch that was refused before any decision about it.
func faultCode(f batch.Fault) code {
	switch f.Class() {
	case batch.ClassCorrupt:
		return codeCorruptMessage
	case batch.ClassTransactional:
		return codeTransactionalIDNotAllowed
	case batch.ClassTimestamp:
		return codeInvalidTimestamp
	default:
		return codeInvalidRecord
	}
}

// faultText says what came, where the header holds it; the fault says what was expected.
func faultText(f batch.Fault, h batch.Header, size int) string {
	switch f {
	case batch.FaultMagic, batch.FaultShort:
		return fmt.Sprintf("%s (%d bytes came)", f, size)
	case batch.FaultLengthBelowHeader, batch.FaultLengthBeyondEnd, batch.FaultTrailing:
		return fmt.Sprintf("%s (the batch has %d bytes by its length field, %d came)", f, h.Size, size)
	case batch.FaultBaseOffset:
		return fmt.Sprintf("%s (%d came)", f, h.BaseOffset)
	case batch.FaultCount:
		return fmt.Sprintf("%s (recordCount %d, lastOffsetDelta %d)", f, h.Count, h.LastOffsetDelta)
	case batch.FaultProducer:
		return fmt.Sprintf("%s (producerId %d, producerEpoch %d, baseSequence %d)", f, h.ProducerID, h.ProducerEpoch, h.BaseSequence)
	case batch.FaultControl, batch.FaultAttributes, batch.FaultCodec, batch.FaultTransactional, batch.FaultTimestampType:
		return fmt.Sprintf("%s (attributes %#x)", f, uint16(h.Attributes))
	default:
		return f.String()
	}
}

// decisionCode is the code of a batch that the partition decided not to store.
func decisionCode(v dedupe.Verdict) (code, bool) {
	switch v {
	case dedupe.Fenced:
		return codeInvalidProducerEpoch, true
	case dedupe.OutOfOrder:
		return codeOutOfOrderSequenceNumber, true
	default:
		return codeUnknownServerError, false
	}
}

// decisionText tells a producer what came and what was expected.
func decisionText(d dedupe.Decision, s batch.Stamp) string {
	came := fmt.Sprintf("producer %d epoch %d: sequence %d to %d came", s.ID, s.Epoch, s.First, s.Last)
	switch d.Reason {
	case dedupe.OldEpoch:
		return fmt.Sprintf("%s, but epoch %d has begun: a newer incarnation of this producer is at work", came, d.SeenEpoch)
	case dedupe.Gap:
		return fmt.Sprintf("%s, %d was expected: a batch in between is missing", came, d.Expected)
	case dedupe.Stale:
		return fmt.Sprintf("%s, %d was expected: too old to be recognised, or cut differently from what is stored", came, d.Expected)
	case dedupe.EpochNotFromZero:
		return fmt.Sprintf("%s, %d was expected: a new epoch begins at 0 (epoch %d was the newest)", came, d.Expected, d.SeenEpoch)
	case dedupe.FirstContactNotZero:
		return fmt.Sprintf("%s, %d was expected: the producer is new to this partition, so a batch before this one is missing", came, d.Expected)
	default:
		return fmt.Sprintf("%s: %s", came, d.Reason)
	}
}

// ackCode is the code and the text of a partition's answer. It is false when nothing may be answered: whether the batch
// is stored is not known then, and only a closed connection says so.
func ackCode(ack replica.Ack, h batch.Header) (code, string, bool) {
	switch {
	case ack.Err == nil:
		return codeNone, "", true
	case errors.Is(ack.Err, replica.ErrRefused):
		c, ok := decisionCode(ack.Decision.Verdict)
		return c, decisionText(ack.Decision, h.Stamp()), ok
	case errors.Is(ack.Err, replica.ErrStopped):
		return codeUnknownServerError, "", false
	case errors.Is(ack.Err, replica.ErrTooLarge):
		return codeMessageTooLarge, fmt.Sprintf("%v: %d bytes came", ack.Err, h.Size), true
	case errors.Is(ack.Err, replica.ErrDiskFull):
		return codeStorageError, fmt.Sprintf("%v: nothing new is stored until there is room; delete records or topics, keep less (log.retention.*), or make the disk larger, and send this again", ack.Err), true
	case errors.Is(ack.Err, replica.ErrCutOff):
		return codeNotEnoughAfterAppend, fmt.Sprintf("%v: it is not known whether it is stored, and sending it again finds out", ack.Err), true
	default:
		c, ok := codeOf(ack.Err)
		return c, ack.Err.Error(), ok
	}
}

// readCode is the code of a failed read, or of a failed change of the log start: retriable, whatever it was, but for an
// offset that does not exist. Who was cut off, as a leader that was deposed is, cannot know what has become of a change;
// the new leader makes it anew.
func readCode(err error) code {
	if errors.Is(err, replica.ErrStopped) || errors.Is(err, replica.ErrCutOff) {
		return codeNotLeaderOrFollower
	}
	if c, ok := codeOf(err); ok {
		return c
	}
	return codeStorageError
}
