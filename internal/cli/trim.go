package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TrimEnd is the offset that stands for the end of each partition: no record stays. It is the protocol's.
const TrimEnd = -1

// TrimTopicOptions says which records of a topic to delete.
type TrimTopicOptions struct {
	Brokers   []string
	Topic     string
	Partition int32 // or AnyPartition: every one
	Before    int64 // the first offset that stays, or TrimEnd
	JSON      bool
}

// ParseTrimOffset reads an offset or end. An error is a mistake in asking.
func ParseTrimOffset(text string) (int64, error) {
	if text == "end" {
		return TrimEnd, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not an offset: N, so that the record at N is the first to stay, or end", text)
	}
	return n, nil
}

// trimmedPartition is what became of a partition, as JSON.
type trimmedPartition struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Begin     *int64 `json:"begin_offset"` // null: see Error
	Error     string `json:"error,omitempty"`
}

// TrimTopic deletes the records of partitions before an offset, and prints where each begins now. A partition that begins
// at a later offset already stays as it is. One that cannot be trimmed hinders no other, and is an error at the end.
func TrimTopic(ctx context.Context, env Env, o TrimTopicOptions) error {
	c, err := connect(ctx, o.Brokers, &notices{w: env.Err}, kgo.ClientID("oncemq"))
	if err != nil {
		return err
	}
	defer c.close()
	detail, err := c.lookUp(ctx, o.Topic)
	if err != nil {
		return err
	}
	chosen, err := choose(detail, o.Partition)
	if err != nil {
		return err
	}
	var wanted kadm.Offsets
	for _, partition := range chosen {
		wanted.Add(kadm.Offset{Topic: o.Topic, Partition: partition, At: o.Before})
	}
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	answers, err := c.admin.DeleteRecords(ctx, wanted)
	if errors.Is(err, context.Canceled) {
		return ErrInterrupted
	}
	if err != nil {
		return fmt.Errorf("delete records of topic %s: %w", o.Topic, err)
	}
	list := make([]trimmedPartition, 0, len(chosen))
	var failures []error
	for _, partition := range chosen {
		p := trimmedPartition{Topic: o.Topic, Partition: partition}
		switch answer, ok := answers.Lookup(o.Topic, partition); {
		case !ok:
			p.Error = errNoAnswer.Error()
		case errors.Is(answer.Err, kerr.OffsetOutOfRange):
			p.Error = fmt.Sprintf("offset %d lies beyond its end", o.Before)
		case answer.Err != nil:
			p.Error = answer.Err.Error()
		default:
			p.Begin = &answer.LowWatermark
		}
		if p.Error != "" {
			failures = append(failures, fmt.Errorf("%s/%d was not trimmed: %s", o.Topic, partition, p.Error))
		}
		list = append(list, p)
	}
	return errors.Join(printTrimmed(env, list, o.JSON), errors.Join(failures...))
}

func printTrimmed(env Env, list []trimmedPartition, asJSON bool) error {
	if asJSON {
		return printJSON(env.Out, list)
	}
	for _, p := range list {
		if p.Begin == nil {
			continue
		}
		if _, err := fmt.Fprintf(env.Out, "%s/%d begins at offset %d\n", p.Topic, p.Partition, *p.Begin); err != nil {
			return err
		}
	}
	return nil
}
