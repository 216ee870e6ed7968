package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/oncemq/oncemq/internal/meta"
	"github.com/oncemq/oncemq/internal/setting"
)

func configurationDocument(t *testing.T) string {
	t.Helper()
	document, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(document)
}

// TestConfigurationDocument: docs/configuration.md has each flag of serve with its default, and no other.
func TestConfigurationDocument(t *testing.T) {
	document := configurationDocument(t)
	flags := serveCommand().Flags()
	written := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `--([a-z-]+) [A-Z:=]+` \\| (.*?) \\|").FindAllStringSubmatch(document, -1) {
		name, value := row[1], row[2]
		written[name] = true
		f := flags.Lookup(name)
		if f == nil {
			t.Errorf("docs/configuration.md has a flag --%s that serve does not have", name)
			continue
		}
		want := "`" + f.DefValue + "`"
		switch name {
		case "advertise":
			want = "as `--listen`"
		case "peer-advertise":
			want = "as `--peer-listen`"
		case "set", "peer-listen", "founders", "rack":
			want = "none"
		}
		if value != want {
			t.Errorf("docs/configuration.md has %s as the default of --%s, the command %s", value, name, want)
		}
	}
	for _, usage := range regexp.MustCompile(`(?m)^ +--([a-z-]+)`).FindAllStringSubmatch(flags.FlagUsages(), -1) {
		if !written[usage[1]] {
			t.Errorf("docs/configuration.md does not have the flag --%s", usage[1])
		}
	}
}

// TestSettingsDocument: docs/configuration.md has the table of settings, word for word.
func TestSettingsDocument(t *testing.T) {
	const head = "| setting | default | allowed | meaning |\n|---|---|---|---|\n"
	var want strings.Builder
	for _, s := range setting.All() {
		value := "–"
		if s.Default != "" {
			value = "`" + s.Default + "`"
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s |\n", s.Name, value, s.Allowed(), s.Help)
	}
	_, table, _ := strings.Cut(configurationDocument(t), head)
	table, _, _ = strings.Cut(table, "\n\n")
	if table+"\n" != want.String() {
		t.Errorf("docs/configuration.md has\n%s\nthe table of settings is\n%s", table, want.String())
	}
	if help := serveCommand().Long; !strings.HasSuffix(help, setting.Help()) {
		t.Error("the help text of serve does not have the settings")
	}
}

// A bound that another package has as well is the same there.
func TestSettingBounds(t *testing.T) {
	for _, s := range setting.All() {
		if s.Name == "num.partitions" && s.Max != meta.PartitionsPerTopicMax {
			t.Errorf("%s goes up to %d, a topic to %d partitions", s.Name, s.Max, meta.PartitionsPerTopicMax)
		}
	}
}
