// Package console is the HTTP side of a node: whether it lives and whether it is ready.
//
// Invariants:
//
//  1. What it says is read from the node when it is asked; it keeps no state of its own.
//  2. Connections, the time that each may take and the bytes that a request makes it hold are bounded.
//
// A request: bounded.Accept -> net/http -> Handler -> a function of the node.
package console

import (
	"io"
	"net/http"
)

// Handler answers GET /livez with 200 as long as the process serves HTTP, and GET /readyz with 200 while ready reports
// true, else with 503.
func Handler(ready func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, true)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, ready())
	})
	return mux
}

func answer(w http.ResponseWriter, ok bool) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "not ready\n")
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}
