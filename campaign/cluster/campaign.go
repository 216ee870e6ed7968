package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
	"github.com/oncemq/oncemq/campaign/internal/stage"
	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

const (
	// answerWithin bounds the wait for one answer, answerAsked is what the producers of our own ask the broker for.
	answerWithin, answerAsked = 3 * time.Second, 2 * time.Second
	// retryEvery is the pause before a node that is down, or does not lead, is asked again.
	retryEvery = 10 * time.Millisecond
	// readyWithin bounds a start, settleWithin the time until all replicas are in sync again, catchUpWithin the time until
	// all producers have sent their last batches again.
	readyWithin, settleWithin, catchUpWithin = 60 * time.Second, 60 * time.Second, 60 * time.Second
	// pauseMax bounds the pause after a fault.
	pauseMax = 1500 * time.Millisecond
	// quiet is how long no new batch comes before the nodes are stopped and compared.
	quiet = 2 * time.Second
)

// Names of the producers in the history: those of our own from 0 on.
const (
	franzName, kcatName, probeName = 1000, 2000, 3000
	franzClients                   = 2
)

// campaign is one run. The controller (run and what it calls) owns all fields without a note; producers, probes and
// consumers are goroutines of their own.
type campaign struct {
	*stage.Stage
	cfg    config
	nodes  *testbroker.Cluster
	routes *routes
	faults *schedule
	draw   *rand.Rand
	kcat   string // path, or ""
	// kcatLosesCount: its librdkafka has a fault that losesCount tells of.
	kcatLosesCount bool
	producers      []*producer
	franz          []*franz
	probes         []*probe
	outages        *outages
	happened       map[kind]int
	drains         []time.Duration // how long each end after SIGTERM took
	phases         phases

	// generation counts the faults that are over: each producer sends its last batches again for each.
	generation atomic.Int64
	caughtUp   chan int64 // generation; one message of each producer and generation
	stats      stats

	mu  sync.Mutex
	ids map[batch.ProducerID]struct{} // all ids ever given
}

// stats count over all producers.
type stats struct {
	acknowledged, records, resent, retriable, refused, pipelines, lostCount atomic.Int64
}

// newID notes an id that a node gave.
func (c *campaign) newID(id batch.ProducerID, epoch batch.Epoch) {
	c.mu.Lock()
	_, again := c.ids[id]
	c.ids[id] = struct{}{}
	c.mu.Unlock()
	if again {
		c.Violate("producer id %d was given twice", id)
	}
	if id < 0 || epoch != 0 {
		c.Violate("producer id %d was given with epoch %d", id, epoch)
	}
}

func newCampaign(cfg config, out io.Writer) *campaign {
	return &campaign{
		Stage:    stage.New(out, answerWithin, retryEvery),
		cfg:      cfg,
		faults:   newSchedule(cfg.seed, cfg.faults),
		draw:     rand.New(rand.NewPCG(cfg.seed, 1)),
		outages:  newOutages(),
		happened: make(map[kind]int),
		caughtUp: make(chan int64, 1024),
		ids:      make(map[batch.ProducerID]struct{}),
	}
}

func run(ctx context.Context, cfg config, out io.Writer) (err error) {
	if cfg.data != "" {
		if _, err := os.Lstat(cfg.data); err == nil {
			return fmt.Errorf("directory %s exists", cfg.data)
		}
	}
	dir, err := os.MkdirTemp("", "oncemq-cluster-")
	if err != nil {
		return fmt.Errorf("make a working directory: %w", err)
	}
	c := newCampaign(cfg, out)
	if c.Data = cfg.data; c.Data == "" {
		c.Data = filepath.Join(dir, "data")
	}
	defer func() {
		if c.nodes != nil {
			err = errors.Join(err, c.nodes.Close())
		}
		if err = c.End(err, ""); err == nil {
			err = os.RemoveAll(dir)
		}
	}()
	if err := c.prepare(ctx, dir); err != nil {
		return err
	}
	return c.Play(ctx, c.load, c.verdict)
}

