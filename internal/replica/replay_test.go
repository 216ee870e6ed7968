package replica

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

var replaySeeds = flag.Int("replay.seeds", 12, "scripts of TestHeadIsTheReplayOfTheLog")

// TestHeadIsTheReplayOfTheLog runs a core without its loop. Storage messages are carried out late, when the script says
// so, and what was not is lost in a restart. At every step
//
//   - the head decides as a table that has replayed all that Raft accepted (overlay + applied = replay of the log);
//   - the applied table has the bytes of one that has replayed what is applied, and so has each snapshot at its place;
//   - each submission is answered once, with what a second decision in the order of the submissions says, and with
//     success only when the entry is on disk;
//   - the bytes of a batch are the partition's only until Taken.
func TestHeadIsTheReplayOfTheLog(t *testing.T) {
	bases, forgotten := 0, 0
	for seed := range uint64(*replaySeeds) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			r := newReplay(t, seed)
			for range 250 {
				r.turn()
			}
			r.carryOut(len(r.queue))
			r.ended()
			bases, forgotten = bases+r.bases, forgotten+r.forgotten()
		})
	}
	if !t.Failed() && (bases < 10**replaySeeds || forgotten < 2**replaySeeds) {
		t.Errorf("only %d snapshots were compared, %d producers forgotten", bases, forgotten)
	}
}

// replay is a core, the storage that a script plays, and what a naive reader of the log knows.
type replay struct {
	t     *testing.T
	rng   *rand.Rand
	files *stack
	core  *partitionCore
	now   time.Time

	queue   []*pb.Message // of the core's writer, in order, not carried out
	follows *raft.RawNode // a follower: it drops all proposals

	accepted []acceptedEntry // all that Raft has accepted, in log order
	whole    *dedupe.Table   // replay of accepted
	next     batch.Offset    // behind accepted
	table    *dedupe.Table   // replay of those that are applied
	logStart batch.Offset    // of those that are applied
	replayed int             // how many of accepted are in table
	durable  batch.Offset    // behind what is on disk
	bases    int             // snapshots that were compared
	deleted  []moved

	open   map[*scripted]bool
	held   int
	recent []batch.Stamp
}

type acceptedEntry struct {
	index seglog.Index
	batch bool
	rest  []byte // behind the place, which the partition writes
	stamp batch.Stamp
	base  batch.Offset
	next  batch.Offset
	clock int64 // -1: none
	// forget and logStart: 0 for none.
	forget   []dedupe.Forgotten
	logStart batch.Offset
}

func (a acceptedEntry) replay(t *dedupe.Table) {
	switch {
	case a.batch:
		t.Record(a.stamp, a.base)
	case a.clock >= 0:
		t.SetClock(a.clock)
	case a.forget != nil:
		t.Forget(a.forget)
	}
}

// moved is a DeleteRecords and how it ended.
type moved struct {
	before, start, high batch.Offset
	err                 error
	ended               int
}

// scripted is one submission and what must become of it.
type scripted struct {
	r       *replay
	sent    []byte // as the client sent it
	batch   []byte // what the partition works on
	size    int
	taken   bool
	done    bool
	ack     Ack
	want    dedupe.Decision
	base    batch.Offset // where it is stored, -1
	next    batch.Offset // behind it
	dropped bool         // Raft dropped what it waits for
}

func (s *scripted) Taken() {
	if s.taken {
		s.r.t.Fatal("taken twice")
	}
	s.taken = true
	for i := range s.batch {
		s.batch[i] = 0xee // the client's next request comes into the same buffer
	}
}

func (s *scripted) Done(a Ack) {
	if !s.taken || s.done {
		s.r.t.Fatalf("done: taken %v, done %v", s.taken, s.done)
	}
	s.ack, s.done = a, true
}

func newReplay(t *testing.T, seed uint64) *replay {
	r := &replay{t: t, rng: rand.New(rand.NewPCG(seed, 2)), now: time.UnixMilli(1_790_000_000_000), open: make(map[*scripted]bool)}
	base := raftlog.Base{Body: r.fresh().AppendTo(nil)}
	r.files = openFilesWith(t, memfs.New(), 1, base)
	r.files.settings.ProducerExpiration, r.files.settings.ProducerEvictionMinAge = 40*time.Second, 15*time.Second
	r.whole, r.table = r.fresh(), r.fresh()
	r.start()
	t.Cleanup(func() {
		must(t, r.files.log.Close())
		must(t, r.files.state.Close())
	})
	return r
}

