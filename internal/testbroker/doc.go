// Package testbroker builds the real binary and runs it as a child process: for the end-to-end tests and the
// campaigns, which stop, kill and start it again. It is test support; the broker does not import it.
//
//  1. Nothing waits a fixed time: readiness is asked for until it is there, the process has ended or the caller's
//     context ends.
//  2. Start never returns a process that nobody waits for: Done is closed when it has ended, whatever ended it.
//  3. What the process prints is kept up to a bound, for the text of a failure; of a cluster's nodes, all of it in files.
//
// Cluster runs several nodes. Links, proxies in front of their peer listeners, cut and slow what they say to each other:
// nothing in the binary knows of it.
package testbroker
