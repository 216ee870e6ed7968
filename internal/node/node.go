package node

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/founding"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs"
)

// The ways in which a data directory can be unusable. Each is wrapped in an error that says more.
var (
	// ErrInUse: another process holds the data directory.
	ErrInUse = errors.New("data directory is in use by another process")
	// ErrNewerFormat: the directory was written by a newer version.
	ErrNewerFormat = errors.New("data directory is of a newer format")
	// ErrDamage: something in the directory is damaged; nothing was changed.
	ErrDamage = errors.New("data directory is damaged")
)

// flushers is how many groups are written and synced at the same time: the file system merges what syncs in parallel.
const flushers = 16

// What lies in a data directory, beside the state file and the reserve.
const (
	lockName   = "LOCK"
	groupsName = "groups"
)

const (
	// The id of a node that founds its own cluster.
	firstNode = 1
	// The count of this node's disks: part of each replica's id.
	diskLife = 1
)

// Env is everything that a node takes from its surroundings.
type Env struct {
	FS     vfs.FS
	Clock  replica.Clock
	Random io.Reader // cryptographically secure
	Logger *slog.Logger
	// Dial connects to another node; nil: over TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Boot is the id of the machine's present run.
	Boot [16]byte
	// Fatal is called when a write or a sync has failed: what is on disk is unknown then, and the process must end. It
	// may be called more than once, and by several goroutines.
	Fatal func(error)
}

// Config is what an operator chooses. What has no default must be set.
type Config struct {
	// Dir is the data directory.
	Dir string
	// Host and Port are where clients reach this node.
	Host string
	Port int32

	// Founders are the addresses at which the nodes that found a cluster together reach each other, the same list on all of
	// them, this node's PeerAddress among them. Empty: the node is a cluster of its own.
	Founders    []string
	PeerAddress string
	// PeerListener is where the other founders connect; the node closes it. It is nil without Founders.
	PeerListener net.Listener
	// Rack is where the node stands: the replicas of a partition are spread over racks (broker.rack). It may be empty.
	Rack string
	// Replication is how many replicas the partitions of a topic get that asks for the default
	// (default.replication.factor); 0: three, or one on each node of a smaller cluster.
	Replication int16
	// MinInSync is on how many replicas a batch must be on disk before acks=all is answered, of topics that do not say it
	// themselves (min.insync.replicas); what is not more than a majority asks for nothing.
	MinInSync int
	// BalanceInterval is how often leaderships are given back to the preferred leaders
	// (leader.imbalance.check.interval.seconds); 0: 5 minutes, less: never (auto.leader.rebalance.enable).
	BalanceInterval time.Duration

	// PartitionsMax is how many partitions the node can have open; beyond it no topic is created. 0 means
	// meta.PartitionsMax. A bound that was lowered below what there is stops no start.
	PartitionsMax int
	// OpenFiles is how many files of the data directory are open at the same time, those not counted that are in use
	// right then (see vfs.Bounded); 0: as many as there are.
	OpenFiles int

	// Settings are obeyed by every partition.
	Settings replica.Settings
	// SegmentBytes and SegmentEntries bound a segment (log.segment.bytes, log.segment.entries); 0: see package seglog.
	SegmentBytes   int64
	SegmentEntries int
	// ProducersMax is how many producers all partitions together remember (producer.id.max.per.node).
	ProducersMax int
	// ExpiryInterval and RetentionInterval are how often expired producers and expired records are looked for
	// (producer.id.expiration.check.interval.ms, log.retention.check.interval.ms); 0: 10 and 5 minutes.
	ExpiryInterval, RetentionInterval time.Duration
	// DiskLowWater is how many bytes of the disk must be free for new batches to be accepted; DiskReserve how many are
	// set aside to finish what was accepted when the disk is full. 0: 256 and 64 MiB, but not more than a 20th
	// and a 50th of the disk.
	DiskLowWater, DiskReserve int64
}

// Node is a running node.
type Node struct {
	env      Env
	cfg      Config
	lock     io.Closer
	state    *raftlog.StateFile
	sameBoot bool
	// recovered: the state file says that all logs were read back since the machine came up. unread: one could not be.
	recovered, unread atomic.Bool
	flushers          *raftlog.Flushers
	cluster           cluster
	members           members
	leaders           leaders
	balancer          balancer
	refreshes         refreshes
	metadata          *replica.Metadata
	// governs: raft0 is open here, so that other nodes may ask what it decides. draining: no leadership is wanted here.
	governs, draining atomic.Bool
	ids               meta.ProducerIDs
	renewing          atomic.Bool
	room              room
	placer            placer
	removal           removal
	space             space
	jobs              background
	// producers are those that the partitions remember; see host.
	producers atomic.Int64
	ready     atomic.Bool // Open has returned, and Close was not called yet

	// running ends when the node is closed; tasks are the goroutines that it ends.
	running context.Context
	stop    context.CancelFunc
	tasks   sync.WaitGroup
	// ticking ends when stopTicks is closed, which is after the last replica was closed.
	ticking   sync.WaitGroup
	stopTicks chan struct{}
}