// Now implements Clock.
func (r *replay) Now() time.Time { return r.now }

// fresh is the table at birth: ids of start number 0 may begin anywhere.
func (r *replay) fresh() *dedupe.Table { return dedupe.New(dedupe.RulesVersion, 1) }

// start makes a core over the log and brings it to readiness.
func (r *replay) start() {
	var err error
	r.core, err = newPartitionCore(testReplica, Config{Log: r.files.log, Clock: r, Logger: quiet(), Settings: r.files.settings, Host: r.files.host})
	must(r.t, err)
	follower, err := newCore(testReplica, r.files.log, quiet(), r.core)
	must(r.t, err)
	r.follows = follower.node
	must(r.t, r.core.campaign())
	for !r.core.ready() {
		r.advance()
		r.carryOut(len(r.queue))
	}
}

// restart takes away what was not carried out, and all who wait, and opens the log again.
func (r *replay) restart() {
	must(r.t, r.files.log.Close())
	r.queue, r.deleted = nil, nil
	r.open, r.held = make(map[*scripted]bool), 0
	log, _, err := raftlog.OpenGroup(stackConfig(r.files.fs, r.files.state, true))
	must(r.t, err)
	r.files.log = log
	kept := slices.IndexFunc(r.accepted, func(a acceptedEntry) bool { return a.index > log.Segments().LastIndex() })
	if kept >= 0 {
		r.accepted = r.accepted[:kept]
	}
	r.whole, r.table, r.replayed, r.next, r.logStart = r.fresh(), r.fresh(), 0, 0, 0
	for _, a := range r.accepted {
		a.replay(r.whole)
		r.next = max(r.next, a.next)
	}
	if r.next != r.durable {
		r.t.Fatalf("log ends at offset %d, on disk was %d", r.next, r.durable)
	}
	r.start()
}

func (r *replay) turn() {
	r.now = r.now.Add(time.Duration(r.rng.IntN(20_000)) * time.Millisecond)
	switch n := r.rng.IntN(100); {
	case n < 2:
		r.restart()
	case n < 8:
		leader := r.core.node
		r.core.node = r.follows
		if n < 6 {
			r.produce(true)
		} else {
			r.chore()
		}
		r.core.node = leader
	case n < 15:
		r.chore()
	case n < 70:
		r.produce(false)
	default:
		r.carryOut(r.rng.IntN(len(r.queue) + 1))
	}
	r.check()
}

// chore forgets somebody, or moves the log start.
func (r *replay) chore() {
	switch r.rng.IntN(3) {
	case 0:
		r.core.expire(r.now)
	case 1:
		r.core.evict(r.now, 0, r.rng.IntN(3)+1)
	default:
		r.deleted = append(r.deleted, moved{high: r.core.high})
		d := &r.deleted[len(r.deleted)-1]
		d.before = batch.Offset(r.rng.Int64N(int64(r.core.high)+3)) - 1
		at := len(r.deleted) - 1
		r.core.deleteRecords(deletion{before: d.before, gone: func() bool { return false }, done: func(start batch.Offset, err error) {
			d := &r.deleted[at]
			d.start, d.err = start, err
			d.ended++
		}})
	}
	r.advance()
}

