package replica

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
)

// metadataStack is raft0 over its real log, state file and flushers.
type metadataStack struct {
	*stack
	metadata *Metadata
	shown    atomic.Pointer[Metadata] // the same, for the loop
	open     atomic.Bool              // it was opened
	mu       sync.Mutex
	created  []string // topics in the order in which they were told of
}

func openMetadataStack(t *testing.T, fs vfs.FS, fatal func(error)) *metadataStack {
	t.Helper()
	s := openMetadataFiles(t, fs)
	s.startMetadata(fatal)
	return s
}

func openMetadataFiles(t *testing.T, fs vfs.FS) *metadataStack {
	t.Helper()
	must(t, fs.MkdirAll("data/groups"))
	state, _, err := raftlog.OpenState(fs, "data", [16]byte{1})
	if errors.Is(err, raftlog.ErrNoState) {
		state, err = raftlog.CreateState(fs, "data", raftlog.NodeIdentity{Cluster: testIdentity.Cluster, Node: 1}, [16]byte{1})
	}
	must(t, err)
	cfg := raftlog.Config{
		FS: fs, Dir: "data/groups/0", State: state, SameBoot: true, SegmentBytes: segmentBytes,
		Identity: seglog.Identity{Cluster: testIdentity.Cluster, Replica: testReplica, Partition: -1},
	}
	if _, born := state.Group(0); !born {
		must(t, raftlog.CreateGroup(cfg, raftlog.Base{
			Cluster: testIdentity.Cluster, Index: 1, Term: 1,
			Members: raftlog.Members{Voters: []uint64{uint64(testReplica)}}, Body: meta.New().AppendTo(nil),
		}))
	}
	log, _, err := raftlog.OpenGroup(cfg)
	must(t, err)
	return &metadataStack{stack: newStack(t, fs, state, log)}
}

