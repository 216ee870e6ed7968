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

	// Founders ask each other until all are there.
	{"sources", "internal/founding/identity.go", "an address is taken apart, and nothing is connected to"},
	{"sources", "internal/founding/founding.go:sleep", "a pause between two rounds of questions"},
	{"sources", "internal/founding/founding.go:Identity.askAll", "a question has 2 s"},
	{"concurrency", "internal/founding/identity.go", "answers are given while a founder asks"},
	{"concurrency", "internal/founding/founding.go", "all founders are asked at the same time"},

	// The network between nodes. Everything but frame.go, fields.go, message.go and inbox.go is shell.
	{"sources", "internal/peer/config.go", "connections between nodes are this package's"},
	{"sources", "internal/peer/connection.go", "the same"},
	{"sources", "internal/peer/outbox.go", "the same: writev"},
	{"sources", "internal/peer/handshake.go", "the same"},
	{"sources", "internal/peer/listener.go", "the same"},
	{"sources", "internal/peer/peer.go", "the same"},
	{"sources", "internal/peer/transport.go", "the same, and the random number of a process, on which nothing depends but that it is new"},
	{"sources", "internal/peer/listener.go:Listener.tickAlways", "the one clock of the package: silence is counted in its ticks"},
	{"sources", "internal/peer/listener.go:Listener.acceptAll", "a pause when the system refuses to take connections"},
	{"sources", "internal/peer/listener.go:Listener.serve", "a stranger has 5 s for its handshake"},
	{"sources", "internal/peer/peer.go:peer.keepDialing", "a pause between two attempts to connect"},
	{"sources", "internal/peer/peer.go:peer.dial", "an attempt to connect has 5 s"},
	{"concurrency", "internal/peer/queue.go", "any goroutine sends, a connection's writer takes"},
	{"concurrency", "internal/peer/connection.go", "each connection has a reader and a writer"},
	{"concurrency", "internal/peer/calls.go", "any goroutine calls, and each call is answered on its own"},
	{"concurrency", "internal/peer/seldom.go", "lines for the log come from all of them"},
	{"concurrency", "internal/peer/peer.go", "four connections of one peer come and go by themselves"},
	{"concurrency", "internal/peer/transport.go", "starts the dialers, and waits for everything at its end"},
	{"concurrency", "internal/peer/listener.go", "takes connections, each on a goroutine"},
	{"order", "internal/peer/listener.go:Listener.endStrangers", "all are closed, in any order"},

	// The shells of a replica. Its cores (core.go, partition.go, flight.go) have no exception.
	{"concurrency", "internal/replica/mailbox.go", "the only way into a loop, for any goroutine"},
	{"concurrency", "internal/replica/loop.go", "the one goroutine of a replica publishes who leads to readers"},
	{"concurrency", "internal/replica/replica.go", "starts a partition's one goroutine and publishes its status to readers"},
	{"concurrency", "internal/replica/metadata.go", "starts raft0's one goroutine and publishes its view to readers"},
	{"concurrency", "internal/replica/housekeeping.go", "chores come from the node's goroutines, and wait for the loop"},
	{"order", "internal/replica/replica.go:Partition.announce", "each watcher is woken without waiting, and none hears of another"},

	{"errors", "internal/testbroker/testbroker.go:Broker.AwaitReady", "the last answer and the exit status may be nil, and are for a person"},

	{"size", "internal/history/history_test.go:TestPlantedFaults", "a table of faults, one after the other"},
	{"tests", "internal/replica/partition_test.go:waitFor", "polls a condition that has no channel; the bound only ends a failure"},
	{"tests", "internal/replica/stack_test.go:stack.settle", "the same: what is on its way is asked in the loop"},
	{"tests", "internal/peer/disturbed_test.go:breakConnections", "called in bubbles only: the time is virtual"},
	{"tests", "internal/node/fulldisk_test.go:sendUntil", "called in bubbles only: the time is virtual"},
	{"tests", "internal/node/space_test.go:pass", "called in bubbles only: the time is virtual"},
	{"tests", "internal/server/janitor_test.go:TestIdleConnectionsStayWhenTheyMay", "in a bubble that served makes: the time is virtual"},
	{"tests", "internal/server/janitor_test.go:TestSlowRequests", "the same"},
}
