package console

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestHealth(t *testing.T) {
	ready := false
	h := Handler(func() bool { return ready })
	status := func(method, path string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return w.Code
	}
	for _, step := range []struct {
		ready        bool
		method, path string
		want         int
	}{
		{false, "GET", "/livez", http.StatusOK},
		{false, "GET", "/readyz", http.StatusServiceUnavailable},
		{true, "GET", "/readyz", http.StatusOK},
		{true, "HEAD", "/readyz", http.StatusOK},
		{true, "POST", "/readyz", http.StatusMethodNotAllowed},
		{true, "GET", "/else", http.StatusNotFound},
	} {
		ready = step.ready
		if got := status(step.method, step.path); got != step.want {
			t.Errorf("%s %s with ready=%v: %d, want %d", step.method, step.path, step.ready, got, step.want)
		}
	}
}
