package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ErrInterrupted says that a command was stopped before it had done what it was asked for. What it did until then is
// whole: every line that was sent is acknowledged, every record that was read is printed.
var ErrInterrupted = errors.New("interrupted")

// attendEvery is how often a person who looks on sees new figures, and a run looks whether answers still come.
const attendEvery = 250 * time.Millisecond

// AnyPartition stands for all partitions: the client chooses one, or reads them all.
const AnyPartition = -1

// ProduceOptions says what to produce.
type ProduceOptions struct {
	Brokers    []string
	Topic      string
	Partition  int32  // or AnyPartition
	Separator  []byte // between key and value; nil: lines have no key
	Properties *ProducerProperties
	Verbose    bool // print where each record went
}

// Produce sends each line of env.In as a record. When stop ends it reads no more and waits for what is on its way; when
// giveUp ends it no longer waits. The error says what was not delivered; it is ErrInterrupted when stop ended it and
// everything that was read is delivered.
func Produce(stop, giveUp context.Context, env Env, o ProduceOptions) error {
	n := &notices{w: env.Err}
	for _, note := range o.Properties.Notes {
		n.say("%s", note)
	}
	options := o.Properties.options(env.Random)
	if o.Partition != AnyPartition {
		options = append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	c, err := connect(stop, o.Brokers, n, options...)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.checkTopic(stop, o.Topic, o.Partition); err != nil {
		return err
	}
	if env.InTerminal {
		n.say("each line is a record; Ctrl-D ends")
	}
	p := &production{o: o, client: c.client, notices: n, begun: env.Now(), now: env.Now}
	p.stop, p.cancel = context.WithCancel(stop)
	defer p.cancel()
	p.giveUp, p.abandon = context.WithCancelCause(giveUp)
	defer p.abandon(nil)
	defer context.AfterFunc(stop, p.sayWaiting)()
	if o.Verbose {
		p.out = &places{w: bufio.NewWriter(env.Out), noOffsets: o.Properties.acks == acksNone}
	}
	p.showProgress = env.ErrTerminal && !env.InTerminal && !(o.Verbose && env.OutTerminal)
	defer p.attend()()
	return p.run(env.In)
}

// production is one run of Produce.
type production struct {
	o       ProduceOptions
	client  *kgo.Client
	stop    context.Context // no more is read after it
	cancel  context.CancelFunc
	giveUp  context.Context // no more is waited for after it
	abandon context.CancelCauseFunc
	notices *notices
	now     func() time.Time
	begun   time.Time

	showProgress bool

	tally  tally
	line   int64       // the last line that was sent, from 1 on
	out    *places     // for Verbose, else nil
	failed atomic.Bool // a record was not acknowledged, or where it went could not be printed
}

// errDelivery ends the reading after a failure, for which the summary has the reason.
var errDelivery = errors.New("a record was not delivered")

func (p *production) run(in io.Reader) error {
	readErr := p.read(in)
	if p.client.Flush(p.giveUp) != nil {
		// The client fails what it holds, now that the context of each record has ended: wait for it to say so.
		short, cancel := context.WithTimeout(context.WithoutCancel(p.giveUp), time.Second)
		defer cancel()
		_ = p.client.Flush(short)
	}
	p.notices.clear()
	err := p.summary()
	if err != nil && errors.Is(readErr, ErrInterrupted) {
		return err // which is more than an interruption
	}
	return errors.Join(err, readErr)
}

// sayWaiting tells the person who stopped the run why it does not end at once.
func (p *production) sayWaiting() {
	if waiting := p.tally.waiting(); waiting > 0 {
		p.notices.say("waiting for the answers to %s; Ctrl-C gives up", records(waiting))
	}
}

// read sends the lines of in.
func (p *production) read(in io.Reader) error {
	lines := &lineSplitter{line: p.send, tooLong: p.tooLong, max: p.o.Properties.recordBytesMax()}
	source := newSource(in)
	defer source.close()
	err := source.each(p.stop, lines.write)
	if err == nil {
		err = lines.end()
	}
	switch {
	case err == nil || p.failed.Load():
		return nil // after a failure the summary tells
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%w after line %d", ErrInterrupted, p.line)
	case errors.Is(err, errLine):
		return err
	default:
		return fmt.Errorf("read line %d: %w", p.line+1, err)
	}
}

// errLine marks an error in the input.
var errLine = errors.New("nothing from this line on was sent")

func (p *production) lineError(line int64, format string, args ...any) error {
	return fmt.Errorf("line %d: %s; %w", line, fmt.Sprintf(format, args...), errLine)
}

// tooLong is the error of a line that is longer than any record, which is not read to its end.
func (p *production) tooLong() error {
	return p.lineError(p.line+1, "longer than the %d bytes of the largest record (%s)", p.o.Properties.recordBytesMax(), p.limit())
}

// limit names what bounds a record.
func (p *production) limit() string {
	switch bytes := p.o.Properties.recordBytesMax(); {
	case bytes == p.o.Properties.bufferBytes:
		return "buffer.memory"
	case bytes == int(p.o.Properties.requestBytes):
		return "max.request.size"
	case bytes == maxMessageBytes:
		return "the topic's max.message.bytes"
	default:
		return "batch.size"
	}
}

// send hands one line to the client. It blocks while the client holds as much as it may.
func (p *production) send(line []byte) error {
	if p.failed.Load() {
		return errDelivery
	}
	key, value, err := p.split(bytes.Clone(line))
	if err != nil {
		return err
	}
	if size := batchBytes(key, value); size > p.o.Properties.recordBytesMax() {
		return p.lineError(p.line+1, "%d bytes are too many for a record: a batch of it alone would have %d, and may have %d (%s)",
			len(line), size, p.o.Properties.recordBytesMax(), p.limit())
	}
	p.line++
	number, size := p.line, len(key)+len(value)
	p.tally.send(size)
	record := &kgo.Record{Topic: p.o.Topic, Partition: max(p.o.Partition, 0), Key: key, Value: value}
	p.client.Produce(p.giveUp, record, func(r *kgo.Record, err error) { p.done(number, size, r, err) })
	return nil
}

// split separates key and value. Neither is nil where there is one: empty is not the same as none.
func (p *production) split(line []byte) (key, value []byte, err error) {
	if p.o.Separator == nil {
		return nil, line, nil
	}
	key, value, ok := bytes.Cut(line, p.o.Separator)
	if !ok {
		return nil, nil, p.lineError(p.line+1, "no %q ends its key", p.o.Separator)
	}
	return key[:len(key):len(key)], value, nil
}

// batchBytes is the size of a record batch of one record with a 4-byte length before it, as the client counts it.
func batchBytes(key, value []byte) int {
	const header, fixed = 4 + 61, 1 + 1 + 1 + 1 // attributes, time delta, offset delta, number of headers
	bytes := fixed + kbin.VarintLen(int32(len(key))) + len(key) + kbin.VarintLen(int32(len(value))) + len(value)
	return header + kbin.VarintLen(int32(bytes)) + bytes
}

// done takes the answer to a record. The client calls it one at a time.
func (p *production) done(line int64, size int, r *kgo.Record, err error) {
	if err != nil {
		p.tally.fail(line, err, !certainlyNotStored(err))
		p.failed.Store(true)
		p.cancel()
		return
	}
	last := p.tally.ack(size)
	if p.out != nil && p.out.print(r, last) != nil {
		p.failed.Store(true)
		p.cancel()
	}
}

// certainlyNotStored tells whether the broker, or the client before it sent anything, refused a record for good.
func certainlyNotStored(err error) bool {
	refusal, ok := errors.AsType[*kerr.Error](err)
	return ok && !refusal.Retriable
}

// summary says what became of the records, and returns an error when not all are well.
func (p *production) summary() error {
	var outErr error
	if p.out != nil {
		if err := p.out.flush(); err != nil {
			outErr = fmt.Errorf("print where the records went: %w", err)
		}
	}
	took := p.now().Sub(p.begun)
	p.tally.mu.Lock()
	defer p.tally.mu.Unlock()
	t := &p.tally
	outcome := "acknowledged"
	if p.o.Properties.acks == acksNone {
		outcome = "sent, with acks=0 not acknowledged"
	}
	p.notices.say("%s: %s %s in %.1f s: %s", p.o.Topic, records(t.acked.records), outcome, took.Seconds(), rates(t.acked, took))
	missing := t.sent.records - t.acked.records
	if missing == 0 {
		return outErr
	}
	err := fmt.Errorf("%s of %s not acknowledged", grouped(missing), records(t.sent.records))
	if t.firstErr != nil {
		err = fmt.Errorf("%w; the first is line %d: %w", err, t.first, p.explain(t.firstErr))
	}
	if t.unknown > 0 || t.waitingLocked() > 0 {
		err = fmt.Errorf("%w\nthey may be stored all the same: to send them again can store them twice, because another run is another producer", err)
	}
	return errors.Join(err, outErr)
}

// explain puts the client's words into those of the command.
func (p *production) explain(err error) error {
	network, _ := errors.AsType[*net.OpError](err)
	switch {
	case network != nil:
		return fmt.Errorf("the broker cannot be reached (%s)", networkCause(network))
	case errors.Is(err, kgo.ErrRecordTimeout), errors.Is(context.Cause(p.giveUp), kgo.ErrRecordTimeout):
		return fmt.Errorf("no acknowledgement within delivery.timeout.ms=%d", p.o.Properties.deliveryTimeout.Milliseconds())
	case errors.Is(err, kgo.ErrRecordRetries):
		return fmt.Errorf("no acknowledgement after retries=%d", p.o.Properties.retries)
	case errors.Is(err, context.Canceled):
		return errors.New("given up")
	default:
		return err
	}
}

// attend looks after the run until the function that it returns is called: it shows how far it is, and gives up when no
// answer comes for delivery.timeout.ms. The client keeps that time as well, but looks only between two tries, which can
// take several times as long.
func (p *production) attend() (end func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(attendEvery)
		defer ticker.Stop()
		answered, since := int64(0), p.now()
		for {
			select {
			case <-quit:
				return
			case <-ticker.C:
			}
			now := p.now()
			acked := p.tally.answered()
			// While stdout takes no more, the answers that are there cannot be counted.
			if acked != answered || p.tally.waiting() == 0 || p.out != nil && p.out.busy.Load() {
				answered, since = acked, now
			} else if now.Sub(since) >= p.o.Properties.deliveryTimeout {
				p.abandon(kgo.ErrRecordTimeout)
			}
			if p.showProgress {
				p.notices.show(p.tally.progress(now.Sub(p.begun)))
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
		p.notices.clear()
	}
}

// places prints where records went, for the client's goroutine that calls done. In a run that was given up that one may
// be stuck in it when the run comes to its end, hence the lock.
type places struct {
	noOffsets bool
	busy      atomic.Bool // printing

	mu sync.Mutex
	w  *bufio.Writer // keeps the first error
}

// print writes one line; through, and not only into the buffer, when it is the last one for now.
func (p *places) print(r *kgo.Record, last bool) error {
	p.busy.Store(true)
	defer p.busy.Store(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	text := append(p.w.AvailableBuffer(), r.Topic...)
	text = strconv.AppendInt(append(text, '/'), int64(r.Partition), 10)
	text = append(text, " @ "...)
	if p.noOffsets {
		text = append(text, '?')
	} else {
		text = strconv.AppendInt(text, r.Offset, 10)
	}
	_, err := p.w.Write(append(text, '\n'))
	if err == nil && last {
		err = p.w.Flush()
	}
	return err
}

// flush writes what is in the buffer. It does not wait for a print that is stuck.
func (p *places) flush() error {
	if !p.mu.TryLock() {
		return errors.New("nobody reads them")
	}
	defer p.mu.Unlock()
	return p.w.Flush()
}
