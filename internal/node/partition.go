package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/seglog"
)

// place opens and closes queued replicas until the node is closed.
func (n *Node) place() {
	stopped := context.AfterFunc(n.running, n.placer.close)
	defer stopped()
	var workers sync.WaitGroup
	for range placers {
		workers.Go(func() {
			for {
				j, ok := n.placer.next()
				if !ok {
					return
				}
				if j.kind == closeForGood {
					n.endReplica(j)
				} else {
					n.beginReplica(j)
				}
			}
		})
	}
	workers.Wait()
}

// beginReplica makes and opens one replica. A failure at the start ends the start; later it ends the process.
func (n *Node) beginReplica(j job) {
	err := n.openSlot(j)
	if err != nil {
		err = fmt.Errorf("open %s/%d: %w", j.topic.topic.Name, j.partition, err)
		j.topic.failure.CompareAndSwap(nil, &err)
		if n.ready.Load() && n.running.Err() == nil {
			n.env.Fatal(err)
		}
	}
	if j.kind == openAgain {
		n.placer.tried()
		if err := n.finishRecovery(); err != nil {
			n.env.Fatal(err)
		}
		return
	}
	if j.topic.remaining.Add(-1) == 0 {
		close(j.topic.done)
	}
}

// openSlot fills a slot, and waits until the replica in it is ready or offline. The error is one with which the node cannot go
// on; from one that concerns this partition alone the others are not to suffer.
func (n *Node) openSlot(j job) error {
	s := &j.topic.partitions[j.partition]
	logger := n.env.Logger.With("topic", j.topic.topic.Name, "partition", j.partition)
	p, err := n.fill(s, j, logger)
	if p == nil || err != nil {
		return err
	}
	if err := p.Opened(n.running); isNewer(err) {
		return err
	}
	return nil // if it is offline, the replica itself has said why
}

// fill puts into the slot what there is for it: a replica, which is returned, or one that is offline from the beginning.
func (n *Node) fill(s *slot, j job, logger *slog.Logger) (*replica.Partition, error) {
	s.busy.Lock()
	defer s.busy.Unlock()
	if j.topic.deleted.Load() {
		return nil, nil
	}
	p, err := n.openPartition(j, logger)
	switch {
	case err == nil:
		s.replica.Store(p)
		return p, nil
	case isDamage(err) || isUnreadable(err):
		logger.Error("the partition is damaged and stays offline; `oncemq check-data` tells what is lost without its damaged part", "error", err)
		if isUnreadable(err) {
			n.unread.Store(true)
		}
	case isFull(err):
		logger.Error("no room on the disk for the partition: it is offline until there is some", "error", err)
		n.space.meet(err)
		n.placer.postpone(j)
		err = fmt.Errorf("%w: %w", replica.ErrDiskFull, err)
	case n.ready.Load() && !isNewer(err) && !errors.Is(err, seglog.ErrSync):
		// Nothing in it was answered yet, so nothing is in doubt.
		logger.Error("the partition cannot be opened at the moment: it is offline, and is tried again", "error", err)
		n.placer.postpone(j)
	default:
		return nil, err
	}
	recorded, _ := n.state.Group(seglog.GroupID(j.topic.topic.Partitions[j.partition].Group))
	s.replica.Store(replica.OpenOffline(batch.Term(recorded.Term), err))
	return nil, nil
}

// isUnreadable says whether the disk could not read a file back: the damage that the disk itself has noticed.
func isUnreadable(err error) bool {
	bad, ok := errors.AsType[*fs.PathError](err)
	return ok && bad.Op == "read" && errors.Is(bad, syscall.EIO)
}

func (n *Node) openPartition(j job, logger *slog.Logger) (*replica.Partition, error) {
	t := j.topic.topic
	if !dedupe.KnowsRules(t.Rules) { // a newer version created the topic
		return nil, fmt.Errorf("begin with rules %d: %w", t.Rules, dedupe.ErrUnknownRules)
	}
	cfg := n.partitionConfig(t, j.partition)
	log, err := n.openGroup(cfg, logger)
	if err != nil {
		return nil, err
	}
	nodes := t.Partitions[j.partition].Replicas
	replicaConfig := n.replicaConfig(log, cfg.Identity.Group, nodes, logger)
	replicaConfig.MinInSync = cmp.Or(int(t.MinInSync), n.cfg.MinInSync)
	p, err := replica.OpenPartition(cfg.Identity.Replica, replicaConfig)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	if len(nodes) > 1 {
		n.members.join(cfg.Identity.Group, p)
	}
	return p, nil
}

