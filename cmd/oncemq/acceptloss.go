package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/oncemq/oncemq/internal/cli"
	"github.com/oncemq/oncemq/internal/node"
)

func acceptLossCommand() *cobra.Command {
	var confirm string
	cmd := &cobra.Command{
		Use:   "accept-loss DIR TOPIC/PARTITION",
		Short: "Give up what is damaged in a partition",
		Long: `Let a damaged partition go on without what is damaged, and without everything behind that, or
before it where only old log files are: what "oncemq check-data" prints. What is lost was
acknowledged, and stays lost. Restore a backup instead if there is one. No broker may use the
directory.

The command prints what would be lost and asks for the words that confirm it. They name the
first offset that is lost, so that they cannot be given unread; without them nothing is changed.
A script gives them with --confirm. What is given up stays beside the log, in files that end in
.cut and .bad, for whoever wants to look into them; no broker reads them.

When the end of the log is lost, the next records get the offsets of those that are lost. A
producer that lived through it and of whose batches the last are lost is told so: its next one is
refused with OUT_OF_ORDER_SEQUENCE_NUMBER (45), since what came before is missing. One of which
nothing is known any more goes on; if it sends again what was stored, it is stored twice.

Exit codes: 0 done; 1 not confirmed, or failed; 2 wrong usage; 3 a broker uses the directory;
4 it is of a newer format; 5 what all partitions need is damaged, and this command does not help.`,
		Example: `  oncemq accept-loss /var/lib/oncemq payments/0
  oncemq accept-loss /var/lib/oncemq payments/0 --confirm 'lose payments/0 from 41237'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 || args[0] == "" {
				return fmt.Errorf("name a data directory and a partition: %s (--help tells more)", cmd.UseLine())
			}
			_, _, err := parsePartition(args[1])
			return err
		},
	}
	cmd.Flags().StringVar(&confirm, "confirm", "", "the `WORDS` that the command asks for")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		endAtSignal()
		return failed(acceptLoss(environment(), args[0], args[1], confirm))
	}
	return cmd
}

// parsePartition reads TOPIC/PARTITION.
func parsePartition(text string) (topic string, partition int32, err error) {
	topic, number, ok := strings.Cut(text, "/")
	n, err := strconv.ParseInt(number, 10, 32)
	if !ok || err != nil || topic == "" || n < 0 {
		return "", 0, fmt.Errorf("%q is not TOPIC/PARTITION", text)
	}
	return topic, int32(n), nil
}

var errNotConfirmed = errors.New("not confirmed: nothing was changed")

func acceptLoss(env cli.Env, dir, name, confirm string) error {
	topic, partition, err := parsePartition(name)
	if err != nil {
		return err
	}
	found, err := inspect(dir)
	if err != nil {
		return err
	}
	p, err := damagedPartition(found, topic, partition)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(env.Out, p.String()); err != nil {
		return err
	}
	words := fmt.Sprintf("lose %s from %d", p.name(), p.Lost.From)
	if confirm == "" {
		if confirm, err = ask(env, words); err != nil {
			return err
		}
	}
	if confirm != words {
		return fmt.Errorf("%w; the words are: %s", errNotConfirmed, words)
	}
	surroundings, err := storage()
	if err != nil {
		return err
	}
	gone, err := node.GiveUp(surroundings, dir, topic, partition)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Out, "%s goes on; lost are %v\n", p.name(), lost{int64(gone.LostFrom), gone.LostOffsets})
	return err
}

// damagedPartition finds a partition that has something to give up.
func damagedPartition(c checked, topic string, partition int32) (checkedPartition, error) {
	if len(c.Damage) > 0 {
		return checkedPartition{}, fmt.Errorf("%w: no broker can start on %s: %s", node.ErrDamage, c.Directory, c.Damage[0])
	}
	for _, p := range c.Partitions {
		switch {
		case p.Topic != topic || p.Partition != partition:
		case p.Sound:
			return p, fmt.Errorf("%s is sound: there is nothing to give up", p.name())
		case p.Lost == nil:
			return p, fmt.Errorf("%s cannot go on without what is damaged: restore a backup: %s", p.name(), p.WhyNot)
		default:
			return p, nil
		}
	}
	return checkedPartition{}, fmt.Errorf("there is no partition %s/%d in %s", topic, partition, c.Directory)
}

// ask has a person type words.
func ask(env cli.Env, words string) (string, error) {
	if !env.InTerminal {
		return "", fmt.Errorf("%w; give the words with --confirm '%s'", errNotConfirmed, words)
	}
	if _, err := fmt.Fprintf(env.Out, "Type the words between the quotation marks to go on: %q\n> ", words); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(env.In).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	return strings.TrimSpace(line), nil
}
