package server

import (
	"context"

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

// Topics are the topics of the cluster and the partitions that this node has.
type Topics interface {
	// Topics is a snapshot that does not change any more.
	Topics() *meta.View
	// Partition is false, with a nil Partition, when this node has no such partition or has not opened it yet.
	Partition(topic [16]byte, index int32) (Partition, bool)
	// CreateTopic returns when each partition of the new topic has a ready leader. partitions must be >= 1; a
	// replication of -1 stands for the default. With validateOnly it changes nothing, and what it returns is no topic.
	// Errors are those of package meta, or of ctx: then the topic may exist nevertheless, or soon.
	CreateTopic(ctx context.Context, name string, partitions int32, replication int16, validateOnly bool) (*meta.Topic, error)
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
