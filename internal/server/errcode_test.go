package server

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
)

func TestCodesAreKafkas(t *testing.T) {
	for code, name := range map[code]string{
		codeUnknownServerError: "UNKNOWN_SERVER_ERROR", codeOffsetOutOfRange: "OFFSET_OUT_OF_RANGE", codeCorruptMessage: "CORRUPT_MESSAGE",
		codeUnknownTopicOrPartition: "UNKNOWN_TOPIC_OR_PARTITION", codeLeaderNotAvailable: "LEADER_NOT_AVAILABLE",
		codeNotLeaderOrFollower: "NOT_LEADER_FOR_PARTITION", codeRequestTimedOut: "REQUEST_TIMED_OUT", codeMessageTooLarge: "MESSAGE_TOO_LARGE",
		codeCoordinatorLoadInProgress: "COORDINATOR_LOAD_IN_PROGRESS", codeInvalidTopic: "INVALID_TOPIC_EXCEPTION",
		codeNotEnoughReplicas: "NOT_ENOUGH_REPLICAS", codeNotEnoughAfterAppend: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
		codePreferredNotAvailable: "PREFERRED_LEADER_NOT_AVAILABLE", codeElectionNotNeeded: "ELECTION_NOT_NEEDED",
		codeInvalidRequiredAcks: "INVALID_REQUIRED_ACKS", codeInvalidTimestamp: "INVALID_TIMESTAMP", codeUnsupportedVersion: "UNSUPPORTED_VERSION",
		codeTopicAlreadyExists: "TOPIC_ALREADY_EXISTS", codeInvalidPartitions: "INVALID_PARTITIONS",
		codeInvalidReplicationFactor: "INVALID_REPLICATION_FACTOR", codeInvalidReplicaAssignment: "INVALID_REPLICA_ASSIGNMENT",
		codeInvalidConfig: "INVALID_CONFIG", codeNotController: "NOT_CONTROLLER", codeInvalidRequest: "INVALID_REQUEST",
		codeOutOfOrderSequenceNumber: "OUT_OF_ORDER_SEQUENCE_NUMBER", codeInvalidProducerEpoch: "INVALID_PRODUCER_EPOCH",
		codeTransactionalIDNotAllowed: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", codeStorageError: "KAFKA_STORAGE_ERROR",
		codeFetchSessionIDNotFound: "FETCH_SESSION_ID_NOT_FOUND", codeFencedLeaderEpoch: "FENCED_LEADER_EPOCH",
		codeUnknownLeaderEpoch: "UNKNOWN_LEADER_EPOCH", codeUnsupportedCompressionType: "UNSUPPORTED_COMPRESSION_TYPE",
		codeOffsetNotAvailable: "OFFSET_NOT_AVAILABLE", codeInvalidRecord: "INVALID_RECORD", codeUnknownTopicID: "UNKNOWN_TOPIC_ID",
	} {
		var e *kerr.Error
		if !errors.As(kerr.ErrorForCode(int16(code)), &e) || e.Message != name {
			t.Errorf("code %d is %v, want %s", code, e, name)
		}
	}
}

// declaredErrors finds the names of the exported sentinel errors of a package.
func declaredErrors(t *testing.T, dir string) []string {
	files, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", dir, err)
	}
	var names []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, source, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			if group, ok := decl.(*ast.GenDecl); ok && group.Tok == token.VAR {
				for _, spec := range group.Specs {
					for _, name := range spec.(*ast.ValueSpec).Names {
						if strings.HasPrefix(name.Name, "Err") {
							names = append(names, dir+"."+name.Name)
						}
					}
				}
			}
		}
	}
	return names
}

// Every sentinel error of the packages below has its code, or its reason to have none.
func TestEveryErrorHasACode(t *testing.T) {
	const none = code(-99)
	table := map[string]struct {
		err  error
		code code
	}{
		"replica.ErrNotLeader":            {replica.ErrNotLeader, 6},
		"replica.ErrTooLarge":             {replica.ErrTooLarge, 10},
		"replica.ErrOffline":              {replica.ErrOffline, 56},
		"replica.ErrDamaged":              {replica.ErrDamaged, 56},
		"replica.ErrDiskFull":             {replica.ErrDiskFull, 56},
		"replica.ErrTooManyProducers":     {replica.ErrTooManyProducers, 19},
		"replica.ErrNotEnoughReplicas":    {replica.ErrNotEnoughReplicas, 19},
		"replica.ErrCutOff":               {replica.ErrCutOff, 20},
		"replica.ErrOutOfRange":           {replica.ErrOutOfRange, 1},
		"server.ErrNoLeader":              {ErrNoLeader, 5},
		"server.ErrElectionNotNeeded":     {ErrElectionNotNeeded, 84},
		"server.ErrPreferredNotAvailable": {ErrPreferredNotAvailable, 80},
		"replica.ErrRefused":              {replica.ErrRefused, none},  // the decision's
		"replica.ErrStopped":              {replica.ErrStopped, none},  // the connection is closed
		"replica.ErrNewerLog":             {replica.ErrNewerLog, none}, // ends the process
		"meta.ErrInvalidName":             {meta.ErrInvalidName, 17},
		"meta.ErrTopicExists":             {meta.ErrTopicExists, 36},
		"meta.ErrUnknownTopic":            {meta.ErrUnknownTopic, 3},
		"meta.ErrInvalidPartitions":       {meta.ErrInvalidPartitions, 37},
		"meta.ErrInvalidReplication":      {meta.ErrInvalidReplication, 38},
		"meta.ErrInvalidAssignment":       {meta.ErrInvalidAssignment, 39},
		"meta.ErrInvalidSetting":          {meta.ErrInvalidSetting, 40},
		"meta.ErrNewerVersion":            {meta.ErrNewerVersion, none}, // ends the process
		"meta.ErrInvalidTopicID":          {meta.ErrInvalidTopicID, none},
		"meta.ErrInvalidNode":             {meta.ErrInvalidNode, none},
		"meta.ErrInvalidCluster":          {meta.ErrInvalidCluster, none},
		"meta.ErrClusterExists":           {meta.ErrClusterExists, none},
		"meta.ErrNoCluster":               {meta.ErrNoCluster, none},
		"meta.ErrStartNumbersUsedUp":      {meta.ErrStartNumbersUsedUp, none},
	}
	declared := slices.Concat(declaredErrors(t, "replica"), declaredErrors(t, "meta"), declaredErrors(t, "server"))
	slices.Sort(declared)
	if listed := slices.Sorted(maps.Keys(table)); !slices.Equal(declared, listed) {
		t.Errorf("declared are %v\nthe table of this test has %v", declared, listed)
	}
	for name, x := range table {
		got, ok := codeOf(fmt.Errorf("wrapped: %w", x.err))
		if x.code == none && (ok || got != codeUnknownServerError) || x.code != none && (!ok || got != x.code) {
			t.Errorf("%s: code %d, %v; want %d", name, got, ok, x.code)
		}
	}
	for _, err := range []error{context.DeadlineExceeded, context.Canceled} {
		if got, _ := codeOf(err); got != codeRequestTimedOut {
			t.Errorf("%v: %d", err, got)
		}
	}
}

