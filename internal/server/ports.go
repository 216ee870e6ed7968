package server

import (
	"context"
	"errors"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
)

// Node is what the server needs of the node that it runs in. Its methods are called from many goroutines.
type Node interface {
	Cluster
	Topics
	// NextProducerID gives a producer id that no node of this cluster gave before and none will again. It answers
	// from memory; an error means "not yet".
	NextProducerID() (batch.ProducerID, error)
}

// Cluster is what the node knows of the cluster it belongs to.
type Cluster interface {
	NodeID() int32
	// ClusterID is the cluster's id in the form that Kafka prints: 16 bytes, base64url without padding.
	ClusterID() string
	// Brokers are the nodes that clients can connect to, at the addresses that they advertise.
	Brokers() []meta.Broker
}

// Leadership is what a node knows of who leads a partition, on whichever node that is.
type Leadership struct {
	// Leader leads and serves the partition; -1: none is known at the moment.
	Leader int32
	// Epoch is the newest leader epoch that is known, from 1 upwards. It never goes backwards.
	Epoch int32
	// InSync are the nodes whose replicas are in sync, a subset of those that have one. Nobody may change it.
	InSync []int32
	// Ready says that there is a Leader.
	Ready bool
}

// The ways in which an election of the preferred leader can end without one.
var (
	// ErrNoLeader: the partition has no leader at the moment (Kafka code 5).
	ErrNoLeader = errors.New("the partition has no leader at the moment")
	// ErrElectionNotNeeded: the preferred leader leads already (Kafka code 84).
	ErrElectionNotNeeded = errors.New("the preferred replica leads already")
	// ErrPreferredNotAvailable: the preferred leader is not in sync, or its node is away (Kafka code 80).
	ErrPreferredNotAvailable = errors.New("the preferred replica is not in sync")
)

// NewTopic is a topic that is to be created.
type NewTopic struct {
	Name string
	// Partitions is how many there shall be, at least 1, and Replication how many replicas each has; -1 stands for the
	// default. With an Assignment neither counts.
	Partitions  int32
	Replication int16
	// Assignment has the nodes of each partition's replicas, the preferred leader first; nil: the cluster chooses.
	Assignment [][]int32
	// MinInSync is min.insync.replicas of the topic; 0: the broker's.
	MinInSync int32
}

// Topics are the topics of the cluster, who leads their partitions, and the partitions that this node has.
type Topics interface {
	// Topics is a snapshot that does not change any more.
	Topics() *meta.View
	// Refresh waits until Topics shows all that was committed when it was called, for about 2 s at most. An error says that
	// this could not be learned: then what Topics does not show may exist.
	Refresh(ctx context.Context) error
	// Partition is false, with a nil Partition, when this node has no such partition or has not opened it yet.
	Partition(topic [16]byte, index int32) (Partition, bool)
	// Leadership is what this node knows of who leads a partition of a topic, wherever that is. It is cheap.
	Leadership(topic *meta.Topic, partition int32) Leadership
	// ElectLeader has the preferred leader of a partition, the first of its replicas, take over, and returns when it
	// leads. Errors are ErrNoLeader, ErrElectionNotNeeded and ErrPreferredNotAvailable, or of ctx: then it may come to
	// lead nevertheless.
	ElectLeader(ctx context.Context, topic *meta.Topic, partition int32) error
	// CreateTopic returns when each partition of the new topic has a ready leader. With validateOnly it changes nothing,
	// and what it returns has the partitions and replicas that the topic would have. Errors are those of package meta,
	// or of ctx: then the topic may exist nevertheless, or soon.
	CreateTopic(ctx context.Context, topic NewTopic, validateOnly bool) (*meta.Topic, error)
	// DeleteTopic returns when no partition of the topic takes or serves anything any more; its files go later. It
	// deletes the topic that it is given and no other one of the same name. Errors are meta.ErrUnknownTopic when it is
	// gone already, those of package replica when it was not deleted now, or of ctx: then it may be deleted
	// nevertheless, or soon.
	DeleteTopic(ctx context.Context, topic *meta.Topic) error
}

// Partition is a replica of a partition on this node. Its methods are called from many goroutines.
type Partition interface {
	Log
	// Submit hands over one batch. Batches submitted by one caller are decided in that order. It waits while the
	// partition has accepted as many bytes as it may hold, and fails only when the partition is stopped: then
	// neither Taken nor Done of the submission is called.
	Submit(*replica.Submission) error
	// DeleteRecords moves the log start up to before, or up to the high watermark when before is -1, and returns the
	// log start when that is on disk: it may be higher. It fails with replica.ErrOutOfRange when before is above the
	// high watermark or otherwise negative, with another error of package replica, or with that of ctx: then the log
	// start may be moved nevertheless.
	DeleteRecords(ctx context.Context, before batch.Offset) (batch.Offset, error)
	// Confirm returns nil when this replica led and served at a moment after the call: what was committed then is in its
	// Status. Errors are those of package replica, or of ctx.
	Confirm(ctx context.Context) error
	// Status is cheap: every request asks for it.
	Status() replica.Status
}

// Log is what a reader needs of a partition. From the high watermark on there is nothing.
type Log interface {
	// Available is how many bytes Read would append, the first batch counted even if it is larger than maxBytes.
	Available(from batch.Offset, maxBytes int) (int, error)
	// Read appends whole batches below the high watermark to dst, beginning with the one that holds from, as many
	// as fit into maxBytes; with minOne the first one even if it does not fit.
	Read(dst []byte, from batch.Offset, maxBytes int, minOne bool) ([]byte, error)
	// Watch makes the partition send to wake, without blocking, after each advance of its high watermark and each
	// change of Status.Ready or Status.Term, until Unwatch.
	Watch(wake chan<- struct{})
	Unwatch(wake chan<- struct{})
}
