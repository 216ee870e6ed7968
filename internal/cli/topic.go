package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// BrokerDefault leaves the number of partitions, or of replicas, to the broker.
const BrokerDefault = -1

// CreateTopicOptions says which topic to make.
type CreateTopicOptions struct {
	Brokers     []string
	Name        string
	Partitions  int32             // or BrokerDefault
	Replication int16             // replicas of each partition, or BrokerDefault
	Configs     map[string]string // topic settings
	IfNotExists bool              // a topic that is there already is no error
	DryRun      bool              // let the broker check, and change nothing
	JSON        bool
}

// createdTopic is the answer as JSON.
type createdTopic struct {
	Topic      string `json:"topic"`
	Partitions int    `json:"partition_count"`
	Created    bool   `json:"created"`
	DryRun     bool   `json:"dry_run"`
}

// CreateTopic makes a topic and prints what became of it.
func CreateTopic(ctx context.Context, env Env, o CreateTopicOptions) error {
	n := &notices{w: env.Err}
	c, err := connect(ctx, o.Brokers, n, kgo.ClientID("oncemq"))
	if err != nil {
		return err
	}
	defer c.close()
	ctx, cancel := context.WithTimeout(ctx, 3*patience) // a broker may take its time for many partitions
	defer cancel()
	ask := c.admin.CreateTopics
	if o.DryRun {
		ask = c.admin.ValidateCreateTopics
	}
	configs := make(map[string]*string, len(o.Configs))
	for name, value := range o.Configs {
		configs[name] = &value
	}
	answers, err := ask(ctx, o.Partitions, o.Replication, configs, o.Name)
	if errors.Is(err, context.Canceled) {
		err = ErrInterrupted
	}
	if err != nil {
		return fmt.Errorf("create topic %s: %w", o.Name, err)
	}
	answer := answers[o.Name]
	made := createdTopic{Topic: o.Name, Partitions: int(answer.NumPartitions), Created: !o.DryRun, DryRun: o.DryRun}
	switch {
	case errors.Is(answer.Err, kerr.TopicAlreadyExists) && o.IfNotExists:
		detail, err := c.lookUp(ctx, o.Name)
		if err != nil {
			return err
		}
		made.Partitions, made.Created = len(detail.Partitions), false
		if o.Partitions != BrokerDefault && int(o.Partitions) != made.Partitions {
			n.say("topic %s exists with %s, not the %d asked for", o.Name, partitions(made.Partitions), o.Partitions)
		}
	case errors.Is(answer.Err, kerr.TopicAlreadyExists):
		return fmt.Errorf("topic %s exists already; with --if-not-exists that is no error", o.Name)
	case answer.Err != nil:
		return fmt.Errorf("create topic %s: %s", o.Name, cmp.Or(answer.ErrMessage, answer.Err.Error()))
	}
	return made.print(env.Out, o.JSON, answer.Err != nil)
}

func (t createdTopic) print(w io.Writer, asJSON, existed bool) error {
	if asJSON {
		return printJSON(w, t)
	}
	text := "created topic %s with %s\n"
	switch {
	case existed:
		text = "topic %s exists already, with %s\n"
	case t.DryRun:
		text = "topic %s can be created, with %s\n"
	}
	_, err := fmt.Fprintf(w, text, t.Topic, partitions(t.Partitions))
	return err
}

func partitions(n int) string {
	if n == 1 {
		return "1 partition"
	}
	return fmt.Sprintf("%d partitions", n)
}

func printJSON(w io.Writer, v any) error {
	text, err := jsonText(v)
	if err == nil {
		_, err = w.Write(text)
	}
	return err
}

// ListTopicsOptions says how to list.
type ListTopicsOptions struct {
	Brokers []string
	Verbose bool // each partition with its leader and offsets
	JSON    bool
}

// listedTopic is a topic as JSON.
type listedTopic struct {
	Topic          string            `json:"topic"`
	PartitionCount int               `json:"partition_count"`
	Partitions     []listedPartition `json:"partitions,omitempty"` // Verbose
}

type listedPartition struct {
	Partition int32  `json:"partition"`
	Leader    *int32 `json:"leader"` // null: none
	Begin     int64  `json:"begin_offset"`
	End       int64  `json:"end_offset"`
}

// ListTopics prints the topics in order of their names.
func ListTopics(ctx context.Context, env Env, o ListTopicsOptions) error {
	c, err := connect(ctx, o.Brokers, &notices{w: env.Err}, kgo.ClientID("oncemq"))
	if err != nil {
		return err
	}
	defer c.close()
	list, err := c.list(ctx, o.Verbose)
	switch {
	case errors.Is(err, context.Canceled):
		return ErrInterrupted
	case err != nil:
		return err
	case o.JSON:
		return printJSON(env.Out, list)
	}
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	if o.Verbose && len(list) > 0 {
		_, _ = fmt.Fprintln(table, "TOPIC\tPARTITION\tLEADER\tBEGIN\tEND")
	}
	for _, t := range list {
		if !o.Verbose {
			_, _ = fmt.Fprintln(table, t.Topic)
		}
		for _, p := range t.Partitions {
			leader := "none"
			if p.Leader != nil {
				leader = fmt.Sprint(*p.Leader)
			}
			_, _ = fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%d\n", t.Topic, p.Partition, leader, p.Begin, p.End)
		}
	}
	_ = table.Flush()
	_, err = env.Out.Write(text.Bytes())
	return err
}

func (c *connection) list(ctx context.Context, verbose bool) ([]listedTopic, error) {
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	details, err := c.admin.ListTopics(asking)
	if err == nil {
		err = details.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the topics: %w", err)
	}
	var spans map[string]map[int32]span
	if names := details.Names(); verbose && len(names) > 0 {
		if spans, err = c.spans(ctx, names...); err != nil {
			return nil, err
		}
	}
	list := make([]listedTopic, 0, len(details))
	for _, detail := range details.Sorted() {
		t := listedTopic{Topic: detail.Topic, PartitionCount: len(detail.Partitions)}
		if verbose {
			t.Partitions = listPartitions(detail, spans[detail.Topic])
		}
		list = append(list, t)
	}
	return list, nil
}

func listPartitions(detail kadm.TopicDetail, spans map[int32]span) []listedPartition {
	var list []listedPartition
	for _, number := range slices.Sorted(maps.Keys(spans)) {
		p := listedPartition{Partition: number, Begin: spans[number].begin, End: spans[number].end}
		if leader := detail.Partitions[number].Leader; leader >= 0 {
			p.Leader = &leader
		}
		list = append(list, p)
	}
	return list
}
