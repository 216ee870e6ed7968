package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Env is the world of a command.
type Env struct {
	In  io.Reader
	Out io.Writer // records and results
	Err io.Writer // everything said to a person
	// Which of them is a terminal: a person is there to type, or to look at a line that changes.
	InTerminal, OutTerminal, ErrTerminal bool
	Now                                  func() time.Time
	Random                               func() float64 // from 0 on, below 1; called by several goroutines
}

// notices is everything that is said on stderr: lines, and on a terminal one more below them that is written over.
// Goroutines of the client speak as well, hence the lock.
type notices struct {
	mu    sync.Mutex
	w     io.Writer
	shown bool // a line that is to be written over
}

// overwrite returns to the begin of the line and clears it.
const overwrite = "\r\x1b[K"

// say writes one line. An error is of no use: there is nowhere left to report it.
func (n *notices) say(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	prefix := "oncemq: "
	if n.shown {
		prefix = overwrite + prefix
		n.shown = false
	}
	_, _ = fmt.Fprintf(n.w, prefix+format+"\n", args...)
}

// show puts a line in the place of the one shown before.
func (n *notices) show(line string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shown = true
	_, _ = io.WriteString(n.w, overwrite+line)
}

// clear removes the line that is shown.
func (n *notices) clear() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.shown {
		n.shown = false
		_, _ = io.WriteString(n.w, overwrite)
	}
}
