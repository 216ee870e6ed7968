package dedupe

import (
	"encoding/binary"
	"slices"

	"github.com/oncemq/oncemq/internal/batch"
)

// model is the rule told a second time, as plainly as possible: it keeps everything that ever happened and works every
// answer out from the beginning. It shares no code with the package but the types.
type model struct {
	floor  uint32 // at birth
	events []modelEvent
}

// modelEvent is one entry of the log: a batch unless one of the others is set.
type modelEvent struct {
	stamp      batch.Stamp
	base       batch.Offset
	clock      *int64
	forget     []Forgotten
	everything bool
}

// modelState is what all events together come to.
type modelState struct {
	clock int64
	floor uint32
	marks map[uint32]uint32
	known map[batch.ProducerID][]modelBatch // every batch of the producer's current epoch
}

type modelBatch struct {
	modelEvent
	at int64 // log time
}

const sequences = int64(1) << 31

func (b modelBatch) lastOffset() batch.Offset {
	length := int64(b.stamp.Last) - int64(b.stamp.First)
	if length < 0 {
		length += sequences
	}
	return b.base + batch.Offset(length)
}

func modelNext(known []modelBatch) batch.Sequence {
	return batch.Sequence((int64(known[len(known)-1].stamp.Last) + 1) % sequences)
}

func (m *model) state() modelState {
	s := modelState{clock: -1, floor: m.floor, marks: map[uint32]uint32{}, known: map[batch.ProducerID][]modelBatch{}}
	for _, e := range m.events {
		switch {
		case e.clock != nil:
			if *e.clock > s.clock {
				s.clock = *e.clock
			}
		case e.everything:
			s.floor, s.marks = 0xffffffff, map[uint32]uint32{}
		case e.forget != nil:
			for _, f := range e.forget {
				s.forget(f)
			}
		case e.stamp.ID >= 0:
			known := s.known[e.stamp.ID]
			if len(known) > 0 && known[0].stamp.Epoch != e.stamp.Epoch {
				known = nil
			}
			s.known[e.stamp.ID] = append(known, modelBatch{modelEvent: e, at: s.clock})
		}
	}
	return s
}

func (s *modelState) forget(f Forgotten) {
	known := s.known[f.ID]
	if len(known) == 0 || known[0].stamp.Epoch != f.Epoch || modelNext(known) != f.NextSequence {
		return
	}
	delete(s.known, f.ID)
	start, counter := uint32(f.ID/(1<<32)), uint32(f.ID%(1<<32))
	if start < s.floor {
		return
	}
	if old, ok := s.marks[start]; !ok || counter > old {
		s.marks[start] = counter
	}
	if len(s.marks) > 1024 {
		lowest := uint32(0xffffffff)
		for start := range s.marks {
			lowest = min(lowest, start)
		}
		delete(s.marks, lowest)
		s.floor = lowest + 1
	}
}

func (s *modelState) marked(id batch.ProducerID) bool {
	start, counter := uint32(id/(1<<32)), uint32(id%(1<<32))
	highest, ok := s.marks[start]
	return start < s.floor || ok && counter <= highest
}

func (s *modelState) decide(b batch.Stamp) Decision {
	if b.ID < 0 {
		return Decision{Append, NoProducer, -1, -1, -1, -1}
	}
	known := s.known[b.ID]
	if len(known) == 0 {
		switch {
		case b.First == 0:
			return Decision{Append, FirstContact, -1, -1, 0, -1}
		case s.marked(b.ID):
			return Decision{Append, FirstContactForgotten, -1, -1, 0, -1}
		default:
			return Decision{OutOfOrder, FirstContactNotZero, -1, -1, 0, -1}
		}
	}
	seen, next := known[0].stamp.Epoch, modelNext(known)
	for _, k := range known[max(0, len(known)-5):] {
		if k.stamp == b {
			return Decision{Duplicate, InWindow, k.base, k.lastOffset(), next, seen}
		}
	}
	if b.Epoch < seen {
		return Decision{Fenced, OldEpoch, -1, -1, -1, seen}
	}
	if b.Epoch > seen {
		if b.First == 0 {
			return Decision{Append, NewEpoch, -1, -1, 0, seen}
		}
		return Decision{OutOfOrder, EpochNotFromZero, -1, -1, 0, seen}
	}
	if b.First == next {
		return Decision{Append, NextInSequence, -1, -1, next, seen}
	}
	ahead := (int64(b.First) - int64(next) + sequences) % sequences
	if ahead < sequences/2 {
		return Decision{OutOfOrder, Gap, -1, -1, next, seen}
	}
	return Decision{OutOfOrder, Stale, -1, -1, next, seen}
}

// bytes writes the canonical form in its own way.
func (s *modelState) bytes() []byte {
	out := binary.BigEndian.AppendUint16(nil, 1)
	add := func(values ...any) {
		for _, v := range values {
			var err error
			if out, err = binary.Append(out, binary.BigEndian, v); err != nil {
				panic(err)
			}
		}
	}
	add(s.clock, s.floor, uint32(len(s.marks)))
	for _, start := range sortedKeys(s.marks) {
		add(start, s.marks[start])
	}
	add(uint32(len(s.known)))
	for _, id := range sortedKeys(s.known) {
		known := s.known[id]
		add(int64(id), int16(known[0].stamp.Epoch), int32(modelNext(known)), known[len(known)-1].at)
		window := known[max(0, len(known)-5):]
		add(uint8(len(window)))
		for _, b := range window {
			add(int32(b.stamp.First), int32(b.stamp.Last), int64(b.base))
		}
	}
	return out
}

func sortedKeys[K ~uint32 | ~int64, V any](m map[K]V) []K {
	var keys []K
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
