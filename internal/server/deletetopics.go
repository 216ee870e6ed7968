package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/meta"
)

// deleteTopics answers DeleteTopics, version 0 to 6: each topic by itself, by name or, from version 6 on, by name or id
// (KIP-516). One that is reported as deleted takes and serves nothing any more.
func (s *Server) deleteTopics(c *call, req *kmsg.DeleteTopicsRequest) error {
	ctx, cancel := s.within(c, req.TimeoutMillis)
	defer cancel()
	deletions := s.findDeletions(ctx, c.version(), req)
	each(len(deletions), func(i int) { deletions[i].carryOut(ctx, s.node) })
	const response, row = 16, 32 // more than the fixed parts of each
	size := response
	for i := range deletions {
		size += row + len(deletions[i].nameOf()) + len(deletions[i].text)
	}
	return c.reply(size, func() kmsg.Response {
		resp := kmsg.NewPtrDeleteTopicsResponse()
		resp.Topics = make([]kmsg.DeleteTopicsResponseTopic, len(deletions))
		for i := range deletions {
			resp.Topics[i] = deletions[i].row()
		}
		return resp
	})
}

// deletion is a topic that a request names.
type deletion struct {
	name  *string // nil: named by id
	id    [16]byte
	topic *meta.Topic // nil: it does not exist, or is not named rightly
	code  code
	text  string
}

// findDeletions finds what a request names. What it names more than once is refused, in one row.
func (s *Server) findDeletions(ctx context.Context, version int16, req *kmsg.DeleteTopicsRequest) []deletion {
	asked := make([]deletion, 0, len(req.TopicNames)+len(req.Topics))
	if version < 6 {
		for i := range req.TopicNames {
			asked = append(asked, deletion{name: &req.TopicNames[i]})
		}
	}
	for _, topic := range req.Topics {
		asked = append(asked, deletion{name: topic.Topic, id: topic.TopicID})
	}
	find := s.finder(ctx)
	for i := range asked {
		asked[i].find(&find)
	}
	return once(asked)
}

func (d *deletion) refuse(code code, text string) {
	d.code, d.text = code, text
}

func (d *deletion) find(topics *finder) {
	switch byID := d.id != [16]byte{}; {
	case d.name == nil && !byID:
		d.refuse(codeInvalidRequest, "neither a name nor an id is given")
	case d.name != nil && byID:
		d.refuse(codeInvalidRequest, "both a name and an id are given")
	case byID:
		if d.topic = topics.byID(d.id); d.topic == nil {
			d.refuse(codeUnknownTopicID, "no topic has this id")
		}
	default:
		if d.topic = topics.byName(*d.name); d.topic == nil {
			d.refuse(codeUnknownTopicOrPartition, "no topic has this name")
		}
	}
	if unknown := d.code == codeUnknownTopicID || d.code == codeUnknownTopicOrPartition; unknown && topics.unsure {
		d.refuse(codeRequestTimedOut, unsureText)
	}
}

// once leaves one row of what is named more than once, and refuses it: a list that contradicts itself, or that was made
// by mistake, deletes nothing. A topic is named more than once by its name and its id as well.
func once(asked []deletion) []deletion {
	type key struct {
		name string
		id   [16]byte
	}
	rows := make(map[key]int, len(asked))
	kept := asked[:0]
	for _, d := range asked {
		k := key{d.nameOf(), d.id}
		if d.topic != nil {
			k = key{id: d.topic.ID}
		}
		if first, again := rows[k]; again {
			kept[first].refuse(codeInvalidRequest, "the topic is named more than once in this request")
			continue
		}
		rows[k] = len(kept)
		kept = append(kept, d)
	}
	return kept
}

// nameOf is the name of the topic, as far as it is known.
func (d *deletion) nameOf() string {
	switch {
	case d.name != nil:
		return *d.name
	case d.topic != nil:
		return d.topic.Name
	default:
		return ""
	}
}

// carryOut deletes the topic, unless it is refused already.
func (d *deletion) carryOut(ctx context.Context, node Node) {
	if d.code != codeNone {
		return
	}
	err := node.DeleteTopic(ctx, d.topic)
	switch {
	case err == nil:
	case errors.Is(err, meta.ErrUnknownTopic) && d.name == nil:
		d.topic = nil
		d.refuse(codeUnknownTopicID, "no topic has this id any more")
	default:
		text := err.Error()
		if changeCode(err) == codeRequestTimedOut {
			text = fmt.Sprintf("not deleted in time: it may be yet, and asking again finds out: %v", err)
		}
		d.refuse(changeCode(err), text)
	}
}

func (d *deletion) row() kmsg.DeleteTopicsResponseTopic {
	row := kmsg.NewDeleteTopicsResponseTopic()
	row.Topic, row.TopicID, row.ErrorCode = d.name, d.id, int16(d.code)
	if d.topic != nil {
		row.Topic, row.TopicID = &d.topic.Name, d.topic.ID
	}
	if d.text != "" {
		row.ErrorMessage = &d.text
	}
	return row
}
