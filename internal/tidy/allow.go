package tidy

// exceptions are what the rules would forbid and what is right nevertheless.
var exceptions = []exception{
	// The real file system.
	{"sources", "internal/vfs/os.go", "this is the file system that the others are given"},
	{"sources", "internal/vfs/os_linux.go", "the same, where systems differ"},
	{"sources", "internal/vfs/os_darwin.go", "the same, where systems differ"},

	{"concurrency", "internal/vfs/bounded.go", "a handle is closed while others are in use: the locks say which"},

	// Ids from memory, for any goroutine, beside the state machine that gives the numbers behind them.
	{"sources", "internal/meta/producer_ids.go", "every connection takes ids, and taking one is a single atomic step"},

	// Readers beside one appender, and what is shared by all groups of a node.
	{"concurrency", "internal/seglog/log.go", "readers run beside the appender; the lock covers what it shows them"},
	{"concurrency", "internal/raftlog/state.go", "one file for all groups: their flushers share its syncs"},
	{"concurrency", "internal/raftlog/state_open.go", "makes the condition variable of state.go"},
	{"concurrency", "internal/raftlog/flusher.go", "a shell: the pool of goroutines that wait for the disk"},
	{"concurrency", "internal/raftlog/writer.go", "a shell: what a loop hands over and its flusher takes"},
	{"concurrency", "internal/raftlog/marker.go", "a shell: one goroutine that writes the marks of all groups"},
	{"concurrency", "internal/raftlog/bases.go", "base snapshots are written and removed in the background, beside the loop that reads which there are"},
	{"sources", "internal/raftlog/marker.go:marker.run", "marks are written late on purpose; nothing is decided by this timer"},

	// The shells of a replica. Its cores (core.go, partition.go, flight.go) have no exception.
	{"concurrency", "internal/replica/mailbox.go", "the only way into a loop, for any goroutine"},
	{"concurrency", "internal/replica/replica.go", "starts a partition's one goroutine and publishes its status to readers"},
	{"concurrency", "internal/replica/metadata.go", "starts raft0's one goroutine and publishes its view to readers"},
	{"concurrency", "internal/replica/housekeeping.go", "chores come from the node's goroutines, and wait for the loop"},
	{"order", "internal/replica/replica.go:Partition.announce", "each watcher is woken without waiting, and none hears of another"},

	{"errors", "internal/testbroker/testbroker.go:Broker.AwaitReady", "the last answer and the exit status may be nil, and are for a person"},

	{"size", "internal/history/history_test.go:TestPlantedFaults", "a table of faults, one after the other"},
	{"tests", "internal/replica/partition_test.go:waitFor", "polls a condition that has no channel; the bound only ends a failure"},
	{"tests", "internal/replica/stack_test.go:stack.settle", "the same: what is on its way is asked in the loop"},
	{"tests", "internal/node/fulldisk_test.go:sendUntil", "called in bubbles only: the time is virtual"},
	{"tests", "internal/node/space_test.go:pass", "called in bubbles only: the time is virtual"},
	{"tests", "internal/server/janitor_test.go:TestIdleConnectionsStayWhenTheyMay", "in a bubble that served makes: the time is virtual"},
	{"tests", "internal/server/janitor_test.go:TestSlowRequests", "the same"},
}
