package replica

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/seglog"
)

const (
	// clockIntervalMax is how old the newest clock entry may be, at most, when a batch is proposed: an older one is
	// preceded by a new one.
	clockIntervalMax = 60 * time.Second
	// roomShare is the part of the cap that is freed at once when a partition is full of producers: to find the least
	// recently used all are looked at.
	roomShare = 64
)

// clockInterval is how old the newest clock entry may be when a batch is proposed. What is judged by a batch's clock is
// wrong by that much, so it is short where producers are forgotten soon.
func (s *Settings) clockInterval() time.Duration {
	soonest := min(s.ProducerExpiration, s.ProducerEvictionMinAge)
	return max(min(clockIntervalMax, soonest/4), time.Millisecond)
}

// logTime is the partition's time in milliseconds: that of the newest clock entry that is applied, and the time that has
// passed since it was applied here. A jump of the wall clock changes nothing; what passes while nobody leads does not
// count. Before the first clock entry is applied it is that of the proposed one, -1 without one.
func (p *partitionCore) logTime(now time.Time) int64 {
	applied := p.table.Clock()
	if applied < 0 {
		return p.head.Clock()
	}
	return applied + now.Sub(p.clockApplied).Milliseconds()
}

// stageClock puts a clock entry before the batch when the newest is clockInterval old. The first one of a partition is
// wall time.
func (p *partitionCore) stageClock(now time.Time) {
	ms := p.logTime(now)
	if ms < 0 {
		ms = max(now.UnixMilli(), 0)
	} else if ms-p.head.Clock() < p.settings.clockInterval().Milliseconds() {
		return
	}
	p.stageCommand(binary.BigEndian.AppendUint64(nil, uint64(ms)), command{kind: seglog.KindClock, clock: ms})
}

// idleBefore is the log time of those who have been idle for at least idle. A producer's own is that of the clock entry
// before its last batch, which was one interval old at most: the interval of whoever led then. So it takes longer until
// the batches of earlier leaders are surely old enough.
func (p *partitionCore) idleBefore(now time.Time, idle time.Duration) int64 {
	newest := p.logTime(now) - idle.Milliseconds()
	if old := newest - clockIntervalMax.Milliseconds(); old < p.inherited {
		return old
	}
	return newest - p.settings.clockInterval().Milliseconds()
}

// expire forgets all who were silent for the expiration time.
func (p *partitionCore) expire(now time.Time) {
	p.forget(now, seglog.KindExpire, p.settings.ProducerExpiration, p.head.Producers())
}

// evict forgets up to most of those who have been idle for so long, and for the eviction age.
func (p *partitionCore) evict(now time.Time, idle time.Duration, most int) {
	p.forget(now, seglog.KindEvict, max(idle, p.settings.ProducerEvictionMinAge), most)
}

// forget proposes one entry at a time: each takes a look at all producers, and the loop has others to serve in between.
func (p *partitionCore) forget(now time.Time, kind seglog.Kind, idle time.Duration, most int) {
	if p.refusal() != nil {
		return
	}
	list := p.head.Idle(p.idleBefore(now, idle), most)
	if len(list) == 0 {
		return
	}
	c := command{kind: kind, forget: list}
	if rest := most - len(list); len(list) == dedupe.ForgottenMax && rest > 0 {
		c.applied = func() {
			p.due = append(p.due, func(now time.Time) { p.forget(now, kind, idle, rest) })
		}
	}
	p.stageCommand(dedupe.AppendForgotten(nil, list), c)
	p.send()
}

// makeRoom lets one more producer in, or says why not. At the partition's cap it stages an entry that forgets some of
// the least recently used, to stand before the batch in the same proposal. It is quick when it cannot: the head remembers
// how old the oldest is.
func (p *partitionCore) makeRoom(now time.Time) error {
	if over := p.head.Producers() - p.settings.ProducersMax; over >= 0 {
		most := min(over+max(p.settings.ProducersMax/roomShare, 1), dedupe.ForgottenMax)
		list := p.head.Idle(p.idleBefore(now, p.settings.ProducerEvictionMinAge), most)
		if len(list) > 0 {
			p.stageCommand(dedupe.AppendForgotten(nil, list), command{kind: seglog.KindEvict, forget: list})
			p.count()
		}
		if len(list) <= over {
			return p.crowded(now)
		}
	}
	if !p.host.ReserveProducer() {
		return fmt.Errorf("%w: the node remembers as many as producer.id.max.per.node allows; it goes on when the least recently used "+
			"have been silent for %v (producer.id.eviction.min.age.ms)", ErrTooManyProducers, p.settings.ProducerEvictionMinAge)
	}
	p.counted++
	return nil
}

// crowded says that the partition's cap is reached, and when it can forget somebody.
func (p *partitionCore) crowded(now time.Time) error {
	wait := min(p.head.OldestClock(), p.logTime(now)) - p.idleBefore(now, p.settings.ProducerEvictionMinAge)
	return fmt.Errorf("%w: the partition remembers as many as producer.id.max.per.partition (%d) allows, and may forget the least "+
		"recently used in %v at the earliest", ErrTooManyProducers, p.settings.ProducersMax, max(time.Duration(wait)*time.Millisecond, 0))
}

// count brings the node's count of producers in line with the head.
func (p *partitionCore) count() {
	if n := p.head.Producers() - p.counted; n != 0 {
		p.host.CountProducers(n)
		p.counted += n
	}
}

// uncount takes the partition's producers out of the node's count.
func (p *partitionCore) uncount() {
	p.host.CountProducers(-p.counted)
	p.counted = 0
}

// oldestUse is when the least recently used producer was used last, as of the last look at all; zero when there is none,
// or none that can be forgotten.
func (p *partitionCore) oldestUse() time.Time {
	if p.table.Producers() == 0 || p.offline != nil {
		return time.Time{}
	}
	behind := p.table.Clock() - p.head.OldestClock()
	return p.clockApplied.Add(-time.Duration(behind) * time.Millisecond)
}
