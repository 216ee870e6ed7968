package peer

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
)

const (
	// repeatTicks is after how many ticks a line may stand in the log again: one minute.
	repeatTicks = 600
	// linesMax is how many different lines are told apart in that time; more of them are left out.
	linesMax = 256
)

// seldom writes to the log what happens again and again, each line once a minute. A line is its text and its attributes.
type seldom struct {
	log   *slog.Logger
	ticks *atomic.Int64

	mu    sync.Mutex
	since int64
	said  map[string]bool
}

func newSeldom(log *slog.Logger, ticks *atomic.Int64) *seldom {
	return &seldom{log: log, ticks: ticks, said: make(map[string]bool)}
}

func (s *seldom) warn(text string, attributes ...any) { s.say(slog.LevelWarn, text, attributes) }
func (s *seldom) info(text string, attributes ...any) { s.say(slog.LevelInfo, text, attributes) }

func (s *seldom) say(level slog.Level, text string, attributes []any) {
	r := slog.Record{Message: text}
	r.Add(attributes...)
	key := text
	r.Attrs(func(a slog.Attr) bool {
		key += "\x00" + a.String()
		return true
	})
	if s.first(key) {
		s.log.Log(context.Background(), level, text, attributes...)
	}
}

// first tells whether a line has not been said for a while.
func (s *seldom) first(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.ticks.Load(); now-s.since >= repeatTicks {
		s.since = now
		clear(s.said)
	}
	if s.said[key] || len(s.said) >= linesMax {
		return false
	}
	s.said[key] = true
	return true
}
