package peer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
)

func TestCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(true)
		a, b := w.pair(t)
		ended := make(chan error, 100)
		b.call = func(ctx context.Context, from NodeID, method uint8, body []byte) ([]byte, error) {
			switch method {
			case 1:
				return append([]byte{byte(from)}, body...), nil
			case 2:
				return nil, errors.New("it does not work")
			case 3:
				return make([]byte, callMax+1), nil
			}
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		}
		call := func(method uint8, body []byte) ([]byte, error) { return a.transport.Call(t.Context(), 2, method, body) }
		if got, err := call(1, []byte("hello")); err != nil || string(got) != "\x01hello" {
			t.Errorf("a call has returned %q, %v", got, err)
		}
		if got, err := call(1, make([]byte, callMax-1)); err != nil || len(got) != callMax {
			t.Errorf("a large call has returned %d bytes, %v", len(got), err)
		}
		remote := (*RemoteError)(nil)
		if _, err := call(2, nil); !errors.As(err, &remote) || remote.Text != "it does not work" {
			t.Errorf("a call that fails: %v", err)
		}
		if _, err := call(3, nil); !errors.As(err, &remote) || remote.Text != ErrTooLarge.Error() {
			t.Errorf("a reply that is too large: %v", err)
		}
		if _, err := call(1, make([]byte, callMax+1)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a call that is too large: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.transport.Call(ctx, 2, 9, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call that takes too long: %v", err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("nobody waits any more, and the handler was told %v", err)
		}
		synctest.Wait() // the slot of that call is free again
		results := make(chan error, callsMax+1)
		for range callsMax {
			go func() { _, err := call(9, nil); results <- err }()
		}
		synctest.Wait()
		if _, err := call(1, nil); !errors.As(err, &remote) || remote.Text != ErrBusy.Error() {
			t.Errorf("one call too many: %v", err)
		}
		w.kill(2)
		for range callsMax {
			if err := <-results; !errors.Is(err, ErrNotConnected) {
				t.Errorf("the node is gone, and the call returns %v", err)
			}
		}
		if _, err := call(1, nil); !errors.Is(err, ErrNotConnected) {
			t.Errorf("the node is gone, and a further call returns %v", err)
		}
		if _, err := a.transport.Call(t.Context(), 5, 1, nil); !errors.Is(err, ErrNotConnected) {
			t.Errorf("an unknown node: %v", err)
		}
		closeAll(a, b)
	})
}

// A queue takes what fits, a large thing while half of it is free, and gives it back in order and in bounded parts.
func TestQueueBounds(t *testing.T) {
	q := newQueue(10 * kib)
	if v := q.push(item{size: 20 * kib}); v != taken {
		t.Errorf("one large thing: %d", v)
	}
	if v := q.push(item{size: 1}); v != full {
		t.Errorf("beyond the bound: %d", v)
	}
	if got, _, _ := q.take(nil, 0); len(got) != 1 || q.bytes != 0 {
		t.Errorf("%d things, %d bytes are left", len(got), q.bytes)
	}
	for _, step := range []struct {
		size int
		want verdict
	}{{5 * kib, taken}, {20 * kib, taken}, {20 * kib, full}, {1, full}} {
		if v := q.push(item{size: step.size}); v != step.want {
			t.Errorf("%d bytes behind %d: %d", step.size, q.bytes, v)
		}
	}
	q = newQueue(10 * mib)
	for q.push(item{size: 300 * kib}) == taken {
	}
	for q.bytes > 0 {
		got, _, _ := q.take(nil, 0)
		if len(got) == 0 || len(got) > 3 {
			t.Fatalf("%d things of 300 KiB at once", len(got))
		}
	}
	large := &pb.Message{Snapshot: &pb.Snapshot{Data: make([]byte, snapshotsWaiting/4)}}
	for i := range 6 {
		if v := q.pushSnapshot(1, large); (v == taken) != (i < snapshotsOpen) {
			t.Errorf("snapshot %d: %d", i, v)
		}
	}
	if _, left := q.close(); len(left) != snapshotsOpen {
		t.Errorf("%d snapshots were left", len(left))
	}
	if q.push(item{}) != gone || q.pushSnapshot(1, large) != gone {
		t.Error("a closed queue takes things")
	}
}
