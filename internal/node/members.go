package node

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/seglog"
)

// tickInterval is the time by which Raft counts: a leader that is silent for 10 to 20 of them is replaced.
const tickInterval = 100 * time.Millisecond

// members are the replicas here of groups of several: those that exchange messages with other nodes, and tick.
type members struct {
	mu      sync.RWMutex
	byGroup map[seglog.GroupID]replica.Member
	list    []replica.Member // of byGroup; nil when it is to be made
}

func (m *members) init() { m.byGroup = make(map[seglog.GroupID]replica.Member) }

func (m *members) join(g seglog.GroupID, r replica.Member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byGroup[g], m.list = r, nil
}

func (m *members) leave(g seglog.GroupID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byGroup, g)
	m.list = nil
}

func (m *members) of(g seglog.GroupID) (replica.Member, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	r, ok := m.byGroup[g]
	return r, ok
}

// all returns all members. The list is nobody's to change.
func (m *members) all() []replica.Member {
	m.mu.RLock()
	list := m.list
	m.mu.RUnlock()
	if list != nil {
		return list
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.list == nil {
		m.list = slices.Collect(maps.Values(m.byGroup))
	}
	return m.list
}

// tick lets the members' time pass until stop is closed. When the process was held up, the ticks that it has missed are
// not made up for: many at once would make every follower of a healthy leader campaign.
func (n *Node) tick(stop <-chan struct{}) {
	ticker := time.NewTicker(tickInterval)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		for _, r := range n.members.all() {
			r.Tick()
		}
	}
}
