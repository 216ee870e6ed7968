package server

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/oncemq/oncemq/internal/invariant"
)

// Buffers come in classes of doubling size, each with a sixty-fourth more: a batch of 64 KiB, or one of Kafka's default
// max.message.bytes (1 MiB and 12 bytes), fits the class of that size with the request around it.
const (
	classMin = 12 // 4 KiB
	classMax = 27 // 128 MiB
)

func classSize(class int) int {
	return 1<<class + 1<<(class-6)
}

// classOf is the smallest class that holds size bytes; it is above classMax when none does.
func classOf(size int) int {
	class := max(bits.Len(uint(max(size, 1)-1)), classMin)
	if class > classMin && size <= classSize(class-1) {
		class--
	}
	return class
}

// bufferSize is the size of the buffer that frames.get gives for size bytes.
func bufferSize(size int) int {
	if class := classOf(size); class <= classMax {
		return classSize(class)
	}
	return size
}

// bufferWithin is the size of the largest buffer with a class that has at most size bytes, 0 when there is none.
func bufferWithin(size int) int {
	for class := classMax; class >= classMin; class-- {
		if classSize(class) <= size {
			return classSize(class)
		}
	}
	return 0
}

// frames are buffers for request frames and responses that are used again. The garbage collector frees those
// that lie unused for two of its cycles.
type frames struct {
	classes [classMax - classMin + 1]sync.Pool
}

// get returns a frame with room for size bytes and one reference. What its buffer holds is left from before.
func (p *frames) get(size int) *frame {
	class := classOf(size)
	if class > classMax {
		f := &frame{buf: make([]byte, size)}
		f.refs.Store(1)
		return f
	}
	f, _ := p.classes[class-classMin].Get().(*frame)
	if f == nil {
		f = &frame{home: &p.classes[class-classMin], buf: make([]byte, classSize(class))}
	}
	f.refs.Store(1)
	return f
}

// frame is a buffer that is counted: each batch in it that a partition has not taken yet holds one reference, and so
// does the goroutine that fills and parses it.
type frame struct {
	home *sync.Pool // nil: too large to be kept
	buf  []byte     // its whole size, always
	refs atomic.Int32
	lent loan // given back with the last reference
}

func (f *frame) retain() {
	f.refs.Add(1)
}

// release gives a reference back; with the last one the buffer may be used again at once.
func (f *frame) release() {
	refs := f.refs.Add(-1)
	invariant.Check(refs >= 0, "a frame is released more often than it was retained")
	if refs > 0 {
		return
	}
	f.lent.giveBack()
	if f.home != nil {
		f.home.Put(f)
	}
}
