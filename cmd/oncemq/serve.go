package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemq/oncemq/internal/console"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/node"
	"github.com/oncemq/oncemq/internal/server"
	"github.com/oncemq/oncemq/internal/setting"
	"github.com/oncemq/oncemq/internal/vfs"
)

type serveOptions struct {
	data, listen, advertise, http, rack string
	peers                               peerOptions
	settings                            setting.Values
}

const serveHelp = `Run a broker. Kafka clients reach it on --listen; GET /livez and GET /readyz on --http say
whether it lives and whether it is ready. SIGTERM or Ctrl-C stops it: what it leads is handed
over to other nodes, requests in flight are answered, everything is on disk, and the exit code
is 0.

Without --founders the broker is a cluster of its own.

Several nodes
  Three nodes keep each record on three disks and go on when one of them is away; five go on
  without two. Start each with the same list of founders, in the same order:

    host a:  oncemq serve --listen a:9092 --peer-listen a:9192 --founders a:9192,b:9192,c:9192
    host b:  oncemq serve --listen b:9092 --peer-listen b:9192 --founders a:9192,b:9192,c:9192
    host c:  oncemq serve --listen c:9092 --peer-listen c:9192 --founders a:9192,b:9192,c:9192

  The first time they wait for each other, and when all are there they are one cluster, once
  and for ever. Later a node starts with the same flags and data directory and is itself again;
  one whose directory was emptied is refused. A node is the founder that --peer-listen names;
  where it listens on another address than the others use, --peer-advertise says which one it
  is. There is no TLS and no authentication between nodes: keep --peer-listen inside a trusted
  network.

Exit codes: 1 failure, 2 usage, or founders that are not those of the data directory,
3 data directory in use by another process, 4 data directory of a newer format,
5 data directory damaged in a place that all partitions need, or emptied.

Settings
  --set NAME=VALUE takes the broker settings of Kafka that there are, and a few of our own. A
  setting that is not known, or not within its bounds, is an error. The defaults:

`

func serveCommand() *cobra.Command {
	var o serveOptions
	var assignments []string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a broker",
		Long:  serveHelp + setting.Help(),
		Example: `  oncemq serve
  oncemq serve --data /var/lib/oncemq --listen 0.0.0.0:9092 --advertise broker1.example.com:9092
  oncemq serve --set log.retention.hours=720 --set message.max.bytes=4194304`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := o.check(); err != nil {
				return err
			}
			if o.peers, err = o.peers.check(); err != nil {
				return err
			}
			if o.settings, err = parsed("--set", assignments, setting.Parse); err != nil {
				return err
			}
			return failed(serve(cmd.Context(), o))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.data, "data", "oncemq-data", "data directory; made when it does not exist")
	flags.StringVar(&o.listen, "listen", "127.0.0.1:9092", "address for Kafka clients to connect to")
	flags.StringVar(&o.advertise, "advertise", "", "address that clients are told to connect to (default: --listen, with this machine's name in place of a wildcard)")
	flags.StringVar(&o.http, "http", "127.0.0.1:9644", "address for /livez and /readyz")
	flags.StringVar(&o.peers.listen, "peer-listen", "", "address for the other nodes of the cluster to connect to")
	flags.StringVar(&o.peers.advertise, "peer-advertise", "", "this node's entry among the founders (default: --peer-listen)")
	flags.StringSliceVar(&o.peers.founders, "founders", nil, "the nodes that found the cluster, this one among them, `HOST:PORT[,...]`; the same on all")
	flags.StringVar(&o.rack, "rack", "", "`NAME` of the place where this node stands; the replicas of a partition are spread over the places")
	flags.StringArrayVar(&assignments, "set", nil, "a broker setting, `NAME=VALUE`; may be repeated")
	return cmd
}

// check finds mistakes in the flags before anything is touched.
func (o serveOptions) check() error {
	for _, f := range []struct{ flag, address string }{
		{"listen", o.listen}, {"http", o.http}, {"advertise", o.advertise},
	} {
		if f.flag == "advertise" && f.address == "" {
			continue
		}
		host, _, err := splitAddress(f.address)
		if err == nil && host != "" {
			err = meta.CheckHost(host)
		}
		if err != nil {
			return fmt.Errorf("--%s: %w", f.flag, err)
		}
	}
	if err := meta.CheckRack(o.rack); err != nil {
		return fmt.Errorf("--rack: %w", err)
	}
	if o.data == "" {
		return errors.New("--data: no directory")
	}
	return nil
}

