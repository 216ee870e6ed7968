package founding

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"log/slog"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

var foundingSeeds = flag.Int("node.founding-seeds", 60, "random lives of TestFoundingWithCrashes")

var three = []string{"h1:9192", "h2:9192", "h3:9192"}

// draws are what is drawn by a seed. What several goroutines draw depends on the time and on what it is for, not on which
// of them comes first.
type draws struct {
	seed uint64
	mu   sync.Mutex
	rng  *mathrand.Rand
}

func (d *draws) Read(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range p {
		p[i] = byte(d.rng.Uint32())
	}
	return len(p), nil
}

func (d *draws) below(n int, what string) int {
	h := fnv.New64a()
	fmt.Fprint(h, d.seed, time.Now().UnixNano(), what)
	return mathrand.New(mathrand.NewPCG(h.Sum64(), d.seed)).IntN(n)
}

func (d *draws) pause(most time.Duration, what string) time.Duration {
	return time.Duration(d.below(int(most), what))
}

func newDraws(seed uint64) *draws {
	return &draws{seed: seed, rng: mathrand.New(mathrand.NewPCG(seed, 6))}
}

// logLines collects what is logged.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// founders are nodes that reach each other in memory.
type founders struct {
	t    testing.TB
	rng  *draws
	loss int // of a hundred questions, and of as many answers
	log  *logLines

	mu    sync.Mutex
	alive map[string]*Identity
}

func newFounders(t testing.TB, seed uint64) *founders {
	return &founders{t: t, rng: newDraws(seed), log: &logLines{}, alive: map[string]*Identity{}}
}

func (f *founders) config(fs vfs.FS, self string, list []string) IdentityConfig {
	return IdentityConfig{
		FS: fs, Dir: "var/data", Random: newDraws(uint64(f.rng.below(1<<62, "ids of "+self))), Self: self, Founders: list,
		Logger: slog.New(slog.NewTextHandler(f.log, nil)).With("self", self),
	}
}

func (f *founders) start(fs vfs.FS, self string) (*Identity, error) {
	i, err := OpenIdentity(f.config(fs, self, three))
	if err == nil {
		f.set(self, i)
	}
	return i, err
}

func (f *founders) mustStart(fs vfs.FS, self string) *Identity {
	f.t.Helper()
	i, err := f.start(fs, self)
	if err != nil {
		f.t.Fatal(err)
	}
	return i
}

func (f *founders) set(self string, i *Identity) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alive[self] = i
}

var errLost = errors.New("lost")

func (f *founders) ask(ctx context.Context, address string, question []byte) ([]byte, error) {
	f.mu.Lock()
	i := f.alive[address]
	f.mu.Unlock()
	what := address + string(question)
	if i == nil || f.rng.below(100, "question to "+what) < f.loss {
		return nil, errLost
	}
	if err := sleep(ctx, f.rng.pause(20*time.Millisecond, "way to "+what)); err != nil {
		return nil, err
	}
	answer := i.Answer(question)
	if f.rng.below(100, "answer of "+what) < f.loss {
		return nil, errLost
	}
	return answer, sleep(ctx, f.rng.pause(100*time.Millisecond, "way from "+what))
}

func TestFounding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFounders(t, 1)
		disks := []*memfs.FS{memfs.New(), memfs.New(), memfs.New()}
		var nodes []*Identity
		for at, self := range three {
			nodes = append(nodes, f.mustStart(disks[at], self))
		}
		var all sync.WaitGroup
		for _, i := range nodes {
			all.Go(func() {
				if err := i.Found(t.Context(), f.ask); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for at, i := range nodes {
			if i.Cluster() != nodes[0].Cluster() || i.Cluster() == [16]byte{} || i.Node() != uint32(at+1) || !i.Founded() {
				t.Errorf("node %d: cluster %x, first one's %x", i.Node(), i.Cluster(), nodes[0].Cluster())
			}
			for _, peer := range i.Peers() {
				if other := nodes[peer.Node-1]; peer.Address != three[peer.Node-1] || peer.Disk != other.Disk() || other == i {
					t.Errorf("node %d has peer %+v", i.Node(), peer)
				}
			}
			again := f.mustStart(disks[at].CrashClone(0, nil), three[at])
			if again.Cluster() != i.Cluster() || again.Disk() != i.Disk() || len(again.Peers()) != 2 {
				t.Errorf("node %d came back as %x with disk %x", i.Node(), again.Cluster(), again.Disk())
			}
		}
	})
}