// Open starts a node on cfg.Dir, which is made when it does not exist. It returns when every partition that has its only
// replica here is ready or, being damaged, offline: then the log says which, and Partition.Status why. In a cluster of several
// it waits until all founders are there, the first time, and later until a majority of them is.
func Open(ctx context.Context, env Env, cfg Config) (*Node, error) {
	if cfg.OpenFiles > 0 {
		env.FS = vfs.Bounded(env.FS, cfg.OpenFiles)
	}
	cfg.PartitionsMax = cmp.Or(cfg.PartitionsMax, meta.PartitionsMax)
	cfg.ExpiryInterval = cmp.Or(cfg.ExpiryInterval, 10*time.Minute)
	cfg.RetentionInterval = cmp.Or(cfg.RetentionInterval, 5*time.Minute)
	n := &Node{env: env, cfg: cfg}
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(classify(err), n.Close())
	}
	n.ready.Store(true)
	return n, nil
}

func (n *Node) open(ctx context.Context) error {
	if err := n.openDirectory(); err != nil {
		return err
	}
	n.initSpace()
	if err := n.withRoom(func() error { return n.openState(ctx) }); err != nil {
		return err
	}
	n.flushers = raftlog.NewFlushers(flushers, n.state, raftlog.Events{Fatal: n.env.Fatal, Full: n.space.meet})
	n.running, n.stop = context.WithCancel(context.WithoutCancel(ctx))
	n.jobs.start()
	n.initPartitions()
	n.tasks.Go(func() { n.space.run(n.running) })
	if n.cluster.several() {
		n.placer.start()
		n.joinPeers()
	}
	if err := n.openMetadata(ctx); err != nil {
		return err
	}
	n.space.mayReserve.Store(true)
	if err := n.openPartitions(ctx); err != nil {
		return err
	}
	if err := n.placer.settled(ctx); err != nil {
		return err
	}
	n.tasks.Go(n.keepHouse)
	return n.finishRecovery()
}

// openPartitions has the replicas opened and takes part in the cluster. The deletions that were not ended need a View that
// shows all that was deleted before: of a cluster of one raft0 has it when it is open, of another one when it has applied what
// this run has proposed.
func (n *Node) openPartitions(ctx context.Context) error {
	if !n.cluster.several() {
		n.placer.start()
		if err := n.resumeDeletions(); err != nil {
			return err
		}
	}
	n.tasks.Go(n.place)
	if err := n.startRun(ctx); err != nil {
		return err
	}
	if n.cluster.several() {
		return n.resumeDeletions()
	}
	return nil
}

func (n *Node) initPartitions() {
	n.room.init(n.cfg.PartitionsMax)
	n.members.init()
	n.leaders.init(n.state.Node().Node)
	n.balancer.init()
	n.placer.init(n.NodeID(), &n.room)
}

// withRoom carries out a step of the start. When the disk is full, the reserve is for that.
func (n *Node) withRoom(step func() error) error {
	err := step()
	if isFull(err) && n.space.giveBack() {
		err = step()
	}
	return err
}

// finishRecovery takes note that all logs were read back since the machine came up: from now on what is found behind a bad
// entry is judged as after the end of the process alone. It does nothing while some have not been read: those that are tried
// again, after which it is called again, and those that the disk could not read. One that is damaged was read.
func (n *Node) finishRecovery() error {
	if n.recovered.Load() || n.unread.Load() || n.placer.waiting() {
		return nil
	}
	err := n.state.FinishRecovery()
	if isFull(err) {
		n.space.meet(err)
		return nil
	}
	n.recovered.Store(err == nil)
	return err
}

// resume goes on with what could not be done before, mostly for want of room on the disk.
func (n *Node) resume() {
	if !n.ready.Load() {
		return // the start has not come so far
	}
	n.placer.resume()
	n.resumeRemoval()
	if err := n.finishRecovery(); err != nil {
		n.env.Fatal(err)
	}
}

func (n *Node) initSpace() {
	n.space = space{
		fs: n.env.FS, dir: n.cfg.Dir, clock: n.env.Clock, logger: n.env.Logger,
		lowWater: n.cfg.DiskLowWater, reserve: n.cfg.DiskReserve,
		parked: func() int {
			if n.flushers == nil {
				return 0 // the start has not come so far
			}
			return n.flushers.Parked()
		},
		retry: func() { n.flushers.Retry() },
		filled: func() {
			if n.ready.Load() {
				n.doChores(replica.Retain) // what has expired since the last look makes room
			}
		},
		emptied: n.resume,
		met:     make(chan struct{}, 1),
	}
	n.space.look()
}

func (n *Node) openDirectory() error {
	if err := n.env.FS.MkdirAll(n.cfg.Dir); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	lock, err := n.takeLock()
	if err != nil {
		return fmt.Errorf("lock data directory %s: %w", n.cfg.Dir, err)
	}
	n.lock = lock
	return nil
}

