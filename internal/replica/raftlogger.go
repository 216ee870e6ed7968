package replica

import (
	"context"
	"fmt"
	"log/slog"
)

// raftLogger lets Raft's own messages appear only when debugging: what it warns of is ordinary in a cluster whose nodes come
// and go, and comes once for each of thousands of groups. Its errors appear always. Where Raft would end the process, that
// is a bug here.
type raftLogger struct{ log *slog.Logger }

func (l raftLogger) print(level slog.Level, v []any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, fmt.Sprint(v...))
	}
}

func (l raftLogger) printf(level slog.Level, format string, v []any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, fmt.Sprintf(format, v...))
	}
}

func (l raftLogger) Debug(v ...any)              { l.print(slog.LevelDebug, v) }
func (l raftLogger) Debugf(f string, v ...any)   { l.printf(slog.LevelDebug, f, v) }
func (l raftLogger) Info(v ...any)               { l.print(slog.LevelDebug, v) }
func (l raftLogger) Infof(f string, v ...any)    { l.printf(slog.LevelDebug, f, v) }
func (l raftLogger) Warning(v ...any)            { l.print(slog.LevelDebug, v) }
func (l raftLogger) Warningf(f string, v ...any) { l.printf(slog.LevelDebug, f, v) }
func (l raftLogger) Error(v ...any)              { l.print(slog.LevelError, v) }
func (l raftLogger) Errorf(f string, v ...any)   { l.printf(slog.LevelError, f, v) }
func (l raftLogger) Fatal(v ...any)              { panic("BUG: raft: " + fmt.Sprint(v...)) }
func (l raftLogger) Fatalf(f string, v ...any)   { panic("BUG: raft: " + fmt.Sprintf(f, v...)) }
func (l raftLogger) Panic(v ...any)              { panic("BUG: raft: " + fmt.Sprint(v...)) }
func (l raftLogger) Panicf(f string, v ...any)   { panic("BUG: raft: " + fmt.Sprintf(f, v...)) }