// founderLife runs one founder by a seed: it is killed, goes down with its machine, or loses its disk, and comes back.
type founderLife struct {
	founders *founders
	self     string
	fs       *memfs.FS
	known    *knowledge
}

// knowledge is which founder knew which cluster, in order.
type knowledge struct {
	mu   sync.Mutex
	told []learnt
}

type learnt struct {
	self    string
	cluster [16]byte
}

func (k *knowledge) add(self string, cluster [16]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told = append(k.told, learnt{self, cluster})
}

// second says whether there was a second cluster. An id that only the first founder knew, which was emptied before it told
// anybody, is none.
func (k *knowledge) second(mayEmpty bool) bool {
	for at, one := range k.told {
		for _, later := range k.told[at:] {
			if later.cluster != one.cluster && (one.self != three[0] || !mayEmpty) {
				return true
			}
		}
	}
	return false
}

func (l *founderLife) run(ctx context.Context, crashes int, mayEmpty bool) (*Identity, error) {
	if err := sleep(ctx, l.founders.rng.pause(10*time.Millisecond, "birth of "+l.self)); err != nil {
		return nil, err
	}
	for n := 0; ; n++ {
		running, kill := context.WithCancel(ctx)
		fs, restart := vfs.FS(l.fs), n < crashes
		if restart {
			// The process ends at some write, or at some time.
			fs = errfs.Wrap(l.fs, errfs.OnIndex(l.founders.rng.below(20, "write of "+l.self), errfs.Fail(errors.New("killed"))))
			time.AfterFunc(l.founders.rng.pause(time.Second, "life of "+l.self), kill)
		}
		i, err := l.founders.start(fs, l.self)
		if err == nil {
			err = i.Found(running, l.founders.ask)
		}
		kill()
		if i != nil && i.Founded() {
			l.known.add(l.self, i.Cluster())
		}
		if errors.Is(err, ErrEmptied) || err == nil && !restart || ctx.Err() != nil {
			return i, err
		}
		l.founders.set(l.self, nil)
		if err := sleep(ctx, l.founders.rng.pause(300*time.Millisecond, "death of "+l.self)); err != nil {
			return i, err
		}
		l.crash(mayEmpty)
	}
}

func (l *founderLife) crash(mayEmpty bool) {
	rng := mathrand.New(mathrand.NewPCG(uint64(l.founders.rng.below(1<<30, "crash of "+l.self)), 1))
	switch draw := l.founders.rng.below(10, "end of "+l.self); {
	case draw < 4:
		l.fs = l.fs.KillClone()
	case draw == 9 && mayEmpty:
		l.fs = memfs.New()
	default:
		l.fs = l.fs.CrashClone(50, rng)
	}
}

// TestFoundingWithCrashes: at most one cluster comes to be, and all get to know it, however nodes crash meanwhile.
func TestFoundingWithCrashes(t *testing.T) {
	for seed := range uint64(*foundingSeeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { foundWithCrashes(t, seed) }) })
	}
}

func foundWithCrashes(t *testing.T, seed uint64) {
	f := newFounders(t, seed)
	f.loss = f.rng.below(40, "loss")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var known knowledge
	var all sync.WaitGroup
	mayEmpty, emptied := seed%2 == 1, three[f.rng.below(3, "emptied")] // one: of several all might know the cluster that forget it
	for _, self := range three {
		l := &founderLife{founders: f, self: self, fs: memfs.New(), known: &known}
		crashes := f.rng.below(8, "crashes of "+self)
		all.Go(func() {
			if i, err := l.run(ctx, crashes, mayEmpty && self == emptied); err != nil && !mayEmpty {
				t.Errorf("%s: %v", self, err)
			} else if err == nil && !i.Founded() {
				t.Errorf("%s does not know the cluster", self)
			}
		})
	}
	all.Wait()
	if known.second(mayEmpty) || len(known.told) < 3 && !mayEmpty {
		t.Errorf("clusters: %v\n%s", known.told, f.log)
	}
}