// advertised is the address that clients are told. What --advertise leaves open comes from the listener.
func (o serveOptions) advertised(listener net.Addr) (host string, port int32, err error) {
	address := o.advertise
	if address == "" {
		address = o.listen
	}
	if host, port, err = splitAddress(address); err != nil {
		return "", 0, err
	}
	if port == 0 {
		_, port, err = splitAddress(listener.String())
	}
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		if host, err = os.Hostname(); err != nil {
			err = fmt.Errorf("find this machine's name (set --advertise instead): %w", err)
		}
	}
	return host, port, err
}

func splitAddress(address string) (host string, port int32, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not HOST:PORT", address)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%q has no port from 0 to 65535", address)
	}
	return host, int32(n), nil
}

// serve runs a broker until ctx ends.
func serve(ctx context.Context, o serveOptions) (err error) {
	start := time.Now()
	defer keepHeapFloor()()
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	boot, err := bootID()
	if err != nil {
		return err
	}
	files, err := divideFiles()
	if err != nil {
		return err
	}
	if asked := o.settings.Connections; files.connections < asked && asked != setting.Defaults().Connections {
		logger.Warn("max.connections is lowered: the process may open too few files (ulimit -n)", "max.connections", files.connections)
	}
	kafka, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listen for Kafka clients: %w", err)
	}
	defer kafka.Close() // for the ends before Serve, which closes it
	host, port, err := o.advertised(kafka.Addr())
	if err != nil {
		return err
	}
	var ready atomic.Bool
	web, err := net.Listen("tcp", o.http)
	if err != nil {
		return fmt.Errorf("listen for HTTP: %w", err)
	}
	defer console.Serve(web, console.Handler(ready.Load), logger).Close()

	cfg := nodeConfig(o.data, o.settings, files)
	cfg.Host, cfg.Port, cfg.Rack = host, port, o.rack
	if err := o.peers.join(&cfg, logger); err != nil {
		return err
	}
	n, err := node.Open(ctx, node.Env{
		FS: vfs.OS(), Clock: wallClock{}, Random: rand.Reader, Logger: logger, Boot: boot, Fatal: dieOf(logger),
	}, cfg)
	if errors.Is(err, context.Canceled) {
		logger.Info("stopped before it was ready", "reason", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	clients := serverConfig(o.settings, files)
	if len(o.peers.founders) > 1 {
		clients.StopTimeout = stopTimeout
	}
	s, err := server.New(clients, broker{n}, logger, time.Now)
	if err != nil {
		return err
	}
	logger.Info("ready", "kafka", kafka.Addr().String(), "advertised", net.JoinHostPort(host, strconv.Itoa(int(port))),
		"http", web.Addr().String(), "data", o.data, "node", n.NodeID(), "cluster", n.ClusterID(), "after", time.Since(start).Round(time.Millisecond))
	return serveClients(ctx, s, broker{n}, kafka, &ready, logger)
}

// A stop takes 10 s at most, but for connections that must be cut. With other nodes most of it is for handing over, and what
// is left for requests.
const (
	drainTimeout = 6 * time.Second
	stopTimeout  = 4 * time.Second
)

// serveClients serves Kafka clients until ctx has ended and what this node leads is handed over, for which it has
// drainTimeout. Clients are served meanwhile, and learn who leads instead.
func serveClients(ctx context.Context, s *server.Server, n broker, kafka net.Listener, ready *atomic.Bool, logger *slog.Logger) error {
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	drained := make(chan struct{})
	ready.Store(true)
	stopping := context.AfterFunc(ctx, func() {
		defer close(drained)
		defer end()
		ready.Store(false)
		logger.Info("stopping")
		s.BeginStop()
		draining, cancel := context.WithTimeout(serving, drainTimeout)
		defer cancel()
		n.Drain(draining)
	})
	err := s.Serve(serving, kafka)
	if !stopping() {
		end()
		<-drained // the node is closed next
	}
	return err
}

// dieOf returns what ends the process when a write or sync has failed. What is on disk is unknown then, and only reading
// it back at the next start can tell; anything that this process did or said from here on could be wrong.
func dieOf(logger *slog.Logger) func(error) {
	return func(err error) {
		logger.Error("storage failed; the process ends so that nothing is answered that may not be on disk", "error", err)
		os.Exit(exitFailure)
	}
}

// wallClock is the machine's clock.
type wallClock struct{}

func (wallClock) Now() time.Time { return time.Now() }