// openGroup opens a group, which is made when there is none.
func (n *Node) openGroup(cfg raftlog.Config, logger *slog.Logger) (*raftlog.Log, error) {
	switch known, born := n.state.Group(cfg.Identity.Group); {
	case born && !known.Live:
		return nil, fmt.Errorf("%w: the state file says that the replica in %s was removed", ErrDamage, cfg.Dir)
	case !born:
		if err := raftlog.CreateGroup(cfg, *cfg.Birth); err != nil {
			return nil, err
		}
	}
	log, report, err := raftlog.OpenGroup(cfg)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: the state file has a record of it: %w", ErrDamage, err)
	}
	if err != nil {
		return nil, err
	}
	reportOpening(cfg, log, report, logger)
	return log, nil
}

// reportOpening tells what opening a group has put right, or is going to: each file in a line.
func reportOpening(cfg raftlog.Config, log *raftlog.Log, r raftlog.Report, logger *slog.Logger) {
	if r.CutBytes > 0 {
		logger.Warn("cut a torn end off the log", "bytes", r.CutBytes, "saved_as", r.CutFile)
	}
	for _, name := range r.Indexes {
		logger.Warn("an index was missing or wrong and is made anew", "file", name)
	}
	file := func(first seglog.Index) string { return filepath.Join(cfg.Dir, fmt.Sprintf("%020d.base", first)) }
	bad := map[string]bool{}
	for _, damage := range r.BadBases {
		name := damage.Path
		if name == cfg.Dir {
			name = file(cfg.Birth.Index + 1) // there is none at all: this one is missed
		}
		logger.Warn("a base snapshot is damaged or missing and is made anew", "file", name, "error", damage.Detail)
		bad[name] = true
	}
	for _, first := range log.WantBases() {
		if name := file(first); !bad[name] {
			logger.Info("a base snapshot is missing and is made", "file", name)
		}
	}
}

// birth is the base snapshot that a group begins with; voters are its replicas, ascending, and body is the state in it. It
// follows from what raft0 knows, that of raft0 from who founded the cluster: all replicas have the same.
func birth(id seglog.Identity, voters []uint64, body []byte) *raftlog.Base {
	return &raftlog.Base{
		Cluster: id.Cluster, Group: id.Group,
		Index: 1, Term: 1,
		Members: raftlog.Members{Voters: voters},
		Body:    body,
	}
}

// metadataConfig is the configuration of raft0.
func (n *Node) metadataConfig() raftlog.Config {
	cfg := n.groupConfig(raft0, [16]byte{}, -1)
	cfg.Birth = birth(cfg.Identity, votersOn(n.governors()), meta.New().AppendTo(nil))
	return cfg
}

// governors are the nodes that have a replica of raft0.
func (n *Node) governors() []int32 {
	if n.cluster.founders == nil {
		return []int32{n.NodeID()}
	}
	return n.cluster.founders
}

// votersOn are the replicas of a group on nodes, ascending.
func votersOn(nodes []int32) []uint64 {
	voters := make([]uint64, len(nodes))
	for i, node := range nodes {
		voters[i] = uint64(replicaOn(node))
	}
	slices.Sort(voters)
	return voters
}

// partitionConfig is the configuration of a partition's group.
func (n *Node) partitionConfig(t *meta.Topic, partition int32) raftlog.Config {
	cfg := n.groupConfig(seglog.GroupID(t.Partitions[partition].Group), t.ID, partition)
	cfg.Birth = birth(cfg.Identity, votersOn(t.Partitions[partition].Replicas), dedupe.New(t.Rules, t.Floor).AppendTo(nil))
	return cfg
}

// replicaConfig is the configuration of a replica of a group on nodes, the preferred leader first.
func (n *Node) replicaConfig(log *raftlog.Log, group seglog.GroupID, nodes []int32, logger *slog.Logger) replica.Config {
	cfg := replica.Config{
		Log: log, Flushers: n.flushers, Clock: n.env.Clock, Logger: logger,
		Settings: &n.cfg.Settings, Host: &host{node: n, group: group, logger: logger},
	}
	if len(nodes) > 1 {
		cfg.Peers, cfg.Preferred, cfg.After = n.cluster.transport, nodes[0] == n.NodeID(), afterFunc
	}
	return cfg
}

func afterFunc(d time.Duration, f func()) { time.AfterFunc(d, f) }

// Partition returns the replica of a partition; ok is false when there is no such partition or it is not open yet.
func (n *Node) Partition(topic [16]byte, partition int32) (p *replica.Partition, ok bool) {
	t, ok := n.placer.find(topic)
	if !ok || partition < 0 || int(partition) >= len(t.partitions) {
		return nil, false
	}
	p = t.partitions[partition].replica.Load()
	return p, p != nil
}
