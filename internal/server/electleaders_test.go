package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/replica"
)

// electionOf asks for the election of partitions of topic "t"; without any, of all there are.
func electionOf(version int16, partitions ...int32) *kmsg.ElectLeadersRequest {
	req := kmsg.NewPtrElectLeadersRequest()
	req.Version, req.TimeoutMillis = version, 5000
	if len(partitions) > 0 {
		req.Topics = []kmsg.ElectLeadersRequestTopic{{Topic: "t", Partitions: partitions}}
	}
	return req
}

// elected prints an ElectLeaders response: the error of the whole, and each partition with its own.
func elected(resp *kmsg.ElectLeadersResponse) string {
	s := []string{fmt.Sprint(resp.ErrorCode)}
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			s = append(s, fmt.Sprintf("%s/%d:%d", topic.Topic, p.Partition, p.ErrorCode))
		}
	}
	return strings.Join(s, " ")
}

func TestElectLeaders(t *testing.T) {
	node := threeNodes()
	node.elect = func(_ string, index int32) error {
		return map[int32]error{
			1: ErrElectionNotNeeded, 2: ErrPreferredNotAvailable, 3: ErrNoLeader, 4: fmt.Errorf("ask: %w", context.DeadlineExceeded),
		}[index]
	}
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		for v := int16(0); v <= 2; v++ {
			ask := func(req *kmsg.ElectLeadersRequest) *kmsg.ElectLeadersResponse {
				return ask[*kmsg.ElectLeadersResponse](c, req)
			}
			resp := ask(electionOf(v, 0, 1, 2, 3, 4, 5, -1))
			if got := elected(resp); got != "0 t/0:0 t/1:84 t/2:80 t/3:5 t/4:7 t/5:3 t/-1:3" {
				t.Errorf("v%d: %s", v, got)
			}
			for _, p := range resp.Topics[0].Partitions {
				if (p.ErrorMessage == nil) != (p.ErrorCode == 0) {
					t.Errorf("v%d: %+v", v, p)
				}
			}
			unknown := electionOf(v, 0)
			unknown.Topics[0].Topic = "u"
			if got := elected(ask(unknown)); got != "0 u/0:3" {
				t.Errorf("v%d: %s", v, got)
			}
			// Of all partitions those of which the preferred leader leads are left out.
			node.elected = nil
			if got := elected(ask(electionOf(v))); got != "0 t/3:5 t/4:7" {
				t.Errorf("v%d: all: %s", v, got)
			}
			slices.Sort(node.elected)
			if got := strings.Join(node.elected, " "); got != "t/3 t/4" {
				t.Errorf("v%d: elected %s", v, got)
			}
			none := electionOf(v, 0)
			none.Topics = []kmsg.ElectLeadersRequestTopic{}
			if got := elected(ask(none)); got != "0" {
				t.Errorf("v%d: none: %s", v, got)
			}
			if v == 0 {
				continue
			}
			// An election of just any replica is refused.
			node.elected = nil
			unclean := electionOf(v, 0, 1)
			unclean.ElectionType = 1
			all := electionOf(v)
			all.ElectionType = 2
			if got := elected(ask(unclean)) + ", " + elected(ask(all)); got != "42 t/0:42 t/1:42, 42" || len(node.elected) > 0 {
				t.Errorf("v%d: unclean: %s, elected %v", v, got, node.elected)
			}
		}
	})
}

// What is elected meanwhile, or fails in other ways, is told as Kafka does.
func TestElectLeadersErrors(t *testing.T) {
	node := threeNodes()
	served(t, Config{}, node, func(t *testing.T, h *harness, c *client) {
		for err, want := range map[error]string{
			replica.ErrStopped: "0 t/3:7 t/4:7", replica.ErrNotLeader: "0 t/3:5 t/4:5", ErrElectionNotNeeded: "0", nil: "0 t/3:0 t/4:0",
		} {
			node.elect = func(string, int32) error { return err }
			if got := elected(ask[*kmsg.ElectLeadersResponse](c, electionOf(2))); got != want {
				t.Errorf("%v: %s, want %s", err, got, want)
			}
		}
	})
}

func TestFranzElectsLeaders(t *testing.T) {
	node := threeNodes()
	h := start(t, Config{}, node)
	defer h.stop()
	admin := kadm.NewClient(h.franz(t))
	defer admin.Close()
	set := kadm.TopicsSet{}
	set.Add("t", 0, 4)
	results, err := admin.ElectLeaders(t.Context(), kadm.ElectPreferredReplica, set)
	if err != nil || results["t"][0].Err != nil || results["t"][4].Err != nil || len(results["t"]) != 2 {
		t.Errorf("%+v, %v", results, err)
	}
	slices.Sort(node.elected)
	if got := strings.Join(node.elected, " "); got != "t/0 t/4" {
		t.Errorf("elected %s", got)
	}
}
