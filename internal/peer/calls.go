package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"sync"
)

const (
	// callsMax is how many calls of one node are answered at a time; further ones are refused.
	callsMax = 16
	// askedMax is how many calls may wait for the reply of one node.
	askedMax = 1024
	// errorTextMax bounds the text of a RemoteError, in bytes.
	errorTextMax = 4 * kib
)

// reply is how a call ended.
type reply struct {
	body []byte
	err  error
}

// callsOut are the calls that wait for a reply on a dialed control connection.
type callsOut struct {
	mu      sync.Mutex
	waiting map[uint64]chan reply // nil: the connection has ended
	last    uint64
}

// add makes room for the reply of a call.
func (o *callsOut) add() (uint64, chan reply, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.waiting == nil:
		return 0, nil, ErrNotConnected
	case len(o.waiting) >= askedMax:
		return 0, nil, ErrBusy
	}
	o.last++
	answer := make(chan reply, 1)
	o.waiting[o.last] = answer
	return o.last, answer, nil
}

// end ends a call, if it has not ended yet.
func (o *callsOut) end(id uint64, r reply) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if answer := o.waiting[id]; answer != nil {
		delete(o.waiting, id)
		answer <- r
	}
}

func (o *callsOut) failAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(o.waiting)) {
		o.waiting[id] <- reply{err: ErrNotConnected}
	}
	o.waiting = nil
}

// call sends a call and waits for its reply.
func (c *connection) call(ctx context.Context, method uint8, body []byte) ([]byte, error) {
	id, answer, err := c.asked.add()
	if err != nil {
		return nil, err
	}
	head := append(binary.BigEndian.AppendUint64(nil, id), method)
	switch c.queue.push(item{kind: kindCall, head: head, body: body, size: itemBytes + len(body)}) {
	case full:
		c.asked.end(id, reply{err: ErrBusy})
	case gone:
		c.asked.end(id, reply{err: ErrNotConnected})
	}
	select {
	case r := <-answer:
		return r.body, r.err
	case <-ctx.Done():
		c.asked.end(id, reply{})
		c.queue.push(item{kind: kindCancel, head: head[:8:8], size: itemBytes}) // when it does not fit, the call runs to its end
		return nil, context.Cause(ctx)
	}
}

func (c *connection) receiveReply(head, body []byte) error {
	f := fields{src: head}
	id, failed := f.u64(), f.u8()
	if !f.done() {
		return errMessage
	}
	r := reply{body: body}
	if failed != 0 {
		r = reply{err: &RemoteError{string(body[:min(len(body), errorTextMax)])}}
	}
	c.asked.end(id, r)
	return nil
}

// callsIn are the calls that are being answered.
type callsIn struct {
	mu      sync.Mutex
	running map[uint64]context.CancelFunc
}

// add returns false when a call with this id is being answered already.
func (i *callsIn) add(id uint64, cancel context.CancelFunc) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running[id] != nil {
		return false
	}
	i.running[id] = cancel
	return true
}

func (i *callsIn) end(id uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if cancel := i.running[id]; cancel != nil {
		delete(i.running, id)
		cancel()
	}
}

func (i *callsIn) cancelAll() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(i.running)) {
		i.running[id]()
	}
}

var errCallTwice = errors.New("two calls with one number")

// receiveCall has a call answered on a goroutine of its own. Its slot is free again when the reply is written.
func (c *connection) receiveCall(head, body []byte) error {
	f := fields{src: head}
	id, method := f.u64(), f.u8()
	if !f.done() {
		return errMessage
	}
	select {
	case c.p.slots <- struct{}{}:
	default:
		c.reply(id, nil, ErrBusy, false)
		return nil
	}
	t := c.p.t
	ctx, cancel := context.WithCancel(t.ctx)
	if !c.calls.add(id, cancel) {
		cancel()
		<-c.p.slots
		return errCallTwice
	}
	t.running.Go(func() {
		answer, err := t.config.Handler.Call(ctx, c.p.id, method, body)
		c.calls.end(id)
		c.reply(id, answer, err, true)
	})
	return nil
}

func (c *connection) receiveCancel(head []byte) error {
	f := fields{src: head}
	id := f.u64()
	if !f.done() {
		return errMessage
	}
	c.calls.end(id)
	return nil
}

func (c *connection) reply(id uint64, body []byte, err error, slot bool) {
	if err == nil && len(body) > callMax {
		err = ErrTooLarge
	}
	failed := byte(0)
	if err != nil {
		failed, body = 1, []byte(err.Error())
		body = body[:min(len(body), errorTextMax)]
	}
	i := item{kind: kindReply, head: append(binary.BigEndian.AppendUint64(nil, id), failed), body: body, size: itemBytes + len(body), slot: slot}
	if c.queue.push(i) != taken {
		c.forget(i)
	}
}
