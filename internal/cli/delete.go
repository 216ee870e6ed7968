package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// DeleteTopicsOptions says which topics to delete.
type DeleteTopicsOptions struct {
	Brokers  []string
	Names    []string // each once
	IfExists bool     // a topic that is not there is no error
	JSON     bool
}

// deletedTopic is what became of a topic, as JSON.
type deletedTopic struct {
	Topic   string `json:"topic"`
	Deleted bool   `json:"deleted"`
	Error   string `json:"error,omitempty"`
}

// errNoAnswer stands in for the answer that is missing in a response.
var errNoAnswer = errors.New("the broker did not say what became of it")

// DeleteTopics deletes topics with all their records, and prints what became of each. One that cannot be deleted hinders
// no other, and is an error at the end.
func DeleteTopics(ctx context.Context, env Env, o DeleteTopicsOptions) error {
	c, err := connect(ctx, o.Brokers, &notices{w: env.Err}, kgo.ClientID("oncemq"))
	if err != nil {
		return err
	}
	defer c.close()
	ctx, cancel := context.WithTimeout(ctx, 3*patience) // a broker may take its time for many partitions
	defer cancel()
	answers, err := c.admin.DeleteTopics(ctx, o.Names...)
	if errors.Is(err, context.Canceled) {
		return ErrInterrupted
	}
	if err != nil {
		return fmt.Errorf("delete topics: %w", err)
	}
	list := make([]deletedTopic, 0, len(o.Names))
	var failures []error
	for _, name := range o.Names {
		answer, ok := answers[name]
		if !ok {
			answer.Err = errNoAnswer
		}
		t := deletedTopic{Topic: name, Deleted: answer.Err == nil}
		if !t.Deleted && !(o.IfExists && errors.Is(answer.Err, kerr.UnknownTopicOrPartition)) {
			t.Error = deletionFault(answer)
			failures = append(failures, fmt.Errorf("topic %s was not deleted: %s", name, t.Error))
		}
		list = append(list, t)
	}
	return errors.Join(printDeleted(env, list, o.JSON), errors.Join(failures...))
}

// deletionFault says for a person why a topic was not deleted.
func deletionFault(answer kadm.DeleteTopicResponse) string {
	if errors.Is(answer.Err, kerr.UnknownTopicOrPartition) {
		return "it does not exist"
	}
	return cmp.Or(answer.ErrMessage, answer.Err.Error())
}

func printDeleted(env Env, list []deletedTopic, asJSON bool) error {
	if asJSON {
		return printJSON(env.Out, list)
	}
	for _, t := range list {
		text := "deleted topic %s\n"
		switch {
		case t.Error != "":
			continue
		case !t.Deleted:
			text = "topic %s does not exist\n"
		}
		if _, err := fmt.Fprintf(env.Out, text, t.Topic); err != nil {
			return err
		}
	}
	return nil
}
