package node

import (
	"testing"

	"github.com/oncemq/oncemq/internal/batch"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/seglog"
	"github.com/oncemq/oncemq/internal/vfs/errfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// A node has many times more files than the process may have open. It works, and starts again, also with a bound on its
// open files that is too high: then it notices when no further file can be opened.
func TestMoreFilesThanMayBeOpen(t *testing.T) {
	for _, bound := range []int{8, 1000} {
		mem := memfs.New()
		scarce := errfs.NewScarce(mem, 48)
		cfg := small()
		cfg.OpenFiles = bound
		n := openWith(t, scarce, cfg)
		id := producerID(t, n)
		var topics []*meta.Topic
		for _, name := range []string{"a", "b", "c", "d"} {
			topics = append(topics, create(t, n, name, 4))
		}
		const batches = 60
		for i := range batch.Sequence(batches) {
			for _, topic := range topics {
				if a := produce(t, n, topic, id, i); a.Err != nil || a.Base != batch.Offset(i) {
					t.Fatalf("batch %d: %+v", i, a)
				}
			}
		}
		for range 2 {
			files := 0
			for g := range seglog.GroupID(17) {
				files += len(filesOf(t, mem, g, ""))
			}
			if files < 100 {
				t.Fatalf("there are only %d files", files)
			}
			for _, topic := range topics {
				if _, offsets := readAll(t, n, topic); len(offsets) != batches {
					t.Fatalf("%d batches are read", len(offsets))
				}
			}
			closeNode(t, n)
			if open, _ := scarce.Files(); open != 0 {
				t.Fatalf("%d files are open after the end", open)
			}
			n = openWith(t, scarce, cfg)
		}
		closeNode(t, n)
	}
}
