package sim

import (
	"slices"
	"time"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/replica"
)

// conn is a client's connection to a process: requests arrive in order, and are answered in order.
type conn struct {
	producer *producer
	process  *process // nil: nobody listens
	attempts []*attempt
	there    time.Duration // when the newest request arrives
	back     time.Duration // when the newest answer does
	closed   bool
}

// attempt is one transmission of a batch.
type attempt struct {
	producer *producer
	conn     *conn
	send     *send
	sure     bool // when it was sent all earlier batches were answered
	bytes    []byte
	taken    bool
	done     bool // ack is the answer
	ack      replica.Ack
}

// dial connects to a node: mostly to the one that leads.
func (c *producer) dial() *conn {
	w := c.world
	to := w.node(c.spec.nodes[w.rng.IntN(len(c.spec.nodes))])
	if m := w.leader(c.spec); m != nil && !w.chance(200) {
		to = m.process.node
	}
	made := &conn{producer: c, process: to.process}
	if to.process != nil {
		old := slices.DeleteFunc(to.process.conns, func(c *conn) bool { return c.closed })
		to.process.conns = append(old, made)
	}
	return made
}

// busy reports whether something is on its way.
func (c *conn) busy() bool { return len(c.attempts) > 0 }

func (c *conn) send(a *attempt) {
	w := c.producer.world
	a.conn = c
	c.attempts = append(c.attempts, a)
	c.there = max(c.there, w.now+w.between(20*time.Microsecond, w.swarm.Latency))
	p := c.process
	if p == nil || p.ended {
		w.after(c.there-w.now, c.broken)
		return
	}
	w.after(c.there-w.now, func() { p.laterFrom(c, 0, func() { p.submit(a) }) })
	w.after(w.swarm.RequestTimeout, func() {
		if !c.closed && !a.done {
			c.broken()
		}
	})
}

// submit hands a batch to the partition.
func (p *process) submit(a *attempt) {
	w := p.node.world
	m := p.replicas[a.producer.spec.group]
	a.bytes = append([]byte(nil), a.send.bytes...)
	header, fault := batch.CheckProduce(a.bytes)
	if fault != batch.FaultNone {
		panic("sim: a client's batch is bad: " + fault.String())
	}
	w.trace.add(w.now, "g%d producer %d batch %d at %d", m.spec.group, a.send.number, a.send.place, p.node.id)
	p.waiting++
	err := m.partition.Submit(&replica.Submission{Batch: a.bytes, Header: header, Acks: a.producer.acks, Done: a})
	if err != nil {
		w.fail("node %d group %d: submit: %v", p.node.id, m.spec.group, err)
	}
	m.wake()
}

// Taken implements replica.Done. The connection's buffer is overwritten by the next request.
func (a *attempt) Taken() {
	if a.taken {
		a.producer.world.fail("a batch is taken twice")
	}
	a.taken = true
	for i := range a.bytes {
		a.bytes[i] = 0xee
	}
}

// Done implements replica.Done.
func (a *attempt) Done(ack replica.Ack) {
	c, w := a.conn, a.producer.world
	if !a.taken || a.done {
		w.fail("an answer before the batch is taken, or a second one")
	}
	a.done, a.ack = true, ack
	if ack.Err == nil {
		w.checkStored(a)
	}
	c.process.waiting--
	c.deliver()
}

// checkStored judges an answer when it is given: the batch must be in the leader's log, and with acks=all in those of as many
// replicas as min.insync.replicas says. Of a node that is down it is not known.
func (w *world) checkStored(a *attempt) {
	p, spec := a.conn.process, a.producer.spec
	have := 0
	for _, id := range spec.nodes {
		other := w.node(id).process
		if other == nil || other.replicas[spec.group].log.Segments().NextOffset() > a.ack.Base {
			have++
		} else if other == p {
			w.fail("node %d group %d: offset %d is answered, and not in the log", id, spec.group, a.ack.Base)
		}
	}
	want := max(w.swarm.MinInSync, len(spec.nodes)/2+1)
	if a.producer.acks == -1 && have < want {
		w.fail("node %d group %d: offset %d is answered, and in %d logs, want %d", p.node.id, spec.group, a.ack.Base, have, want)
	}
}

// deliver sends the answers that are due, in order.
func (c *conn) deliver() {
	w := c.producer.world
	for len(c.attempts) > 0 && c.attempts[0].done && !c.closed {
		a := c.attempts[0]
		c.attempts = c.attempts[1:]
		c.back = max(c.back, w.now+w.between(20*time.Microsecond, w.swarm.Latency))
		w.after(c.back-w.now, func() { a.arrive() })
	}
}

// arrive brings an answer to the client. One of a connection that was closed meanwhile is lost.
func (a *attempt) arrive() {
	if a.conn.closed {
		a.producer.unknown(a.send)
		return
	}
	a.producer.answered(a, a.ack)
}

// broken ends the connection: it was closed by the other side, or nobody answers.
func (c *conn) broken() {
	if !c.closed {
		c.close()
	}
}

// close ends the connection. What became of the requests on it is unknown.
func (c *conn) close() {
	if c.closed {
		return
	}
	c.closed = true
	lost := c.attempts
	c.attempts = nil
	for _, a := range lost {
		if c.process == nil {
			c.producer.failed(a.send)
		} else {
			c.producer.unknown(a.send)
		}
	}
}