// produce submits some batches at once. A second table decides on them, one after the other, as if each were stored
// when it is decided.
func (r *replay) produce(drops bool) {
	second, err := dedupe.Parse(r.whole.AppendTo(nil))
	must(r.t, err)
	at, accepted := r.next, r.next
	var subs []*Submission
	var all []*scripted
	for range r.rng.IntN(7) + 1 {
		stamp, n := r.draw(second)
		sent := batchOf(stamp.ID, stamp.Epoch, stamp.First, n, make([]byte, r.rng.IntN(300)))
		s := &scripted{r: r, sent: sent, batch: bytes.Clone(sent), size: len(sent) + submissionBytes, base: -1}
		h, fault := batch.CheckProduce(s.batch)
		if fault != batch.FaultNone {
			r.t.Fatalf("bad test batch: %v", fault)
		}
		s.want = second.Decide(stamp)
		switch s.want.Verdict {
		case dedupe.Append:
			s.base, s.next, s.dropped = at, h.NextOffset()+at, drops
			second.Record(stamp, at)
			at = s.next
			r.recent = append(r.recent, stamp)
		case dedupe.Duplicate:
			s.base, s.next = s.want.Base, s.want.Last+1
			s.dropped = drops && s.base >= accepted
		}
		r.open[s], r.held = true, r.held+s.size
		subs, all = append(subs, &Submission{Batch: s.batch, Header: h, Done: s}), append(all, s)
	}
	r.core.produce(r.now, subs)
	for _, s := range all {
		if !s.taken {
			r.t.Fatal("not taken when the turn is over")
		}
	}
	before := len(r.accepted)
	r.advance()
	r.compare(all, r.accepted[before:])
}

// compare demands that Raft has accepted the batches that are to be stored, and no others.
func (r *replay) compare(all []*scripted, accepted []acceptedEntry) {
	for _, s := range all {
		if s.want.Verdict != dedupe.Append || s.dropped {
			continue
		}
		if len(accepted) > 0 && !accepted[0].batch {
			accepted = accepted[1:]
		}
		if len(accepted) == 0 || accepted[0].base != s.base || !bytes.Equal(accepted[0].rest, s.sent[16:]) {
			r.t.Fatalf("the batch for offset %d is not what was accepted: %+v", s.base, accepted)
		}
		accepted = accepted[1:]
	}
	if len(accepted) > 0 {
		r.t.Fatalf("accepted, and sent by nobody: %+v", accepted)
	}
}

// draw makes a batch of one of six producers: mostly the next one, else a retry, a gap, an overlap, another epoch.
func (r *replay) draw(second *dedupe.Table) (batch.Stamp, int32) {
	n := int32(r.rng.IntN(3) + 1)
	if r.rng.IntN(20) == 0 {
		return batch.Stamp{ID: -1, Epoch: -1, First: -1, Last: -1}, n
	}
	if back := min(len(r.recent), 12); back > 0 && r.rng.IntN(5) == 0 {
		s := r.recent[len(r.recent)-1-r.rng.IntN(back)]
		if s.ID >= 0 {
			return s, int32((uint32(s.Last)-uint32(s.First))&(1<<31-1)) + 1
		}
	}
	id := batch.ProducerID(r.rng.IntN(3)) | batch.ProducerID(r.rng.IntN(2))<<32
	seen := second.Decide(batch.Stamp{ID: id, Epoch: 0, First: 0, Last: 0}).SeenEpoch
	epoch := max(seen, 0)
	first := second.Decide(batch.Stamp{ID: id, Epoch: epoch, First: 1 << 30, Last: 1 << 30}).Expected
	switch k := r.rng.IntN(100); {
	case seen < 0 && id>>32 == 0: // begins just below the wrap
		first = 1<<31 - 1 - batch.Sequence(r.rng.IntN(20))
	case k < 8: // gap
		first = batch.AddSequence(first, int32(r.rng.IntN(3)+1))
	case k < 12: // overlap
		first = batch.AddSequence(first, 1<<31-1-int32(r.rng.IntN(4)))
	case k < 17:
		epoch, first = epoch+1, batch.Sequence(r.rng.IntN(10)/9)
	case k < 20:
		epoch = max(epoch-1, 0)
	}
	return batch.Stamp{ID: id, Epoch: epoch, First: first, Last: batch.AddSequence(first, n-1)}, n
}

// advance takes out of the core what it has to say, and holds its answers against what was expected.
func (r *replay) advance() {
	store, err := r.core.advance(r.now)
	must(r.t, err)
	r.queue = append(r.queue, store...)
	for _, m := range store {
		for _, e := range m.GetEntries() {
			a := r.read(e)
			if newest := r.whole.Clock(); a.clock >= 0 && newest >= 0 && a.clock-newest < r.files.settings.clockInterval().Milliseconds() {
				r.t.Fatalf("clock entry %d behind %d", a.clock, newest)
			}
			a.replay(r.whole)
			r.next = max(r.next, a.next)
			r.accepted = append(r.accepted, a)
		}
	}
	for _, a := range r.core.answers {
		s := a.done.(*scripted)
		if !r.open[s] || a.size != s.size {
			r.t.Fatalf("answer of %d bytes for a submission of %d that is open: %v", a.size, s.size, r.open[s])
		}
		delete(r.open, s)
		r.held -= a.size
		s.Done(a.ack)
		r.judge(s)
	}
	r.core.answers = r.core.answers[:0]
	r.core.followStart()
	for _, end := range r.core.ended {
		end()
	}
	r.core.ended = nil
	for len(r.core.due) > 0 {
		due := r.core.due
		r.core.due = nil
		for _, task := range due {
			task(r.now)
		}
		r.advance()
	}
}

