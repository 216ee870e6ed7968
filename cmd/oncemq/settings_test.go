package main

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/setting"
)

// Every setting reaches those who carry it out, unchanged: the server for what clients see, and the node for the rest.
func TestSettingsAreCarriedOut(t *testing.T) {
	files := fileShares{connections: math.MaxInt, data: 1, partitions: 1}
	// What the server alone carries out, and what it tells clients that topics have.
	server := strings.Fields("AutoCreateTopics ConnectionIdleMax Connections FetchBytes NumPartitions QueuedRequestBytes RequestBytes")
	told := strings.Fields("MessageBytes MinInSync Retention RetentionBytes SegmentAge SegmentBytes")
	fields := reflect.TypeFor[setting.Values]()
	for i := range fields.NumField() {
		v := setting.Values{LeaderBalance: true} // its interval counts
		unset := v
		const odd = 1234577
		var want any = int64(odd)
		switch field := reflect.ValueOf(&v).Elem().Field(i).Addr().Interface().(type) {
		case *bool:
			*field, want = !*field, false // NoAutoCreateTopics
			if field == &v.LeaderBalance {
				want = int64(-1)
			}
		case *int:
			*field = odd
		case *int16:
			*field, want = 12347, int64(12347)
		case *int32:
			*field = odd
		case *int64:
			*field = odd
		case *time.Duration:
			*field = odd
		}
		reaches := func(made, unset any) bool {
			return leaves(made)[want] == leaves(unset)[want]+1
		}
		name := fields.Field(i).Name
		if got := reaches(nodeConfig("", v, files), nodeConfig("", unset, files)); got == slices.Contains(server, name) {
			t.Errorf("setting.Values.%s reaches the node: %v", name, got)
		}
		if got := reaches(serverConfig(v, files), serverConfig(unset, files)); got != slices.Contains(append(server, told...), name) {
			t.Errorf("setting.Values.%s reaches the server: %v", name, got)
		}
	}
}

// leaves counts the values of all fields of a struct, with those of structs in it; numbers as int64.
func leaves(v any) map[any]int {
	counts := make(map[any]int)
	collect(reflect.ValueOf(v), counts)
	return counts
}

func collect(v reflect.Value, counts map[any]int) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			collect(f, counts)
		case reflect.Bool:
			counts[f.Bool()]++
		case reflect.Int, reflect.Int16, reflect.Int32, reflect.Int64:
			counts[f.Int()]++
		}
	}
}

func TestDivideFiles(t *testing.T) {
	files, err := divideFiles()
	if err != nil {
		t.Fatal(err)
	}
	if files.connections < 1 || files.partitions < 1 || files.partitions*filesPerPartition > files.data {
		t.Errorf("shares %+v", files)
	}
}

func TestSetIsChecked(t *testing.T) {
	for _, args := range [][]string{
		{"--set", "num.partitions"}, {"--set", "num.partitions=0"}, {"--set", "no.such.setting=1"}, {"--set", "num.partitions=1", "--set", "num.partitions=1"},
	} {
		dir := t.TempDir() + "/data"
		cmd := serveCommand()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append([]string{"--data", dir, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"}, args...))
		if err := cmd.ExecuteContext(t.Context()); exitCode(err) != exitUsage {
			t.Errorf("%v: %v", args, err)
		}
		mustNotExist(t, dir)
	}
}
