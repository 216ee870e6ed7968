// Package e2e tests the binary as its users meet it: a process, a data directory, Kafka's protocol over TCP, kcat and
// franz-go. Nothing of the broker is linked in; the tests know only what the documents promise.
//
// The binary is built once for all tests. Most of them share one running broker and create topics of their own;
// those that stop it, break its data or measure it start another one. kcat must be installed.
package e2e
