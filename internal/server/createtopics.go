package server

import (
	"context"
	"fmt"
	"slices"

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
	partitions, code, err := s.checkPlacement(version, asked)
	if err != nil {
		return createTopicsError(asked.Topic, code, err.Error())
	}
	for _, config := range asked.Configs {
		if err := s.topicConfigs.check(config.Name, config.Value); err != nil {
			return createTopicsError(asked.Topic, codeInvalidConfig, err.Error())
		}
	}
	topic, err := s.node.CreateTopic(ctx, asked.Topic, partitions, -1, validateOnly)
	if err != nil {
		return createTopicsError(asked.Topic, changeCode(err), err.Error())
	}
	row := kmsg.NewCreateTopicsResponseTopic()
	row.Topic, row.NumPartitions, row.ReplicationFactor = asked.Topic, partitions, 1
	row.Configs = s.topicConfigRows
	if !validateOnly {
		row.TopicID = topic.ID
	}
	return row
}

// checkPlacement returns how many partitions are wanted, on this one node. Defaults can be asked for from version 4 on
// (KIP-464).
func (s *Server) checkPlacement(version int16, asked *kmsg.CreateTopicsRequestTopic) (int32, code, error) {
	partitions, replication := asked.NumPartitions, asked.ReplicationFactor
	if len(asked.ReplicaAssignment) > 0 {
		if partitions != -1 || replication != -1 {
			return 0, codeInvalidRequest, fmt.Errorf("with a replica assignment the number of partitions and the replication factor must be -1, %d and %d came", partitions, replication)
		}
		return s.checkAssignment(asked.ReplicaAssignment)
	}
	byDefault := version >= 4
	if replication != 1 && (replication != -1 || !byDefault) {
		return 0, codeInvalidReplicationFactor, fmt.Errorf("replication factor %d is not possible: there is 1 broker", replication)
	}
	switch {
	case partitions == -1 && byDefault:
		return s.config.NumPartitions, codeNone, nil
	case partitions < 1:
		return 0, codeInvalidPartitions, fmt.Errorf("number of partitions is %d, 1 or more was expected", partitions)
	default:
		return partitions, codeNone, nil
	}
}

// checkAssignment accepts partitions 0 to n-1, in any order, each on this node alone.
func (s *Server) checkAssignment(assignment []kmsg.CreateTopicsRequestTopicReplicaAssignment) (int32, code, error) {
	here := []int32{s.node.NodeID()}
	seen := make([]bool, len(assignment))
	for _, a := range assignment {
		switch {
		case a.Partition < 0 || int(a.Partition) >= len(seen) || seen[a.Partition]:
			return 0, codeInvalidReplicaAssignment, fmt.Errorf("replica assignment must name each partition from 0 to %d once, %d came", len(seen)-1, a.Partition)
		case !slices.Equal(a.Replicas, here):
			return 0, codeInvalidReplicaAssignment, fmt.Errorf("replica assignment of partition %d must be [%d], the only broker, %v came", a.Partition, here[0], a.Replicas[:min(len(a.Replicas), 10)])
		}
		seen[a.Partition] = true
	}
	return int32(len(assignment)), codeNone, nil
}