// founded makes a cluster of three.
func founded(t *testing.T, f *founders, disks []*memfs.FS) {
	t.Helper()
	var all sync.WaitGroup
	for at, self := range three {
		i := f.mustStart(disks[at], self)
		all.Go(func() {
			if err := i.Found(t.Context(), f.ask); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestEmptiedDisk: whoever has lost its data directory is not let in, and the first founder does not found again.
func TestEmptiedDisk(t *testing.T) {
	for at, self := range three {
		t.Run(self, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFounders(t, 2)
				disks := []*memfs.FS{memfs.New(), memfs.New(), memfs.New()}
				founded(t, f, disks)
				i := f.mustStart(memfs.New(), self)
				err := i.Found(t.Context(), f.ask)
				want := fmt.Sprintf("knows node %d with another data directory", at+1)
				if !errors.Is(err, ErrEmptied) || !strings.Contains(err.Error(), want) || i.Founded() {
					t.Errorf("got %v, want ErrEmptied that %s", err, want)
				}
				if !strings.Contains(f.log.String(), "a founder was refused") {
					t.Error("nobody says that it was refused")
				}
			})
		})
	}
}

// TestFirstFounderWaitsForAll: an emptied first founder that does not reach those that know the cluster founds nothing.
func TestFirstFounderWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFounders(t, 3)
		disks := []*memfs.FS{memfs.New(), memfs.New(), memfs.New()}
		founded(t, f, disks)
		f.set(three[1], nil)
		f.mustStart(memfs.New(), three[2]) // emptied too, and so blank
		i := f.mustStart(memfs.New(), three[0])
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := i.Found(ctx, f.ask); !errors.Is(err, context.DeadlineExceeded) || i.Founded() {
			t.Errorf("got %v, founded: %t", err, i.Founded())
		}
		if n := strings.Count(f.log.String(), "waiting for the founders"); n > 12 {
			t.Errorf("it is said %d times what is waited for:\n%s", n, f.log)
		}
	})
}

// TestFoundersDiffer: nodes with other lists do not get together, and both say it.
func TestFoundersDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFounders(t, 4)
		for _, self := range three[:2] {
			f.mustStart(memfs.New(), self)
		}
		turned := []string{three[1], three[0], three[2]}
		third, err := OpenIdentity(f.config(memfs.New(), three[2], turned))
		if err != nil {
			t.Fatal(err)
		}
		f.set(three[2], third)
		var all sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, i := range f.alive {
			all.Go(func() {
				if err := i.Found(ctx, f.ask); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("node %d: %v", i.Node(), err)
				}
			})
		}
		all.Wait()
		for _, self := range three {
			said := false
			for line := range strings.Lines(f.log.String()) {
				said = said || strings.Contains(line, "self="+self) &&
					strings.Contains(line, strings.Join(three, ",")) && strings.Contains(line, strings.Join(turned, ","))
			}
			if !said {
				t.Errorf("%s does not say both lists:\n%s", self, f.log)
			}
		}
	})
}

// TestFirstFounderStartedAnew is the story of the comment in founding.go: an answer that was under way while the node told
// another first founder that it is blank is not taken over.
func TestFirstFounderStartedAnew(t *testing.T) {
	f := newFounders(t, 5)
	first := f.mustStart(memfs.New(), three[0])
	second := f.mustStart(memfs.New(), three[1])
	f.mustStart(memfs.New(), three[2])
	if err := first.Found(t.Context(), f.ask); err != nil {
		t.Fatal(err)
	}
	emptied := memfs.New()
	stale := true
	ask := func(ctx context.Context, address string, question []byte) ([]byte, error) {
		if address != three[0] {
			return nil, errLost
		}
		if !stale {
			return f.ask(ctx, address, question)
		}
		stale = false
		answer := first.Answer(question)
		anew := f.mustStart(emptied, three[0])
		return answer, anew.Found(ctx, f.ask)
	}
	if err := second.Found(t.Context(), ask); err != nil {
		t.Fatal(err)
	}
	if second.Cluster() == first.Cluster() {
		t.Error("it is in a cluster whose first founder is gone")
	}
}

// TestAnswerAfterFailedWrite: what the disk holds is unknown then, so nothing is said about it.
func TestAnswerAfterFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFounders(t, 9)
		f.mustStart(memfs.New(), three[0])
		second := f.mustStart(memfs.New(), three[1])
		f.mustStart(memfs.New(), three[2])
		second.failed = errLost
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := f.alive[three[0]].Found(ctx, f.ask); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the cluster is founded: %v", err)
		}
	})
}

