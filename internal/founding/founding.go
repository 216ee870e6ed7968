package founding

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncemq/oncemq/internal/invariant"
	"github.com/oncemq/oncemq/internal/meta"
)

const (
	foundingPauseMin = 50 * time.Millisecond
	foundingPauseMax = time.Second
	// askTimeout is how long one question may take.
	askTimeout = 2 * time.Second
)

// Ask puts one question to the node at an address and returns its answer.
type Ask func(ctx context.Context, address string, question []byte) ([]byte, error)

// foundingAnswer is an answer: who the answering node is, or why it does not answer.
type foundingAnswer struct {
	identityRecord
	Refused string `json:"refused,omitempty"`
}

// heard is which first founders were told that this node is blank, since a round of questions began.
type heard struct {
	disk  meta.ID // of the first one; zero: none
	other bool    // and another one
}

func (h *heard) tell(disk meta.ID) {
	if h.disk == (meta.ID{}) {
		h.disk = disk
	}
	h.other = h.other || h.disk != disk
}

// only says whether nobody was told but the first founder with a disk.
func (h *heard) only(disk meta.ID) bool {
	return !h.other && (h.disk == meta.ID{} || h.disk == disk)
}

// Answer answers a question of another founder, or what may not be one. It waits for the disk while the cluster is being
// written. Question and answer have at most 64 KiB.
func (i *Identity) Answer(question []byte) []byte {
	asker, err := decodeQuestion(question)
	i.mu.Lock()
	defer i.mu.Unlock()
	if err == nil {
		err = i.mayAnswer(asker)
	}
	if err != nil {
		i.logRefusal(asker, err.Error())
		return mustMarshal(refusal{Version: identityVersion, Refused: err.Error()})
	}
	if !i.record.founded() && asker.Node == 1 {
		i.heard.tell(asker.Disk)
	}
	if i.record.founded() && i.record.Disks[asker.Node-1] != asker.Disk {
		i.logRefusal(asker, "its data directory is empty, or another one than when the cluster was founded")
	} else {
		delete(i.refused, asker.Node)
	}
	told := i.record
	told.Started = false // nobody else's concern
	return mustMarshal(told)
}

// refusal is an answer that says nothing else.
type refusal struct {
	Version int    `json:"version"`
	Refused string `json:"refused"`
}

func decodeQuestion(b []byte) (*identityRecord, error) {
	if len(b) > identityBytesMax {
		return nil, fmt.Errorf("question of %d bytes", len(b))
	}
	var asker identityRecord
	if err := decodeVersioned(b, &asker); err != nil {
		return nil, fmt.Errorf("question: %w", err)
	}
	if err := asker.check(); err != nil {
		return nil, fmt.Errorf("question: %w", err)
	}
	return &asker, nil
}

func (i *Identity) mayAnswer(asker *identityRecord) error {
	switch {
	case !slices.Equal(asker.Founders, i.record.Founders):
		return fmt.Errorf("the lists of founders differ: node %d has %s, node %d has %s",
			asker.Node, listed(asker.Founders), i.record.Node, listed(i.record.Founders))
	case asker.Node == i.record.Node:
		return fmt.Errorf("two nodes are started as founder %d, %s", i.record.Node, i.cfg.Self)
	case i.failed != nil:
		return fmt.Errorf("node %d could not write its identity", i.record.Node)
	}
	return nil
}

// logRefusal logs why a founder was refused, once for each reason. mu is held.
func (i *Identity) logRefusal(asker *identityRecord, reason string) {
	node, address := uint32(0), ""
	if asker != nil {
		node, address = asker.Node, asker.Founders[asker.Node-1]
	}
	if i.refused[node] == reason {
		return
	}
	i.refused[node] = reason
	i.cfg.Logger.Warn("a founder was refused", "founder", node, "address", address, "reason", reason)
}

// decodeAnswer reads the answer of the node at a place in this node's list.
func (i *Identity) decodeAnswer(b []byte, node uint32) (*identityRecord, error) {
	if len(b) > identityBytesMax {
		return nil, fmt.Errorf("answer of %d bytes", len(b))
	}
	var answer foundingAnswer
	if err := decodeVersioned(b, &answer); err != nil {
		return nil, fmt.Errorf("its answer cannot be read: %w", err)
	}
	if answer.Refused != "" {
		return nil, fmt.Errorf("it refuses: %.1000q", answer.Refused)
	}
	if err := answer.check(); err != nil {
		return nil, fmt.Errorf("its answer cannot be: %w", err)
	}
	if !slices.Equal(answer.Founders, i.cfg.Founders) {
		return nil, fmt.Errorf("the lists of founders differ: it has %s, this node has %s", listed(answer.Founders), listed(i.cfg.Founders))
	}
	if answer.Node != node {
		return nil, fmt.Errorf("it says that it is founder %d", answer.Node)
	}
	if answer.founded() && answer.Disks[node-1] != answer.Disk {
		return nil, errors.New("it says that it is another one than the founder")
	}
	return &answer.identityRecord, nil
}