// last fails when a value behind the last one that a test walks over has a name: then there is one more.
func last(t *testing.T, beyond fmt.Stringer) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("there is another %T: %s", beyond, beyond)
		}
	}()
	_ = beyond.String()
}

func TestEveryFaultHasACode(t *testing.T) {
	last(t, batch.FaultTimestampType+1)
	for f := batch.FaultNone + 1; f <= batch.FaultTimestampType; f++ {
		want := map[batch.FaultClass]code{batch.ClassCorrupt: 2, batch.ClassInvalid: 87, batch.ClassTransactional: 53, batch.ClassTimestamp: 32}[f.Class()]
		if got := faultCode(f); got != want || want == 0 {
			t.Errorf("%s: code %d, want %d", f, got, want)
		}
		if text := faultText(f, batch.Header{}, 1); !strings.HasPrefix(text, f.String()) || strings.Contains(text, "%!") {
			t.Errorf("%s: text %q", f, text)
		}
	}
}

func TestEveryDecisionHasACodeAndAText(t *testing.T) {
	last(t, dedupe.OutOfOrder+1)
	last(t, dedupe.FirstContactNotZero+1)
	for v := dedupe.Verdict(0); v <= dedupe.OutOfOrder; v++ {
		want := map[dedupe.Verdict]code{dedupe.Fenced: 47, dedupe.OutOfOrder: 45}[v]
		got, ok := decisionCode(v)
		if ok != (want != 0) || ok && got != want {
			t.Errorf("%s: code %d, %v", v, got, ok)
		}
	}
	seen := make(map[string]dedupe.Reason)
	for r := dedupe.NoProducer; r <= dedupe.FirstContactNotZero; r++ {
		text := decisionText(dedupe.Decision{Reason: r, Expected: 44, SeenEpoch: 55}, batch.Stamp{ID: 11, Epoch: 22, First: 33, Last: 34})
		if !strings.Contains(text, "producer 11 epoch 22: sequence 33 to 34 came") || strings.Contains(text, "%!") {
			t.Errorf("%s: %q", r, text)
		}
		if other, again := seen[text]; again {
			t.Errorf("%s and %s have the same text", r, other)
		}
		seen[text] = r
		refused := r >= dedupe.OldEpoch
		if refused != (strings.Contains(text, "44") || strings.Contains(text, "55")) {
			t.Errorf("%s: what was expected is missing in %q", r, text)
		}
	}
}

// No answer says "not stored" of a batch whose outcome is not known.
func TestAckCodes(t *testing.T) {
	for _, x := range []struct {
		ack  replica.Ack
		code code
		ok   bool
	}{
		{replica.Ack{}, 0, true},
		{replica.Ack{Decision: dedupe.Decision{Verdict: dedupe.Duplicate}}, 0, true},
		{replica.Ack{Err: replica.ErrStopped}, -1, false},
		{replica.Ack{Err: fmt.Errorf("%w: %w", replica.ErrStopped, errDisk)}, -1, false},
		{replica.Ack{Err: errDisk}, -1, false},
		{replica.Ack{Err: replica.ErrRefused}, -1, false}, // refused without a verdict
		{replica.Ack{Err: replica.ErrRefused, Decision: dedupe.Decision{Verdict: dedupe.Append}}, -1, false},
		{replica.Ack{Err: replica.ErrRefused, Decision: dedupe.Decision{Verdict: dedupe.Fenced}}, 47, true},
		{replica.Ack{Err: fmt.Errorf("%w: %w", replica.ErrNotLeader, errDisk)}, 6, true},
		{replica.Ack{Err: replica.ErrOffline}, 56, true},
		{replica.Ack{Err: fmt.Errorf("%w: 1 of 2", replica.ErrNotEnoughReplicas)}, 19, true},
		{replica.Ack{Err: replica.ErrCutOff}, 20, true},
		{replica.Ack{Err: fmt.Errorf("%w: no room", replica.ErrDiskFull)}, 56, true},
		{replica.Ack{Err: fmt.Errorf("%w: 10 are remembered", replica.ErrTooManyProducers)}, 19, true},
	} {
		code, text, ok := ackCode(x.ack, batch.Header{})
		if code != x.code || ok != x.ok || ok && (code == 0) != (text == "") {
			t.Errorf("%+v: %d %q %v", x.ack, code, text, ok)
		}
	}
}
