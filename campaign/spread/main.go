// Command spread measures what it costs to keep many partitions on disk: small batches, each of one record, one after
// the other to each of 1,000 partitions, so that hardly any two of them can share a write or a sync.
//
//	go run ./campaign/spread
//
// It prints batches a second and processor time a record, of the broker's process alone, and beside it the same of the bare
// technique, measured in the same run: as many appends of as many bytes to as many files, each followed by an fdatasync,
// from one thread and from sixteen. A broker that is faster than one thread has its fdatasyncs run in parallel. The figures
// mean something only on a machine that does nothing else.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/oncemq/oncemq/campaign/internal/frame"
	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
	"github.com/oncemq/oncemq/internal/vfs"
)

// config is what the flags say.
type config struct {
	partitions  int
	batches     int
	payload     int
	connections int
	inFlight    int
	rate        int
	dir         string
	binary      string
}

func parseFlags(args []string) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("spread", flag.ContinueOnError)
	flags.IntVar(&cfg.partitions, "partitions", 1000, "partitions, at least as many as connections")
	flags.IntVar(&cfg.batches, "batches", 50_000, "batches of one record, over all partitions, at least 1")
	flags.IntVar(&cfg.payload, "payload", 100, "bytes of a record's value")
	flags.IntVar(&cfg.connections, "connections", 16, "connections, each with partitions of its own, at least 1")
	flags.IntVar(&cfg.inFlight, "in-flight", 32, "batches that a connection has on their way, 1 to 1000")
	flags.IntVar(&cfg.rate, "rate", 0, "batches a second (default: as fast as they are answered)")
	flags.StringVar(&cfg.dir, "dir", "", "write into a new directory in this one (default: that for temporary files)")
	flags.StringVar(&cfg.binary, "binary", "", "run this binary (default: build ./cmd/oncemq)")
	if err := frame.Parse(flags, args); err != nil {
		return cfg, err
	}
	if cfg.connections < 1 || cfg.partitions < cfg.connections || cfg.batches < 1 || cfg.payload < 0 || cfg.rate < 0 {
		return cfg, errors.New("--connections and --batches must be at least 1, --partitions at least --connections, --payload and --rate at least 0")
	}
	if cfg.inFlight < 1 || cfg.inFlight > 1000 {
		return cfg, fmt.Errorf("--in-flight %d is outside 1 to 1000", cfg.inFlight)
	}
	return cfg, nil
}

func main() { frame.Main("spread", parseFlags, run) }

// cost is what a number of batches took.
type cost struct {
	wall, cpu time.Duration
}

