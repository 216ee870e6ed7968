package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemq/oncemq/internal/founding"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/peer"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// A founder that has not registered yet (it crashed between the founding and its first start number) is no reason to say for
// good that the replication factor is wrong.
func TestCreateBeforeAllFoundersHaveRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crew{t: t, wires: newWires(), nodes: make([]*Node, 3), boots: make([]byte, 3)}
		for _, a := range []string{"node1:9192", "node2:9192", "node3:9192"} {
			c.founders = append(c.founders, a)
			c.fs = append(c.fs, memfs.New())
		}
		e := env(t, c.fs[2], 0)
		identity, err := founding.OpenIdentity(founding.IdentityConfig{
			FS: c.fs[2], Dir: config.Dir, Random: e.Random, Self: c.founders[2], Founders: c.founders, Logger: e.Logger,
		})
		if err != nil {
			t.Fatal(err)
		}
		third := peer.Listen(c.wires.listen(c.founders[2]), e.Logger, identity.Answer)
		defer third.Close()
		done := make(chan error, 2)
		for i := range 2 {
			go func() { done <- c.start(i) }()
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		defer c.stopAll()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err = c.nodes[0].CreateTopic(ctx, newTopic("early", 1, -1), false)
		if errors.Is(err, meta.ErrInvalidReplication) {
			t.Errorf("a final no that is not true: %v", err)
		}
	})
}

// A topic that is deleted while its replicas are being opened leaves nothing behind.
func TestDeletedWhileOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := form(t, 3)
		defer c.stopAll()
		n := c.nodes[0]
		if err := n.awaitFounders(t.Context(), newTopic("brief", 8, 3)); err != nil {
			t.Fatal(err)
		}
		for range 30 {
			command, err := n.planTopic(newTopic("brief", 8, 3))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := n.propose(t.Context(), command); err != nil {
				t.Fatal(err)
			}
			if _, err := n.propose(t.Context(), &meta.DeleteTopic{Name: "brief", ID: command.ID, Time: 1}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30 * time.Second)
		for i, n := range c.nodes {
			n.members.mu.Lock()
			if left := len(n.members.byGroup); left != 1 {
				t.Errorf("node %d: %d members, only raft0 was expected", i+1, left)
			}
			n.members.mu.Unlock()
		}
	})
}
