package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// The second signal comes as soon as the first has done its work, as when somebody leans on Ctrl-C: it ends the second
// context, and never the process. Around it stands what main does with the first.
func TestSecondSignalAtOnce(t *testing.T) {
	for range 500 {
		first, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
		context.AfterFunc(first, stop)
		second, cancel := secondSignal(first)
		interrupt(t)
		<-first.Done()
		if second.Err() != nil {
			t.Fatal("the first signal counts as the second")
		}
		interrupt(t)
		<-second.Done()
		cancel()
	}
}

func interrupt(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
}
