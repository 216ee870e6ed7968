package node

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/founding"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/seglog"
)

// Inspection is what Inspect found in a data directory.
type Inspection struct {
	Cluster string // as Node.ClusterID
	Node    int32
	// Problems keep the whole node from starting: damage of the state file or of raft0.
	Problems []string
	// Warnings are what an operator should know, and a start reports.
	Warnings []string
	// Groups are raft0 and the partitions, by topic and partition. Behind damage of raft0 topics may be missing, and with
	// a damaged state file all of them are.
	Groups []GroupInspection
}

// GroupInspection is what Inspect found of one group.
type GroupInspection struct {
	Topic     string // "" for raft0, and when Deleted
	TopicID   [16]byte
	Partition int32
	Group     seglog.GroupID
	Dir       string // within the data directory
	// Deleted: the topic was deleted, and the next start removes the files.
	Deleted bool
	// Opens says that a start would open the group; else Why says why not.
	Opens bool
	Why   string
	// Findings are the damage in the log, in its order: also what a start does not read, and only meets when it is read.
	Findings []seglog.Finding
	// Salvageable says that GiveUp lets the partition go on. LostFrom is the offset of the first record that would be
	// lost, -1 when it is not known; LostOffsets is how many would be lost at least.
	Salvageable bool
	LostFrom    batch.Offset
	LostOffsets int64
	// LogStart is the first offset that the files have, Next the one behind the last.
	LogStart, Next  batch.Offset
	Segments, Bases int
	Bytes           int64 // of the segments
	TornBytes       int64 // of a bad end that a start would cut off
	// Unfinished is what a crash has interrupted, and the next start ends: "delete", "truncate", "give up".
	Unfinished []string
	// Warnings are damage of files that are made anew: base snapshots that are passed over, wrong or missing indexes.
	Warnings []string
}

// Inspect reads a whole data directory, judges it as a start would, and changes nothing. Of env it uses FS and Boot. It
// fails only when nothing can be said: with ErrInUse, raftlog.ErrNoState, ErrNewerFormat, or an error of the file system.
func Inspect(env Env, dir string) (Inspection, error) {
	n := &Node{env: env, cfg: Config{Dir: dir}}
	result, err := n.inspect()
	if n.lock != nil {
		err = errors.Join(err, n.lock.Close())
	}
	if err != nil {
		return Inspection{}, fmt.Errorf("inspect data directory %s: %w", dir, classify(err))
	}
	return result, nil
}

func (n *Node) inspect() (Inspection, error) {
	var result Inspection
	if err := n.lockExisting(); err != nil {
		return result, err
	}
	state, report, err := raftlog.ReadState(n.env.FS, n.cfg.Dir, n.env.Boot)
	if isDamage(err) {
		result.Problems = []string{err.Error()}
		return result, nil
	}
	if err != nil {
		return result, err
	}
	n.use(state, report.SameBoot)
	result.Cluster, result.Node = n.ClusterID(), n.NodeID()
	if err := n.readFounders(); isDamage(err) {
		result.Problems = []string{err.Error()}
		return result, nil
	} else if err != nil {
		return result, err
	}
	view, err := n.readTopics()
	if isNewer(err) {
		return result, err
	}
	own := n.inspectGroup(n.metadataConfig())
	result.Groups = []GroupInspection{own}
	for _, problem := range []string{own.Why, textOf(err)} {
		if problem != "" && len(result.Problems) == 0 {
			result.Problems = []string{"raft0: " + problem}
		}
	}
	if err == nil {
		n.inspectTopics(view, &result)
	}
	return result, nil
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// lockExisting takes the lock of a data directory that was used before. Without a LOCK nobody can hold it: the directory
// is a copy, and is left as it is.
func (n *Node) lockExisting() error {
	names, err := n.env.FS.List(n.cfg.Dir)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "state-") }) {
		return raftlog.ErrNoState
	}
	if !slices.Contains(names, lockName) {
		return nil
	}
	n.lock, err = n.takeLock()
	return err
}

func (n *Node) takeLock() (io.Closer, error) {
	return n.env.FS.Lock(filepath.Join(n.cfg.Dir, lockName))
}

// readFounders finds out who else has a replica of raft0.
func (n *Node) readFounders() error {
	founders, err := founding.ReadFounders(n.env.FS, n.cfg.Dir)
	for i := range founders {
		n.cluster.founders = append(n.cluster.founders, int32(i)+1)
	}
	return err
}

