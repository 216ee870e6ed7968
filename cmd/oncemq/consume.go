package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/oncemq/oncemq/internal/cli"
)

const consumeHelp = `Print the records of a topic, and follow it: records that come later are printed as they
come, until Ctrl-C.

Where to begin, -o
  beginning    the first record that is there (this is the default, as in kcat; Kafka's
               console consumer begins at the end)
  end          records that come from now on
  N            records from offset N on; there may be none yet
  -N           the last N records of each partition

Where to end: -c after so many records; -e where the partitions ended when the command
started. With both, whichever comes first.

The order is that of the offsets within each partition. Between partitions there is none:
-p reads one partition.

What is printed, -f
  Without -f each value is printed as it is, and a line feed. -K prints the key and a
  separator before it, --print-key the key and a tab. A format can have
    %t topic   %p partition   %o offset   %T time in milliseconds since 1970 (UTC)
    %k key     %s value       %h headers as NAME=VALUE,...
    %K and %S  length of key and value in bytes, -1 for null, which prints as nothing
    %R         length of the value as a 32-bit big-endian number
    %%         a percent sign, and the escapes \n \r \t \\ \xHH
  A format prints no line feed of its own. The format json prints one object a line, with the
  field names of kcat -J; key and payload are text, null, or {"base64": "..."} for bytes that
  are not UTF-8, so that nothing is lost.

There are no consumer groups: the command remembers nothing, and two of them read the same.

`

func consumeCommand() *cobra.Command {
	var o cli.ConsumeOptions
	var start, format, separator string
	var printKey bool
	cmd := &cobra.Command{
		Use:   "consume TOPIC",
		Short: "Print the records of a topic",
		Long:  consumeHelp + clientHelp,
		Example: `  oncemq consume payments -e                          everything there is
  oncemq consume payments -o end                      what comes from now on
  oncemq consume payments -p 0 -o 41 -c 1             the record at payments/0 @ 41
  oncemq consume payments -o -10 -e -f '%p/%o %k: %s\n'
  oncemq consume payments -e -f json | jq -r .payload`,
		Args: one("topic"),
	}
	flags := cmd.Flags()
	topicOf := topicFlags(cmd, "read partition `N` (default: all)")
	flags.StringVarP(&start, "offset", "o", "beginning", "`OFFSET` to begin at: beginning, end, N or -N")
	flags.Int64VarP(&o.Count, "count", "c", 0, "end after `N` records")
	flags.BoolVarP(&o.ToEnd, "exit", "e", false, "end where the topic ended when the command started")
	flags.StringVarP(&format, "format", "f", "", "`FORMAT` of a record, or json")
	flags.StringVarP(&separator, "key-separator", "K", "", "print the key and `SEPARATOR` before each value; \\t and the like are understood")
	flags.BoolVar(&printKey, "print-key", false, "print the key and a tab before each value")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if o.Brokers, o.Topic, o.Partition, err = topicOf(args); err != nil {
			return err
		}
		if o.Start, err = parsed("--offset", start, cli.ParseStartOffset); err != nil {
			return err
		}
		if cmd.Flags().Changed("count") && o.Count < 1 {
			return fmt.Errorf("--count: %d is below 1", o.Count)
		}
		if o.Format, err = consumeFormat(cmd, format, separator, printKey); err != nil {
			return err
		}
		return failed(cli.Consume(cmd.Context(), environment(), o))
	}
	return cmd
}

// consumeFormat is the format that the flags ask for together.
func consumeFormat(cmd *cobra.Command, format, separator string, printKey bool) (*cli.Format, error) {
	withSeparator := cmd.Flags().Changed("key-separator")
	switch {
	case cmd.Flags().Changed("format"):
		if withSeparator || printKey {
			return nil, errors.New("--format says itself whether the key is printed, with %k: leave out --key-separator and --print-key")
		}
		return parsed("--format", format, cli.ParseFormat)
	case withSeparator:
		s, err := parsed("--key-separator", separator, cli.ParseSeparator)
		return cli.LineFormat(s), err
	case printKey:
		return cli.LineFormat([]byte{'\t'}), nil
	default:
		return cli.LineFormat(nil), nil
	}
}
