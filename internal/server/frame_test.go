package server

import "testing"

func TestFrameClasses(t *testing.T) {
	for _, x := range [][2]int{
		{0, 4160}, {1, 4160}, {4160, 4160}, {4161, 8320}, {64 << 10, 65 << 10}, {65 << 10, 65 << 10}, {65<<10 + 1, 130 << 10},
		{1<<20 + 12 + 200, 1<<20 + 1<<14}, {100 << 20, 1<<27 + 1<<21}, {1<<27 + 1<<21, 1<<27 + 1<<21}, {1<<27 + 1<<21 + 1, 1<<27 + 1<<21 + 1},
	} {
		var p frames
		f := p.get(x[0])
		if len(f.buf) != x[1] {
			t.Errorf("a frame for %d bytes has %d, want %d", x[0], len(f.buf), x[1])
		}
		f.release()
	}
}

func TestFrameReferences(t *testing.T) {
	var p frames
	f := p.get(5000)
	f.retain()
	f.release()
	if f.refs.Load() != 1 {
		t.Errorf("%d references", f.refs.Load())
	}
	f.release()
	defer func() {
		if recover() == nil {
			t.Error("a frame is released once too often")
		}
	}()
	f.release()
}
