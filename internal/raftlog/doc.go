// Package raftlog makes a partition's segment log the Raft log of its group.
//
// It joins three things on disk: the segments (package seglog), the node's state file with terms, votes, durable marks and
// unfinished work of all groups, and the base snapshots, which hold the state just before a segment's first entry. Log
// implements raft.Storage over them; Flushers writes what Raft wants stored and delivers Raft's answers afterwards.
//
//	00000000000000000002.base  state behind entry 1, with which the group was born
//	00000000000000000002.log   entries 2 to 99
//	00000000000000000100.base  state behind entry 99, made in the background when 99 was applied
//	00000000000000000100.log   entries 100 to now
//
// Invariants:
//
//  1. No answer leaves before what it speaks of is on disk: a flush writes the vote (and syncs the state file), then
//     the entries, then syncs the segment, then delivers the responses of the messages it carried out.
//  2. One group's storage messages are carried out in the order in which Raft made them, whatever the number of
//     flushers.
//  3. The durable mark of a group is a lower bound of what is on disk: it is written after the sync, never before. Before
//     entries go, the mark that names them is taken back: the one that waits to be written is forgotten, and the intent
//     lowers the one in the state file.
//  4. Between BeginReady and EndReady no payload is read: Entries answers from a ring that holds the header of each
//     batch, and each zero-width entry whole, for every index in (applied, last].
//  5. The last term in the log is not above the term recorded in the state file. A log that says otherwise means that
//     a vote was lost, and the group is not opened.
//  6. A full disk breaks nothing (ErrFull): what was to be written is kept, and written at the same place when there is
//     room, before anything else of the group or of the state file. Nothing of it is answered before.
//  7. A base snapshot is durable before a segment that it makes superfluous goes, and base snapshots that are damaged or
//     missing cost time, not data: the next older one and the entries behind it give the same state.
//  8. Whatever takes more than one step on disk and could be seen half-done (entries that overwrite, a snapshot that takes
//     the place of the log, DeleteGroup, GiveUp) is recorded in the state file, synced, before the first step, and carried out
//     from its beginning at the next start when a crash has cut it short. Nothing else of the group is written before it
//     is recorded as done.
//  9. Entries that are applied, recorded as committed or covered by a base snapshot are never overwritten.
//  10. A snapshot is on disk, under a name that means nothing, before the intent to install it is; nothing of the old log goes
//     before that.
//
// The path of data: the partition's loop takes a MsgStorageAppend out of Ready, calls Log.Staged (which fills the
// ring) and Writer.Submit; a flusher writes and syncs; the responses, and the segments that were begun, come to the
// writer's Sink and from there into the loop's mailbox; the loop applies what Raft then commits from the ring and calls
// Log.Applied. A follower's entries may begin within the log: the writer cuts it off there first, and the ring is cut by
// Staged. With a snapshot the writer has the log begin anew, and the loop goes on from it (Log.Restored). When it has applied the last entry before a new segment, it has the state written in the background
// (Log.AddBase); when the log start has passed a segment, that goes, also in the background (Log.DropBefore).
//
// At a start OpenState reads the state file, then OpenGroup, for each group, finishes what was begun, finds the newest
// base snapshot that is good, has the segments from there on read and checked, and fills the ring with their entries. Of
// what is damaged Inspect tells, and GiveUp leaves it behind.
package raftlog
