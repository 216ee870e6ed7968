package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/oncemq/oncemq/internal/cli"
)

const produceHelp = `Send lines as records to a topic: each line of stdin, or of a file, is the value of a record.
A line ends at a line feed; all other bytes are sent as they are, and an empty line is a
record with an empty value. The topic must exist.

The command ends with 0 when every record is acknowledged: stored, and flushed to disk. A
line that cannot be sent ends the reading; what came before it is still delivered. Ctrl-C
ends the reading as well, waits for the answers that are out, and says what was not
delivered; a second Ctrl-C does not wait.

What idempotence gives here, and what not
  This command is an idempotent producer unless it is told otherwise. When an answer is lost,
  because a connection breaks or the broker is killed and started again, the client sends the
  records again under the same sequence numbers, and the broker stores them once and in
  order. That covers whatever happens while the command runs.
  It does not cover two runs of the command. Each run is another producer with another id,
  and the broker does not compare contents. When a run ended with an error, look with
  "oncemq consume" at what is stored before you send the same lines again.

Keys and partitions
  With -K each line is KEY SEPARATOR VALUE, divided at the first separator; a line without
  one is an error. Records with the same key go to the same partition, the one where
  Kafka's own client puts them, and stay in order. Records without a key go to one partition
  after the other, many at a time. -p sends everything to one partition.

Properties
  --property NAME=VALUE takes the producer properties of Kafka, with Kafka's rules: acks=1,
  acks=0 or retries=0 turn idempotence off, with a warning; with enable.idempotence=true they
  are errors. A property that is not known, or that this client cannot honour, is an error.
  The defaults, which are Kafka's except for client.id and two of the sizes:

`

func produceCommand() *cobra.Command {
	var o cli.ProduceOptions
	var file, separator string
	var properties []string
	cmd := &cobra.Command{
		Use:   "produce TOPIC",
		Short: "Send lines as records to a topic",
		Long:  produceHelp + cli.ProducerPropertiesHelp() + "\n" + clientHelp,
		Example: `  echo 'hello' | oncemq produce greetings
  oncemq produce payments -K : -f payments.txt        lines like invoice-1:40.00
  tail -F app.log | oncemq produce logs -v            logs/0 @ 41, for each record
  oncemq produce payments --property compression.type=zstd --property linger.ms=50 < payments.txt`,
		Args: one("topic"),
	}
	flags := cmd.Flags()
	topicOf := topicFlags(cmd, "send everything to partition `N`")
	flags.StringVarP(&file, "file", "f", "-", "read lines from `FILE` (-: stdin)")
	flags.StringVarP(&separator, "key-separator", "K", "", "a line is key, `SEPARATOR`, value; \\t and the like are understood")
	flags.StringArrayVarP(&properties, "property", "X", nil, "a producer property of Kafka, `NAME=VALUE`; may be repeated")
	flags.BoolVarP(&o.Verbose, "verbose", "v", false, "print where each record went, when it is acknowledged: TOPIC/PARTITION @ OFFSET")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if o.Brokers, o.Topic, o.Partition, err = topicOf(args); err != nil {
			return err
		}
		if cmd.Flags().Changed("key-separator") {
			if o.Separator, err = parsed("--key-separator", separator, cli.ParseSeparator); err != nil {
				return err
			}
		}
		if o.Properties, err = cli.ParseProducerProperties(properties); err != nil {
			return fmt.Errorf("--property: %w", err)
		}
		return failed(produce(cmd, file, o))
	}
	return cmd
}

func produce(cmd *cobra.Command, file string, o cli.ProduceOptions) error {
	env := environment()
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		env.In, env.InTerminal = f, isTerminal(f)
	}
	// When nobody reads what -v prints any more, the records that are on their way must still be delivered: the write
	// then fails, instead of the signal ending the process.
	signal.Ignore(syscall.SIGPIPE)
	giveUp, cancel := secondSignal(cmd.Context())
	defer cancel()
	return cli.Produce(cmd.Context(), giveUp, env, o)
}
