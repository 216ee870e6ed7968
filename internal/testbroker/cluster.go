package testbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// ClusterConfig says which cluster to run.
type ClusterConfig struct {
	Binary string
	Dir    string // of the data directories, node-1 for the first node, and of what the nodes print, node-1.log
	Nodes  int    // 1: a broker alone, without founders
	// Links puts a proxy in front of each peer listener, so that the ways between the nodes can be cut and slowed. The
	// founders' addresses are those of the proxies. Linux only.
	Links bool
	Set   []string // broker settings of all nodes, NAME=VALUE
}

// Cluster is several nodes on loopback ports. A node that is started again has the data directory and the addresses that it
// had before. Nodes are counted from 0; all methods may be called from any goroutine.
type Cluster struct {
	// Links is nil when none were asked for.
	Links   *Links
	configs []Config
	logs    []*os.File

	mu    sync.Mutex
	nodes []*Broker // the last run of each
}

// StartCluster starts all nodes and does not wait until they are ready.
func StartCluster(cfg ClusterConfig) (*Cluster, error) {
	c := &Cluster{nodes: make([]*Broker, cfg.Nodes)}
	var taken []string
	free := func() (string, error) {
		for {
			addr, err := FreeAddr()
			if err != nil || !slices.Contains(taken, addr) {
				taken = append(taken, addr)
				return addr, err
			}
		}
	}
	var peers []string
	for i := range cfg.Nodes {
		node := Config{Binary: cfg.Binary, Data: filepath.Join(cfg.Dir, fmt.Sprintf("node-%d", i+1)), Set: cfg.Set}
		addrs := []*string{&node.Kafka, &node.HTTP, &node.Peer}
		if cfg.Nodes == 1 {
			addrs = addrs[:2] // a broker alone
		}
		for _, addr := range addrs {
			var err error
			if *addr, err = free(); err != nil {
				return nil, errors.Join(err, c.Close())
			}
		}
		peers = append(peers, node.Peer)
		log, err := logFile(node.Data + ".log")
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		node.Output, c.logs = log, append(c.logs, log)
		c.configs = append(c.configs, node)
	}
	founders := peers
	if cfg.Links {
		var err error
		if c.Links, err = newLinks(peers, c.origin); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		founders = nil
		for i := range c.configs {
			c.configs[i].PeerAdvertise = c.Links.Addr(i)
			founders = append(founders, c.Links.Addr(i))
		}
	}
	for i := range c.configs {
		if c.configs[i].Peer != "" {
			c.configs[i].Founders = founders
		}
		if err := c.Start(i); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// logFile makes the file to which a node's output is copied.
func logFile(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the nodes: %w", err)
	}
	log, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("make the log of a node: %w", err)
	}
	return log, nil
}

// origin returns the node that has opened a connection.
func (c *Cluster) origin(conn net.Conn) (int, error) {
	var processes []int
	c.mu.Lock()
	for _, b := range c.nodes {
		pid := -1 // not started yet
		if b != nil {
			pid = b.PID()
		}
		processes = append(processes, pid)
	}
	c.mu.Unlock()
	return owner(conn, processes)
}

// Nodes is how many there are.
func (c *Cluster) Nodes() int { return len(c.configs) }

// Node returns the last run of a node.
func (c *Cluster) Node(i int) *Broker {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[i]
}

// Config is what a node is started with. Its data directory stays the node's own.
func (c *Cluster) Config(i int) Config { return c.configs[i] }

// Addr is the HOST:PORT of a node for Kafka clients.
func (c *Cluster) Addr(i int) string { return c.configs[i].Kafka }

// Addrs are those of all nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for i := range c.configs {
		addrs = append(addrs, c.Addr(i))
	}
	return addrs
}

// Start starts a node that has ended, and does not wait until it is ready.
func (c *Cluster) Start(i int) error {
	b, err := Start(c.configs[i])
	if err != nil {
		return fmt.Errorf("node %d: %w", i+1, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[i] = b
	return nil
}

// AwaitReady waits until all nodes are ready and returns how long after its start the last one was.
func (c *Cluster) AwaitReady(ctx context.Context) (time.Duration, error) {
	var longest time.Duration
	for i := range c.configs {
		took, err := c.Node(i).AwaitReady(ctx)
		if err != nil {
			return 0, fmt.Errorf("node %d: %w", i+1, err)
		}
		longest = max(longest, took)
	}
	return longest, nil
}

// Terminate sends SIGTERM to all nodes at once and waits for their ends. Another status than 0 is an error.
func (c *Cluster) Terminate(ctx context.Context) error {
	errs := make([]error, len(c.configs))
	var ends sync.WaitGroup
	for i := range c.configs {
		ends.Go(func() {
			code, err := c.Node(i).Terminate(ctx)
			if err == nil && code != 0 {
				err = fmt.Errorf("SIGTERM ended it with status %d:\n%s", code, c.Node(i).Output())
			}
			if err != nil {
				errs[i] = fmt.Errorf("node %d: %w", i+1, err)
			}
		})
	}
	ends.Wait()
	return errors.Join(errs...)
}

// Close kills all nodes that still run, and ends the links.
func (c *Cluster) Close() error {
	var errs []error
	for i := range c.configs {
		if b := c.Node(i); b != nil {
			errs = append(errs, b.Kill())
		}
	}
	if c.Links != nil {
		errs = append(errs, c.Links.Close())
	}
	for _, log := range c.logs {
		errs = append(errs, log.Close())
	}
	return errors.Join(errs...)
}
