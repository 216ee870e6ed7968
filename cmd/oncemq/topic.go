package main

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/spf13/cobra"

	"github.com/oncemq/oncemq/internal/cli"
	"github.com/oncemq/oncemq/internal/setting"
)

func topicCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topic",
		Short: "Create, list, trim and delete topics",
		Long: `A topic is a named log in one or more partitions. Each partition is a log of its own, with
offsets from 0 on: what must stay in order goes into one partition, which records with the
same key do. Choose the number of partitions for the consumers that shall share the work.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(topicCreateCommand(), topicListCommand(), topicTrimCommand(), topicDeleteCommand())
	return cmd
}

func topicCreateCommand() *cobra.Command {
	var o cli.CreateTopicOptions
	var partitions, replication int32
	var configs []string
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a topic",
		Long: `Create a topic. When the command ends with 0, every partition has a leader and can be used.

A name has 1 to 249 letters, digits, dots, underscores and hyphens. The number of partitions
cannot be changed later. Each partition has as many replicas as --replication-factor says, on
different brokers: with three, one broker may be away and nothing is lost or stops.

--config min.insync.replicas=N has a producer with acks=all answered when its records are on N
disks, and on those of a majority in any case.

` + clientHelp,
		Example: `  oncemq topic create payments
  oncemq topic create payments -p 6 --replication-factor 3 --config min.insync.replicas=2
  oncemq topic create payments -p 6 --if-not-exists     in a script that may run again
  oncemq topic create payments -p 6 --dry-run           would it work?
  oncemq topic create payments --json | jq .partition_count`,
		Args: one("topic"),
	}
	flags := cmd.Flags()
	brokers := brokersFlag(cmd)
	flags.Int32VarP(&partitions, "partitions", "p", 0, "make `N` partitions (default: num.partitions of the broker, 1)")
	flags.Int32Var(&replication, "replication-factor", 0, "keep `N` replicas of each partition (default: default.replication.factor of the broker, 3 or one on each)")
	flags.StringArrayVar(&configs, "config", nil, "a topic setting, `NAME=VALUE`; may be repeated")
	flags.BoolVar(&o.IfNotExists, "if-not-exists", false, "a topic of that name that exists already is no error")
	flags.BoolVar(&o.DryRun, "dry-run", false, "let the broker check, and change nothing")
	flags.BoolVar(&o.JSON, "json", false, "print the result as JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		o.Name = args[0]
		if o.Partitions, err = partitionFlag(cmd, "partitions", partitions, 1, cli.BrokerDefault); err != nil {
			return err
		}
		if o.Replication, err = replicationFlag(cmd, replication); err != nil {
			return err
		}
		if o.Configs, err = parsed("--config", configs, topicConfigs); err != nil {
			return err
		}
		if o.Brokers, err = parsed("--bootstrap", *brokers, cli.ParseBrokers); err != nil {
			return err
		}
		return failed(cli.CreateTopic(cmd.Context(), environment(), o))
	}
	return cmd
}

// replicationFlag is --replication-factor when it was given, else the broker's default.
func replicationFlag(cmd *cobra.Command, value int32) (int16, error) {
	n, err := partitionFlag(cmd, "replication-factor", value, 1, cli.BrokerDefault)
	if n > math.MaxInt16 {
		return 0, fmt.Errorf("--replication-factor: %d is above %d", n, math.MaxInt16)
	}
	return int16(n), err
}

// topicConfigs reads topic settings, each given once. Which there are the broker says.
func topicConfigs(assignments []string) (map[string]string, error) {
	configs := make(map[string]string, len(assignments))
	for _, a := range assignments {
		name, value, err := setting.Cut(a)
		if err != nil {
			return nil, err
		}
		if _, twice := configs[name]; twice {
			return nil, fmt.Errorf("%s is set twice", name)
		}
		configs[name] = value
	}
	return configs, nil
}

func topicListCommand() *cobra.Command {
	var o cli.ListTopicsOptions
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the topics",
		Long: `List the topics, one name a line in alphabetical order.

