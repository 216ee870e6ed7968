package meta

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// onRacks makes brokers 1, 2, … on the racks that are named.
func onRacks(racks ...string) []Broker {
	var brokers []Broker
	for i, rack := range racks {
		brokers = append(brokers, Broker{ID: int32(i + 1), Host: "h", Port: 1, Rack: rack})
	}
	return brokers
}

func TestAssign(t *testing.T) {
	for _, c := range []struct {
		name        string
		racks       []string
		load        map[int32]Load
		partitions  int32
		replication int16
		want        string
	}{
		{"one node", []string{""}, nil, 3, 1, "[[1] [1] [1]]"},
		{"three of three", []string{"", "", ""}, nil, 3, 3, "[[1 2 3] [2 3 1] [3 1 2]]"},
		{"one replica each", []string{"", "", ""}, nil, 4, 1, "[[1] [2] [3] [1]]"},
		{"a topic before", []string{"", "", ""}, map[int32]Load{1: {1, 1}}, 1, 1, "[[2]]"},
		{"whose turn it is among equals", []string{"", "", ""}, map[int32]Load{1: {1, 1}, 2: {2, 1}, 3: {1, 1}}, 1, 1, "[[3]]"},
		{"a node that is new", []string{"", "", ""}, map[int32]Load{1: {9, 5}, 2: {9, 4}}, 2, 2, "[[3 1] [3 2]]"},
		{"two racks", []string{"a", "a", "b", "b"}, nil, 4, 2, "[[1 3] [2 4] [3 1] [4 2]]"},
		{"more replicas than racks", []string{"a", "a", "b"}, nil, 1, 3, "[[1 3 2]]"},
		{"a rack of one", []string{"a", "a", "b"}, nil, 2, 2, "[[1 3] [2 3]]"},
	} {
		got, err := Assign(onRacks(c.racks...), c.load, c.partitions, c.replication)
		if fmt.Sprint(got) != c.want || err != nil {
			t.Errorf("%s: got %v, %v, want %s", c.name, got, err, c.want)
		}
	}
}

func TestAssignRefuses(t *testing.T) {
	for _, c := range []struct {
		partitions  int32
		replication int16
		class       error
		want        string
	}{
		{1, 3, ErrInvalidReplication, "replication factor: 3 larger than available brokers: 2"},
		{1, 0, ErrInvalidReplication, "replication factor: 0, must be larger than 0"},
		{0, 1, ErrInvalidPartitions, "0, allowed are 1 to 10000"},
		{PartitionsPerTopicMax + 1, 1, ErrInvalidPartitions, "10001, allowed are"},
	} {
		if _, err := Assign(onRacks("", ""), nil, c.partitions, c.replication); !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	if _, err := Assign(onRacks("", ""), nil, PartitionsPerTopicMax, 2); err != nil {
		t.Error(err)
	}
}

// TestAssignIsFair: whatever the cluster, the replicas of a partition are on different nodes and on as many racks as there
// can be; on equal nodes replicas and leaders differ by at most one.
func TestAssignIsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		racks := rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b", "c"}), 1, 9).Draw(t, "racks")
		equal := rapid.Bool().Draw(t, "equal nodes")
		load := map[int32]Load{}
		for i := range racks {
			if equal {
				racks[i] = ""
			} else if leaders := rapid.IntRange(0, 9).Draw(t, "leaders"); leaders > 0 {
				load[int32(i+1)] = Load{Leaders: leaders, Replicas: leaders + rapid.IntRange(0, 9).Draw(t, "followers")}
			}
		}
		brokers := onRacks(racks...)
		partitions := rapid.Int32Range(1, 40).Draw(t, "partitions")
		replication := rapid.IntRange(1, len(racks)).Draw(t, "replication")
		got, err := Assign(brokers, load, partitions, int16(replication))
		if err != nil || len(got) != int(partitions) {
			t.Fatal(len(got), err)
		}
		slices.Reverse(brokers)
		if again, err := Assign(brokers, load, partitions, int16(replication)); fmt.Sprint(again) != fmt.Sprint(got) {
			t.Fatalf("first %v, then %v, %v", got, again, err)
		}
		replicas, leaders := make([]int, len(racks)), make([]int, len(racks))
		for _, p := range got {
			if want := min(replication, racksOf(racks, nil)); len(p) != replication || racksOf(racks, p) != want {
				t.Fatalf("%v is on %d racks, %d are possible", p, racksOf(racks, p), want)
			}
			leaders[p[0]-1]++
			for _, id := range p {
				replicas[id-1]++
			}
		}
		if err := CheckAssignment(got, brokers); err != nil {
			t.Fatal(err)
		}
		if equal && (slices.Max(replicas)-slices.Min(replicas) > 1 || slices.Max(leaders)-slices.Min(leaders) > 1) {
			t.Fatalf("replicas %v, leaders %v", replicas, leaders)
		}
	})
}

// racksOf counts the racks of some nodes, of all when ids is nil.
func racksOf(racks []string, ids []int32) int {
	seen := map[string]bool{}
	for i, rack := range racks {
		if ids == nil || slices.Contains(ids, int32(i+1)) {
			if rack == "" {
				rack = fmt.Sprint(i)
			}
			seen[rack] = true
		}
	}
	return len(seen)
}

func TestCheckAssignment(t *testing.T) {
	for _, c := range []struct {
		partitions [][]int32
		class      error
		want       string
	}{
		{[][]int32{{1, 2}, {2, 1}}, nil, ""},
		{nil, ErrInvalidPartitions, "0, allowed are"},
		{make([][]int32, PartitionsPerTopicMax+1), ErrInvalidPartitions, "10001, allowed are"},
		{[][]int32{{1}, nil}, ErrInvalidAssignment, "no replicas are given for partition 1 of 2"},
		{[][]int32{{1, 2, 1}}, ErrInvalidAssignment, "partition 0 has broker 1 more than once"},
		{[][]int32{{1}, {3}}, ErrInvalidAssignment, "partition 1 has broker 3, but no such broker is registered"},
		{[][]int32{{1}, {2, 1}}, ErrInvalidAssignment, "partition 1 has 2 replicas, but partition 0 has 1"},
	} {
		err := CheckAssignment(c.partitions, onRacks("", ""))
		if !errors.Is(err, c.class) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}
