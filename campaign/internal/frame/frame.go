// Package frame is what stands around every campaign: flags, signals, the binary, and the exit status. It is test support;
// the broker does not import it.
//
// Main reads the flags, runs the campaign with a context that ends with SIGINT or SIGTERM, prints its error and exits: with
// 2 when the flags are wrong, with 1 when the campaign failed, and as it says itself with Exit.
package frame

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/oncemq/oncemq/internal/testbroker"
)

// Main is the main function of the campaign of this name. It returns after a success and exits otherwise.
func Main[C any](name string, parse func([]string) (C, error), run func(context.Context, C, io.Writer) error) {
	cfg, err := parse(os.Args[1:])
	if err != nil {
		err = Exit(2, err)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = run(ctx, cfg, os.Stdout)
		stop()
	}
	if status := report(os.Stderr, name, err); status != 0 {
		os.Exit(status)
	}
}

// report prints an error, if there is something to say, and returns the exit status that it stands for.
func report(out io.Writer, name string, err error) (status int) {
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exitError](err)
	if !ok {
		exit = &exitError{status: 1, err: err}
	}
	if exit.err != nil {
		fmt.Fprintf(out, "%s: %v\n", name, err)
	}
	return exit.status
}

type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("status %d", e.status)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// Exit returns an error that ends Main with a status. With a nil error nothing is printed, and status 0 is a success.
func Exit(status int, err error) error {
	if status == 0 && err == nil {
		return nil
	}
	return &exitError{status: status, err: err}
}

// Failed says that a campaign failed, and with which seed. It returns nil for nil.
func Failed(seed uint64, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("FAILED, seed %d: %w", seed, err)
}

// Parse reads flags, and refuses arguments behind them.
func Parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return nil
}

// Binary returns the path of the broker to run: the one that was given, or else one that it builds into dir.
func Binary(ctx context.Context, given, dir string) (string, error) {
	if given != "" {
		return given, nil
	}
	return testbroker.Build(ctx, dir)
}
