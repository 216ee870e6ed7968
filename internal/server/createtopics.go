package server

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// createTopics answers CreateTopics, version 0 to 7: each topic by itself, in order. A topic that is reported as
// created has a ready leader for each partition.
func (s *Server) createTopics(c *call, req *kmsg.CreateTopicsRequest) error {
	ctx, cancel := s.within(c, req.TimeoutMillis)
	defer cancel()
	times := make(map[string]int)
	for i := range req.Topics {
		times[req.Topics[i].Topic]++
	}
	rows := make([]kmsg.CreateTopicsResponseTopic, 0, len(times))
	for i := range req.Topics {
		asked := &req.Topics[i]
		switch n := times[asked.Topic]; {
		case n > 1:
			times[asked.Topic] = -1 // one row for all
			rows = append(rows, createTopicsError(asked.Topic, codeInvalidRequest, "the topic is named more than once in this request"))
		case n == 1:
			rows = append(rows, s.createTopic(ctx, c.version(), asked, req.ValidateOnly))
		}
	}
	return c.reply(s.createTopicsSize(rows), func() kmsg.Response {
		resp := kmsg.NewPtrCreateTopicsResponse()
		resp.Topics = rows
		return resp
	})
}

// createTopicsSize is at least what the response has on the wire.
func (s *Server) createTopicsSize(rows []kmsg.CreateTopicsResponseTopic) int {
	const response, topic, setting = 16, 48, 16 // more than the fixed parts of each
	size := response
	for i := range rows {
		size += topic + len(rows[i].Topic)
		if text := rows[i].ErrorMessage; text != nil {
			size += len(*text)
		}
		for _, config := range rows[i].Configs {
			size += setting + len(config.Name) + len(*config.Value)
		}
	}
	return size
}

func createTopicsError(name string, code code, text string) kmsg.CreateTopicsResponseTopic {
	row := kmsg.NewCreateTopicsResponseTopic()
	row.Topic, row.ErrorCode, row.ErrorMessage = name, int16(code), &text
	row.NumPartitions, row.ReplicationFactor = -1, -1
	return row
}

func (s *Server) createTopic(ctx context.Context, version int16, asked *kmsg.CreateTopicsRequestTopic, validateOnly bool) kmsg.CreateTopicsResponseTopic {
	wanted, code, err := s.checkPlacement(version, asked)
	if err != nil {
		return createTopicsError(asked.Topic, code, err.Error())
	}
	wanted.Name = asked.Topic
	for _, config := range asked.Configs {
		if config.Name == minInSyncConfig {
			wanted.MinInSync, err = checkMinInSync(config.Value)
		} else {
			err = s.topicConfigs.check(config.Name, config.Value)
		}
		if err != nil {
			return createTopicsError(asked.Topic, codeInvalidConfig, err.Error())
		}
	}
	topic, err := s.node.CreateTopic(ctx, wanted, validateOnly)
	if err != nil {
		return createTopicsError(asked.Topic, changeCode(err), err.Error())
	}
	row := kmsg.NewCreateTopicsResponseTopic()
	row.Topic, row.NumPartitions, row.ReplicationFactor = asked.Topic, int32(len(topic.Partitions)), wanted.Replication
	if len(topic.Partitions) > 0 {
		row.ReplicationFactor = int16(len(topic.Partitions[0].Replicas))
	}
	row.Configs = s.topicConfigRows
	if wanted.MinInSync > 0 {
		row.Configs = withMinInSync(row.Configs, wanted.MinInSync)
	}
	if !validateOnly {
		row.TopicID = topic.ID
	}
	return row
}

// checkPlacement returns how many partitions and replicas are wanted, or where. Defaults can be asked for from version 4 on
// (KIP-464). Whether there are such brokers, and so many, is the node's to say.
func (s *Server) checkPlacement(version int16, asked *kmsg.CreateTopicsRequestTopic) (NewTopic, code, error) {
	partitions, replication := asked.NumPartitions, asked.ReplicationFactor
	if len(asked.ReplicaAssignment) > 0 {
		if partitions != -1 || replication != -1 {
			return NewTopic{}, codeInvalidRequest, fmt.Errorf("with a replica assignment the number of partitions and the replication factor must be -1, %d and %d came", partitions, replication)
		}
		assignment, err := inOrder(asked.ReplicaAssignment)
		return NewTopic{Partitions: int32(len(assignment)), Replication: -1, Assignment: assignment}, codeInvalidReplicaAssignment, err
	}
	byDefault := version >= 4
	if replication < 1 && (replication != -1 || !byDefault) {
		return NewTopic{}, codeInvalidReplicationFactor, fmt.Errorf("replication factor is %d, 1 or more was expected", replication)
	}
	switch {
	case partitions == -1 && byDefault:
		partitions = s.config.NumPartitions
	case partitions < 1:
		return NewTopic{}, codeInvalidPartitions, fmt.Errorf("number of partitions is %d, 1 or more was expected", partitions)
	}
	return NewTopic{Partitions: partitions, Replication: replication}, codeNone, nil
}

// inOrder puts a replica assignment in the order of the partitions, from 0 to n-1, of which it must name each once.
func inOrder(rows []kmsg.CreateTopicsRequestTopicReplicaAssignment) ([][]int32, error) {
	assignment, seen := make([][]int32, len(rows)), make([]bool, len(rows))
	for _, a := range rows {
		if a.Partition < 0 || int(a.Partition) >= len(rows) || seen[a.Partition] {
			return nil, fmt.Errorf("replica assignment must name each partition from 0 to %d once, %d came", len(rows)-1, a.Partition)
		}
		assignment[a.Partition], seen[a.Partition] = a.Replicas, true
	}
	return assignment, nil
}
