package testbroker

import "testing"

func TestMemory(t *testing.T) {
	b := start(t, `exec sleep 60`)
	if now, peak, err := b.Memory(); err != nil || now <= 0 || peak < now {
		t.Errorf("memory %d, peak %d, %v", now, peak, err)
	}
}
