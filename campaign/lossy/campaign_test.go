package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/oncemq/oncemq/internal/history"
	"github.com/oncemq/oncemq/internal/lossy"
)

// The whole campaign over a network that loses nothing must fail, though nothing went wrong: it has proved nothing.
func TestQuietNetwork(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // a campaign that fails keeps its files
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out strings.Builder
	err := run(ctx, config{seed: 1, records: 500, clients: []string{"franz-go"}}, &out)
	if !errors.Is(err, errViolated) {
		t.Fatalf("error %v, want %v\n%s", err, errViolated, out.String())
	}
	for _, f := range lossy.Faults() {
		if want := fmt.Sprintf("nothing was proved: %v 0", f); !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if !strings.Contains(err.Error(), "franz-go sent no batch again") || strings.Count(err.Error(), "\n") != 9 {
		t.Errorf("error %v, want one violation for each fault and one for the client", err)
	}
	if !strings.Contains(out.String(), "500 records read: 0 lost, 0 duplicate, 0 phantom, 0 reordered, 0 at a wrong offset") {
		t.Errorf("printed:\n%s", out.String())
	}
}

// newTestProducer returns a producer whose records have all been sent.
func newTestProducer(count int64) *producer {
	p := &producer{c: &campaign{cfg: config{seed: 1}}, round: &round{}, client: "test", count: count}
	for i := range p.round.histories {
		p.round.histories[i] = history.New()
	}
	for r := range p.all() {
		_ = r
	}
	return p
}

func TestReports(t *testing.T) {
	report := func(format string) func(*producer) []string { // one line for each record, with its partition and offset
		return func(p *producer) (lines []string) {
			for number, s := range p.sends {
				lines = append(lines, strings.NewReplacer(
					"N", fmt.Sprint(number), "P", fmt.Sprint(s.partition), "O", fmt.Sprint(10*number)).Replace(format))
			}
			return lines
		}
	}
	kcat := func(p *producer) func(string) error { return (&kcatReports{p: p}).read }
	sarama := func(p *producer) func(string) error {
		return func(line string) error { return readSarama(p, line) }
	}
	const kcatLine = "% Message delivered to partition P (offset O) on broker 1"
	lines := func(lines ...string) func(*producer) []string {
		return func(*producer) []string { return lines }
	}
	tests := []struct {
		name         string
		reader       func(*producer) func(string) error
		lines        func(*producer) []string
		acknowledged int64
		withOffset   bool
		wrong        string // part of the error or violation
	}{
		{"kcat", kcat, report(kcatLine), 20, true, ""},
		{"kcat without offsets", kcat, report(strings.ReplaceAll(kcatLine, "O)", "-1)")), 20, false, ""},
		{"kcat's own words", kcat, lines("% ERROR: connection to broker lost", "%3|FAIL"), 0, false, ""},
		{"kcat gives up", kcat, lines("% Delivery failed for message: Local: Timed out"), 0, false, "Local: Timed out"},
		{"kcat has another partition", kcat, lines("% Message delivered to partition 3 (offset 1) on broker 1"), 0, false, "no such partition"},
		{"kcat reports more than was sent", kcat, func(p *producer) []string {
			return append(report(kcatLine)(p), "% Message delivered to partition 0 (offset 999) on broker 1")
		}, 20, true, "was not sent"},
		{"kcat's words change", kcat, lines("% Message delivered to partition x"), 0, false, "expected integer"},
		{"sarama", sarama, report("stored N O"), 20, true, ""},
		{"sarama gives up", sarama, lines(`failed 3 "no luck"`), 0, false, "no luck"},
		{"sarama reports twice", sarama, lines("stored 3 30", "stored 3 30"), 1, true, "was not waiting for"},
		{"sarama reports what was not sent", sarama, lines("stored 20 1"), 0, false, "was not waiting for"},
		{"sarama says something else", sarama, lines("hello"), 0, false, "invalid syntax"},
		{"sarama gives no offset", sarama, lines("stored 1"), 0, false, "invalid syntax"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := newTestProducer(20)
			read := test.reader(p)
			var wrong []string
			for _, line := range test.lines(p) {
				if err := read(line); err != nil {
					wrong = append(wrong, err.Error())
				}
			}
			got := strings.Join(append(wrong, p.c.violations...), "\n")
			if (test.wrong == "") != (got == "") || !strings.Contains(got, test.wrong) {
				t.Errorf("said %q, want %q", got, test.wrong)
			}
			if p.acknowledged != test.acknowledged {
				t.Errorf("%d acknowledged, want %d", p.acknowledged, test.acknowledged)
			}
			var known int64 // as the history has it: every one of them is lost, because nothing was read
			for _, h := range p.round.histories {
				v := h.Judge()
				known += int64(v.Lost)
			}
			if want := test.acknowledged; (test.withOffset && known != want) || (!test.withOffset && known != 0) {
				t.Errorf("%d offsets noted of %d", known, want)
			}
		})
	}
}

// A child that ends early, or badly, is an error and never a hang.
func TestConverse(t *testing.T) {
	tests := []struct{ name, script, wrong string }{
		{"reads all", "cat >/dev/null; echo one", ""},
		{"reads nothing", "exec <&-; echo one", ""},
		{"fails", "cat >/dev/null; echo one; exit 3", "exit status 3"},
		{"says nonsense", "echo one; echo two; cat >/dev/null", `read what`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", test.script)
			answers, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			p := newTestProducer(0)
			p.count = 10_000 // more than a pipe holds
			got := 0
			err = converse(cmd, p, answers, func(line string) error {
				if got++; line != "one" {
					return fmt.Errorf("what is %q?", line)
				}
				return nil
			}, func(r record) []byte { return r.line })
			if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("error %v, want %q", err, test.wrong)
			}
			if got == 0 {
				t.Error("read nothing")
			}
		})
	}
}

func TestParseFlags(t *testing.T) {
	for _, args := range []string{"x", "--records 0", "--duration -1s", "--clients java", "--clients kcat,", "--faults 6", "--faults -1", "--faults NaN"} {
		if _, err := parseFlags(strings.Fields(args)); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	cfg, err := parseFlags([]string{"--clients", "kcat,kcat"})
	if err != nil || cfg.seed == 0 || len(cfg.clients) != 2 || cfg.faults != 1 {
		t.Errorf("%+v, %v", cfg, err)
	}
}