// prepare builds and starts the nodes and creates the topics: one with the broker's min.insync.replicas, one with 2.
func (c *campaign) prepare(ctx context.Context, dir string) (err error) {
	fmt.Fprintf(c.Out, "cluster campaign: seed %d, %d nodes, 2 topics of %d partitions, %d producers, faults %v for %v, data in %s\n",
		c.cfg.seed, c.cfg.nodes, c.cfg.partitions, c.cfg.producers, c.cfg.faults, c.cfg.duration, c.Data)
	if c.kcat, err = exec.LookPath("kcat"); err != nil {
		fmt.Fprintln(c.Out, "kcat is not installed: librdkafka is left out")
	} else if version, err := exec.CommandContext(ctx, c.kcat, "-V").Output(); err == nil {
		c.kcatLosesCount = losesCount(string(version))
	}
	if c.Binary, err = frame.Binary(ctx, c.cfg.binary, dir); err != nil {
		return err
	}
	c.nodes, err = testbroker.StartCluster(testbroker.ClusterConfig{
		Binary: c.Binary, Dir: c.Data, Nodes: c.cfg.nodes, Links: c.cfg.nodes > 1,
		Set: []string{"log.segment.bytes=1048576", "log.segment.entries=2000", "log.retention.ms=-1"},
	})
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	took, err := c.nodes.AwaitReady(within)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Out, "the cluster was founded and ready after %v, at %v\n", rounded(took), c.nodes.Addrs())
	return c.createTopics(within)
}

func (c *campaign) createTopics(ctx context.Context) error {
	for i, settings := range []map[string]string{nil, {"min.insync.replicas": fmt.Sprint(min(2, c.cfg.nodes))}} {
		if c.cfg.nodes == 1 {
			settings = nil
		}
		conn, hangUp, err := stage.DialTo(ctx, c.nodes.Addr(i%c.cfg.nodes), readyWithin)
		if err != nil {
			return err
		}
		topic, err := conn.CreateReplicatedTopic(fmt.Sprintf("cluster-%d", i), int32(c.cfg.partitions), int16(min(3, c.cfg.nodes)), settings)
		hangUp()
		if err != nil {
			return err
		}
		c.TakeUp(topic, c.cfg.partitions)
	}
	c.routes = newRoutes(c)
	for i, p := range c.Partitions {
		p.Parse = parseValue
		c.probes = append(c.probes, newProbe(c, i))
	}
	for i := range c.cfg.producers {
		c.producers = append(c.producers, newProducer(c, int32(i)))
	}
	return nil
}

// topicNames are those of all partitions.
func (c *campaign) topicNames() []string {
	var all []string
	for _, p := range c.Partitions {
		if !slices.Contains(all, p.Topic.Name) {
			all = append(all, p.Topic.Name)
		}
	}
	return all
}

// dial opens a connection to a node.
func (c *campaign) dial(ctx context.Context, node int) (conn *rawkafka.Client, hangUp func(), err error) {
	return stage.DialTo(ctx, c.nodes.Addr(node), answerWithin)
}

// sleep waits, or until ctx ends.
func (c *campaign) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// load runs all that write and read, and lets the faults happen under them.
func (c *campaign) load(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{}) // closed when no new batches are wanted
	var senders, others sync.WaitGroup
	others.Go(func() { c.routes.run(ctx) })
	reader := stage.NewConsumer(c.Stage, stage.CodeNotLeader)
	for i := range c.Partitions {
		others.Go(func() { c.consume(ctx, reader, i) })
		senders.Go(func() { c.probes[i].run(ctx, stop) })
	}
	for _, p := range c.producers {
		senders.Go(func() { p.run(ctx, stop) })
	}
	for i := range franzClients {
		f, err := newFranz(c, int32(franzName+i))
		if err != nil {
			cancel()
			return err
		}
		c.franz = append(c.franz, f)
		senders.Go(func() { f.run(ctx, stop) })
	}
	if c.kcat != "" {
		senders.Go(func() { c.runKcat(ctx, stop) })
	}
	err := c.allFaults(ctx)
	close(stop)
	if err == nil {
		err = c.drain(ctx, &senders)
	}
	cancel()
	senders.Wait()
	others.Wait()
	reader.Report()
	return err
}

// consume reads one partition along, from its leader.
func (c *campaign) consume(ctx context.Context, reader *stage.Consumer, partition int) {
	for ctx.Err() == nil {
		conn, hangUp, err := c.dialLeader(ctx, partition)
		if err == nil {
			reader.FollowOne(conn, partition)
			hangUp()
		}
		c.Pause(ctx)
	}
}