// openState opens the state file, or makes that of a node that founds a cluster. Groups without a state file are a lost
// state file, and with it lost votes: nothing is made then.
func (n *Node) openState(ctx context.Context) error {
	if err := n.openIdentity(); err != nil {
		return err
	}
	state, report, err := raftlog.OpenState(n.env.FS, n.cfg.Dir, n.env.Boot)
	if err == nil {
		n.use(state, report.SameBoot)
		if report.CutBytes > 0 {
			n.env.Logger.Info("cut a torn end off the state file", "bytes", report.CutBytes)
		}
		return n.confirmIdentity()
	}
	if !errors.Is(err, raftlog.ErrNoState) {
		return err
	}
	groups, err := n.env.FS.List(n.groupsDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for groups: %w", err)
	}
	if len(groups) > 0 {
		return fmt.Errorf("%w: %s holds groups, but %s has no state file", ErrDamage, n.groupsDir(), n.cfg.Dir)
	}
	return n.found(ctx)
}

// found makes the state file of a new node. The directories that lead to it are durable before.
func (n *Node) found(ctx context.Context) error {
	if err := n.env.FS.MkdirAll(n.groupsDir()); err != nil {
		return fmt.Errorf("make directory for groups: %w", err)
	}
	if err := vfs.SyncUpwards(n.env.FS, n.cfg.Dir); err != nil {
		return err
	}
	identity, err := n.newIdentity(ctx)
	if err != nil {
		return err
	}
	state, err := raftlog.CreateState(n.env.FS, n.cfg.Dir, identity, n.env.Boot)
	n.use(state, true)
	if err != nil {
		return err
	}
	return n.confirmIdentity()
}

func (n *Node) use(state *raftlog.StateFile, sameBoot bool) {
	n.state, n.sameBoot = state, sameBoot
	n.recovered.Store(sameBoot)
}

// Close stops the node: what was accepted is stored and answered first. The listener for clients must be closed before, and
// Drain should have been called.
func (n *Node) Close() error {
	n.ready.Store(false)
	var errs []error
	if n.stop != nil {
		n.stop()
		n.tasks.Wait()
		errs = append(errs, n.placer.closeAll())
	}
	n.governs.Store(false)
	if n.metadata != nil {
		errs = append(errs, n.metadata.Close())
	}
	errs = append(errs, n.leavePeers())
	n.jobs.close() // behind the replicas: they wait for theirs
	if n.flushers != nil {
		n.flushers.Close()
	}
	if n.state != nil {
		errs = append(errs, n.state.Close())
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
	}
	return errors.Join(errs...)
}

// NodeID is this node's id in Kafka's sense (broker.id), from 1 upwards.
func (n *Node) NodeID() int32 { return int32(n.state.Node().Node) }

// ClusterID is the cluster's id as Kafka prints it: 22 characters of URL-safe base64.
func (n *Node) ClusterID() string {
	id := n.state.Node().Cluster
	return base64.RawURLEncoding.EncodeToString(id[:])
}

func (n *Node) groupsDir() string { return filepath.Join(n.cfg.Dir, groupsName) }

func groupName(g seglog.GroupID) string { return fmt.Sprintf("%016x", uint64(g)) }

func (n *Node) replicaID() seglog.ReplicaID {
	return seglog.ReplicaID(n.state.Node().Node)<<32 | diskLife
}

// groupConfig says where a group lies and who it is.
func (n *Node) groupConfig(group seglog.GroupID, topic [16]byte, partition int32) raftlog.Config {
	return raftlog.Config{
		FS:  n.env.FS,
		Dir: filepath.Join(n.groupsDir(), groupName(group)),
		Identity: seglog.Identity{
			Cluster: n.state.Node().Cluster, Group: group, Replica: n.replicaID(),
			Topic: topic, Partition: partition,
		},
		State:          n.state,
		SameBoot:       n.sameBoot,
		SegmentBytes:   n.cfg.SegmentBytes,
		SegmentEntries: n.cfg.SegmentEntries,
	}
}

// classify adds the class by which a caller can decide whether trying again makes sense.
func classify(err error) error {
	if errors.Is(err, vfs.ErrLocked) {
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	if isNewer(err) {
		return fmt.Errorf("%w: %w", ErrNewerFormat, err)
	}
	if isDamage(err) && !errors.Is(err, ErrDamage) {
		return fmt.Errorf("%w: %w", ErrDamage, err)
	}
	return err
}

func isNewer(err error) bool {
	return isA[*raftlog.NewerFormatError](err) || isA[*seglog.FormatError](err) || errors.Is(err, replica.ErrNewerLog) ||
		errors.Is(err, meta.ErrNewerVersion) || errors.Is(err, founding.ErrNewerFormat) || errors.Is(err, dedupe.ErrUnknownRules)
}

func isDamage(err error) bool {
	return errors.Is(err, ErrDamage) || errors.Is(err, founding.ErrDamage) || isA[*raftlog.StateDamageError](err) || isA[*raftlog.BaseDamageError](err) ||
		isA[*seglog.DamageError](err) || isA[*seglog.IdentityError](err)
}

func isFull(err error) bool { return errors.Is(err, raftlog.ErrFull) || vfs.IsFull(err) }

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