// Found returns once the cluster is founded and this node knows it, durably: at once when it was founded before. It asks
// again after 50 ms to 1 s, as long as ctx allows, and logs whenever what it waits for changes. After a full disk
// (vfs.IsFull) it may be called again. Errors: ErrEmptied; those of the file system; ctx's cause.
func (i *Identity) Found(ctx context.Context, ask Ask) error {
	pause := foundingPauseMin
	logged := ""
	for !i.Founded() {
		answers := i.askAll(ctx, ask)
		waiting, err := i.decide(answers)
		if err != nil {
			return err
		}
		if waiting == "" {
			continue
		}
		if waiting != logged && ctx.Err() == nil {
			i.cfg.Logger.Info("waiting for the founders of the cluster", "node", i.Node(), "waiting", waiting)
			logged = waiting
		}
		if err := sleep(ctx, pause); err != nil {
			return fmt.Errorf("found the cluster: %w", err)
		}
		pause = min(2*pause, foundingPauseMax)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// told is what one of the others answered.
type told struct {
	Founder
	answer *identityRecord // nil: err says why
	err    error
}

// askAll asks all others once, at the same time.
func (i *Identity) askAll(ctx context.Context, ask Ask) []told {
	i.mu.Lock()
	i.heard = heard{}
	question := mustMarshal(i.record)
	i.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var answers []told
	for _, peer := range i.Peers() {
		answers = append(answers, told{Founder: peer})
	}
	var all sync.WaitGroup
	for at := range answers {
		t := &answers[at]
		all.Go(func() {
			b, err := ask(ctx, t.Address, question)
			if err != nil {
				t.err = errors.New("it does not answer") // the reason changes from time to time, and would be logged again
				return
			}
			t.answer, t.err = i.decodeAnswer(b, t.Node)
		})
	}
	all.Wait()
	return answers
}

// decide founds the cluster or takes it over, when the answers of one round allow it; else it says what is missing.
func (i *Identity) decide(answers []told) (waiting string, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var missing []string
	disks := make([]meta.ID, len(i.record.Founders))
	disks[i.record.Node-1] = i.record.Disk
	for _, t := range answers {
		switch {
		case t.err != nil:
			missing = append(missing, fmt.Sprintf("founder %d (%s): %v", t.Node, t.Address, t.err))
		case t.answer.founded():
			return i.takeOver(t.answer)
		default:
			disks[t.Node-1] = t.answer.Disk
		}
	}
	switch {
	case len(missing) > 0:
		return strings.Join(missing, "; "), nil
	case i.record.Node != 1:
		return fmt.Sprintf("founder 1 (%s): it has not founded yet", i.record.Founders[0]), nil
	}
	next := i.record
	if next.Cluster, err = i.draw(); err != nil {
		return "", err
	}
	next.Disks = disks
	if err := i.write(next); err != nil {
		return "", err
	}
	i.cfg.Logger.Info("the cluster is founded", "cluster", ClusterName(next.Cluster), "node", next.Node, "founders", listed(next.Founders))
	return "", nil
}

// takeOver makes the cluster that another founder knows this node's own. mu is held.
func (i *Identity) takeOver(from *identityRecord) (waiting string, err error) {
	own := i.record
	switch {
	case from.Disks[own.Node-1] != own.Disk:
		return "", fmt.Errorf("%w: %s is empty, but cluster %s knows node %d with another data directory: a node that has lost its "+
			"data cannot come back under its old identity, since it has forgotten what it voted for and stored",
			ErrEmptied, i.cfg.Dir, ClusterName(from.Cluster), own.Node)
	case own.Node == 1:
		return "", fmt.Errorf("%w: %s has lost what it knew: node %d knows cluster %s, which this directory has founded",
			ErrEmptied, i.cfg.Dir, from.Node, ClusterName(from.Cluster))
	case !i.heard.only(from.Disks[0]):
		return "founder 1 was started anew meanwhile", nil
	}
	next := own
	next.Cluster, next.Disks = from.Cluster, slices.Clone(from.Disks)
	if err := i.write(next); err != nil {
		return "", err
	}
	i.cfg.Logger.Info("joined the cluster that was founded", "cluster", ClusterName(next.Cluster), "node", next.Node, "founders", listed(next.Founders))
	return "", nil
}

func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		invariant.Bug("encode %T: %v", v, err)
	}
	return b
}

// ClusterName is a cluster's id as Kafka prints it: 22 characters of URL-safe base64.
func ClusterName(id [16]byte) string { return base64.RawURLEncoding.EncodeToString(id[:]) }