// drain waits until each producer has got an answer to all that it sent.
func (c *campaign) drain(ctx context.Context, senders *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		senders.Wait()
		close(done)
	}()
	if _, err := await(ctx, c, done, catchUpWithin); err != nil {
		return fmt.Errorf("wait for the last answers: %w", err)
	}
	return nil
}

// allFaults lets faults happen for as long as was asked for, and until each kind has happened.
func (c *campaign) allFaults(ctx context.Context) error {
	begun := time.Now()
	if err := c.settle(ctx, begun); err != nil {
		return err
	}
	c.phases.begin(c.written())
	for round := 1; time.Since(begun) < c.cfg.duration || c.missing() != "" && round <= 3*len(c.cfg.faults); round++ {
		pause := time.Duration(c.draw.Int64N(int64(pauseMax)))
		if err := c.hold(ctx, pause); err != nil {
			return err
		}
		if len(c.cfg.faults) == 0 {
			continue
		}
		if err := c.oneFault(ctx, round); err != nil {
			return err
		}
	}
	if missing := c.missing(); missing != "" {
		return fmt.Errorf("nothing was proved for %s: it did not happen", missing)
	}
	return nil
}

// missing is a kind that was chosen and has not happened, or "".
func (c *campaign) missing() kind {
	for _, k := range c.cfg.faults {
		if c.happened[k] == 0 {
			return k
		}
	}
	return ""
}

// oneFault lets one fault happen, waits until it is over for everybody, and measures how long each partition was away.
func (c *campaign) oneFault(ctx context.Context, round int) error {
	f := c.faults.next(c.drawNode)
	leaders := c.routes.leaders()
	begun := time.Now()
	c.phases.fault(f, c.written())
	happened, err := c.inject(ctx, &f)
	c.phases.over(c.written())
	if err != nil {
		return err
	}
	over := time.Now()
	if !happened {
		return nil
	}
	c.happened[f.kind]++
	if err := c.settle(ctx, over); err != nil {
		return err
	}
	worst := c.measure(f, leaders, begun, over)
	fmt.Fprintf(c.Out, "%d %s %v: settled %v later, longest away %s; %d batches acknowledged, %d sent again\n",
		round, begun.Format("15:04:05.000"), f, rounded(time.Since(over)), worst, c.stats.acknowledged.Load(), c.stats.resent.Load())
	return nil
}

// drawNode draws the node for a fault: one that leads a partition, or the controller.
func (c *campaign) drawNode(rng *rand.Rand) int {
	partition, controller := rng.IntN(len(c.Partitions)), rng.IntN(controllerIn) == 0
	any := rng.IntN(c.nodes.Nodes())
	if node := c.routes.controller(); controller && node != nobody {
		return node
	}
	if node := c.routes.leader(partition); node != nobody {
		return node
	}
	return any
}

// settle waits until all nodes are ready and agree, all replicas are in sync, and all producers have had their last batches
// confirmed.
func (c *campaign) settle(ctx context.Context, since time.Time) error {
	generation := c.generation.Add(1)
	within, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	if _, err := c.nodes.AwaitReady(within); err != nil {
		return err
	}
	for !c.routes.settled(since) {
		if within.Err() != nil {
			c.Violate("%v after a fault was over the cluster is not whole: %s", settleWithin, c.routes.why())
			return stage.ErrViolated
		}
		if err := c.hold(ctx, askEvery); err != nil {
			return err
		}
	}
	for waiting := c.cfg.producers; waiting > 0; {
		reached, err := await(ctx, c, c.caughtUp, catchUpWithin)
		if err != nil {
			return fmt.Errorf("wait for %d producers whose last batches are to be confirmed: %w", waiting, err)
		}
		if reached == generation {
			waiting--
		}
	}
	return nil
}

// hold lets time pass.
func (c *campaign) hold(ctx context.Context, d time.Duration) error {
	if _, err := await(ctx, c, (chan struct{})(nil), d); !errors.Is(err, errTimeout) {
		return err
	}
	return nil
}

var errTimeout = errors.New("it did not happen in time")

// await waits for a value. It fails when that takes too long and when the campaign cannot go on: after a violation, and
// when the user interrupts.
func await[T any](ctx context.Context, c *campaign, values <-chan T, within time.Duration) (T, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	var none T
	select {
	case v := <-values:
		return v, nil
	case <-timer.C:
		return none, errTimeout
	case <-c.Violated():
		return none, stage.ErrViolated
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