func run(ctx context.Context, cfg config, out io.Writer) (err error) {
	dir, err := os.MkdirTemp(cfg.dir, "oncemq-spread-")
	if err != nil {
		return fmt.Errorf("make a working directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if cfg.binary, err = frame.Binary(ctx, cfg.binary, dir); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d batches of one record of %d bytes over %d partitions\n", cfg.batches, cfg.payload, cfg.partitions)
	ours, err := measure(ctx, cfg, filepath.Join(dir, "data"))
	if err != nil {
		return err
	}
	report := func(name string, c cost) {
		fmt.Fprintf(out, "%-42s %7.0f a second, %6.1f µs of processor time each", name,
			float64(cfg.batches)/c.wall.Seconds(), float64(c.cpu.Microseconds())/float64(cfg.batches))
	}
	report(fmt.Sprintf("broker, %d connections, %d in flight each:", cfg.connections, cfg.inFlight), ours)
	fmt.Fprintln(out)
	for _, threads := range []int{1, 16} {
		bare, err := bareAppends(ctx, cfg, filepath.Join(dir, fmt.Sprint("bare-", threads)), threads)
		if err != nil {
			return err
		}
		report(fmt.Sprintf("append and fdatasync, threads %d:", threads), bare)
		fmt.Fprintf(out, "; the broker: %.2f of the speed, %.2f of the processor time\n",
			bare.wall.Seconds()/ours.wall.Seconds(), ours.cpu.Seconds()/bare.cpu.Seconds())
	}
	return nil
}

// measure loads a broker. Its processor time is that of a process that starts, is loaded and stops, less that of one that
// starts on the same directory and stops.
func measure(ctx context.Context, cfg config, data string) (cost, error) {
	var topic rawkafka.Topic
	_, err := session(ctx, cfg, data, func(b *testbroker.Broker) (err error) {
		c, err := rawkafka.Dial(b.Addr(), rawkafka.Options{Timeout: time.Minute})
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		topic, err = c.CreateTopic("spread", int32(cfg.partitions))
		return err
	})
	if err != nil {
		return cost{}, err
	}
	idle, err := session(ctx, cfg, data, func(*testbroker.Broker) error { return nil })
	if err != nil {
		return cost{}, err
	}
	var took time.Duration
	loaded, err := session(ctx, cfg, data, func(b *testbroker.Broker) (err error) {
		took, err = load(ctx, cfg, b.Addr(), topic)
		return err
	})
	return cost{wall: took, cpu: loaded - idle}, err
}

// session starts a broker, works with it and stops it. It returns the processor time of the process.
func session(ctx context.Context, cfg config, data string, work func(*testbroker.Broker) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	b, err := testbroker.Start(testbroker.Config{Binary: cfg.binary, Data: data})
	if err != nil {
		return 0, err
	}
	if _, err = b.AwaitReady(ctx); err == nil {
		err = work(b)
	}
	if err != nil {
		return 0, errors.Join(err, b.Kill())
	}
	if code, err := b.Terminate(ctx); err != nil || code != 0 {
		return 0, errors.Join(fmt.Errorf("the broker stopped with code %d, %w", code, err), b.Kill())
	}
	return b.CPU(), nil
}

// load sends all batches and returns how long that took.
func load(ctx context.Context, cfg config, addr string, topic rawkafka.Topic) (time.Duration, error) {
	var senders []*sender
	for i := range cfg.connections {
		c, err := rawkafka.Dial(addr, rawkafka.Options{Timeout: time.Minute})
		if err != nil {
			return 0, err
		}
		defer func() { _ = c.Close() }()
		id, _, err := c.InitProducerID()
		if err != nil {
			return 0, err
		}
		senders = append(senders, &sender{cfg: cfg, c: c, id: id, topic: topic, first: i})
	}
	begun := time.Now()
	failed := make([]error, len(senders))
	var running sync.WaitGroup
	for i, s := range senders {
		running.Go(func() { failed[i] = s.run(ctx, begun) })
	}
	running.Wait()
	return time.Since(begun), errors.Join(failed...)
}

// sender is one connection; batch number i of all goes to partition i modulo their number, and is sent by connection i
// modulo theirs.
type sender struct {
	cfg   config
	c     *rawkafka.Client
	id    batch.ProducerID
	topic rawkafka.Topic
	first int
}

func (s *sender) run(ctx context.Context, begun time.Time) error {
	next := make(map[int32]batch.Sequence)
	value := make([]byte, s.cfg.payload)
	pending := 0
	for i := s.first; i < s.cfg.batches; i += s.cfg.connections {
		if err := s.pace(ctx, begun, i); err != nil {
			return err
		}
		partition := int32(s.first + i/s.cfg.connections*s.cfg.connections%(s.cfg.partitions/s.cfg.connections*s.cfg.connections))
		raw := rawkafka.Idempotent(s.id, 0, next[partition], value).Bytes()
		next[partition]++
		if err := s.c.Send(rawkafka.ProduceRequest(rawkafka.ProduceVersion, s.topic, partition, raw)); err != nil {
			return err
		}
		if pending++; pending == s.cfg.inFlight {
			if err := s.c.ReceiveStored(); err != nil {
				return err
			}
			pending--
		}
	}
	for ; pending > 0; pending-- {
		if err := s.c.ReceiveStored(); err != nil {
			return err
		}
	}
	return nil
}

// pace waits until batch number i is due.
func (s *sender) pace(ctx context.Context, begun time.Time, i int) error {
	if s.cfg.rate == 0 {
		return ctx.Err()
	}
	due := begun.Add(time.Duration(i) * time.Second / time.Duration(s.cfg.rate))
	select {
	case <-time.After(time.Until(due)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// bareAppends appends as many bytes, as often, to as many files, with an fdatasync behind each.
func bareAppends(ctx context.Context, cfg config, dir string, threads int) (c cost, err error) {
	fs := vfs.OS()
	if err := fs.MkdirAll(dir); err != nil {
		return c, err
	}
	files := make([]vfs.File, cfg.partitions)
	defer func() {
		for _, f := range files {
			if f != nil {
				err = errors.Join(err, f.Close())
			}
		}
	}()
	for i := range files {
		if files[i], err = fs.Create(filepath.Join(dir, fmt.Sprint(i))); err != nil {
			return c, err
		}
	}
	raw := rawkafka.Idempotent(1, 0, 0, make([]byte, cfg.payload)).Bytes()
	failed := make([]error, threads)
	var running sync.WaitGroup
	cpu, err := processorTime()
	if err != nil {
		return c, err
	}
	begun := time.Now()
	for t := range threads {
		running.Go(func() {
			for i := t; i < cfg.batches && failed[t] == nil && ctx.Err() == nil; i += threads {
				f := files[i%len(files)]
				failed[t] = errors.Join(writeAt(f, raw, int64(i/len(files)*len(raw))), f.SyncData())
			}
		})
	}
	running.Wait()
	c.wall = time.Since(begun)
	after, err := processorTime()
	c.cpu = after - cpu
	return c, errors.Join(append(failed, err, ctx.Err())...)
}

func writeAt(f vfs.File, p []byte, at int64) error {
	_, err := f.WriteAt(p, at)
	return err
}

// processorTime is what this process has used.
func processorTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("ask for the processor time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
