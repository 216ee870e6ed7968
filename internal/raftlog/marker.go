package raftlog

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/oncemq/oncemq/internal/seglog"
)

// marker writes the durable marks of all groups that were flushed within the last markInterval. A mark is a lower
// bound and needs no sync, so one goroutine and one write a group and interval are enough.
type marker struct {
	state *StateFile
	fatal func(error)

	mu   sync.Mutex
	ends map[seglog.GroupID]seglog.Floor

	first chan struct{} // capacity 1: ends is not empty any more
	quit  chan struct{}
	done  sync.WaitGroup
}

func (m *marker) start(state *StateFile, fatal func(error)) {
	m.state, m.fatal = state, fatal
	m.ends = make(map[seglog.GroupID]seglog.Floor)
	m.first, m.quit = make(chan struct{}, 1), make(chan struct{})
	m.done.Go(m.run)
}

// stop writes the outstanding marks and ends the goroutine.
func (m *marker) stop() {
	close(m.quit)
	m.done.Wait()
}

// later has the mark of group raised to end within markInterval.
func (m *marker) later(group seglog.GroupID, end seglog.Floor) {
	m.mu.Lock()
	m.ends[group] = end
	m.mu.Unlock()
	m.wake()
}

func (m *marker) run() {
	for stopped := false; !stopped; {
		select {
		case <-m.first:
			select {
			case <-time.After(markInterval):
			case <-m.quit:
				stopped = true
			}
		case <-m.quit:
			stopped = true
		}
		if err := m.write(); err != nil {
			m.fatal(err)
			return
		}
	}
}

func (m *marker) write() error {
	m.mu.Lock()
	ends := m.ends
	m.ends = make(map[seglog.GroupID]seglog.Floor)
	m.mu.Unlock()
	for _, group := range slices.Sorted(maps.Keys(ends)) {
		_, err := m.state.SetMark(group, ends[group])
		if errors.Is(err, ErrFull) {
			m.again(ends)
			return nil
		}
		if err != nil {
			return fmt.Errorf("write durable mark of group %d: %w", group, err)
		}
	}
	return nil
}

// again has marks written in the next interval that found no room. An older mark is still true.
func (m *marker) again(ends map[seglog.GroupID]seglog.Floor) {
	m.mu.Lock()
	maps.Copy(ends, m.ends) // those are newer
	m.ends = ends
	m.mu.Unlock()
	m.wake()
}

func (m *marker) wake() {
	select {
	case m.first <- struct{}{}:
	default:
	}
}