// read reads an accepted entry by hand. The log checks checksums; here it is the offset and the term.
func (r *replay) read(e *pb.Entry) acceptedEntry {
	a := acceptedEntry{index: seglog.Index(e.GetIndex()), clock: -1}
	if c, ok := raftlog.DecodeCommand(e.GetData()); ok {
		switch c.Kind {
		case seglog.KindClock:
			a.clock = int64(binary.BigEndian.Uint64(c.Payload))
		case seglog.KindLogStart:
			a.logStart = batch.Offset(binary.BigEndian.Uint64(c.Payload))
		default:
			var err error
			a.forget, err = dedupe.ParseForgotten(c.Payload)
			must(r.t, err)
		}
	} else if len(e.GetData()) > 0 {
		h, err := batch.CheckStored(e.GetData())
		must(r.t, err)
		if h.BaseOffset != r.next || uint64(h.Term) != e.GetTerm() {
			r.t.Fatalf("batch for offset %d, term %d in an entry of term %d behind offset %d", h.BaseOffset, h.Term, e.GetTerm(), r.next)
		}
		a.batch, a.rest, a.stamp, a.base, a.next = true, e.GetData()[16:], h.Stamp(), h.BaseOffset, h.NextOffset()
	}
	return a
}

// judge holds an answer against the second decision.
func (r *replay) judge(s *scripted) {
	switch {
	case s.dropped:
		if !errors.Is(s.ack.Err, ErrNotLeader) || s.ack.Base != -1 {
			r.t.Fatalf("dropped, and answered %+v", s.ack)
		}
	case s.base < 0:
		if !errors.Is(s.ack.Err, ErrRefused) || s.ack.Decision != s.want || s.ack.Base != -1 {
			r.t.Fatalf("decided %+v, answered %+v", s.want, s.ack)
		}
	case s.ack.Err != nil || s.ack.Base != s.base || s.ack.LogStart > r.core.logStart:
		r.t.Fatalf("stored at %d, log start %d, answered %+v", s.base, r.core.logStart, s.ack)
	case s.next > r.durable:
		r.t.Fatalf("answered for offset %d to %d, on disk is all below %d", s.base, s.next, r.durable)
	case s.want.Verdict == dedupe.Duplicate && s.ack.Decision != s.want:
		r.t.Fatalf("decided %+v, answered %+v", s.want, s.ack)
	}
}

// carryOut does with the oldest n storage messages what a flusher does, and gives the core their responses at once.
func (r *replay) carryOut(n int) {
	var responses []*pb.Message
	segments := r.files.log.Segments()
	for _, m := range r.queue[:n] {
		if m.GetTerm() > 0 {
			pos, err := r.files.state.SetVote(testGroup, m.GetTerm(), m.GetVote())
			must(r.t, err)
			must(r.t, r.files.state.Sync(pos))
		}
		for _, e := range m.GetEntries() {
			must(r.t, segments.Append([]seglog.Entry{logEntry(e)}))
		}
		responses = append(responses, m.GetResponses()...)
	}
	must(r.t, segments.Sync())
	if r.rng.IntN(10) == 0 && r.core.log.Segments().End().Segment <= segments.LastIndex() {
		must(r.t, segments.Roll())
		r.core.begun([]seglog.Index{segments.End().Segment})
	}
	r.durable = segments.NextOffset()
	r.queue = r.queue[n:]
	must(r.t, r.core.step(r.now, responses))
	r.advance()
}

