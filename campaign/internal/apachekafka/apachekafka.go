// Package apachekafka runs Apache Kafka 4.4.0 beside OnceMQ, so that a campaign can do to it what it does to OnceMQ: a
// figure means something only beside another one of the same run.
//
// Its nodes are brokers and controllers at once (KRaft), as many as are wanted, on loopback addresses.
package apachekafka

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/oncemq/oncemq/internal/testbroker"
)

//go:embed pom.xml
var pom []byte

// clusterID is what the nodes of a cluster are formatted with: any 16 bytes will do.
const clusterID = "b25jZW1xLWNvbXBhcmUhIQ"

// Collect has Maven put the jars of Apache Kafka into a directory below dir, whose path it returns. It needs mvn.
func Collect(ctx context.Context, dir string) (lib string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make directory for jars: %w", err)
	}
	file := filepath.Join(dir, "pom.xml")
	if err := os.WriteFile(file, pom, 0o644); err != nil {
		return "", fmt.Errorf("write what Maven is to collect: %w", err)
	}
	lib = filepath.Join(dir, "lib")
	cmd := exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", file, "dependency:copy-dependencies", "-DoutputDirectory="+lib)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("collect the jars of Apache Kafka: %w\n%s", err, out)
	}
	return lib, nil
}

// Config says what to run.
type Config struct {
	Lib   string   // the directory of the jars
	Dir   string   // for the nodes' data and logs
	Nodes int      // from 1 upwards
	Set   []string // broker settings, NAME=VALUE
	Heap  string   // of each node, as java takes it; "": 512m
}

// Cluster is a number of nodes.
type Cluster struct {
	cfg     Config
	kafka   []string // addresses for clients
	control []string // addresses of the controllers
	nodes   []*process
}

// process is one run of a node.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// Start formats the nodes' directories, and starts them. It does not wait until they serve.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	if cfg.Heap == "" {
		cfg.Heap = "512m"
	}
	c := &Cluster{cfg: cfg, nodes: make([]*process, cfg.Nodes)}
	for range cfg.Nodes {
		for _, list := range []*[]string{&c.kafka, &c.control} {
			addr, err := testbroker.FreeAddr()
			if err != nil {
				return nil, err
			}
			*list = append(*list, addr)
		}
	}
	for i := range cfg.Nodes {
		if err := c.format(ctx, i); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		if err := c.Restart(i); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// Addresses are those for Kafka clients, one a node.
func (c *Cluster) Addresses() []string { return c.kafka }

func (c *Cluster) dir(i int) string { return filepath.Join(c.cfg.Dir, fmt.Sprintf("kafka-%d", i+1)) }

func (c *Cluster) properties(i int) string { return filepath.Join(c.dir(i), "server.properties") }

// format writes the properties of node number i, from 0 on, and has its directory formatted.
func (c *Cluster) format(ctx context.Context, i int) error {
	if err := os.MkdirAll(c.dir(i), 0o755); err != nil {
		return fmt.Errorf("make directory of node %d: %w", i+1, err)
	}
	voters := make([]string, len(c.control))
	for n, addr := range c.control {
		voters[n] = fmt.Sprintf("%d@%s", n+1, addr)
	}
	replication := min(3, c.cfg.Nodes)
	lines := append([]string{
		"process.roles=broker,controller",
		fmt.Sprintf("node.id=%d", i+1),
		"controller.quorum.voters=" + strings.Join(voters, ","),
		fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://%s", c.kafka[i], c.control[i]),
		"advertised.listeners=PLAINTEXT://" + c.kafka[i],
		"controller.listener.names=CONTROLLER",
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"log.dirs=" + filepath.Join(c.dir(i), "data"),
		fmt.Sprintf("offsets.topic.replication.factor=%d", replication),
		fmt.Sprintf("default.replication.factor=%d", replication),
		"group.initial.rebalance.delay.ms=0",
	}, c.cfg.Set...)
	if err := os.WriteFile(c.properties(i), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return fmt.Errorf("write properties of node %d: %w", i+1, err)
	}
	cmd := exec.CommandContext(ctx, "java", "-cp", filepath.Join(c.cfg.Lib, "*"),
		"kafka.tools.StorageTool", "format", "-t", clusterID, "-c", c.properties(i))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("format directory of node %d: %w\n%s", i+1, err, out)
	}
	return nil
}

// Restart starts node number i, from 0 on, which must not run.
func (c *Cluster) Restart(i int) error {
	log, err := os.OpenFile(filepath.Join(c.dir(i), "output"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log of node %d: %w", i+1, err)
	}
	defer log.Close() // the process has its own
	cmd := exec.Command("java", "-Xmx"+c.cfg.Heap, "-cp", filepath.Join(c.cfg.Lib, "*"), "kafka.Kafka", c.properties(i))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start node %d: %w", i+1, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	c.nodes[i] = p
	go func() {
		_ = cmd.Wait() // how it ends is its own affair
		close(p.done)
	}()
	return nil
}

// Signal sends a signal to node number i.
func (c *Cluster) Signal(i int, s syscall.Signal) error {
	if err := c.nodes[i].cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signal node %d: %w", i+1, err)
	}
	return nil
}

// Kill ends node number i with SIGKILL and waits for its end.
func (c *Cluster) Kill(i int) error {
	err := c.Signal(i, syscall.SIGKILL)
	<-c.nodes[i].done
	return err
}

// Await waits until every node takes connections.
func (c *Cluster) Await(ctx context.Context) error {
	for _, addr := range c.kafka {
		for {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			if err == nil {
				_ = conn.Close()
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("wait for %s: %w", addr, context.Cause(ctx))
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

// Close kills all nodes that run.
func (c *Cluster) Close() error {
	var errs []error
	for i, p := range c.nodes {
		if p == nil {
			continue
		}
		select {
		case <-p.done:
		default:
			errs = append(errs, c.Kill(i))
		}
	}
	return errors.Join(errs...)
}
