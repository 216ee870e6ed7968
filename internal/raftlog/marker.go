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

	writing sync.Mutex // taken before mu: held while a mark is on its way from ends to the state file

	mu   sync.Mutex
	ends map[seglog.GroupID]seglog.Floor

	first chan struct{} // capacity 1: ends is not empty any more
	quit  chan struct{}
	done  sync.WaitGroup
}

func (m *marker) init(state *StateFile, fatal func(error)) {
	m.state, m.fatal = state, fatal
	m.ends = make(map[seglog.GroupID]seglog.Floor)
	m.first, m.quit = make(chan struct{}, 1), make(chan struct{})
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

// write writes the marks that wait. Those that find no room wait for the next interval: an older mark is still true.
func (m *marker) write() error {
	m.mu.Lock()
	groups := slices.Sorted(maps.Keys(m.ends))
	m.mu.Unlock()
	for _, group := range groups {
		err := m.writeOne(group)
		if errors.Is(err, ErrFull) {
			m.wake()
			return nil
		}
		if err != nil {
			return fmt.Errorf("write durable mark of group %d: %w", group, err)
		}
	}
	return nil
}

func (m *marker) writeOne(group seglog.GroupID) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	end, waits := m.ends[group]
	delete(m.ends, group)
	m.mu.Unlock()
	if !waits {
		return nil
	}
	_, err := m.state.SetMark(group, end)
	if errors.Is(err, ErrFull) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if _, newer := m.ends[group]; !newer {
			m.ends[group] = end
		}
	}
	return err
}

// forget drops the mark of a group that waits, and returns when none is on its way to the state file: what it names is about
// to be removed. Whoever removes it is the only one who calls later for the group.
func (m *marker) forget(group seglog.GroupID) {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.ends, group)
}

func (m *marker) wake() {
	select {
	case m.first <- struct{}{}:
	default:
	}
}
