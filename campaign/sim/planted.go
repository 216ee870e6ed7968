package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/oncemq/oncemq/campaign/internal/frame"
)

// plant is a bug that the simulation must find: what it replaces stands once in the file.
type plant struct {
	name, file string
	edits      []edit
	within     uint64 // so many seeds, from 1 on
}

type edit struct{ old, new string }

// plants are the bugs.
var plants = []plant{
	{"a retry is answered before its original is committed", "internal/replica/acks.go", []edit{
		{"case f != nil && (w.all || !onDisk):", "case f != nil && !w.all && !onDisk:"},
	}, 50},
	{"nothing is synced", "internal/raftlog/writer.go", []edit{
		{"if err := w.log.segments.Sync(); err != nil {", "if err := error(nil); err != nil {"},
	}, 50},
	{"votes are not recorded", "internal/raftlog/writer.go", []edit{
		{"w.flushers.state.SetVote(w.log.group, term, vote)", "w.flushers.state.SetVote(w.log.group, term, 0)"},
	}, 500},
	{"a leader serves before it has applied what earlier ones stored", "internal/replica/core.go", []edit{
		{"c.firstOwn > 0 && c.applied >= c.firstOwn", "c.firstOwn > 0"},
	}, 50},
	{"a leader that was deposed goes on with the head that it had", "internal/replica/acks.go", []edit{
		{"func (p *partitionCore) lead() {\n\tinvariant.Check(p.flight.empty(), \"entries of an earlier term are in flight when a leader begins to serve\")\n" +
			"\tp.head, p.next, p.starting = dedupe.NewHead(p.table), p.high, p.logStart\n", "func (p *partitionCore) lead() {\n"},
		{"func (p *partitionCore) follow() {\n\tp.head, p.next, p.starting = dedupe.NewHead(p.table), p.high, p.logStart\n",
			"func (p *partitionCore) follow() {\n"},
	}, 500},
	{"only the leader forgets", "internal/replica/apply.go", []edit{
		{"\t\tp.table.Forget(list)\n", "\t\tif p.firstOwn > 0 {\n\t\t\tp.table.Forget(list)\n\t\t}\n"},
	}, 100},
	{"min.insync.replicas is not waited for", "internal/replica/followers.go", []edit{
		{"f.enough = f.match[max(len(f.match)-f.minInSync, 0)]", "f.enough = everything"},
	}, 50},
	{"a read is confirmed by nobody", "internal/replica/reads.go", []edit{
		{"case !c.several():\n\t\tanswer(nil)", "case c.served():\n\t\tanswer(nil)"},
	}, 300},
	{"a leader that does not know that it was deposed refuses for good", "internal/replica/acks.go", []edit{
		{"if !p.several() {\n\t\tp.refuse(s, ack)", "if p.served() {\n\t\tp.refuse(s, ack)"},
	}, 400},
	{"an installed snapshot brings no producers", "internal/replica/acks.go", []edit{
		{"p.table = parsed.(*dedupe.Table)", "p.table, _ = parsed.(*dedupe.Table), 0\n\tp.table = dedupe.New(dedupe.RulesVersion, 0)"},
	}, 100},
	{"waiters of what was cut off hear of success", "internal/replica/acks.go", []edit{
		{"p.abandon(p.flight.cutOff(from), ErrCutOff)", "for _, f := range p.flight.cutOff(from) {\n\t\tf.each(p.release)\n\t}"},
	}, 100},
	{"the end of a segment that is active again is not asked for", "internal/replica/core.go", []edit{
		{"\t\tc.rolling = 0 // the segment behind it may be gone\n", ""},
	}, 300},
}

var foundAt = regexp.MustCompile(`seed (\d+): (.*)`)

// plantAll plants each bug, and demands that it is found in time.
func plantAll(ctx context.Context, cfg config, out io.Writer) (err error) {
	tmp, err := os.MkdirTemp("", "sim")
	if err != nil {
		return frame.Exit(2, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	missed := 0
	for _, p := range plants {
		if !strings.Contains(p.name, cfg.only) {
			continue
		}
		found, err := p.find(ctx, cfg, tmp)
		if err != nil {
			return frame.Exit(2, err)
		}
		if found == "" {
			missed++
			found = fmt.Sprintf("NOT FOUND within %d seeds", p.within)
		}
		fmt.Fprintf(out, "%s: %s\n", p.name, found)
	}
	if missed > 0 {
		return errFound
	}
	return nil
}

// find compiles the simulation with the bug and runs it. It returns what was found, "" for nothing.
func (p *plant) find(ctx context.Context, cfg config, tmp string) (string, error) {
	path, err := filepath.Abs(p.file)
	if err != nil {
		return "", err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	text := string(source)
	for _, e := range p.edits {
		if n := strings.Count(text, e.old); n != 1 {
			return "", fmt.Errorf("plant %q: %s holds %q %d times", p.name, p.file, e.old, n)
		}
		text = strings.Replace(text, e.old, e.new, 1)
	}
	changed, overlay, binary := filepath.Join(tmp, "changed.go"), filepath.Join(tmp, "overlay.json"), filepath.Join(tmp, "sim.test")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err = errors.Join(err, os.WriteFile(changed, []byte(text), 0o644), os.WriteFile(overlay, replace, 0o644)); err != nil {
		return "", err
	}
	if err := build(ctx, binary, "-overlay", overlay); err != nil {
		return "", err
	}
	f := &field{binary: binary, dir: tmp, next: 1, counts: map[string]int{}}
	f.more = func(done uint64) bool { return done < p.within }
	f.run(ctx, cfg.parallel)
	if m := foundAt.FindStringSubmatch(f.found); m != nil {
		return fmt.Sprintf("seed %s: %s", m[1], m[2]), ctx.Err()
	}
	return f.found, ctx.Err()
}