With -v each partition: the broker that leads it, the offset of the first record that is
still there (BEGIN), and the one that the next record will get (END). END minus BEGIN is
the number of records, since OnceMQ leaves no holes between offsets.

` + clientHelp,
		Example: `  oncemq topic list
  oncemq topic list -v
  oncemq topic list -v --json | jq '[.[].partitions[] | .end_offset - .begin_offset] | add'`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	brokers := brokersFlag(cmd)
	flags.BoolVarP(&o.Verbose, "verbose", "v", false, "print each partition with its leader and offsets")
	flags.BoolVar(&o.JSON, "json", false, "print the topics as a JSON array")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Brokers, err = parsed("--bootstrap", *brokers, cli.ParseBrokers); err != nil {
			return err
		}
		return failed(cli.ListTopics(cmd.Context(), environment(), o))
	}
	return cmd
}

func topicTrimCommand() *cobra.Command {
	var o cli.TrimTopicOptions
	var before string
	cmd := &cobra.Command{
		Use:   "trim NAME --before OFFSET",
		Short: "Delete the oldest records of a topic",
		Long: `Delete the records of a topic, or of one of its partitions, before an offset. The command asks
for nothing, and what it deletes is gone.

The record at OFFSET is the first that stays; "end" lets none stay. Offsets do not change, and
what the broker remembers of producers does not either: a batch that was deleted and is sent
again is still answered as before, and not stored again. The space is given back by whole log
files, once all of a file is deleted and the next one is begun.

` + clientHelp,
		Example: `  oncemq topic trim payments -p 0 --before 1000     payments/0 begins at offset 1000
  oncemq topic trim payments --before end           the topic is empty`,
		Args: one("topic"),
	}
	flags := cmd.Flags()
	topicOf := topicFlags(cmd, "trim partition `N` (default: all)")
	flags.StringVar(&before, "before", "", "`OFFSET` of the first record that stays: N or end")
	flags.BoolVar(&o.JSON, "json", false, "print the result as JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if o.Brokers, o.Topic, o.Partition, err = topicOf(args); err != nil {
			return err
		}
		if !cmd.Flags().Changed("before") {
			return errors.New("say with --before OFFSET which record is the first to stay")
		}
		if o.Before, err = parsed("--before", before, cli.ParseTrimOffset); err != nil {
			return err
		}
		return failed(cli.TrimTopic(cmd.Context(), environment(), o))
	}
	return cmd
}

func topicDeleteCommand() *cobra.Command {
	var o cli.DeleteTopicsOptions
	cmd := &cobra.Command{
		Use:   "delete NAME...",
		Short: "Delete topics",
		Long: `Delete topics with all their records. The command asks for nothing, and there is no way back.

When it ends with 0, no broker takes or serves anything of them any more; their files are
removed soon after. A topic that is created again under the same name is a new one: it begins
at offset 0. A topic that cannot be deleted does not hinder the others.

` + clientHelp,
		Example: `  oncemq topic delete payments
  oncemq topic delete test-1 test-2 --if-exists`,
		Args: topicNames,
	}
	flags := cmd.Flags()
	brokers := brokersFlag(cmd)
	flags.BoolVar(&o.IfExists, "if-exists", false, "a topic that does not exist is no error")
	flags.BoolVar(&o.JSON, "json", false, "print the result as a JSON array")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		o.Names = args
		if o.Brokers, err = parsed("--bootstrap", *brokers, cli.ParseBrokers); err != nil {
			return err
		}
		return failed(cli.DeleteTopics(cmd.Context(), environment(), o))
	}
	return cmd
}

// topicNames accepts one or more names, each once.
func topicNames(cmd *cobra.Command, args []string) error {
	if len(args) == 0 || slices.Contains(args, "") {
		return fmt.Errorf("name the topics: %s (--help tells more)", cmd.UseLine())
	}
	for i, name := range args {
		if slices.Contains(args[:i], name) {
			return fmt.Errorf("topic %s is named twice", name)
		}
	}
	return nil
}
