// Package founding is how several nodes found a cluster, once and for ever, and how each knows afterwards who it is.
//
// Identity is the file that keeps it (identity.go); Found and Answer are the two sides of the questions that founders ask
// each other (founding.go). Questions and answers are bytes: who carries them is the caller's affair.
//
// Each node is started with the same list of founders. One whose data directory is empty draws a disk id and makes it
// durable before it says anything: so it is blank. The first founder asks all others, and when in one round each of them has
// answered that it is blank, with the same list, it draws the cluster's id and makes it durable, together with the disk ids
// of all: the cluster is founded. The others ask everybody until one knows the cluster, and take it over, durably, if the
// disk in their place is their own.
//
// There is never a second cluster. Only the first founder founds, and tells of a cluster only once it is durable; so a
// second one could only come from a first founder whose directory was emptied since, F', with another disk than F. It founds
// only after everybody has told it that he is blank. Let N be the first to take F's cluster over after it has told F' that
// it is blank. If it asked before it told F', it does not take over: it has meanwhile told another first founder than
// that of the answer that it is blank, and asks again. If it asked after that, it was not answered by F, which was gone
// before F' came; and who else knew the cluster has taken it over before N, so, N being the first, before F' asked him: then
// F' heard of it, and has not founded. An id that F made durable and told nobody dies with its disk, and so does a cluster of which the
// directories of all that knew it were emptied.
//
// A crash loses nothing of this: what was told is durable, and an answer that was under way dies with the one who waits
// for it.
//
// Invariants:
//
//  1. What a founder has told of itself is durable.
//  2. A node is in the cluster only with the disk that it had when the cluster was founded.
//  3. There is one cluster: all founders that know one know the same.
//
// The path of an id: the first founder draws it, makes it durable, and tells it to whoever asks; each of the others takes it over,
// durably, and tells it on.
package founding
