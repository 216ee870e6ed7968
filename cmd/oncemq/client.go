package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/oncemq/oncemq/internal/cli"
)

// clientHelp ends the help text of every command that is a client.
const clientHelp = `Exit codes: 0 done; 1 not everything was done, and the text says what; 2 wrong usage;
130 interrupted before the end.`

// environment is this process as the commands see it.
func environment() cli.Env {
	return cli.Env{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		InTerminal: isTerminal(os.Stdin), OutTerminal: isTerminal(os.Stdout), ErrTerminal: isTerminal(os.Stderr),
		Now: time.Now, Random: rand.Float64,
	}
}

// isTerminal tells whether a file is a terminal: of all files only a terminal has a window.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// brokersFlag adds -b.
func brokersFlag(cmd *cobra.Command) *string {
	return cmd.Flags().StringP("bootstrap", "b", cli.DefaultBroker, "brokers to begin with, `HOST:PORT[,...]`")
}

// topicFlags adds -b and -p to a command about one topic, its argument. read reads the three when they are given.
func topicFlags(cmd *cobra.Command, partitionUsage string) (read func(args []string) (brokers []string, topic string, partition int32, err error)) {
	given := brokersFlag(cmd)
	number := cmd.Flags().Int32P("partition", "p", 0, partitionUsage)
	return func(args []string) (brokers []string, topic string, partition int32, err error) {
		if partition, err = partitionFlag(cmd, "partition", *number, 0, cli.AnyPartition); err == nil {
			brokers, err = parsed("--bootstrap", *given, cli.ParseBrokers)
		}
		return brokers, args[0], partition, err
	}
}

// parsed reads the value of a flag; a mistake in it names the flag.
func parsed[From, To any](flag string, text From, parse func(From) (To, error)) (To, error) {
	v, err := parse(text)
	if err != nil {
		err = fmt.Errorf("%s: %w", flag, err)
	}
	return v, err
}

// partitionFlag is a partition when the flag was given, else none.
func partitionFlag(cmd *cobra.Command, name string, value, lowest, none int32) (int32, error) {
	switch {
	case !cmd.Flags().Changed(name):
		return none, nil
	case value < lowest:
		return 0, fmt.Errorf("--%s: %d is below %d", name, value, lowest)
	default:
		return value, nil
	}
}

// one accepts exactly one argument, which what names.
func one(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 && args[0] != "" {
			return nil
		}
		return fmt.Errorf("name one %s: %s (--help tells more)", what, cmd.UseLine())
	}
}

// failed marks the error of a command that was understood.
func failed(err error) error {
	if err == nil {
		return nil
	}
	return failure{err}
}

// secondSignal returns a context that ends with the second signal from now on: the first ends ctx and asks a command to
// come to its end, the second asks it to leave at once.
//
// It listens from the start. Were it to begin when ctx ends, then main, which puts the default action back at the same
// moment, could come first, and a second signal in between would end the process without a word of what was not
// delivered.
func secondSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	second, cancel := context.WithCancel(context.WithoutCancel(ctx))
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer signal.Stop(signals)
		for range cap(signals) {
			select {
			case <-signals:
			case <-second.Done():
				return
			}
		}
		cancel()
	}()
	return second, cancel
}
