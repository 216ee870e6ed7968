package server

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/meta"
)

// electPreferred is the type of an election in which the preferred leader takes over (KIP-460). The other one makes a
// leader of a replica that may lack what was acknowledged, and there is no such thing here.
const electPreferred = 0

// electLeaders answers ElectLeaders (KIP-183), version 0 to 2: each partition by itself, when its preferred leader leads.
// For all partitions, as in Kafka, those have no row that it leads already.
func (s *Server) electLeaders(c *call, req *kmsg.ElectLeadersRequest) error {
	ctx, cancel := s.within(c, req.TimeoutMillis)
	defer cancel()
	elections, names := s.elections(ctx, req)
	whole := codeNone
	if req.ElectionType != electPreferred {
		whole = codeInvalidRequest
		for i := range elections {
			elections[i].code, elections[i].text = whole, "only the preferred leader can be elected: no other election is sure to lose nothing"
		}
	} else {
		each(len(elections), func(i int) { elections[i].carryOut(ctx, s) })
	}
	const response, topic, partition = 32, 16, 16 // more than the fixed parts of each
	size := response
	for _, name := range names {
		size += topic + len(name)
	}
	for i := range elections {
		size += partition + len(elections[i].text)
	}
	return c.reply(size, func() kmsg.Response {
		resp := kmsg.NewPtrElectLeadersResponse()
		resp.ErrorCode = int16(whole)
		resp.Topics = make([]kmsg.ElectLeadersResponseTopic, len(names))
		for i, name := range names {
			resp.Topics[i].Topic = name
		}
		for i := range elections {
			if req.Topics == nil && elections[i].code == codeElectionNotNeeded {
				continue
			}
			topic := &resp.Topics[elections[i].place]
			topic.Partitions = append(topic.Partitions, elections[i].row())
		}
		return resp
	})
}

// election is a partition whose preferred leader is to lead.
type election struct {
	place int         // of the topic in the answer
	topic *meta.Topic // nil: it does not exist
	index int32
	// unsure: the topic may exist.
	unsure bool
	code   code
	text   string
}

// elections finds what a request asks for, and the names of the topics in the answer.
func (s *Server) elections(ctx context.Context, req *kmsg.ElectLeadersRequest) (elections []election, names []string) {
	if req.Topics == nil && req.ElectionType == electPreferred {
		return s.allElections(s.node.Topics())
	}
	find := s.finder(ctx)
	for i := range req.Topics {
		asked := &req.Topics[i]
		topic := find.byName(asked.Topic)
		for _, index := range asked.Partitions {
			elections = append(elections, election{place: i, topic: topic, index: index, unsure: topic == nil && find.unsure})
		}
		names = append(names, asked.Topic)
	}
	return elections, names
}

// allElections finds every partition that another one than its preferred leader leads.
func (s *Server) allElections(view *meta.View) (elections []election, names []string) {
	for _, topic := range view.All() {
		before := len(elections)
		for i := range topic.Partitions {
			if known := s.node.Leadership(topic, int32(i)); !known.Ready || known.Leader != topic.Partitions[i].Replicas[0] {
				elections = append(elections, election{place: len(names), topic: topic, index: int32(i)})
			}
		}
		if len(elections) > before {
			names = append(names, topic.Name)
		}
	}
	return elections, names
}

func (e *election) carryOut(ctx context.Context, s *Server) {
	if e.unsure {
		e.code, e.text = codeRequestTimedOut, unsureText
		return
	}
	if e.topic == nil || e.index < 0 || int(e.index) >= len(e.topic.Partitions) {
		e.code, e.text = codeUnknownTopicOrPartition, "no such partition"
		return
	}
	err := s.node.ElectLeader(ctx, e.topic, e.index)
	if err == nil {
		return
	}
	if e.code, e.text = changeCode(err), err.Error(); e.code == codeNotController {
		e.code = codeLeaderNotAvailable // the leader that is missing is the partition's
	}
}

func (e *election) row() kmsg.ElectLeadersResponseTopicPartition {
	row := kmsg.NewElectLeadersResponseTopicPartition()
	row.Partition, row.ErrorCode = e.index, int16(e.code)
	if e.text != "" {
		row.ErrorMessage = &e.text
	}
	return row
}