func logEntry(e *pb.Entry) seglog.Entry {
	entry := seglog.Entry{Kind: seglog.KindBatch, Term: batch.Term(e.GetTerm()), Data: e.GetData()}
	if c, ok := raftlog.DecodeCommand(e.GetData()); ok {
		entry.Kind, entry.Version, entry.Data = c.Kind, c.Version, c.Payload
	} else if len(e.GetData()) == 0 {
		entry.Kind, entry.Version = seglog.KindEmpty, 1
	}
	return entry
}

// check compares the core with the naive reader.
func (r *replay) check() {
	for r.replayed < len(r.accepted) && r.accepted[r.replayed].index <= r.core.applied {
		a := r.accepted[r.replayed]
		a.replay(r.table)
		r.logStart = max(r.logStart, a.logStart)
		r.replayed++
		r.compareBase(a)
	}
	if r.core.logStart != r.logStart {
		r.t.Fatalf("log start %d, replay %d", r.core.logStart, r.logStart)
	}
	if got, want := r.core.table.AppendTo(nil), r.table.AppendTo(nil); !bytes.Equal(got, want) {
		r.t.Fatalf("applied table is\n%x, replay is\n%x", got, want)
	}
	if r.core.next != r.next || r.core.head.Clock() != r.whole.Clock() {
		r.t.Fatalf("next offset %d, clock %d; replay %d, %d", r.core.next, r.core.head.Clock(), r.next, r.whole.Clock())
	}
	for start := range batch.ProducerID(2) {
		for counter := range batch.ProducerID(4) {
			r.probe(start<<32 | counter)
		}
	}
}

// compareBase compares the snapshot that stands behind an entry, if there is one, with the replay.
func (r *replay) compareBase(a acceptedEntry) {
	stock := r.core.stock
	for len(stock.bases) > 0 && stock.bases[0].index <= a.index {
		b := stock.take()
		if b.index < a.index {
			continue // taken before a restart
		}
		r.bases++
		if got, want := b.state.body.AppendTo(nil), r.table.AppendTo(nil); !bytes.Equal(got, want) || b.state.logStart != r.logStart {
			r.t.Fatalf("the snapshot at index %d has log start %d and\n%x, replay is %d,\n%x", b.index, b.state.logStart, got, r.logStart, want)
		}
	}
}

func (r *replay) probe(id batch.ProducerID) {
	d := r.whole.Decide(batch.Stamp{ID: id, Epoch: 0, First: 1, Last: 1})
	for epoch := max(d.SeenEpoch-1, 0); epoch <= d.SeenEpoch+1; epoch++ {
		next := max(r.whole.Decide(batch.Stamp{ID: id, Epoch: epoch, First: 1 << 30, Last: 1 << 30}).Expected, 0)
		for back := int32(-18); back <= 2; back++ {
			first := batch.AddSequence(next, back&(1<<31-1))
			for n := range int32(3) {
				s := batch.Stamp{ID: id, Epoch: epoch, First: first, Last: batch.AddSequence(first, n)}
				if got, want := r.core.head.Decide(s), r.whole.Decide(s); got != want {
					r.t.Fatalf("%+v: the head decides %+v, a replay of the log %+v", s, got, want)
				}
			}
		}
	}
}

// forgotten counts what the accepted entries forget.
func (r *replay) forgotten() int {
	n := 0
	for _, a := range r.accepted {
		n += len(a.forget)
	}
	return n
}

// ended checks that nobody waits and nothing is held when all is carried out.
func (r *replay) ended() {
	r.check()
	for _, d := range r.deleted {
		right := d.err == nil && d.start >= d.before || errors.Is(d.err, ErrNotLeader)
		if d.before > d.high {
			right = errors.Is(d.err, ErrOutOfRange)
		}
		if !right || d.ended != 1 {
			r.t.Fatalf("%+v", d)
		}
	}
	if n := reflect.ValueOf(r.core.head).Elem().FieldByName("touched").FieldByName("n").Int(); n != 0 {
		r.t.Fatalf("the head holds %d producers, and nothing is on its way", n)
	}
	if len(r.open) > 0 || r.held != 0 || !r.core.settled() || r.core.high != r.next {
		r.t.Fatalf("%d wait, %d bytes are held, settled: %v, high watermark %d of %d", len(r.open), r.held, r.core.settled(), r.core.high, r.next)
	}
}
