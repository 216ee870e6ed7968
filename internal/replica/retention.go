package replica

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/seglog"
)

// start implements machine: the effective log start. The log may begin above the newest log start entry that is applied:
// at a restart that entry may be still to come.
func (p *partitionCore) start() batch.Offset { return max(p.logStart, p.retained) }

// retain moves the log start up behind the segments that are too old, or too much, and ends the active segment when it
// is old enough.
func (p *partitionCore) retain(now time.Time) {
	if p.refusal() != nil {
		return
	}
	segments := p.log.Segments().Segments()
	p.moveStart(min(p.settings.spent(now.UnixMilli(), segments), p.high))
	active := segments[len(segments)-1]
	aged := p.segmentClock >= 0 && p.logTime(now)-p.segmentClock >= p.settings.SegmentAge.Milliseconds()
	if aged && active.First <= p.applied {
		p.rollWanted = true
	}
}

// spent returns the offset behind the oldest segments that nobody wants any more, by the wall clock in milliseconds and by
// the bytes that they have together. Segments without a timestamp are not old, whatever the clock says.
func (s *Settings) spent(wall int64, segments []seglog.SegmentInfo) batch.Offset {
	var bytes int64
	for _, segment := range segments {
		bytes += segment.Bytes
	}
	end := batch.Offset(0)
	for _, segment := range segments {
		empty := segment.NextOffset == segment.FirstOffset
		old := s.Retention >= 0 && segment.MaxTimestamp >= 0 && wall-segment.MaxTimestamp > s.Retention.Milliseconds()
		much := s.RetentionBytes >= 0 && bytes-segment.Bytes >= s.RetentionBytes
		if !empty && !old && !much {
			break
		}
		bytes -= segment.Bytes
		end = segment.NextOffset
	}
	return end
}

// deletion is somebody who waits for the log start to come to an offset.
type deletion struct {
	before batch.Offset
	done   func(start batch.Offset, err error)
	gone   func() bool // nobody listens any more
}

// deleteRecords moves the log start up to d.before, -1 for the high watermark, and answers when that is durable, or at
// once when it cannot be.
func (p *partitionCore) deleteRecords(d deletion) {
	if d.before == -1 {
		d.before = p.high
	}
	switch refusal := p.refusal(); {
	case refusal != nil:
		p.endDeletion(d, refusal)
	case d.before < 0 || d.before > p.high:
		p.endDeletion(d, fmt.Errorf("%w: %d, the high watermark is %d", ErrOutOfRange, d.before, p.high))
	case d.before <= p.start():
		p.endDeletion(d, nil)
	default:
		p.deletions = slices.DeleteFunc(p.deletions, func(d deletion) bool { return d.gone() })
		p.deletions = append(p.deletions, d)
		p.moveStart(0)
	}
}

func (p *partitionCore) endDeletion(d deletion, err error) {
	start := p.start()
	p.ended = append(p.ended, func() { d.done(start, err) })
}

// endDeletions ends those who wait in vain.
func (p *partitionCore) endDeletions(err error) {
	for _, d := range p.deletions {
		p.endDeletion(d, err)
	}
	p.deletions = nil
}

// moveStart proposes a log start entry for the highest offset that is wanted, by the deletions or as to, unless one is on
// its way: so there is no more than one, however many ask while the disk is full.
func (p *partitionCore) moveStart(to batch.Offset) {
	for _, d := range p.deletions {
		to = max(to, d.before)
	}
	if p.refusal() != nil || p.starting > p.logStart || to <= p.start() {
		return
	}
	p.stageCommand(binary.BigEndian.AppendUint64(nil, uint64(to)), command{kind: seglog.KindLogStart, logStart: to})
	p.send()
}

// followStart does what follows when the log start has moved in this turn: it answers deletions, and has segments removed.
// The active one cannot be: when it holds nothing but what lies below the log start, it is ended.
func (p *partitionCore) followStart() {
	if !p.startMoved {
		return
	}
	p.startMoved, p.sweepWanted = false, true
	p.deletions = slices.DeleteFunc(p.deletions, func(d deletion) bool {
		reached := d.before <= p.start()
		if reached {
			p.endDeletion(d, nil)
		}
		return reached
	})
	if len(p.deletions) > 0 {
		p.due = append(p.due, func(time.Time) { p.moveStart(0) })
	}
	segments := p.log.Segments().Segments()
	active := segments[len(segments)-1]
	if active.NextOffset > active.FirstOffset && active.NextOffset <= p.start() {
		p.rollWanted = true
	}
}
