package main

import (
	"time"

	"github.com/oncemq/oncemq/internal/node"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/server"
	"github.com/oncemq/oncemq/internal/setting"
)

// nodeConfig is what the node is told, but for the address that clients use.
func nodeConfig(dir string, v setting.Values, files fileShares) node.Config {
	return node.Config{
		Dir: dir, PartitionsMax: files.partitions, OpenFiles: files.data,
		Settings: replica.Settings{
			MaxMessageBytes:        v.MessageBytes,
			ProducerExpiration:     v.ProducerExpiration,
			ProducerEvictionMinAge: v.ProducerEvictionMinAge,
			ProducersMax:           v.ProducersPerPartition,
			Retention:              v.Retention,
			RetentionBytes:         v.RetentionBytes,
			SegmentAge:             v.SegmentAge,
			LagMax:                 v.ReplicaLagMax,
		},
		SegmentBytes: v.SegmentBytes, SegmentEntries: v.SegmentEntries, ProducersMax: v.ProducersPerNode,
		ExpiryInterval: v.ProducerExpiryInterval, RetentionInterval: v.RetentionInterval,
		DiskLowWater: v.DiskLowWaterBytes, DiskReserve: v.DiskReserveBytes,
		Replication: max(v.Replication, 0), MinInSync: v.MinInSync, BalanceInterval: balanceInterval(v),
	}
}

// balanceInterval is how often leaderships are given back to the preferred leaders; negative: never.
func balanceInterval(v setting.Values) time.Duration {
	if !v.LeaderBalance {
		return -1
	}
	return v.LeaderBalanceInterval
}

// serverConfig is what the Kafka side is told.
func serverConfig(v setting.Values, files fileShares) server.Config {
	return server.Config{
		MaxConnections: min(v.Connections, files.connections), ConnectionIdleMax: v.ConnectionIdleMax,
		RequestBytesMax: v.RequestBytes, QueuedRequestBytesMax: v.QueuedRequestBytes, FetchBytesMax: v.FetchBytes,
		NumPartitions: v.NumPartitions, NoAutoCreateTopics: !v.AutoCreateTopics,
		TopicDefaults: server.TopicDefaults{
			Retention: v.Retention, RetentionBytes: v.RetentionBytes, SegmentAge: v.SegmentAge, SegmentBytes: v.SegmentBytes, MessageBytes: v.MessageBytes,
			MinInSync: v.MinInSync,
		},
	}
}