func (s *metadataStack) startMetadata(fatal func(error)) {
	s.t.Helper()
	s.flushers = raftlog.NewFlushers(2, s.state, raftlog.Events{Fatal: fatal, Full: func(error) {}})
	var err error
	s.metadata, err = OpenMetadata(testReplica, s.config(), func(topic *meta.Topic) {
		if _, shown := s.view().ByID(topic.ID); shown {
			s.t.Errorf("topic %s is shown before the node was told of it", topic.Name)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.created = append(s.created, topic.Name)
	}, s.forgetTopic)
	must(s.t, err)
	s.shown.Store(s.metadata)
}

// forgetTopic is told of a topic that is deleted.
func (s *metadataStack) forgetTopic(topic *meta.Topic) {
	if _, shown := s.view().ByID(topic.ID); !shown && s.open.Load() { // at a start it was never shown
		s.t.Errorf("topic %s is not shown any more before the node was told of it", topic.Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.created = append(s.created, "-"+topic.Name)
}

// view is what readers see; before raft0 is open that is nothing.
func (s *metadataStack) view() *meta.View {
	if m := s.shown.Load(); m != nil {
		return m.View()
	}
	return meta.New().View()
}

func (s *metadataStack) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.created)
}

func (s *metadataStack) close() {
	s.t.Helper()
	must(s.t, s.metadata.Close())
	s.flushers.Close()
	must(s.t, s.state.Close())
}

func (s *metadataStack) held() int {
	s.metadata.loop.box.mu.Lock()
	defer s.metadata.loop.box.mu.Unlock()
	return s.metadata.loop.box.held
}

func startCommand(nonce uint32) *meta.Start {
	c := &meta.Start{Node: 1, Host: "localhost", Port: 9092}
	binary.BigEndian.PutUint32(c.Nonce[:], nonce+1)
	return c
}

func topicCommand(n int) *meta.CreateTopic {
	return &meta.CreateTopic{ID: meta.ID{byte(n + 1), 1}, Name: fmt.Sprint("topic-", n), Rules: 1, Partitions: [][]int32{{1}}}
}

// found makes the cluster and its only node.
func (s *metadataStack) found() {
	s.t.Helper()
	must(s.t, s.metadata.Opened(s.t.Context()))
	_, err := s.metadata.Propose(s.t.Context(), &meta.Cluster{ID: testIdentity.Cluster, FirstStartNumber: 100})
	must(s.t, err)
	first, err := s.metadata.Propose(s.t.Context(), startCommand(0))
	must(s.t, err)
	if first.StartNumber != 100 {
		s.t.Fatalf("first start number %d", first.StartNumber)
	}
}

// Each proposer hears what its own command did, however many are on their way, and what it is told stays.
func TestProposersHearOfTheirOwn(t *testing.T) {
	fs := newGateFS()
	s := openMetadataStack(t, fs, func(err error) { t.Errorf("fatal: %v", err) })
	s.found()
	open := fs.shut()
	const topics = 40
	var all sync.WaitGroup
	propose := func(n int) {
		all.Go(func() {
			result, err := s.metadata.Propose(t.Context(), topicCommand(n))
			if err != nil || result.Refused != nil || result.Topic == nil || result.Topic.Name != fmt.Sprint("topic-", n) {
				t.Errorf("topic %d: %+v, %v", n, result, err)
				return
			}
			if _, shown := s.metadata.View().ByID(result.Topic.ID); !shown || !slices.Contains(s.told(), result.Topic.Name) {
				t.Errorf("topic %d is not there when its proposer hears of it", n)
			}
		})
	}
	propose(0)
	<-fs.held
	for n := 1; n < topics; n++ {
		propose(n)
	}
	if _, early := s.metadata.View().ByName("topic-0"); early {
		t.Error("a topic is shown before the sync")
	}
	open()
	all.Wait()
	if again, err := s.metadata.Propose(t.Context(), &meta.CreateTopic{ID: meta.ID{99}, Name: "topic-3", Rules: 1, Partitions: [][]int32{{1}}}); err != nil || !errors.Is(again.Refused, meta.ErrTopicExists) {
		t.Fatalf("a second topic of one name: %+v, %v", again, err)
	}
	waitFor(t, func() bool { return s.held() == 0 })
	told := s.told()
	s.close()

	s = openMetadataStack(t, fs, func(err error) { t.Errorf("fatal: %v", err) })
	must(t, s.metadata.Opened(t.Context()))
	if again := s.told(); !slices.Equal(again, told) {
		t.Errorf("told of %v at a restart, before of %v", again, told)
	}
	if next, err := s.metadata.Propose(t.Context(), startCommand(1)); err != nil || next.StartNumber != 101 {
		t.Fatalf("the next start number is %d, %v", next.StartNumber, err)
	}
	s.close()
}

// A command whose outcome is not known ends in an error that does not say that it was never accepted; one that comes
// later was not. Whoever stops waiting leaves nothing behind.
func TestMetadataFailures(t *testing.T) {
	fs := newGateFS()
	var fatal atomic.Bool
	s := openMetadataStack(t, fs, func(error) { fatal.Store(true) })
	s.found()
	open := fs.shut()
	ended := make(chan error, 2)
	propose := func(ctx context.Context, n int) {
		_, err := s.metadata.Propose(ctx, topicCommand(n))
		ended <- err
	}
	go propose(t.Context(), 0)
	<-fs.held
	impatient, cancel := context.WithCancelCause(t.Context())
	tired := errors.New("tired of waiting")
	cancel(tired)
	propose(impatient, 1)
	if err := <-ended; !errors.Is(err, tired) {
		t.Errorf("a proposal whose context has ended: %v", err)
	}
	broken := errors.New("input/output error")
	fs.fail.Store(&broken)
	open()
	if err := <-ended; !errors.Is(err, ErrStopped) || errors.Is(err, ErrOffline) || errors.Is(err, ErrNotLeader) {
		t.Errorf("an accepted proposal after a failed sync: %v", err)
	}
	if _, err := s.metadata.Propose(t.Context(), topicCommand(2)); !errors.Is(err, ErrOffline) {
		t.Errorf("a proposal to an offline replica: %v", err)
	}
	_ = s.metadata.Close()
	if _, err := s.metadata.Propose(t.Context(), topicCommand(3)); !errors.Is(err, ErrStopped) {
		t.Errorf("a proposal after the end: %v", err)
	}
	s.flushers.Close()
	if !fatal.Load() || s.held() != 0 || len(s.told()) != 0 || len(s.metadata.core.flight) != 0 {
		t.Fatalf("fatal: %v, %d bytes held, told of %v", fatal.Load(), s.held(), s.told())
	}
}

// What this version does not know stops raft0: to pass over it would make its metadata differ from the other nodes'.
func TestUnknownMetadataStops(t *testing.T) {
	m := &metadataCore{core: &core{}, state: meta.New()}
	for name, data := range map[string][]byte{
		"a batch":            batchOf(-1, -1, -1, 1, nil),
		"a clock entry":      raftlog.EncodeCommand(seglog.KindClock, make([]byte, 8)),
		"an unknown command": raftlog.EncodeCommand(seglog.KindCommand, []byte("\xff\xff{}")),
		"an unknown version": {0xff, byte(seglog.KindCommand), 0, 2, 0, 1},
	} {
		err := m.apply(newTestClock().Now(), &pb.Entry{Index: new(uint64(2)), Data: data})
		if !errors.Is(err, ErrNewerLog) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Before the first entry of this term is applied the metadata may lack what was committed: nothing is decided on it.
func TestMetadataIsNotReadyAtOnce(t *testing.T) {
	fs := newGateFS()
	s := openMetadataStack(t, fs, func(err error) { t.Errorf("fatal: %v", err) })
	s.found()
	s.close()
	s = openMetadataFiles(t, fs)
	open := fs.shut()
	s.startMetadata(func(err error) { t.Errorf("fatal: %v", err) })
	<-fs.held
	if _, err := s.metadata.Propose(t.Context(), startCommand(5)); !errors.Is(err, ErrNotLeader) {
		t.Errorf("a proposal before ready: %v", err)
	}
	open()
	must(t, s.metadata.Opened(t.Context()))
	s.close()
}

// The node hears of creations and deletions in the order of the log, at a restart again of those that the log still holds.
func TestDeletedTopics(t *testing.T) {
	fs := newGateFS()
	s := openMetadataStack(t, fs, func(err error) { t.Errorf("fatal: %v", err) })
	s.found()
	s.open.Store(true)
	propose := func(c meta.Command) meta.Result {
		t.Helper()
		result, err := s.metadata.Propose(t.Context(), c)
		must(t, err)
		return result
	}
	propose(topicCommand(1))
	propose(topicCommand(2))
	if r := propose(&meta.DeleteTopic{Name: "topic-1", ID: topicCommand(1).ID, Time: 7}); r.Refused != nil || r.Deleted == nil {
		t.Fatalf("%+v", r)
	}
	if _, shown := s.metadata.View().ByName("topic-1"); shown {
		t.Fatal("a deleted topic is shown")
	}
	if r := propose(&meta.DeleteTopic{Name: "topic-1", ID: topicCommand(1).ID, Time: 8}); !errors.Is(r.Refused, meta.ErrUnknownTopic) {
		t.Fatalf("%+v", r)
	}
	want := []string{"topic-1", "topic-2", "-topic-1"}
	if told := s.told(); !slices.Equal(told, want) {
		t.Fatalf("told of %v", told)
	}
	s.close()
	s = openMetadataStack(t, fs, func(err error) { t.Errorf("fatal: %v", err) })
	must(t, s.metadata.Opened(t.Context()))
	if told := s.told(); !slices.Equal(told, want) {
		t.Fatalf("told of %v at a restart", told)
	}
	s.close()
}

// raft0 keeps its newest base snapshot and the entries behind it, and begins with them.
func TestMetadataBases(t *testing.T) {
	setSegmentBytes(t, 2000)
	fs := newGateFS()
	s := openMetadataStack(t, fs, func(err error) { t.Errorf("fatal: %v", err) })
	s.found()
	segments := func(atMost int) {
		t.Helper()
		names := func(suffix string) int {
			all, err := fs.List("data/groups/0")
			must(t, err)
			return len(slices.DeleteFunc(all, func(name string) bool { return !strings.HasSuffix(name, suffix) }))
		}
		waitFor(t, func() bool { return names(".log") <= atMost && names(".base") == names(".log") })
	}
	const topics = 60
	for n := range topics {
		_, err := s.metadata.Propose(t.Context(), topicCommand(n))
		must(t, err)
	}
	segments(2)
	if base := s.log.Segments().FirstIndex(); base < topics/2 {
		t.Fatalf("the log still begins at %d", base)
	}
	for n := range topics / 2 {
		_, err := s.metadata.Propose(t.Context(), &meta.DeleteTopic{Name: fmt.Sprint("topic-", n), ID: topicCommand(n).ID})
		must(t, err)
	}
	view := s.metadata.View()
	s.close()
	s = openMetadataStack(t, fs, func(err error) { t.Errorf("fatal: %v", err) })
	must(t, s.metadata.Opened(t.Context()))
	if again := s.metadata.View(); len(again.All()) != topics/2 || !reflect.DeepEqual(again.All(), view.All()) {
		t.Fatalf("%d topics after a restart", len(again.All()))
	}
	told := map[string]bool{}
	for _, name := range s.told() {
		told[name] = true
	}
	for _, topic := range view.All() {
		if !told[topic.Name] {
			t.Errorf("not told of %s at a restart", topic.Name)
		}
	}
	s.metadata.Housekeep(Expire | Retain | RetryBases)
	segments(2)
	s.close()
}