// readTopics returns the metadata as raft0's log adds it up, up to the first damage, if there is any.
func (n *Node) readTopics() (*meta.View, error) {
	var commands [][]byte
	base, err := raftlog.ReadGroup(n.metadataConfig(), func(e seglog.Entry) error {
		if e.Kind == seglog.KindCommand {
			commands = append(commands, slices.Clone(e.Data))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	state, err := meta.Parse(base.Body)
	if err != nil {
		return nil, err
	}
	for _, c := range commands {
		if _, err := state.Apply(c); err != nil {
			return nil, err
		}
	}
	return state.View(), nil
}

func (n *Node) inspectTopics(view *meta.View, result *Inspection) {
	owned := ownedGroups(view)
	for _, t := range view.All() {
		for i, p := range t.Partitions {
			if _, born := n.state.Group(seglog.GroupID(p.Group)); !born {
				result.Warnings = append(result.Warnings, fmt.Sprintf("%s/%d is not made yet: a start makes it", t.Name, i))
				continue
			}
			result.Groups = append(result.Groups, n.inspectPartition(t, int32(i)))
		}
	}
	slices.SortStableFunc(result.Groups[1:], func(a, b GroupInspection) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	for _, g := range n.state.Groups() {
		switch known, _ := n.state.Group(g); {
		case !known.Live || owned[g]:
		case view.GroupDeleted(uint64(g)):
			result.Groups = append(result.Groups, GroupInspection{
				Group: g, Dir: within(g), Deleted: true, Unfinished: []string{"delete"}, LostFrom: -1,
			})
		default:
			result.Warnings = append(result.Warnings, within(g)+" belongs to no topic, and to none that was deleted: a start leaves it as it is")
		}
	}
}

// within is the directory of a group, within the data directory.
func within(g seglog.GroupID) string { return filepath.Join(groupsName, groupName(g)) }

func (n *Node) inspectPartition(t *meta.Topic, partition int32) GroupInspection {
	result := n.inspectGroup(n.partitionConfig(t, partition))
	result.Topic, result.TopicID, result.Partition = t.Name, t.ID, partition
	return result
}

func (n *Node) inspectGroup(cfg raftlog.Config) GroupInspection {
	found := raftlog.Inspect(cfg)
	result := GroupInspection{Group: cfg.Identity.Group, Dir: within(cfg.Identity.Group)}
	result.Opens, result.Why = found.Problem == nil, textOf(found.Problem)
	result.Findings, result.TornBytes = found.Log.Findings, found.Log.TornBytes
	result.Salvageable, result.LostFrom, result.LostOffsets = found.Salvageable, found.Loss.Offset, found.Loss.Offsets
	result.Segments, result.Bases = len(found.Log.Segments), len(found.Bases)
	for i, s := range found.Log.Segments {
		if i == 0 {
			result.LogStart = s.FirstOffset
		}
		result.Next = max(result.Next, s.NextOffset)
		result.Bytes += s.Bytes
	}
	if found.Unfinished != "" {
		result.Unfinished = []string{found.Unfinished}
	}
	for _, b := range found.Bases {
		if b.Problem != nil {
			result.Warnings = append(result.Warnings, b.Problem.Error())
		}
	}
	for _, name := range found.Log.WrongIndexes {
		result.Warnings = append(result.Warnings, name+" is missing or does not agree with its segment: it is made anew")
	}
	return result
}

// GiveUp lets a damaged partition go on without what is damaged, and returns what Inspect said of it before: LostFrom and
// LostOffsets are what is lost now. Side files keep the bytes. From then on producers may begin anywhere: what the
// partition remembered of them is not to be relied on. It fails, having changed nothing, when there is no such partition
// (meta.ErrUnknownTopic), when it is not damaged, and when it cannot be saved. After any other error, or a crash, it is to be
// called again, if the next start does not open the partition. Of env it uses FS and Boot.
func GiveUp(env Env, dir, topic string, partition int32) (GroupInspection, error) {
	n := &Node{env: env, cfg: Config{Dir: dir}}
	lost, err := n.giveUp(topic, partition)
	if n.state != nil {
		err = errors.Join(err, n.state.Close())
	}
	if n.lock != nil {
		err = errors.Join(err, n.lock.Close())
	}
	if err != nil {
		return lost, fmt.Errorf("give up the damaged part of %s/%d in %s: %w", topic, partition, dir, classify(err))
	}
	return lost, nil
}

func (n *Node) giveUp(name string, partition int32) (GroupInspection, error) {
	if err := n.lockExisting(); err != nil {
		return GroupInspection{}, err
	}
	state, report, err := raftlog.OpenState(n.env.FS, n.cfg.Dir, n.env.Boot)
	if err != nil {
		return GroupInspection{}, err
	}
	n.use(state, report.SameBoot)
	if err := n.readFounders(); err != nil {
		return GroupInspection{}, err
	}
	view, err := n.readTopics()
	if err != nil {
		return GroupInspection{}, fmt.Errorf("read raft0: %w", err)
	}
	topic, ok := view.ByName(name)
	if !ok || partition < 0 || int(partition) >= len(topic.Partitions) {
		return GroupInspection{}, fmt.Errorf("%w: there is no partition %s/%d", meta.ErrUnknownTopic, name, partition)
	}
	lost := n.inspectPartition(topic, partition)
	empty := dedupe.New(topic.Rules, 0)
	empty.MarkEverything()
	return lost, raftlog.GiveUp(n.partitionConfig(topic, partition), empty.AppendTo(nil))
}
