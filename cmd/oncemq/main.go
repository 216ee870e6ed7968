// Command oncemq is a Kafka-compatible broker in which a retry is never written twice and an acknowledged record is
// never lost.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/oncemq/oncemq/internal/cli"
	"github.com/oncemq/oncemq/internal/founding"
	"github.com/oncemq/oncemq/internal/node"
)

// Exit codes. They are part of the interface: scripts and service managers decide by them whether a restart can help.
const (
	exitFailure = 1
	exitUsage   = 2
	exitInUse   = 3
	exitNewer   = 4
	exitDamage  = 5
	// exitInterrupted is what a shell reports of a process that Ctrl-C ended.
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:]))
}

func run(ctx context.Context, args []string) int {
	root := &cobra.Command{
		Use:   "oncemq",
		Short: "A Kafka-compatible broker that writes a retry once and loses nothing it acknowledged",
		Long: `OnceMQ is a Kafka-compatible broker in which a retry is never written twice and an
acknowledged record is never lost. Any Kafka client can use it.

  oncemq serve                   starts a broker on 127.0.0.1:9092, with its data in ./oncemq-data
  oncemq topic create payments   creates a topic
  oncemq produce payments        sends lines as records
  oncemq consume payments        prints them`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(serveCommand(), topicCommand(), produceCommand(), consumeCommand(), checkDataCommand(), acceptLossCommand(), versionCommand())
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "oncemq: %v\n", err)
	}
	return exitCode(err)
}

// failure marks an error that comes from doing what was asked, as opposed to a mistake in asking.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if _, ok := errors.AsType[failure](err); !ok {
		return exitUsage
	}
	switch {
	case errors.Is(err, cli.ErrInterrupted):
		return exitInterrupted
	case errors.Is(err, node.ErrInUse):
		return exitInUse
	case errors.Is(err, node.ErrNewerFormat):
		return exitNewer
	case errors.Is(err, node.ErrDamage), errors.Is(err, founding.ErrEmptied):
		return exitDamage
	case errors.Is(err, founding.ErrFounders):
		return exitUsage
	default:
		return exitFailure
	}
}
