package node

import (
	"errors"
	iofs "io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/dedupe"
	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/raftlog"
	"github.com/oncemq/oncemq/internal/vfs"
	"github.com/oncemq/oncemq/internal/vfs/memfs"
)

// TestNewerBase: a base snapshot whose body only a newer version reads is no damage, and no failure of unknown kind.
func TestNewerBase(t *testing.T) {
	for _, c := range []struct {
		name, group string
		newer       func(body []byte) []byte
	}{
		{"decision rules", "0000000000000001", func(b []byte) []byte { b[1]++; return b }},
		{"field of raft0", "0000000000000000", func(b []byte) []byte {
			return []byte(strings.Replace(string(b), "{", `{"colour":1,`, 1))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := memfs.New()
			n := open(t, fs, 1)
			create(t, n, "payments", 1)
			closeNode(t, n)
			changeBase(t, fs, filepath.Join(config.Dir, "groups", c.group), c.newer)
			reserve := filepath.Join(config.Dir, reserveName)
			if err := fs.Remove(reserve); err != nil && !errors.Is(err, iofs.ErrNotExist) {
				t.Fatal(err)
			}
			if _, err := Open(t.Context(), env(t, fs, 1), config); !errors.Is(err, ErrNewerFormat) {
				t.Errorf("opened with %v, want ErrNewerFormat", err)
			}
			if _, err := fs.Open(reserve); c.group == groupName(raft0) && !errors.Is(err, iofs.ErrNotExist) {
				t.Errorf("a reserve is made in a directory of a newer version: %v", err)
			}
		})
	}
}

func changeBase(t *testing.T, fs vfs.FS, dir string, change func([]byte) []byte) {
	t.Helper()
	base, err := raftlog.ReadBase(fs, filepath.Join(dir, "00000000000000000002.base"))
	if err != nil {
		t.Fatal(err)
	}
	base.Body = change(base.Body)
	if err := raftlog.WriteBase(fs, dir, base); err != nil {
		t.Fatal(err)
	}
}

// TestTopicOfNewerRules: a topic that a newer version created, and whose partition was not born before that version
// ended, stops this one with the class that tells an operator which version to use.
func TestTopicOfNewerRules(t *testing.T) {
	fs := memfs.New()
	e := env(t, fs, 1)
	fatal := make(chan error, 1)
	e.Fatal = func(err error) { fatal <- err }
	n, err := Open(t.Context(), e, config)
	if err != nil {
		t.Fatal(err)
	}
	newer := &meta.CreateTopic{Name: "payments", ID: meta.ID{1}, Partitions: [][]int32{{1}}, Rules: dedupe.RulesVersion + 1}
	if result, err := n.metadata.Propose(t.Context(), newer); err != nil || result.Refused != nil {
		t.Fatal(err, result.Refused)
	}
	if err := <-fatal; !errors.Is(err, dedupe.ErrUnknownRules) {
		t.Errorf("fatal: %v, want ErrUnknownRules", err)
	}
	closeNode(t, n)
	if _, err := Open(t.Context(), env(t, fs, 1), config); !errors.Is(err, ErrNewerFormat) {
		t.Errorf("opened with %v, want ErrNewerFormat", err)
	}
}
