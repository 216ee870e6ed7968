package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemq/oncemq/internal/rawkafka"
	"github.com/oncemq/oncemq/internal/testbroker"
)

// A broker that may open few files survives whoever asks for many: a topic that is too large, more topics than fit, and
// more connections than fit.
func TestFewFiles(t *testing.T) {
	const files, codeInvalidPartitions = 300, 37
	few := filepath.Join(t.TempDir(), "few")
	script := fmt.Sprintf("#!/bin/sh\nulimit -n %d && exec %s \"$@\"\n", files, oncemq(t))
	if err := os.WriteFile(few, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	b := startBinary(t, few, t.TempDir()+"/data")
	c := dial(t, b)
	if _, err := c.CreateTopic(freshName(), files); codeOf(err) != codeInvalidPartitions {
		t.Errorf("create a topic of %d partitions: %v", files, err)
	}
	var topics []rawkafka.Topic
	for range files {
		topic, err := c.CreateTopic(freshName(), 1)
		if codeOf(err) == codeInvalidPartitions {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		topics = append(topics, topic)
	}
	if len(topics) < files/8 || len(topics) > files/2 {
		t.Errorf("%d topics were created", len(topics))
	}
	auto := kmsg.NewPtrMetadataRequest()
	auto.Version, auto.AllowAutoTopicCreation = 12, true
	name := freshName()
	auto.Topics = []kmsg.MetadataRequestTopic{{Topic: &name}}
	if a, err := rawkafka.Roundtrip[*kmsg.MetadataResponse](c, auto); err != nil || a.Topics[0].ErrorCode != codeInvalidPartitions {
		t.Errorf("create a topic by asking for it: %+v, %v", a, err)
	}
	for range files {
		nc, err := net.DialTimeout("tcp", b.Addr(), patience)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	for i, topic := range topics {
		mustStore(t, c, topic, rawkafka.Plain(fmt.Appendf(nil, "%d", i)).Bytes(), 0)
	}
	terminate(t, b)
	b = startBinary(t, few, b.Config().Data)
	defer terminate(t, b)
	for i, topic := range topics {
		mustHold(t, dial(t, b), topic, [][]byte{fmt.Appendf(nil, "%d", i)})
	}
}

// startBinary starts a broker from another binary than the one under test.
func startBinary(t *testing.T, binary, data string) *testbroker.Broker {
	t.Helper()
	b, err := testbroker.Start(testbroker.Config{Binary: binary, Data: data})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Kill() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := b.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return b
}

func codeOf(err error) int16 {
	if e, ok := err.(*rawkafka.CodeError); ok {
		return e.Code
	}
	return 0
}
