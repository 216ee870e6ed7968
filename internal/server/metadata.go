package server

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/meta"
)

// metadata answers Metadata, version 0 to 13: the brokers, and topics by name or by id, or all. A topic that does not
// exist is created when both the client and the settings allow it, and then described as it is: every partition of it
// has a ready leader. Each topic is described once, however often it is asked for, so that the size of the response
// follows from the topics and not from the request.
func (s *Server) metadata(c *call, req *kmsg.MetadataRequest) error {
	rows := s.metadataRows(c, req)
	brokers := s.node.Brokers()
	return c.reply(metadataSize(brokers, rows), func() kmsg.Response {
		resp := kmsg.NewPtrMetadataResponse()
		for _, b := range brokers {
			broker := kmsg.NewMetadataResponseBroker()
			broker.NodeID, broker.Host, broker.Port = b.ID, b.Host, b.Port
			if b.Rack != "" {
				broker.Rack = &b.Rack
			}
			resp.Brokers = append(resp.Brokers, broker)
		}
		clusterID := s.node.ClusterID()
		resp.ClusterID, resp.ControllerID = &clusterID, s.node.NodeID() // any node takes what a controller does
		resp.Topics = make([]kmsg.MetadataResponseTopic, len(rows))
		for i := range rows {
			resp.Topics[i] = s.describe(rows[i])
		}
		return resp
	})
}

// metadataRow is a topic to be described, or why that is not possible.
type metadataRow struct {
	topic *meta.Topic
	// Without a topic: as it was asked for.
	name *string
	id   [16]byte
	code code
}

// metadataSize is at least what the response has on the wire.
func metadataSize(brokers []meta.Broker, rows []metadataRow) int {
	const response, broker, topic, partition, replica = 64, 32, 40, 40, 4 // more than the fixed parts of each
	size := response
	for i := range brokers {
		size += broker + len(brokers[i].Host) + len(brokers[i].Rack)
	}
	for i := range rows {
		size += topic
		switch row := &rows[i]; {
		case row.topic != nil:
			size += len(row.topic.Name)
			for j := range row.topic.Partitions {
				size += partition + 3*replica*len(row.topic.Partitions[j].Replicas)
			}
		case row.name != nil:
			size += len(*row.name)
		}
	}
	return size
}

// metadataRows finds what a request asks for, and creates what may be created.
func (s *Server) metadataRows(c *call, req *kmsg.MetadataRequest) (rows []metadataRow) {
	if all := req.Topics == nil || c.version() == 0 && len(req.Topics) == 0; all {
		for _, topic := range s.node.Topics().All() {
			rows = append(rows, metadataRow{topic: topic})
		}
		return rows
	}
	// Before version 4 a client could not say that it does not want topics created.
	create := !s.config.NoAutoCreateTopics && (req.AllowAutoTopicCreation || c.version() < 4)
	ctx, cancel := context.WithTimeout(c.ctx, s.config.AutoCreateTimeout)
	defer cancel()
	find := s.finder(ctx)
	names, ids := make(map[string]struct{}), make(map[[16]byte]struct{})
	for i := range req.Topics {
		asked := &req.Topics[i]
		if asked.Topic == nil || asked.TopicID != [16]byte{} {
			if _, again := ids[asked.TopicID]; !again {
				ids[asked.TopicID] = struct{}{}
				rows = append(rows, metadataByID(&find, c.version(), asked))
			}
		} else if _, again := names[*asked.Topic]; !again {
			names[*asked.Topic] = struct{}{}
			rows = append(rows, s.metadataByName(&find, asked.Topic, create))
		}
	}
	return rows
}

// metadataByID finds a topic that is asked for by its id, which is possible from version 12 on (KIP-516).
func metadataByID(find *finder, version int16, asked *kmsg.MetadataRequestTopic) metadataRow {
	if version < 12 {
		row := metadataRow{id: asked.TopicID, name: asked.Topic, code: codeInvalidRequest}
		if row.name == nil {
			row.name = new(string) // not nullable before version 12
		}
		return row
	}
	topic := find.byID(asked.TopicID)
	return metadataRow{topic: topic, id: asked.TopicID, code: find.absent(codeUnknownTopicID, codeLeaderNotAvailable)}
}

func (s *Server) metadataByName(find *finder, name *string, create bool) metadataRow {
	if meta.CheckTopicName(*name) != nil {
		return metadataRow{name: name, code: codeInvalidTopic}
	}
	row := metadataRow{topic: find.byName(*name), name: name}
	row.code = find.absent(codeUnknownTopicOrPartition, codeLeaderNotAvailable)
	if row.topic == nil && create && !find.unsure {
		_, err := s.node.CreateTopic(find.ctx, NewTopic{Name: *name, Partitions: s.config.NumPartitions, Replication: -1}, false)
		row.topic, _ = s.node.Topics().ByName(*name) // created here, or by another client meanwhile
		row.code = autoCreateCode(err)
	}
	return row
}

// autoCreateCode is the code of a topic that could not be created.
func autoCreateCode(err error) code {
	switch code, _ := codeOf(err); code {
	case codeInvalidTopic, codeInvalidPartitions, codeInvalidReplicationFactor:
		return code
	default:
		return codeLeaderNotAvailable // it may come yet: the client asks again
	}
}

// epochAtBirth is the term with which every partition's log begins, and so the least leader epoch that is told. It is
// never -1: a client would take that for an epoch that goes backwards, and stop noticing truncations.
const epochAtBirth = 1

// describe says what there is of a topic: who leads, by what this node knows, and which replicas are in sync. A partition
// without a leader tells so by an error, so that clients that may choose a partition choose another one, and the rest wait.
func (s *Server) describe(r metadataRow) kmsg.MetadataResponseTopic {
	row := kmsg.NewMetadataResponseTopic()
	topic := r.topic
	if topic == nil {
		row.Topic, row.TopicID, row.ErrorCode = r.name, r.id, int16(r.code)
		return row
	}
	row.Topic, row.TopicID = &topic.Name, topic.ID
	row.Partitions = make([]kmsg.MetadataResponseTopicPartition, len(topic.Partitions))
	for i := range topic.Partitions {
		known := s.node.Leadership(topic, int32(i))
		p := kmsg.NewMetadataResponseTopicPartition()
		p.Partition, p.Replicas, p.ISR = int32(i), topic.Partitions[i].Replicas, known.InSync
		p.Leader, p.LeaderEpoch = known.Leader, max(known.Epoch, epochAtBirth)
		if !known.Ready {
			p.ErrorCode, p.Leader = int16(codeLeaderNotAvailable), -1
		}
		if here, ok := s.node.Partition(topic.ID, int32(i)); ok && here.Status().Offline != nil {
			p.OfflineReplicas = s.self
		}
		row.Partitions[i] = p
	}
	return row
}
