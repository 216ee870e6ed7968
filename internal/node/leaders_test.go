package node

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/replica"
	"github.com/oncemq/oncemq/internal/seglog"
)

// table is the table of node 1, in a node that has nothing else.
func table() *Node {
	n := &Node{}
	n.leaders.init(1)
	return n
}

var trio = &meta.Topic{Name: "trio", Partitions: []meta.Partition{{Group: 7, Replicas: []int32{2, 1, 3}}}}

func leads(node int32, term batch.Term, inSync ...int32) groupRow {
	r := groupRow{group: 7, row: row{leader: replicaOn(node), term: term, ready: true}}
	for _, id := range inSync {
		r.inSync = append(r.inSync, replicaOn(id))
	}
	return r
}

func TestLeadershipFollowsTheHighestTerm(t *testing.T) {
	n := table()
	check := func(what string, leader, epoch int32, inSync ...int32) {
		t.Helper()
		l := n.Leadership(trio, 0)
		if l.Leader != leader || l.Epoch != epoch || l.Ready != (leader > 0) || !slices.Equal(l.InSync, inSync) {
			t.Errorf("%s: %+v, want leader %d, epoch %d, in sync %v", what, l, leader, epoch, inSync)
		}
	}
	check("nothing known", -1, 1, 2, 1, 3)
	n.leaders.led(7, replica.Leadership{Leader: replicaOn(2), Term: 3})
	check("its follower knows it, and it is not ready", -1, 3, 2, 1, 3)
	n.leaders.told(2, []groupRow{leads(2, 3, 1, 2)})
	check("it says so itself", 2, 3, 1, 2)
	n.leaders.led(7, replica.Leadership{Leader: replicaOn(2), Term: 3})
	check("the follower again", 2, 3, 1, 2)
	n.leaders.told(2, []groupRow{leads(2, 3, 1, 2, 3)})
	check("in sync again", 2, 3, 1, 2, 3)
	n.leaders.told(3, []groupRow{{group: 7, row: row{term: 3}}})
	check("another one does not lead", 2, 3, 1, 2, 3)
	n.leaders.lost(2)
	check("its node is gone", -1, 3, 2, 1, 3)
	n.leaders.told(2, []groupRow{leads(2, 3, 2)})
	check("it was only cut off", 2, 3, 2)
	n.leaders.told(3, []groupRow{leads(3, 4, 1, 3)})
	check("the next term", 3, 4, 1, 3)
	n.leaders.told(2, []groupRow{leads(2, 3, 2)})
	check("the last one is late", 3, 4, 1, 3)
	n.leaders.told(2, []groupRow{{group: 7, row: row{term: 4}}})
	check("and resigns in a term that is not its own", 3, 4, 1, 3)
	n.leaders.told(3, []groupRow{{group: 7, row: row{term: 4}}})
	check("the leader resigns", -1, 4, 2, 1, 3)
	n.leaders.led(7, replica.Leadership{Leader: replicaOn(1), Term: 5, Ready: true, InSync: []seglog.ReplicaID{replicaOn(1)}})
	check("this node leads", 1, 5, 1)
	n.leaders.led(7, replica.Leadership{Term: 6})
	check("and not any more", -1, 6, 2, 1, 3)
	n.leaders.told(9, []groupRow{leads(9, 7, 9)})
	check("a node without a replica", -1, 7, 2, 1, 3)
	n.leaders.forget(func(group uint64) bool { return group == 7 })
	check("deleted", -1, 1, 2, 1, 3)
	if len(n.leaders.own) != 0 {
		t.Errorf("own rows %v", n.leaders.own)
	}
}

// What a node tells: what it leads, once that it does not any more, and everything to one that has come back.
func TestWhatIsTold(t *testing.T) {
	n := table()
	own := func(leader int32, term batch.Term) {
		n.leaders.led(7, replica.Leadership{Leader: replicaOn(leader), Term: term, Ready: leader == 1})
	}
	untold := func(want ...row) {
		t.Helper()
		rows, _ := n.leaders.takeUntold()
		var got []row
		for _, r := range rows {
			got = append(got, r.row)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("told is %+v, want %+v", got, want)
		}
	}
	own(2, 3)
	untold()
	own(1, 4)
	own(1, 5)
	untold(row{leader: replicaOn(1), term: 5, ready: true})
	untold()
	own(2, 6)
	untold(row{term: 6})
	n.leaders.catchUp(3)
	if _, behind := n.leaders.takeUntold(); !behind[3] || len(n.leaders.owned()) != 1 {
		t.Errorf("behind %v, own %v", behind, n.leaders.owned())
	}
}

// The table is bounded, whatever peers say.
func TestTableIsBounded(t *testing.T) {
	n := table()
	rows := make([]groupRow, 1000)
	for first := 0; first <= rowsMax; first += len(rows) {
		for i := range rows {
			rows[i] = leads(2, 1)
			rows[i].group = seglog.GroupID(1 + first + i)
		}
		n.leaders.told(2, rows)
	}
	if len(n.leaders.rows) != rowsMax {
		t.Errorf("%d rows", len(n.leaders.rows))
	}
}

func TestGossipRoundTrip(t *testing.T) {
	var body []byte
	want := []groupRow{leads(2, 3, 1, 2, 3), {group: 9, row: row{term: 1<<31 - 1}}, leads(2, 1)}
	for _, r := range want {
		body = r.appendTo(body)
	}
	got, err := parseRows(2, body)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := parseRows(3, body); !errors.Is(err, errGossip) {
		t.Errorf("a leadership of somebody else: %v", err)
	}
}

// Bytes that are not what a node of this version says are refused as a whole, and nothing panics.
func TestGossipGarbage(t *testing.T) {
	whole := leads(2, 3, 1, 2, 3).appendTo(nil)
	for n := 1; n < len(whole); n++ {
		if _, err := parseRows(2, whole[:n]); err == nil {
			t.Errorf("the first %d bytes are taken", n)
		}
	}
	for at, value := range map[int]byte{0: 0, 11: 1, 16: 0xff, 20: 2, 21: 65} {
		bad := slices.Clone(whole)
		bad[at] = value
		if at == 0 {
			clear(bad[:8])
		}
		if _, err := parseRows(2, bad); err == nil {
			t.Errorf("byte %d = %d is taken", at, value)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		bad := slices.Clone(whole)
		for range 1 + rng.IntN(4) {
			bad[rng.IntN(len(bad))] = byte(rng.Uint32())
		}
		if rows, err := parseRows(2, bad); err == nil {
			n := table()
			n.leaders.told(2, rows)
			n.Leadership(trio, 0)
		}
	}
}

// A refusal is the same reason with the same words on the node that asked.
func TestRefusalsBetweenNodes(t *testing.T) {
	for _, kind := range refusals[2:] {
		err := fmt.Errorf("%w: because", kind)
		var p proposed
		p.refuse(err)
		if got := p.refusal(); !errors.Is(got, kind) || got.Error() != err.Error() {
			t.Errorf("%v became %v", err, got)
		}
	}
	var p proposed
	p.refuse(errors.New("new"))
	if got := p.refusal(); got == nil || got.Error() != "new" {
		t.Errorf("an unknown reason became %v", got)
	}
	for _, number := range []int{-1, len(refusals), 1 << 30} {
		if (&proposed{Refusal: number}).refusal() == nil {
			t.Errorf("refusal %d is none", number)
		}
	}
	if (&proposed{}).refusal() != nil {
		t.Error("no refusal is one")
	}
}
