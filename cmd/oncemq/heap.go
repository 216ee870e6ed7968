package main

import "runtime"

// heapFloor is a heap that is never touched, so that it costs address space and no memory. It makes the garbage
// collector, which runs when the heap has doubled, wait for this much garbage at least. What a produce allocates is
// Raft's own copy of its payload; without the floor the few live megabytes of an ordinary broker were collected every
// sixty batches of 64 KiB, for a seventh of all its processor time.
const heapFloor = 64 << 20

// keepHeapFloor has the floor stand until the function that it returns is called.
func keepHeapFloor() (release func()) {
	floor := make([]byte, heapFloor)
	return func() { runtime.KeepAlive(floor) }
}
