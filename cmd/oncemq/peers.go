package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/node"
)

// foundersMax bounds the founders: all of them keep the cluster's metadata, and each change of it goes to all.
const foundersMax = 7

// peerOptions are the flags that make a node one of several. None of them is set of a node that is a cluster of its own.
type peerOptions struct {
	listen, advertise string
	founders          []string
}

// check finds mistakes that can be seen from here, and returns the options with advertise set: the entry of this node among
// the founders.
func (o peerOptions) check() (peerOptions, error) {
	switch {
	case o.listen == "" && o.advertise == "" && o.founders == nil: // an empty list is a mistake
		return o, nil
	case o.listen == "":
		return o, errors.New("--peer-listen: say where the other nodes can connect, as HOST:PORT")
	case len(o.founders) == 0:
		return o, errors.New("--founders: name the nodes that found the cluster, this one among them, as HOST:PORT,HOST:PORT,HOST:PORT")
	}
	if _, port, err := splitAddress(o.listen); err != nil {
		return o, fmt.Errorf("--peer-listen: %w", err)
	} else if port == 0 {
		return o, fmt.Errorf("--peer-listen: %q has port 0, and the other nodes could not know which one it is", o.listen)
	}
	o.founders = slices.Clone(o.founders)
	for i, founder := range o.founders { // "a:1, b:1" is a list that people write
		o.founders[i] = strings.TrimSpace(founder)
	}
	if len(o.founders) > foundersMax {
		return o, fmt.Errorf("--founders: %d nodes, at most %d can found a cluster", len(o.founders), foundersMax)
	}
	for i, founder := range o.founders {
		if err := checkPeer(founder); err != nil {
			return o, fmt.Errorf("--founders: %w", err)
		}
		if slices.Contains(o.founders[:i], founder) {
			return o, fmt.Errorf("--founders: %s is named twice", founder)
		}
	}
	flag := "--peer-advertise"
	if o.advertise == "" {
		flag, o.advertise = "--peer-listen", o.listen
	}
	if !slices.Contains(o.founders, o.advertise) {
		return o, fmt.Errorf("--founders: %s, which %s says is this node, is not among %s (--peer-advertise says which one it is)",
			o.advertise, flag, strings.Join(o.founders, ","))
	}
	return o, nil
}

// checkPeer says why other nodes could not connect to an address.
func checkPeer(address string) error {
	host, port, err := splitAddress(address)
	switch {
	case err != nil:
		return err
	case port == 0:
		return fmt.Errorf("%q has port 0", address)
	}
	if err := meta.CheckHost(host); err != nil {
		return fmt.Errorf("%q: %w", address, err)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%q is no address that others can connect to", address)
	}
	return nil
}

// join makes the node of a configuration one of several, if it is to be that. The listener is the node's from then on.
func (o peerOptions) join(cfg *node.Config, logger *slog.Logger) error {
	if o.listen == "" {
		return nil
	}
	if len(o.founders) == 2 {
		logger.Warn("a cluster of two nodes is away when either of them is; one of three goes on without one", "founders", o.founders)
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listen for other nodes: %w", err)
	}
	cfg.PeerListener, cfg.PeerAddress, cfg.Founders = l, o.advertise, o.founders
	return nil
}
