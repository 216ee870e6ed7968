package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/peer"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/seglog"
)

// The methods that nodes call on each other.
const (
	// callPropose has a command applied by the leader of raft0. The request is the command as package meta encodes it, the
	// reply a proposed.
	callPropose = 1
	// callConfirm asks the leader of raft0 what is committed. The request is empty, the reply a proposed with an index.
	callConfirm = 2
	// callTransfer asks a leader to hand over a partition's leadership; see transfer.go.
	callTransfer = 3
)

const (
	// callPatience is how long an answer of raft0's leader is waited for before another is looked for: it may be frozen.
	callPatience = 3 * time.Second
	// callPause is how long to wait before asking again when there is no leader.
	callPause = 50 * time.Millisecond
)

// errNoLeader: raft0 has no leader that this node knows of.
var errNoLeader = errors.New("the cluster has no leader at the moment: a majority of its nodes is needed")

// proposed is what raft0's leader answers. Fields that are not known are passed over, so that versions mix.
type proposed struct {
	// Index is where the leader's raft0 stood when it answered: what it says is true of every node that has come so far.
	Index uint64 `json:"index"`
	// Refusal is the number in refusals of the reason for which the command was refused, 0: it was not; Text tells why.
	Refusal     int    `json:"refusal,omitempty"`
	Text        string `json:"text,omitempty"`
	StartNumber uint32 `json:"start_number,omitempty"`
}

// refusals are the reasons of refused commands by their numbers between nodes, which never change. 0 is none, and 1 any
// that has no number.
var refusals = []error{
	nil, errors.New("refused"),
	meta.ErrTopicExists, meta.ErrUnknownTopic, meta.ErrInvalidName, meta.ErrInvalidPartitions, meta.ErrInvalidReplication,
	meta.ErrInvalidTopicID, meta.ErrInvalidNode, meta.ErrInvalidCluster, meta.ErrClusterExists, meta.ErrNoCluster,
	meta.ErrStartNumbersUsedUp, meta.ErrInvalidAssignment, meta.ErrInvalidSetting,
}

// refused is a refusal as another node told it.
type refused struct {
	kind error
	text string
}

func (r *refused) Error() string { return r.text }
func (r *refused) Unwrap() error { return r.kind }

func (p *proposed) refuse(err error) {
	if err == nil {
		return
	}
	p.Refusal, p.Text = 1, err.Error()
	for i, kind := range refusals[2:] {
		if errors.Is(err, kind) {
			p.Refusal = i + 2
		}
	}
}

func (p *proposed) refusal() error {
	switch {
	case p.Refusal == 0:
		return nil
	case p.Refusal < 0 || p.Refusal >= len(refusals):
		return &refused{refusals[1], p.Text}
	}
	return &refused{refusals[p.Refusal], p.Text}
}

// propose has a command applied by raft0, wherever that leads, and by this node's replica of it: its View shows what the
// command did. It tries until ctx ends; the outcome is not known then. A command may be applied twice, which package meta
// takes care of. The Topic of a result is in the View.
func (n *Node) propose(ctx context.Context, c meta.Command) (meta.Result, error) {
	if !n.cluster.several() {
		return n.metadata.Propose(ctx, c)
	}
	var result meta.Result
	body := meta.Encode(c)
	again := false
	err := n.atLeader(ctx, func(ctx context.Context) (err error) {
		result, err = n.metadata.Propose(ctx, c)
		return err
	}, func(ctx context.Context, leader peer.NodeID) error {
		answer, err := n.callMetadata(ctx, leader, callPropose, body)
		result = meta.Result{StartNumber: answer.StartNumber, Refused: answer.refusal()}
		return err
	}, &again)
	if _, deletes := c.(*meta.DeleteTopic); deletes && again && errors.Is(result.Refused, meta.ErrUnknownTopic) {
		result.Refused = nil // an earlier attempt has deleted it
	}
	return result, err
}

// refresh waits until this node's View shows all that was committed when refresh was called.
func (n *Node) refresh(ctx context.Context) error {
	if !n.cluster.several() {
		return nil
	}
	return n.atLeader(ctx, n.metadata.Confirm, func(ctx context.Context, leader peer.NodeID) error {
		_, err := n.callMetadata(ctx, leader, callConfirm, nil)
		return err
	}, new(bool))
}

// atLeader does something at raft0's leader, here or on another node, again until it succeeds or ctx ends. It sets again
// when the first attempt has failed.
func (n *Node) atLeader(ctx context.Context, here func(context.Context) error, there func(context.Context, peer.NodeID) error, again *bool) error {
	for {
		err := errNoLeader
		switch leader := n.metadata.Leadership().Leader; nodeOf(leader) {
		case 0:
		case n.state.Node().Node:
			err = here(ctx)
		default:
			err = func() error {
				patient, cancel := context.WithTimeout(ctx, callPatience)
				defer cancel()
				return there(patient, peer.NodeID(nodeOf(leader)))
			}()
		}
		if err == nil {
			return nil
		}
		*again = true
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), err.Error()) // the last attempt may say no, but not those before it
		case <-n.running.Done():
			return fmt.Errorf("%w: %s", replica.ErrStopped, err.Error())
		case <-time.After(callPause):
		}
	}
}

// callMetadata calls raft0's leader, and waits until this node's replica has come as far as the leader's when it answered.
func (n *Node) callMetadata(ctx context.Context, leader peer.NodeID, method uint8, body []byte) (proposed, error) {
	var answer proposed
	reply, err := n.cluster.transport.Call(ctx, leader, method, body)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(reply, &answer); err != nil {
		return answer, fmt.Errorf("answer of node %d: %w", leader, err)
	}
	return answer, n.metadata.Await(ctx, seglog.Index(answer.Index))
}

// serveProposal applies the command of another node, if raft0 leads here.
func (n *Node) serveProposal(ctx context.Context, body []byte) ([]byte, error) {
	c, err := meta.Decode(body)
	if err != nil {
		return nil, err
	}
	result, err := n.metadata.Propose(ctx, c)
	if err != nil {
		return nil, err
	}
	return n.answer(result)
}

// serveConfirm answers what is committed in raft0, if that leads here.
func (n *Node) serveConfirm(ctx context.Context) ([]byte, error) {
	if err := n.metadata.Confirm(ctx); err != nil {
		return nil, err
	}
	return n.answer(meta.Result{})
}

func (n *Node) answer(result meta.Result) ([]byte, error) {
	p := proposed{Index: uint64(n.metadata.Applied()), StartNumber: result.StartNumber}
	p.refuse(result.Refused)
	return json.Marshal(p)
}