// TestQuestionsAndAnswersOfNobody: what no founder says is refused, and said so.
func TestQuestionsAndAnswersOfNobody(t *testing.T) {
	f := newFounders(t, 11)
	first, second := f.mustStart(memfs.New(), three[0]), f.mustStart(memfs.New(), three[1])
	change := func(r identityRecord, how func(*identityRecord)) []byte {
		how(&r)
		return mustMarshal(r)
	}
	long := append(mustMarshal(second.record), make([]byte, identityBytesMax)...)
	for _, c := range []struct {
		question []byte
		want     string
	}{
		{long, "question of"},
		{nil, "unexpected end"},
		{[]byte(`{"version":2}`), "of a newer version of oncemq: 2"},
		{[]byte(`{"version":1,"colour":1}`), "unknown field"},
		{change(second.record, func(r *identityRecord) { r.Node = 4 }), "node 4 of 3 founders"},
		{change(second.record, func(r *identityRecord) { r.Node = 1 }), "two nodes are started as founder 1"},
		{change(second.record, func(r *identityRecord) { r.Founders = three[:2] }), "the lists of founders differ"},
	} {
		_, err := second.decodeAnswer(first.Answer(c.question), 1)
		if err == nil || !strings.Contains(err.Error(), "it refuses") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.100q: got %v, want %s", c.question, err, c.want)
		}
	}
	disks := []meta.ID{{1}, {2}, {3}}
	for _, c := range []struct {
		answer []byte
		want   string
	}{
		{long, "answer of"},
		{[]byte("{"), "cannot be read"},
		{change(second.record, func(r *identityRecord) { r.Disk = meta.ID{} }), "cannot be"},
		{change(second.record, func(r *identityRecord) { r.Node = 3 }), "it says that it is founder 3"},
		{change(second.record, func(r *identityRecord) { r.Founders = three[:2] }), "the lists of founders differ"},
		{change(second.record, func(r *identityRecord) { r.Cluster, r.Disks = meta.ID{1}, disks }), "another one than the founder"},
		{change(second.record, func(r *identityRecord) { r.Cluster, r.Disks = meta.ID{1}, disks[:2] }), "2 disks of 3"},
	} {
		if _, err := first.decodeAnswer(c.answer, 2); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.100q: got %v, want %s", c.answer, err, c.want)
		}
	}
}

// TestFirstFounderForgets: a first founder whose directory is that of an earlier day does not found again.
func TestFirstFounderForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFounders(t, 12)
		disks := []*memfs.FS{memfs.New(), memfs.New(), memfs.New()}
		f.mustStart(disks[0], three[0])
		earlier := disks[0].KillClone()
		founded(t, f, disks)
		if err := f.mustStart(earlier, three[0]).Found(t.Context(), f.ask); !errors.Is(err, ErrEmptied) {
			t.Errorf("got %v", err)
		}
	})
}

// TestFoundingOnFullDisk: what found no room is done by calling again.
func TestFoundingOnFullDisk(t *testing.T) {
	fs := memfs.New()
	f := newFounders(t, 13)
	setFile(t, fs, "ballast", make([]byte, 4096))
	fs.SetCapacity(4096)
	cfg := f.config(fs, "h:1", []string{"h:1"})
	if _, err := OpenIdentity(cfg); !vfs.IsFull(err) {
		t.Fatalf("opened with %v", err)
	}
	fs.SetCapacity(0)
	i, err := OpenIdentity(cfg)
	if err != nil {
		t.Fatal(err)
	}
	fs.SetCapacity(4096)
	if err := i.Found(t.Context(), f.ask); !vfs.IsFull(err) || i.Founded() {
		t.Fatalf("founded with %v", err)
	}
	fs.SetCapacity(0)
	if err := i.Found(t.Context(), f.ask); err != nil || !i.Founded() || len(i.Peers()) > 0 {
		t.Fatal(err)
	}
}

// FuzzFounding: no question and no answer from the network does more than be refused.
func FuzzFounding(f *testing.F) {
	n := newFounders(f, 10)
	first, second := n.mustStart(memfs.New(), three[0]), n.mustStart(memfs.New(), three[1])
	question := mustMarshal(second.record)
	f.Add(question)
	f.Add(first.Answer(question))
	f.Add([]byte(`{"version":1,"refused":"no"}`))
	f.Add([]byte(`{"version":2}`))
	f.Add(binary.BigEndian.AppendUint64(nil, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := decodeQuestion(b); err == nil && (r.check() != nil || len(b) > identityBytesMax) {
			t.Errorf("accepted %q", b)
		}
		if _, err := first.decodeAnswer(first.Answer(b), 1); err != nil && !strings.Contains(err.Error(), "it refuses") {
			t.Errorf("an answer of its own cannot be read: %v", err)
		}
		if r, err := first.decodeAnswer(b, 2); err == nil && (r.Node != 2 || r.check() != nil) {
			t.Errorf("accepted %+v", r)
		}
	})
}
