package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/cli"
	"github.com/oncemq/oncemq/internal/rawkafka"
)

// said is what a command printed, and how it ended.
type said struct {
	out, wrong string
	code       int
}

func (got said) must(t *testing.T, what string, want said) {
	t.Helper()
	if got.out != want.out || got.code != want.code || !strings.Contains(got.wrong, want.wrong) || want.wrong == "" && got.wrong != "" {
		t.Errorf("%s: code %d, %q, printed %q;\nwant code %d, %q, printed %q", what, got.code, got.wrong, got.out, want.code, want.wrong, want.out)
	}
}

func endOf(out *bytes.Buffer, err error) said {
	s := said{out: out.String(), code: exitCode(failed(err))}
	if err != nil {
		s.wrong = err.Error()
	}
	return s
}

func TestTopicDelete(t *testing.T) {
	serving(t, filepath.Join(t.TempDir(), "data"), func(c *rawkafka.Client, addr string) {
		for _, name := range []string{"a", "b", "c", "d"} {
			if _, err := c.CreateTopic(name, 2); err != nil {
				t.Fatal(err)
			}
		}
		deleted := func(o cli.DeleteTopicsOptions) said {
			var out bytes.Buffer
			o.Brokers = []string{addr}
			return endOf(&out, cli.DeleteTopics(t.Context(), cli.Env{Out: &out, Err: &out}, o))
		}
		deleted(cli.DeleteTopicsOptions{Names: []string{"b", "a"}}).must(t, "two", said{out: "deleted topic b\ndeleted topic a\n"})
		deleted(cli.DeleteTopicsOptions{Names: []string{"a"}}).must(t, "once more", said{wrong: "topic a was not deleted: it does not exist", code: exitFailure})
		deleted(cli.DeleteTopicsOptions{Names: []string{"a"}, IfExists: true}).must(t, "if exists", said{out: "topic a does not exist\n"})
		deleted(cli.DeleteTopicsOptions{Names: []string{"a", "c"}}).must(t, "one of two",
			said{out: "deleted topic c\n", wrong: "topic a was not deleted: it does not exist", code: exitFailure})
		deleted(cli.DeleteTopicsOptions{Names: []string{"d", "c"}, JSON: true}).must(t, "as JSON",
			said{out: `[{"topic":"d","deleted":true},{"topic":"c","deleted":false,"error":"it does not exist"}]` + "\n", wrong: "topic c", code: exitFailure})
		if _, err := c.CreateTopic("a", 1); err != nil {
			t.Errorf("create again: %v", err)
		}
	})
}

func TestTopicCreate(t *testing.T) {
	serving(t, filepath.Join(t.TempDir(), "data"), func(c *rawkafka.Client, addr string) {
		created := func(o cli.CreateTopicOptions) said {
			var out bytes.Buffer
			o.Brokers = []string{addr}
			return endOf(&out, cli.CreateTopic(t.Context(), cli.Env{Out: &out, Err: &out}, o))
		}
		created(cli.CreateTopicOptions{Name: "a", Partitions: 2, Replication: 1}).must(t, "one replica", said{out: "created topic a with 2 partitions\n"})
		created(cli.CreateTopicOptions{Name: "b", Partitions: 1, Replication: cli.BrokerDefault, Configs: map[string]string{"retention.ms": "604800000"}}).
			must(t, "a setting", said{out: "created topic b with 1 partition\n"})
		created(cli.CreateTopicOptions{Name: "c", Partitions: 1, Replication: 3}).must(t, "too many replicas", said{wrong: "replication factor", code: exitFailure})
		created(cli.CreateTopicOptions{Name: "c", Partitions: 1, Replication: 1, Configs: map[string]string{"retention.ms": "1"}}).
			must(t, "a setting that there is not", said{wrong: "retention.ms", code: exitFailure})
		created(cli.CreateTopicOptions{Name: "c", Partitions: 1, Replication: 1, Configs: map[string]string{"min.insync.replicas": "0"}}).
			must(t, "a bad value", said{wrong: "min.insync.replicas", code: exitFailure})
	})
}

func TestTopicTrim(t *testing.T) {
	serving(t, filepath.Join(t.TempDir(), "data"), func(c *rawkafka.Client, addr string) {
		topic, err := c.CreateTopic("a", 3)
		if err != nil {
			t.Fatal(err)
		}
		for i := range batch.Sequence(5) {
			if a := store(t, c, topic, producerID, i, fmt.Sprint(i)); a.Code != 0 {
				t.Fatalf("error code %d", a.Code)
			}
		}
		trimmed := func(o cli.TrimTopicOptions) said {
			var out bytes.Buffer
			o.Brokers, o.Topic = []string{addr}, "a"
			return endOf(&out, cli.TrimTopic(t.Context(), cli.Env{Out: &out, Err: &out}, o))
		}
		trimmed(cli.TrimTopicOptions{Partition: cli.AnyPartition, Before: 2}).must(t, "one partition has records",
			said{out: "a/0 begins at offset 2\n", wrong: "a/1 was not trimmed: offset 2 lies beyond its end\na/2 was not trimmed", code: exitFailure})
		trimmed(cli.TrimTopicOptions{Before: 1}).must(t, "back", said{out: "a/0 begins at offset 2\n"})
		trimmed(cli.TrimTopicOptions{Partition: 3, Before: 0}).must(t, "no such partition", said{wrong: "topic a has no partition 3", code: exitFailure})
		trimmed(cli.TrimTopicOptions{Before: 6, JSON: true}).must(t, "beyond the end", said{
			out: `[{"topic":"a","partition":0,"begin_offset":null,"error":"offset 6 lies beyond its end"}]` + "\n", wrong: "beyond", code: exitFailure})
		trimmed(cli.TrimTopicOptions{Partition: cli.AnyPartition, Before: cli.TrimEnd, JSON: true}).must(t, "all", said{
			out: `[{"topic":"a","partition":0,"begin_offset":5},{"topic":"a","partition":1,"begin_offset":0},{"topic":"a","partition":2,"begin_offset":0}]` + "\n"})
		if begin, end, err := c.Offsets(topic, 0); err != nil || begin != 5 || end != 5 {
			t.Errorf("the partition has offsets %d to %d, %v", begin, end, err)
		}
		if a := store(t, c, topic, producerID, 4, "4"); a.Code != 0 || a.Base != 4 {
			t.Errorf("the retry of a deleted batch: code %d, offset %d", a.Code, a.Base)
		}
	})
}

// Mistakes in asking end with code 2, before anybody is asked for anything.
func TestTopicUsage(t *testing.T) {
	for _, args := range []string{
		"delete", "delete a a", "trim a", "trim", "trim a b --before 1", "trim a --before", "trim a --before x", "trim a --before -1", "trim a -p -1 --before 1",
		"delete a -b http://x", "create a --replication-factor 0", "create a --replication-factor -1", "create a --replication-factor 32768",
		"create a --config retention.ms", "create a --config a=1 --config a=2", "create a -p 0",
	} {
		cmd := topicCommand()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.ExecuteContext(t.Context()); exitCode(err) != exitUsage {
			t.Errorf("topic %s: %v", args, err)
		}
	}
	cmd := topicDeleteCommand()
	if err := topicNames(cmd, []string{"a", ""}); err == nil {
		t.Error("an empty name was taken")
	}
	if err := topicNames(cmd, []string{"b", "a"}); err != nil {
		t.Error(err)
	}
}
